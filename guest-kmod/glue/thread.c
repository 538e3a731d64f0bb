/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A thread's counters: their lifetime and the operations on them. Two callers
 * may bind the same thread or the same descriptor at once, and a thread may be
 * unlinked meanwhile. This file decides which of them is first, because only it
 * holds the locks that settle this. The core decides everything else.
 */

#include <linux/module.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "perfctr.h"

static void perfctr_thread_release(struct kref *kref)
{
	struct perfctr_thread *thread =
		container_of(kref, struct perfctr_thread, kref);

	perfctr_ring_free(thread->ring);
	perfctr_core_thread_release(perfctr_core_of(thread));
	kfree(thread);
}

void perfctr_thread_put(struct perfctr_thread *thread)
{
	kref_put(&thread->kref, perfctr_thread_release);
}

/* Makes counters that are not linked. The caller has the only reference. */
struct perfctr_thread *perfctr_thread_alloc(u32 tid, struct task_struct *task)
{
	struct perfctr_thread *thread;
	int err;

	/* Kernels with larger locks take the allocator's next size, 4 KiB. */
	BUILD_BUG_ON(sizeof(*thread) + PERFCTR_THREAD_BYTES > SZ_2K &&
		     sizeof(thread->wait.lock) == sizeof(u32));
	thread = kzalloc(sizeof(*thread) + PERFCTR_THREAD_BYTES,
			 GFP_KERNEL_ACCOUNT);
	if (!thread)
		return ERR_PTR(-ENOMEM);
	err = perfctr_counters_init(perfctr_core_of(thread), tid, task);
	if (err) {
		kfree(thread);
		return ERR_PTR(err);
	}
	kref_init(&thread->kref);
	mutex_init(&thread->lock);
	init_waitqueue_head(&thread->wait);
	preempt_notifier_init(&thread->notifier, &perfctr_preempt_ops);
	return thread;
}

/* Makes counters of a whole CPU. They belong to root, as the kernel does. */
void *perfctr_glue_counters_new(void)
{
	struct perfctr_thread *thread = perfctr_thread_alloc(0, &init_task);

	return IS_ERR(thread) ? NULL : perfctr_core_of(thread);
}

void perfctr_glue_counters_free(void *counters)
{
	perfctr_thread_put(container_of(counters, struct perfctr_thread, core));
}

/*
 * Links the counters to the thread and binds them to the descriptor, or does
 * neither. Each of the two gets a reference. The thread is held meanwhile. The
 * module stays loaded while a thread is linked, because the scheduler calls it.
 */
static int perfctr_link_held(struct perfctr_thread *thread,
			     struct task_struct *task, struct file *file)
{
	struct perfctr_core_thread *core = perfctr_core_of(thread);
	int err;

	if (perfctr_thread_of(task))
		return -EEXIST;
	err = perfctr_core_thread_begins(core);
	if (err)
		return err;
	if (cmpxchg(&file->private_data, NULL, thread)) {
		perfctr_core_thread_ends(core);
		return -EEXIST;
	}
	WRITE_ONCE(thread->task, task);
	/* preempt_notifier_register() only works for the calling thread. */
	hlist_add_head(&thread->notifier.link, &task->preempt_notifiers);
	__module_get(THIS_MODULE);
	kref_get(&thread->kref);
	kref_get(&thread->kref);
	return 0;
}

int perfctr_thread_link(struct perfctr_thread *thread, struct task_struct *task,
			struct file *file)
{
	struct perfctr_hold hold;
	int err = perfctr_glue_watch();

	if (err)
		return err;
	err = perfctr_hold(&hold, task);
	if (!err) {
		err = perfctr_link_held(thread, task, file);
		perfctr_let_go(&hold);
	}
	if (err)
		perfctr_glue_unwatch();
	return err;
}

/* Binds a descriptor to the counters that the thread already has. */
int perfctr_thread_open(struct file *file, struct task_struct *task)
{
	struct perfctr_thread *thread;
	struct perfctr_hold hold;
	int err = perfctr_hold(&hold, task);

	if (err)
		return err;
	thread = perfctr_thread_of(task);
	if (!thread)
		err = -ESRCH;
	else if (cmpxchg(&file->private_data, NULL, thread))
		err = -EEXIST;
	else
		kref_get(&thread->kref);
	perfctr_let_go(&hold);
	return err;
}

