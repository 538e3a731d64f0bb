/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Generated from guest-kmod/ffi/src/lib.rs by cargo xtask headers. */

#ifndef PERFCTR_CORE_H
#define PERFCTR_CORE_H

#include "perfctr_abi.h"

/*
 * Bytes of a thread object.  With what C has beside it, it fits the allocator's 2 KiB.
 */
#define PERFCTR_THREAD_BYTES 1912

/*
 * What C has room for, unit: words.
 */
#define PERFCTR_ARGUMENT_WORDS 96

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
 * What C has to do for a request that is admitted.
 */
struct perfctr_admitted {
  /*
   * Unit: bytes that are copied from the caller first.
   */
  uint32_t bytes_in;
  /*
   * Unit: bytes that are copied to the caller at last.
   */
  uint32_t bytes_out;
  /*
   * It is about CPUs, of which there is one request at a time.
   */
  bool is_of_cpus;
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
  /*
   * Callers that there is room for.
   */
  uint32_t callers;
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
 * What to send the thread after an ioctl; see ThreadPmu::tell and `pack`.
 */
uint64_t perfctr_core_tell(const struct perfctr_core_thread *thread,
                           const struct perfctr_core_vcpu *vcpu);

/*
 * Stops the thread's counters; see ThreadPmu::stop.  Without a vCPU the thread is asleep and
 */
void perfctr_core_stop(const struct perfctr_core_thread *thread,
                       const struct perfctr_core_vcpu *vcpu);

/*
 * Whether the thread's counters end when it executes another program; see ends_at_exec.
 */
bool perfctr_core_ends_at_exec(const struct perfctr_core_thread *thread, bool guarded);

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
 * Whether the calling thread has a capability; quietly, without a word in the kernel's log.
 */
extern bool perfctr_glue_has_capability(int capability, bool is_quiet);

extern bool perfctr_glue_is_locked_down(void);

/*
 * 0, or perf's error.
 */
extern int perfctr_glue_perf_allows_kernel(void);

/*
 * Whether a request may be made; see admit.
 */
int perfctr_core_admit(uint32_t number,
                       bool is_writable,
                       bool is_bound,
                       bool is_linked,
                       bool is_own,
                       struct perfctr_admitted *out);

/*
 * Judges what was copied from the caller of a request that is admitted; see judge.
 */
int perfctr_core_judge(uint32_t number,
                       const void *argument,
                       uint32_t bytes,
                       int paranoid,
                       uint32_t cpus,
                       const struct perfctr_hv_query *query);

/*
 * `IOC_INFO`: what this machine offers; gives 0.
 */
int perfctr_core_info(const struct perfctr_hv_query *query,
                      uint32_t vcpus,
                      uint32_t cpu_signature,
                      uint32_t tsc_khz,
                      struct perfctr_info_arg *out);

/*
 * `IOC_CONTROL` and `IOC_RESUME` of a thread's counters.  Without a vCPU the thread is asleep and
 */
int perfctr_core_operate(const struct perfctr_core_thread *thread,
                         const struct perfctr_core_vcpu *vcpu,
                         const struct perfctr_hv_query *query,
                         uint32_t number,
                         const struct perfctr_control_arg *control);

/*
 * The control that was accepted last.
 */
void perfctr_core_last_control(const struct perfctr_core_thread *thread,
                               struct perfctr_control_arg *out);

/*
 * A thread gets these counters; see Admission::thread_begins.
 */
int perfctr_core_thread_begins(const struct perfctr_core_thread *thread);

/*
 * A thread has lost the counters that it got; see Admission::thread_ends.
 */
void perfctr_core_thread_ends(const struct perfctr_core_thread *thread);

/*
 * Threads that have counters.
 */
uint32_t perfctr_core_threads(void);

/*
 * `IOC_CPU_CONTROL` of a CPU whose counters did count before or not, which is said anew; gives how
 */
int perfctr_core_cpu_set(uint64_t by,
                         const struct perfctr_hv_query *query,
                         const struct perfctr_cpu_state_arg *state,
                         bool *counts);

/*
 * Makes a CPU's counters anew, which are to count this when they are started.
 */
void perfctr_core_cpu_init(struct perfctr_core_thread *counters,
                           const struct perfctr_thread_page *page,
                           const struct perfctr_control_arg *control);

/*
 * See Admission::cpus_start.
 */
int perfctr_core_cpus_start(uint64_t by);

/*
 * 1 if CPUs have to be stopped; see Admission::cpus_stop.
 */
int perfctr_core_cpus_stop(uint64_t by);

/*
 * Whether CPUs count.
 */
bool perfctr_core_cpus_count(void);

/*
 * CPUs have stopped.
 */
void perfctr_core_cpus_stopped(void);

/*
 * A descriptor is closed; see Admission::closed.
 */
bool perfctr_core_closed(uint64_t descriptor);

/*
 * The CPU starts to count whatever executes there, with `counters` and as they were set; see
 */
int perfctr_core_start_cpu_wide(const struct perfctr_core_thread *counters,
                                const struct perfctr_core_thread *thread,
                                const struct perfctr_core_vcpu *vcpu,
                                const struct perfctr_hv_query *query);

/*
 * The CPU stops counting whatever executes there; see
 */
void perfctr_core_stop_cpu_wide(const struct perfctr_core_thread *counters,
                                const struct perfctr_core_vcpu *vcpu);

/*
 * Whether a user may have so many locked pages; see may_lock.
 */
int perfctr_core_may_lock(uint64_t locked, uint64_t limit);

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
 * `IOC_RING_TAKE`, by anybody; see Ring::take(guest_kmod::Ring::take).
 */
int perfctr_core_ring_take(const struct perfctr_core_thread *thread, uint64_t taken);

/*
 * By anybody; see Ring::is_ready(guest_kmod::Ring::is_ready).
 */
bool perfctr_core_ring_is_ready(const struct perfctr_core_thread *thread);

#endif  /* PERFCTR_CORE_H */
