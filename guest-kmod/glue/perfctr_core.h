/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Generated from guest-kmod/ffi/src/lib.rs by cargo xtask headers. */

#ifndef PERFCTR_CORE_H
#define PERFCTR_CORE_H

#include "perfctr_abi.h"

/*
 * A thread's counters as C holds them.
 */
struct perfctr_core_thread;

/*
 * A vCPU as C holds it.
 */
struct perfctr_core_vcpu;

/*
 * An event that can be counted, and by which counters.
 */
struct perfctr_event_config {
  /*
   * Event select for a general counter.
   */
  uint64_t general;
  /*
   * Event select for a fixed counter.
   */
  uint64_t fixed;
  /*
   * One bit per counter that can count it.
   */
  uint32_t slots;
  /*
   * 1 if it interrupts after a period, else 0.
   */
  uint32_t samples;
};

/*
 * What perf is given of an event.
 */
struct perfctr_progress {
  /*
   * Counted since perf was last given it.
   */
  uint64_t count;
  /*
   * Events to the next overflow, if it samples; below 1 if it has overflowed.
   */
  int64_t left;
};

/*
 * Where the next record of a ring goes, and what it says.
 */
struct perfctr_ring_place {
  /*
   * Unit: bytes from the beginning of the ring.
   */
  uint64_t offset;
  /*
   * What the counter had counted.
   */
  uint64_t count;
  /*
   * What the TSC had.
   */
  uint64_t tsc;
};

extern int perfctr_glue_hypercall(uint32_t op, void *argument, uint32_t length);

/*
 * RDPMC of ECX to RAX and RDX; changes no other register.
 */
extern void perfctr_glue_rdpmc(void);

/*
 * Asks the hypervisor; see handshake.
 */
int perfctr_core_handshake(struct perfctr_hv_query *answer);

/*
 * Asks again; see handshake_again.
 */
int perfctr_core_handshake_again(const struct perfctr_hv_query *before);

/*
 * Bytes of a vCPU object.
 */
size_t perfctr_core_vcpu_bytes(void);

/*
 * Makes a vCPU object of memory, with a page that is not registered.
 */
void perfctr_core_vcpu_init(struct perfctr_core_vcpu *memory,
                            uint32_t number,
                            const struct perfctr_vcpu_page *page);

/*
 * Registers a page of the vCPU, which is frame `gfn`, for `observer` to read; see
 */
int perfctr_core_vcpu_register(const struct perfctr_core_vcpu *vcpu,
                               const struct perfctr_vcpu_page *page,
                               uint64_t gfn,
                               uint32_t observer);

/*
 * No thread may count on the vCPU, for the reason of this negative error number; see
 */
void perfctr_core_vcpu_refuse(const struct perfctr_core_vcpu *vcpu, int error);

/*
 * Takes the vCPU's page back; see Cpu::unregister.
 */
int perfctr_core_vcpu_unregister(const struct perfctr_core_vcpu *vcpu);

/*
 * Stops the vCPU's counters if nobody counts.
 */
void perfctr_core_vcpu_stop_if_idle(const struct perfctr_core_vcpu *vcpu);

/*
 * Whether nobody counts.
 */
bool perfctr_core_is_idle(void);

/*
 * The name of statistic `index`, or null behind the last.
 */
const char *perfctr_core_stat_name(const struct perfctr_core_vcpu *vcpu, uint32_t index);

/*
 * The value of statistic `index` on any vCPU.
 */
uint64_t perfctr_core_stat(const struct perfctr_core_vcpu *vcpu, uint32_t index);

/*
 * See check_create.
 */
int perfctr_core_check_create(const struct perfctr_create *create);

/*
 * Bytes of a thread object.
 */
size_t perfctr_core_thread_bytes(void);

/*
 * Makes a thread object of memory; see ThreadPmu::new.
 */
void perfctr_core_thread_init(struct perfctr_core_thread *memory,
                              const struct perfctr_thread_page *page,
                              uint32_t tid);

/*
 * The thread is switched in; gives a signal, see `pack`.
 */
uint64_t perfctr_core_switch_in(const struct perfctr_core_thread *thread,
                                const struct perfctr_core_vcpu *vcpu);

/*
 * The thread is switched out.
 */
void perfctr_core_switch_out(const struct perfctr_core_thread *thread,
                             const struct perfctr_core_vcpu *vcpu);

/*
 * The thread is switched in, and what that costs is counted.
 */
