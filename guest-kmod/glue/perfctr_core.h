/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Generated from guest-kmod/ffi/src/lib.rs by cargo xtask headers. */

#ifndef PERFCTR_CORE_H
#define PERFCTR_CORE_H

#include "perfctr_abi.h"

/*
 * Bytes of a thread object.  With what C has beside it, it fits the allocator's 2 KiB.
 */
#define PERFCTR_THREAD_BYTES 1928

/*
 * What C has room for, unit: words.
 */
#define PERFCTR_ARGUMENT_WORDS 96

/*
 * Subject::kind: a program that other programs of its user may look into.
 */
#define PERFCTR_SUBJECT_OPEN 0

/*
 * Subject::kind: a program that is nobody's to look into, as set-uid programs are.
 */
#define PERFCTR_SUBJECT_GUARDED 1

/*
 * Subject::kind: a thread of the kernel, which executes no program.
 */
#define PERFCTR_SUBJECT_KERNEL 2

/*
 * Counters that nobody reads go on for so long, because programs that stop often start again soon:
 */
#define PERFCTR_STOP_DELAY_MS 100

/*
 * Pages that nobody needs stay registered for so long, and users without counters keep theirs: at
 */
#define PERFCTR_UNWATCH_DELAY_MS 10000

/*
 * Whose registers a sample gets.
 */
enum perfctr_registers {
  /*
   * The thread's when it entered the kernel.
   */
  PERFCTR_REGISTERS_USER = 0,
  /*
   * Those that the interrupt has stopped.
   */
  PERFCTR_REGISTERS_INTERRUPTED = 1,
  /*
   * The place that the hypervisor has given.
   */
  PERFCTR_REGISTERS_PLACE = 2,
};

/*
 * A thread's counters as C holds them.
 */
struct perfctr_core_thread;

/*
 * A vCPU as C holds it.
 */
struct perfctr_core_vcpu;

/*
 * Who has a page of this vCPU.
 */
struct perfctr_observer {
  /*
   * The container that its threads are in.
   */
  uint64_t container;
  /*
   * The effective user of its threads.
   */
  uint32_t uid;
  /*
   * By what the hypervisor tells it from others; not 0.
   */
  uint32_t number;
  /*
   * Whether it may look into the kernel.
   */
  bool sees_kernel;
};

/*
 * How an event was opened: the first fields of Linux's `struct perf_event_attr`.
 */
struct perfctr_event_attr {
  /*
   * `PERF_TYPE_*`.
   */
  uint32_t kind;
  /*
   * Bytes of the whole structure.
   */
  uint32_t size;
  /*
   * Which event of this type.
   */
  uint64_t config;
  /*
   * Events between two samples, or samples a second, or 0.
   */
  uint64_t period;
  /*
   * `PERF_SAMPLE_*`.
   */
  uint64_t sample_type;
  /*
   * `PERF_FORMAT_*`.
   */
  uint64_t read_format;
  /*
   * Its bit fields.
   */
  uint64_t flags;
  /*
   * When to wake a reader.
   */
  uint32_t wakeup;
  /*
   * Of breakpoints.
   */
  uint32_t bp_type;
  /*
   * More of `config`.
   */
  uint64_t config1;
  /*
   * More of `config`.
   */
  uint64_t config2;
};

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
  /*
   * For how long it was stalled since perf was last given it.
   */
  uint64_t stalled;
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
 * The mapping that a process asks for.
 */
