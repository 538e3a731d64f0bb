/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The PMU of Linux's perf.  A guest of Xen has no other one for hardware
 * events, so this is "cpu", which perf's generic and raw events go to.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/perf_event.h>
#include <linux/sched/signal.h>
#include <linux/workqueue.h>

#include "perfctr.h"

/* How many events a second are expected until perf knows better. */
#define PERFCTR_EVENTS_EXPECTED 1000000000ULL

static void perfctr_pmu_enable(struct pmu *unused)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_events_enable();
	local_irq_restore(flags);
}

static void perfctr_pmu_disable(struct pmu *unused)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_events_disable();
	local_irq_restore(flags);
}

/*
 * A task that ever had an event keeps perf's context of it, which names the
 * PMU, until it ends: so long the module has to stay.
 */
#define PERFCTR_CONTEXTS_LOOK_MS 500

static DEFINE_MUTEX(perfctr_contexts_lock);
static bool perfctr_contexts_hold;
static struct pmu perfctr_pmu;

static bool perfctr_contexts_exist(void)
{
	struct task_struct *process, *task;
	bool exist = false;

	rcu_read_lock();
	for_each_process_thread(process, task)
		exist |= perfctr_context_names(task, &perfctr_pmu);
	rcu_read_unlock();
	return exist;
}

static void perfctr_contexts_look(struct work_struct *work)
{
	mutex_lock(&perfctr_contexts_lock);
	if (perfctr_contexts_exist()) {
		schedule_delayed_work(
			to_delayed_work(work),
			msecs_to_jiffies(PERFCTR_CONTEXTS_LOOK_MS));
	} else {
		perfctr_contexts_hold = false;
		module_put(THIS_MODULE);
	}
	mutex_unlock(&perfctr_contexts_lock);
}

static DECLARE_DELAYED_WORK(perfctr_contexts_work, perfctr_contexts_look);

/* An event goes: its task's context may stay. */
static void perfctr_pmu_destroy(struct perf_event *unused)
{
	mutex_lock(&perfctr_contexts_lock);
	if (!perfctr_contexts_hold) {
		perfctr_contexts_hold = true;
		/* perf holds it too, until the event is gone. */
		__module_get(THIS_MODULE);
		schedule_delayed_work(&perfctr_contexts_work, 0);
	}
	mutex_unlock(&perfctr_contexts_lock);
	perfctr_unwatch();
}

/* What counts something else than the guest's two modes is not offered. */
static int perfctr_pmu_check(const struct perf_event_attr *attr)
{
	if (attr->type != PERF_TYPE_HARDWARE && attr->type != PERF_TYPE_RAW)
		return -ENOENT;
	if (attr->exclude_host || attr->exclude_idle)
		return -EINVAL;
	if (attr->precise_ip || perfctr_event_traps(attr) || attr->config1 ||
	    attr->config2 || attr->sample_type & PERF_SAMPLE_BRANCH_STACK)
		return -EOPNOTSUPP;
	/* Of where the kernel was, only some registers are known. */
	if (attr->sample_type & PERF_SAMPLE_REGS_INTR && !attr->exclude_kernel)
		return -EOPNOTSUPP;
	return 0;
}

static int perfctr_pmu_wanted(struct perf_event *event)
{
	const struct perf_event_attr *attr = &event->attr;
	struct perfctr_event_config wanted;
	u64 rings = 0;
	int err;

	if (!attr->exclude_user)
		rings |= PERFCTR_EVNTSEL_USR;
	if (!attr->exclude_kernel)
		rings |= PERFCTR_EVNTSEL_OS;
	err = perfctr_core_event_wanted(&perfctr_query, attr->type,
					attr->config, rings,
					is_sampling_event(event), &wanted);
	if (err)
		return err;
	event->hw.config = wanted.general;
	event->hw.config_base = wanted.fixed;
	event->hw.event_base = wanted.slots;
	event->hw.idx = -1;
	return 0;
}

/* perf itself would begin with one event, and a storm. */
static void perfctr_pmu_first_period(struct perf_event *event)
{
	u64 period =
		div64_u64(PERFCTR_EVENTS_EXPECTED, event->attr.sample_freq);

	event->hw.sample_period = max_t(u64, period, 1);
	event->hw.last_period = event->hw.sample_period;
	local64_set(&event->hw.period_left, event->hw.sample_period);
}

/* What may be of one group.  More than the core takes, which says so. */
struct perfctr_group {
	struct perfctr_event_config event[32];
	u32 events;
};

/* False if there is no room. */
static bool perfctr_pmu_join(struct perfctr_group *group,
			     struct perf_event *event)
{
	if (event->pmu != &perfctr_pmu)
		return true;
	if (group->events == ARRAY_SIZE(group->event))
		return false;
	group->event[group->events++] = perfctr_event_wanted(event);
	return true;
}

/* perf adds the events of a group together, or never. */
static int perfctr_pmu_fits(struct perf_event *event)
{
	struct perf_event *leader = event->group_leader, *sibling;
	struct perfctr_group group = { .events = 0 };
	bool joined = perfctr_pmu_join(&group, event);

	if (leader != event) {
		joined = joined && perfctr_pmu_join(&group, leader);
		for_each_sibling_event(sibling, leader)
			joined = joined && perfctr_pmu_join(&group, sibling);
	}
	if (!joined || !perfctr_core_events_fit(group.event, group.events))
		return -EINVAL;
	return 0;
}

