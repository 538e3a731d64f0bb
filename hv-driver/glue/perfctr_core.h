/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Generated from hv-driver/ffi/src/lib.rs by cargo xtask headers. */

#ifndef PERFCTR_CORE_H
#define PERFCTR_CORE_H

#include "perfctr_abi.h"

/*
 * Bytes of storage of the driver.
 */
#define PERFCTR_DRIVER_BYTES 344

/*
 * Bytes of storage of a physical CPU.
 */
#define PERFCTR_CPU_BYTES 600

/*
 * Bytes of storage of a vCPU with a page.
 */
#define PERFCTR_VCPU_BYTES 2736

/*
 * Bytes of what a vCPU keeps when its page is unregistered, all zeroes at first.
 */
#define PERFCTR_WINDOW_BYTES 16

/*
 * Bytes of storage of a vCPU's demand for the host's counters, all zeroes at first.
 */
#define PERFCTR_VCPU_DEMAND_BYTES 16

/*
 * Bytes of storage of a domain, all zeroes at first.
 */
#define PERFCTR_DOMAIN_BYTES 24

/*
 * Bytes of storage of a physical CPU's samples, all zeroes at first.
 */
#define PERFCTR_RING_BYTES 131112

/*
 * Bytes of a vCPU's account, all zeroes at first.
 */
#define PERFCTR_ACCOUNT_BYTES 32

/*
 * Bytes of storage of a reservation of the host's counters, all zeroes at first.
 */
#define PERFCTR_RESERVATION_BYTES 16

/*
 * Bytes of a physical CPU's memory for precise records, all zeroes at first.
 */
#define PERFCTR_RECORD_AREA_BYTES 4096

/*
 * Bytes of the largest argument of a hypercall.
 */
#define PERFCTR_ARGUMENT_BYTES 792

/*
 * The result of perfctr_core_nmi if the PMU has not raised the NMI.
 */
#define PERFCTR_NMI_FOREIGN 0

/*
 * The result of perfctr_core_nmi if the PMU has raised the NMI, and it was handled.
 */
#define PERFCTR_NMI_HANDLED 1

/*
 * The result of perfctr_core_nmi if a guest's counter has raised the NMI.
 */
#define PERFCTR_NMI_GUEST 2

/*
 * What the hypervisor has to do after the host has decided about a domain.
 */
enum perfctr_policy_change
#if __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // __STDC_VERSION__ >= 202311L
 {
  /*
   * It has nothing to do: the domain could already count.
   */
  PERFCTR_POLICY_CHANGE_NOTHING = 0,
  /*
   * It revokes the domain's vCPUs on every physical CPU, and interrupts them.
   */
  PERFCTR_POLICY_CHANGE_REVOKE = 1,
  /*
   * It interrupts the domain's vCPUs. The guest's kernel then asks again whether it may count.
   */
  PERFCTR_POLICY_CHANGE_TELL = 2,
};
#if __STDC_VERSION__ >= 202311L
typedef enum perfctr_policy_change perfctr_policy_change;
#else
typedef uint32_t perfctr_policy_change;
#endif // __STDC_VERSION__ >= 202311L

/*
 * How counters distinguish the guest's kernel mode from its user mode.
 */
enum perfctr_rings
#if __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // __STDC_VERSION__ >= 202311L
 {
  /*
   * The driver distinguishes them, because both execute in ring 3 (64-bit PV).
   */
  PERFCTR_RINGS_FOLDED = 0,
  /*
   * The hardware distinguishes them, because the guest has its own rings (HVM, PVH, KVM).
   */
  PERFCTR_RINGS_HARDWARE = 1,
};
#if __STDC_VERSION__ >= 202311L
typedef enum perfctr_rings perfctr_rings;
#else
typedef uint32_t perfctr_rings;
#endif // __STDC_VERSION__ >= 202311L

/*
 * A step that the core makes the host do.
 */
