/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Generated from guest-kmod/ffi/src/lib.rs by cargo xtask headers. */

#ifndef PERFCTR_CORE_H
#define PERFCTR_CORE_H

#include "perfctr_abi.h"

/*
 * Bytes of a thread object. With the memory that C has beside it, it fits the allocator's 2 KiB.
 */
#define PERFCTR_THREAD_BYTES 1944

/*
 * The size of C's storage for an argument, unit: words.
 */
#define PERFCTR_ARGUMENT_WORDS 96

/*
 * The most exact places that perf can ask for, see `precise_ip`.
 */
#define PERFCTR_PRECISE_MAX 2

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
 * How long pages that nobody needs stay registered, unit: ms.
 */
#define PERFCTR_UNWATCH_DELAY_MS 10000

/*
 * A time of an event, by perf's clock.
 */
enum perfctr_event_time {
  /*
   * The time at which perf added the event.
   */
  PERFCTR_EVENT_TIME_ADDED = 0,
  /*
   * The time up to which perf's books say how long the event has run.
   */
  PERFCTR_EVENT_TIME_BOOKED = 1,
  /*
   * The present time.
   */
  PERFCTR_EVENT_TIME_NOW = 2,
};

/*
 * The registers that a sample gets.
 */
enum perfctr_registers {
  /*
   * The thread's registers when it entered the kernel.
   */
  PERFCTR_REGISTERS_USER = 0,
  /*
   * The registers that the interrupt has stopped.
   */
  PERFCTR_REGISTERS_INTERRUPTED = 1,
  /*
   * The place that the hypervisor has given.
   */
  PERFCTR_REGISTERS_PLACE = 2,
  /*
   * The same, and it is that of the event itself.
   */
  PERFCTR_REGISTERS_PRECISE = 3,
};

/*
 * An action that a vCPU does with interrupts disabled.
 */
struct perfctr_call;

/*
 * A thread's counters as C holds them.
 */
struct perfctr_core_thread;

/*
 * A user, with the pages of vCPUs that its threads see.
 */
struct perfctr_core_user;

/*
 * A vCPU as C holds it.
 */
struct perfctr_core_vcpu;

/*
 * The right to operate a thread's counters, which nobody else has.
 */
typedef const struct perfctr_core_thread *perfctr_on_thread;

/*
 * The right to use a vCPU. This vCPU executes the code with interrupts disabled.
 */
typedef const struct perfctr_core_vcpu *perfctr_on_vcpu;

/*
 * The counters of the thread that executes this, if it has any.
 */
typedef const struct perfctr_core_thread *perfctr_present;

/*
 * The right to use the thread's vCPU, or none while a tracer keeps the thread asleep.
 */
typedef const struct perfctr_core_vcpu *perfctr_on_vcpu_or_asleep;

/*
 * What perf adds to its books of an event.
 */
struct perfctr_progress {
  /*
   * The count since perf was last given it.
   */
  uint64_t count;
  /*
   * Events to the next overflow, if it samples; below 1 if it has overflowed.
   */
  int64_t left;
  /*
   * The time for which it was stalled since perf was last given that.
   */
  uint64_t stalled;
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
   * The size of the whole structure in bytes.
   */
  uint32_t size;
  /*
   * The number of the event within its type.
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
   * The bit fields.
   */
  uint64_t flags;
  /*
   * The number of events or bytes after which a reader is woken.
   */
  uint32_t wakeup;
  /*
   * The type of a breakpoint, which no event here has.
   */
  uint32_t bp_type;
  /*
   * A further word of the configuration.
   */
  uint64_t config1;
  /*
   * Another further word of the configuration.
   */
  uint64_t config2;
  /*
   * `PERF_SAMPLE_BRANCH_*`.
   */
  uint64_t branch_sample_type;
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
  uint8_t samples;
  /*
   * 1 if the processor notes the places of its samples, else 0.
   */
  uint8_t precise;
  /*
   * The branches that its samples have, HvRecord::filter, or 0.
   */
  uint16_t branches;
};

/*
 * The branches of a sample, as `struct perf_branch_stack` of `linux/perf_event.h` has them.
 */
struct perfctr_branch_stack {
  /*
   * The number of branches.
   */
  uint64_t number;
  /*
   * Which of the hardware's registers has the latest; not known.
   */
  uint64_t hardware_index;
  /*
   * The branches, the latest first, with perf's flags.
   */
  struct perfctr_hv_branch entry[16];
};

