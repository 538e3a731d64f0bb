/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef PERFCTR_LATE_RT_H
#define PERFCTR_LATE_RT_H

#include <linux/llist.h>
#include <linux/task_work.h>

struct perfctr_thread;

/* What is put off in a kernel with PREEMPT_RT. */
struct perfctr_late {
	/* The place in the list of counters whose readers are to be woken. */
	struct llist_node node;
	int is_listed;
	/*
	 * The thread executes the work when it leaves the kernel. Only the
	 * thread itself changes what follows, with interrupts disabled.
	 */
	bool is_queued;
	struct callback_head work;
	/* The signal to send. `overflows` is 0 if there is none. */
	u32 number;
	u32 overflows;
};

/* late_rt.c: it is only in kernels with PREEMPT_RT. */
int perfctr_rt_put_off(struct perfctr_thread *thread, bool is_urgent);
bool perfctr_rt_signal(struct perfctr_thread *thread, u32 number,
		       u32 overflows);
void perfctr_rt_wake(struct perfctr_thread *thread);
void perfctr_rt_exit(void);

#endif /* PERFCTR_LATE_RT_H */