enum perfctr_host_step
#if __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // __STDC_VERSION__ >= 202311L
 {
  /*
   * Reserves all counters. Returns 1, or 0 if somebody else has one.
   */
  PERFCTR_HOST_STEP_RESERVE,
  /*
   * Gives up the reserved counters.
   */
  PERFCTR_HOST_STEP_RELEASE,
  /*
   * Returns 1 if the hard-lockup watchdog is switched on, or 0.
   */
  PERFCTR_HOST_STEP_WATCHDOG_IS_ON,
  /*
   * Switches the watchdog on.
   */
  PERFCTR_HOST_STEP_WATCHDOG_ON,
  /*
   * Switches the watchdog off.
   */
  PERFCTR_HOST_STEP_WATCHDOG_OFF,
  /*
   * Makes every CPU count for guests. Returns 0 or a negative error number.
   */
  PERFCTR_HOST_STEP_TAKE_CPUS,
  /*
   * Restores every CPU to its state before guests counted.
   */
  PERFCTR_HOST_STEP_GIVE_CPUS_BACK,
  /*
   * Logs that no guest can count, because perf has the counters.
   */
  PERFCTR_HOST_STEP_LOG_PERF_HAS_COUNTERS,
  /*
   * Logs that guests count.
   */
  PERFCTR_HOST_STEP_LOG_GUESTS_COUNT,
  /*
   * Logs that the watchdog is stopped.
   */
  PERFCTR_HOST_STEP_LOG_WATCHDOG_STOPPED,
  /*
   * Logs that the watchdog runs again.
   */
  PERFCTR_HOST_STEP_LOG_WATCHDOG_RUNS,
  /*
   * Logs that the watchdog does not run again.
   */
  PERFCTR_HOST_STEP_LOG_WATCHDOG_LOST,
};
#if __STDC_VERSION__ >= 202311L
typedef enum perfctr_host_step perfctr_host_step;
#else
typedef uint32_t perfctr_host_step;
#endif // __STDC_VERSION__ >= 202311L

/*
 * The account of one virtual CPU.
 */
struct perfctr_core_vcpu_account;

/*
 * A physical CPU as C holds it.
 */
struct perfctr_core_cpu;

/*
 * The driver's part of a domain, which C holds in its own structure of the domain.
 */
struct perfctr_core_domain;

/*
 * The driver's settings, fixed at boot.
 */
struct perfctr_core_driver;

/*
 * What a domain that may count may use.
 */
struct Limits;

/*
 * Whether the driver has the counters. The glue's lock is held during each call.
 */
struct perfctr_core_reservation;

/*
 * The samples of one physical CPU. Its interrupt writes, and one reader at a time takes.
 */
struct perfctr_core_ring;

/*
 * One vCPU's part of a Demand. The vCPU keeps it when it gives its page back.
 */
struct perfctr_core_vcpu_demand;

/*
 * A vCPU with a page as C holds it.
 */
struct perfctr_core_vcpu;

/*
 * The window in which a vCPU's overflows are counted against the allowed rate.
 */
struct perfctr_core_window;

/*
 * What a CPU says of itself.
 */
struct perfctr_cpuid {
  /*
   * Leaf 0: EBX, EDX, ECX, which spell the vendor.
   */
  uint32_t vendor[3];
  /*
   * Leaf 1, EAX: family, model and stepping.
   */
  uint32_t signature;
  /*
   * Leaf 0xA: EAX, EBX, ECX, EDX; zeroes if there is no such leaf.
   */
  uint32_t perfmon[4];
  /*
   * Leaf 0x23, sub-leaf 1: EAX, EBX; zeroes if there is no such leaf.
   */
  uint32_t perfmon_masks[2];
  /*
   * Leaf 0x80000022: EAX, EBX; zeroes if there is no such leaf.
   */
  uint32_t perfmon_amd[2];
  /*
   * Leaf 1, EDX.
   */
  uint32_t features;
  /*
   * Leaf 7, EDX; 0 if there is no such leaf.
   */
  uint32_t structured;
  /*
   * Leaf 0x80000001, ECX.
   */
  uint32_t extended;
  /*
   * Leaf 0x1A, EAX: the kind of core in a CPU that has several; 0 if there is no such leaf.
   */
  uint32_t core_type;
  /*
   * IA32_MISC_ENABLE; 0 if there is no such register.
   */
  uint64_t misc_enable;
  /*
   * IA32_PERF_CAPABILITIES; 0 if there is no such register.
   */
  uint64_t perf_capabilities;
  /*
   * TSX_FORCE_ABORT; 0 if there is no such register.
   */
  uint64_t tsx_force_abort;
};