/*
 * An identity as atomic words.
 */
struct perfctr_identity_words {
  /*
   * Its container.
   */
  uint64_t container;
  /*
   * Its namespace of users.
   */
  uint64_t users;
  /*
   * Its permitted capabilities.
   */
  uint64_t capabilities;
  /*
   * Its effective user and group.
   */
  uint64_t ids;
};

/*
 * What is registered with a vCPU, for C and for other vCPUs.
 */
struct perfctr_shown {
  /*
   * The identity of the subjects that may execute while the page is registered.
   */
  struct perfctr_identity_words identity;
  /*
   * The number of the observer whose page it is, or 0 if none is registered.
   */
  uint32_t number;
  /*
   * Whether the page has to go before a thread of the kernel executes.
   */
  bool hides_kernel;
  /*
   * Whether anything is loaded.
   */
  bool counts;
  /*
   * Whether perf has events here, which may go on with the next thread.
   */
  bool has_events;
  /*
   * Whether branches are recorded for any of them.
   */
  bool has_records;
};

/*
 * What C has to copy for a request that is admitted.
 */
struct perfctr_admitted {
  /*
   * How much to copy from the caller first, unit: bytes.
   */
  uint32_t bytes_in;
  /*
   * How much to copy to the caller at the end, unit: bytes.
   */
  uint32_t bytes_out;
};

/*
 * The mapping that a process asks for.
 */
struct perfctr_mapping {
  /*
   * Its first page, counted in the descriptor's pages.
   */
  uint64_t first_page;
  /*
   * The number of its pages.
   */
  uint64_t pages;
  /*
   * Whether it is shared, and not the process's own copy.
   */
  bool is_shared;
  /*
   * Whether the process wants to write there, or to execute what is there.
   */
  bool may_change;
};

/*
 * What is on a thread's stack where its frame pointer points to.
 */
struct perfctr_frame {
  /*
   * Where the calling function's frame is.
   */
  uint64_t caller;
  /*
   * Where the function will return to.
   */
  uint64_t address;
};

/*
 * The place of a ring's next record, and what is written there.
 */
struct perfctr_ring_place {
  /*
   * Where the record begins, unit: bytes from the beginning of the ring.
   */
  uint64_t offset;
  /*
   * The counter's count when its overflow was noticed.
   */
  uint64_t count;
  /*
   * The TSC's count at that time.
   */
  uint64_t tsc;
  /*
   * The counter that has overflowed.
   */
  uint32_t counter;
  /*
   * The number of callers that have room.
   */
  uint32_t callers;
};

/*
 * Whose a thread is, and what it may do. Threads with the same identity have the same rights.
 */
struct perfctr_identity {
  /*
   * The container that it is in, which is identified by its namespace of process numbers.
   */
  uint64_t container;
  /*
   * The namespace of users in which it has its capabilities.
   */
  uint64_t users;
  /*
   * Its permitted capabilities: bit n stands for capability n.
   */
  uint64_t capabilities;
  /*
   * Its effective user in the low half, and its effective group in the high one.
   */
  uint64_t ids;
};

/*
 * The subject that executes.
 */
struct perfctr_subject {
  /*
   * Its identity.
   */
  struct perfctr_identity identity;
  /*
   * One of `SUBJECT_OPEN`, `SUBJECT_GUARDED` and `SUBJECT_KERNEL`.
   */
  uint32_t kind;
};

extern int perfctr_glue_hypercall(uint32_t op, void *argument, uint32_t length);

/*
 * Returns the guest frame number of a page.
 */
extern uint64_t perfctr_glue_gfn(const struct perfctr_vcpu_page *page);

/*
 * Executes RDPMC with the index in ECX, and returns the value in RAX and RDX.
 */
extern void perfctr_glue_rdpmc(void);

/*
 * Makes a thread object for a user, and takes over the caller's reference to the user.
 */
int perfctr_core_thread_init(struct perfctr_core_thread *memory,
                             uint32_t tid,
                             const struct perfctr_core_user *user);

/*
 * Frees what belongs to a thread object, but not the object's own memory.
 */
void perfctr_core_thread_release(const struct perfctr_core_thread *thread);

/*
 * Takes a thread off the vCPU that ran it, and counts what that costs.
 */
void perfctr_core_switch_out_measured(perfctr_on_thread thread, perfctr_on_vcpu vcpu);

