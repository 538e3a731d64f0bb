/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Watches switches while anybody has counters, so that a kernel in which nobody
 * counts pays nothing. The core decides when (src/watch.rs). If the CPUs count
 * interrupts and exceptions as instructions, this watches them, too, so that
 * the core can subtract them (src/surplus.rs).
 *
 * A switch that is under way on a CPU when the watch begins may not be noticed.
 * But no page is registered on that CPU then: a CPU registers its page itself,
 * outside of a switch or at its end. So the next switch is watched.
 */

#include <linux/cpumask.h>
#include <linux/kprobes.h>
#include <linux/sched/task_stack.h>
#include <linux/tracepoint.h>
#include <asm/irq_regs.h>
#include <asm/trapnr.h>

#include "perfctr.h"

/* Held while the watch begins or ends. */
static DEFINE_MUTEX(perfctr_watch_lock);

/*
 * If no registers are passed, the kernel does not know what was interrupted, or
 * nothing was. The core then judges by how the thread has left user mode.
 */
void perfctr_traced(struct pt_regs *regs, u32 vector)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_traced(perfctr_this_vcpu(), perfctr_core_of_task(current),
			    regs, regs && user_mode(regs),
			    task_pt_regs(current)->orig_ax, vector);
	local_irq_restore(flags);
}

/* Xen's event channels are such interrupts, too. */
static void perfctr_on_irq(void *unused, int irq, struct irqaction *action)
{
	perfctr_traced(get_irq_regs(), 0);
}

static void perfctr_on_vector(void *unused, int vector)
{
	perfctr_traced(get_irq_regs(), 0);
}

static void perfctr_on_page_fault(void *unused, unsigned long address,
				  struct pt_regs *regs, unsigned long error)
{
	perfctr_traced(regs, 0);
}

/* Exceptions other than page faults are traced only by their signals. */
static void perfctr_on_signal(void *unused, int number,
			      struct kernel_siginfo *info,
			      struct task_struct *task, int group, int result)
{
	perfctr_traced(get_irq_regs(), current->thread.trap_nr);
}

/*
 * Only the first one is there if the CPUs do not count interrupts. Each has the
 * prototype of its tracepoint, as kernels that check indirect calls demand.
 */
static struct perfctr_probe perfctr_watched[] = {
	{ "sched_switch", perfctr_on_switch },
	{ "irq_handler_entry", perfctr_on_irq },
	{ "page_fault_user", perfctr_on_page_fault },
	{ "signal_generate", perfctr_on_signal },
	{ "local_timer_entry", perfctr_on_vector },
	{ "irq_work_entry", perfctr_on_vector },
	{ "reschedule_entry", perfctr_on_vector },
	{ "call_function_entry", perfctr_on_vector },
	{ "call_function_single_entry", perfctr_on_vector },
};

/*
 * During Xen's upcall the kernel knows the registers that were interrupted.
 * rt_sigreturn is a system call, so there are none. An instruction has brought
 * the thread here then, and INT3's vector says that to the core.
 */
static int perfctr_on_call(struct kprobe *probe, struct pt_regs *unused)
{
	perfctr_traced(get_irq_regs(), get_irq_regs() ? 0 : X86_TRAP_BP);
	return 0;
}

/*
 * rt_sigreturn makes the thread's registers look as if an interrupt had brought
 * the thread into the kernel. Xen's upcall is there because some interrupts hit
 * no tracepoint: if an event comes while Linux handles an earlier one, Linux
 * handles both, and the interrupt of the later one finds nothing to do.
 */
static struct kprobe perfctr_calls[] = {
	{ .symbol_name = "__x64_sys_rt_sigreturn",
	  .pre_handler = perfctr_on_call },
	{ .symbol_name = PERFCTR_UPCALL, .pre_handler = perfctr_on_call },
};

static void perfctr_watch_nothing(void)
{
	unsigned int i;

	perfctr_unprobe(perfctr_watched, ARRAY_SIZE(perfctr_watched));
	for (i = 0; i < ARRAY_SIZE(perfctr_calls) && perfctr_calls[i].addr; i++)
		unregister_kprobe(&perfctr_calls[i]);
}

/* The caller holds the lock. Only Xen makes the last one of the calls. */
int perfctr_glue_watch_begin(bool interrupts)
{
	unsigned int probes = interrupts ? ARRAY_SIZE(perfctr_watched) : 1;
	unsigned int i, calls = ARRAY_SIZE(perfctr_calls);
	int err = 0;

	calls -= perfctr_platform == &perfctr_kvm;
	for (i = 0; interrupts && i < calls && !err; i++) {
		/* The last registration has left the address. */
		perfctr_calls[i].addr = NULL;
		err = register_kprobe(&perfctr_calls[i]);
	}
	if (!err)
		err = perfctr_probe(perfctr_watched, probes);
	if (err)
		perfctr_watch_nothing();
	else
		preempt_notifier_inc();
	return err;
}

/*
 * Pages may be registered until perfctr_glue_unwatch() is called. This function
 * sleeps.
 */
int perfctr_glue_watch(void)
{
	int err;

	if (perfctr_core_watch_join_if_watched())
		return 0;
	mutex_lock(&perfctr_watch_lock);
	err = perfctr_core_watch_join();
	mutex_unlock(&perfctr_watch_lock);
	return err;
}

static void perfctr_stop(struct work_struct *unused)
{
	perfctr_core_stop_if_idle();
}

/* The work is NULL when the module is unloaded. */
static void perfctr_watch_end(struct work_struct *work)
{
	mutex_lock(&perfctr_watch_lock);
	if (perfctr_core_watch_end(!work)) {
		preempt_notifier_dec();
		perfctr_watch_nothing();
	}
	mutex_unlock(&perfctr_watch_lock);
}

static DECLARE_DELAYED_WORK(perfctr_stop_work, perfctr_stop);
static DECLARE_DELAYED_WORK(perfctr_unwatch_work, perfctr_watch_end);

/* This function does not sleep. */
void perfctr_glue_stop_if_idle(void)
{
	if (!perfctr_core_is_idle())
		return;
	schedule_delayed_work(&perfctr_stop_work,
			      msecs_to_jiffies(perfctr_core_stop_delay()));
	schedule_delayed_work(&perfctr_unwatch_work,
			      msecs_to_jiffies(PERFCTR_UNWATCH_DELAY_MS));
}

/* This function does not sleep. */
void perfctr_glue_unwatch(void)
{
	perfctr_core_watch_leave();
	perfctr_glue_stop_if_idle();
}

/* Nobody has counters any more, and no vCPU is online for the module. */
void perfctr_watch_exit(void)
{
	unsigned int cpu;

	/* perf's last event may have queued this work. */
	for_each_possible_cpu(cpu)
		irq_work_sync(per_cpu_ptr(&perfctr_cpus.report, cpu));
	cancel_delayed_work_sync(&perfctr_stop_work);
	cancel_delayed_work_sync(&perfctr_unwatch_work);
	perfctr_watch_end(NULL);
	tracepoint_synchronize_unregister();
	perfctr_users_exit();
}
