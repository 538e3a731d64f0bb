/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Watches switches while anybody has counters, so that a kernel in which nobody
 * counts pays nothing. The core decides when (src/watch.rs).
 *
 * A switch that is under way on a CPU when the watch begins may not be noticed.
 * But no page is registered on that CPU then: a CPU registers its page itself,
 * outside of a switch or at its end. So the next switch is watched.
 */

#include <linux/cpumask.h>
#include <linux/jiffies.h>
#include <linux/tracepoint.h>

#include "perfctr.h"

/* Held while the watch begins or ends. */
static DEFINE_MUTEX(perfctr_watch_lock);

static struct perfctr_probe perfctr_switches = { "sched_switch",
						 perfctr_on_switch };

/* The caller holds the lock. */
int perfctr_glue_watch_begin(void)
{
	int err = perfctr_probe(&perfctr_switches);

	if (!err)
		preempt_notifier_inc();
	return err;
}

/*
 * Pages may be registered until perfctr_glue_unwatch() is called. This function
 * sleeps.
 */
int perfctr_glue_watch(void)
{
	int err;

	if (perfctr_core_watch_join_if_watched())
		return 0;
	mutex_lock(&perfctr_watch_lock);
	err = perfctr_core_watch_join();
	mutex_unlock(&perfctr_watch_lock);
	return err;
}

static void perfctr_stop(struct work_struct *unused)
{
	perfctr_core_stop_if_idle();
}

/* The work is NULL when the module is unloaded. */
static void perfctr_watch_end(struct work_struct *work)
{
	mutex_lock(&perfctr_watch_lock);
	if (perfctr_core_watch_end(!work)) {
		preempt_notifier_dec();
		perfctr_unprobe(&perfctr_switches);
	}
	mutex_unlock(&perfctr_watch_lock);
}

static DECLARE_DELAYED_WORK(perfctr_stop_work, perfctr_stop);
static DECLARE_DELAYED_WORK(perfctr_unwatch_work, perfctr_watch_end);

/* This function does not sleep. */
void perfctr_glue_stop_if_idle(void)
{
	if (!perfctr_core_is_idle())
		return;
	schedule_delayed_work(&perfctr_stop_work,
			      msecs_to_jiffies(perfctr_core_stop_delay()));
	schedule_delayed_work(&perfctr_unwatch_work,
			      msecs_to_jiffies(PERFCTR_UNWATCH_DELAY_MS));
}

/* This function does not sleep. */
void perfctr_glue_unwatch(void)
{
	perfctr_core_watch_leave();
	perfctr_glue_stop_if_idle();
}

/* Nobody has counters any more, and no vCPU is online for the module. */
void perfctr_watch_exit(void)
{
	unsigned int cpu;

	/* perf's last event may have queued this work. */
	for_each_possible_cpu(cpu)
		irq_work_sync(per_cpu_ptr(&perfctr_cpus.report, cpu));
	cancel_delayed_work_sync(&perfctr_stop_work);
	cancel_delayed_work_sync(&perfctr_unwatch_work);
	perfctr_watch_end(NULL);
	tracepoint_synchronize_unregister();
	perfctr_users_exit();
}