/*
 * Handles the virtual interrupt of an overflow; see ThreadPmu::interrupt.
 */
void perfctr_core_interrupt(perfctr_present present, perfctr_on_vcpu vcpu);

/*
 * Reports to the thread that executes what was noticed while something else was done.
 */
void perfctr_core_report(perfctr_present present, perfctr_on_vcpu vcpu);

/*
 * Stops the thread's counters; see ThreadPmu::stop.
 */
void perfctr_core_stop(perfctr_on_thread thread, perfctr_on_vcpu_or_asleep vcpu);

/*
 * Returns whether the thread's counters end now that it executes another program.
 */
bool perfctr_core_ends_at_exec(const struct perfctr_core_thread *thread, bool has_gained_rights);

/*
 * Serves `IOC_READ` of the thread itself; see ThreadPmu::read.
 */
int perfctr_core_read(perfctr_on_thread thread, perfctr_on_vcpu vcpu, struct perfctr_sums *sums);

/*
 * Serves `IOC_READ` of anybody; see published.
 */
int perfctr_core_read_published(const struct perfctr_core_thread *thread,
                                struct perfctr_sums *sums);

/*
 * Has every online CPU execute `perfctr_core_called` with this argument, and waits for that.
 */
extern void perfctr_glue_call_all(const void *call);

/*
 * Has one CPU execute it. Returns `-ENXIO` if the CPU is offline.
 */
extern int perfctr_glue_call_one(uint32_t cpu, const void *call);

/*
 * Does the action for which the vCPU was called.
 */
void perfctr_core_called(const struct perfctr_call *call,
                         perfctr_on_vcpu vcpu,
                         perfctr_present present);

/*
 * Makes counters that belong to root and are not linked. Returns null if there is no memory.
 */
extern void *perfctr_glue_counters_new(void);

extern void perfctr_glue_counters_free(void *counters);

/*
 * Begins to watch switches, before pages are registered. Returns 0, or an error.
 */
extern int perfctr_glue_watch(void);

extern void perfctr_glue_unwatch(void);

/*
 * Notes that a thread gets these counters; see Admission::thread_begins.
 */
int perfctr_core_thread_begins(const struct perfctr_core_thread *thread);

/*
 * Notes that a thread has lost its counters; see Admission::thread_ends.
 */
void perfctr_core_thread_ends(const struct perfctr_core_thread *thread);

/*
 * Executes a request about CPUs for the descriptor `by`. Returns the request's result.
 */
int perfctr_core_request_of_cpus(uint32_t number, uint64_t by, void *argument);

/*
 * Returns whether this descriptor owns the CPUs; see Admission::is_owner.
 */
bool perfctr_core_owns_cpus(uint64_t by);

/*
 * Stops and forgets the CPUs that a descriptor has set, because it is closed.
 */
void perfctr_core_close_cpus(uint64_t by);

/*
 * Returns a time of an event, by perf's clock.
 */
extern uint64_t perfctr_glue_event_time(uint32_t index, enum perfctr_event_time which);

/*
 * Adds to perf's books what an event has counted, and for how long it was stalled.
 */
extern void perfctr_glue_event_progress(uint32_t index, const struct perfctr_progress *progress);

/*
 * Subtracts `stalled` from the time that an event has run, according to perf's books.
 */
extern void perfctr_glue_event_stall(uint32_t index, uint64_t stalled);

/*
 * Makes perf take a sample of an event, of which `periods` periods have passed.
 */
extern void perfctr_glue_event_sample(uint32_t index,
                                      enum perfctr_registers registers,
                                      const struct perfctr_hv_place *place,
                                      uint64_t periods);

/*
 * Has this CPU report overflows as soon as it enables interrupts.
 */
extern void perfctr_glue_report_later(void);

/*
 * Finds out what an event with these attributes needs; see EventConfig::open.
 */
int perfctr_core_event_open(const struct perfctr_event_attr *attr,
                            struct perfctr_event_config *out,
                            uint64_t *first_period);

/*
 * Returns how exact places of samples perf can ask for; see PRECISE_MAX.
 */
uint64_t perfctr_core_precise_max(void);

/*
 * Returns the event and the unit mask of one of perf's generic events, or 0.
 */
uint16_t perfctr_core_event_select(uint64_t id);

/*
 * Returns whether the events of a group can be counted at once; see fit.
 */
