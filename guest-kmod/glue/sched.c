/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Thread switches.  The scheduler calls out with interrupts disabled and the
 * run queue locked, in with interrupts enabled and preemption disabled.
 */

#include <linux/sched.h>

#include "perfctr.h"

static struct perfctr_core_thread *perfctr_of(struct preempt_notifier *notifier)
{
	return perfctr_core_of(
		container_of(notifier, struct perfctr_thread, notifier));
}

static void perfctr_in(struct preempt_notifier *notifier, int cpu)
{
	unsigned long flags;
	u64 signal;

	local_irq_save(flags);
	signal = perfctr_core_switch_in(perfctr_of(notifier),
					perfctr_cpus[cpu].core);
	local_irq_restore(flags);
	perfctr_signal(signal);
}

static void perfctr_out(struct preempt_notifier *notifier,
			struct task_struct *next)
{
	perfctr_core_switch_out(perfctr_of(notifier), perfctr_this_vcpu());
}

static void perfctr_in_measured(struct preempt_notifier *notifier, int cpu)
{
	unsigned long flags;
	u64 signal;

	local_irq_save(flags);
	signal = perfctr_core_switch_in_measured(perfctr_of(notifier),
						 perfctr_cpus[cpu].core);
	local_irq_restore(flags);
	perfctr_signal(signal);
}

static void perfctr_out_measured(struct preempt_notifier *notifier,
				 struct task_struct *next)
{
	perfctr_core_switch_out_measured(perfctr_of(notifier),
					 perfctr_this_vcpu());
}

static struct preempt_ops perfctr_ops = {
	.sched_in = perfctr_in,
	.sched_out = perfctr_out,
};

static struct preempt_ops perfctr_ops_measured = {
	.sched_in = perfctr_in_measured,
	.sched_out = perfctr_out_measured,
};

struct preempt_ops *perfctr_preempt_ops(void)
{
	return perfctr_cost ? &perfctr_ops_measured : &perfctr_ops;
}
