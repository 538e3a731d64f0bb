// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The hooks in switches of vCPUs, and the PMU's interrupt. */

#include <linux/irq_work.h>
#include <linux/kvm_host.h>
#include <asm/apic.h>
#include <asm/nmi.h>

#include "kvm_cache_regs.h"
#include "lapic.h"
#include "x86.h"

#include "private.h"

/* The guest's registers are still those of where the counter overflowed. */
static void overflowed_here(struct kvm_vcpu *vcpu)
{
	struct perfctr_hv_place place = {
		.mode = static_call(kvm_x86_get_cpl)(vcpu) ?
				PERFCTR_PLACE_USER :
				PERFCTR_PLACE_KERNEL,
		.ip = kvm_rip_read(vcpu),
		.sp = kvm_rsp_read(vcpu),
		.flags = kvm_get_rflags(vcpu),
	};

	perfctr_core_overflowed_at(perfctr_core_of(vcpu->arch.perfctr), &place);
}

/* Its local APIC's entry for the PMU's interrupt says what it gets. */
void perfctr_notify(struct kvm_vcpu *vcpu)
{
	kvm_make_request(KVM_REQ_PMI, vcpu);
}

/*
 * A vCPU was left whose last interrupt may still come; what it tells is known,
 * but it is acknowledged, so that it does not gate the next.
 */
static DEFINE_PER_CPU(bool, perfctr_left);

void perfctr_vcpu_put(struct kvm_vcpu *vcpu)
{
	struct perfctr_vcpu *p = vcpu->arch.perfctr;
	unsigned long flags;

	if (!p)
		return;

	local_irq_save(flags);
	if (perfctr_core_switch_from(perfctr_this_cpu(), perfctr_core_of(p)))
		overflowed_here(vcpu);
	__this_cpu_write(perfctr_left, true);
	local_irq_restore(flags);
	perfctr_page_written(vcpu);
}

/*
 * A guest whose local APIC sends it an NMI for the PMU has our module, or
 * another use for one: it is told before it executes anything.
 */
void perfctr_vcpu_restored(struct kvm_vcpu *vcpu)
{
	u32 lvtpc = kvm_lapic_get_reg(vcpu->arch.apic, APIC_LVTPC);

	if (!perfctr_on)
		return;
	if (vcpu->arch.perfctr) {
		this_cpu_write(perfctr_left, true);
		perfctr_page_abandon(vcpu);
	}
	if ((lvtpc & (APIC_LVT_MASKED | APIC_MODE_MASK)) == APIC_DM_NMI)
		perfctr_notify(vcpu);
}

static void switch_in(struct kvm_vcpu *vcpu, struct perfctr_core_vcpu *core)
{
	struct perfctr_clock clock = perfctr_clock_of(vcpu);

	perfctr_core_set_clock(core, &clock);
	if (perfctr_core_switch_to(perfctr_this_cpu(), core, false,
				   perfctr_allowed(vcpu->kvm)))
		perfctr_notify(vcpu);
}

void perfctr_vcpu_load(struct kvm_vcpu *vcpu)
{
	struct perfctr_vcpu *p = vcpu->arch.perfctr;
	unsigned long flags;

	if (!perfctr_on)
		return;

	local_irq_save(flags);
	if (p)
		switch_in(vcpu, perfctr_core_of(p));
	else
		perfctr_core_run_stranger(perfctr_this_cpu());
	local_irq_restore(flags);
}

/*
 * The PMU's interrupt is an NMI, which may come while the core works.  So the
 * work is done as soon as interrupts are enabled: they are between a guest's
 * exit and its next entry.
 */
static void overflow(struct irq_work *unused)
{
	struct kvm_vcpu *vcpu = kvm_get_running_vcpu();
	struct perfctr_vcpu *p = vcpu ? vcpu->arch.perfctr : NULL;

	if (perfctr_core_interrupt(perfctr_this_cpu(),
				   p ? perfctr_core_of(p) : NULL)) {
		overflowed_here(vcpu);
		perfctr_notify(vcpu);
	}
	/* Intel's local APICs mask the entry when they deliver. */
	if (boot_cpu_data.x86_vendor == X86_VENDOR_INTEL)
		apic_write(APIC_LVTPC, APIC_DM_NMI);
}

static DEFINE_PER_CPU(struct irq_work, perfctr_overflow);

/* Nobody else has the PMU, but other NMIs come, too. */
static int perfctr_nmi(unsigned int kind, struct pt_regs *regs)
{
	struct kvm_vcpu *vcpu = kvm_get_running_vcpu();

	if ((!vcpu || !vcpu->arch.perfctr) &&
	    !this_cpu_xchg(perfctr_left, false))
		return NMI_DONE;
	irq_work_queue(this_cpu_ptr(&perfctr_overflow));
	return NMI_HANDLED;
}

int perfctr_take_interrupt(void)
{
	int cpu;

	/* Not where it is defined: modules' per-CPU data are not relocated. */
	for_each_possible_cpu(cpu)
		*per_cpu_ptr(&perfctr_overflow, cpu) =
			IRQ_WORK_INIT_HARD(overflow);
	return register_nmi_handler(NMI_LOCAL, perfctr_nmi, 0, "kvm/perfctr");
}

void perfctr_give_interrupt_back(void)
{
	int cpu;

	unregister_nmi_handler(NMI_LOCAL, "kvm/perfctr");
	for_each_possible_cpu(cpu)
		irq_work_sync(per_cpu_ptr(&perfctr_overflow, cpu));
}
