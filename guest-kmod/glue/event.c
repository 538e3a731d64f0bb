/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * perf's events on this CPU: the callbacks of struct pmu. perf adds an event on
 * the CPU on which the event's task executes, or on the event's own CPU, and
 * removes it again. The core decides which counter counts it (src/perf).
 */

#include <linux/bitops.h>
#include <linux/percpu.h>
#include <linux/sched/clock.h>
#include <linux/sched/task_stack.h>
#include <asm/irq_regs.h>
#include <asm/local64.h>

#include "perfctr.h"

/* The index is the core's number of the event. */
static DEFINE_PER_CPU(struct perf_event *[PERFCTR_MAX_COUNTERS],
		      perfctr_events);

/*
 * Returns the event's time by perf's clock: the present one if is_now is true,
 * and otherwise the one in perf's books.
 */
static u64 perfctr_event_time(const struct perf_event *event, bool is_now)
{
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
	return is_now ? time + (local_clock() - booked) : time;
}

/*
 * perf believes that each event on this CPU counts. So the time in which an
 * event did not count is subtracted from perf's time. has_counted says whether
 * an event that stops counting has counted until now. If not, it has not
 * counted since perf added it.
 */
static void perfctr_events_settle(bool has_counted)
{
	struct perfctr_core_vcpu *vcpu = perfctr_this_vcpu();
	struct perf_event *event;
	unsigned int index;
	u64 now;

	if (likely(!perfctr_core_events_unsettled(vcpu)))
		return;
	for (index = 0; index < ARRAY_SIZE(perfctr_events); index++) {
		event = *this_cpu_ptr(&perfctr_events[index]);
		if (!event)
			continue;
		now = perfctr_event_time(event, true);
		event->total_time_running -= perfctr_core_event_settle(
			vcpu, index, has_counted ? now : event->tstamp, now);
	}
}

static void perfctr_events_go_on(bool has_counted)
{
	/*
	 * perf holds locks now, so that no signal can be sent before they are
	 * free.
	 */
	if (perfctr_core_events_enable(perfctr_this_vcpu(),
				       perfctr_core_of_task(current)))
		irq_work_queue(this_cpu_ptr(&perfctr_cpus.report));
	perfctr_events_settle(has_counted);
}

void perfctr_pmu_enable(struct pmu *unused)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_events_show(perfctr_this_vcpu());
	perfctr_events_go_on(false);
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
 * Makes registers for a place in the kernel where interrupts were disabled. The
 * hypervisor gives no others. From the stack pointer perf finds those callers
 * that are still on the stack.
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

/* Returns the registers that the thread had when its event overflowed. */
static struct pt_regs *perfctr_event_regs(struct perf_event *event,
					  struct pt_regs *now,
					  struct pt_regs *at)
{
	struct perfctr_hv_place place = { .mode = PERFCTR_PLACE_NONE };

	if (now) {
		place.mode = user_mode(now) ? PERFCTR_PLACE_USER :
					      PERFCTR_PLACE_KERNEL;
		place.ip = now->ip;
		place.sp = now->sp;
	}
	switch (perfctr_core_event_registers(perfctr_this_vcpu(), event->hw.idx,
					     &place)) {
	case PERFCTR_REGISTERS_INTERRUPTED:
		return now;
	case PERFCTR_REGISTERS_PLACE:
		return perfctr_kernel_regs(&place, at);
	default:
		return current->flags & PF_KTHREAD ? NULL :
						     task_pt_regs(current);
	}
}

static void perfctr_event_halt(struct perf_event *event)
{
	if (event->hw.state & PERF_HES_STOPPED)
		return;
	perfctr_core_event_stop(perfctr_this_vcpu(), event->hw.idx);
	event->hw.state |= PERF_HES_STOPPED;
}

/* The core has names of its own for what is in perf's stack of branches. */
static_assert(sizeof(struct perfctr_branch_stack) ==
	      sizeof(struct perf_branch_stack) +
		      PERFCTR_BRANCHES_MAX * sizeof(struct perf_branch_entry));
/* The branches of one sample, which perf copies before the next one. */
static DEFINE_PER_CPU(struct perfctr_branch_stack, perfctr_branches);

/*
 * Does what perf does for its own PMUs, because perf exports no function for
 * it.
 */
static void perfctr_event_sample(struct perf_event *event, struct pt_regs *regs,
				 u64 periods)
{
	const struct perf_event *owner = event->parent ?: event;
	struct perf_sample_data data;
	int limit = atomic_read(&event->event_limit);

	event->hw.last_period = event->hw.sample_period * periods;
	perf_sample_data_init(&data, 0, event->hw.last_period);
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
		perfctr_event_halt(event);
	}
	event->overflow_handler(event, &data, regs);
	/*
	 * A signal that was asked for an event is also sent for the events that
	 * were inherited from it.
	 */
	if (owner->fasync && event->pending_kill) {
		event->pending_wakeup = 1;
		perfctr_event_wake(event);
	}
}

/*
 * Reports the overflow of an event. `now` has the registers of the interrupt,
 * or is NULL if there was no interrupt.
 */
