/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A performance monitoring unit for Bochs: Intel's architectural one, version 3
 * (SDM 3B, chapter 20), with four general and three fixed counters of 48 bits.
 *
 * A CPU counts the instructions that it retires, and its branches, all the
 * time. The unit is brought up to date only where something depends on it: at
 * its registers, where CPL changes, and where a counter overflows.
 */
#ifndef BX_PMU_H
#define BX_PMU_H

#define BX_PMU_GENERAL 4
#define BX_PMU_FIXED 3
#define BX_PMU_WIDTH 48

/* IA32_MISC_ENABLE: performance monitoring is available, BTS and PEBS are not. */
#define BX_PMU_MISC_ENABLE 0x1880

class BX_CPU_C;
struct cpuid_function_t;

/* What an answer to an access to a register is. */
enum bx_pmu_answer { BX_PMU_NOT_OURS, BX_PMU_DONE, BX_PMU_REFUSED };

class bx_pmu_c {
public:
  /* The CPU is switched on. The registers survive INIT. */
  void power_on(BX_CPU_C *cpu);

  /* CPUID leaf 0xA, on each model that has one. */
  static void get_cpuid_leaf(cpuid_function_t *leaf);

  bx_pmu_answer rdmsr(Bit32u index, Bit64u *value);
  bx_pmu_answer wrmsr(Bit32u index, Bit64u value);
  /* False if there is no such counter. */
  bool rdpmc(Bit32u index, Bit64u *value);
  /* A number of the tally, which RDPMC reads everywhere. False if there is no such number. */
  bool read_tally(Bit32u index, Bit64u *value);

  /* IA32_PERF_GLOBAL_CTRL, by a VM entry or a VM exit. */
  static bool is_global_ctrl(Bit64u value) { return (value & ~GLOBAL_MASK) == 0; }
  void load_global_ctrl(Bit64u value);

  /* The instruction that is under way retires under what is loaded now. */
  void retire_now();

  /* A list of registers is or is not being loaded by a VM entry or a VM exit. */
  void load_list(bool begins) { is_list = begins; }

  /* CPL may be another one from the next instruction on. */
  void note_mode() { look_at = 0; }

  /* A branch is about to retire. */
  void branch(bool conditional)
  {
    branches++;
    conditionals += conditional;
    if (branches >= branches_look_at)
      stop_behind_branch();
  }

  /* A CPU has left its guest. */
  static void exited(unsigned of) { exits[of]++; }

  /* Whether update() is to be called between two instructions. */
  bool is_due(Bit64u retired) const { return retired >= look_at; }

  /*
   * Brings the counters up to date between two instructions. True if only one
   * instruction may be executed before the next call.
   */
  bool update();

private:
  enum event { INSTRUCTIONS, BRANCHES, CONDITIONALS, CYCLES, REFERENCE, EVENTS };
  enum { COUNTERS = BX_PMU_GENERAL + BX_PMU_FIXED, NOTHING = EVENTS };

  static const Bit64u COUNTER_MASK = (BX_CONST64(1) << BX_PMU_WIDTH) - 1;
  static const Bit64u GLOBAL_MASK = (1 << BX_PMU_GENERAL) - 1 |
                                    ((BX_CONST64(1) << BX_PMU_FIXED) - 1) << 32;

  /* What the CPU has done beside its counters: the numbers of the model for QEMU. */
  struct {
    /* Instructions in CPL 0 and elsewhere, and those in a guest's CPL 0. */
    Bit64u insns[2], guest_insns;
    /* Entries into CPL 0, except a guest's. */
    Bit64u entries;
    /* Interrupts that counters raised. */
    Bit64u interrupts;
    Bit64u msr_reads, msr_writes, pmc_reads;
  } tally;
  static Bit64u exits[BX_MAX_SMP_THREADS_SUPPORTED];

  BX_CPU_C *cpu;
  /* General counters, then fixed ones. */
  Bit64u counter[COUNTERS];
  Bit64u select[BX_PMU_GENERAL];
  Bit64u fixed_ctrl, global_ctrl, global_status;

  /* What the CPU has done, ever. */
  Bit64u branches, conditionals;
  /* What of that is in the counters, and how much of it was this instruction's. */
  Bit64u seen[EVENTS];
  Bit64u retired_early;
  /* The rings that have counted since, and whether they were a guest's. */
  bool is_user, is_guest;
  bool is_list;

  /* When to look again. */
  Bit64u look_at, branches_look_at;

  static Bit64u global_bit(unsigned n);
  unsigned event_of(unsigned n) const;
  bool is_counting(unsigned n, bool user) const;
  bool interrupts(unsigned n) const;
  void totals(Bit64u *now) const;
  void fold();
  void plan();
  void stop_behind_branch();
  static bool refuses(Bit32u index, Bit64u value);
  static Bit64u extended(Bit64u value) { return (Bit64u)(Bit64s)(Bit32s)value & COUNTER_MASK; }
};

#endif
