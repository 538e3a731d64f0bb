/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Thread switches.  The scheduler calls out with interrupts disabled and the
 * run queue locked, in with interrupts enabled and preemption disabled.
 */

#include <linux/cpumask.h>
#include <linux/jump_label.h>
#include <linux/module.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "perfctr.h"

/* How many pending signals to look at for one. */
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
 * Whether the calling thread will be told what was sent to it.  A signal that
 * it ignores is dropped, and a standard one if another one of its number is
 * pending; what was queued just now is at the end of the list, or nearly.  Of a
 * real-time signal it is sufficient that one is pending.
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
 * To the calling thread, with interrupts disabled; the word behind si_code holds
 * the counters.  Nobody would let the counters go on if the signal is lost, so
 * they do at once.
 */
static void perfctr_signal(struct perfctr_thread *thread, u64 signal)
{
	struct kernel_siginfo info;

	clear_siginfo(&info);
	info.si_signo = signal >> 32;
	info.si_code = PERFCTR_SIGNAL_CODE;
	info.si_pid = (u32)signal;
	if (!send_sig_info(info.si_signo, &info, current) &&
	    perfctr_is_queued(info.si_signo))
		return;
	perfctr_core_signal_lost(perfctr_core_of(thread), perfctr_this_vcpu());
}

/*
 * With interrupts disabled, as the core has given it: a signal, with its number
 * in the high half, or records.
 */
void perfctr_tell(struct perfctr_thread *thread, u64 told)
{
	if (told >> 32)
		perfctr_signal(thread, told);
	else if (told)
		perfctr_ring_record(thread, told);
}

/* With interrupts disabled: an overflow that was noticed on the way. */
void perfctr_tell_current(void)
{
	struct perfctr_thread *thread = perfctr_thread_of(current);

	if (thread)
		perfctr_tell(thread, perfctr_core_tell(perfctr_core_of(thread),
						       perfctr_this_vcpu()));
}

/* With interrupts disabled; gives what to tell the thread. */
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
	u64 told;

	local_irq_disable();
	told = perfctr_resume(thread);
	if (unlikely(told))
		perfctr_tell(thread, told);
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

static void perfctr_tell_here(struct irq_work *unused)
{
	perfctr_tell_current();
}

/*
 * The work is not initialised where it is defined: most releases of Linux leave
 * addresses 0 in the data that a module has for each CPU.
 */
int perfctr_sched_init(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		init_irq_work(per_cpu_ptr(&perfctr_cpus.tell, cpu),
			      perfctr_tell_here);
	if (perfctr_cost)
		static_branch_enable(&perfctr_measures);
	return 0;
}

/*
 * The list changes only while its thread stands still, so the thread itself
 * may walk it, whoever holds it, and the switch to it.
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

static struct perfctr_core_thread *
perfctr_core_of_task(struct task_struct *task)
{
	struct perfctr_thread *thread = perfctr_thread_of(task);

	return thread ? perfctr_core_of(thread) : NULL;
}

struct perfctr_core_thread *perfctr_core_current(void)
{
	return perfctr_core_of_task(current);
}

/* With interrupts disabled. */
void perfctr_resume_current(void)
{
	struct perfctr_thread *thread = perfctr_thread_of(current);

	if (thread)
		perfctr_tell(thread, perfctr_resume(thread));
}

/* With interrupts disabled: somebody executes, or will, whom a page may show. */
static noinline void perfctr_leave_to(struct task_struct *next)
{
	struct perfctr_subject subject = perfctr_subject_of(next);

	perfctr_core_leave_to(perfctr_this_vcpu(), perfctr_core_current(),
			      &subject, perfctr_core_of_task(next));
}

/*
 * What the core's rule says (Shown::may_execute) of nearly all threads, here
 * because every switch asks it.  A thread with a program has namespaces.
 */
static inline bool perfctr_may_execute(const struct perfctr_shown *shown,
				       struct task_struct *next)
{
	if (!next->mm)
		return !shown->hides_kernel;
	return perfctr_euid(next) == shown->uid &&
	       (unsigned long)next->nsproxy->pid_ns_for_children ==
		       shown->container &&
	       perfctr_is_dumpable(next);
}

/*
 * A probe: prev leaves its CPU to next, before its own counters are suspended.
 * Most switches are of a user's own threads, or where nothing is registered.
 * perf may have events that have no page go on with next: the core has to know.
 */
void perfctr_on_switch(PERFCTR_SWITCH_ARGS)
{
	const struct perfctr_cpu *cpu = this_cpu_ptr(&perfctr_cpus);
	const struct perfctr_shown *shown = cpu->shown;

	if (shown->number ? unlikely(!perfctr_may_execute(shown, next)) :
			    unlikely(cpu->events))
		perfctr_leave_to(next);
}
