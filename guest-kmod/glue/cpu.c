/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The possible CPUs. */

#include <linux/gfp.h>
#include <linux/slab.h>

#include "perfctr.h"

struct perfctr_cpu *perfctr_cpus;

static int perfctr_alloc_cpu(unsigned int number)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[number];

	cpu->core = kzalloc(perfctr_core_vcpu_bytes(), GFP_KERNEL);
	cpu->perfs = (void *)get_zeroed_page(GFP_KERNEL);
	if (!cpu->core || !cpu->perfs)
		return -ENOMEM;
	perfctr_core_vcpu_init(cpu->core, number, cpu->perfs);
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
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		kfree(perfctr_cpus[cpu].core);
		free_page((unsigned long)perfctr_cpus[cpu].perfs);
	}
	kfree(perfctr_cpus);
}
