/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A guest of KVM: hypercalls, and an NMI by the local APIC's entry for the PMU,
 * since modules cannot have vectors.
 *
 * Nobody tells a guest that it was restored, or migrated, in the middle of
 * anything.  But a driver beneath it sends each vCPU that interrupt before it
 * executes an instruction.  What that means is the core's to find out
 * (src/restore.rs).
 */

#include <linux/irq_work.h>
#include <linux/percpu.h>
#include <linux/workqueue.h>
#include <asm/apic.h>
#include <asm/kvm_para.h>
#include <uapi/linux/kvm_para.h>
#include <asm/nmi.h>

#include "../perfctr.h"

/* One CPU; changed there only. */
struct perfctr_line {
	struct irq_work work;
	irq_handler_t handler;
	/* Whether KVM masks the entry whenever it delivers by it. */
	bool is_masked_by_nmi;
	/* Whether it may count here is looked at anew. */
	struct work_struct look;
};

static DEFINE_PER_CPU(struct perfctr_line, perfctr_line);

static int hypercall(u32 op, void *argument, u32 length)
{
	long answer = kvm_hypercall3(PERFCTR_KVM_HYPERCALL_NUMBER, op,
				     (unsigned long)argument, length);

	return answer == -KVM_ENOSYS ? -ENOSYS : answer;
}

/* On its CPU, unless that is gone: no thread executes there. */
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
	/* It was unbound meanwhile, perhaps. */
	if (line->handler)
		line->handler(0, this_cpu_ptr(&perfctr_cpus));
}

/*
 * As apic_write() does, which later kernels do not lend. The vector tells the
 * driver that this guest wants to know of its restoration.
 */
static void unmask(void)
{
	apic->write(APIC_LVTPC, APIC_DM_NMI | PERFCTR_KVM_LVTPC_VECTOR);
}

/*
 * The interrupted kernel may be doing anything, so the work is done when it
 * next enables interrupts; also at an NMI that is somebody else's, where it
 * finds nothing.
 */
static int perfctr_nmi(unsigned int kind, struct pt_regs *regs)
{
	struct perfctr_line *line = this_cpu_ptr(&perfctr_line);
	bool is_ours;

	if (!line->handler)
		return NMI_DONE;
	/*
	 * Before the page is looked at: what comes later than that is delivered.
	 * This exits at others' NMIs, too, but so does the core's question then.
	 */
	if (line->is_masked_by_nmi)
		unmask();
	is_ours = perfctr_core_restore_interrupted(perfctr_this_vcpu());
	irq_work_queue(&line->work);
	return is_ours ? NMI_HANDLED : NMI_DONE;
}

static int bind(unsigned int cpu, irq_handler_t handler)
{
	struct perfctr_line *line = per_cpu_ptr(&perfctr_line, cpu);

	init_irq_work(&line->work, deliver);
	INIT_WORK(&line->look, look);
	perfctr_core_restore_begin(per_cpu(perfctr_cpus.core, cpu));
	/* As Intel's local APICs do, and AMD's do not. */
	line->is_masked_by_nmi = boot_cpu_data.x86_vendor != X86_VENDOR_AMD &&
				 boot_cpu_data.x86_vendor != X86_VENDOR_HYGON;
	line->handler = handler;
	unmask();
	return 0;
}

static void unbind(unsigned int cpu)
{
	struct perfctr_line *line = per_cpu_ptr(&perfctr_line, cpu);

	/* An NMI may still come, but it leaves the entry masked. */
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
	.interrupts_by_work = true,
	.hypercall = hypercall,
	.bind = bind,
	.unbind = unbind,
	.on_restore = on_restore,
	.off_restore = off_restore,
};