/*
 * The values of the option's words.
 */
struct perfctr_options {
  /*
   * Whether the driver is on.
   */
  bool on;
  /*
   * See Settings::all_domains.
   */
  bool all_domains;
  /*
   * Whether the driver is on even if some CPUs cannot count, or differ from the boot CPU.
   */
  bool some_cpus;
  /*
   * See Settings::measure_cost.
   */
  bool measure_cost;
  /*
   * See Settings::all_events.
   */
  bool all_events;
  /*
   * See Settings::counts_entries.
   */
  bool counts_entries;
  /*
   * See Settings::counts_interrupts.
   */
  bool counts_interrupts;
  /*
   * See Settings::profile.
   */
  bool profile;
  /*
   * See Settings::accounts.
   */
  bool accounts;
  /*
   * See Settings::branches.
   */
  bool branches;
  /*
   * See Settings::precise.
   */
  bool precise;
  /*
   * Number of overflows that a vCPU may have in each millisecond.
   */
  uint32_t overflows_per_ms;
};

/*
 * The reason why the driver is off, or why nothing counts on a physical CPU; for the console.
 */
struct perfctr_why {
  /*
   * What was expected, not NUL-terminated.
   */
  const uint8_t *expected;
  uint32_t expected_bytes;
  /*
   * What was found.
   */
  uint32_t found;
};

/*
 * The facts about the host that the driver has to know.
 */
struct perfctr_host_facts {
  /*
   * The number of ticks of the time-stamp counter in a millisecond.
   */
  uint64_t ticks_per_ms;
  /*
   * See Settings::owns_all.
   */
  bool owns_all;
  /*
   * Whether the glue can sample the host, and account what its vCPUs execute.
   */
  bool can_profile;
  /*
   * Whether the driver may use the registers that record branches and places of overflows.
   */
  bool can_record;
};

/*
 * The guest's time-stamp counter: `offset + (scale * host >> fraction_bits)`.
 */
struct perfctr_clock {
  /*
   * What is added, unit: ticks of the guest's counter.
   */
  uint64_t offset;
  /*
   * A fixed-point number; it is 0 if the guest's counter has the host's frequency.
   */
  uint64_t scale;
  /*
   * The number of bits after the point in `scale`.
   */
  uint32_t fraction_bits;
  /*
   * Always 0.
   */
  uint32_t reserved;
};

/*
 * A kind of guest.
 */
struct perfctr_guest {
  /*
   * How its modes are distinguished.
   */
  perfctr_rings rings;
  /*
   * The guest's number of the user who may read the vCPU's page and counters.
   */
  uint32_t observer;
  /*
   * Its time-stamp counter.
   */
  struct perfctr_clock clock;
};



/*
 * Reads what the physical CPU that executes this can do.
 */
void perfctr_core_read_cpuid(struct perfctr_cpuid *cpuid);

/*
 * Parses the value of the option `perfctr`. Returns 0 or -1.
 */
int perfctr_core_parse(const char *text,
                       uint32_t length,
                       struct perfctr_options *options,
                       struct perfctr_why *why);

/*
 * Decides whether this CPU is usable. Returns 0, or -1 and stores the reason in `why`.
 */
int perfctr_core_init(struct perfctr_core_driver *driver,
                      const struct perfctr_cpuid *cpuid,
                      const struct perfctr_options *options,
                      const struct perfctr_host_facts *host,
                      struct perfctr_why *why);

