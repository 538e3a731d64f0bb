/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The mapping: the thread's page, then every vCPU's, read-only; or its ring. */

#include <linux/mm.h>

#include "perfctr.h"

static int perfctr_insert(struct vm_area_struct *vma, unsigned int index,
			  void *page)
{
	return vm_insert_page(vma, vma->vm_start + index * PAGE_SIZE,
			      virt_to_page(page));
}

/* A part of a mapping that was cut is a mapping. */
static void perfctr_vm_open(struct vm_area_struct *vma)
{
	perfctr_pce_allow(vma->vm_mm);
}

static void perfctr_vm_close(struct vm_area_struct *vma)
{
	perfctr_pce_forbid(vma->vm_mm);
}

static const struct vm_operations_struct perfctr_vm_ops = {
	.open = perfctr_vm_open,
	.close = perfctr_vm_close,
};

/* VM_SHARED is cleared for descriptors that cannot write; VM_MAYSHARE stays. */
static bool perfctr_may_map(struct vm_area_struct *vma)
{
	return vma->vm_pgoff == 0 && vma_pages(vma) == 1 + nr_cpu_ids &&
	       vma->vm_flags & VM_MAYSHARE &&
	       !(vma->vm_flags & (VM_WRITE | VM_EXEC));
}

/* The mapping keeps the file open, and that keeps the pages. */
int perfctr_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct perfctr_thread *thread = READ_ONCE(file->private_data);
	unsigned int cpu;
	int err;

	if (!thread)
		return -EINVAL;
	if (vma->vm_pgoff == PERFCTR_RING_FIRST_PAGE)
		return perfctr_ring_mmap(thread, vma);
	if (!perfctr_may_map(vma))
		return -EPERM;
	perfctr_vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
			     VM_MAYWRITE | VM_MAYEXEC);
	err = perfctr_insert(vma, 0, thread->page);
	for (cpu = 0; cpu < nr_cpu_ids && !err; cpu++)
		err = perfctr_insert(vma, 1 + cpu, thread->user->page[cpu]);
	if (err)
		return err;
	vma->vm_ops = &perfctr_vm_ops;
	perfctr_vm_open(vma);
	return 0;
}