struct perfctr_mapping {
  /*
   * Where it begins in the descriptor's pages.
   */
  uint64_t first_page;
  /*
   * How many pages it has.
   */
  uint64_t pages;
  /*
   * It is shared, and not the process's own copy.
   */
  bool is_shared;
  /*
   * The process wants to write there, or to execute what is there.
   */
  bool may_change;
  /*
   * The process's effective user.
   */
  uint32_t uid;
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

/*
 * Who executes.
 */
struct perfctr_subject {
  /*
   * The container that it is in, told from others by its namespace of process numbers.
   */
  uint64_t container;
  /*
   * Its effective user.
   */
  uint32_t uid;
  /*
   * One of `SUBJECT_OPEN`, `SUBJECT_GUARDED` and `SUBJECT_KERNEL`.
   */
  uint32_t kind;
};

/*
 * What is registered with a vCPU.  Only that vCPU writes it, with interrupts disabled.
 */
struct perfctr_shown {
  /*
   * The container of those who may execute meanwhile.
   */
  uint64_t container;
  /*
   * Their effective user.
   */
  uint32_t uid;
  /*
   * By what the hypervisor knows whose page it is; 0 if none is registered.
   */
  uint32_t number;
  /*
   * What is loaded counts in kernel mode, and the observer may not look into the kernel.
   */
  bool hides_kernel;
};

extern int perfctr_glue_hypercall(uint32_t op, void *argument, uint32_t length);

/*
 * The guest frame number of a page; a guest whose frames are the machine's has other ones
 */
extern uint64_t perfctr_glue_gfn(const struct perfctr_vcpu_page *page);

/*
 * RDPMC of ECX to RAX and RDX; changes no other register.
 */
extern void perfctr_glue_rdpmc(void);

/*
 * Asks the hypervisor when the module is loaded, and says what was found if that is refused; see
 */
int perfctr_core_handshake(bool owns_cr4,
                           bool lends_cr4,
                           uint32_t cpus,
                           struct perfctr_hv_query *answer,
                           const char **found);

/*
 * Asks again; see handshake_again.
 */
int perfctr_core_handshake_again(const struct perfctr_hv_query *before);

/*
 * Bytes of a vCPU object.
 */
size_t perfctr_core_vcpu_bytes(void);

/*
 * Makes a vCPU object of memory, with a page for perf's events that is not registered.
 */
void perfctr_core_vcpu_init(struct perfctr_core_vcpu *memory,
                            uint32_t number,
                            const struct perfctr_vcpu_page *perfs);

/*
 * No thread may count on the vCPU, for the reason of this negative error number; see
 */
void perfctr_core_vcpu_refuse(const struct perfctr_core_vcpu *vcpu, int error);

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
                              uint32_t tid,
                              const struct perfctr_observer *observer,
                              struct perfctr_vcpu_page *const *pages);

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
 * Whether the thread's counters end now that it executes another program: with rights that its
 */
bool perfctr_core_ends_at_exec(const struct perfctr_core_thread *thread, bool has_gained_rights);

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
 * What an event needs that is opened so; see EventConfig::open.
 */
int perfctr_core_event_open(const struct perfctr_hv_query *query,
                            const struct perfctr_event_attr *attr,
                            struct perfctr_event_config *out,
                            uint64_t *first_period);

/*
 * What one of perf's generic events needs; see EventConfig::generic.
 */
int perfctr_core_event_generic(const struct perfctr_hv_query *query,
                               uint64_t id,
                               struct perfctr_event_config *out);

/*
 * Whether the events of a group can be counted at once; see fit.
 */
bool perfctr_core_events_fit(const struct perfctr_event_config *group, uint32_t count);

/*
 * An event comes while a thread executes whose counters are `thread`, if it has any; gives the
 */
int perfctr_core_event_add(const struct perfctr_core_vcpu *vcpu,
                           const struct perfctr_event_config *event,
                           const struct perfctr_core_thread *thread,
                           bool is_wide);

/*
 * An event goes; gives for how long it was stalled.
 */
uint64_t perfctr_core_event_remove(const struct perfctr_core_vcpu *vcpu,
                                   uint32_t index,
                                   uint64_t now,
                                   bool is_wide);

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
 * What an event has counted since this was last asked; see
 */
void perfctr_core_event_progress(const struct perfctr_core_vcpu *vcpu,
                                 uint32_t index,
                                 uint64_t now,
                                 struct perfctr_progress *out);

/*
 * One bit for each event that has overflowed.
 */
uint32_t perfctr_core_events_overflowed(const struct perfctr_core_vcpu *vcpu);

/*
 * How many periods have passed of an event that has overflowed; another one begins.
 */
uint64_t perfctr_core_event_next_period(const struct perfctr_core_vcpu *vcpu, uint32_t index);

/*
 * Whose registers the sample of an event gets; see
 */
enum perfctr_registers perfctr_core_event_registers(const struct perfctr_core_vcpu *vcpu,
                                                    uint32_t index,
                                                    struct perfctr_hv_place *interrupted);

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
 * Whether each event's stall is to be settled; see
 */
bool perfctr_core_events_unsettled(const struct perfctr_core_vcpu *vcpu);

/*
 * For how long an event was stalled; see
 */
uint64_t perfctr_core_event_settle(const struct perfctr_core_vcpu *vcpu,
                                   uint32_t index,
                                   uint64_t began,
                                   uint64_t now);

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
 * What a mapping through a descriptor shows: 1 for the ring, 0 for the counters of a thread with
 */