uint64_t perfctr_core_switch_in_measured(const struct perfctr_core_thread *thread,
                                         const struct perfctr_core_vcpu *vcpu);

/*
 * The thread is switched out, and what that costs is counted.
 */
void perfctr_core_switch_out_measured(const struct perfctr_core_thread *thread,
                                      const struct perfctr_core_vcpu *vcpu);

/*
 * The virtual interrupt of an overflow came while `thread`, if it has counters, executes; see
 */
uint64_t perfctr_core_interrupt(const struct perfctr_core_thread *thread,
                                const struct perfctr_core_vcpu *vcpu);

/*
 * Whether anything is to be counted of the thread; see ThreadPmu::counts.
 */
bool perfctr_core_counts(const struct perfctr_core_thread *thread);

/*
 * A signal could not be sent; see ThreadPmu::signal_lost.
 */
void perfctr_core_signal_lost(const struct perfctr_core_thread *thread,
                              const struct perfctr_core_vcpu *vcpu);

/*
 * `IOC_RESUME`; see ThreadPmu::go_on.  Without a vCPU the thread is asleep and stays so.
 */
int perfctr_core_go_on(const struct perfctr_core_thread *thread,
                       const struct perfctr_core_vcpu *vcpu);

/*
 * What to send the thread after an ioctl; see ThreadPmu::tell and `pack`.
 */
uint64_t perfctr_core_tell(const struct perfctr_core_thread *thread,
                           const struct perfctr_core_vcpu *vcpu);

/*
 * `IOC_CONTROL`; see ThreadPmu::control.  Without a vCPU the thread is asleep and stays so.
 */
int perfctr_core_control(const struct perfctr_core_thread *thread,
                         const struct perfctr_core_vcpu *vcpu,
                         const struct perfctr_hv_query *query,
                         const struct perfctr_control_arg *control);

/*
 * Stops the thread's counters; see ThreadPmu::stop.  Without a vCPU the thread is asleep and
 */
void perfctr_core_stop(const struct perfctr_core_thread *thread,
                       const struct perfctr_core_vcpu *vcpu);

/*
 * The CPU starts to count as a whole, with the counters of `whole`; see Cpu::start_whole.
 */
int perfctr_core_start_whole(const struct perfctr_core_thread *whole,
                             const struct perfctr_core_thread *thread,
                             const struct perfctr_core_vcpu *vcpu,
                             const struct perfctr_hv_query *query,
                             const struct perfctr_control_arg *control);

/*
 * The CPU stops counting as a whole; see Cpu::stop_whole.
 */
void perfctr_core_stop_whole(const struct perfctr_core_thread *whole,
                             const struct perfctr_core_vcpu *vcpu);

/*
 * See check_cpu_read.
 */
int perfctr_core_check_cpu_read(const struct perfctr_cpu_state_arg *state);

/*
 * See check_cpu_control; 1 if it counts anything.
 */
int perfctr_core_check_cpu_control(const struct perfctr_hv_query *query,
                                   const struct perfctr_cpu_state_arg *state);

/*
 * See may_count.
 */
int perfctr_core_may_count(int paranoid,
                           bool perfmon,
                           bool locked_down,
                           const struct perfctr_control_arg *control);

/*
 * See may_count_cpus.
 */
int perfctr_core_may_count_cpus(bool perfmon, bool locked_down);

/*
 * See ends_at_exec.
 */
bool perfctr_core_ends_at_exec(const struct perfctr_control_arg *control, bool guarded);

/*
 * See Admission::thread_begins.
 */
int perfctr_core_thread_begins(bool privileged);

/*
 * See Admission::thread_ends.
 */
void perfctr_core_thread_ends(bool privileged);

/*
 * Threads that have counters.
 */
uint32_t perfctr_core_threads(void);

/*
 * See Admission::cpus_set.
 */
int perfctr_core_cpus_set(uint64_t by);

/*
 * See Admission::cpus_start.
 */
int perfctr_core_cpus_start(uint64_t by);

/*
 * Whether CPUs are this descriptor's.
 */
bool perfctr_core_cpus_owned(uint64_t descriptor);

/*
 * Whether CPUs count.
 */
bool perfctr_core_cpus_count(void);

/*
 * See Admission::cpus_may_stop.
 */
int perfctr_core_cpus_may_stop(uint64_t by);

/*
 * CPUs have stopped.
 */