/*
 * Prepares the storage of physical CPU `number`, whose PMU is not the driver's yet.
 */
void perfctr_core_cpu_init(struct perfctr_core_cpu *cpu,
                           const struct perfctr_core_driver *driver,
                           uint32_t number,
                           const void *area);

/*
 * Takes over the PMU of the physical CPU that executes this, whose registers may hold anything.
 */
int perfctr_core_cpu_up(const struct perfctr_core_cpu *cpu,
                        const struct perfctr_cpuid *cpuid,
                        struct perfctr_why *why);

/*
 * Stops the counters of the physical CPU that executes this, which goes down or is given back.
 */
void perfctr_core_cpu_down(const struct perfctr_core_cpu *cpu);

/*
 * Returns whether the host lets the domain count.
 */
bool perfctr_core_allows(const struct perfctr_core_driver *driver,
                         const struct perfctr_core_domain *domain,
                         bool controls);

/*
 * Notes that a vCPU of the domain needs the counters; see VcpuDemand::begin.
 */
void perfctr_core_demand_begins(struct perfctr_core_vcpu_demand *vcpu,
                                const struct perfctr_core_domain *domain,
                                uint64_t taken);

/*
 * Notes that a vCPU of the domain no longer needs the counters; see VcpuDemand::end.
 */
bool perfctr_core_demand_ends(struct perfctr_core_vcpu_demand *vcpu,
                              const struct perfctr_core_domain *domain);

/*
 * Returns whether the driver has kept the counters since the vCPU got them.
 */
bool perfctr_core_has_counters(const struct perfctr_core_vcpu_demand *vcpu, uint64_t taken);

/*
 * Returns whether the domain needs the counters.
 */
bool perfctr_core_needs_counters(const struct perfctr_core_driver *driver,
                                 const struct perfctr_core_domain *domain);

/*
 * Allows the domain to count within limits, or forbids it to count.
 */
perfctr_policy_change perfctr_core_set_policy(const struct perfctr_core_driver *driver,
                                              const struct perfctr_core_domain *domain,
                                              bool controls,
                                              const struct perfctr_hv_domain *wanted);

/*
 * Parses a domain's number and its limits; see hv_driver::policy::parse.
 */
int perfctr_core_parse_policy(const char *text,
                              uint32_t length,
                              bool allowed,
                              struct perfctr_hv_domain *wanted);

/*
 * Adds a domain to the answer, if the caller has asked for it; see Driver::add_domain.
 */
void perfctr_core_add_domain(const struct perfctr_core_driver *driver,
                             struct perfctr_hv_domains *answer,
                             const struct perfctr_core_domain *domain,
                             uint32_t domid,
                             bool controls);

/*
 * Registers `page` for the calling vCPU, `id` of `domain`, or lets it go on from the page.
 */
int perfctr_core_register(const struct perfctr_core_cpu *cpu,
                          struct perfctr_core_vcpu *vcpu,
                          const struct perfctr_vcpu_page *page,
                          const struct perfctr_guest *guest,
                          uint32_t id,
                          const struct perfctr_core_window *window,
                          const struct perfctr_core_domain *domain,
                          bool controls,
                          bool goes_on);

/*
 * Unregisters the calling vCPU's page; see Vcpu::unregister.
 */
void perfctr_core_unregister(const struct perfctr_core_cpu *cpu,
                             struct perfctr_core_vcpu *vcpu,
                             struct perfctr_core_window *window);

/*
 * Drops the page of a vCPU that is switched in and whose state is replaced; see Vcpu::abandon.
 */
void perfctr_core_abandon(const struct perfctr_core_cpu *cpu, struct perfctr_core_vcpu *vcpu);

/*
 * Switches in a vCPU without a page.
 */
void perfctr_core_run_stranger(const struct perfctr_core_cpu *cpu);

/*
 * Switches the vCPU out; returns whether to call perfctr_core_overflowed_at.
 */
