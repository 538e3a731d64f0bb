/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * perf's events on this CPU: all with interrupts disabled.  perf adds an event
 * where its task executes, or where its CPU is, and removes it again; what it
 * counts and where is the core's to decide (src/perf).
 */

#include <linux/bitops.h>
#include <linux/cred.h>
#include <linux/irq_work.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/sched/clock.h>
#include <linux/sched/task_stack.h>
#include <asm/irq_regs.h>
#include <asm/local64.h>

#include "perfctr.h"

/* By the core's number of the event. */
static DEFINE_PER_CPU(struct perf_event *[32], perfctr_events);

static void perfctr_tell_here(struct irq_work *unused)
{
	perfctr_tell_current();
}

static DEFINE_PER_CPU(struct irq_work, perfctr_tell_work) =
	IRQ_WORK_INIT_HARD(perfctr_tell_here);

/* perf's time begins at 0. */
#define PERFCTR_NOT_STALLED U64_MAX

/* Since when an event that is here does not count; of perf's time. */
static u64 *perfctr_event_stalled(struct perf_event *event)
{
	return &event->hw.extra_reg.config;
}

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
 * perf takes an event that is here for one that counts.  The time in which the
 * hypervisor lets nothing count is taken back, up to now; what stands still from
 * now on does so since then.
 */
static void perfctr_event_stall(struct perf_event *event, u64 since, u64 now)
{
	u64 *stalled = perfctr_event_stalled(event);
	bool was_stalled = *stalled != PERFCTR_NOT_STALLED;

	if (was_stalled)
		event->total_time_running -= now - *stalled;
	if (!perfctr_core_events_stalled(perfctr_this_vcpu()))
		*stalled = PERFCTR_NOT_STALLED;
	else
		*stalled = was_stalled ? now : since;
}

/* Whether all that is here counts may have changed. */
static void perfctr_events_stall(bool is_now)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[smp_processor_id()];
	bool is_stalled = perfctr_core_events_stalled(cpu->core);
	struct perf_event *event;
	unsigned int index;
	u64 now;

	if (likely(!is_stalled && !cpu->stalled))
		return;
	cpu->stalled = is_stalled;
	for (index = 0; index < ARRAY_SIZE(perfctr_events); index++) {
		event = *this_cpu_ptr(&perfctr_events[index]);
		if (!event)
			continue;
		now = perfctr_event_time(event, true);
		perfctr_event_stall(event, is_now ? now : event->tstamp, now);
	}
}

static void perfctr_events_go_on(void)
{
	/* perf holds locks here in which no signal may be sent. */
	if (perfctr_core_events_enable(perfctr_this_vcpu(),
				       perfctr_core_current()))
		irq_work_queue(this_cpu_ptr(&perfctr_tell_work));
}

/* What perf has added and what does not count has not done so for any time. */
void perfctr_events_enable(void)
{
	perfctr_events_go_on();
	perfctr_events_stall(false);
}

void perfctr_events_disable(void)
{
	perfctr_core_events_disable(perfctr_this_vcpu());
}

static struct pt_regs *perfctr_user_regs(void)
{
	return current->flags & PF_KTHREAD ? NULL : task_pt_regs(current);
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

/*
 * The registers of the thread where its event has overflowed: the hypervisor
 * knows better than where the interrupt was taken.  What counts user mode only
 * did so before the kernel was entered.
 */
static struct pt_regs *perfctr_event_regs(struct perf_event *event,
					  struct pt_regs *now,
					  struct pt_regs *at)
{
	struct perfctr_hv_place place;

	if (event->attr.exclude_kernel)
		return now && user_mode(now) ? now : perfctr_user_regs();
	perfctr_core_event_place(perfctr_this_vcpu(), event->hw.idx, &place);
	if (place.mode == PERFCTR_PLACE_USER)
		return perfctr_user_regs();
	if (place.mode == PERFCTR_PLACE_NONE)
		return now ?: perfctr_user_regs();
	if (now && now->ip == place.ip && now->sp == place.sp)
		return now;
	return perfctr_kernel_regs(&place, at);
}

/* perf's limit of overflows was reached: it disables the event. */
static void perfctr_event_last(struct perf_event *event)
{
	event->pending_kill = POLL_HUP;
	perfctr_event_disable(event);
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
		perfctr_event_last(event);
		perfctr_core_event_stop(perfctr_this_vcpu(), event->hw.idx);
		event->hw.state |= PERF_HES_STOPPED;
	}
	event->overflow_handler(event, &data, regs);
	/* Who asked for a signal asked for those of inherited events too. */
	if (owner->fasync && event->pending_kill) {
		event->pending_wakeup = 1;
		perfctr_event_wake(event);
	}
}

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
	u64 now = perfctr_event_time(event, false);
	struct perfctr_progress progress;
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_event_progress(perfctr_this_vcpu(), event->hw.idx,
				    &progress);
	local64_add(progress.count, &event->count);
	perfctr_event_stall(event, now, now);
	if (is_sampling_event(event))
		local64_set(&event->hw.period_left, progress.left);
	perf_event_update_userpage(event);
	local_irq_restore(flags);
}

