/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Counting on whole CPUs: what counts for a CPU is a thread's counters that
 * are never switched.  Threads and CPUs exclude each other, since a CPU's
 * counters would be taken away by every thread that needs them otherwise.
 */

#include <linux/cpumask.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/smp.h>

#include "perfctr.h"

/* By CPU; allocated when first set, and kept. */
static struct perfctr_thread **perfctr_global;
static bool perfctr_global_started;
/* Protects both, and the controls. */
static DEFINE_MUTEX(perfctr_global_lock);

static bool perfctr_global_is_active(unsigned int cpu)
{
	struct perfctr_thread *thread = perfctr_global[cpu];

	return thread && (thread->control.counters ||
			  thread->control.flags & PERFCTR_CONTROL_TSC);
}

static int perfctr_global_count(void)
{
	unsigned int cpu;
	int count = 0;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		count += perfctr_global_is_active(cpu);
	return count;
}

static bool perfctr_has_sampling(const struct perfctr_control_arg *control)
{
	u32 i;

	for (i = 0; i < control->counters; i++) {
		if (control->counter[i].mode == PERFCTR_MODE_SAMPLING)
			return true;
	}
	return false;
}

static int perfctr_global_set(unsigned int cpu,
			      const struct perfctr_control_arg *control)
{
	struct perfctr_thread *thread = perfctr_global[cpu];

	if (perfctr_global_started)
		return -EBUSY;
	if (!thread) {
		thread = perfctr_thread_alloc(0);
		if (!thread)
			return -ENOMEM;
		perfctr_global[cpu] = thread;
	}
	memset(thread->page, 0, PAGE_SIZE);
	perfctr_core_thread_init(perfctr_core_of(thread), thread->page, 0);
	thread->control = *control;
	thread->control.preserve = 0;
	return perfctr_global_count();
}

int perfctr_global_control(const struct perfctr_cpu_state_arg *state)
{
	int err;

	if (state->cpu >= nr_cpu_ids || !cpu_online(state->cpu))
		return -EINVAL;
	err = perfctr_core_check_control(&perfctr_query, &state->control);
	if (err)
		return err;
	if (perfctr_has_sampling(&state->control))
		return -EPERM;
	mutex_lock(&perfctr_global_lock);
	err = perfctr_global_set(state->cpu, &state->control);
	mutex_unlock(&perfctr_global_lock);
	return err;
}

/* One call to a CPU, which executes it with interrupts disabled. */
struct perfctr_global_call {
	struct perfctr_thread *thread;
	struct perfctr_sums sums;
	int err;
};

static void perfctr_global_start_here(void *argument)
{
	struct perfctr_global_call *call = argument;

	call->err = perfctr_core_control(perfctr_core_of(call->thread),
					 perfctr_this_vcpu(), &perfctr_query,
					 &call->thread->control);
}

static void perfctr_global_stop_here(void *argument)
{
	struct perfctr_global_call *call = argument;

	perfctr_core_stop(perfctr_core_of(call->thread), perfctr_this_vcpu());
}

static void perfctr_global_read_here(void *argument)
{
	struct perfctr_global_call *call = argument;

	call->err = perfctr_core_read(perfctr_core_of(call->thread),
				      perfctr_this_vcpu(), &call->sums);
}

static int perfctr_global_do(unsigned int cpu, smp_call_func_t function,
			     struct perfctr_global_call *call)
{
	int err;

	call->thread = perfctr_global[cpu];
	call->err = 0;
	err = smp_call_function_single(cpu, function, call, true);
	return err ? err : call->err;
}

static void perfctr_global_stop_all(void)
{
	struct perfctr_global_call call;
	unsigned int cpu;

	/* A CPU that is offline has stopped. */
	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		if (perfctr_global_is_active(cpu))
			perfctr_global_do(cpu, perfctr_global_stop_here, &call);
	}
	perfctr_stop_if_idle();
	WRITE_ONCE(perfctr_global_started, false);
	atomic_set(&perfctr_threads, 0);
}

static int perfctr_global_start_all(void)
{
	struct perfctr_global_call call;
	unsigned int cpu;
	int err = 0;

	if (atomic_cmpxchg(&perfctr_threads, 0, -1))
		return -EBUSY;
	WRITE_ONCE(perfctr_global_started, true);
	for (cpu = 0; cpu < nr_cpu_ids && !err; cpu++) {
		if (perfctr_global_is_active(cpu))
			err = perfctr_global_do(cpu, perfctr_global_start_here,
						&call);
	}
	if (err)
		perfctr_global_stop_all();
	return err;
}

int perfctr_global_start(void)
{
	int count;
	int err = 0;

	mutex_lock(&perfctr_global_lock);
	count = perfctr_global_count();
	if (perfctr_global_started)
		err = -EBUSY;
	else if (count)
		err = perfctr_global_start_all();
	mutex_unlock(&perfctr_global_lock);
	return err ? err : count;
}

int perfctr_global_stop(void)
{
	mutex_lock(&perfctr_global_lock);
	if (perfctr_global_started)
		perfctr_global_stop_all();
	mutex_unlock(&perfctr_global_lock);
	return 0;
}

static int perfctr_global_read_cpu(struct perfctr_cpu_state_arg *state)
{
	struct perfctr_thread *thread = perfctr_global[state->cpu];
	struct perfctr_global_call call;
	int err;

	memset(&state->sums, 0, sizeof(state->sums));
	memset(&state->control, 0, sizeof(state->control));
	if (!thread)
		return 0;
	state->control = thread->control;
	if (!perfctr_global_started)
		return perfctr_core_read_published(perfctr_core_of(thread),
						   &state->sums);
	err = perfctr_global_do(state->cpu, perfctr_global_read_here, &call);
	state->sums = call.sums;
	/* The CPU is offline. */
	return err == -ENXIO ? -EINVAL : err;
}

int perfctr_global_read(struct perfctr_cpu_state_arg *state)
{
	int err;

	if (state->cpu >= nr_cpu_ids)
		return -EINVAL;
	mutex_lock(&perfctr_global_lock);
	err = perfctr_global_read_cpu(state);
	mutex_unlock(&perfctr_global_lock);
	return err;
}

/* On that CPU, with interrupts disabled: its count ends, sums stay. */
void perfctr_global_offline(unsigned int cpu)
{
	if (READ_ONCE(perfctr_global_started) && perfctr_global[cpu])
		perfctr_core_stop(perfctr_core_of(perfctr_global[cpu]),
				  perfctr_this_vcpu());
}

int perfctr_global_init(void)
{
	perfctr_global =
		kcalloc(nr_cpu_ids, sizeof(*perfctr_global), GFP_KERNEL);
	return perfctr_global ? 0 : -ENOMEM;
}

/* While vCPUs still have their pages. */
void perfctr_global_exit(void)
{
	unsigned int cpu;

	perfctr_global_stop();
	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		if (perfctr_global[cpu])
			perfctr_thread_put(perfctr_global[cpu]);
	}
	kfree(perfctr_global);
}