static int perfctr_pmu_event_init(struct perf_event *event)
{
	int err = perfctr_pmu_check(&event->attr);

	if (!err)
		err = perfctr_pmu_wanted(event);
	if (!err)
		err = perfctr_pmu_fits(event);
	if (!err)
		err = perfctr_watch();
	if (err)
		return err;
	event->destroy = perfctr_pmu_destroy;
	if (event->attr.freq && event->attr.sample_freq)
		perfctr_pmu_first_period(event);
	return 0;
}

PMU_FORMAT_ATTR(event, "config:0-7");
PMU_FORMAT_ATTR(umask, "config:8-15");
PMU_FORMAT_ATTR(edge, "config:18");
PMU_FORMAT_ATTR(inv, "config:23");
PMU_FORMAT_ATTR(cmask, "config:24-31");

static struct attribute *perfctr_format_attrs[] = {
	&format_attr_event.attr, &format_attr_umask.attr,
	&format_attr_edge.attr,	 &format_attr_inv.attr,
	&format_attr_cmask.attr, NULL,
};

static const struct attribute_group perfctr_format_group = {
	.name = "format",
	.attrs = perfctr_format_attrs,
};

/* Event and unit mask of one of perf's generic events; 0 if there is none. */
static u64 perfctr_generic_select(u64 id)
{
	struct perfctr_event_config wanted;

	if (perfctr_core_event_wanted(&perfctr_query, PERF_TYPE_HARDWARE, id,
				      PERFCTR_EVNTSEL_USR, false, &wanted))
		return 0;
	return wanted.general & 0xffff;
}

static ssize_t perfctr_event_show(struct device *dev,
				  struct device_attribute *attr, char *page)
{
	const struct perf_pmu_events_attr *event =
		container_of(attr, struct perf_pmu_events_attr, attr);
	u64 select = perfctr_generic_select(event->id);

	return sysfs_emit(page, "event=0x%02llx,umask=0x%02llx\n",
			  select & 0xff, select >> 8);
}

#define PERFCTR_EVENT(name_, id_)                                    \
	{                                                            \
		.attr = { .attr = { .name = (name_), .mode = 0444 }, \
			  .show = perfctr_event_show },              \
		.id = (id_),                                         \
	}

static struct perf_pmu_events_attr perfctr_generics[] = {
	PERFCTR_EVENT("cpu-cycles", PERF_COUNT_HW_CPU_CYCLES),
	PERFCTR_EVENT("instructions", PERF_COUNT_HW_INSTRUCTIONS),
	PERFCTR_EVENT("cache-references", PERF_COUNT_HW_CACHE_REFERENCES),
	PERFCTR_EVENT("cache-misses", PERF_COUNT_HW_CACHE_MISSES),
	PERFCTR_EVENT("branch-instructions", PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
	PERFCTR_EVENT("branch-misses", PERF_COUNT_HW_BRANCH_MISSES),
	PERFCTR_EVENT("bus-cycles", PERF_COUNT_HW_BUS_CYCLES),
};

static struct attribute *perfctr_event_attrs[] = {
	&perfctr_generics[0].attr.attr, &perfctr_generics[1].attr.attr,
	&perfctr_generics[2].attr.attr, &perfctr_generics[3].attr.attr,
	&perfctr_generics[4].attr.attr, &perfctr_generics[5].attr.attr,
	&perfctr_generics[6].attr.attr, NULL,
};

/* What this CPU has, and the host lets this domain count. */
static umode_t perfctr_event_visible(struct kobject *kobj,
				     struct attribute *attr, int n)
{
	return perfctr_generic_select(perfctr_generics[n].id) ? attr->mode : 0;
}

static const struct attribute_group perfctr_events_group = {
	.name = "events",
	.attrs = perfctr_event_attrs,
	.is_visible = perfctr_event_visible,
};

static ssize_t max_precise_show(struct device *dev,
				struct device_attribute *attr, char *page)
{
	return sysfs_emit(page, "0\n");
}

static ssize_t pmu_name_show(struct device *dev, struct device_attribute *attr,
			     char *page)
{
	return sysfs_emit(page, "perfctr\n");
}

static DEVICE_ATTR_RO(max_precise);
static DEVICE_ATTR_RO(pmu_name);

static struct attribute *perfctr_caps_attrs[] = {
	&dev_attr_max_precise.attr,
	&dev_attr_pmu_name.attr,
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
	/* Or perf would not take it a second time, after the module was away. */
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

/* Somebody else may have perf's hardware events; threads count all the same. */
void perfctr_pmu_init(void)
{
	int err = perf_pmu_register(&perfctr_pmu, "cpu", PERF_TYPE_RAW);

	perfctr_pmu_is_registered = !err;
	if (err)
		pr_warn("perf has hardware events already, or takes none: error %d\n",
			err);
}

void perfctr_pmu_exit(void)
{
	cancel_delayed_work_sync(&perfctr_contexts_work);
	if (perfctr_pmu_is_registered)
		perf_pmu_unregister(&perfctr_pmu);
}
