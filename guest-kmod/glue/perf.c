/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The PMU that the module gives to Linux's perf. A guest of Xen has no other
 * PMU for hardware events, so this one is named "cpu". perf gives its generic
 * and raw events to the PMU of that name.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device.h>
#include <linux/module.h>
#include <linux/sched/signal.h>

#include "perfctr.h"

static struct pmu perfctr_pmu;

static void perfctr_contexts_look(struct work_struct *unused);
static DECLARE_DELAYED_WORK(perfctr_contexts_work, perfctr_contexts_look);

/*
 * Work that is queued holds the module. The caller knows that somebody else
 * keeps the module loaded.
 */
static void perfctr_contexts_hold(void)
{
	u32 ms = perfctr_core_contexts_wait(ktime_get_ns());

	__module_get(THIS_MODULE);
	if (!schedule_delayed_work(&perfctr_contexts_work,
				   msecs_to_jiffies(ms)))
		module_put(THIS_MODULE);
}

/*
 * perf keeps a context for each task that ever had an event, until the task
 * ends. The context points to the PMU, so the module must stay loaded as long.
 * If an event is destroyed from here on, it queues this work anew.
 */
static void perfctr_contexts_look(struct work_struct *unused)
{
	struct task_struct *process, *task;

	perfctr_core_contexts_searched(ktime_get_ns());
	rcu_read_lock();
	for_each_process_thread(process, task)
	{
		if (perfctr_context_names(task, &perfctr_pmu)) {
			perfctr_contexts_hold();
			goto out;
		}
	}
out:
	rcu_read_unlock();
	module_put(THIS_MODULE);
}

/*
 * perf destroys an event, and the context of the event's task may stay. perf
 * keeps the module loaded until this returns.
 */
static void perfctr_pmu_destroy(struct perf_event *unused)
{
	perfctr_contexts_hold();
	perfctr_glue_unwatch();
}

/*
 * Returns whether the event fits beside the others of its group, because perf
 * adds all events of a group at once.
 */
static bool perfctr_pmu_fits(struct perf_event *event)
{
	struct perf_event *leader = event->group_leader, *sibling;
	struct perfctr_event_config group[PERFCTR_MAX_COUNTERS];
	u32 events = 1;

	group[0] = perfctr_event_config(event);
	/* perf locks the list of siblings only for an event that joins them. */
	if (leader == event)
		return perfctr_core_events_fit(group, events);
	if (leader->pmu == &perfctr_pmu)
		group[events++] = perfctr_event_config(leader);
	for_each_sibling_event(sibling, leader)
	{
		if (sibling->pmu != &perfctr_pmu)
			continue;
		if (events == ARRAY_SIZE(group))
			return false;
		group[events++] = perfctr_event_config(sibling);
	}
	return perfctr_core_events_fit(group, events);
}

/*
 * The core declares the first fields of this structure itself, so this compares
 * where they end.
 */
static_assert(offsetof(struct perf_event_attr, branch_sample_type) ==
	      offsetof(struct perfctr_event_attr, branch_sample_type));

static int perfctr_pmu_event_init(struct perf_event *event)
{
	struct hw_perf_event *hw = &event->hw;
	struct perfctr_event_config config;
	u64 period;
	int err;

	err = perfctr_core_event_open(
		(const struct perfctr_event_attr *)&event->attr, &config,
		&period);
	if (err)
		return err;
	hw->config = config.general;
	hw->config_base = config.fixed;
	hw->event_base = config.slots | (u64)config.branches << 32;
	hw->idx = -1;
	err = perfctr_pmu_fits(event) ? perfctr_glue_watch() : -EINVAL;
	if (err)
		return err;
	event->destroy = perfctr_pmu_destroy;
	/*
	 * This irq_work is lazy: after it is queued it waits until its CPU runs
	 * other irq_work, or until the tick. event.c sees to it that it runs
	 * after each sample. perf has not queued it yet, so nobody else changes
	 * its flags meanwhile. perf and the kernel never clear this flag.
	 */
	if (is_sampling_event(event))
		atomic_or(IRQ_WORK_LAZY,
			  &perfctr_event_work(event)->node.a_flags);
	if (period) {
		hw->sample_period = hw->last_period = period;
		local64_set(&hw->period_left, period);
	}
	return 0;
}

#define PERFCTR_ATTR(name_, show_, id_, text_)                          \
	(&((struct perf_pmu_events_attr){                               \
		   .attr = { .attr = { .name = (name_), .mode = 0444 }, \
			     .show = (show_) },                         \
		   .id = (id_),                                         \
		   .event_str = (text_) })                              \
		  .attr.attr)
