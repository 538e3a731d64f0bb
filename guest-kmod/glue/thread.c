/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A thread's counters: their lifetime, and what is done with them.
 *
 * Only this file, by what it holds, can settle which of two who bind the same
 * thread or the same descriptor is the first, and whether a thread is unlinked
 * meanwhile.  Everything else is the core's to decide.
 */

#include <linux/module.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
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

/* Not linked; with one reference, the caller's. */
struct perfctr_thread *perfctr_thread_alloc(u32 tid, struct task_struct *task)
{
	struct perfctr_thread *thread;
	int err;

	BUILD_BUG_ON(sizeof(*thread) + PERFCTR_THREAD_BYTES > SZ_2K &&
		     !IS_ENABLED(CONFIG_DEBUG_SPINLOCK));
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

/* For a whole CPU; root's, as the kernel is. */
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
 * With a reference; NULL if it is not linked.  A thread is unlinked before it
 * is gone, and its memory outlives whoever has seen it linked under RCU.
 */
static struct task_struct *perfctr_task_of(struct perfctr_thread *thread)
{
	struct task_struct *task;

	rcu_read_lock();
	task = READ_ONCE(thread->task);
	if (task)
		get_task_struct(task);
	rcu_read_unlock();
	return task;
}

/*
 * Links and binds, or neither, while the thread is held: these become the
 * counters of a thread and of a descriptor, each with a reference.  The module
 * stays, since the scheduler calls into it.
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
	/* preempt_notifier_register() is for the calling thread only. */
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

/* Binds a descriptor to the counters that the thread has. */
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
 * Holds the thread whose counters these are, with a reference.  They stay
 * linked meanwhile, since only the thread itself or its tracer unlinks them.
 */
static int perfctr_thread_hold(struct perfctr_thread *thread,
			       struct perfctr_hold *hold)
{
	struct task_struct *task = perfctr_task_of(thread);
	int err = task ? perfctr_hold(hold, task) : -ESRCH;

	if (!err && READ_ONCE(thread->task) != task) {
		perfctr_let_go(hold);
		err = -ESRCH;
	}
	if (err && task)
		put_task_struct(task);
	return err;
}

static void perfctr_thread_let_go(struct perfctr_hold *hold)
{
	perfctr_let_go(hold);
	put_task_struct(hold->task);
	perfctr_stop_if_idle();
}

/* What is unlinked already stays so. */
int perfctr_thread_unlink(struct perfctr_thread *thread)
{
	struct perfctr_core_thread *core = perfctr_core_of(thread);
	struct perfctr_hold hold;
	int err = perfctr_thread_hold(thread, &hold);

	if (err)
		return READ_ONCE(thread->task) ? err : 0;
	perfctr_core_stop(core, hold.vcpu);
	if (hold.vcpu)
		perfctr_tell_current();
	hlist_del(&thread->notifier.link);
	perfctr_core_thread_ends(core);
	/* Whoever sees NULL sees the final sums. */
	smp_store_release(&thread->task, NULL);
	perfctr_thread_let_go(&hold);
	wake_up_poll(&thread->wait, EPOLLHUP);
	perfctr_glue_unwatch();
	perfctr_thread_put(thread);
	module_put(THIS_MODULE);
	return 0;
}

/* The core does it, for the thread or its tracer. */
int perfctr_thread_operate(struct perfctr_thread *thread, unsigned int number,
			   const struct perfctr_control_arg *control)
{
	struct perfctr_hold hold;
	int err;

	mutex_lock(&thread->lock);
	err = perfctr_thread_hold(thread, &hold);
	if (!err) {
		err = perfctr_core_operate(perfctr_core_of(thread), hold.vcpu,
					   number, control);
		if (hold.vcpu)
			perfctr_tell_current();
		perfctr_thread_let_go(&hold);
	}
	mutex_unlock(&thread->lock);
	return err;
}

int perfctr_thread_control(struct perfctr_thread *thread,
			   struct perfctr_control_arg *control)
{
	mutex_lock(&thread->lock);
	perfctr_core_last_control(perfctr_core_of(thread), control);
	mutex_unlock(&thread->lock);
	return 0;
}

/* The thread itself, which is not switched out meanwhile. */
static int perfctr_read_own(struct perfctr_thread *thread,
			    struct perfctr_sums *sums)
{
	int err;

	local_irq_disable();
	err = perfctr_core_read(perfctr_core_of(thread), perfctr_this_vcpu(),
				sums);
	local_irq_enable();
	return err;
}

/*
 * By somebody else.  A tracer is told of its tracee's stop before the tracee has
 * left its CPU: what is published after that are its sums up to the stop.
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
	} while (err == -EBUSY && !fatal_signal_pending(current));
	return err;
}

/* By anybody; the thread itself gets its sums up to now. */
int perfctr_thread_read(struct perfctr_thread *thread,
			struct perfctr_sums *sums)
{
	return smp_load_acquire(&thread->task) == current ?
		       perfctr_read_own(thread, sums) :
		       perfctr_read_other(thread, sums);
}