bool perfctr_core_switch_from(const struct perfctr_core_cpu *cpu, struct perfctr_core_vcpu *vcpu);

/*
 * Notes the place of overflows that the driver has just found; see Vcpu::overflowed_at.
 */
void perfctr_core_overflowed_at(struct perfctr_core_vcpu *vcpu,
                                const struct perfctr_hv_place *place);

/*
 * Sets how the guest reads its time-stamp counter; see Vcpu::set_clock.
 */
void perfctr_core_set_clock(struct perfctr_core_vcpu *vcpu, const struct perfctr_clock *clock);

/*
 * Switches the vCPU in; returns whether to send the guest the virtual interrupt.
 */
bool perfctr_core_switch_to(const struct perfctr_core_cpu *cpu,
                            struct perfctr_core_vcpu *vcpu,
                            bool kernel,
                            const struct perfctr_core_domain *domain,
                            bool controls);

/*
 * Prepares the vCPU before the next instruction enters the guest; see Vcpu::enter_guest.
 */
void perfctr_core_enter_guest(const struct perfctr_core_cpu *cpu,
                              struct perfctr_core_vcpu *vcpu,
                              bool kernel);

/*
 * Notes an interrupt or an exception that has interrupted a PV guest.
 */
void perfctr_core_guest_interrupted(const struct perfctr_core_cpu *cpu,
                                    struct perfctr_core_vcpu *vcpu,
                                    uint8_t vector);

/*
 * Notes a change of the guest's mode. Returns whether to send the guest the virtual interrupt.
 */
bool perfctr_core_toggle(const struct perfctr_core_cpu *cpu,
                         struct perfctr_core_vcpu *vcpu,
                         bool kernel);

/*
 * Stops the vCPU that is current here, if the host no longer lets it count.
 */
bool perfctr_core_revoke(const struct perfctr_core_cpu *cpu,
                         struct perfctr_core_vcpu *vcpu,
                         const struct perfctr_core_domain *domain,
                         bool controls);

/*
 * Handles an interrupt of the PMU. Returns whether to send the vCPU the virtual interrupt.
 */
bool perfctr_core_interrupt(const struct perfctr_core_cpu *cpu, struct perfctr_core_vcpu *vcpu);

/*
 * Returns whether RDPMC also has to exit from a vCPU that has a page.
 */
bool perfctr_core_rdpmc_exits(const struct perfctr_core_driver *driver);

/*
 * Reads the counter `index` for a vCPU with a page; returns false if the vCPU is to get #GP.
 */
bool perfctr_core_rdpmc(const struct perfctr_core_cpu *cpu, uint32_t index, uint64_t *value);

/*
 * Returns whether an overflow explains an NMI that has just come to the CPU of `cpu`, which is up.
 */
bool perfctr_core_explains_nmi(const struct perfctr_core_cpu *cpu, bool is_masked);

/*
 * Returns whether the PMU has raised an NMI of `cpu` that nobody else has explained.
 */
bool perfctr_core_explains_unknown_nmi(const struct perfctr_core_cpu *cpu);

/*
 * Handles an NMI that has come to the CPU of `cpu`, which is up. Returns an `NMI_*` number.
 */
uint32_t perfctr_core_nmi(const struct perfctr_core_cpu *cpu,
                          bool is_masked,
                          const struct perfctr_core_ring *ring,
                          struct perfctr_hv_sample *at,
                          const struct perfctr_hv_place *left);

/*
 * Returns whether samples in `ring` say where guests were left, which is false if `ring` is null.
 */
bool perfctr_core_is_at_guests(const struct perfctr_core_ring *ring);

/*
 * Begins a session of samples. Returns 0 or a negative error number. C holds the profile's lock.
 */
int perfctr_core_begin_profile(const struct perfctr_core_driver *driver);

/*
 * Ends the session. Returns whether there was one. C holds the profile's lock.
 */
bool perfctr_core_end_profile(const struct perfctr_core_driver *driver);

/*
 * Begins to sample the physical CPU that executes this. Returns whether that has begun.
 */
