/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Exec and exit, through the scheduler's tracepoints: they call on the thread
 * itself, exec before the new program's first instruction, exit before the
 * descriptors are closed.
 */

#include <linux/binfmts.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>

#include "perfctr.h"

/*
 * Whether the new program has rights that its observers lack, or may not be
 * read by them; in both cases perf events end as well.
 */
static bool perfctr_is_guarded(const struct perfctr_thread *thread,
			       const struct linux_binprm *bprm)
{
	struct perfctr_subject program = perfctr_subject_of(current);

	return bprm->secureexec ||
	       !perfctr_core_may_see(&thread->user->observer, &program);
}

static void perfctr_on_exec(void *unused, struct task_struct *task,
			    pid_t old_pid, struct linux_binprm *bprm)
{
	struct perfctr_thread *thread = perfctr_thread_current();

	if (thread &&
	    perfctr_core_ends_at_exec(perfctr_core_of(thread),
				      perfctr_is_guarded(thread, bprm)))
		perfctr_thread_unlink(thread);
	perfctr_judge_current();
}

static void perfctr_on_exit(PERFCTR_EXIT_ARGS)
{
	struct perfctr_thread *thread = perfctr_thread_current();

	if (thread)
		perfctr_thread_unlink(thread);
}

static struct perfctr_probe perfctr_probes[] = {
	{ "sched_process_exec", perfctr_on_exec },
	{ "sched_process_exit", perfctr_on_exit },
};

/* Returns when no probe runs any more. */
static void perfctr_unprobe_first(unsigned int probes)
{
	while (probes--)
		perfctr_unprobe(&perfctr_probes[probes]);
	perfctr_probes_end();
}

int perfctr_task_init(void)
{
	unsigned int i;
	int err;

	for (i = 0; i < ARRAY_SIZE(perfctr_probes); i++) {
		err = perfctr_probe(&perfctr_probes[i]);
		if (err) {
			perfctr_unprobe_first(i);
			return err;
		}
	}
	return 0;
}

void perfctr_task_exit(void)
{
	perfctr_unprobe_first(ARRAY_SIZE(perfctr_probes));
}