/* A period that has begun goes on, unless perf has set another one. */
void perfctr_event_start(struct perf_event *event, int flags)
{
	s64 left = local64_read(&event->hw.period_left);
	s64 period = event->hw.sample_period;

	if (left <= 0 || left > period)
		left = period;
	event->hw.state = 0;
	perfctr_core_event_start(perfctr_this_vcpu(), event->hw.idx, period,
				 left);
}

/* An overflow that no interrupt has told of yet is told here. */
void perfctr_event_stop(struct perf_event *event, int flags)
{
	if (!(event->hw.state & PERF_HES_STOPPED)) {
		perfctr_core_event_stop(perfctr_this_vcpu(), event->hw.idx);
		event->hw.state |= PERF_HES_STOPPED;
	}
	if (!(flags & PERF_EF_UPDATE) || event->hw.state & PERF_HES_UPTODATE)
		return;
	perfctr_event_read(event);
	if (is_sampling_event(event) &&
	    local64_read(&event->hw.period_left) <= 0) {
		perfctr_event_tell(event, NULL);
		perfctr_event_read(event);
	}
	event->hw.state |= PERF_HES_UPTODATE;
}

static bool perfctr_event_is_wide(const struct perf_event *event)
{
	return !(event->attach_state & PERF_ATTACH_TASK);
}

/*
 * A page where the event's counter may show: the thread's user's, or perf's own,
 * which nobody maps.
 */
static void perfctr_event_show(bool is_wide)
{
	struct perfctr_subject subject = perfctr_subject_of(current);

	perfctr_core_show_event(perfctr_this_vcpu(), &subject,
				perfctr_own_observer(current), is_wide);
}

/*
 * The domain was restored, perhaps where it may not count.  Only events of the
 * CPU are here: no thread is.
 */
void perfctr_events_restored(void)
{
	if (perfctr_this_cpu()->events)
		perfctr_event_show(true);
	perfctr_events_stall(true);
}

/* As it was opened. */
struct perfctr_event_config perfctr_event_wanted(struct perf_event *event)
{
	return (struct perfctr_event_config){
		.general = event->hw.config,
		.fixed = event->hw.config_base,
		.slots = event->hw.event_base,
		.samples = is_sampling_event(event),
	};
}

int perfctr_event_add(struct perf_event *event, int flags)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[smp_processor_id()];
	struct perfctr_event_config wanted = perfctr_event_wanted(event);
	bool is_wide = perfctr_event_is_wide(event);
	int index;

	perfctr_event_show(is_wide);
	index = perfctr_core_event_add(cpu->core, &wanted,
				       perfctr_core_current());
	if (index < 0)
		return index;
	cpu->events++;
	if (is_wide)
		perfctr_core_wide_event_comes(cpu->core);
	event->hw.idx = index;
	event->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	*perfctr_event_stalled(event) = PERFCTR_NOT_STALLED;
	*this_cpu_ptr(&perfctr_events[index]) = event;
	if (flags & PERF_EF_START)
		perfctr_event_start(event, PERF_EF_RELOAD);
	return 0;
}

void perfctr_event_remove(struct perf_event *event, int flags)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[smp_processor_id()];
	struct perfctr_subject subject = perfctr_subject_of(current);
	u64 now = perfctr_event_time(event, false);

	perfctr_event_stop(event, PERF_EF_UPDATE);
	perfctr_event_stall(event, now, now);
	perfctr_core_event_remove(cpu->core, event->hw.idx);
	*this_cpu_ptr(&perfctr_events[event->hw.idx]) = NULL;
	event->hw.idx = -1;
	cpu->events--;
	perfctr_core_event_goes(cpu->core, &subject,
				perfctr_event_is_wide(event));
}

/* The interrupt came: of an overflow, or since the host has let, or forbids. */
void perfctr_events_overflow(void)
{
	struct perfctr_cpu *cpu = &perfctr_cpus[smp_processor_id()];
	struct pt_regs *regs = get_irq_regs();
	struct perf_event *event;
	unsigned long overflowed;
	unsigned int index;

	/* Threads that sample themselves shall not pay for others. */
	if (!cpu->events)
		return;
	overflowed = perfctr_core_events_overflowed(cpu->core);
	for_each_set_bit(index, &overflowed, 32)
	{
		event = *this_cpu_ptr(&perfctr_events[index]);
		perfctr_event_read(event);
		perfctr_event_tell(event, regs);
	}
	perfctr_events_go_on();
	perfctr_events_stall(true);
}
