/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef PERFCTR_H
#define PERFCTR_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/irqflags.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/smp.h>

#include "perfctr_core.h"

/* One possible CPU. */
struct perfctr_cpu {
	struct perfctr_vcpu_page *page;
	struct perfctr_core_vcpu *core;
	int irq;
};

/*
 * One thread's counters.  A reference is held by the thread while it is
 * linked, and by each descriptor that is bound.
 */
struct perfctr_thread {
	struct preempt_notifier notifier;
	struct kref kref;
	/* Whose counters these are; NULL once unlinked. */
	struct task_struct *task;
	struct perfctr_thread_page *page;
	/* Protects control. */
	struct mutex lock;
	/* The last one that was accepted. */
	struct perfctr_control_arg control;
	/* struct perfctr_core_thread */
	u64 core[];
};

/* module.c */
extern struct perfctr_hv_query perfctr_query;
extern bool perfctr_cost;

/* vcpu.c */
extern struct perfctr_cpu *perfctr_cpus;
int perfctr_vcpus_init(void);
void perfctr_vcpus_exit(void);
void perfctr_stop_if_idle(void);

/* overflow.c */
int perfctr_overflow_bind(unsigned int cpu);
void perfctr_overflow_unbind(unsigned int cpu);
void perfctr_signal(u64 signal);

/* sched.c */
struct preempt_ops *perfctr_preempt_ops(void);

/* thread.c */
extern atomic_t perfctr_threads;
struct perfctr_thread *perfctr_thread_current(void);
struct perfctr_thread *perfctr_thread_create(void);
void perfctr_thread_link(struct perfctr_thread *thread);
void perfctr_thread_unlink(struct perfctr_thread *thread);
int perfctr_thread_control(struct perfctr_thread *thread,
			   const struct perfctr_control_arg *control);
int perfctr_thread_go_on(struct perfctr_thread *thread);
int perfctr_thread_read(struct perfctr_thread *thread,
			struct perfctr_sums *sums);
struct perfctr_thread *perfctr_thread_get(struct perfctr_thread *thread);
void perfctr_thread_put(struct perfctr_thread *thread);

/* task.c */
int perfctr_task_init(void);
void perfctr_task_exit(void);

/* chardev.c */
int perfctr_chardev_init(void);
void perfctr_chardev_exit(void);

/* mmap.c */
int perfctr_mmap(struct file *file, struct vm_area_struct *vma);

/* debugfs.c */
void perfctr_debugfs_init(void);
void perfctr_debugfs_exit(void);

static inline struct perfctr_core_vcpu *perfctr_this_vcpu(void)
{
	return perfctr_cpus[smp_processor_id()].core;
}

static inline struct perfctr_core_thread *
perfctr_core_of(struct perfctr_thread *thread)
{
	return (struct perfctr_core_thread *)thread->core;
}

#endif /* PERFCTR_H */
