/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What a kernel with PREEMPT_RT puts off, because it takes locks that sleep
 * there. Other kernels do it at once.
 */
#ifndef PERFCTR_LATE_RT_H
#define PERFCTR_LATE_RT_H

#include <linux/task_work.h>

struct perfctr_thread;

#ifdef CONFIG_PREEMPT_RT
struct perfctr_late {
	/* Wakes the readers of the ring. */
	struct work_struct wake;
	/*
	 * The thread does this work when it leaves the kernel. The work has a
	 * function while it is queued. Only the thread itself changes what
	 * follows, with interrupts disabled.
	 */
	struct callback_head work;
	/* The signal to send. `overflows` is 0 if there is none. */
	u32 number;
	u32 overflows;
	/* Whether the counters are to be unlinked. */
	bool is_end;
};

/* These do at once what others ask late_rt.c for. */
bool perfctr_send_now(u32 number, u32 counters);
int perfctr_thread_unlink_now(struct perfctr_thread *thread);

void perfctr_late_init(struct perfctr_thread *thread);
#else
struct perfctr_late {
};

static inline void perfctr_late_init(struct perfctr_thread *unused)
{
}
#endif

#endif /* PERFCTR_LATE_RT_H */
