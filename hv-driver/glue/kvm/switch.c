// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The hooks in switches of vCPUs, and the PMU's interrupt. */

#include <linux/irq_work.h>
#include <linux/kvm_host.h>
#include <asm/apic.h>
#include <asm/nmi.h>

#include "x86.h"

#include "private.h"

/* The guest's registers are still as they were when the counter overflowed. */
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

/*
 * For each request of the machine's process, a thread may load and put the vCPU
 * without entering the guest. Then the driver does not switch the vCPU in, so
 * its page stays as it is and is not reported as written.
 */
void perfctr_vcpu_put(struct kvm_vcpu *vcpu)
{
	struct perfctr_vcpu *p = vcpu->arch.perfctr;
	unsigned long flags;

	if (!p || !p->in)
		return;

	local_irq_save(flags);
	if (perfctr_core_switch_from(perfctr_this_cpu(), perfctr_core_of(p)))
		overflowed_here(vcpu);
	p->in = false;
	local_irq_restore(flags);
	perfctr_page_written(vcpu, p);
}

/*
 * Our module in a restored guest has to know of the restoration before the
 * guest executes anything, even if the guest may not count here.
 */
void perfctr_vcpu_restored(struct kvm_vcpu *vcpu)
{
	if (!perfctr_on)
		return;
	if (vcpu->arch.perfctr)
		perfctr_page_abandon(vcpu);
	perfctr_notify_module(vcpu);
}

/* This is not inlined, because most vCPUs need it only once. */
static noinline void set_clock(struct kvm_vcpu *vcpu, struct perfctr_vcpu *p)
{
	struct perfctr_clock clock = perfctr_clock_of(vcpu);

	perfctr_core_set_clock(perfctr_core_of(p), &clock);
	p->tsc_offset = vcpu->arch.l1_tsc_offset;
	p->tsc_ratio = vcpu->arch.l1_tsc_scaling_ratio;
}

static __always_inline void switch_in(struct kvm_vcpu *vcpu,
				      struct perfctr_vcpu *p)
{
	if (p->tsc_offset != vcpu->arch.l1_tsc_offset ||
	    p->tsc_ratio != vcpu->arch.l1_tsc_scaling_ratio)
		set_clock(vcpu, p);
	p->in = true;
	if (perfctr_core_switch_to(perfctr_this_cpu(), perfctr_core_of(p),
				   false, perfctr_core_of_machine(vcpu->kvm),
				   false))
		perfctr_notify(vcpu);
}

/* Interrupts are disabled, and the vCPU is loaded. */
void perfctr_switch_in(struct kvm_vcpu *vcpu)
{
	struct perfctr_vcpu *p = vcpu->arch.perfctr;

	if (!p->in)
		switch_in(vcpu, p);
}

void perfctr_vcpu_enter(struct kvm_vcpu *vcpu)
{
	struct perfctr_vcpu *p = vcpu->arch.perfctr;
	unsigned long flags;

	if (!p || p->in)
		return;

	local_irq_save(flags);
	switch_in(vcpu, p);
	local_irq_restore(flags);
}

void perfctr_svm_enter(struct kvm_vcpu *vcpu, u8 cpl)
{
	struct perfctr_vcpu *p;

	if (!perfctr_counts_entries)
		return;

	p = vcpu->arch.perfctr;
	if (p && p->in)
		perfctr_core_enter_guest(perfctr_this_cpu(), perfctr_core_of(p),
					 !cpl);
}
EXPORT_SYMBOL_FOR_KVM_INTERNAL(perfctr_svm_enter);

