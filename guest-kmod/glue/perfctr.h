/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Declarations that the module's files share, and the kernel's headers that
 * most of them need. A file calls only files that come before it here.
 */
#ifndef PERFCTR_H
#define PERFCTR_H

#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/interrupt.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/preempt.h>
#include <linux/smp.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "late_rt.h"
#include "perfctr_core.h"

#if defined(CONFIG_PREEMPT_RT) && LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "found PREEMPT_RT before Linux 6.1, expected Linux 6.1 or later"
#endif

/* A possible CPU. It is changed on that CPU only, with interrupts disabled. */
struct perfctr_cpu {
	struct perfctr_core_vcpu *core;
	/*
	 * The core's note of the registered page, of who may execute
	 * meanwhile, and of perf's events. Each switch reads it.
	 */
	const struct perfctr_shown *shown;
	/*
	 * Reports an overflow to the current thread as soon as perf's locks are
	 * free.
	 */
	struct irq_work report;
	/* Makes the kernel set CR4.PCE anew before a process goes on here. */
	struct work_struct leave;
};

/*
 * The counters of one thread, or of a whole CPU. A thread to which they are
 * linked has a reference, and so has each descriptor that is bound.
 */
struct perfctr_thread {
	struct preempt_notifier notifier;
	struct kref kref;
	/*
	 * The thread that is linked, or NULL. This changes only while that
	 * thread is held.
	 */
	struct task_struct *task;
	/*
	 * NULL until there is a ring. A ring stays until the counters are
	 * freed.
	 */
	struct perfctr_ring *ring;
	/* Here callers wait for records, and for the thread's end. */
	wait_queue_head_t wait;
	/* Protects the core's copy of the last control that was accepted. */
	struct mutex lock;
	struct perfctr_late late;
	/* struct perfctr_core_thread */
	u64 core[];
};

/*
 * watch.c: an interrupt or exception with these registers, or NULL, and the
 * vector of an exception whose signal is sent, or 0. platform/ calls it, too.
 */
void perfctr_traced(struct pt_regs *regs, u32 vector);

/* platform/: the differences between hypervisors. */
struct perfctr_platform {
	const char *name;
	int (*hypercall)(u32 op, void *argument, u32 length);
	/*
	 * Both are called on that CPU. unbind() has no effect if the CPU is not
	 * bound.
	 */
	int (*bind)(unsigned int cpu, irq_handler_t handler);
	void (*unbind)(unsigned int cpu);
	/*
	 * After on_restore() the core is called whenever the machine was
	 * restored. No vCPU is bound before that, since the interrupt of a bound
	 * one may say that the machine was restored.
	 */
	int (*on_restore)(void);
	void (*off_restore)(void);
};
extern const struct perfctr_platform perfctr_xen, perfctr_kvm;
/* The platform of this guest, or NULL if there is none. It is set once. */
extern const struct perfctr_platform *perfctr_platform;
bool perfctr_platform_find(void);

/* cpu.c: the possible CPUs, until perfctr_core_vcpus_free(). */
DECLARE_PER_CPU(struct perfctr_cpu, perfctr_cpus);
int perfctr_cpus_init(void);

/* user.c: users. */
void perfctr_users_exit(void);
int perfctr_counters_init(struct perfctr_core_thread *core, u32 tid,
			  struct task_struct *task);

/* ring.c: threads' rings of samples. */
struct perfctr_ring;
int perfctr_ring_begin(struct perfctr_thread *thread,
		       const struct perfctr_ring_request *request);
void perfctr_ring_free(struct perfctr_ring *ring);
u32 perfctr_ring_pages(const struct perfctr_thread *thread);
int perfctr_ring_mmap(struct perfctr_thread *thread,
		      struct vm_area_struct *vma);
__poll_t perfctr_poll(struct file *file, struct poll_table_struct *table);

/* sched.c: switches of threads, and reports of overflows to them. */
extern struct preempt_ops perfctr_preempt_ops;
int perfctr_sched_init(void);
struct perfctr_thread *perfctr_thread_of(struct task_struct *task);
void perfctr_report_current(struct irq_work *unused);
void perfctr_on_switch(PERFCTR_SWITCH_ARGS);
struct perfctr_core_thread *perfctr_core_of_task(struct task_struct *task);