/*
 * Holds the thread whose counters these are, and takes a reference to it. A
 * thread is unlinked before it ends, and its memory stays as long as anybody in
 * an RCU read section may have seen it linked. While it is held its counters
 * stay linked, because only the thread itself or its tracer unlinks them.
 */
static int perfctr_thread_hold(struct perfctr_thread *thread,
			       struct perfctr_hold *hold)
{
	struct task_struct *task;
	int err;

	rcu_read_lock();
	task = READ_ONCE(thread->task);
	if (task)
		get_task_struct(task);
	rcu_read_unlock();
	if (!task)
		return -ESRCH;
	err = perfctr_hold(hold, task);
	if (!err && READ_ONCE(thread->task) != task) {
		perfctr_let_go(hold);
		err = -ESRCH;
	}
	if (err)
		put_task_struct(task);
	return err;
}

static void perfctr_thread_let_go(struct perfctr_hold *hold)
{
	perfctr_let_go(hold);
	put_task_struct(hold->task);
	perfctr_glue_stop_if_idle();
}

/*
 * It is no error if the counters are not linked. With PREEMPT_RT this sleeps.
 */
#ifdef CONFIG_PREEMPT_RT
int perfctr_thread_unlink_now(struct perfctr_thread *thread)
#else
int perfctr_thread_unlink(struct perfctr_thread *thread)
#endif
{
	struct perfctr_core_thread *core = perfctr_core_of(thread);
	struct perfctr_hold hold;
	int err = perfctr_thread_hold(thread, &hold);

	if (err)
		return READ_ONCE(thread->task) ? err : 0;
	perfctr_core_stop(core, hold.vcpu);
	hlist_del(&thread->notifier.link);
	perfctr_core_thread_ends(core);
	/* A reader that sees NULL also sees the final sums. */
	smp_store_release(&thread->task, NULL);
	perfctr_thread_let_go(&hold);
	wake_up_poll(&thread->wait, EPOLLHUP);
	perfctr_glue_unwatch();
	perfctr_thread_put(thread);
	module_put(THIS_MODULE);
	return 0;
}

/*
 * Has the core carry out a request of the thread or of its tracer. For
 * PERFCTR_IOC_CONTROL the caller holds the thread's mutex.
 */
int perfctr_thread_operate(struct perfctr_thread *thread, unsigned int number,
			   const struct perfctr_control_arg *control)
{
	struct perfctr_hold hold;
	int err = perfctr_thread_hold(thread, &hold);

	if (err)
		return err;
	err = perfctr_core_operate(perfctr_core_of(thread), hold.vcpu, number,
				   control);
	perfctr_thread_let_go(&hold);
	return err;
}

/*
 * Another thread reads the sums. A tracer learns that its tracee has stopped
 * before the tracee has left its CPU. Holding the tracee waits for that, so
 * that the published sums are those up to the stop.
 */
static noinline int perfctr_read_other(struct perfctr_thread *thread,
				       struct perfctr_sums *sums)
{
	struct perfctr_hold hold;
	int err;

	if (!perfctr_thread_hold(thread, &hold))
		perfctr_thread_let_go(&hold);
	do {
		cond_resched();
		err = perfctr_core_read_published(perfctr_core_of(thread),
						  sums);
	} while (err > 0 && !fatal_signal_pending(current));
	return err;
}

/*
 * Anybody may read. The thread itself gets its sums up to now, with interrupts
 * disabled so that it is not switched out meanwhile.
 */
int perfctr_thread_read(struct perfctr_thread *thread,
			struct perfctr_sums *sums)
{
	int err;

	if (smp_load_acquire(&thread->task) != current)
		return perfctr_read_other(thread, sums);
	local_irq_disable();
	err = perfctr_core_read(perfctr_core_of(thread), perfctr_this_vcpu(),
				sums);
	local_irq_enable();
	return err;
}
