/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A guest of Xen: hypercalls, interrupts, restoration. */

#include <asm/xen/hypercall.h>
#include <xen/events.h>
#include <xen/interface/xen.h>
#include <xen/page.h>
#include <xen/xen-ops.h>
#include <xen/xen.h>

#include "../perfctr.h"

_Static_assert(PERFCTR_HYPERCALL_NUMBER == __HYPERVISOR_arch_5,
	       "the hypercall's number is Xen's arch_5");
_Static_assert(PERFCTR_VIRQ_NUMBER == VIRQ_ARCH_4,
	       "the virtual interrupt's number is Xen's VIRQ_ARCH_4");

bool perfctr_platform_exists(void)
{
	return xen_domain();
}

bool perfctr_platform_owns_cr4(void)
{
	return !xen_pv_domain();
}

int perfctr_glue_hypercall(u32 op, void *argument, u32 length)
{
	return _hypercall3(int, arch_5, op, argument, length);
}

u64 perfctr_platform_gfn(void *page)
{
	return virt_to_gfn(page);
}

/* Gives the interrupt's number. */
int perfctr_platform_bind(unsigned int cpu, irq_handler_t handler)
{
	return bind_virq_to_irqhandler(PERFCTR_VIRQ_NUMBER, cpu, handler,
				       IRQF_PERCPU | IRQF_NOBALANCING,
				       "perfctr", &perfctr_cpus[cpu]);
}

void perfctr_platform_unbind(unsigned int cpu, int irq)
{
	unbind_from_irqhandler(irq, &perfctr_cpus[cpu]);
}

/* Called before any thread of the restored domain goes on. */
void perfctr_platform_restored_register(struct notifier_block *notifier)
{
	xen_resume_notifier_register(notifier);
}

void perfctr_platform_restored_unregister(struct notifier_block *notifier)
{
	xen_resume_notifier_unregister(notifier);
}