bool perfctr_core_start_samples(const struct perfctr_core_cpu *cpu,
                                const struct perfctr_core_ring *ring,
                                const struct perfctr_hv_profile *profile);

/*
 * Ends sampling on the physical CPU that executes this.
 */
void perfctr_core_stop_samples(const struct perfctr_core_cpu *cpu);

/*
 * Takes the oldest samples of `ring`. Returns 0 or a negative error number.
 */
int perfctr_core_take_samples(const struct perfctr_core_driver *driver,
                              const struct perfctr_core_ring *ring,
                              struct perfctr_hv_samples *samples);

/*
 * Adds what was counted on this physical CPU to the account of its current vCPU.
 */
bool perfctr_core_account(const struct perfctr_core_cpu *cpu,
                          const struct perfctr_core_vcpu_account *account,
                          perfctr_rings rings);

/*
 * Prepares the accounts for the next guest on this CPU; see hv_driver::ThisCpu::account_next.
 */
void perfctr_core_account_next(const struct perfctr_core_cpu *cpu, perfctr_rings rings);

/*
 * Begins to account an event. Returns 0 or a negative error number. C holds the accounts' lock.
 */
int perfctr_core_begin_accounts(const struct perfctr_core_driver *driver,
                                const struct perfctr_hv_accounting *accounting);

/*
 * Ends the accounting. Returns whether there was one. C holds the accounts' lock.
 */
bool perfctr_core_end_accounts(const struct perfctr_core_driver *driver);

/*
 * Begins an answer. Returns 0, 1 if all CPUs have to account first, or a negative error number.
 */
int perfctr_core_wants_accounts(const struct perfctr_core_driver *driver,
                                struct perfctr_hv_accounts *answer);

/*
 * Adds a vCPU's account to the answer, if it was asked for.
 */
bool perfctr_core_add_account(const struct perfctr_core_driver *driver,
                              struct perfctr_hv_accounts *answer,
                              const struct perfctr_core_vcpu_account *account,
                              uint32_t domain,
                              uint32_t vcpu,
                              perfctr_rings rings);

/*
 * Stops guests' counters on the physical CPU of `cpu`, if somebody else has let them count.
 */
void perfctr_core_close_gate(const struct perfctr_core_cpu *cpu);

/*
 * Adds this CPU's statistics to `total`.
 */
void perfctr_core_add_stats(const struct perfctr_core_cpu *cpu, struct perfctr_hv_stats *total);

/*
 * Returns the answer to a guest that may not count; see hv_driver::hypercall::answer.
 */
void perfctr_core_query(const struct perfctr_core_driver *driver, struct perfctr_hv_query *query);

/*
 * Serves a hypercall. Returns 0 or a negative error number.
 */
int perfctr_core_hypercall(const struct perfctr_core_driver *driver,
                           void *caller,
                           uint32_t op,
                           void *argument,
                           uint32_t length);

/*
 * Reads a register that may not exist. Returns whether the read has worked without a fault.
 */
extern bool perfctr_glue_try_rdmsr(uint32_t msr, uint64_t *value);

/*
 * Writes a register that may not exist. Returns whether the write has worked without a fault.
 */
extern bool perfctr_glue_try_wrmsr(uint32_t msr, uint64_t value);

/*
 * Sets the values that the hardware loads into the register that enables counters.
 */
extern void perfctr_glue_load_at_switch(uint64_t inside, uint64_t outside);

/*
 * Copies the hypercall's argument from the guest. Returns 0 or a negative error number.
 */
extern int perfctr_glue_copy_in(void *caller, void *to, uint32_t length);

/*
 * Copies the hypercall's argument back to the guest. Returns 0 or a negative error number.
 */
extern int perfctr_glue_copy_out(void *caller, const void *from, uint32_t length);

/*
 * Asks the security policy whether the current domain may use, or control, counters.
 */
extern int perfctr_glue_permits(bool control);

/*
 * Returns the driver's part of the current domain, and fills in `controls`.
 */
