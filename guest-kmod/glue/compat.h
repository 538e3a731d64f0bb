/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * This file has only what differs between the kernel's releases since 5.10.
 * Where there is a choice, older kernels get what the newest have.
 */
#ifndef PERFCTR_COMPAT_H
#define PERFCTR_COMPAT_H

#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <linux/sched/coredump.h>
#include <linux/syscore_ops.h>
#include <linux/version.h>
#include <asm/processor.h>
#include <asm/tlbflush.h>

#if __has_include(<asm/cpuid/api.h>)
#include <asm/cpuid/api.h>
#endif
#if __has_include(<linux/sched/exec_state.h>)
#include <linux/sched/exec_state.h>
#endif

/* The arguments that the scheduler's tracepoints pass to a probe. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define PERFCTR_EXIT_ARGS void *unused, struct task_struct *task, bool is_last
#else
#define PERFCTR_EXIT_ARGS void *unused, struct task_struct *task
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 18, 0)
#define PERFCTR_SWITCH_ARGS                                   \
	void *unused, bool preempt, struct task_struct *prev, \
		struct task_struct *next, unsigned int prev_state
#else
#define PERFCTR_SWITCH_ARGS                                   \
	void *unused, bool preempt, struct task_struct *prev, \
		struct task_struct *next
#endif

/* The arguments of the callbacks before and after the machine sleeps. */
#ifdef PERFCTR_HAS_SYSCORE
#define PERFCTR_SYSCORE_ARGS void *unused
#else
#define PERFCTR_SYSCORE_ARGS void

struct syscore {
	struct syscore_ops *ops;
};

static inline void register_syscore(struct syscore *syscore)
{
	register_syscore_ops(syscore->ops);
}

static inline void unregister_syscore(struct syscore *syscore)
{
	unregister_syscore_ops(syscore->ops);
}
#endif

static inline unsigned int perfctr_task_state(struct task_struct *task)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 14, 0)
	return READ_ONCE(task->__state);
#else
	return READ_ONCE(task->state);
#endif
}

/* Up to 6.0, a frozen task keeps the state that it had before. */
#ifndef TASK_FROZEN
#define TASK_FROZEN 0
#endif

/*
 * Makes this CPU leave the address space that it keeps while the calling kernel
 * thread executes. Interrupts are disabled.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 9, 0)
#define perfctr_leave_mm() leave_mm(smp_processor_id())
#else
#define perfctr_leave_mm() leave_mm()
#endif

/*
 * Returns 0 if perf lets the caller count in kernel mode, or an error. perf
 * decides by kernel.perf_event_paranoid, and asks the security modules. Before
 * 6.15 a kernel module cannot ask perf.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0)
#define perf_allow_kernel() 0
#endif

/*
 * Returns whether other processes of the thread's user may look at what the
 * thread executes. The thread is the calling one, or the one that executes next
 * on this CPU.
 */
static inline bool perfctr_is_dumpable(struct task_struct *task)
{
#ifdef SUID_DUMP_USER
	return get_dumpable(task->mm) == SUID_DUMP_USER;
#else
	return rcu_access_pointer(task->exec_state)->dumpable ==
	       TASK_DUMPABLE_OWNER;
#endif
}

static inline void perfctr_vm_flags_mod(struct vm_area_struct *vma,
					unsigned long set, unsigned long clear)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

/* Before 6.2 a PMU can be registered a second time only with this flag. */
#ifndef PERF_PMU_CAP_HETEROGENEOUS_CPUS
#define PERF_PMU_CAP_HETEROGENEOUS_CPUS 0
#endif

/*
 * Returns whether perf keeps a context of the task that names the PMU although
 * the task has no event left. From 6.2 on no context names a PMU after its last
 * event. The caller is in an RCU read section.
 */
static inline bool perfctr_context_names(struct task_struct *task,
					 const struct pmu *pmu)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	return false;
#else
	const struct perf_event_context *context =
		READ_ONCE(task->perf_event_ctxp[perf_hw_context]);

	return context && context->pmu == pmu;
#endif
}

/*
 * The time of a context's or a cgroup's events by perf's books, and the moment
 * at which perf has written it there.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
#define PERFCTR_TIME(events) ((events)->time.time)
#define PERFCTR_TIME_BOOKED(events) ((events)->time.stamp)
#else
#define PERFCTR_TIME(events) ((events)->time)
#define PERFCTR_TIME_BOOKED(events) ((events)->timestamp)
#endif

/*
 * Makes irq_work that the interrupt itself runs. With PREEMPT_RT, a thread runs
 * all other irq_work. 5.10 has no such kernels.
 */
#ifndef IRQ_WORK_INIT_HARD
#define IRQ_WORK_INIT_HARD(run) ((struct irq_work){ .func = (run) })
#endif

/* Returns the irq_work by which perf wakes and signals waiters. */
static inline struct irq_work *perfctr_event_work(struct perf_event *event)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0)
	return &event->pending_irq;
#else
	return &event->pending;
#endif
}

/* Gives the sample these branches. */
static inline void perfctr_sample_has_branches(struct perf_sample_data *data,
					       struct perf_event *event,
					       struct perf_branch_stack *stack)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	perf_sample_save_brstack(data, event, stack, NULL);
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	perf_sample_save_brstack(data, event, stack);
#else
	data->br_stack = stack;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0)
	data->sample_flags |= PERF_SAMPLE_BRANCH_STACK;
#endif
#endif
}

/* Makes perf disable the event as soon as it can. */
static inline void perfctr_event_disable(struct perf_event *event)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
	event->pending_disable = 1;
	irq_work_queue(&event->pending_disable_irq);
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0)
	event->pending_disable = 1;
	irq_work_queue(perfctr_event_work(event));
#else
	/* perf wants to know the CPU on which it has to disable the event. */
	WRITE_ONCE(event->pending_disable, smp_processor_id());
	irq_work_queue(perfctr_event_work(event));
#endif
}

/*
 * Runs the event's BPF program, if it has one, and returns whether perf is to
 * write the sample. Up to 6.9 the overflow handler runs the program itself. For
 * its own PMUs, which sample in NMIs, perf makes sure that no program
 * interrupts another one. This module samples with interrupts disabled and not
 * in NMIs, so that cannot happen.
 */
static inline bool perfctr_event_wants(struct perf_event *event,
				       struct perf_sample_data *data,
				       struct pt_regs *regs)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0) && \
	defined(CONFIG_BPF_SYSCALL)
	struct bpf_perf_event_data_kern context = {
		.regs = perf_arch_bpf_user_pt_regs(regs),
		.data = data,
		.event = event,
	};
	const struct bpf_prog *program;
	bool wants = true;

	rcu_read_lock();
	program = READ_ONCE(event->prog);
	if (program)
		wants = bpf_prog_run(program, &context);
	rcu_read_unlock();
	return wants;
#else
	return true;
#endif
}

#endif /* PERFCTR_COMPAT_H */
