/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Counting whatever executes on CPUs, for one descriptor and until it is
 * closed.  Who may when is the core's to decide (Admission in src/cpu_wide.rs).
 * Everything here but what another CPU executes is done with the lock held.
 */

#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/nospec.h>
#include <linux/smp.h>

#include "perfctr.h"

DEFINE_MUTEX(perfctr_cpus_lock);

/* One call to a CPU, which executes it with interrupts disabled. */
struct perfctr_cpu_call {
	struct perfctr_thread *counters;
	struct perfctr_sums *sums;
	int err;
};

static void perfctr_start_here(void *argument)
{
	struct perfctr_cpu_call *call = argument;

	call->err = perfctr_core_start_cpu_wide(perfctr_core_of(call->counters),
						perfctr_core_current(),
						perfctr_this_vcpu(),
						&perfctr_query);
}

static void perfctr_stop_here(void *unused)
{
	perfctr_core_stop_cpu_wide(perfctr_this_vcpu());
	/* Who executes here may not see root's page. */
	perfctr_judge_current();
}

static void perfctr_read_here(void *argument)
{
	struct perfctr_cpu_call *call = argument;

	call->err = perfctr_core_read(perfctr_core_of(call->counters),
				      perfctr_this_vcpu(), call->sums);
}

static int perfctr_call_cpu(unsigned int cpu, smp_call_func_t function,
			    struct perfctr_sums *sums)
{
	struct perfctr_cpu_call call = { perfctr_cpus[cpu].counters, sums };
	int err = smp_call_function_single(cpu, function, &call, true);

	return err ? err : call.err;
}

/*
 * Initialised anew: nothing counts, so no CPU that goes offline looks at it.
 * The core has checked the CPU's number.
 */
long perfctr_cpus_set(struct file *file,
		      const struct perfctr_cpu_state_arg *state)
{
	unsigned int cpu = array_index_nospec(state->cpu, nr_cpu_ids);
	struct perfctr_thread *counters = perfctr_cpus[cpu].counters;
	long set;

	if (!cpu_online(cpu))
		return -EINVAL;
	if (!counters)
		counters = perfctr_thread_alloc(0, NULL);
	if (IS_ERR(counters))
		return PTR_ERR(counters);
	perfctr_cpus[cpu].counters = counters;
	set = perfctr_core_cpu_set((unsigned long)file, &perfctr_query, state,
				   &counters->counts);
	if (set < 0)
		return set;
	memset(counters->page, 0, PAGE_SIZE);
	perfctr_core_cpu_init(perfctr_core_of(counters), counters->page,
			      &state->control, &counters->user->observer,
			      counters->user->page);
	return set;
}

/* They were watched.  A CPU that is offline has stopped. */
static void perfctr_stop_all(void)
{
	on_each_cpu(perfctr_stop_here, NULL, true);
	perfctr_core_cpus_stopped();
	perfctr_unwatch();
}

static long perfctr_start_all(void)
{
	unsigned int cpu;
	long err = 0;

	cpus_read_lock();
	for (cpu = 0; cpu < nr_cpu_ids && !err; cpu++) {
		if (perfctr_cpus[cpu].counters &&
		    perfctr_cpus[cpu].counters->counts)
			err = perfctr_call_cpu(cpu, perfctr_start_here, NULL);
	}
	cpus_read_unlock();
	return err;
}

/* Gives how many there are. */
long perfctr_cpus_start(struct file *file)
{
	long count, err = perfctr_watch();

	if (err)
		return err;
	count = perfctr_core_cpus_start((unsigned long)file);
	if (count <= 0) {
		perfctr_unwatch();
		return count;
	}
	err = perfctr_start_all();
	if (err)
		perfctr_stop_all();
	return err ? err : count;
}

long perfctr_cpus_stop(struct file *file)
{
	long started = perfctr_core_cpus_stop((unsigned long)file);

	if (started <= 0)
		return started;
	perfctr_stop_all();
	return 0;
}

long perfctr_cpus_read(struct perfctr_cpu_state_arg *state)
{
	unsigned int cpu = array_index_nospec(state->cpu, nr_cpu_ids);
	struct perfctr_thread *counters = perfctr_cpus[cpu].counters;
	long err;

	memset(&state->sums, 0, sizeof(state->sums));
	memset(&state->control, 0, sizeof(state->control));
	if (!counters)
		return 0;
	perfctr_core_last_control(perfctr_core_of(counters), &state->control);
	if (!perfctr_core_cpus_count())
		return perfctr_core_read_published(perfctr_core_of(counters),
						   &state->sums);
	err = perfctr_call_cpu(cpu, perfctr_read_here, &state->sums);
	/* The CPU is offline. */
	return err == -ENXIO ? -EINVAL : err;
}

/* What a descriptor has set and started ends with it. */
void perfctr_cpus_close(struct file *file)
{
	unsigned int cpu;

	mutex_lock(&perfctr_cpus_lock);
	perfctr_cpus_stop(file);
	if (perfctr_core_closed((unsigned long)file)) {
		for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
			if (perfctr_cpus[cpu].counters)
				perfctr_thread_put(perfctr_cpus[cpu].counters);
			perfctr_cpus[cpu].counters = NULL;
		}
	}
	mutex_unlock(&perfctr_cpus_lock);
}