extern const struct perfctr_core_domain *perfctr_glue_domain(bool *controls);

/*
 * Stores the kind of the current domain. Returns false if the domain can have no counters.
 */
extern bool perfctr_glue_guest(struct perfctr_guest *guest);

/*
 * Returns this physical CPU's object. Interrupts are disabled.
 */
extern const struct perfctr_core_cpu *perfctr_glue_cpu(void);

/*
 * Returns the current vCPU's object, or null. Interrupts are disabled.
 */
extern struct perfctr_core_vcpu *perfctr_glue_vcpu(void);

/*
 * Returns the current domain's number; see `HvQuery::machine`.
 */
extern uint64_t perfctr_glue_machine(void);

/*
 * Takes the counters from the host, if the current vCPU has a page and may count.
 */
extern int perfctr_glue_take_counters(void);

/*
 * Notes that the current vCPU no longer needs the counters, if it has needed them.
 */
extern void perfctr_glue_put_counters(void);

/*
 * Pins the frame, and registers it for the current vCPU, or lets the vCPU go on from it.
 */
extern int perfctr_glue_register(uint64_t gfn, const struct perfctr_guest *guest, bool goes_on);

/*
 * Unregisters the page of the current vCPU, which has one.
 */
extern void perfctr_glue_unregister(void);

/*
 * Allows or forbids a domain to count; returns 0 or a negative error number.
 */
extern int perfctr_glue_set_policy(const struct perfctr_hv_domain *wanted);

/*
 * Calls `perfctr_core_add_domain` for every domain.
 */
extern void perfctr_glue_list_domains(struct perfctr_hv_domains *answer);

/*
 * Says which time-stamp counter a domain's vCPU reads; returns 0 or a negative error number.
 */
extern int perfctr_glue_clock(uint32_t domain, uint32_t vcpu, struct perfctr_clock *clock);

/*
 * Calls `perfctr_core_add_stats` for every physical CPU, one after another.
 */
extern void perfctr_glue_add_stats(struct perfctr_hv_stats *total);

/*
 * Begins to sample the host's physical CPUs; returns 0 or a negative error number.
 */
extern int perfctr_glue_profile_start(const struct perfctr_hv_profile *profile);

/*
 * Calls `perfctr_core_take_samples` with the ring of physical CPU `cpu`, if it has one.
 */
extern int perfctr_glue_profile_read(uint32_t cpu, struct perfctr_hv_samples *samples);

/*
 * Ends sampling; returns 0 or a negative error number.
 */
extern int perfctr_glue_profile_stop(void);

/*
 * Begins to account an event on all physical CPUs; returns 0 or a negative error number.
 */
extern int perfctr_glue_accounts_start(const struct perfctr_hv_accounting *accounting);

/*
 * Calls `perfctr_core_add_account` for each vCPU, in the order of domains and vCPUs.
 */
extern int perfctr_glue_accounts_read(struct perfctr_hv_accounts *answer);

/*
 * Ends the accounting; returns 0 or a negative error number.
 */
extern int perfctr_glue_accounts_stop(void);

/*
 * Does one step, and returns the result that the step names, or 0. It may sleep.
 */
extern int perfctr_glue_host_step(perfctr_host_step step);

/*
 * Takes the counters or gives them back; see Reservation::settle.
 */
void perfctr_core_settle(struct perfctr_core_reservation *reservation,
                         bool needed,
                         uint64_t now_ns);

/*
 * Returns 0 if the driver has the counters, or the error for a vCPU that needs them.
 */
int perfctr_core_reservation_state(const struct perfctr_core_reservation *reservation);

/*
 * Returns whether the driver could take the counters now; see Reservation::may_try.
 */
bool perfctr_core_may_try(const struct perfctr_core_reservation *reservation, uint64_t now_ns);

/*
 * Returns 0, or a negative error number if the host's CPUs cannot count; see try_cpus.
 */
int perfctr_core_try_cpus(void);

#endif  /* PERFCTR_CORE_H */
