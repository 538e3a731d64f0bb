/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The mapping: the thread's page, then every vCPU's, read-only; or its ring. */

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

static int perfctr_map_counters(struct perfctr_thread *thread,
				struct vm_area_struct *vma)
{
	vm_fault_t fault;
	unsigned int cpu;

	perfctr_vm_flags_mod(vma, VM_PFNMAP, 0);
	fault = perfctr_insert(vma, 0, thread->page);
	for (cpu = 0; cpu < nr_cpu_ids && fault == VM_FAULT_NOPAGE; cpu++)
		fault = perfctr_insert(vma, 1 + cpu, thread->user->page[cpu]);
	if (fault != VM_FAULT_NOPAGE)
		return -ENOMEM;
	vma->vm_ops = &perfctr_vm_ops;
	perfctr_vm_open(vma);
	return 0;
}

/*
 * The mapping keeps the file open, and that keeps the pages.  VM_SHARED is
 * cleared for descriptors that cannot write, while VM_MAYSHARE stays.
 */
int perfctr_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct perfctr_thread *thread = READ_ONCE(file->private_data);
	struct perfctr_mapping wanted = {
		.first_page = vma->vm_pgoff,
		.pages = vma_pages(vma),
		.is_shared = vma->vm_flags & VM_MAYSHARE,
		.may_change = vma->vm_flags & (VM_WRITE | VM_EXEC),
		.uid = perfctr_euid(current),
	};
	int is_ring;

	if (!thread)
		return -EINVAL;
	is_ring = perfctr_core_may_map(&wanted, nr_cpu_ids,
				       perfctr_ring_pages(thread),
				       &thread->user->observer);
	if (is_ring < 0)
		return is_ring;
	perfctr_vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
			     VM_MAYWRITE | VM_MAYEXEC);
	return is_ring ? perfctr_ring_mmap(thread, vma) :
			 perfctr_map_counters(thread, vma);
}