int perfctr_core_may_map(const struct perfctr_mapping *wanted,
                         uint32_t cpus,
                         uint32_t ring_pages,
                         const struct perfctr_observer *observer);

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
                           const struct perfctr_control_arg *control,
                           const struct perfctr_observer *observer,
                           struct perfctr_vcpu_page *const *pages);

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
 * The CPU stops counting whatever executes there, if it does; see
 */
void perfctr_core_stop_cpu_wide(const struct perfctr_core_vcpu *vcpu);

/*
 * Whether a user may have so many locked pages; see may_lock.
 */
int perfctr_core_may_lock(uint64_t locked, uint64_t limit);

/*
 * The vCPU can be interrupted from now on; see Restoration::begin.
 */
void perfctr_core_restore_begin(const struct perfctr_core_vcpu *vcpu);

/*
 * The vCPU was interrupted, and executes this; see Restoration::interrupted.
 */
bool perfctr_core_restore_interrupted(const struct perfctr_core_vcpu *vcpu,
                                      const struct perfctr_hv_query *before);

/*
 * See Restoration::wants_look.
 */
bool perfctr_core_restore_wants_look(const struct perfctr_core_vcpu *vcpu);

/*
 * See Restoration::looks.
 */
bool perfctr_core_restore_looks(const struct perfctr_core_vcpu *vcpu,
                                const struct perfctr_hv_query *before);

/*
 * See Restoration::looked.
 */
void perfctr_core_restore_looked(const struct perfctr_core_vcpu *vcpu);

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

/*
 * The thread that executes this.
 */
extern void perfctr_glue_present(struct perfctr_subject *present);

/*
 * The number of an observer: one that nobody has.
 */
uint32_t perfctr_core_new_observer(void);

/*
 * What is registered with the vCPU; changes on that vCPU only.
 */
const struct perfctr_shown *perfctr_core_shown(const struct perfctr_core_vcpu *vcpu);

/*
 * Takes the page of an observer back from the vCPU if it is registered there; perf's events that
 */
void perfctr_core_hide(const struct perfctr_core_vcpu *vcpu,
                       const struct perfctr_observer *observer);

/*
 * Somebody comes to execute in place of `present`, if that has counters, who may not see what is
 */
void perfctr_core_leave_to(const struct perfctr_core_vcpu *vcpu,
                           const struct perfctr_core_thread *present,
                           const struct perfctr_subject *next,
                           const struct perfctr_core_thread *coming);

/*
 * Who executes has become another subject without a switch; see
 */
void perfctr_core_become(const struct perfctr_core_vcpu *vcpu,
                         const struct perfctr_core_thread *present);

/*
 * perf's page is registered if none is, for events that are here; see
 */
void perfctr_core_events_show(const struct perfctr_core_vcpu *vcpu);

/*
 * The vCPU comes online; see Cpu::come_online(guest_kmod::Cpu::come_online).
 */
int perfctr_core_vcpu_online(const struct perfctr_core_vcpu *vcpu);

/*
 * The vCPU goes offline, and what it counted for the whole CPU ends; see
 */
int perfctr_core_vcpu_offline(const struct perfctr_core_vcpu *vcpu);

/*
 * The machine was restored; see Cpu::forget_page(guest_kmod::Cpu::forget_page).
 */
void perfctr_core_vcpu_forget_page(const struct perfctr_core_vcpu *vcpu);

/*
 * The page that is registered, or was last.
 */
const struct perfctr_vcpu_page *perfctr_core_vcpu_page(const struct perfctr_core_vcpu *vcpu);

/*
 * See Watch::must_begin.
 */
bool perfctr_core_watch_must_begin(void);

/*
 * See Watch::began.
 */
void perfctr_core_watch_began(void);

/*
 * See Watch::join.
 */
void perfctr_core_watch_join(void);

/*
 * See Watch::leave.
 */
void perfctr_core_watch_leave(void);

/*
 * See Watch::may_end.
 */
bool perfctr_core_watch_may_end(void);

/*
 * See Watch::end.
 */
bool perfctr_core_watch_end(bool is_shown);

/*
 * See Watch::is_idle; takes the vCPU's page back then.
 */
void perfctr_core_hide_if_unwatched(const struct perfctr_core_vcpu *vcpu);

/*
 * See idle_users_delay_ms.
 */
uint32_t perfctr_core_idle_users_delay_ms(uint32_t users);

#endif  /* PERFCTR_CORE_H */