bool perfctr_core_events_fit(const struct perfctr_event_config *group, uint32_t count);

/*
 * Adds an event, and returns its number or an error; see LocalEvents::add_event.
 */
int perfctr_core_event_add(perfctr_on_vcpu vcpu,
                           const struct perfctr_event_config *event,
                           perfctr_present thread,
                           bool is_wide);

/*
 * Removes an event whose `hw.state` is `state`; see LocalEvents::remove_event.
 */
void perfctr_core_event_remove(perfctr_on_vcpu vcpu, uint32_t index, uint32_t state, bool is_wide);

/*
 * Lets an event count, and returns how many events its present period has.
 */
uint64_t perfctr_core_event_start(perfctr_on_vcpu vcpu,
                                  uint32_t index,
                                  uint64_t period,
                                  int64_t left,
                                  uint64_t present);

/*
 * Stops an event whose `hw.state` is `state`, and returns its new state.
 */
uint32_t perfctr_core_event_stop(perfctr_on_vcpu vcpu,
                                 uint32_t index,
                                 uint32_t state,
                                 bool updates);

/*
 * Notes that C begins to search for contexts of perf's; see Searches::begins.
 */
void perfctr_core_contexts_searched(uint64_t now);

/*
 * Returns in how much time C may search again, unit: ms; see Searches::wait_ms.
 */
uint32_t perfctr_core_contexts_wait(uint64_t now);

/*
 * Brings perf's books of an event up to date; see LocalEvents::read_event.
 */
void perfctr_core_event_read(perfctr_on_vcpu vcpu, uint32_t index);

/*
 * Fills in the branches that were recorded before an event overflowed.
 */
void perfctr_core_event_branches(perfctr_on_vcpu vcpu,
                                 uint32_t index,
                                 struct perfctr_branch_stack *stack);

/*
 * Does what is needed when perf disables its PMU.
 */
void perfctr_core_events_disable(perfctr_on_vcpu vcpu);

/*
 * Does what is needed when perf enables its PMU; see LocalEvents::enable_events.
 */
void perfctr_core_events_enable(perfctr_on_vcpu vcpu, perfctr_present thread);

/*
 * Handles the interrupt of an overflow for perf's events. Returns whether any has overflowed.
 */
bool perfctr_core_events_interrupt(perfctr_on_vcpu vcpu,
                                   perfctr_present thread,
                                   const struct perfctr_hv_place *interrupted);

/*
 * Writes to the kernel's log what this CPU has failed to do.
 */
extern void perfctr_glue_log(const char *what, int error);

/*
 * Makes sure that the page is never used for anything else.
 */
extern void perfctr_glue_keep_page(const struct perfctr_vcpu_page *page);

/*
 * Asks the hypervisor when the module is loaded. Returns 0 or an error; see first_handshake.
 */
int perfctr_core_handshake(uint32_t cpus, const char **found);

/*
 * Returns whether the hypervisor has a driver at all.
 */
bool perfctr_core_has_driver(void);

/*
 * Asks the hypervisor again. Returns 0 or an error; see handshake_again.
 */
int perfctr_core_handshake_again(void);

/*
 * C calls this after the machine was restored as a whole.
 */
void perfctr_core_restored(void);

/*
 * Allocates zeroed bytes that are aligned to at least 8 bytes, or returns null. Sleeps.
 */
extern void *perfctr_glue_alloc(size_t bytes);

/*
 * Allocates a zeroed page, or returns null. Sleeps.
 */
extern void *perfctr_glue_alloc_page(void);

/*
 * Returns what is registered with the vCPU, which changes on that vCPU only.
 */
const struct perfctr_shown *perfctr_core_shown(const struct perfctr_core_vcpu *vcpu);

/*
 * Switches the thread in, and returns the report to it; see `pack`.
 */
uint64_t perfctr_core_switch_in(perfctr_on_thread thread, perfctr_on_vcpu vcpu);

/*
 * Switches the thread in, counts the cost of that, and returns the report to it; see `pack`.
 */
uint64_t perfctr_core_switch_in_measured(perfctr_on_thread thread, perfctr_on_vcpu vcpu);

/*
 * Switches the thread out.
 */
void perfctr_core_switch_out(perfctr_on_thread thread, perfctr_on_vcpu vcpu);

/*
 * Returns whether the calling thread has a capability.
 */
extern bool perfctr_glue_has_capability(int capability, bool is_quiet);

extern bool perfctr_glue_is_locked_down(void);

