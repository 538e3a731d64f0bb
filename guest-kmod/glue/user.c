/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Users of counters. The core decides what each user sees of vCPUs, and how
 * long the user keeps it (src/shown.rs, src/users.rs).
 */

#include <linux/nsproxy.h>
#include <linux/pid_namespace.h>
#include <linux/rcupdate.h>
#include <linux/sched/task.h>
#include <linux/user_namespace.h>

#include "perfctr.h"

/*
 * Protects the core's list of users. The core finds a user in the list without
 * this lock.
 */
static DEFINE_MUTEX(perfctr_users_lock);

/* A container is identified by the PID namespace of a thread's children. */
static struct pid_namespace *perfctr_container(struct task_struct *task)
{
	struct nsproxy *proxy = READ_ONCE(task->nsproxy);

	return proxy ? proxy->pid_ns_for_children : NULL;
}

/* Describes the calling thread, or one that is not executing now. */
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

void perfctr_glue_put_container(u64 container)
{
	put_pid_ns((struct pid_namespace *)(unsigned long)container);
}

/* Users are freed without the lock, since that takes an RCU grace period. */
static void perfctr_users_take_back(struct work_struct *unused)
{
	const struct perfctr_core_user *users;

	mutex_lock(&perfctr_users_lock);
	users = perfctr_core_users_take_back();
	mutex_unlock(&perfctr_users_lock);
	perfctr_core_users_free(users);
}

static DECLARE_DELAYED_WORK(perfctr_users_work, perfctr_users_take_back);

void perfctr_glue_users_look_in(u32 milliseconds)
{
	mod_delayed_work(system_wq, &perfctr_users_work,
			 msecs_to_jiffies(milliseconds));
}

/*
 * Returns the thread's container, with a reference, or NULL if the thread has
 * ended.
 */
static struct pid_namespace *perfctr_container_get(struct task_struct *task)
{
	struct pid_namespace *container;

	task_lock(task);
	container = perfctr_container(task);
	if (container)
		get_pid_ns(container);
	task_unlock(task);
	return container;
}

/*
 * Returns the machine's user to whom a user's pages are charged. Anybody can
 * make namespaces with users of their own, but one of the machine's users has
 * made the outermost one. If that user is root, as with most containers, the
 * container's own root is charged.
 */
static kuid_t perfctr_owner(const struct cred *cred)
{
	struct user_namespace *ns;
	kuid_t owner = cred->euid;

	for (ns = cred->user_ns; ns->parent; ns = ns->parent)
		owner = uid_eq(ns->owner, GLOBAL_ROOT_UID) ? make_kuid(ns, 0) :
							     ns->owner;
	return owner;
}

/*
 * Prepares the core's part of counters for the user of the thread. Returns an
 * error if the thread has ended, if there is no memory, or if too many users
 * are charged to the same owner.
 */
int perfctr_counters_init(struct perfctr_core_thread *core, u32 tid,
			  struct task_struct *task)
{
	struct pid_namespace *container = perfctr_container_get(task);
	const struct perfctr_core_user *user, *to_free = NULL;
	u64 address = (unsigned long)container;
	const struct cred *cred;
	int err = 0;

	if (!container)
		return -ESRCH;
	cred = get_task_cred(task);
	rcu_read_lock();
	user = perfctr_core_user_find(address, __kuid_val(cred->euid));
	rcu_read_unlock();
	if (!user) {
		mutex_lock(&perfctr_users_lock);
		err = perfctr_core_user_get(address, __kuid_val(cred->euid),
					    container == &init_pid_ns,
					    __kuid_val(perfctr_owner(cred)),
					    &user, &to_free);
		mutex_unlock(&perfctr_users_lock);
		perfctr_core_users_free(to_free);
	}
	put_cred(cred);
	return err ? err : perfctr_core_thread_init(core, tid, user);
}

/* Nobody has counters now, and no page is registered. */
void perfctr_users_exit(void)
{
	cancel_delayed_work_sync(&perfctr_users_work);
	perfctr_users_take_back(NULL);
}
