/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Switches of threads. The scheduler calls perfctr_out() with interrupts
 * disabled and the run queue locked. It calls perfctr_in() with interrupts
 * enabled and preemption disabled.
 */

#include <linux/cpumask.h>
#include <linux/jump_label.h>
#include <linux/module.h>
#include <linux/sched/signal.h>

#include "perfctr.h"

/* At most this many pending signals are examined to find one. */
#define PERFCTR_QUEUE_LOOK 16

static bool perfctr_cost;
module_param_named(cost, perfctr_cost, bool, 0444);
MODULE_PARM_DESC(cost, "count the instructions that thread switches cost");

static DEFINE_STATIC_KEY_FALSE(perfctr_measures);

static struct perfctr_thread *perfctr_of(struct preempt_notifier *notifier)
{
	return container_of(notifier, struct perfctr_thread, notifier);
}

/*
 * Returns whether the calling thread will get the signal that was just sent to
 * it. The kernel drops a signal that the thread ignores. It also drops a
 * standard signal if one with the same number is already pending. A signal that
 * was queued just now is at the end of the list, or near it. For a real-time
 * signal, any pending one suffices.
 */
static bool perfctr_is_queued(int number)
{
	int left = PERFCTR_QUEUE_LOOK;
	struct sigqueue *entry;
	unsigned long flags;
	bool is_queued = false;

	if (number >= SIGRTMIN)
		return sigismember(&current->pending.signal, number);
	spin_lock_irqsave(&current->sighand->siglock, flags);
	list_for_each_entry_reverse(entry, &current->pending.list, list)
	{
		is_queued = entry->info.si_signo == number &&
			    entry->info.si_code == PERFCTR_SIGNAL_CODE;
		if (is_queued || !--left)
			break;
	}
	spin_unlock_irqrestore(&current->sighand->siglock, flags);
	return is_queued;
}

/*
 * Sends the signal of an overflow to the calling thread. The word behind
 * si_code holds the counters. With PREEMPT_RT this sleeps.
 */
#ifdef CONFIG_PREEMPT_RT
bool perfctr_send_now(u32 number, u32 counters)
#else
bool perfctr_glue_send_signal(u32 number, u32 counters)
#endif
{
	struct kernel_siginfo info;

	clear_siginfo(&info);
	info.si_signo = number;
	info.si_code = PERFCTR_SIGNAL_CODE;
	info.si_pid = counters;
	return !send_sig_info(info.si_signo, &info, current) &&
	       perfctr_is_queued(info.si_signo);
}

/*
 * Reports overflows that were noticed while something else was done. Interrupts
 * are disabled, and no lock that a signal needs is held. Where perf holds one,
 * irq_work calls this.
 */
void perfctr_report_current(struct irq_work *unused)
{
	perfctr_core_report(perfctr_core_of_task(current), perfctr_this_vcpu());
}

/*
 * Resumes the thread's counters. Returns the report to the thread. Interrupts
 * are disabled.
 */
static inline u64 perfctr_resume(struct perfctr_thread *thread)
{
	struct perfctr_core_thread *core = perfctr_core_of(thread);

	if (static_branch_unlikely(&perfctr_measures))
		return perfctr_core_switch_in_measured(core,
						       perfctr_this_vcpu());
	return perfctr_core_switch_in(core, perfctr_this_vcpu());
}

static void perfctr_in(struct preempt_notifier *notifier, int cpu)
{
	struct perfctr_thread *thread = perfctr_of(notifier);
	u64 overflows;

	local_irq_disable();
	overflows = perfctr_resume(thread);
	if (unlikely(overflows))
		perfctr_core_report_overflows(perfctr_core_of(thread),
					      perfctr_this_vcpu(), overflows);
	local_irq_enable();
}

static void perfctr_out(struct preempt_notifier *notifier,
			struct task_struct *next)
{
	struct perfctr_core_thread *core =
		perfctr_core_of(perfctr_of(notifier));

	if (static_branch_unlikely(&perfctr_measures))
		perfctr_core_switch_out_measured(core, perfctr_this_vcpu());
	else
		perfctr_core_switch_out(core, perfctr_this_vcpu());
}

struct preempt_ops perfctr_preempt_ops = {
	.sched_in = perfctr_in,
	.sched_out = perfctr_out,
};

/*
 * The irq_work is not initialised at its definition: most releases of Linux
 * leave addresses 0 in a module's per-CPU data.
 */
int perfctr_sched_init(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		per_cpu(perfctr_cpus.report, cpu) =
			IRQ_WORK_INIT_HARD(perfctr_report_current);
	if (perfctr_cost)
		static_branch_enable(&perfctr_measures);
	return 0;
}

/*
 * The list of a thread changes only while the thread stands still. So these may
 * walk the list: the thread itself, the holder of the thread, and the switch to
 * it.
 */
struct perfctr_thread *perfctr_thread_of(struct task_struct *task)
{
	struct preempt_notifier *notifier;

	hlist_for_each_entry(notifier, &task->preempt_notifiers, link) {
		if (notifier->ops == &perfctr_preempt_ops)
			return perfctr_of(notifier);
	}
	return NULL;
}

struct perfctr_core_thread *perfctr_core_of_task(struct task_struct *task)
{
	struct perfctr_thread *thread = perfctr_thread_of(task);

	return thread ? perfctr_core_of(thread) : NULL;
}

/*
 * The thread `next` executes here from now on, and perhaps must not see the
 * page that is registered. Interrupts are disabled.
 */
static noinline void perfctr_leave_to(struct task_struct *next)
{
	struct perfctr_subject subject = perfctr_subject_of(next);

	perfctr_core_leave_to(perfctr_this_vcpu(),
			      perfctr_core_of_task(current), &subject,
			      perfctr_core_of_task(next));
}

/*
 * Returns whether `next` may execute while the page is registered. This is the
 * core's rule Shown::may_execute. It is repeated in C, so that most switches do
 * not call the core.
 */
static inline bool perfctr_may_execute(const struct perfctr_shown *shown,
				       struct task_struct *next)
{
	struct perfctr_subject its;

	if (!next->mm)
		return !shown->hides_kernel;
	its = perfctr_subject_of(next);
	return its.kind == PERFCTR_SUBJECT_OPEN &&
	       its.identity.ids == shown->identity.ids &&
	       its.identity.capabilities == shown->identity.capabilities &&
	       its.identity.users == shown->identity.users &&
	       its.identity.container == shown->identity.container;
}

/*
 * A probe of switches. It is called before the counters of the leaving thread
 * are suspended. Most switches are between threads of one user, or happen where
 * no page is registered. Without a page, the core has to know of the switch
 * only if perf has events here, since they may go on with the next thread. It
 * has to know of each switch while branches are recorded. This function calls
 * another one only at its end, so that it saves no registers before that.
 */
void perfctr_on_switch(PERFCTR_SWITCH_ARGS)
{
	const struct perfctr_shown *shown = this_cpu_read(perfctr_cpus.shown);

	if (unlikely(shown->has_records) ||
	    (shown->number ? unlikely(!perfctr_may_execute(shown, next)) :
			     unlikely(shown->has_events)))
		perfctr_leave_to(next);
}
