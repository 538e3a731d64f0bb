/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The virtual interrupt of an overflow. */

#include "perfctr.h"

static irqreturn_t perfctr_overflow(int irq, void *unused)
{
	struct perfctr_thread *thread = perfctr_thread_current();
	u64 told;

	told = perfctr_core_interrupt(thread ? perfctr_core_of(thread) : NULL,
				      perfctr_this_vcpu());
	if (told)
		perfctr_tell(thread, told);
	perfctr_events_overflow();
	return IRQ_HANDLED;
}

int perfctr_overflow_bind(unsigned int cpu)
{
	int irq = perfctr_platform->bind(cpu, perfctr_overflow);

	perfctr_cpus[cpu].irq = irq;
	return irq < 0 ? irq : 0;
}

/* Without effect if it is not bound. */
void perfctr_overflow_unbind(unsigned int cpu)
{
	if (perfctr_cpus[cpu].irq >= 0)
		perfctr_platform->unbind(cpu, perfctr_cpus[cpu].irq);
	perfctr_cpus[cpu].irq = -1;
}