/* event.c: perf's events on this CPU. */
void perfctr_pmu_enable(struct pmu *pmu);
void perfctr_pmu_disable(struct pmu *pmu);
struct perfctr_event_config perfctr_event_config(struct perf_event *event);
int perfctr_event_add(struct perf_event *event, int flags);
void perfctr_event_remove(struct perf_event *event, int flags);
void perfctr_event_start(struct perf_event *event, int flags);
void perfctr_event_stop(struct perf_event *event, int flags);
void perfctr_event_read(struct perf_event *event);
irqreturn_t perfctr_overflow(int irq, void *unused);

/* vcpu.c: vCPUs and their pages. */
int perfctr_vcpus_init(void);
void perfctr_vcpus_exit(void);

/* probe.c: tracepoints. */
struct perfctr_probe {
	const char *name;
	void *function;
	/* NULL if the probe is not registered. */
	struct tracepoint *tracepoint;
};
int perfctr_probe(struct perfctr_probe *probes, unsigned int count);
void perfctr_unprobe(struct perfctr_probe *probes, unsigned int count);

/* watch.c: whether switches and interrupts are watched. */
void perfctr_watch_exit(void);

/* hold.c: makes a thread stand still. */
struct perfctr_hold {
	struct task_struct *task;
	/*
	 * The vCPU that executes the thread, or NULL if the thread is asleep.
	 */
	struct perfctr_core_vcpu *vcpu;
	unsigned long flags;
};
int perfctr_hold(struct perfctr_hold *hold, struct task_struct *task);
void perfctr_let_go(struct perfctr_hold *hold);
struct task_struct *perfctr_find_task(u32 tid);

/* thread.c: a thread's counters. */
struct perfctr_thread *perfctr_thread_alloc(u32 tid, struct task_struct *task);
void perfctr_thread_put(struct perfctr_thread *thread);
int perfctr_thread_link(struct perfctr_thread *thread, struct task_struct *task,
			struct file *file);
int perfctr_thread_open(struct file *file, struct task_struct *task);
int perfctr_thread_unlink(struct perfctr_thread *thread);
int perfctr_thread_operate(struct perfctr_thread *thread, unsigned int number,
			   const struct perfctr_control_arg *control);
int perfctr_thread_read(struct perfctr_thread *thread,
			struct perfctr_sums *sums);

/* mmap.c: mappings, and processes that may execute RDPMC. */
int perfctr_mmap(struct file *file, struct vm_area_struct *vma);
void perfctr_pce_fork(void *unused, struct task_struct *parent,
		      struct task_struct *child);

/* task.c: exec and exit. */
int perfctr_task_init(void);
void perfctr_task_exit(void);

/* perf.c: the PMU of Linux's perf. */
int perfctr_pmu_init(void);
void perfctr_pmu_exit(void);

/* chardev.c */
int perfctr_chardev_init(void);
void perfctr_chardev_exit(void);

/* debugfs.c */
int perfctr_debugfs_init(void);
void perfctr_debugfs_exit(void);

static inline u64 perfctr_ids(kuid_t uid, kgid_t gid)
{
	return (u64)__kgid_val(gid) << 32 | __kuid_val(uid);
}

/*
 * Describes the calling thread, or one whose credentials, namespaces and memory
 * do not change meanwhile. It is open as ptrace(2) says: it must be dumpable,
 * and all its users and all its groups must be the same.
 */
static inline struct perfctr_subject
perfctr_subject_of(struct task_struct *task)
{
	const struct cred *cred = rcu_dereference_raw(task->real_cred);
	const struct nsproxy *proxy = READ_ONCE(task->nsproxy);
	u64 ids = perfctr_ids(cred->euid, cred->egid);
	bool is_open = ids == perfctr_ids(cred->uid, cred->gid) &&
		       ids == perfctr_ids(cred->suid, cred->sgid);

	return (struct perfctr_subject){
		.identity.container =
			proxy ? (unsigned long)proxy->pid_ns_for_children : 0,
		.identity.users = (unsigned long)cred->user_ns,
		.identity.capabilities = *(const u64 *)&cred->cap_permitted,
		.identity.ids = ids,
		.kind = !task->mm ? PERFCTR_SUBJECT_KERNEL :
			is_open && perfctr_is_dumpable(task) ?
				    PERFCTR_SUBJECT_OPEN :
				    PERFCTR_SUBJECT_GUARDED,
	};
}

/* Preemption is disabled. */
static inline struct perfctr_core_vcpu *perfctr_this_vcpu(void)
{
	return this_cpu_read(perfctr_cpus.core);
}

static inline struct perfctr_core_thread *
perfctr_core_of(struct perfctr_thread *thread)
{
	return (struct perfctr_core_thread *)thread->core;
}

#endif /* PERFCTR_H */
