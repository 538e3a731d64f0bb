/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Counting on whole CPUs, for one descriptor and until it is closed.  Who may
 * when is the core's to decide (Admission in src/whole.rs).
 */

#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/smp.h>

#include "perfctr.h"

/* By CPU; allocated when first set, and kept.  By the lock, as the controls. */
struct perfctr_whole {
	struct perfctr_thread *counters;
	bool counts;
};
static struct perfctr_whole *perfctr_wholes;
static DEFINE_MUTEX(perfctr_whole_lock);

/* One call to a CPU, which executes it with interrupts disabled. */
struct perfctr_whole_call {
	struct perfctr_thread *counters;
	struct perfctr_sums sums;
	int err;
};

static void perfctr_whole_start_here(void *argument)
{
	struct perfctr_whole_call *call = argument;
	struct perfctr_cpu *cpu = &perfctr_cpus[smp_processor_id()];
	struct perfctr_core_thread *whole = perfctr_core_of(call->counters);
	struct perfctr_thread *thread = perfctr_suspend_current();
	struct perfctr_core_thread *core = thread ? perfctr_core_of(thread) :
						    NULL;

	if (cpu->user != perfctr_root)
		perfctr_user_show(smp_processor_id(), perfctr_root);
	call->err = perfctr_core_start_whole(whole, core, cpu->core,
					     &perfctr_query,
					     &call->counters->control);
	if (!call->err)
		cpu->whole = whole;
}

static void perfctr_whole_stop_here(void *unused)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[smp_processor_id()];

	if (cpu->whole)
		perfctr_core_stop_whole(cpu->whole, cpu->core);
	cpu->whole = NULL;
}

static void perfctr_whole_read_here(void *argument)
{
	struct perfctr_whole_call *call = argument;

	call->err = perfctr_core_read(perfctr_core_of(call->counters),
				      perfctr_this_vcpu(), &call->sums);
}

static int perfctr_whole_do(unsigned int cpu, smp_call_func_t function,
			    struct perfctr_whole_call *call)
{
	int err;

	call->counters = perfctr_wholes[cpu].counters;
	call->err = 0;
	err = smp_call_function_single(cpu, function, call, true);
	return err ? err : call->err;
}

/* The core's answer, with the lock of its admission. */
static int perfctr_admitted(int (*ask)(u64), struct file *file)
{
	unsigned long flags;
	int err;

	raw_spin_lock_irqsave(&perfctr_links_lock, flags);
	err = ask((unsigned long)file);
	raw_spin_unlock_irqrestore(&perfctr_links_lock, flags);
	return err;
}

static bool perfctr_wholes_count(void)
{
	unsigned long flags;
	bool count;

	raw_spin_lock_irqsave(&perfctr_links_lock, flags);
	count = perfctr_core_cpus_count();
	raw_spin_unlock_irqrestore(&perfctr_links_lock, flags);
	return count;
}

static int perfctr_whole_count(void)
{
	unsigned int cpu;
	int count = 0;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		count += perfctr_wholes[cpu].counts;
	return count;
}

/* Initialised anew: nothing counts, so no CPU that goes offline looks at it. */
static int perfctr_whole_set(struct file *file,
			     const struct perfctr_cpu_state_arg *state,
			     bool counts)
{
	struct perfctr_whole *whole = &perfctr_wholes[state->cpu];
	struct perfctr_thread *counters = whole->counters;
	int err;

	if (!counters) {
		counters = perfctr_thread_alloc(0, GLOBAL_ROOT_UID);
		if (!counters)
			return -ENOMEM;
		whole->counters = counters;
	}
	err = perfctr_admitted(perfctr_core_cpus_set, file);
	if (err)
		return err;
	memset(counters->page, 0, PAGE_SIZE);
	perfctr_core_thread_init(perfctr_core_of(counters), counters->page, 0);
	counters->control = state->control;
	counters->control.preserve = 0;
	whole->counts = counts;
	return perfctr_whole_count();
}

int perfctr_whole_control(struct file *file,
			  const struct perfctr_cpu_state_arg *state)
{
	int err;

	if (state->cpu >= nr_cpu_ids || !cpu_online(state->cpu))
		return -EINVAL;
	err = perfctr_core_check_cpu_control(&perfctr_query, state);
	if (err < 0)
		return err;
	mutex_lock(&perfctr_whole_lock);
	err = perfctr_whole_set(file, state, err);
	mutex_unlock(&perfctr_whole_lock);
	return err;
}

