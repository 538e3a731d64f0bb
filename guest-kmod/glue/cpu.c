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

static int perfctr_alloc_cpu(unsigned int number)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[number];

	cpu->core = perfctr_core_vcpu_new(number);
	if (!cpu->core)
		return -ENOMEM;
	cpu->shown = perfctr_core_shown(cpu->core);
	return 0;
}

int perfctr_cpus_init(void)
{
	unsigned int cpu;
	int err = 0;

	perfctr_cpus = kcalloc(nr_cpu_ids, sizeof(*perfctr_cpus), GFP_KERNEL);
	if (!perfctr_cpus)
		return -ENOMEM;
	for (cpu = 0; cpu < nr_cpu_ids && !err; cpu++)
		err = perfctr_alloc_cpu(cpu);
	if (err)
		perfctr_cpus_exit();
	return err;
}

void perfctr_cpus_exit(void)
{
	perfctr_core_vcpus_free();
	kfree(perfctr_cpus);
}
