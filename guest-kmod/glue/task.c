/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Exec, exit and fork, by the scheduler's tracepoints. The thread itself
 * executes the probes. The probe of exec comes before the new program's first
 * instruction, and the probe of exit before the descriptors are closed.
 */

#include <linux/binfmts.h>
#include <linux/tracepoint.h>

#include "perfctr.h"

static void perfctr_on_exec(void *unused, struct task_struct *task,
			    pid_t old_pid, struct linux_binprm *bprm)
{
	struct perfctr_thread *thread = perfctr_thread_of(current);

	if (thread && perfctr_core_ends_at_exec(perfctr_core_of(thread),
						bprm->secureexec))
		perfctr_thread_unlink(thread);
	/*
	 * The calling thread may have other rights now, without a switch that
	 * would have noticed that.
	 */
	local_irq_disable();
	perfctr_core_become(perfctr_this_vcpu(), perfctr_core_of_task(current));
	local_irq_enable();
}

static void perfctr_on_exit(PERFCTR_EXIT_ARGS)
{
	struct perfctr_thread *thread = perfctr_thread_of(current);

	if (thread)
		perfctr_thread_unlink(thread);
}

static struct perfctr_probe perfctr_probes[] = {
	{ "sched_process_exec", perfctr_on_exec },
	{ "sched_process_exit", perfctr_on_exit },
	{ "sched_process_fork", perfctr_pce_fork },
};

int perfctr_task_init(void)
{
	return perfctr_probe(perfctr_probes, ARRAY_SIZE(perfctr_probes));
}

/* When this returns, no probe and nothing that it put off runs any more. */
void perfctr_task_exit(void)
{
	perfctr_unprobe(perfctr_probes, ARRAY_SIZE(perfctr_probes));
	tracepoint_synchronize_unregister();
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		synchronize_rcu_tasks();
}
