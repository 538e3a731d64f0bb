/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * perf's events on this CPU: the callbacks of struct pmu. perf adds an event on
 * the CPU that executes the event's task, or on the event's own CPU, and
 * removes it again. The core decides which counter counts the event (src/perf).
 */

#include <linux/percpu.h>
#include <linux/sched/clock.h>
#include <linux/sched/task_stack.h>
#include <asm/irq_regs.h>
#include <asm/local64.h>

#include "perfctr.h"

/* The index is the core's number of the event. */
static DEFINE_PER_CPU(struct perf_event *[PERFCTR_MAX_COUNTERS],
		      perfctr_events);

/* Returns a time of the event by perf's clock. */
u64 perfctr_glue_event_time(u32 index, enum perfctr_event_time which)
{
	const struct perf_event *event = *this_cpu_ptr(&perfctr_events[index]);
	const struct perf_event_context *ctx = event->ctx;
	u64 time = PERFCTR_TIME(ctx), booked = PERFCTR_TIME_BOOKED(ctx);
#ifdef CONFIG_CGROUP_PERF
	const struct perf_cgroup_info *info;

	if (event->cgrp) {
		info = this_cpu_ptr(event->cgrp->info);
		time = PERFCTR_TIME(info);
		booked = PERFCTR_TIME_BOOKED(info);
	}
#endif
	if (which == PERFCTR_EVENT_TIME_ADDED)
		return event->tstamp;
	return which == PERFCTR_EVENT_TIME_NOW ?
		       time + (local_clock() - booked) :
		       time;
}

void perfctr_glue_event_progress(u32 index,
				 const struct perfctr_progress *progress)
{
	struct perf_event *event = *this_cpu_ptr(&perfctr_events[index]);

	local64_add(progress->count, &event->count);
	event->total_time_running -= progress->stalled;
	if (is_sampling_event(event))
		local64_set(&event->hw.period_left, progress->left);
	perf_event_update_userpage(event);
}

void perfctr_glue_event_stall(u32 index, u64 stalled)
{
	struct perf_event *event = *this_cpu_ptr(&perfctr_events[index]);

	event->total_time_running -= stalled;
}

/*
 * perf holds locks now, and no signal can be sent before it releases them. This
 * irq_work also makes the CPU run the irq_work by which perf wakes waiters.
 * That one is lazy (see perf.c).
 */
void perfctr_glue_report_later(void)
{
	irq_work_queue(this_cpu_ptr(&perfctr_cpus.report));
}

void perfctr_pmu_enable(struct pmu *unused)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_events_enable(perfctr_this_vcpu(),
				   perfctr_core_of_task(current));
	local_irq_restore(flags);
}

void perfctr_pmu_disable(struct pmu *unused)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_events_disable(perfctr_this_vcpu());
	local_irq_restore(flags);
}

/*
 * Makes the registers of a place in the kernel where interrupts were disabled.
 * The hypervisor gives only the instruction pointer, the stack pointer and the
 * flags. From the stack pointer on, perf finds the callers that are still on
 * the stack.
 */
static struct pt_regs *perfctr_kernel_regs(const struct perfctr_hv_place *place,
					   struct pt_regs *at)
{
	memset(at, 0, sizeof(*at));
	at->ip = place->ip;
	at->sp = place->sp;
	at->flags = place->flags & ~X86_EFLAGS_FIXED;
	at->cs = __KERNEL_CS;
	at->ss = __KERNEL_DS;
	return at;
}

/*
 * Returns the registers that the core has chosen. They are NULL if the core has
 * chosen those of user mode, and a thread of the kernel executes. Precise ones
 * say that their instruction is the very one of the event; all others are those
 * of the thread when it entered the kernel, or are unknown.
 */
static struct pt_regs *perfctr_event_regs(enum perfctr_registers which,
					  const struct perfctr_hv_place *place,
					  struct pt_regs *at)
{
	struct pt_regs *user =
		current->flags & PF_KTHREAD ? NULL : task_pt_regs(current);

	switch (which) {
	case PERFCTR_REGISTERS_INTERRUPTED:
		return get_irq_regs();
	case PERFCTR_REGISTERS_PLACE:
		return perfctr_kernel_regs(place, at);
	case PERFCTR_REGISTERS_PRECISE:
		if (place->mode == PERFCTR_PLACE_KERNEL)
			perfctr_kernel_regs(place, at);
		else if (user)
			*at = *user;
		else
			return NULL;
		at->ip = place->ip;
		at->flags |= PERF_EFLAGS_EXACT;
		return at;
	default:
		return user;
	}
}

/*
 * The core declares perf's structure of branches itself, so this compares the
 * two.
 */
static_assert(sizeof(struct perfctr_branch_stack) ==
	      sizeof(struct perf_branch_stack) +
		      PERFCTR_BRANCHES_MAX * sizeof(struct perf_branch_entry));
/* The branches of one sample, which perf copies before the next one. */
static DEFINE_PER_CPU(struct perfctr_branch_stack, perfctr_branches);

/*
 * Does what perf does for its own PMUs, because perf exports no function for
 * it.
 */
