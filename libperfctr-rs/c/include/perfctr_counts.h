/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Generated from libperfctr-rs/c/src/lib.rs by cargo xtask headers. */

#ifndef PERFCTR_COUNTS_H
#define PERFCTR_COUNTS_H

#include <stdint.h>

/*
 * The version of this interface, which perfctr_counts_interface() returns. It grows with every
 * function, and every value, that is added. What is there does not change before the library's
 * name does.
 */
#define PERFCTR_COUNTS_INTERFACE 2

/*
 * The most events that a thread can count.
 */
#define PERFCTR_COUNTS_EVENTS_MAX 18

/*
 * Flag of perfctr_counts_open(): counts events that are not known to be right on this CPU, too.
 */
#define PERFCTR_COUNTS_UNVERIFIED 1

/*
 * What a function returns. perfctr_counts_error() has a text about whatever is not
 * PERFCTR_STATUS_OK. Later versions may have further values.
 */
enum perfctr_status {
  /*
   * It has done what was asked for.
   */
  PERFCTR_STATUS_OK = 0,
  /*
   * An argument is a null pointer, a pointer that is not aligned, a text that is not UTF-8, or
   * an unknown number.
   */
  PERFCTR_STATUS_ARGUMENT = 1,
  /*
   * The handle is not one that the calling thread has opened and not closed yet.
   */
  PERFCTR_STATUS_HANDLE = 2,
  /*
   * A text names no event.
   */
  PERFCTR_STATUS_EVENT = 3,
  /*
   * The events cannot be counted here, or not all at once.
   */
  PERFCTR_STATUS_UNAVAILABLE = 4,
  /*
   * There are no counters here, or the caller may not use them. The text has the answer of each
   * provider.
   */
  PERFCTR_STATUS_NO_COUNTERS = 5,
  /*
   * The thread has counters already: a thread has at most one handle.
   */
  PERFCTR_STATUS_OPEN = 6,
  /*
   * The handle was opened before fork(), by the parent.
   */
  PERFCTR_STATUS_FORKED = 7,
  /*
   * The counters could not be read: something has disturbed every attempt.
   */
  PERFCTR_STATUS_DISTURBED = 8,
  /*
   * The domain was restored where it may not count, or where its events cannot be counted.
   */
  PERFCTR_STATUS_LOST = 9,
  /*
   * The body of a measurement has called a function that changes what is counted.
   */
  PERFCTR_STATUS_BUSY = 10,
  /*
   * The kernel module speaks another version of the interface.
   */
  PERFCTR_STATUS_VERSION = 11,
  /*
   * The kernel refused for another reason, which the text says.
   */
  PERFCTR_STATUS_KERNEL = 12,
  /*
   * A region was stopped that the thread has not started, or cannot be counted as it was asked
   * for.
   */
  PERFCTR_STATUS_REGION = 13,
};

/*
 * Who provides counters.
 */
enum perfctr_provider {
  /*
   * The first of the others that has counters.
   */
  PERFCTR_PROVIDER_ANY = 0,
  /*
   * The hypervisor's driver and the guest's kernel module, through /dev/perfctr.
   */
  PERFCTR_PROVIDER_PARAVIRT = 1,
  /*
   * Linux, through perf_event_open(2).
   */
  PERFCTR_PROVIDER_NATIVE = 2,
  /*
   * The time-stamp counter alone. It counts no events.
   */
  PERFCTR_PROVIDER_TSC = 3,
};

/*
 * The counters of one thread. Only the thread that has opened them can use them. A handle is a
 * number, and no address of an object.
 */
struct perfctr_counters;

/*
 * All counters at one moment, or what happened between two moments.
 */
struct perfctr_reading {
  /*
   * How long the thread has executed, unit: ticks of perfctr_facts.clock_khz. Every event was
   * counted all this time: none is ever counted for a part of it and estimated for the rest.
   */
  uint64_t clock;
  /*
   * The counts, in the order in which the events were named. The others are 0.
   */
  uint64_t counts[PERFCTR_COUNTS_EVENTS_MAX];
  /*
   * The number of events.
   */
  uint32_t events;
  /*
   * How many attempts to read were disturbed and made again.
   */
  uint32_t retries;
  /*
   * 1 if the counters were read without a system call, else 0.
   */
  uint32_t direct;
  /*
   * Always 0.
   */
  uint32_t reserved;
};

