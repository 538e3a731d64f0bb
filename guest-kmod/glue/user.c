/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Users of counters. The core decides what each user sees of vCPUs, and how
 * long the user keeps it (src/shown.rs, src/users.rs).
 */

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

void perfctr_glue_present(struct perfctr_subject *present)
{
	*present = perfctr_subject_of(current);
}

void perfctr_glue_put_identity(const struct perfctr_identity *identity)
{
	put_pid_ns((struct pid_namespace *)identity->container);
	put_user_ns((struct user_namespace *)identity->users);
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
 * are charged to the same owner. The core identifies namespaces by their
 * addresses, so each user has references to its own.
 */
int perfctr_counters_init(struct perfctr_core_thread *core, u32 tid,
			  struct task_struct *task)
{
	const struct perfctr_core_user *user, *to_free = NULL;
	struct perfctr_identity identity;
	kuid_t owner;
	int err = 0;

	rcu_read_lock();
	task_lock(task);
	identity = perfctr_subject_of(task).identity;
	owner = perfctr_owner(__task_cred(task));
	user = perfctr_core_user_find(&identity);
	if (!user && identity.container) {
		get_pid_ns((struct pid_namespace *)identity.container);
		get_user_ns((struct user_namespace *)identity.users);
	}
	task_unlock(task);
	rcu_read_unlock();
	if (!user) {
		mutex_lock(&perfctr_users_lock);
		err = perfctr_core_user_get(
			&identity,
			identity.container == (unsigned long)&init_pid_ns &&
				identity.users == (unsigned long)&init_user_ns,
			__kuid_val(owner), &user, &to_free);
		mutex_unlock(&perfctr_users_lock);
		perfctr_core_users_free(to_free);
	}
	return err ? err : perfctr_core_thread_init(core, tid, user);
}

/* Nobody has counters now, and no page is registered. */
void perfctr_users_exit(void)
{
	cancel_delayed_work_sync(&perfctr_users_work);
	perfctr_users_take_back(NULL);
}
