/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A thread's counters change only while the thread stands still. The thread
 * itself changes them with interrupts disabled, and its tracer changes them
 * while the thread is stopped.
 *
 * A stopped thread can be woken at any time, for example by SIGKILL. Waking
 * takes the thread's pi_lock. So a caller keeps the thread asleep if it holds
 * this lock and has seen that the thread is off its run queue and off its CPU.
 * Only while the lock is held is it certain that a thread is the caller's
 * tracee and stays asleep, so this file decides that.
 */

#include <linux/pid.h>
#include <linux/ptrace.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "perfctr.h"

/* Returns whether the caller traces the thread, and the thread is stopped. */
static bool perfctr_is_stopped_tracee(struct task_struct *task)
{
	bool is_tracee;

	rcu_read_lock();
	is_tracee = ptrace_parent(task) == current && task_is_traced(task);
	rcu_read_unlock();
	return is_tracee;
}

/*
 * Returns whether the thread has left its CPU. Then the switch has also called
 * this module.
 */
static bool perfctr_is_asleep(struct task_struct *task)
{
	return perfctr_task_state(task) & (__TASK_TRACED | TASK_FROZEN) &&
	       !READ_ONCE(task->on_rq) && !smp_load_acquire(&task->on_cpu);
}

/*
 * Takes the thread's pi_lock, and keeps the lock if the thread is asleep. A
 * stopped thread may need a moment until it has left its CPU.
 */
static int perfctr_pin(struct task_struct *task, unsigned long *flags)
{
	for (;;) {
		raw_spin_lock_irqsave(&task->pi_lock, *flags);
		if (!perfctr_is_stopped_tracee(task))
			break;
		if (perfctr_is_asleep(task))
			return 0;
		raw_spin_unlock_irqrestore(&task->pi_lock, *flags);
		if (fatal_signal_pending(current))
			return -EINTR;
		if (READ_ONCE(task->on_cpu))
			cond_resched();
		else
			schedule_timeout_killable(1);
	}
	raw_spin_unlock_irqrestore(&task->pi_lock, *flags);
	return -ESRCH;
}

/* Holds the calling thread, or its stopped tracee. */
int perfctr_hold(struct perfctr_hold *hold, struct task_struct *task)
{
	hold->task = task;
	hold->vcpu = NULL;
	if (task != current)
		return perfctr_pin(task, &hold->flags);
	local_irq_save(hold->flags);
	hold->vcpu = perfctr_this_vcpu();
	return 0;
}

void perfctr_let_go(struct perfctr_hold *hold)
{
	if (hold->vcpu)
		local_irq_restore(hold->flags);
	else
		raw_spin_unlock_irqrestore(&hold->task->pi_lock, hold->flags);
}

/*
 * Returns the thread with this number, with a reference. It is the calling
 * thread or its stopped tracee.
 */
struct task_struct *perfctr_find_task(u32 tid)
{
	struct task_struct *task = current;

	rcu_read_lock();
	if (tid)
		task = pid_task(find_vpid(tid), PIDTYPE_PID);
	if (task && task != current && !perfctr_is_stopped_tracee(task))
		task = NULL;
	if (task)
		get_task_struct(task);
	rcu_read_unlock();
	return task;
}