void perfctr_core_cpus_stopped(void);

/*
 * A descriptor is closed, after its CPUs have stopped.
 */
void perfctr_core_closed(uint64_t descriptor);

/*
 * `IOC_READ` by the thread itself; see ThreadPmu::read.
 */
int perfctr_core_read(const struct perfctr_core_thread *thread,
                      const struct perfctr_core_vcpu *vcpu,
                      struct perfctr_sums *sums);

/*
 * `IOC_READ` by anybody; see published.
 */
int perfctr_core_read_published(const struct perfctr_core_thread *thread,
                                struct perfctr_sums *sums);

/*
 * What an event of perf's needs; see EventConfig::new.
 */
int perfctr_core_event_wanted(const struct perfctr_hv_query *query,
                              uint32_t kind,
                              uint64_t config,
                              uint64_t rings,
                              bool samples,
                              struct perfctr_event_config *out);

/*
 * Whether the events of a group can be counted at once; see fit.
 */
bool perfctr_core_events_fit(const struct perfctr_event_config *group, uint32_t count);

/*
 * An event comes, while `thread` executes if it has counters; gives its number.  See
 */
int perfctr_core_event_add(const struct perfctr_core_vcpu *vcpu,
                           const struct perfctr_event_config *event,
                           const struct perfctr_core_thread *thread);

/*
 * An event goes.
 */
void perfctr_core_event_remove(const struct perfctr_core_vcpu *vcpu, uint32_t index);

/*
 * An event is to count; see Cpu::start_event(guest_kmod::Cpu::start_event).
 */
void perfctr_core_event_start(const struct perfctr_core_vcpu *vcpu,
                              uint32_t index,
                              uint64_t period,
                              int64_t left);

/*
 * An event is not to count.
 */
void perfctr_core_event_stop(const struct perfctr_core_vcpu *vcpu, uint32_t index);

/*
 * What an event has counted since this was last asked.
 */
void perfctr_core_event_progress(const struct perfctr_core_vcpu *vcpu,
                                 uint32_t index,
                                 struct perfctr_progress *out);

/*
 * One bit per event that has overflowed.
 */
uint32_t perfctr_core_events_overflowed(const struct perfctr_core_vcpu *vcpu);

/*
 * How many periods have passed of an event that has overflowed; another one begins.
 */
uint64_t perfctr_core_event_next_period(const struct perfctr_core_vcpu *vcpu, uint32_t index);

/*
 * Where an event has overflowed; see Cpu::place_of_event(guest_kmod::Cpu::place_of_event).
 */
void perfctr_core_event_place(const struct perfctr_core_vcpu *vcpu,
                              uint32_t index,
                              struct perfctr_hv_place *out);

/*
 * perf disables its PMU.
 */
void perfctr_core_events_disable(const struct perfctr_core_vcpu *vcpu);

/*
 * perf enables its PMU, while `thread` executes if it has counters.  Gives whether the thread is
 */
bool perfctr_core_events_enable(const struct perfctr_core_vcpu *vcpu,
                                const struct perfctr_core_thread *thread);

/*
 * Whether nothing is counted here; see
 */
bool perfctr_core_events_stalled(const struct perfctr_core_vcpu *vcpu);

/*
 * See check_ring.
 */
int perfctr_core_ring_check(const struct perfctr_ring_request *request);

/*
 * `IOC_RING`; see ThreadPmu::begin_ring(guest_kmod::ThreadPmu::begin_ring).
 */
int perfctr_core_ring_begin(const struct perfctr_core_thread *thread,
                            const struct perfctr_ring_request *request);

/*
 * Whether there is room for a record of this counter, and where.
 */
bool perfctr_core_ring_place(const struct perfctr_core_thread *thread,
                             uint32_t counter,
                             struct perfctr_ring_place *out);

/*
 * The record is there; see Ring::wrote(guest_kmod::Ring::wrote).
 */
void perfctr_core_ring_wrote(const struct perfctr_core_thread *thread);

/*
 * `IOC_RING_TAKE`, by one caller at a time; see Ring::take(guest_kmod::Ring::take).
 */
int perfctr_core_ring_take(const struct perfctr_core_thread *thread, uint64_t taken);

/*
 * By anybody; see Ring::is_ready(guest_kmod::Ring::is_ready).
 */
bool perfctr_core_ring_is_ready(const struct perfctr_core_thread *thread);

#endif  /* PERFCTR_CORE_H */
