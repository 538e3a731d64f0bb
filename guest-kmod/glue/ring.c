/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A thread's ring: its memory, and the records that are written into it.  Where
 * they go is the core's to decide (src/ring.rs).
 */

#include <linux/capability.h>
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/ptrace.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include <asm/ptrace.h>

#include "perfctr.h"

struct perfctr_ring {
	u32 pages;
	u32 callers;
	struct perfctr_user *user;
	void *page[];
};

/* Memory that cannot be swapped, within RLIMIT_MEMLOCK for each user. */
static int perfctr_ring_charge(struct perfctr_user *user, u32 pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	if (atomic_add_return(pages, &user->ring_pages) <= limit ||
	    capable(CAP_IPC_LOCK))
		return 0;
	atomic_sub(pages, &user->ring_pages);
	return -ENOSPC;
}

/* Nobody writes into it any more; what is mapped stays until it is unmapped. */
void perfctr_ring_free(struct perfctr_ring *ring)
{
	u32 i;

	if (!ring)
		return;
	for (i = 0; i < ring->pages; i++)
		free_page((unsigned long)ring->page[i]);
	atomic_sub(ring->pages, &ring->user->ring_pages);
	kfree(ring);
}

static struct perfctr_ring *
perfctr_ring_alloc(struct perfctr_user *user,
		   const struct perfctr_ring_request *request)
{
	struct perfctr_ring *ring;
	int err;
	u32 i;

	err = perfctr_ring_charge(user, request->pages);
	if (err)
		return ERR_PTR(err);
	ring = kzalloc(struct_size(ring, page, request->pages),
		       GFP_KERNEL_ACCOUNT);
	if (!ring) {
		atomic_sub(request->pages, &user->ring_pages);
		return ERR_PTR(-ENOMEM);
	}
	ring->pages = request->pages;
	ring->callers = request->callers;
	ring->user = user;
	for (i = 0; i < ring->pages; i++) {
		ring->page[i] = (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
		if (!ring->page[i]) {
			perfctr_ring_free(ring);
			return ERR_PTR(-ENOMEM);
		}
	}
	return ring;
}

/* The thread itself, which is not interrupted by its own overflows here. */
static int perfctr_ring_install(struct perfctr_thread *thread,
				struct perfctr_ring *ring,
				const struct perfctr_ring_request *request)
{
	unsigned long flags;
	int err;

	local_irq_save(flags);
	err = perfctr_core_ring_begin(perfctr_core_of(thread), request);
	if (!err)
		smp_store_release(&thread->ring, ring);
	local_irq_restore(flags);
	return err;
}

int perfctr_ring_begin(struct perfctr_thread *thread,
		       const struct perfctr_ring_request *request)
{
	struct task_struct *owner = READ_ONCE(thread->task);
	struct perfctr_ring *ring;
	int err = perfctr_core_ring_check(request);

	if (err)
		return err;
	if (owner != current)
		return owner ? -EPERM : -ESRCH;
	ring = perfctr_ring_alloc(thread->user, request);
	if (IS_ERR(ring))
		return PTR_ERR(ring);
	err = perfctr_ring_install(thread, ring, request);
	if (err)
		perfctr_ring_free(ring);
	return err;
}

int perfctr_ring_take(struct perfctr_thread *thread, u64 taken)
{
	int err;

	mutex_lock(&thread->lock);
	err = perfctr_core_ring_take(perfctr_core_of(thread), taken);
	mutex_unlock(&thread->lock);
	return err;
}

/* What a function that keeps a frame pointer has on its stack there. */
struct perfctr_frame {
	unsigned long caller;
	unsigned long address;
};

/*
 * The addresses that the thread will return to, for what is in memory; stacks
 * grow down, so a chain that does not go up has ended.  Any value may be there.
 */
static u32 perfctr_callers(const struct pt_regs *regs, u64 *callers, u32 most)
{
	unsigned long frame = regs->bp, next;
	const struct perfctr_frame __user *at;
	u32 found = 0;

	if (!most || !frame || !current->mm || !user_64bit_mode(regs))
		return 0;
	pagefault_disable();
	while (found < most) {
		at = (const void __user *)frame;
		if (!access_ok(at, sizeof(*at)) ||
		    __get_user(next, &at->caller) ||
		    __get_user(callers[found], &at->address))
			break;
		found++;
		if (next <= frame)
			break;
		frame = next;
	}
	pagefault_enable();
	return found;
}

static void perfctr_ring_write(struct perfctr_thread *thread, u32 counter)
{
	const struct pt_regs *regs = task_pt_regs(current);
	struct perfctr_ring *ring = thread->ring;
	struct perfctr_ring_place place;
	struct perfctr_ring_record *record;

	if (!perfctr_core_ring_place(perfctr_core_of(thread), counter, &place))
		return;
	record = ring->page[place.offset >> PAGE_SHIFT] +
		 offset_in_page(place.offset);
	record->ip = regs->ip;
	record->count = place.count;
	record->tsc = place.tsc;
	record->counter = counter;
	record->callers =
		perfctr_callers(regs, (u64 *)(record + 1), ring->callers);
	perfctr_core_ring_wrote(perfctr_core_of(thread));
}

/*
 * The calling thread's counters have overflowed, with interrupts disabled and
 * no lock that waking needs: one bit for each.
 */
void perfctr_ring_record(struct perfctr_thread *thread, u32 counters)
{
	unsigned long left = counters;
	u32 counter;

	for_each_set_bit(counter, &left, 32)
		perfctr_ring_write(thread, counter);
	if (wq_has_sleeper(&thread->wait) &&
	    perfctr_core_ring_is_ready(perfctr_core_of(thread)))
		wake_up_poll(&thread->wait, EPOLLIN | EPOLLRDNORM);
}

__poll_t perfctr_poll(struct file *file, struct poll_table_struct *table)
{
	struct perfctr_thread *thread = READ_ONCE(file->private_data);
	__poll_t events = 0;

	if (!thread)
		return EPOLLERR;
	poll_wait(file, &thread->wait, table);
	/* Either this sees the record, or its writer sees this. */
	smp_mb();
	if (perfctr_core_ring_is_ready(perfctr_core_of(thread)))
		events |= EPOLLIN | EPOLLRDNORM;
	if (!smp_load_acquire(&thread->task))
		events |= EPOLLHUP;
	return events;
}

/* All of it, read-only; the mapping keeps the file open, and that the pages. */
int perfctr_ring_mmap(struct perfctr_thread *thread, struct vm_area_struct *vma)
{
	struct perfctr_ring *ring = smp_load_acquire(&thread->ring);
	int err = 0;
	u32 i;

	if (!ring)
		return -ENXIO;
	if (vma_pages(vma) != ring->pages || !(vma->vm_flags & VM_MAYSHARE) ||
	    vma->vm_flags & (VM_WRITE | VM_EXEC))
		return -EPERM;
	perfctr_vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
			     VM_MAYWRITE | VM_MAYEXEC);
	for (i = 0; i < ring->pages && !err; i++)
		err = vm_insert_page(vma, vma->vm_start + i * PAGE_SIZE,
				     virt_to_page(ring->page[i]));
	return err;
}
