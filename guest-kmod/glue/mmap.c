/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The device's two kinds of mappings. One kind is read-only, and has the
 * thread's page and behind it the page of each vCPU. The other kind is the
 * thread's ring.
 *
 * In a guest whose kernel owns CR4, a process may execute RDPMC while it has a
 * mapping of the first kind. The kernel keeps a count of such mappings for each
 * process, and reads it whenever it changes the address space. In a
 * paravirtualised guest the hypervisor owns CR4, and allows RDPMC to vCPUs with
 * a page.
 */

#include <linux/mm.h>
#include <xen/xen.h>

#include "perfctr.h"

/* The kernel calls this on each CPU that may have the address space. */
static void perfctr_pce_here(void *mm)
{
	if (current->active_mm == mm)
		queue_work_on(smp_processor_id(), system_highpri_wq,
			      this_cpu_ptr(&perfctr_cpus.leave));
}

/*
 * This is called when the first such mapping of a process begins, and when the
 * last one has ended. A process without threads executes nothing any more.
 */
static void perfctr_pce_changed(struct mm_struct *mm)
{
	unsigned int cpu;

	if (!atomic_read(&mm->mm_users))
		return;
	on_each_cpu_mask(mm_cpumask(mm), perfctr_pce_here, mm, true);
	for_each_possible_cpu(cpu)
		flush_work(per_cpu_ptr(&perfctr_cpus.leave, cpu));
}

/* If a mapping is cut in two, each part is a mapping. */
static void perfctr_vm_open(struct vm_area_struct *vma)
{
	if (atomic_inc_return(&vma->vm_mm->context.perf_rdpmc_allowed) == 1)
		perfctr_pce_changed(vma->vm_mm);
}

static void perfctr_vm_close(struct vm_area_struct *vma)
{
	if (atomic_dec_and_test(&vma->vm_mm->context.perf_rdpmc_allowed))
		perfctr_pce_changed(vma->vm_mm);
}

static const struct vm_operations_struct perfctr_vm_ops = {
	.open = perfctr_vm_open,
	.close = perfctr_vm_close,
};

/*
 * A probe of fork. A child's address space begins with a copy of the count, but
 * without the mappings. In a guest whose hypervisor owns CR4 the count is
 * always 0.
 */
void perfctr_pce_fork(void *unused, struct task_struct *parent,
		      struct task_struct *child)
{
	if (child->mm && child->mm != parent->mm)
		atomic_set(&child->mm->context.perf_rdpmc_allowed, 0);
}

/*
 * These pages are not counted as memory of the process. Nobody can take a
 * reference to them from the mapping, so when the mapping ends nobody reads
 * them any more.
 */
static int perfctr_map_counters(struct perfctr_thread *thread,
				struct vm_area_struct *vma)
{
	const void *page;
	unsigned int i;

	perfctr_vm_flags_mod(vma, VM_PFNMAP, 0);
	for (i = 0; i < vma_pages(vma); i++) {
		page = perfctr_core_mapped_page(perfctr_core_of(thread), i);
		if (vmf_insert_pfn(vma, vma->vm_start + i * PAGE_SIZE,
				   page_to_pfn(virt_to_page(page))) !=
		    VM_FAULT_NOPAGE)
			return -ENOMEM;
	}
	if (!xen_pv_domain()) {
		vma->vm_ops = &perfctr_vm_ops;
		perfctr_vm_open(vma);
	}
	return 0;
}

/*
 * The mapping keeps the file open, and the file keeps the pages. This tests
 * VM_MAYSHARE, because the kernel clears VM_SHARED for descriptors that are not
 * open for writing.
 */
int perfctr_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct perfctr_thread *thread = READ_ONCE(file->private_data);
	struct perfctr_mapping wanted = {
		.first_page = vma->vm_pgoff,
		.pages = vma_pages(vma),
		.is_shared = vma->vm_flags & VM_MAYSHARE,
		.may_change = vma->vm_flags & (VM_WRITE | VM_EXEC),
	};
	int is_ring;

	if (!thread)
		return -EINVAL;
	is_ring = perfctr_core_may_map(perfctr_core_of(thread), &wanted,
				       nr_cpu_ids, perfctr_ring_pages(thread));
	if (is_ring < 0)
		return is_ring;
	perfctr_vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
			     VM_MAYWRITE | VM_MAYEXEC);
	return is_ring ? perfctr_ring_mmap(thread, vma) :
			 perfctr_map_counters(thread, vma);
}
