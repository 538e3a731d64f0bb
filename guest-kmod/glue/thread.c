/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The lifetime of a thread's counters. */

#include <linux/gfp.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>

#include "perfctr.h"

/* Claimed ones; -1 while whole CPUs count. */
atomic_t perfctr_threads;

static DEFINE_HASHTABLE(perfctr_claims, 8);
static DEFINE_SPINLOCK(perfctr_claims_lock);

/* The list is only ever changed and walked by its own thread. */
struct perfctr_thread *perfctr_thread_current(void)
{
	struct preempt_notifier *notifier;

	hlist_for_each_entry(notifier, &current->preempt_notifiers, link) {
		if (notifier->ops == perfctr_preempt_ops())
			return container_of(notifier, struct perfctr_thread,
					    notifier);
	}
	return NULL;
}

/* With the lock held. */
static struct perfctr_thread *perfctr_find_claim(struct task_struct *owner)
{
	struct perfctr_thread *thread;

	hash_for_each_possible(perfctr_claims, thread, claim,
			       (unsigned long)owner) {
		if (thread->owner == owner)
			return thread;
	}
	return NULL;
}

/* Makes these the thread's only counters, to be linked. */
int perfctr_thread_claim(struct perfctr_thread *thread,
			 struct task_struct *owner)
{
	int err = 0;

	spin_lock(&perfctr_claims_lock);
	thread->owner = owner;
	if (perfctr_find_claim(owner))
		err = -EEXIST;
	else if (!atomic_inc_unless_negative(&perfctr_threads))
		err = -EBUSY;
	else
		hash_add(perfctr_claims, &thread->claim, (unsigned long)owner);
	spin_unlock(&perfctr_claims_lock);
	return err;
}

void perfctr_thread_disclaim(struct perfctr_thread *thread)
{
	spin_lock(&perfctr_claims_lock);
	hash_del(&thread->claim);
	spin_unlock(&perfctr_claims_lock);
	atomic_dec(&perfctr_threads);
}

/* With a reference; NULL once unlinked. */
struct task_struct *perfctr_thread_owner(struct perfctr_thread *thread)
{
	struct task_struct *owner = NULL;

	spin_lock(&perfctr_claims_lock);
	if (hash_hashed(&thread->claim))
		owner = get_task_struct(thread->owner);
	spin_unlock(&perfctr_claims_lock);
	return owner;
}

/* The thread's counters with a reference, or NULL. */
struct perfctr_thread *perfctr_thread_find(struct task_struct *owner)
{
	struct perfctr_thread *thread;

	spin_lock(&perfctr_claims_lock);
	thread = perfctr_find_claim(owner);
	if (thread)
		perfctr_thread_get(thread);
	spin_unlock(&perfctr_claims_lock);
	return thread;
}

/* Neither claimed nor linked; with one reference, the caller's. */
struct perfctr_thread *perfctr_thread_alloc(u32 tid)
{
	struct perfctr_thread *thread;

	thread = kzalloc(sizeof(*thread) + perfctr_core_thread_bytes(),
			 GFP_KERNEL_ACCOUNT);
	if (!thread)
		return NULL;
	thread->page = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!thread->page) {
		kfree(thread);
		return NULL;
	}
	kref_init(&thread->kref);
	mutex_init(&thread->lock);
	preempt_notifier_init(&thread->notifier, perfctr_preempt_ops());
	perfctr_core_thread_init(perfctr_core_of(thread), thread->page, tid);
	return thread;
}

/*
 * Links counters that the calling thread has claimed.  The module stays while
 * a thread is linked, since the scheduler calls into it.
 */
void perfctr_thread_link(struct perfctr_thread *thread)
{
	__module_get(THIS_MODULE);
	WRITE_ONCE(thread->task, current);
	kref_get(&thread->kref);
	preempt_disable();
	preempt_notifier_register(&thread->notifier);
	preempt_enable();
}

/* By the thread itself. */
void perfctr_thread_unlink(struct perfctr_thread *thread)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_stop(perfctr_core_of(thread), perfctr_this_vcpu());
	preempt_notifier_unregister(&thread->notifier);
	local_irq_restore(flags);
	perfctr_stop_if_idle();
	/* Whoever sees NULL sees the final sums. */
	smp_store_release(&thread->task, NULL);
	perfctr_thread_disclaim(thread);
	perfctr_thread_put(thread);
	module_put(THIS_MODULE);
}

/* By the thread itself. */
int perfctr_thread_control(struct perfctr_thread *thread,
			   const struct perfctr_control_arg *control)
{
	unsigned long flags;
	int err;

	mutex_lock(&thread->lock);
	local_irq_save(flags);
	err = perfctr_core_control(perfctr_core_of(thread), perfctr_this_vcpu(),
				   &perfctr_query, control);
	local_irq_restore(flags);
	if (!err) {
		thread->control = *control;
		thread->control.preserve = 0;
	}
	mutex_unlock(&thread->lock);
	perfctr_stop_if_idle();
	return err;
}

/* By the thread itself. */
int perfctr_thread_go_on(struct perfctr_thread *thread)
{
	unsigned long flags;
	int err;

	local_irq_save(flags);
	err = perfctr_core_go_on(perfctr_core_of(thread), perfctr_this_vcpu());
	local_irq_restore(flags);
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
	bool is_leaving;
	int err;

	if (smp_load_acquire(&thread->task) == current)
		return perfctr_read_own(thread, sums);
	do {
		cond_resched();
		is_leaving = perfctr_remote_is_leaving(thread);
		/* Sums that are published from now on are the last ones. */
		smp_rmb();
		err = perfctr_core_read_published(perfctr_core_of(thread),
						  sums);
	} while ((err == -EBUSY || is_leaving) &&
		 !fatal_signal_pending(current));
	return err;
}

struct perfctr_thread *perfctr_thread_get(struct perfctr_thread *thread)
{
	kref_get(&thread->kref);
	return thread;
}

static void perfctr_thread_free(struct kref *kref)
{
	struct perfctr_thread *thread =
		container_of(kref, struct perfctr_thread, kref);

	free_page((unsigned long)thread->page);
	kfree(thread);
}

void perfctr_thread_put(struct perfctr_thread *thread)
{
	kref_put(&thread->kref, perfctr_thread_free);
}