/*
 * What a handle counts with.
 */
struct perfctr_facts {
  /*
   * Who provides the counters.
   */
  enum perfctr_provider provider;
  /*
   * The number of events.
   */
  uint32_t events;
  /*
   * The frequency of the clock, unit: kHz; 0 if it is unknown. Linux' clock has ticks of 1 ns.
   */
  uint32_t clock_khz;
  /*
   * The number of general counters; 0 if the provider does not say.
   */
  uint32_t general;
  /*
   * The number of fixed counters.
   */
  uint32_t fixed;
  /*
   * The width of the general counters, unit: bits. Counts have 64 bits all the same.
   */
  uint32_t general_width;
  /*
   * The width of the fixed counters, unit: bits.
   */
  uint32_t fixed_width;
  /*
   * The number of virtual CPUs; 0 if the provider has none.
   */
  uint32_t vcpus;
  /*
   * Family, model and stepping of the processor (CPUID leaf 1, EAX); 0 if it is not an x86.
   */
  uint32_t cpu_signature;
  /*
   * Always 0.
   */
  uint32_t reserved[7];
};

/*
 * What a region has counted in one thread.
 */
struct perfctr_region {
  /*
   * The region's name. It stays until the thread that has the table takes another one.
   */
  const char *region;
  /*
   * What Linux called the thread in its first region. It stays as long.
   */
  const char *thread_name;
  /*
   * How often the region was stopped.
   */
  uint64_t calls;
  /*
   * How often it was started and not stopped.
   */
  uint64_t open;
  /*
   * The events from its starts to its stops. A recursive region is here once.
   */
  uint64_t total[PERFCTR_COUNTS_EVENTS_MAX];
  /*
   * Those that were not in regions that were started within it.
   */
  uint64_t own[PERFCTR_COUNTS_EVENTS_MAX];
  /*
   * How many readings were disturbed. Each adds a constant to the counts.
   */
  uint64_t retries;
  /*
   * The thread, by the order in which threads have started their first region, from 1.
   */
  uint32_t thread;
  /*
   * The number of events.
   */
  uint32_t events;
  /*
   * Always 0.
   */
  uint64_t reserved[4];
};

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens the calling thread's counters, and counts from 0.
 *
 * events: names with commas between, as perf writes them: "instructions:u,branches:u",
 * "cpu/event=0xc4,umask=1/u". With "" only the clock runs.
 * provider: one of enum perfctr_provider. PERFCTR_PROVIDER_ANY takes the first provider that
 * counts here, and any other value takes that provider or none.
 * flags: 0, or PERFCTR_COUNTS_UNVERIFIED.
 * counters: gets the handle, or null after an error.
 *
 * A thread has at most one handle. The counters end when it closes them or ends itself.
 */
enum perfctr_status perfctr_counts_open(const char *events,
                                        uint32_t provider,
                                        uint32_t flags,
                                        struct perfctr_counters **counters);

/*
 * Stops counting, and ends the handle. Null is refused like every other value that is no handle.
 */
enum perfctr_status perfctr_counts_close(struct perfctr_counters *counters);

/*
 * Reads all counters, without a system call where the provider can.
 *
 * reading: gets the reading. If the counters cannot be read, it has only the number of events.
 */
enum perfctr_status perfctr_counts_read(struct perfctr_counters *counters,
                                        struct perfctr_reading *reading);

/*
 * Reads all counters, and gives what was counted since an earlier reading of the same handle.
 *
 * The difference has what the two calls execute themselves, about as much each time, beside what
 * was executed between them. perfctr_counts_measure() leaves that out.
 *
 * before: the earlier reading.
 * difference: gets the difference. It may be the same object as before.
 */
enum perfctr_status perfctr_counts_since(struct perfctr_counters *counters,
                                         const struct perfctr_reading *before,
                                         struct perfctr_reading *difference);