bool perfctr_rdpmc(struct kvm_vcpu *vcpu)
{
	bool user = static_call(kvm_x86_get_cpl)(vcpu) != 0;
	u64 value = 0;
	bool known;

	if (!vcpu->arch.perfctr || is_guest_mode(vcpu) ||
	    (user && !kvm_read_cr4_bits(vcpu, X86_CR4_PCE)))
		return false;

	local_irq_disable();
	/* The thread may have been preempted since the guest was left. */
	perfctr_switch_in(vcpu);
	known = perfctr_core_rdpmc(perfctr_this_cpu(), kvm_rcx_read(vcpu),
				   &value);
	local_irq_enable();
	if (!known)
		return false;
	kvm_register_write_raw(vcpu, VCPU_REGS_RAX, (u32)value);
	kvm_register_write_raw(vcpu, VCPU_REGS_RDX, value >> 32);
	return true;
}

void perfctr_vcpu_load(struct kvm_vcpu *vcpu)
{
	unsigned long flags;

	if (!perfctr_on || vcpu->arch.perfctr)
		return;

	local_irq_save(flags);
	perfctr_core_run_stranger(perfctr_this_cpu());
	local_irq_restore(flags);
}

/*
 * The PMU's interrupt is an NMI, which may come while the core works. So the
 * work waits until interrupts are enabled, as they are between a guest's exit
 * and its next entry.
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
	perfctr_unmask_interrupt();
}

static DEFINE_PER_CPU(struct irq_work, perfctr_overflow);

/*
 * Nobody else uses the PMU, but there are other NMIs, from faulty memory, from
 * a watchdog, or from a button. Those are left to their own handlers.
 */
static int perfctr_nmi(unsigned int kind, struct pt_regs *regs)
{
	if (!perfctr_nmi_is_ours())
		return NMI_DONE;
	irq_work_queue(this_cpu_ptr(&perfctr_overflow));
	return NMI_HANDLED;
}

/*
 * Linux calls this when no handler of local NMIs and none of the chipset's
 * reasons has explained the NMI. It also calls everybody else who has asked for
 * such NMIs, whatever this returns.
 */
static int perfctr_unknown_nmi(unsigned int kind, struct pt_regs *regs)
{
	if (!perfctr_unknown_nmi_is_ours())
		return NMI_DONE;
	irq_work_queue(this_cpu_ptr(&perfctr_overflow));
	return NMI_HANDLED;
}

/*
 * Intel's PT needs none of the counters that the driver has reserved. While perf
 * uses it, perf's own handler looks at each NMI. It acknowledges whatever has
 * overflowed, unmasks the local APIC's entry, and lets all counters count.
 */
static int perfctr_nmi_after_perf(unsigned int kind, struct pt_regs *regs)
{
	perfctr_close_gate();
	return NMI_DONE;
}

static void give_nmi_back(void)
{
	unregister_nmi_handler(NMI_UNKNOWN, "kvm/perfctr:late");
	unregister_nmi_handler(NMI_LOCAL, "kvm/perfctr:gate");
	unregister_nmi_handler(NMI_LOCAL, "kvm/perfctr");
}

/* One handler is called before perf's, one after it, and one after all others. */
static int take_nmi(void)
{
	int err = register_nmi_handler(NMI_LOCAL, perfctr_nmi, NMI_FLAG_FIRST,
				       "kvm/perfctr");

	if (!err)
		err = register_nmi_handler(NMI_LOCAL, perfctr_nmi_after_perf, 0,
					   "kvm/perfctr:gate");
	if (!err)
		err = register_nmi_handler(NMI_UNKNOWN, perfctr_unknown_nmi, 0,
					   "kvm/perfctr:late");
	if (err)
		give_nmi_back();
	return err;
}

int perfctr_take_interrupt(void)
{
	int cpu;

	/*
	 * An initialiser would not work, since modules' per-CPU data are not
	 * relocated.
	 */
	for_each_possible_cpu(cpu)
		*per_cpu_ptr(&perfctr_overflow, cpu) =
			IRQ_WORK_INIT_HARD(overflow);
	return take_nmi();
}

void perfctr_give_interrupt_back(void)
{
	int cpu;

	give_nmi_back();
	for_each_possible_cpu(cpu)
		irq_work_sync(per_cpu_ptr(&perfctr_overflow, cpu));
}
