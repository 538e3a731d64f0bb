/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A thread's counters: their lifetime, and what is done with them. */

#include <linux/capability.h>
#include <linux/gfp.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/slab.h>

#include "perfctr.h"

/*
 * Protects the links of threads and counters, and the core's admission.
 * Inside a thread's pi_lock.
 */
DEFINE_RAW_SPINLOCK(perfctr_links_lock);
static DEFINE_HASHTABLE(perfctr_links, 8);

static void perfctr_thread_free(struct perfctr_thread *thread)
{
	perfctr_ring_free(thread->ring);
	if (thread->user)
		perfctr_user_put(thread->user);
	free_page((unsigned long)thread->page);
	kfree(thread);
}

/* Not linked; with one reference, the caller's. */
struct perfctr_thread *perfctr_thread_alloc(u32 tid, kuid_t uid)
{
	struct perfctr_thread *thread;

	thread = kzalloc(sizeof(*thread) + perfctr_core_thread_bytes(),
			 GFP_KERNEL_ACCOUNT);
	if (!thread)
		return NULL;
	thread->page = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	thread->user = perfctr_user_get(uid);
	if (!thread->page || !thread->user) {
		perfctr_thread_free(thread);
		return NULL;
	}
	kref_init(&thread->kref);
	mutex_init(&thread->lock);
	init_waitqueue_head(&thread->wait);
	preempt_notifier_init(&thread->notifier, &perfctr_preempt_ops);
	perfctr_core_thread_init(perfctr_core_of(thread), thread->page, tid);
	return thread;
}

struct perfctr_thread *perfctr_thread_get(struct perfctr_thread *thread)
{
	kref_get(&thread->kref);
	return thread;
}

static void perfctr_thread_release(struct kref *kref)
{
	perfctr_thread_free(container_of(kref, struct perfctr_thread, kref));
}

void perfctr_thread_put(struct perfctr_thread *thread)
{
	kref_put(&thread->kref, perfctr_thread_release);
}

/* With the lock held. */
static struct perfctr_thread *perfctr_link_of(struct task_struct *task)
{
	struct perfctr_thread *thread;

	hash_for_each_possible(perfctr_links, thread, link,
			       (unsigned long)task) {
		if (thread->task == task)
			return thread;
	}
	return NULL;
}

/* The thread's counters with a reference, or NULL. */
struct perfctr_thread *perfctr_thread_find(struct task_struct *task)
{
	struct perfctr_thread *thread;
	unsigned long flags;

	raw_spin_lock_irqsave(&perfctr_links_lock, flags);
	thread = perfctr_link_of(task);
	if (thread)
		perfctr_thread_get(thread);
	raw_spin_unlock_irqrestore(&perfctr_links_lock, flags);
	return thread;
}

/* With a reference; NULL if it is not linked. */
static struct task_struct *perfctr_task_of(struct perfctr_thread *thread)
{
	struct task_struct *task = NULL;
	unsigned long flags;

	raw_spin_lock_irqsave(&perfctr_links_lock, flags);
	if (thread->task)
		task = get_task_struct(thread->task);
	raw_spin_unlock_irqrestore(&perfctr_links_lock, flags);
	return task;
}

u32 perfctr_threads(void)
{
	unsigned long flags;
	u32 threads;

	raw_spin_lock_irqsave(&perfctr_links_lock, flags);
	threads = perfctr_core_threads();
	raw_spin_unlock_irqrestore(&perfctr_links_lock, flags);
	return threads;
}

/* With the lock held: links and binds, or neither. */
static int perfctr_try_link(struct perfctr_thread *thread,
			    struct task_struct *task, struct file *file)
{
	int err;

	if (perfctr_link_of(task))
		return -EEXIST;
	err = perfctr_core_thread_begins(thread->privileged);
	if (err)
		return err;
	if (cmpxchg(&file->private_data, NULL, thread)) {
		perfctr_core_thread_ends(thread->privileged);
		return -EEXIST;
	}
	thread->task = task;
	hash_add(perfctr_links, &thread->link, (unsigned long)task);
	return 0;
}

/*
 * Makes these the counters of a thread and of a descriptor, each with a
 * reference.  The module stays, since the scheduler calls into it.
 */
static int perfctr_link_watched(struct perfctr_thread *thread,
				struct task_struct *task, struct file *file)
{
	struct perfctr_hold hold;
	int err = perfctr_hold(&hold, task);

	if (err)
		return err;
	raw_spin_lock(&perfctr_links_lock);
	err = perfctr_try_link(thread, task, file);
	raw_spin_unlock(&perfctr_links_lock);
	if (!err) {
		/* preempt_notifier_register() is for the calling thread only. */
		hlist_add_head(&thread->notifier.link,
			       &task->preempt_notifiers);
		__module_get(THIS_MODULE);
		perfctr_thread_get(thread);
		perfctr_thread_get(thread);
	}
	perfctr_let_go(&hold);
	return err;
}

