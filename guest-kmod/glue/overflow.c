/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The virtual interrupt of an overflow, and the signal that follows. */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/interrupt.h>
#include <linux/sched/signal.h>
#include <xen/events.h>

#include "perfctr.h"

_Static_assert(PERFCTR_VIRQ_NUMBER == VIRQ_ARCH_4,
	       "the virtual interrupt's number is Xen's VIRQ_ARCH_4");

/* To the calling thread; the word behind si_code holds the counters. */
void perfctr_signal(u64 signal)
{
	struct kernel_siginfo info;

	if (!signal)
		return;
	clear_siginfo(&info);
	info.si_signo = signal >> 32;
	info.si_code = PERFCTR_SIGNAL_CODE;
	info.si_pid = (u32)signal;
	if (send_sig_info(info.si_signo, &info, current))
		pr_warn_ratelimited("thread %d: signal %d is lost\n",
				    task_pid_nr(current), info.si_signo);
}

static irqreturn_t perfctr_overflow(int irq, void *unused)
{
	struct perfctr_thread *thread = perfctr_thread_current();

	perfctr_signal(perfctr_core_interrupt(
		thread ? perfctr_core_of(thread) : NULL, perfctr_this_vcpu()));
	return IRQ_HANDLED;
}

int perfctr_overflow_bind(unsigned int cpu)
{
	struct perfctr_cpu *vcpu = &perfctr_cpus[cpu];
	int irq = bind_virq_to_irqhandler(PERFCTR_VIRQ_NUMBER, cpu,
					  perfctr_overflow,
					  IRQF_PERCPU | IRQF_NOBALANCING,
					  "perfctr", vcpu);

	if (irq < 0)
		return irq;
	vcpu->irq = irq;
	return 0;
}

void perfctr_overflow_unbind(unsigned int cpu)
{
	struct perfctr_cpu *vcpu = &perfctr_cpus[cpu];

	unbind_from_irqhandler(vcpu->irq, vcpu);
}
