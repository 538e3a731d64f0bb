/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Sends the signals of overflows, wakes the readers of rings, and frees
 * counters. All this takes locks. Callers have interrupts or preemption
 * disabled, and with PREEMPT_RT these locks sleep. In such a kernel the thread
 * itself sends the signal when it leaves the kernel, and a work item does the
 * rest.
 */

#include <linux/module.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/task_work.h>

#include "perfctr.h"

/* At most this many pending signals are examined to find one. */
#define PERFCTR_QUEUE_LOOK 16

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
 * si_code holds the counters.
 */
static bool perfctr_send(u32 number, u32 overflows)
{
	struct kernel_siginfo info;

	clear_siginfo(&info);
	info.si_signo = number;
	info.si_code = PERFCTR_SIGNAL_CODE;
	info.si_pid = overflows;
	return !send_sig_info(info.si_signo, &info, current) &&
	       perfctr_is_queued(info.si_signo);
}

static void perfctr_thread_release(struct kref *kref)
{
	struct perfctr_thread *thread =
		container_of(kref, struct perfctr_thread, kref);

	perfctr_ring_free(thread->ring);
	perfctr_core_thread_release(perfctr_core_of(thread));
	kfree(thread);
}

/* With PREEMPT_RT the caller may sleep, or somebody else has a reference. */
void perfctr_thread_put(struct perfctr_thread *thread)
{
	kref_put(&thread->kref, perfctr_thread_release);
}

static struct perfctr_thread *perfctr_thread_with(const void *counters)
{
	return container_of(counters, struct perfctr_thread, core);
}

#ifdef CONFIG_PREEMPT_RT

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
	/* Before the module goes, perfctr_late_exit() waits for the return. */
	module_put(THIS_MODULE);
}

/*
 * Has the calling thread execute perfctr_leave_kernel(), which has a reference.
 * If this is urgent, the thread does not wait in the kernel any more.
 * Interrupts are disabled.
 */
int perfctr_put_off(struct perfctr_thread *thread, bool is_urgent)
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
bool perfctr_glue_send_signal(const void *counters, u32 number, u32 overflows)
{
	struct perfctr_thread *thread = perfctr_thread_with(counters);

	thread->late.number = number;
	thread->late.overflows |= overflows;
	return !perfctr_put_off(thread,
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

static void perfctr_wake(struct perfctr_thread *thread, __poll_t unused)
{
	if (xchg(&thread->late.is_listed, true))
		return;
	kref_get(&thread->kref);
	llist_add(&thread->late.node, &perfctr_woken);
	/* A real-time thread may leave this CPU no time for the work. */
	queue_work(system_unbound_wq, &perfctr_wake_work);
}

/* Nobody has counters any more. */
void perfctr_late_exit(void)
{
	flush_work(&perfctr_wake_work);
	synchronize_rcu_tasks();
}

#else

bool perfctr_glue_send_signal(const void *counters, u32 number, u32 overflows)
{
	return perfctr_send(number, overflows);
}

static void perfctr_wake(struct perfctr_thread *thread, __poll_t events)
{
	wake_up_poll(&thread->wait, events);
}

int perfctr_put_off(struct perfctr_thread *thread, bool is_urgent)
{
	return 0;
}

void perfctr_late_exit(void)
{
}

#endif

/*
 * The caller has a reference. If nobody waits, nothing is put off that would
 * keep the counters.
 */
void perfctr_wake_readers(struct perfctr_thread *thread, __poll_t events)
{
	if (wq_has_sleeper(&thread->wait))
		perfctr_wake(thread, events);
}

void perfctr_glue_ring_wake(const void *counters)
{
	perfctr_wake_readers(perfctr_thread_with(counters),
			     EPOLLIN | EPOLLRDNORM);
}
