/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Handles the virtual interrupt of an overflow. */

#include "perfctr.h"

irqreturn_t perfctr_overflow(int irq, void *unused)
{
	struct perfctr_thread *thread = perfctr_thread_of(current);

	perfctr_report(thread, perfctr_core_interrupt(
				       thread ? perfctr_core_of(thread) : NULL,
				       perfctr_this_vcpu()));
	perfctr_events_overflow();
	return IRQ_HANDLED;
}
