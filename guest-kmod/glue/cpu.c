/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Manages the possible CPUs, and gives the core its memory. */

#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/percpu.h>
#include <linux/slab.h>

#include "perfctr.h"

DEFINE_PER_CPU(struct perfctr_cpu, perfctr_cpus);

void *perfctr_glue_alloc(size_t bytes)
{
	return kzalloc(bytes, GFP_KERNEL_ACCOUNT);
}

void *perfctr_glue_alloc_page(void)
{
	return (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
}

/*
 * Makes the kernel set CR4.PCE on this CPU, because from 7.0 on no module but
 * KVM may set it. The kernel sets it when it enters the address space of a
 * process. While a kernel thread such as this one executes, the CPU keeps the
 * address space of the process that executed before. This function makes the
 * CPU leave it, so that the kernel has to enter it again before the process
 * goes on.
 */
static void perfctr_leave(struct work_struct *unused)
{
	local_irq_disable();
	perfctr_leave_mm();
	local_irq_enable();
}

int perfctr_cpus_init(void)
{
	struct perfctr_core_vcpu *core;
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		core = perfctr_core_vcpu_new(cpu);
		if (!core) {
			perfctr_core_vcpus_free();
			return -ENOMEM;
		}
		/*
		 * A mapping also has pages for the numbers that no possible CPU
		 * has.
		 */
		if (!cpu_possible(cpu))
			continue;
		INIT_WORK(per_cpu_ptr(&perfctr_cpus.leave, cpu), perfctr_leave);
		per_cpu(perfctr_cpus.core, cpu) = core;
		per_cpu(perfctr_cpus.shown, cpu) = perfctr_core_shown(core);
	}
	return 0;
}
