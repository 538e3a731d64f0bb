/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Users, and what each sees of vCPUs: a page of its own for each.  The page of
 * one user at a time is registered with a vCPU, and that vCPU counts only
 * while nothing of other users executes there.
 */

#include <linux/gfp.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/smp.h>

#include "perfctr.h"

/* Root, for whom CPUs are counted too. */
struct perfctr_user *perfctr_root;

/* Nobody's, for perf's events where no thread of their user has counters. */
struct perfctr_user *perfctr_perf;

static atomic_t perfctr_observers;

static LIST_HEAD(perfctr_users);
/* Protects the list, and whose each of its elements is. */
static DEFINE_MUTEX(perfctr_users_lock);

/* On that CPU, with interrupts disabled. */
int perfctr_user_hide(struct perfctr_cpu *cpu)
{
	int err = 0;

	if (cpu->user)
		err = perfctr_core_vcpu_unregister(cpu->core);
	if (!err)
		cpu->user = NULL;
	return err;
}

/*
 * Whoever executes can read counters while a page is registered, so perf's own
 * is shown for one user at a time, unless CPUs count whoever executes.
 */
static u32 perfctr_observer(struct perfctr_cpu *cpu,
			    const struct perfctr_user *user)
{
	if (user != perfctr_perf)
		return user->observer;
	if (!cpu->perf_observer || !uid_eq(cpu->perf_uid, current_euid()))
		cpu->perf_observer = atomic_inc_return(&perfctr_observers);
	cpu->perf_uid = current_euid();
	return cpu->perf_observer;
}

/* On that CPU, with interrupts disabled; a refusal is told its threads. */
int perfctr_user_show(unsigned int number, struct perfctr_user *user)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[number];
	struct perfctr_vcpu_page *page = user->page[number];
	int err;

	if (!cpu->online)
		return -ENXIO;
	if (cpu->cpu_wide)
		return -EBUSY;
	perfctr_user_hide(cpu);
	err = perfctr_core_vcpu_register(cpu->core, page,
					 perfctr_platform->gfn(page),
					 perfctr_observer(cpu, user));
	if (!err) {
		cpu->user = user;
		cpu->uid = user == perfctr_perf ? cpu->perf_uid : user->uid;
	}
	return err;
}

static void perfctr_user_hide_here(void *user)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[smp_processor_id()];

	if (cpu->user == user)
		perfctr_user_hide(cpu);
}

static void perfctr_user_free(struct perfctr_user *user)
{
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		free_page((unsigned long)user->page[cpu]);
	kfree(user);
}

static struct perfctr_user *perfctr_user_alloc(void)
{
	struct perfctr_user *user;
	unsigned int cpu;

	user = kzalloc(struct_size(user, page, nr_cpu_ids), GFP_KERNEL_ACCOUNT);
	if (!user)
		return NULL;
	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		user->page[cpu] = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
		if (!user->page[cpu]) {
			perfctr_user_free(user);
			return NULL;
		}
	}
	list_add(&user->list, &perfctr_users);
	return user;
}

/*
 * Whether a page of this user, or of anybody if it is NULL, is registered
 * somewhere: the hypervisor may refuse to let it go.
 */
bool perfctr_user_is_shown(const struct perfctr_user *user)
{
	const struct perfctr_user *shown;
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		shown = READ_ONCE(perfctr_cpus[cpu].user);
		if (shown && (!user || shown == user))
			return true;
	}
	return false;
}

/* What nobody uses any more: no thread has it, and nobody has it mapped. */
static struct perfctr_user *perfctr_user_recycle(void)
{
	struct perfctr_user *user;
	unsigned int cpu;

	list_for_each_entry(user, &perfctr_users, list) {
		if (atomic_read(&user->count))
			continue;
		on_each_cpu(perfctr_user_hide_here, user, true);
		if (perfctr_user_is_shown(user))
			continue;
		for (cpu = 0; cpu < nr_cpu_ids; cpu++)
			memset(user->page[cpu], 0, PAGE_SIZE);
		return user;
	}
	return NULL;
}

static struct perfctr_user *perfctr_user_find(kuid_t uid)
{
	struct perfctr_user *user;

	list_for_each_entry(user, &perfctr_users, list) {
		if (uid_eq(user->uid, uid))
			return user;
	}
	user = perfctr_user_recycle();
	if (!user)
		user = perfctr_user_alloc();
	if (user) {
		user->uid = uid;
		user->observer = atomic_inc_return(&perfctr_observers);
	}
	return user;
}

/* To be put; NULL if there is no memory. */
struct perfctr_user *perfctr_user_get(kuid_t uid)
{
	struct perfctr_user *user;

	mutex_lock(&perfctr_users_lock);
	user = perfctr_user_find(uid);
	if (user)
		atomic_inc(&user->count);
	mutex_unlock(&perfctr_users_lock);
	return user;
}

void perfctr_user_put(struct perfctr_user *user)
{
	atomic_dec(&user->count);
}

int perfctr_users_init(void)
{
	perfctr_root = perfctr_user_get(GLOBAL_ROOT_UID);
	perfctr_perf = perfctr_user_get(INVALID_UID);
	if (perfctr_root && perfctr_perf)
		return 0;
	perfctr_users_exit();
	return -ENOMEM;
}

/* Nothing is registered any more. */
void perfctr_users_exit(void)
{
	struct perfctr_user *user, *next;

	list_for_each_entry_safe(user, next, &perfctr_users, list)
		perfctr_user_free(user);
}