/*
 * Returns 0 if perf lets the caller count the kernel, or perf's error.
 */
extern int perfctr_glue_perf_allows_kernel(void);

/*
 * Returns 0 if a request may be made, or an error; see admit.
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
                       uint32_t cpus);

/*
 * Serves `IOC_INFO`, which describes this machine. Returns 0 or an error.
 */
int perfctr_core_info(uint32_t vcpus,
                      uint32_t cpu_signature,
                      uint32_t tsc_khz,
                      struct perfctr_info_arg *out);

/*
 * Serves `IOC_RING_TAKE` and `IOC_INTERRUPTS` of anybody, whose argument is a word.
 */
int perfctr_core_serve_word(const struct perfctr_core_thread *thread,
                            uint32_t number,
                            uint64_t *word);

/*
 * Serves `IOC_CONTROL` and `IOC_RESUME` of a thread's counters. Returns 0 or an error.
 */
int perfctr_core_operate(perfctr_on_thread thread,
                         perfctr_on_vcpu_or_asleep vcpu,
                         uint32_t number,
                         const struct perfctr_control_arg *control);

/*
 * Returns the control that was accepted last.
 */
void perfctr_core_last_control(const struct perfctr_core_thread *thread,
                               struct perfctr_control_arg *out);

/*
 * Decides about a mapping that is made through a descriptor of these counters; see may_map.
 */
int perfctr_core_may_map(const struct perfctr_core_thread *thread,
                         const struct perfctr_mapping *wanted,
                         uint32_t cpus,
                         uint32_t ring_pages);

/*
 * Returns a page of the counters' mapping: the thread's page, or behind it the page of a vCPU.
 */
const void *perfctr_core_mapped_page(const struct perfctr_core_thread *thread, uint32_t index);

/*
 * Returns 0 if a user may have this number of locked pages, or an error; see may_lock.
 */
int perfctr_core_may_lock(uint64_t locked, uint64_t limit);

/*
 * Notes that the vCPU can be interrupted from now on; see Restoration::begin.
 */
void perfctr_core_restore_begin(const struct perfctr_core_vcpu *vcpu);

/*
 * Handles an interrupt of the vCPU that executes this; see Restoration::interrupted.
 */
uint32_t perfctr_core_restore_interrupted(const struct perfctr_core_vcpu *vcpu);

/*
 * Returns whether C has to call perfctr_core_restore_look; see Restoration::wants_look.
 */
bool perfctr_core_restore_wants_look(const struct perfctr_core_vcpu *vcpu);

/*
 * Asks whether the vCPU may count, and registers its page anew if necessary.
 */
void perfctr_core_restore_look(const struct perfctr_core_vcpu *vcpu);

/*
 * Reads a frame of the calling thread's stack. Returns whether the frame is in memory.
 */
extern bool perfctr_glue_read_frame(uint64_t address, struct perfctr_frame *frame);

/*
 * Sends the calling thread an overflow's signal. Returns whether the thread will get it.
 */
extern bool perfctr_glue_send_signal(uint32_t number, uint32_t counters);

/*
 * Writes a record of the calling thread to the ring of its counters.
 */
extern void perfctr_glue_ring_write(const void *counters, const struct perfctr_ring_place *place);

/*
 * Wakes whoever waits for records of these counters.
 */
extern void perfctr_glue_ring_wake(const void *counters);

/*
 * Reports overflows to the thread that executes; see Reporter::report.
 */
void perfctr_core_report_overflows(perfctr_on_thread thread,
                                   perfctr_on_vcpu vcpu,
                                   uint64_t overflows);

/*
 * Lets the counters of the thread that executes go on after a signal that it did not get.
 */
void perfctr_core_signal_lost(perfctr_on_thread thread, perfctr_on_vcpu vcpu);

/*
 * Serves `IOC_RING`; see ThreadPmu::begin_ring(guest_kmod::ThreadPmu::begin_ring).
 */
int perfctr_core_ring_begin(perfctr_on_thread thread, const struct perfctr_ring_request *request);

/*
 * Writes the addresses of the calling thread's callers behind a record; see callers.
 */
uint32_t perfctr_core_ring_callers(uint64_t frame, uint64_t *out, uint32_t room);

/*
 * Returns whether the ring is full to its watermark. Anybody may ask.
 */
bool perfctr_core_ring_is_ready(const struct perfctr_core_thread *thread);

