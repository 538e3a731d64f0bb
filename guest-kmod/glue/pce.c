/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * CR4.PCE, where it is the kernel's own: processes may execute RDPMC while they
 * have pages mapped, by the count of such mappings that the kernel looks at
 * whenever it changes the address space.  A paravirtualised kernel has its CR4
 * from the hypervisor, which knows of the vCPU's page.
 */

#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/smp.h>

#include "perfctr.h"

/* On each CPU that may execute the process: its threads, or not any more. */
static void perfctr_pce_here(void *data)
{
	struct mm_struct *mm = data;

	if (current->active_mm != mm)
		return;
	perfctr_set_cr4_pce(atomic_read(&mm->context.perf_rdpmc_allowed));
}

static void perfctr_pce_changed(struct mm_struct *mm)
{
	on_each_cpu_mask(mm_cpumask(mm), perfctr_pce_here, mm, true);
}

void perfctr_pce_allow(struct mm_struct *mm)
{
	if (!perfctr_platform->owns_cr4())
		return;
	if (atomic_inc_return(&mm->context.perf_rdpmc_allowed) == 1)
		perfctr_pce_changed(mm);
}

void perfctr_pce_forbid(struct mm_struct *mm)
{
	if (!perfctr_platform->owns_cr4())
		return;
	if (atomic_dec_and_test(&mm->context.perf_rdpmc_allowed))
		perfctr_pce_changed(mm);
}

/*
 * A probe: a child's address space begins as a copy of this count, but without
 * mappings.  Where the hypervisor owns CR4 the count is always 0.
 */
void perfctr_pce_fork(void *unused, struct task_struct *parent,
		      struct task_struct *child)
{
	if (child->mm && child->mm != parent->mm)
		atomic_set(&child->mm->context.perf_rdpmc_allowed, 0);
}