int perfctr_thread_link(struct perfctr_thread *thread, struct task_struct *task,
			struct file *file)
{
	int err = perfctr_watch();

	if (err)
		return err;
	thread->privileged = perfmon_capable();
	err = perfctr_link_watched(thread, task, file);
	if (err)
		perfctr_unwatch();
	return err;
}

/*
 * Holds the thread whose counters these are, with a reference.  They stay
 * linked meanwhile, since only the thread itself or its tracer unlinks them.
 */
static int perfctr_thread_hold(struct perfctr_thread *thread,
			       struct perfctr_hold *hold)
{
	struct task_struct *task;
	int err;

	/* Nobody else unlinks them while the thread itself is here. */
	if (READ_ONCE(thread->task) == current)
		return perfctr_hold(hold, get_task_struct(current));
	task = perfctr_task_of(thread);
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
	perfctr_stop_if_idle();
}

/* The thread itself: what was noticed on the way, or before. */
static void perfctr_tell_held(struct perfctr_thread *thread,
			      const struct perfctr_hold *hold)
{
	perfctr_tell(thread,
		     perfctr_core_tell(perfctr_core_of(thread), hold->vcpu));
}

/* What is unlinked already stays so. */
int perfctr_thread_unlink(struct perfctr_thread *thread)
{
	struct perfctr_hold hold;
	int err = perfctr_thread_hold(thread, &hold);

	if (err)
		return READ_ONCE(thread->task) ? err : 0;
	perfctr_core_stop(perfctr_core_of(thread), hold.vcpu);
	if (hold.vcpu)
		perfctr_tell_held(thread, &hold);
	hlist_del(&thread->notifier.link);
	raw_spin_lock(&perfctr_links_lock);
	hash_del(&thread->link);
	perfctr_core_thread_ends(thread->privileged);
	/* Whoever sees NULL sees the final sums. */
	smp_store_release(&thread->task, NULL);
	raw_spin_unlock(&perfctr_links_lock);
	perfctr_thread_let_go(&hold);
	wake_up_poll(&thread->wait, EPOLLHUP);
	perfctr_unwatch();
	perfctr_thread_put(thread);
	module_put(THIS_MODULE);
	return 0;
}

/* A thread that does not count yet may find another user's page registered. */
static void perfctr_show_own(struct perfctr_thread *thread,
			     const struct perfctr_hold *hold)
{
	unsigned int cpu = smp_processor_id();

	if (hold->vcpu && perfctr_cpus[cpu].user != thread->user)
		perfctr_user_show(cpu, thread->user);
}

int perfctr_thread_control(struct perfctr_thread *thread,
			   const struct perfctr_control_arg *control)
{
	struct perfctr_hold hold;
	int err;

	mutex_lock(&thread->lock);
	err = perfctr_thread_hold(thread, &hold);
	if (!err) {
		perfctr_show_own(thread, &hold);
		err = perfctr_core_control(perfctr_core_of(thread), hold.vcpu,
					   &perfctr_query, control);
		thread->counts = perfctr_core_counts(perfctr_core_of(thread));
		if (hold.vcpu)
			perfctr_tell_held(thread, &hold);
		perfctr_thread_let_go(&hold);
	}
	if (!err) {
		thread->control = *control;
		thread->control.preserve = 0;
	}
	mutex_unlock(&thread->lock);
	return err;
}

int perfctr_thread_go_on(struct perfctr_thread *thread)
{
	struct perfctr_hold hold;
	int err = perfctr_thread_hold(thread, &hold);

	if (err)
		return err;
	err = perfctr_core_go_on(perfctr_core_of(thread), hold.vcpu);
	perfctr_thread_let_go(&hold);
	return err;
}

static int perfctr_read_own(struct perfctr_thread *thread,
			    struct perfctr_sums *sums)
{
	unsigned long flags;
	int err;

	local_irq_save(flags);
	err = perfctr_core_read(perfctr_core_of(thread), perfctr_this_vcpu(),
				sums);
	local_irq_restore(flags);
	return err;
}

/* By anybody; the thread itself gets its sums up to now. */
int perfctr_thread_read(struct perfctr_thread *thread,
			struct perfctr_sums *sums)
{
	struct task_struct *task;
	int err;

	if (smp_load_acquire(&thread->task) == current)
		return perfctr_read_own(thread, sums);
	task = perfctr_task_of(thread);
	if (task) {
		perfctr_await_switch_out(task);
		put_task_struct(task);
	}
	do {
		cond_resched();
		err = perfctr_core_read_published(perfctr_core_of(thread),
						  sums);
	} while (err == -EBUSY && !fatal_signal_pending(current));
	return err;
}
