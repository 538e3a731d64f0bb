/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Guests of KVM. They make hypercalls, and are interrupted by an NMI, because a
 * module cannot have a vector of its own. The local APIC's entry for the PMU
 * selects the NMI.
 *
 * KVM does not tell a guest that it was restored or migrated. But the driver of
 * the new host sends this NMI to each vCPU before the vCPU executes an
 * instruction. The core finds out whether that has happened (src/restore.rs).
 */

#include <linux/kvm_para.h>
#include <linux/percpu.h>
#include <asm/apic.h>
#include <asm/nmi.h>

#include "../perfctr.h"

/* The state of one CPU. It is changed on that CPU only. */
struct perfctr_line {
	struct irq_work work;
	irq_handler_t handler;
	/*
	 * Whether KVM masks the local APIC's entry whenever it delivers an
	 * interrupt by that entry.
	 */
	bool is_masked_by_nmi;
	/* Finds out anew whether the guest may count here. */
	struct work_struct look;
};

static DEFINE_PER_CPU(struct perfctr_line, perfctr_line);

static int hypercall(u32 op, void *argument, u32 length)
{
	long answer = kvm_hypercall3(PERFCTR_KVM_HYPERCALL_NUMBER, op,
				     (unsigned long)argument, length);

	return answer == -KVM_ENOSYS ? -ENOSYS : answer;
}

/*
 * Executes on the CPU that has queued it, unless that CPU has gone offline
 * meanwhile. In that case no thread executes on that CPU.
 */
static void look(struct work_struct *unused)
{
	perfctr_core_restore_look(raw_cpu_read(perfctr_cpus.core));
}

static void deliver(struct irq_work *work)
{
	struct perfctr_line *line =
		container_of(work, struct perfctr_line, work);

	if (perfctr_core_restore_wants_look(perfctr_this_vcpu()))
		schedule_work_on(smp_processor_id(), &line->look);
	/* The interrupt may have been unbound meanwhile. */
	if (line->handler)
		line->handler(0, this_cpu_ptr(&perfctr_cpus));
}

/*
 * Does the same as apic_write(), which later kernels do not export. By the
 * vector the driver of the host sees that this guest wants the NMI when it was
 * restored.
 */
static void unmask(void)
{
	apic->write(APIC_LVTPC, APIC_DM_NMI | PERFCTR_KVM_LVTPC_VECTOR);
}

/*
 * The NMI may have interrupted the kernel anywhere, so the work waits until the
 * kernel enables interrupts next. An NMI of another source queues the work,
 * too, which then finds nothing to do.
 */
static int perfctr_nmi(unsigned int kind, struct pt_regs *regs)
{
	struct perfctr_line *line = this_cpu_ptr(&perfctr_line);
	u32 explained;

	if (!line->handler)
		return NMI_DONE;
	/* In user mode the NMI interrupts nothing of this module. */
	if (user_mode(regs))
		perfctr_traced(regs, 0);
	/*
	 * The entry is unmasked before the core looks at the page, because an
	 * overflow after that look has to interrupt again. If the NMI has
	 * another source, this costs an exit, but then the core's hypercall
	 * costs one as well.
	 */
	if (line->is_masked_by_nmi)
		unmask();
	explained = perfctr_core_restore_interrupted(perfctr_this_vcpu());
	irq_work_queue(&line->work);
	/* If the result is more than 1, Linux expects another NMI to follow. */
	return explained;
}

static int bind(unsigned int cpu, irq_handler_t handler)
{
	struct perfctr_line *line = per_cpu_ptr(&perfctr_line, cpu);

	line->work = IRQ_WORK_INIT_HARD(deliver);
	INIT_WORK(&line->look, look);
	perfctr_core_restore_begin(per_cpu(perfctr_cpus.core, cpu));
	/*
	 * Intel's local APICs mask the entry when they deliver an interrupt by
	 * it, and AMD's do not.
	 */
	line->is_masked_by_nmi = boot_cpu_data.x86_vendor != X86_VENDOR_AMD &&
				 boot_cpu_data.x86_vendor != X86_VENDOR_HYGON;
	line->handler = handler;
	unmask();
	return 0;
}

static void unbind(unsigned int cpu)
{
	struct perfctr_line *line = per_cpu_ptr(&perfctr_line, cpu);

	/* An NMI that still comes leaves the entry masked. */
	WRITE_ONCE(line->is_masked_by_nmi, false);
	apic->write(APIC_LVTPC, APIC_LVT_MASKED);
	WRITE_ONCE(line->handler, NULL);
	irq_work_sync(&line->work);
	cancel_work_sync(&line->look);
}

static int on_restore(void)
{
	return register_nmi_handler(NMI_LOCAL, perfctr_nmi, 0, "perfctr");
}

static void off_restore(void)
{
	unregister_nmi_handler(NMI_LOCAL, "perfctr");
}

const struct perfctr_platform perfctr_kvm = {
	.name = "KVM",
	.hypercall = hypercall,
	.bind = bind,
	.unbind = unbind,
	.on_restore = on_restore,
	.off_restore = off_restore,
};
