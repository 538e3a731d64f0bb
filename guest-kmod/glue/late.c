/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Sends the signals of overflows, wakes the readers of rings, and frees
 * counters. All this takes locks. Callers have interrupts or preemption
 * disabled, and with PREEMPT_RT these locks sleep. In such a kernel late_rt.c
 * puts it off.
 */

#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

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
bool perfctr_send(u32 number, u32 overflows)
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

bool perfctr_glue_send_signal(const void *counters, u32 number, u32 overflows)
{
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return perfctr_rt_signal(perfctr_thread_with(counters), number,
					 overflows);
	return perfctr_send(number, overflows);
}

/*
 * The caller has a reference. If nobody waits, nothing is put off that would
 * keep the counters.
 */
void perfctr_wake_readers(struct perfctr_thread *thread, __poll_t events)
{
	if (!wq_has_sleeper(&thread->wait))
		return;
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		perfctr_rt_wake(thread);
	else
		wake_up_poll(&thread->wait, events);
}

void perfctr_glue_ring_wake(const void *counters)
{
	perfctr_wake_readers(perfctr_thread_with(counters),
			     EPOLLIN | EPOLLRDNORM);
}
