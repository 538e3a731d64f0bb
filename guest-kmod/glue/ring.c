/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A thread's ring: its memory, and the records that are written to it. The core
 * decides where a record goes (src/ring.rs).
 */

#include <linux/gfp.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <asm/ptrace.h>

#include "perfctr.h"

struct perfctr_ring {
	/*
	 * These credentials keep the user who is charged for the memory,
	 * because not every kernel exports free_uid().
	 */
	const struct cred *owner;
	u32 pages;
	struct page *page[];
};

/*
 * Nobody writes to the ring any more. Pages that are mapped stay until they are
 * unmapped. The ring's memory is not a virtual mapping, since this function is
 * also called where nothing may sleep.
 */
void perfctr_ring_free(struct perfctr_ring *ring)
{
	u32 i;

	if (!ring)
		return;
	for (i = 0; i < ring->pages && ring->page[i]; i++)
		__free_page(ring->page[i]);
	atomic_long_sub(ring->pages, &ring->owner->user->locked_vm);
	put_cred(ring->owner);
	kfree(ring);
}

/*
 * The thread itself calls this, so none of its overflows comes meanwhile. The
 * ring's memory cannot be swapped out, so it is charged to the thread's user.
 */
int perfctr_ring_begin(struct perfctr_thread *thread,
		       const struct perfctr_ring_request *request)
{
	unsigned long flags, limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct perfctr_ring *ring = kzalloc(
		struct_size(ring, page, request->pages), GFP_KERNEL_ACCOUNT);
	u32 i;
	int err;

	if (!ring)
		return -ENOMEM;
	ring->owner = get_current_cred();
	ring->pages = request->pages;
	err = perfctr_core_may_lock(
		atomic_long_add_return(ring->pages,
				       &ring->owner->user->locked_vm),
		limit);
	for (i = 0; i < ring->pages && !err; i++) {
		ring->page[i] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		err = ring->page[i] ? 0 : -ENOMEM;
	}
	local_irq_save(flags);
	if (!err)
		err = perfctr_core_ring_begin(perfctr_core_of(thread), request);
	if (!err)
		smp_store_release(&thread->ring, ring);
	local_irq_restore(flags);
	if (err)
		perfctr_ring_free(ring);
	return err;
}

/* A thread that ends has lost its memory, and uses another address space. */
bool perfctr_glue_read_frame(u64 address, struct perfctr_frame *frame)
{
	return current->mm &&
	       !copy_from_user_nofault(frame, (const void __user *)address,
				       sizeof(*frame));
}

void perfctr_glue_ring_write(const void *counters,
			     const struct perfctr_ring_place *place)
{
	const struct perfctr_thread *thread =
		container_of(counters, struct perfctr_thread, core);
	struct pt_regs *regs = task_pt_regs(current);
	struct perfctr_ring_record *record;

	record = page_address(thread->ring->page[place->offset >> PAGE_SHIFT]) +
		 offset_in_page(place->offset);
	record->ip = regs->ip;
	record->count = place->count;
	record->tsc = place->tsc;
	record->counter = place->counter;
	/* Frame pointers of 32-bit programs are not followed. */
	record->callers =
		perfctr_core_ring_callers(user_64bit_mode(regs) ? regs->bp : 0,
					  (u64 *)(record + 1), place->callers);
}

#ifndef CONFIG_PREEMPT_RT
void perfctr_glue_ring_wake(const void *counters)
{
	struct perfctr_thread *thread =
		container_of(counters, struct perfctr_thread, core);

	if (wq_has_sleeper(&thread->wait))
		wake_up_poll(&thread->wait, EPOLLIN | EPOLLRDNORM);
}
#endif

__poll_t perfctr_poll(struct file *file, struct poll_table_struct *table)
{
	struct perfctr_thread *thread = READ_ONCE(file->private_data);
	__poll_t events = 0;

	if (!thread)
		return EPOLLERR;
	poll_wait(file, &thread->wait, table);
	/*
	 * Either this sees the new record, or the writer of the record sees
	 * this waiter.
	 */
	smp_mb();
	if (perfctr_core_ring_is_ready(perfctr_core_of(thread)))
		events |= EPOLLIN | EPOLLRDNORM;
	if (!smp_load_acquire(&thread->task))
		events |= EPOLLHUP;
	return events;
}

/* Returns the ring's number of pages, or 0 without a ring. */
u32 perfctr_ring_pages(const struct perfctr_thread *thread)
{
	const struct perfctr_ring *ring = smp_load_acquire(&thread->ring);

	return ring ? ring->pages : 0;
}

/* The caller knows that there is a ring, which then stays. */
int perfctr_ring_mmap(struct perfctr_thread *thread, struct vm_area_struct *vma)
{
	return vm_map_pages_zero(vma, thread->ring->page, thread->ring->pages);
}
