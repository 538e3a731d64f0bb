/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef PERFCTR_H
#define PERFCTR_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/irqflags.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/task_work.h>
#include <linux/smp.h>

#include "perfctr_core.h"

/* One possible CPU. */
struct perfctr_cpu {
	struct perfctr_vcpu_page *page;
	struct perfctr_core_vcpu *core;
	int irq;
};

/* What a tracer has asked for. */
#define PERFCTR_ASKED_LINK 1
#define PERFCTR_ASKED_CONTROL 2
#define PERFCTR_ASKED_GO_ON 4
#define PERFCTR_ASKED_UNLINK 8

/*
 * One thread's counters.  A reference is held by the thread while it is
 * linked, by each descriptor that is bound, and by what a tracer has asked for.
 */
struct perfctr_thread {
	struct preempt_notifier notifier;
	struct kref kref;
	/* From creation to unlinking, which is before the owner's end. */
	struct hlist_node claim;
	struct task_struct *owner;
	/* Who is linked; NULL before and after. */
	struct task_struct *task;
	struct perfctr_thread_page *page;
	/* Protects all below but the core's. */
	struct mutex lock;
	/* The last one that was accepted. */
	struct perfctr_control_arg control;
	/* What a tracer has asked for and the thread has not done yet. */
	struct callback_head work;
	unsigned int asked;
	struct perfctr_control_arg asked_control;
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
struct perfctr_thread *perfctr_thread_alloc(u32 tid);
int perfctr_thread_claim(struct perfctr_thread *thread,
			 struct task_struct *owner);
void perfctr_thread_disclaim(struct perfctr_thread *thread);
struct task_struct *perfctr_thread_owner(struct perfctr_thread *thread);
struct perfctr_thread *perfctr_thread_find(struct task_struct *owner);
void perfctr_thread_link(struct perfctr_thread *thread);
void perfctr_thread_unlink(struct perfctr_thread *thread);
int perfctr_thread_control(struct perfctr_thread *thread,
			   const struct perfctr_control_arg *control);
int perfctr_thread_go_on(struct perfctr_thread *thread);
int perfctr_thread_read(struct perfctr_thread *thread,
			struct perfctr_sums *sums);
struct perfctr_thread *perfctr_thread_get(struct perfctr_thread *thread);
void perfctr_thread_put(struct perfctr_thread *thread);

/* remote.c */
bool perfctr_remote_is_leaving(struct perfctr_thread *thread);
struct task_struct *perfctr_remote_task(u32 tid);
int perfctr_remote_link(struct perfctr_thread *thread,
			struct task_struct *task);
int perfctr_remote_control(struct perfctr_thread *thread,
			   struct task_struct *task,
			   const struct perfctr_control_arg *control);
int perfctr_remote_go_on(struct perfctr_thread *thread,
			 struct task_struct *task);
int perfctr_remote_unlink(struct perfctr_thread *thread,
			  struct task_struct *task);

/* global.c */
int perfctr_global_control(const struct perfctr_cpu_state_arg *state);
int perfctr_global_start(void);
int perfctr_global_stop(void);
int perfctr_global_read(struct perfctr_cpu_state_arg *state);
void perfctr_global_offline(unsigned int cpu);
int perfctr_global_init(void);
void perfctr_global_exit(void);

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