/* They were watched. */
static void perfctr_whole_stop_all(void)
{
	unsigned long flags;

	/* A CPU that is offline has stopped. */
	on_each_cpu(perfctr_whole_stop_here, NULL, true);
	raw_spin_lock_irqsave(&perfctr_links_lock, flags);
	perfctr_core_cpus_stopped();
	raw_spin_unlock_irqrestore(&perfctr_links_lock, flags);
	perfctr_unwatch();
}

static int perfctr_whole_start_all(void)
{
	struct perfctr_whole_call call;
	unsigned int cpu;
	int err = 0;

	cpus_read_lock();
	for (cpu = 0; cpu < nr_cpu_ids && !err; cpu++) {
		if (perfctr_wholes[cpu].counts)
			err = perfctr_whole_do(cpu, perfctr_whole_start_here,
					       &call);
	}
	cpus_read_unlock();
	if (err)
		perfctr_whole_stop_all();
	return err;
}

/* Those that count already are refused. */
static int perfctr_whole_start_watched(struct file *file)
{
	int err = perfctr_watch();

	if (err)
		return err;
	err = perfctr_admitted(perfctr_core_cpus_start, file);
	if (!err)
		return perfctr_whole_start_all();
	perfctr_unwatch();
	return err;
}

int perfctr_whole_start(struct file *file)
{
	int count, err = 0;

	mutex_lock(&perfctr_whole_lock);
	count = perfctr_whole_count();
	if (count || perfctr_wholes_count())
		err = perfctr_whole_start_watched(file);
	mutex_unlock(&perfctr_whole_lock);
	return err ? err : count;
}

int perfctr_whole_stop(struct file *file)
{
	int err;

	mutex_lock(&perfctr_whole_lock);
	err = perfctr_admitted(perfctr_core_cpus_may_stop, file);
	if (!err && perfctr_wholes_count())
		perfctr_whole_stop_all();
	mutex_unlock(&perfctr_whole_lock);
	return err;
}

static int perfctr_whole_read_cpu(struct perfctr_cpu_state_arg *state)
{
	struct perfctr_thread *counters = perfctr_wholes[state->cpu].counters;
	struct perfctr_whole_call call;
	int err;

	memset(&state->sums, 0, sizeof(state->sums));
	memset(&state->control, 0, sizeof(state->control));
	if (!counters)
		return 0;
	state->control = counters->control;
	if (!perfctr_wholes_count())
		return perfctr_core_read_published(perfctr_core_of(counters),
						   &state->sums);
	memset(&call, 0, sizeof(call));
	err = perfctr_whole_do(state->cpu, perfctr_whole_read_here, &call);
	state->sums = call.sums;
	/* The CPU is offline. */
	return err == -ENXIO ? -EINVAL : err;
}

int perfctr_whole_read(struct perfctr_cpu_state_arg *state)
{
	int err;

	if (state->cpu >= nr_cpu_ids)
		return -EINVAL;
	mutex_lock(&perfctr_whole_lock);
	err = perfctr_whole_read_cpu(state);
	mutex_unlock(&perfctr_whole_lock);
	return err;
}

static bool perfctr_whole_is_of(struct file *file)
{
	unsigned long flags;
	bool is_of;

	raw_spin_lock_irqsave(&perfctr_links_lock, flags);
	is_of = perfctr_core_cpus_owned((unsigned long)file);
	raw_spin_unlock_irqrestore(&perfctr_links_lock, flags);
	return is_of;
}

static void perfctr_whole_forget(struct file *file)
{
	unsigned long flags;
	unsigned int cpu;

	if (perfctr_wholes_count())
		perfctr_whole_stop_all();
	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		perfctr_wholes[cpu].counts = false;
	raw_spin_lock_irqsave(&perfctr_links_lock, flags);
	perfctr_core_closed((unsigned long)file);
	raw_spin_unlock_irqrestore(&perfctr_links_lock, flags);
}

/* What a descriptor has set and started ends with it. */
void perfctr_whole_close(struct file *file)
{
	mutex_lock(&perfctr_whole_lock);
	if (perfctr_whole_is_of(file))
		perfctr_whole_forget(file);
	mutex_unlock(&perfctr_whole_lock);
}

int perfctr_whole_init(void)
{
	perfctr_wholes =
		kcalloc(nr_cpu_ids, sizeof(*perfctr_wholes), GFP_KERNEL);
	return perfctr_wholes ? 0 : -ENOMEM;
}

/* No descriptor is open any more, so nothing counts. */
void perfctr_whole_exit(void)
{
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		if (perfctr_wholes[cpu].counters)
			perfctr_thread_put(perfctr_wholes[cpu].counters);
	}
	kfree(perfctr_wholes);
}
