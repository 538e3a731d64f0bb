/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A guest of KVM: hypercalls, and an NMI by the local APIC's entry for the PMU,
 * since modules cannot have vectors.
 */

#include <linux/irq_work.h>
#include <linux/percpu.h>
#include <asm/apic.h>
#include <asm/hypervisor.h>
#include <asm/io.h>
#include <asm/kvm_para.h>
#include <uapi/linux/kvm_para.h>
#include <asm/nmi.h>

#include "../perfctr.h"

static bool exists(void)
{
	return hypervisor_is_type(X86_HYPER_KVM);
}

static bool owns_cr4(void)
{
	return true;
}

static int hypercall(u32 op, void *argument, u32 length)
{
	long answer = kvm_hypercall3(PERFCTR_KVM_HYPERCALL_NUMBER, op,
				     (unsigned long)argument, length);

	return answer == -KVM_ENOSYS ? -ENOSYS : answer;
}

static u64 gfn(void *page)
{
	return virt_to_phys(page) >> PAGE_SHIFT;
}

/* One CPU; changed there only. */
struct perfctr_line {
	struct irq_work work;
	irq_handler_t handler;
	/* Its page, and what that said, when it was last interrupted. */
	const struct perfctr_vcpu_page *page;
	u64 overflows;
	u32 flags;
};

static DEFINE_PER_CPU(struct perfctr_line, perfctr_line);

static void deliver(struct irq_work *work)
{
	struct perfctr_line *line =
		container_of(work, struct perfctr_line, work);

	/* It was unbound meanwhile, perhaps. */
	if (line->handler)
		line->handler(0, &perfctr_cpus[smp_processor_id()]);
}

/* Whether the hypervisor has a reason to interrupt, which its page says. */
static bool has_reason(struct perfctr_line *line)
{
	unsigned int number = smp_processor_id();
	struct perfctr_user *user = READ_ONCE(perfctr_cpus[number].user);
	struct perfctr_line before = *line;

	if (!user)
		return false;
	line->page = user->page[number];
	line->overflows = READ_ONCE(line->page->overflows);
	line->flags = READ_ONCE(line->page->flags);
	return line->page != before.page ||
	       line->overflows != before.overflows ||
	       line->flags != before.flags;
}

/*
 * The interrupted kernel may be doing anything, so the work is done when it
 * next enables interrupts; also at an NMI that is somebody else's, where it
 * finds nothing.
 */
static int perfctr_nmi(unsigned int kind, struct pt_regs *regs)
{
	struct perfctr_line *line = this_cpu_ptr(&perfctr_line);

	if (!line->handler)
		return NMI_DONE;
	irq_work_queue(&line->work);
	return has_reason(line) ? NMI_HANDLED : NMI_DONE;
}

static int bind(unsigned int cpu, irq_handler_t handler)
{
	struct perfctr_line *line = per_cpu_ptr(&perfctr_line, cpu);

	init_irq_work(&line->work, deliver);
	line->handler = handler;
	/* As apic_write() does, which later kernels do not lend. */
	apic->write(APIC_LVTPC, APIC_DM_NMI);
	return 0;
}

static void unbind(unsigned int cpu, int irq)
{
	struct perfctr_line *line = per_cpu_ptr(&perfctr_line, cpu);

	apic->write(APIC_LVTPC, APIC_LVT_MASKED);
	WRITE_ONCE(line->handler, NULL);
	irq_work_sync(&line->work);
}

static int on_restore(void (*function)(void))
{
	return register_nmi_handler(NMI_LOCAL, perfctr_nmi, 0, "perfctr");
}

static void off_restore(void)
{
	unregister_nmi_handler(NMI_LOCAL, "perfctr");
}

const struct perfctr_platform perfctr_kvm = {
	.name = "KVM",
	.exists = exists,
	.owns_cr4 = owns_cr4,
	.hypercall = hypercall,
	.gfn = gfn,
	.bind = bind,
	.unbind = unbind,
	.on_restore = on_restore,
	.off_restore = off_restore,
};
