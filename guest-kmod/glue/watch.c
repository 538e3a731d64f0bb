/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Switches are watched while anybody has counters, and only then: a kernel in
 * which nobody counts pays nothing.  Whoever has pages registered is a watcher
 * before the first is; when there are no watchers any more, pages are taken
 * back first and the watch ends after that.
 *
 * A CPU that is in the middle of a switch as the watch begins may not notice.
 * Nothing is registered there then, and the next switch is watched, since a
 * page is registered on its own CPU, outside of a switch or at its end.
 */

#include <linux/jiffies.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/workqueue.h>

#include "perfctr.h"

/* Until counters stop that nobody reads, and until switches go unwatched. */
#define PERFCTR_STOP_DELAY_MS 100
#define PERFCTR_UNWATCH_DELAY_MS 10000

/* Protects whether switches are watched. */
static DEFINE_MUTEX(perfctr_watch_lock);
static bool perfctr_is_watching;
static atomic_t perfctr_watchers;

static struct perfctr_probe perfctr_switches = { "sched_switch",
						 perfctr_on_switch };

/* With the lock held. */
static int perfctr_watch_begin(void)
{
	int err = perfctr_probe(&perfctr_switches);

	if (err)
		return err;
	preempt_notifier_inc();
	perfctr_is_watching = true;
	return 0;
}

/* With the lock held. */
static void perfctr_watch_end(void)
{
	preempt_notifier_dec();
	perfctr_unprobe(&perfctr_switches);
	perfctr_is_watching = false;
}

/* Sleeps.  Pages may be registered until perfctr_unwatch(). */
int perfctr_watch(void)
{
	int err = 0;

	mutex_lock(&perfctr_watch_lock);
	if (!perfctr_is_watching)
		err = perfctr_watch_begin();
	if (!err)
		atomic_inc(&perfctr_watchers);
	mutex_unlock(&perfctr_watch_lock);
	return err;
}

static void perfctr_stop_here(void *unused)
{
	perfctr_core_vcpu_stop_if_idle(perfctr_this_vcpu());
}

static void perfctr_stop(struct work_struct *unused)
{
	if (perfctr_core_is_idle())
		on_each_cpu(perfctr_stop_here, NULL, true);
}

static void perfctr_hide_here(void *unused)
{
	if (!atomic_read(&perfctr_watchers))
		perfctr_user_hide(&perfctr_cpus[smp_processor_id()]);
}

static void perfctr_watch_end_if_idle(struct work_struct *unused)
{
	mutex_lock(&perfctr_watch_lock);
	if (perfctr_is_watching && !atomic_read(&perfctr_watchers)) {
		on_each_cpu(perfctr_hide_here, NULL, true);
		/* What the hypervisor refuses to let go stays watched. */
		if (!atomic_read(&perfctr_watchers) &&
		    !perfctr_user_is_shown(NULL))
			perfctr_watch_end();
	}
	mutex_unlock(&perfctr_watch_lock);
}

static DECLARE_DELAYED_WORK(perfctr_stop_work, perfctr_stop);
static DECLARE_DELAYED_WORK(perfctr_unwatch_work, perfctr_watch_end_if_idle);

/*
 * After a while, since programs that stop often start again soon: they find
 * their configuration loaded, and no CPU is interrupted.  The end of the watch
 * has code patched on all CPUs, so it waits for longer.
 */
void perfctr_stop_if_idle(void)
{
	if (!perfctr_core_is_idle())
		return;
	schedule_delayed_work(&perfctr_stop_work,
			      msecs_to_jiffies(PERFCTR_STOP_DELAY_MS));
	schedule_delayed_work(&perfctr_unwatch_work,
			      msecs_to_jiffies(PERFCTR_UNWATCH_DELAY_MS));
}

/* Does not sleep. */
void perfctr_unwatch(void)
{
	atomic_dec(&perfctr_watchers);
	perfctr_stop_if_idle();
}

/* There are no watchers and no online vCPUs any more. */
void perfctr_watch_exit(void)
{
	cancel_delayed_work_sync(&perfctr_stop_work);
	cancel_delayed_work_sync(&perfctr_unwatch_work);
	if (perfctr_is_watching)
		perfctr_watch_end();
	perfctr_probes_end();
}
