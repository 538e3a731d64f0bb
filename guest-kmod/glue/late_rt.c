/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * This file is only in kernels with PREEMPT_RT. The core sends signals and wakes
 * readers where interrupts are disabled, and the probes of exec and exit unlink
 * counters where preemption is disabled. All this takes locks that sleep. So the
 * thread itself sends the signal and unlinks its counters when it leaves the
 * kernel, and a work item wakes the readers.
 */

#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>

#include "perfctr.h"

/* Before the module goes, perfctr_task_exit() waits for the return. */
static void perfctr_late_ends(struct perfctr_thread *thread)
{
	perfctr_thread_put(thread);
	module_put(THIS_MODULE);
}

/*
 * The thread leaves the kernel, and may sleep here. Meanwhile its counters may
 * have been stopped, set anew or unlinked, as they may be between a signal and
 * its handler.
 */
static void perfctr_leave_kernel(struct callback_head *work)
{
	struct perfctr_thread *thread =
		container_of(work, struct perfctr_thread, late.work);
	u32 number, overflows;

	local_irq_disable();
	work->func = NULL;
	number = thread->late.number;
	overflows = thread->late.overflows;
	thread->late.overflows = 0;
	local_irq_enable();
	if (overflows && !perfctr_send_now(number, overflows)) {
		local_irq_disable();
		if (thread->task == current)
			perfctr_core_signal_lost(perfctr_core_of(thread),
						 perfctr_this_vcpu());
		local_irq_enable();
	}
	if (thread->late.is_end)
		perfctr_thread_unlink_now(thread);
	perfctr_late_ends(thread);
}

/*
 * Has the calling thread execute perfctr_leave_kernel(). Returns whether it
 * will. Interrupts are disabled.
 */
static bool perfctr_put_off(struct perfctr_thread *thread,
			    enum task_work_notify_mode mode)
{
	struct callback_head *work = &thread->late.work;

	if (work->func)
		return true;
	init_task_work(work, perfctr_leave_kernel);
	if (task_work_add(current, work, mode)) {
		work->func = NULL;
		return false;
	}
	kref_get(&thread->kref);
	__module_get(THIS_MODULE);
	return true;
}

/*
 * If an earlier signal was not sent yet, one signal reports both. As any signal
 * does, this one ends the thread's wait in the kernel, unless the thread blocks
 * the signal.
 */
bool perfctr_glue_send_signal(u32 number, u32 overflows)
{
	struct perfctr_thread *thread = perfctr_thread_of(current);

	thread->late.number = number;
	thread->late.overflows |= overflows;
	return perfctr_put_off(thread, sigismember(&current->blocked, number) ?
					       TWA_RESUME :
					       TWA_SIGNAL);
}

/*
 * The thread itself or its tracer unlinks the counters. A thread that exits does
 * its work before its parent learns of the exit, so the work is always accepted.
 */
int perfctr_thread_unlink(struct perfctr_thread *thread)
{
	if (READ_ONCE(thread->task) != current)
		return perfctr_thread_unlink_now(thread);
	local_irq_disable();
	thread->late.is_end = true;
	perfctr_put_off(thread, TWA_RESUME);
	local_irq_enable();
	return 0;
}

static void perfctr_wake_late(struct work_struct *work)
{
	struct perfctr_thread *thread =
		container_of(work, struct perfctr_thread, late.wake);

	wake_up_poll(&thread->wait, EPOLLIN | EPOLLRDNORM);
	perfctr_late_ends(thread);
}

void perfctr_late_init(struct perfctr_thread *thread)
{
	INIT_WORK(&thread->late.wake, perfctr_wake_late);
}

/*
 * Any CPU may do the work, since a real-time thread may leave this one no time
 * for it. If nobody waits, nothing is put off that would keep the counters.
 */
void perfctr_glue_ring_wake(const void *counters)
{
	struct perfctr_thread *thread =
		container_of(counters, struct perfctr_thread, core);

	if (!wq_has_sleeper(&thread->wait))
		return;
	kref_get(&thread->kref);
	__module_get(THIS_MODULE);
	if (!queue_work(system_unbound_wq, &thread->late.wake))
		perfctr_late_ends(thread);
}