static void perfctr_sample(struct perf_event *event, struct pt_regs *regs,
			   u64 periods)
{
	const struct perf_event *owner = event->parent ?: event;
	struct perf_sample_data data;
	int limit = atomic_read(&event->event_limit);

	perf_sample_data_init(&data, 0,
			      event->hw.last_period +
				      (periods - 1) * event->hw.sample_period);
	event->hw.last_period = event->hw.sample_period;
	if (has_branch_stack(event)) {
		perfctr_core_event_branches(perfctr_this_vcpu(), event->hw.idx,
					    this_cpu_ptr(&perfctr_branches));
		perfctr_sample_has_branches(
			&data, event, (void *)this_cpu_ptr(&perfctr_branches));
	}
	if (!perfctr_event_wants(event, &data, regs))
		return;
	event->pending_kill = POLL_IN;
	if (limit && atomic_dec_and_test(&event->event_limit)) {
		event->pending_kill = POLL_HUP;
		perfctr_event_disable(event);
		perfctr_event_stop(event, 0);
	}
	event->overflow_handler(event, &data, regs);
	/*
	 * If somebody has asked for a signal of an event, events that were
	 * inherited from it send it, too.
	 */
	if (owner->fasync && event->pending_kill) {
		event->pending_wakeup = 1;
		irq_work_queue(perfctr_event_work(event));
	}
}

void perfctr_glue_event_sample(u32 index, enum perfctr_registers registers,
			       const struct perfctr_hv_place *place,
			       u64 periods)
{
	struct pt_regs at, *regs = perfctr_event_regs(registers, place, &at);

	if (regs)
		perfctr_sample(*this_cpu_ptr(&perfctr_events[index]), regs,
			       periods);
}

void perfctr_event_read(struct perf_event *event)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_event_read(perfctr_this_vcpu(), event->hw.idx);
	local_irq_restore(flags);
}

void perfctr_event_start(struct perf_event *event, int flags)
{
	event->hw.state = 0;
	event->hw.last_period = perfctr_core_event_start(
		perfctr_this_vcpu(), event->hw.idx, event->hw.sample_period,
		local64_read(&event->hw.period_left), event->hw.last_period);
}

void perfctr_event_stop(struct perf_event *event, int flags)
{
	event->hw.state = perfctr_core_event_stop(perfctr_this_vcpu(),
						  event->hw.idx,
						  event->hw.state,
						  flags & PERF_EF_UPDATE);
}

static bool perfctr_event_is_wide(const struct perf_event *event)
{
	return !(event->attach_state & PERF_ATTACH_TASK);
}

/* Returns the configuration with which the event was opened. */
struct perfctr_event_config perfctr_event_config(struct perf_event *event)
{
	return (struct perfctr_event_config){
		.general = event->hw.config,
		.fixed = event->hw.config_base,
		.slots = (u32)event->hw.event_base,
		.branches = event->hw.event_base >> 32,
		.samples = is_sampling_event(event),
		.precise = event->attr.precise_ip != 0,
	};
}

/*
 * If the registered page may not show the event, the core registers perf's
 * page.
 */
int perfctr_event_add(struct perf_event *event, int flags)
{
	struct perfctr_event_config config = perfctr_event_config(event);
	int index;

	index = perfctr_core_event_add(perfctr_this_vcpu(), &config,
				       perfctr_core_of_task(current),
				       perfctr_event_is_wide(event));
	if (index < 0)
		return index;
	event->hw.idx = index;
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	*this_cpu_ptr(&perfctr_events[index]) = event;
	if (flags & PERF_EF_START)
		perfctr_event_start(event, PERF_EF_RELOAD);
	return 0;
}

void perfctr_event_remove(struct perf_event *event, int flags)
{
	perfctr_core_event_remove(perfctr_this_vcpu(), event->hw.idx,
				  event->hw.state,
				  perfctr_event_is_wide(event));
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	*this_cpu_ptr(&perfctr_events[event->hw.idx]) = NULL;
	event->hw.idx = -1;
}

/*
 * Handles the interrupt that comes after an overflow, or after the host has
 * allowed or forbidden the domain to count.
 */
static void perfctr_events_overflow(void)
{
	struct pt_regs *regs = get_irq_regs();
	struct perfctr_hv_place place = { .mode = PERFCTR_PLACE_NONE };

	if (regs) {
		place.mode = user_mode(regs) ? PERFCTR_PLACE_USER :
					       PERFCTR_PLACE_KERNEL;
		place.ip = regs->ip;
		place.sp = regs->sp;
	}
	/*
	 * Runs the lazy irq_work by which perf wakes and signals those who wait
	 * for these samples. Otherwise it would wait until the tick. If it were
	 * not lazy, the CPU would interrupt itself for it, which costs a guest
	 * a hypercall or an exit. In guests of KVM this function is itself
	 * called as irq_work: the kernel runs other irq_work after it, and it
	 * must not do so, since it could call itself in this way.
	 */
	if (perfctr_core_events_interrupt(perfctr_this_vcpu(),
					  perfctr_core_of_task(current),
					  &place) &&
	    perfctr_platform != &perfctr_kvm)
		irq_work_run();
}

/*
 * Handles that interrupt for the thread and for perf's events. Threads that
 * sample themselves do not pay for perf, if it has no events.
 */
irqreturn_t perfctr_overflow(int irq, void *unused)
{
	perfctr_core_interrupt(perfctr_core_of_task(current),
			       perfctr_this_vcpu());
	if (this_cpu_read(perfctr_cpus.shown)->has_events)
		perfctr_events_overflow();
	return IRQ_HANDLED;
}
