/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The possible CPUs, and the memory that the core has. */

#include <linux/gfp.h>
#include <linux/slab.h>

#include "perfctr.h"

struct perfctr_cpu *perfctr_cpus;

void *perfctr_glue_alloc(size_t bytes)
{
	return kzalloc(bytes, GFP_KERNEL_ACCOUNT);
}

void *perfctr_glue_alloc_page(void)
{
	return (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
}

int perfctr_cpus_init(void)
{
	struct perfctr_core_vcpu *core;
	unsigned int cpu;

	perfctr_cpus = kcalloc(nr_cpu_ids, sizeof(*perfctr_cpus), GFP_KERNEL);
	for (cpu = 0; perfctr_cpus && cpu < nr_cpu_ids; cpu++) {
		core = perfctr_core_vcpu_new(cpu);
		if (!core) {
			perfctr_cpus_exit();
			return -ENOMEM;
		}
		perfctr_cpus[cpu].core = core;
		perfctr_cpus[cpu].shown = perfctr_core_shown(core);
	}
	return perfctr_cpus ? 0 : -ENOMEM;
}

void perfctr_cpus_exit(void)
{
	perfctr_core_vcpus_free();
	kfree(perfctr_cpus);
}
