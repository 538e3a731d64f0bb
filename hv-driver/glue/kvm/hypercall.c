// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The hypercall: the core decides, and calls back for KVM's part of it. */

#include <linux/kvm_host.h>

#include "x86.h"

#include "private.h"

/* The caller's argument for the copying functions. */
struct perfctr_caller {
	struct kvm_vcpu *vcpu;
	u64 address;
};

int perfctr_glue_copy_in(void *caller, void *to, uint32_t length)
{
	struct perfctr_caller *from = caller;
	struct x86_exception unused;

	return kvm_read_guest_virt(from->vcpu, from->address, to, length,
				   &unused) ?
		       -EFAULT :
		       0;
}

int perfctr_glue_copy_out(void *caller, const void *from, uint32_t length)
{
	struct perfctr_caller *to = caller;
	struct x86_exception unused;

	return kvm_write_guest_virt_system(to->vcpu, to->address, (void *)from,
					   length, &unused) ?
		       -EFAULT :
		       0;
}

bool perfctr_glue_guest(struct perfctr_guest *guest)
{
	return perfctr_guest(kvm_get_running_vcpu(), guest);
}

const struct perfctr_core_cpu *perfctr_glue_cpu(void)
{
	return perfctr_this_cpu();
}

struct perfctr_core_vcpu *perfctr_glue_vcpu(void)
{
	struct kvm_vcpu *vcpu = kvm_get_running_vcpu();

	if (!vcpu->arch.perfctr)
		return NULL;
	/* The thread may have been preempted since the guest was left. */
	perfctr_switch_in(vcpu);
	return perfctr_core_of(vcpu->arch.perfctr);
}

uint64_t perfctr_glue_machine(void)
{
	return perfctr_machine(kvm_get_running_vcpu()->kvm);
}

/*
 * The vCPU was switched in before its CPU was taken, so this switches it out. It
 * is switched in again at its next entry.
 */
int perfctr_glue_take_counters(void)
{
	struct kvm_vcpu *vcpu = kvm_get_running_vcpu();
	int err;

	if (!vcpu->arch.perfctr || perfctr_has_counters(vcpu) ||
	    !perfctr_allowed(vcpu->kvm))
		return 0;
	err = perfctr_get_counters(vcpu);
	if (err)
		return err;
	preempt_disable();
	perfctr_vcpu_put(vcpu);
	preempt_enable();
	perfctr_update_rdpmc(vcpu);
	return 0;
}

void perfctr_glue_put_counters(void)
{
	perfctr_put_counters(kvm_get_running_vcpu());
}

int perfctr_glue_register(uint64_t gfn, const struct perfctr_guest *guest,
			  bool goes_on)
{
	return perfctr_page_register(kvm_get_running_vcpu(), gfn, guest,
				     goes_on);
}

void perfctr_glue_unregister(void)
{
	perfctr_page_unregister(kvm_get_running_vcpu());
}

int perfctr_hypercall(struct kvm_vcpu *vcpu, u32 op, u64 address, u32 length)
{
	struct perfctr_caller caller = { .vcpu = vcpu, .address = address };
	u64 argument[PERFCTR_ARGUMENT_BYTES / sizeof(u64)];

	if (!perfctr_on)
		return -ENODEV;
	/*
	 * A nested guest's hypercall is refused, since its page would be in the
	 * memory of the nested guest's host. A hypercall is also refused if the
	 * host cannot read the guest's registers and memory.
	 */
	if (is_guest_mode(vcpu) || vcpu->arch.guest_state_protected)
		return -EPERM;
	return perfctr_core_hypercall(perfctr_driver(), &caller, op, argument,
				      length);
}

/*
 * In KVM no counter is kept for the host itself, so the core does not call
 * these.
 */
int perfctr_glue_profile_start(const struct perfctr_hv_profile *profile)
{
	return -EOPNOTSUPP;
}

int perfctr_glue_profile_read(uint32_t cpu, struct perfctr_hv_samples *samples)
{
	return -EOPNOTSUPP;
}

int perfctr_glue_profile_stop(void)
{
	return -EOPNOTSUPP;
}

int perfctr_glue_accounts_start(const struct perfctr_hv_accounting *accounting)
{
	return -EOPNOTSUPP;
}

int perfctr_glue_accounts_read(struct perfctr_hv_accounts *answer)
{
	return -EOPNOTSUPP;
}

int perfctr_glue_accounts_stop(void)
{
	return -EOPNOTSUPP;
}
