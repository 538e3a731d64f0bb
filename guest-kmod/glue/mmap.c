/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The mapping: the thread's page, then every vCPU's, read-only; or its ring. */

#include <linux/capability.h>
#include <linux/mm.h>

#include "perfctr.h"

/*
 * Not counted as memory of the process, and no reference to the page can be
 * taken from the mapping: when that ends nobody reads the page any more.
 */
static vm_fault_t perfctr_insert(struct vm_area_struct *vma, unsigned int index,
				 void *page)
{
	return vmf_insert_pfn(vma, vma->vm_start + index * PAGE_SIZE,
			      page_to_pfn(virt_to_page(page)));
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

/* A descriptor that was passed on does not show what others of its user do. */
static bool perfctr_may_look(const struct perfctr_thread *thread)
{
	return thread->user->observer.uid == perfctr_euid(current) ||
	       capable(CAP_SYS_PTRACE);
}

/* The mapping keeps the file open, and that keeps the pages. */
int perfctr_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct perfctr_thread *thread = READ_ONCE(file->private_data);
	vm_fault_t fault;
	unsigned int cpu;

	if (!thread)
		return -EINVAL;
	if (vma->vm_pgoff == PERFCTR_RING_FIRST_PAGE)
		return perfctr_ring_mmap(thread, vma);
	if (!perfctr_may_map(vma) || !perfctr_may_look(thread))
		return -EPERM;
	perfctr_vm_flags_mod(
		vma, VM_PFNMAP | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
		VM_MAYWRITE | VM_MAYEXEC);
	fault = perfctr_insert(vma, 0, thread->page);
	for (cpu = 0; cpu < nr_cpu_ids && fault == VM_FAULT_NOPAGE; cpu++)
		fault = perfctr_insert(vma, 1 + cpu, thread->user->page[cpu]);
	if (fault != VM_FAULT_NOPAGE)
		return -ENOMEM;
	vma->vm_ops = &perfctr_vm_ops;
	perfctr_vm_open(vma);
	return 0;
}