static void perfctr_event_tell(struct perf_event *event, struct pt_regs *now)
{
	struct pt_regs at, *regs = perfctr_event_regs(event, now, &at);
	u64 periods = perfctr_core_event_next_period(perfctr_this_vcpu(),
						     event->hw.idx);

	if (regs && periods)
		perfctr_event_sample(event, regs, periods);
}

/*
 * Adds to perf's numbers what the event has counted since this was called last.
 */
void perfctr_event_read(struct perf_event *event)
{
	struct perfctr_progress progress;
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_event_progress(perfctr_this_vcpu(), event->hw.idx,
				    perfctr_event_time(event, false),
				    &progress);
	local64_add(progress.count, &event->count);
	event->total_time_running -= progress.stalled;
	if (is_sampling_event(event))
		local64_set(&event->hw.period_left, progress.left);
	perf_event_update_userpage(event);
	local_irq_restore(flags);
}

void perfctr_event_start(struct perf_event *event, int flags)
{
	event->hw.state = 0;
	perfctr_core_event_start(perfctr_this_vcpu(), event->hw.idx,
				 event->hw.sample_period,
				 local64_read(&event->hw.period_left));
}

/*
 * If the event has overflowed and the interrupt has not come yet, the overflow
 * is reported here.
 */
void perfctr_event_stop(struct perf_event *event, int flags)
{
	perfctr_event_halt(event);
	if (!(flags & PERF_EF_UPDATE) || event->hw.state & PERF_HES_UPTODATE)
		return;
	perfctr_event_read(event);
	if (is_sampling_event(event) &&
	    local64_read(&event->hw.period_left) <= 0) {
		perfctr_event_tell(event, NULL);
		perfctr_event_read(event);
		/*
		 * perf holds locks now. Its work for this event is done
		 * together with this one.
		 */
		irq_work_queue(this_cpu_ptr(&perfctr_cpus.report));
	}
	event->hw.state |= PERF_HES_UPTODATE;
}

static bool perfctr_event_is_wide(const struct perf_event *event)
{
	return !(event->attach_state & PERF_ATTACH_TASK);
}

/*
 * The vCPU may have lost its page, because another CPU has called this one, or
 * because the machine slept or was restored. If possible its events go on in
 * perf's page. Otherwise perf's time of them stands still.
 */
void perfctr_events_page_changed(void)
{
	perfctr_core_events_show(perfctr_this_vcpu());
	perfctr_events_settle(true);
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
	};
}

/*
 * If the registered page may not show the event, the core registers perf's
 * page.
 */
int perfctr_event_add(struct perf_event *event, int flags)
{
	struct perfctr_cpu *cpu = this_cpu_ptr(&perfctr_cpus);
	struct perfctr_event_config config = perfctr_event_config(event);
	int index;

	index = perfctr_core_event_add(cpu->core, &config,
				       perfctr_core_of_task(current),
				       perfctr_event_is_wide(event));
	if (index < 0)
		return index;
	cpu->events++;
	cpu->recorded_events += has_branch_stack(event);
	event->hw.idx = index;
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	*this_cpu_ptr(&perfctr_events[index]) = event;
	if (flags & PERF_EF_START)
		perfctr_event_start(event, PERF_EF_RELOAD);
	return 0;
}

void perfctr_event_remove(struct perf_event *event, int flags)
{
	perfctr_event_stop(event, PERF_EF_UPDATE);
	event->total_time_running -= perfctr_core_event_remove(
		perfctr_this_vcpu(), event->hw.idx,
		perfctr_event_time(event, false), perfctr_event_is_wide(event));
	*this_cpu_ptr(&perfctr_events[event->hw.idx]) = NULL;
	event->hw.idx = -1;
	this_cpu_dec(perfctr_cpus.events);
	this_cpu_sub(perfctr_cpus.recorded_events, has_branch_stack(event));
}

/*
 * Handles the interrupt. It comes after an overflow, and after the host has
 * allowed or forbidden the domain to count.
 */
void perfctr_events_overflow(void)
{
	const struct perfctr_cpu *cpu = this_cpu_ptr(&perfctr_cpus);
	struct pt_regs *regs = get_irq_regs();
	struct perf_event *event;
	unsigned long overflowed;
	unsigned int index;

	/*
	 * Without events there is nothing to do, so that threads that sample
	 * themselves do not pay for perf.
	 */
	if (!cpu->events)
		return;
	overflowed = perfctr_core_events_overflowed(cpu->core);
	for_each_set_bit(index, &overflowed, ARRAY_SIZE(perfctr_events))
	{
		event = *this_cpu_ptr(&perfctr_events[index]);
		perfctr_event_read(event);
		perfctr_event_tell(event, regs);
	}
	perfctr_events_go_on(true);
	/*
	 * Those who wait for these samples are woken and signalled now.
	 * Otherwise perf would have the CPU interrupt itself for it, as it must
	 * after an NMI. In a guest that takes a hypercall, or exits.
	 */
	if (overflowed && !perfctr_platform->interrupts_by_work)
		irq_work_run();
}
