/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What a tracer does with the counters of a thread that it has stopped.  Only
 * a thread itself operates its counters, so the tracer's wish is left with it:
 * the thread does it when it goes on, before it executes anything of its own.
 */

#include <linux/module.h>
#include <linux/pid.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/sched/task.h>

#include "perfctr.h"

/* Whether the caller traces the thread and it is stopped. */
static bool perfctr_is_tracee(struct task_struct *task)
{
	bool is_tracee;

	rcu_read_lock();
	is_tracee = ptrace_parent(task) == current && task_is_traced(task);
	rcu_read_unlock();
	return is_tracee;
}

/*
 * Whether the caller's tracee is stopped but still on its way out of its vCPU:
 * the scheduler has told the tracer before it calls the module.
 */
bool perfctr_remote_is_leaving(struct perfctr_thread *thread)
{
	struct task_struct *task;
	bool is_leaving;

	rcu_read_lock();
	task = READ_ONCE(thread->task);
	is_leaving = task && perfctr_is_tracee(task) &&
		     READ_ONCE(thread->page->state) & PERFCTR_THREAD_ACTIVE;
	rcu_read_unlock();
	return is_leaving;
}

/* The tracee with this number, with a reference. */
struct task_struct *perfctr_remote_task(u32 tid)
{
	struct pid *pid = find_get_pid(tid);
	struct task_struct *task = get_pid_task(pid, PIDTYPE_PID);

	put_pid(pid);
	if (!task)
		return ERR_PTR(-ESRCH);
	if (perfctr_is_tracee(task))
		return task;
	put_task_struct(task);
	return ERR_PTR(-ESRCH);
}

/* By the thread. */
static void perfctr_remote_do(struct perfctr_thread *thread, unsigned int asked,
			      const struct perfctr_control_arg *control)
{
	if (asked & PERFCTR_ASKED_LINK)
		perfctr_thread_link(thread);
	/* Exec may have unlinked it. */
	if (thread->task != current)
		return;
	/* Nobody is left to tell that one of these was refused. */
	if (asked & PERFCTR_ASKED_CONTROL)
		perfctr_thread_control(thread, control);
	if (asked & PERFCTR_ASKED_GO_ON)
		perfctr_thread_go_on(thread);
	if (asked & PERFCTR_ASKED_UNLINK)
		perfctr_thread_unlink(thread);
}

static void perfctr_remote_work(struct callback_head *work)
{
	struct perfctr_thread *thread =
		container_of(work, struct perfctr_thread, work);
	struct perfctr_control_arg control;
	unsigned int asked;

	mutex_lock(&thread->lock);
	control = thread->asked_control;
	asked = thread->asked;
	thread->asked = 0;
	mutex_unlock(&thread->lock);
	/* An exiting thread has unlinked what was linked, and links no more. */
	if (!(current->flags & PF_EXITING))
		perfctr_remote_do(thread, asked, &control);
	else if (asked & PERFCTR_ASKED_LINK)
		perfctr_thread_disclaim(thread);
	perfctr_thread_put(thread);
	module_put(THIS_MODULE);
}

/* With the thread's lock held. */
static int perfctr_remote_ask(struct perfctr_thread *thread,
			      struct task_struct *task, unsigned int wish)
{
	int err;

	if (!thread->asked) {
		init_task_work(&thread->work, perfctr_remote_work);
		err = task_work_add(task, &thread->work, TWA_RESUME);
		if (err)
			return err;
		perfctr_thread_get(thread);
		__module_get(THIS_MODULE);
	}
	thread->asked |= wish;
	return 0;
}

static int perfctr_remote(struct perfctr_thread *thread,
			  struct task_struct *task, unsigned int wish,
			  const struct perfctr_control_arg *control)
{
	int err;

	if (!perfctr_is_tracee(task))
		return -ESRCH;
	mutex_lock(&thread->lock);
	err = perfctr_remote_ask(thread, task, wish);
	if (!err && control) {
		/* What the control before would have reset stays reset. */
		u32 keep = thread->asked & PERFCTR_ASKED_CONTROL ?
				   thread->asked_control.preserve :
				   ~0u;

		thread->asked |= PERFCTR_ASKED_CONTROL;
		thread->asked_control = *control;
		thread->asked_control.preserve &= keep;
	}
	mutex_unlock(&thread->lock);
	return err;
}

int perfctr_remote_link(struct perfctr_thread *thread, struct task_struct *task)
{
	return perfctr_remote(thread, task, PERFCTR_ASKED_LINK, NULL);
}

int perfctr_remote_control(struct perfctr_thread *thread,
			   struct task_struct *task,
			   const struct perfctr_control_arg *control)
{
	int err = perfctr_core_check_control(&perfctr_query, control);

	return err ? err : perfctr_remote(thread, task, 0, control);
}

int perfctr_remote_go_on(struct perfctr_thread *thread,
			 struct task_struct *task)
{
	return perfctr_remote(thread, task, PERFCTR_ASKED_GO_ON, NULL);
}

int perfctr_remote_unlink(struct perfctr_thread *thread,
			  struct task_struct *task)
{
	return perfctr_remote(thread, task, PERFCTR_ASKED_UNLINK, NULL);
}