/*
 * Describes the thread that executes this.
 */
extern void perfctr_glue_present(struct perfctr_subject *present);

/*
 * Does what is needed before another thread executes here; see LocalVcpu::leave_to.
 */
void perfctr_core_leave_to(perfctr_on_vcpu vcpu,
                           perfctr_present present,
                           const struct perfctr_subject *next,
                           const struct perfctr_core_thread *coming);

/*
 * Does what is needed after the rights of the thread that executes have changed.
 */
void perfctr_core_become(perfctr_on_vcpu vcpu, perfctr_present present);

/*
 * Subtracts an interrupt or an exception that was counted; see guest_kmod::surplus.
 */
void perfctr_core_traced(perfctr_on_vcpu vcpu,
                         perfctr_present present,
                         bool is_known,
                         bool is_user,
                         int64_t system_call,
                         uint32_t vector);

/*
 * Gives back the references to the container and to the namespace of users of an identity.
 */
extern void perfctr_glue_put_identity(const struct perfctr_identity *identity);

/*
 * Has C call `perfctr_core_users_take_back` after this time, and not sooner.
 */
extern void perfctr_glue_users_look_in(uint32_t milliseconds);

/*
 * Returns the user with this identity, or null if the list does not have it or it is being freed.
 */
const struct perfctr_core_user *perfctr_core_user_find(const struct perfctr_identity *identity);

/*
 * Stores the user with this identity in `found`, and makes the user if there is none.
 */
int perfctr_core_user_get(const struct perfctr_identity *identity,
                          bool is_initial,
                          uint32_t owner,
                          const struct perfctr_core_user **found,
                          const struct perfctr_core_user **to_free);

/*
 * Takes users out of the list that have no counters, and whose pages the hypervisor has unpinned.
 */
const struct perfctr_core_user *perfctr_core_users_take_back(void);

/*
 * Frees users that were taken out of the list.
 */
void perfctr_core_users_free(const struct perfctr_core_user *first);

/*
 * Makes a possible vCPU. Returns null if there is no memory.
 */
struct perfctr_core_vcpu *perfctr_core_vcpu_new(uint32_t number);

/*
 * Frees all possible vCPUs.
 */
void perfctr_core_vcpus_free(void);

/*
 * Brings the vCPU online. Returns 0, or the reason why no thread may count there.
 */
int perfctr_core_vcpu_online(perfctr_on_vcpu vcpu, int error);

/*
 * Takes the vCPU offline.
 */
void perfctr_core_vcpu_offline(perfctr_on_vcpu vcpu);

/*
 * Does what is needed before the machine sleeps. `present` executes on its last vCPU.
 */
void perfctr_core_vcpu_sleep(perfctr_on_vcpu vcpu, perfctr_present present);

/*
 * Does what is needed when the machine has slept. `present` executes on its first vCPU.
 */
void perfctr_core_vcpu_wake(perfctr_on_vcpu vcpu, perfctr_present present);

/*
 * Returns the name of statistic `index`, or null behind the last one, and stores its value.
 */
const char *perfctr_core_stat(uint32_t index, uint64_t *value);

/*
 * Has the kernel call the module at every switch. Returns 0, or an error.
 */
extern int perfctr_glue_watch_begin(bool interrupts);

/*
 * Schedules a call of perfctr_core_stop_if_idle, if nobody counts. Does not sleep.
 */
extern void perfctr_glue_stop_if_idle(void);

/*
 * Adds a watcher, and begins to watch switches first if they are not watched.
 */
int perfctr_core_watch_join(void);

/*
 * Adds a watcher if switches are watched; see Watch::join. C needs no lock.
 */
bool perfctr_core_watch_join_if_watched(void);

/*
 * Removes a watcher; see Watch::leave.
 */
void perfctr_core_watch_leave(void);

/*
 * Unregisters pages that nobody needs. Returns whether the watch has ended; see Watch::end.
 */
bool perfctr_core_watch_end(bool is_exit);

/*
 * Returns whether nobody counts.
 */
bool perfctr_core_is_idle(void);

/*
 * Returns the time after which perfctr_core_stop_if_idle is to be called, unit: ms.
 */
uint32_t perfctr_core_stop_delay(void);

/*
 * Stops the counters of all vCPUs if nobody counts or has counted lately.
 */
void perfctr_core_stop_if_idle(void);

#endif  /* PERFCTR_CORE_H */