/*
 * Calls body(argument) once, and stores in spent what the thread counted meanwhile, less what the
 * measurement itself counts.
 *
 * To find the latter, the first call also measures a body without instructions several times. For
 * events that count retired instructions the result is exact: it is what the body executes, but
 * for the return at its end. spent->clock is 0. A reading that is disturbed is repeated, and the
 * repetition is counted, too: spent->retries says how often that happened.
 *
 * The body must return: neither an exception nor longjmp() may leave it. It may read the counters
 * and measure, but not stop, start, open or close them.
 */
enum perfctr_status perfctr_counts_measure(struct perfctr_counters *counters,
                                           void (*body)(void *argument),
                                           void *argument,
                                           struct perfctr_reading *spent);

/*
 * Stops counting. The counts stay, and can be read.
 */
enum perfctr_status perfctr_counts_stop(struct perfctr_counters *counters);

/*
 * Goes on counting after a stop, from the counts that there are.
 */
enum perfctr_status perfctr_counts_start(struct perfctr_counters *counters);

/*
 * Counts the same events from 0.
 */
enum perfctr_status perfctr_counts_restart(struct perfctr_counters *counters);

/*
 * Says what a handle counts with.
 */
enum perfctr_status perfctr_counts_facts(struct perfctr_counters *counters,
                                         struct perfctr_facts *facts);

/*
 * Returns the name of a handle's event: "instructions:u". Events are numbered from 0. The text
 * stays until the handle is closed. Returns null if there is no such event or handle.
 */
const char *perfctr_counts_event(struct perfctr_counters *counters, uint32_t event);

/*
 * Chooses what regions count, by names as in perfctr_counts_open(). Without this call they count
 * instructions:u. With "" they count calls only. It fails if regions were started that count other
 * events.
 */
enum perfctr_status perfctr_region_events(const char *events);

/*
 * Starts the region with this name in the calling thread. Regions may lie within one another,
 * overlap, and be started again before they are stopped. The thread's first region opens counters
 * of its own, so the thread cannot have a handle.
 */
enum perfctr_status perfctr_region_start(const char *name);

/*
 * Stops the region of this name that the calling thread has started last. A thread that has not
 * started it gets PERFCTR_STATUS_REGION.
 *
 * A region counts what the thread executes from the end of perfctr_region_start() to the beginning
 * of this function, but not what these functions execute for regions within it.
 */
enum perfctr_status perfctr_region_stop(const char *name);

/*
 * Has the table of all regions be printed to the standard error output when the process ends by
 * exit() or by returning from main(), with the regions that were not stopped.
 */
enum perfctr_status perfctr_region_print_at_exit(void);

/*
 * Takes the table of what the regions of all threads have counted until now, for the calling
 * thread's calls of perfctr_region_row(), perfctr_region_event() and perfctr_region_text(). Texts
 * of the table that the thread has taken before end.
 *
 * rows: gets the number of rows.
 */
enum perfctr_status perfctr_region_table(uint32_t *rows);

/*
 * Gives a row of the table that the calling thread has taken. Rows are numbered from 0.
 */
enum perfctr_status perfctr_region_row(uint32_t number, struct perfctr_region *row);

/*
 * Returns the name of an event of the table that the calling thread has taken, or null if there
 * is none. Events are numbered from 0, in the order of the counts.
 */
const char *perfctr_region_event(uint32_t event);

/*
 * Returns the table that the calling thread has taken as a text, as it is printed at the end, or
 * null if there is none.
 */
const char *perfctr_region_text(void);

/*
 * Returns the text about the calling thread's last failure, or "" if there was none. It says what
 * to do where that is known, and may have several lines. It stays until the thread's next failure.
 */
const char *perfctr_counts_error(void);

/*
 * Returns the name of a value of enum perfctr_status, or null if there is none.
 */
const char *perfctr_counts_status_name(int32_t status);

/*
 * Returns the name of a value of enum perfctr_provider, or null if there is none.
 */
const char *perfctr_counts_provider_name(uint32_t provider);

/*
 * Returns the library's version: "0.1.0".
 */
const char *perfctr_counts_version(void);

/*
 * Returns the version of the interface that the library has. A program that was compiled with a
 * later PERFCTR_COUNTS_INTERFACE may miss functions.
 */
uint32_t perfctr_counts_interface(void);

#ifdef __cplusplus
}
#endif

#endif  /* PERFCTR_COUNTS_H */