#define PERFCTR_TEXT(n, text) PERFCTR_ATTR(n, perf_event_sysfs_show, 0, text)
#define PERFCTR_GENERIC(n, id) PERFCTR_ATTR(n, perfctr_generic_show, id, NULL)

static struct attribute *perfctr_format_attrs[] = {
	PERFCTR_TEXT("event", "config:0-7"),
	PERFCTR_TEXT("umask", "config:8-15"),
	PERFCTR_TEXT("edge", "config:18"),
	PERFCTR_TEXT("inv", "config:23"),
	PERFCTR_TEXT("cmask", "config:24-31"),
	NULL,
};

static const struct attribute_group perfctr_format_group = {
	.name = "format",
	.attrs = perfctr_format_attrs,
};

static u16 perfctr_generic_select(const struct attribute *attr)
{
	return perfctr_core_event_select(
		container_of(attr, struct perf_pmu_events_attr, attr.attr)->id);
}

static ssize_t perfctr_generic_show(struct device *dev,
				    struct device_attribute *attr, char *page)
{
	u16 select = perfctr_generic_select(&attr->attr);

	return sysfs_emit(page, "event=0x%02x,umask=0x%02x\n", select & 0xff,
			  select >> 8);
}

static struct attribute *perfctr_generic_attrs[] = {
	PERFCTR_GENERIC("cpu-cycles", PERF_COUNT_HW_CPU_CYCLES),
	PERFCTR_GENERIC("instructions", PERF_COUNT_HW_INSTRUCTIONS),
	PERFCTR_GENERIC("cache-references", PERF_COUNT_HW_CACHE_REFERENCES),
	PERFCTR_GENERIC("cache-misses", PERF_COUNT_HW_CACHE_MISSES),
	PERFCTR_GENERIC("branch-instructions",
			PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
	PERFCTR_GENERIC("branch-misses", PERF_COUNT_HW_BRANCH_MISSES),
	PERFCTR_GENERIC("bus-cycles", PERF_COUNT_HW_BUS_CYCLES),
	NULL,
};

/*
 * Shows those events in sysfs that the CPU has, and that the host lets this
 * domain count.
 */
static umode_t perfctr_generic_visible(struct kobject *kobj,
				       struct attribute *attr, int n)
{
	return perfctr_generic_select(attr) ? attr->mode : 0;
}

static const struct attribute_group perfctr_events_group = {
	.name = "events",
	.attrs = perfctr_generic_attrs,
	.is_visible = perfctr_generic_visible,
};

static ssize_t perfctr_precise_show(struct device *dev,
				    struct device_attribute *attr, char *page)
{
	return sysfs_emit(page, "%llu\n", perfctr_core_precise_max());
}

static struct attribute *perfctr_caps_attrs[] = {
	PERFCTR_ATTR("max_precise", perfctr_precise_show, 0, NULL),
	PERFCTR_TEXT("pmu_name", "perfctr"),
	NULL,
};

static const struct attribute_group perfctr_caps_group = {
	.name = "caps",
	.attrs = perfctr_caps_attrs,
};

static const struct attribute_group *perfctr_pmu_groups[] = {
	&perfctr_format_group,
	&perfctr_events_group,
	&perfctr_caps_group,
	NULL,
};

static struct pmu perfctr_pmu = {
	.module = THIS_MODULE,
	.attr_groups = perfctr_pmu_groups,
	.task_ctx_nr = perf_hw_context,
	/*
	 * Without this flag perf would not accept the PMU when the module is
	 * loaded again.
	 */
	.capabilities = PERF_PMU_CAP_HETEROGENEOUS_CPUS,
	.pmu_enable = perfctr_pmu_enable,
	.pmu_disable = perfctr_pmu_disable,
	.event_init = perfctr_pmu_event_init,
	.add = perfctr_event_add,
	.del = perfctr_event_remove,
	.start = perfctr_event_start,
	.stop = perfctr_event_stop,
	.read = perfctr_event_read,
};

static bool perfctr_pmu_is_registered;

/*
 * Another PMU may already have the name. Threads count without perf's events,
 * too.
 */
int perfctr_pmu_init(void)
{
	int err = perf_pmu_register(&perfctr_pmu, "cpu", PERF_TYPE_RAW);

	perfctr_pmu_is_registered = !err;
	if (err)
		pr_warn("perf has hardware events already, or takes none: error %d\n",
			err);
	return 0;
}

void perfctr_pmu_exit(void)
{
	cancel_delayed_work_sync(&perfctr_contexts_work);
	if (perfctr_pmu_is_registered)
		perf_pmu_unregister(&perfctr_pmu);
}
