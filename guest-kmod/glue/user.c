/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Users, and what each sees of vCPUs: a page of its own for each.  Which page
 * is registered with a vCPU, and for how long, is the core's to decide
 * (src/shown.rs).
 */

#include <linux/cred.h>
#include <linux/gfp.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/pid_namespace.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/workqueue.h>

#include "perfctr.h"

/* Root, for whom CPUs are counted too. */
struct perfctr_user *perfctr_root;

static LIST_HEAD(perfctr_users);
/* Protects the list, and whether users in it are given away. */
static DEFINE_MUTEX(perfctr_users_lock);
static atomic_t perfctr_idle_users;

/* A container is told from others by the namespace of its processes. */
static struct pid_namespace *perfctr_container(struct task_struct *task)
{
	struct nsproxy *proxy = READ_ONCE(task->nsproxy);

	return proxy ? proxy->pid_ns_for_children : NULL;
}

/* Of the calling thread, or of one that does not execute now. */
struct perfctr_subject perfctr_subject_of(struct task_struct *task)
{
	return (struct perfctr_subject){
		.container = (unsigned long)perfctr_container(task),
		.uid = perfctr_euid(task),
		.kind = !task->mm		  ? PERFCTR_SUBJECT_KERNEL :
			perfctr_is_dumpable(task) ? PERFCTR_SUBJECT_OPEN :
						    PERFCTR_SUBJECT_GUARDED,
	};
}

void perfctr_glue_present(struct perfctr_subject *present)
{
	*present = perfctr_subject_of(current);
}

/*
 * Whether a page of this user, or of anybody if it is NULL, is registered
 * somewhere: the hypervisor may refuse to let it go.
 */
bool perfctr_user_is_shown(const struct perfctr_user *user)
{
	unsigned int cpu;
	u32 shown;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		shown = READ_ONCE(perfctr_cpus[cpu].shown->number);
		if (shown && (!user || shown == user->observer.number))
			return true;
	}
	return false;
}

static void perfctr_user_hide_here(void *data)
{
	const struct perfctr_user *user = data;

	perfctr_core_hide(perfctr_this_vcpu(), &user->observer);
}

/* Nothing of it is registered. */
static void perfctr_user_free(struct perfctr_user *user)
{
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		free_page((unsigned long)user->page[cpu]);
	put_pid_ns(user->container);
	kfree(user);
}

/* With the lock held: what no thread has and nobody has mapped any more. */
static void perfctr_user_take_back(struct perfctr_user *user)
{
	if (perfctr_user_is_shown(user))
		on_each_cpu(perfctr_user_hide_here, user, true);
	if (perfctr_user_is_shown(user))
		return;
	list_del(&user->list);
	atomic_dec(&perfctr_idle_users);
	perfctr_user_free(user);
}

static void perfctr_users_take_back(struct work_struct *unused)
{
	struct perfctr_user *user, *next;

	mutex_lock(&perfctr_users_lock);
	list_for_each_entry_safe(user, next, &perfctr_users, list) {
		if (!atomic_read(&user->count))
			perfctr_user_take_back(user);
	}
	mutex_unlock(&perfctr_users_lock);
}

static DECLARE_DELAYED_WORK(perfctr_users_work, perfctr_users_take_back);

/* Takes over the reference to the container. */
static struct perfctr_user *perfctr_user_alloc(struct pid_namespace *container,
					       kuid_t uid)
{
	struct perfctr_user *user;
	unsigned int cpu;

	user = kzalloc(struct_size(user, page, nr_cpu_ids), GFP_KERNEL_ACCOUNT);
	if (!user) {
		put_pid_ns(container);
		return NULL;
	}
	user->container = container;
	user->observer.container = (unsigned long)container;
	user->observer.uid = __kuid_val(uid);
	user->observer.number = perfctr_core_new_observer();
	user->observer.sees_kernel = container == &init_pid_ns &&
				     uid_eq(uid, GLOBAL_ROOT_UID);
	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		user->page[cpu] = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
		if (!user->page[cpu]) {
			perfctr_user_free(user);
			return NULL;
		}
	}
	atomic_inc(&perfctr_idle_users);
	list_add(&user->list, &perfctr_users);
	return user;
}

/* With the lock held; takes over the reference to the container. */
static struct perfctr_user *perfctr_user_find(struct pid_namespace *container,
					      kuid_t uid)
{
	struct perfctr_user *user;

	list_for_each_entry(user, &perfctr_users, list) {
		if (user->container == container &&
		    user->observer.uid == __kuid_val(uid)) {
			put_pid_ns(container);
			return user;
		}
	}
	return perfctr_user_alloc(container, uid);
}

/* To be put; an error if there is no memory. */
static struct perfctr_user *perfctr_user_get_in(struct pid_namespace *container,
						kuid_t uid)
{
	struct perfctr_user *user;

	mutex_lock(&perfctr_users_lock);
	user = perfctr_user_find(container, uid);
	if (user && atomic_inc_return(&user->count) == 1)
		atomic_dec(&perfctr_idle_users);
	mutex_unlock(&perfctr_users_lock);
	return user ?: ERR_PTR(-ENOMEM);
}

/*
 * Whose thread this is, or root without one; to be put.  An error if the thread
 * has ended, or without memory.
 */
struct perfctr_user *perfctr_user_get(struct task_struct *task)
{
	struct pid_namespace *container;

	if (!task)
		return perfctr_user_get_in(get_pid_ns(&init_pid_ns),
					   GLOBAL_ROOT_UID);
	task_lock(task);
	container = perfctr_container(task);
	if (container)
		get_pid_ns(container);
	task_unlock(task);
	if (!container)
		return ERR_PTR(-ESRCH);
	return perfctr_user_get_in(container, task_cred_xxx(task, euid));
}

/* Pages are given back after a while, since programs often start again. */
void perfctr_user_put(struct perfctr_user *user)
{
	u32 delay;

	if (!atomic_dec_and_test(&user->count))
		return;
	delay = perfctr_core_idle_users_delay_ms(
		atomic_inc_return(&perfctr_idle_users));
	mod_delayed_work(system_wq, &perfctr_users_work,
			 msecs_to_jiffies(delay));
}

int perfctr_users_init(void)
{
	perfctr_root = perfctr_user_get(NULL);
	return PTR_ERR_OR_ZERO(perfctr_root);
}

/* Nothing is registered any more. */
void perfctr_users_exit(void)
{
	struct perfctr_user *user, *next;

	cancel_delayed_work_sync(&perfctr_users_work);
	list_for_each_entry_safe(user, next, &perfctr_users, list)
		perfctr_user_free(user);
}
