/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What late.c does, in a kernel with PREEMPT_RT: the thread itself sends the
 * signal when it leaves the kernel, and a work item wakes readers.
 */

#include <linux/module.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/task_work.h>

#include "perfctr.h"

/*
 * The thread leaves the kernel. It may sleep here. Meanwhile its counters may
 * have been stopped, set anew or unlinked, as they may be between a signal and
 * its handler.
 */
static void perfctr_leave_kernel(struct callback_head *work)
{
	struct perfctr_thread *thread =
		container_of(work, struct perfctr_thread, late.work);
	u32 number, overflows;

	local_irq_disable();
	thread->late.is_queued = false;
	number = thread->late.number;
	overflows = thread->late.overflows;
	thread->late.overflows = 0;
	local_irq_enable();
	if (overflows && !perfctr_send(number, overflows)) {
		local_irq_disable();
		if (thread->task == current)
			perfctr_core_signal_lost(perfctr_core_of(thread),
						 perfctr_this_vcpu());
		local_irq_enable();
	}
	perfctr_thread_put(thread);
	/* Before the module goes, perfctr_rt_exit() waits for the return. */
	module_put(THIS_MODULE);
}

/*
 * Has the calling thread execute perfctr_leave_kernel(), which has a reference.
 * If this is urgent, the thread does not wait in the kernel any more.
 * Interrupts are disabled.
 */
int perfctr_rt_put_off(struct perfctr_thread *thread, bool is_urgent)
{
	int err;

	if (thread->late.is_queued)
		return 0;
	init_task_work(&thread->late.work, perfctr_leave_kernel);
	err = task_work_add(current, &thread->late.work,
			    is_urgent ? TWA_SIGNAL : TWA_RESUME);
	if (err)
		return err;
	thread->late.is_queued = true;
	kref_get(&thread->kref);
	__module_get(THIS_MODULE);
	return 0;
}

/*
 * If an earlier signal was not sent yet, one signal reports both. As any signal
 * does, this one ends the thread's wait in the kernel, unless the thread blocks
 * the signal.
 */
bool perfctr_rt_signal(struct perfctr_thread *thread, u32 number, u32 overflows)
{
	thread->late.number = number;
	thread->late.overflows |= overflows;
	return !perfctr_rt_put_off(thread,
				   !sigismember(&current->blocked, number));
}

/* Counters with readers that are to be woken. Each has a reference. */
static LLIST_HEAD(perfctr_woken);

static void perfctr_wake_all(struct work_struct *unused)
{
	struct perfctr_thread *thread, *next;

	llist_for_each_entry_safe(thread, next, llist_del_all(&perfctr_woken),
				  late.node)
	{
		/* From here on the counters are put into the list again. */
		xchg(&thread->late.is_listed, false);
		wake_up_poll(&thread->wait, EPOLLIN | EPOLLRDNORM | EPOLLHUP);
		perfctr_thread_put(thread);
	}
}

static DECLARE_WORK(perfctr_wake_work, perfctr_wake_all);

/* The caller has a reference. */
void perfctr_rt_wake(struct perfctr_thread *thread)
{
	if (xchg(&thread->late.is_listed, true))
		return;
	kref_get(&thread->kref);
	llist_add(&thread->late.node, &perfctr_woken);
	/* A real-time thread may leave this CPU no time for the work. */
	queue_work(system_unbound_wq, &perfctr_wake_work);
}

/* Nobody has counters any more. */
void perfctr_rt_exit(void)
{
	flush_work(&perfctr_wake_work);
	synchronize_rcu_tasks();
}
