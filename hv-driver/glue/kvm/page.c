// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Registers vCPUs' pages, and pins them while the host may write to them. */

#include <linux/export.h>
#include <linux/kvm_host.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "lapic.h"
#include "x86.h"

#include "private.h"

struct perfctr_clock perfctr_clock_of(const struct kvm_vcpu *vcpu)
{
	struct perfctr_clock clock = { .offset = vcpu->arch.l1_tsc_offset };
	u64 ratio = vcpu->arch.l1_tsc_scaling_ratio;

	if (ratio != kvm_caps.default_tsc_scaling_ratio) {
		clock.scale = ratio;
		clock.fraction_bits = kvm_caps.tsc_scaling_ratio_frac_bits;
	}
	return clock;
}

/*
 * The guest needs a 64-bit kernel and a time-stamp counter that the hardware
 * provides. It also needs a local APIC in this kernel, which interrupts it.
 */
bool perfctr_guest(struct kvm_vcpu *vcpu, struct perfctr_guest *guest)
{
	const struct perfctr_guest hardware = {
		.rings = PERFCTR_RINGS_HARDWARE,
		.clock = perfctr_clock_of(vcpu),
	};

	if (!is_64_bit_mode(vcpu) || !lapic_in_kernel(vcpu) ||
	    vcpu->arch.tsc_catchup || vcpu->arch.tsc_always_catchup ||
	    vcpu->arch.guest_state_protected)
		return false;
	*guest = hardware;
	return true;
}

/*
 * Accepts only memory to which the guest itself may write. KVM has memory of
 * its own among the guest's, such as VMX's page for accesses to the local APIC.
 */
static int pin(struct kvm *kvm, gfn_t gfn, struct page **page)
{
	unsigned long address = gfn_to_hva(kvm, gfn);
	int pinned;

	if (kvm_is_error_hva(address) || !kvm_is_visible_gfn(kvm, gfn))
		return -EINVAL;
	pinned = pin_user_pages_fast(address, 1, FOLL_WRITE | FOLL_LONGTERM,
				     page);
	if (pinned < 0)
		return pinned == -ENOMEM ? pinned : -EINVAL;
	return pinned == 1 ? 0 : -EINVAL;
}

/*
 * A guest decides which of its pages is pinned, and when. So each such page
 * counts as memory that the machine's process has locked, and RLIMIT_MEMLOCK
 * limits it. A vCPU has one page at most.
 */
static int pin_accounted(struct kvm *kvm, gfn_t gfn, struct page **page)
{
	int err = account_locked_vm(kvm->mm, 1, true);

	if (err)
		return err;
	err = pin(kvm, gfn, page);
	if (err)
		account_locked_vm(kvm->mm, 1, false);
	return err;
}

static void unpin(struct kvm *kvm, struct page *page)
{
	unpin_user_pages_dirty_lock(&page, 1, true);
	account_locked_vm(kvm->mm, 1, false);
}

static void release(struct kvm *kvm, struct perfctr_vcpu *p)
{
	unpin(kvm, p->page);
	kfree(p);
}

void perfctr_update_rdpmc(struct kvm_vcpu *vcpu)
{
	kvm_make_request(KVM_REQ_RECALC_INTERCEPTS, vcpu);
}

int perfctr_page_register(struct kvm_vcpu *vcpu, gfn_t gfn,
			  const struct perfctr_guest *guest, bool goes_on)
{
	struct perfctr_vcpu *p = kzalloc(sizeof(*p), GFP_KERNEL_ACCOUNT);
	int err;

	if (!p)
		return -ENOMEM;
	err = pin_accounted(vcpu->kvm, gfn, &p->page);
	if (err) {
		kfree(p);
		return err;
	}
	p->gfn = gfn;
	if (goes_on) {
		err = perfctr_get_counters(vcpu);
		if (err) {
			release(vcpu->kvm, p);
			return err;
		}
	}

	local_irq_disable();
	vcpu->arch.perfctr = p;
	err = perfctr_core_register(perfctr_this_cpu(), perfctr_core_of(p),
				    page_address(p->page), guest, vcpu->vcpu_id,
				    perfctr_window_of(vcpu),
				    perfctr_core_of_machine(vcpu->kvm), false,
				    goes_on);
	if (err)
		vcpu->arch.perfctr = NULL;
	else
		p->in = true;
	local_irq_enable();
	if (err) {
		release(vcpu->kvm, p);
		return err;
	}
	perfctr_update_rdpmc(vcpu);
	return 0;
}

void perfctr_page_unregister(struct kvm_vcpu *vcpu)
{
	struct perfctr_vcpu *p = vcpu->arch.perfctr;

	local_irq_disable();
	perfctr_core_unregister(perfctr_this_cpu(), perfctr_core_of(p),
				perfctr_window_of(vcpu));
	vcpu->arch.perfctr = NULL;
	local_irq_enable();
	perfctr_page_written(vcpu, p);
	release(vcpu->kvm, p);
	perfctr_update_rdpmc(vcpu);
}

/* During a live migration, the page has to be copied again after a write. */
void perfctr_page_written(struct kvm_vcpu *vcpu, const struct perfctr_vcpu *p)
{
	int idx = srcu_read_lock(&vcpu->kvm->srcu);

	kvm_vcpu_mark_page_dirty(vcpu, p->gfn);
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
}

void perfctr_vcpu_destroy(struct kvm_vcpu *vcpu)
{
	perfctr_put_counters(vcpu);
	if (vcpu->arch.perfctr)
		release(vcpu->kvm, vcpu->arch.perfctr);
	vcpu->arch.perfctr = NULL;
}

/*
 * The vCPU is reset or was restored. By now its page is another kernel's
 * memory, or says what the guest has to go on from. So nothing is written to
 * it.
 */
void perfctr_page_abandon(struct kvm_vcpu *vcpu)
{
	struct perfctr_vcpu *p = vcpu->arch.perfctr;

	local_irq_disable();
	perfctr_core_abandon(perfctr_this_cpu(), perfctr_core_of(p));
	vcpu->arch.perfctr = NULL;
	local_irq_enable();
	perfctr_put_counters(vcpu);
	release(vcpu->kvm, p);
	perfctr_update_rdpmc(vcpu);
}

/* Guests must not read the host's counts, which are in the same counters. */
bool perfctr_intercept_rdpmc(struct kvm_vcpu *vcpu)
{
	return !vcpu->arch.perfctr || !perfctr_has_counters(vcpu) ||
	       !perfctr_allowed(vcpu->kvm) ||
	       perfctr_core_rdpmc_exits(perfctr_driver());
}
EXPORT_SYMBOL_FOR_KVM_INTERNAL(perfctr_intercept_rdpmc);

/* VMX loads these values when the vCPU is entered and left. */
void perfctr_glue_load_at_switch(uint64_t inside, uint64_t outside)
{
	struct perfctr_vcpu *p = kvm_get_running_vcpu()->arch.perfctr;

	p->inside = inside;
	p->outside = outside;
}

bool perfctr_at_switch(const struct kvm_vcpu *vcpu, u64 *inside, u64 *outside)
{
	const struct perfctr_vcpu *p = vcpu->arch.perfctr;

	*inside = p ? p->inside : 0;
	*outside = p ? p->outside : 0;
	return READ_ONCE(perfctr_taken);
}
EXPORT_SYMBOL_FOR_KVM_INTERNAL(perfctr_at_switch);
