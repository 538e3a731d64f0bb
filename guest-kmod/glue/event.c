/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * perf's events on this CPU: callbacks of struct pmu.  perf adds an event where
 * its task executes, or where its CPU is, and removes it again; what it counts
 * and where is the core's to decide (src/perf).
 */

#include <linux/bitops.h>
#include <linux/irq_work.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/sched/clock.h>
#include <linux/sched/task_stack.h>
#include <asm/irq_regs.h>
#include <asm/local64.h>

#include "perfctr.h"

/* By the core's number of the event. */
static DEFINE_PER_CPU(struct perf_event *[PERFCTR_MAX_COUNTERS],
		      perfctr_events);

/* perf's time of an event that is here: as perf has booked it, or now. */
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
 * perf takes an event that is here for one that runs, so the time in which it
 * does not count is taken back.  An event that does not count from now on has
 * counted until now, or never since perf added it.
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
	/* perf holds locks here in which no signal may be sent. */
	if (perfctr_core_events_enable(perfctr_this_vcpu(),
				       perfctr_core_current()))
		irq_work_queue(this_cpu_ptr(&perfctr_cpus.tell));
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
 * The kernel where it had interrupts disabled, as one of perf's own PMUs gives
 * it that has no registers: perf finds the callers that are still there from
 * the stack pointer.
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

/* The registers of the thread where its event has overflowed. */
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

/* As perf does for PMUs of its own; it exports none of this. */
static void perfctr_event_sample(struct perf_event *event, struct pt_regs *regs,
				 u64 periods)
{
	const struct perf_event *owner = event->parent ?: event;
	struct perf_sample_data data;
	int limit = atomic_read(&event->event_limit);

	event->hw.last_period = event->hw.sample_period * periods;
	perf_sample_data_init(&data, 0, event->hw.last_period);
	if (!perfctr_event_wants(event, &data, regs))
		return;
	event->pending_kill = POLL_IN;
	if (limit && atomic_dec_and_test(&event->event_limit)) {
		event->pending_kill = POLL_HUP;
		perfctr_event_disable(event);
		perfctr_event_halt(event);
	}
	event->overflow_handler(event, &data, regs);
	/* Who asked for a signal asked for those of inherited events too. */
	if (owner->fasync && event->pending_kill) {
		event->pending_wakeup = 1;
		perfctr_event_wake(event);
	}
}

/* An event has overflowed: by the interrupt at these registers, if any. */
static void perfctr_event_tell(struct perf_event *event, struct pt_regs *now)
{
	struct pt_regs at, *regs = perfctr_event_regs(event, now, &at);
	u64 periods = perfctr_core_event_next_period(perfctr_this_vcpu(),
						     event->hw.idx);

	if (regs && periods)
		perfctr_event_sample(event, regs, periods);
}

/* The progress since the last time is perf's from now on. */
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

/* An overflow that no interrupt has told of yet is told here. */
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
		/* perf holds locks here, and its work waits for this one. */
		irq_work_queue(this_cpu_ptr(&perfctr_cpus.tell));
	}
	event->hw.state |= PERF_HES_UPTODATE;
}

static bool perfctr_event_is_wide(const struct perf_event *event)
{
	return !(event->attach_state & PERF_ATTACH_TASK);
}

/*
 * The vCPU may have lost its page: by a call from another CPU, by sleep, or by a
 * restoration.  Its events go on in perf's page if they can; otherwise perf is
 * told that they do not count.
 */
void perfctr_events_page_changed(void)
{
	perfctr_core_events_show(perfctr_this_vcpu());
	perfctr_events_settle(true);
}

/* As it was opened. */
struct perfctr_event_config perfctr_event_config(struct perf_event *event)
{
	return (struct perfctr_event_config){
		.general = event->hw.config,
		.fixed = event->hw.config_base,
		.slots = event->hw.event_base,
		.samples = is_sampling_event(event),
	};
}

/* Where no page is registered in which it may be counted, perf's is. */
int perfctr_event_add(struct perf_event *event, int flags)
{
	struct perfctr_cpu *cpu = this_cpu_ptr(&perfctr_cpus);
	struct perfctr_event_config config = perfctr_event_config(event);
	int index;

	index = perfctr_core_event_add(cpu->core, &config,
				       perfctr_core_current(),
				       perfctr_event_is_wide(event));
	if (index < 0)
		return index;
	cpu->events++;
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
}

/* The interrupt came: of an overflow, or since the host has let, or forbids. */
void perfctr_events_overflow(void)
{
	const struct perfctr_cpu *cpu = this_cpu_ptr(&perfctr_cpus);
	struct pt_regs *regs = get_irq_regs();
	struct perf_event *event;
	unsigned long overflowed;
	unsigned int index;

	/* Threads that sample themselves shall not pay for others. */
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
	 * Whoever waits for these samples is woken and signalled now.  perf would
	 * have the CPU interrupt itself for that, since PMUs of its own sample in
	 * NMIs; in a guest that takes a hypercall or exits.
	 */
	if (overflowed && !perfctr_platform->interrupts_by_work)
		irq_work_run();
}
