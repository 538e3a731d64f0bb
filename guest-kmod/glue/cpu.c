/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The possible CPUs. */

#include <linux/gfp.h>
#include <linux/slab.h>

#include "perfctr.h"

struct perfctr_cpu *perfctr_cpus;

/* A page of zeroes, for a vCPU of which none was ever registered. */
static struct perfctr_vcpu_page *perfctr_nobody;

static int perfctr_alloc_cpu(unsigned int number)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[number];

	cpu->core = kzalloc(perfctr_core_vcpu_bytes(), GFP_KERNEL);
	if (!cpu->core)
		return -ENOMEM;
	perfctr_core_vcpu_init(cpu->core, number, perfctr_nobody);
	return 0;
}

int perfctr_cpus_init(void)
{
	unsigned int cpu;
	int err = 0;

	perfctr_cpus = kcalloc(nr_cpu_ids, sizeof(*perfctr_cpus), GFP_KERNEL);
	perfctr_nobody = (void *)get_zeroed_page(GFP_KERNEL);
	if (!perfctr_cpus || !perfctr_nobody)
		err = -ENOMEM;
	for (cpu = 0; cpu < nr_cpu_ids && !err; cpu++)
		err = perfctr_alloc_cpu(cpu);
	if (err)
		perfctr_cpus_exit();
	return err;
}

void perfctr_cpus_exit(void)
{
	unsigned int cpu;

	for (cpu = 0; perfctr_cpus && cpu < nr_cpu_ids; cpu++)
		kfree(perfctr_cpus[cpu].core);
	kfree(perfctr_cpus);
	free_page((unsigned long)perfctr_nobody);
}
