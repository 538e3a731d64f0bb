/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A guest of KVM: hypercalls, and an NMI by the local APIC's entry for the PMU,
 * since modules cannot have vectors.
 *
 * Nobody tells a guest that it was restored, or migrated, in the middle of
 * anything.  But a driver beneath it sends each vCPU that interrupt before it
 * executes an instruction, and what a page says then shows that nobody
 * publishes there any more: see go_on().
 */

#include <linux/irq_work.h>
#include <linux/percpu.h>
#include <linux/workqueue.h>
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

/* One CPU; changed there only. */
struct perfctr_line {
	struct irq_work work;
	irq_handler_t handler;
	/*
	 * Whether it may count here is to be looked at anew, and the error if
	 * it may not until then.
	 */
	struct work_struct look;
	bool looks;
	int refused;
	/* Of the machine, on its host. */
	u64 machine;
	/* The page that is registered, or was or will be in a moment. */
	struct perfctr_hv_register wanted;
	/* Its page, and what that said, when it was last interrupted. */
	const struct perfctr_vcpu_page *page;
	u64 overflows;
	u32 flags;
};

static DEFINE_PER_CPU(struct perfctr_line, perfctr_line);

static void (*perfctr_restore_function)(const struct cpumask *cpus);

static int call(u32 op, void *argument, u32 length)
{
	long answer = kvm_hypercall3(PERFCTR_KVM_HYPERCALL_NUMBER, op,
				     (unsigned long)argument, length);

	return answer == -KVM_ENOSYS ? -ENOSYS : answer;
}

/* Whether a page that was there, or was wanted, is there after this. */
static bool is_kept(u32 op, int err)
{
	switch (op) {
	case PERFCTR_OP_REGISTER:
		return !err;
	case PERFCTR_OP_UNREGISTER:
		return err && err != -ENXIO;
	default:
		return true;
	}
}

/* Interrupts are disabled, but for the handshake. */
static int hypercall(u32 op, void *argument, u32 length)
{
	struct perfctr_line *line = raw_cpu_ptr(&perfctr_line);
	int err;

	if (op == PERFCTR_OP_REGISTER)
		line->wanted = *(struct perfctr_hv_register *)argument;
	barrier();
	err = call(op, argument, length);
	barrier();
	if (!is_kept(op, err))
		line->wanted.gfn = 0;
	/* Why the page was lost. */
	if (op == PERFCTR_OP_LOAD && err == -ENXIO && line->refused)
		err = line->refused;
	return err;
}

static u64 gfn(void *page)
{
	return virt_to_phys(page) >> PAGE_SHIFT;
}

static void look(struct work_struct *work)
{
	struct perfctr_line *line =
		container_of(work, struct perfctr_line, look);

	line->looks = false;
	/* On its CPU, unless that is gone: no thread executes there. */
	if (line->refused || perfctr_core_handshake_again(&perfctr_query))
		perfctr_restore_function(cpumask_of(raw_smp_processor_id()));
	line->refused = 0;
}

static void deliver(struct irq_work *work)
{
	struct perfctr_line *line =
		container_of(work, struct perfctr_line, work);

	if (line->looks)
		schedule_work_on(smp_processor_id(), &line->look);
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

/* Whether this is another machine, or allowed, since that was last asked. */
static bool moved(struct perfctr_line *line)
{
	struct perfctr_hv_query now = {
		.abi_major = PERFCTR_ABI_MAJOR,
		.abi_minor = PERFCTR_ABI_MINOR,
	};
	u64 before = line->machine;

	line->machine = call(PERFCTR_OP_QUERY, &now, sizeof(now)) ? 0 :
								    now.machine;
	return line->machine != before;
}

/* The page that the hypervisor beneath this one has left; or NULL. */
static struct perfctr_vcpu_page *left(const struct perfctr_line *line)
{
	struct perfctr_vcpu_page *page =
		phys_to_virt(line->wanted.gfn << PAGE_SHIFT);
	u32 flags;

	if (!line->wanted.gfn)
		return NULL;
	flags = READ_ONCE(page->flags);
	if (!(flags & PERFCTR_VCPU_REGISTERED) ||
	    flags & PERFCTR_VCPU_EXECUTING)
		return NULL;
	return page;
}

/* Nobody counts for this CPU any more, as if the host had forbidden it. */
static void forbid(struct perfctr_vcpu_page *page)
{
	u64 seq = READ_ONCE(page->seq);

	WRITE_ONCE(page->seq, seq | 1);
	smp_wmb();
	WRITE_ONCE(page->flags, PERFCTR_VCPU_REGISTERED);
	WRITE_ONCE(page->loaded, 0);
	smp_wmb();
	WRITE_ONCE(page->seq, (seq | 1) + 1);
}

/*
 * Has the hypervisor that is here now count on from what the page says, before
 * the interrupted code looks at anything: it finds its counters as they were,
 * whatever it was about to do.
 */
static void go_on(struct perfctr_line *line, struct perfctr_vcpu_page *page)
{
	struct perfctr_hv_register wanted = line->wanted;
	int err = perfctr_core_handshake_again(&perfctr_query);

	moved(line);
	if (!err)
		err = call(PERFCTR_OP_GO_ON, &wanted, sizeof(wanted));
	if (err) {
		forbid(page);
		line->refused = err;
		line->looks = true;
	}
}

/* Whether it is ours. */
static bool understood(struct perfctr_line *line)
{
	struct perfctr_vcpu_page *page = left(line);

	if (page) {
		go_on(line, page);
		return true;
	}
	if (has_reason(line))
		return true;
	if (!moved(line))
		return false;
	line->refused = perfctr_cpus[smp_processor_id()].online ? 0 : -ENXIO;
	line->looks = true;
	return true;
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
	is_ours = understood(line);
	irq_work_queue(&line->work);
	return is_ours ? NMI_HANDLED : NMI_DONE;
}

static int bind(unsigned int cpu, irq_handler_t handler)
{
	struct perfctr_line *line = per_cpu_ptr(&perfctr_line, cpu);

	init_irq_work(&line->work, deliver);
	INIT_WORK(&line->look, look);
	moved(line);
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
	cancel_work_sync(&line->look);
}

static int on_restore(void (*function)(const struct cpumask *cpus))
{
	perfctr_restore_function = function;
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
