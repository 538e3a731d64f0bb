/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The performance monitoring unit, see pmu.h. */

#define NEED_CPU_REG_SHORTCUTS 1
#include "bochs.h"
#include "cpu.h"
#include "apic.h"
#include "cpuid.h"

/* IA32_PERFEVTSELx. */
#define SELECT_USR (1 << 16)
#define SELECT_OS (1 << 17)
#define SELECT_INT (1 << 20)
#define SELECT_EN (1 << 22)
#define SELECT_CMASK BX_CONST64(0xff000000)

/* IA32_FIXED_CTR_CTRL, four bits for each counter. */
#define FIXED_OS 1
#define FIXED_USR 2
#define FIXED_PMI 8
#define FIXED_CTRL_MASK 0xfff

/* Of IA32_PERF_GLOBAL_STATUS: OvfUncore, OvfBuf, CondChgd can be cleared, and are never set. */
#define STATUS_OTHERS BX_CONST64(0xe000000000000000)

#define MSR_PMC0 0x0c1
#define MSR_PERFEVTSEL0 0x186
#define MSR_MISC_ENABLE 0x1a0
#define MSR_FIXED_CTR0 0x309
#define MSR_FIXED_CTR_CTRL 0x38d
#define MSR_GLOBAL_STATUS 0x38e
#define MSR_GLOBAL_CTRL 0x38f
#define MSR_GLOBAL_OVF_CTRL 0x390

/* As many counters of a kind as some processor has. */
#define COUNTERS_MAX 8

#define NEVER (~BX_CONST64(0))

/* RDPMC's first number of what no processor has. */
#define RDPMC_TALLY 0x74616c79

Bit64u bx_pmu_c::exits[BX_MAX_SMP_THREADS_SUPPORTED];

void bx_pmu_c::power_on(BX_CPU_C *its_cpu)
{
  memset(this, 0, sizeof(*this));
  cpu = its_cpu;
  global_ctrl = (1 << BX_PMU_GENERAL) - 1;
  look_at = branches_look_at = NEVER;
}

void bx_pmu_c::get_cpuid_leaf(cpuid_function_t *leaf)
{
  if (!leaf->eax)
    return;
  leaf->eax = 3 | BX_PMU_GENERAL << 8 | BX_PMU_WIDTH << 16 | 7 << 24;
  /* Cache references and misses, and mispredicted branches, do not exist. */
  leaf->ebx = 0x58;
  leaf->ecx = 0;
  leaf->edx = BX_PMU_FIXED | BX_PMU_WIDTH << 5;
}

Bit64u bx_pmu_c::global_bit(unsigned n)
{
  return n < BX_PMU_GENERAL ? BX_CONST64(1) << n : BX_CONST64(1) << (32 + n - BX_PMU_GENERAL);
}

/* What a counter counts if it is enabled. */
unsigned bx_pmu_c::event_of(unsigned n) const
{
  static const unsigned fixed[BX_PMU_FIXED] = { INSTRUCTIONS, CYCLES, REFERENCE };

  if (n >= BX_PMU_GENERAL)
    return fixed[n - BX_PMU_GENERAL];
  if (select[n] & SELECT_CMASK)
    return NOTHING;
  switch (select[n] & 0xffff) {
  case 0x00c0: return INSTRUCTIONS;
  case 0x00c4: return BRANCHES;
  case 0x01c4: return CONDITIONALS;
  case 0x003c: return CYCLES;
  case 0x013c: return REFERENCE;
  default: return NOTHING;
  }
}

bool bx_pmu_c::is_counting(unsigned n, bool user) const
{
  if (!(global_ctrl & global_bit(n)))
    return false;
  if (n < BX_PMU_GENERAL)
    return (select[n] & SELECT_EN) && (select[n] & (user ? SELECT_USR : SELECT_OS));
  return fixed_ctrl >> 4 * (n - BX_PMU_GENERAL) & (user ? FIXED_USR : FIXED_OS);
}

bool bx_pmu_c::interrupts(unsigned n) const
{
  return n < BX_PMU_GENERAL ? select[n] & SELECT_INT :
                              fixed_ctrl >> 4 * (n - BX_PMU_GENERAL) & FIXED_PMI;
}

/* What the CPU has done, ever, by event. The cycles are those of a made-up core. */
void bx_pmu_c::totals(Bit64u *now) const
{
  now[INSTRUCTIONS] = cpu->retired + retired_early;
  now[BRANCHES] = branches;
  now[CONDITIONALS] = conditionals;
  now[CYCLES] = 2 * now[INSTRUCTIONS] + 4 * branches;
  now[REFERENCE] = now[CYCLES] / 2;
}

/* Counts what has been done since the last time, in the rings in which that was. */
void bx_pmu_c::fold()
{
  Bit64u now[EVENTS];
  bool tells = false;

  totals(now);
  for (unsigned n = 0; n < COUNTERS; n++) {
    unsigned event = event_of(n);
    if (event == NOTHING || !is_counting(n, is_user))
      continue;
    /* An instruction that was to retire, and did not, is counted. */
    Bit64u more = now[event] > seen[event] ? now[event] - seen[event] : 0;
    if (more > COUNTER_MASK - counter[n]) {
      global_status |= global_bit(n);
      tells |= interrupts(n);
    }
    counter[n] = (counter[n] + more) & COUNTER_MASK;
  }
  if (now[INSTRUCTIONS] > seen[INSTRUCTIONS]) {
    Bit64u more = now[INSTRUCTIONS] - seen[INSTRUCTIONS];
    tally.insns[is_user] += more;
    tally.guest_insns += is_guest && !is_user ? more : 0;
  }
  memcpy(seen, now, sizeof(seen));
  if (tells) {
    tally.interrupts++;
    cpu->lapic->perfmon_interrupt();
  }
}

/* From when on the CPU has to stop behind each instruction, or behind the next branch. */
void bx_pmu_c::plan()
{
  look_at = branches_look_at = NEVER;
  for (unsigned n = 0; n < COUNTERS; n++) {
    unsigned event = event_of(n);
    if (event == NOTHING || !is_counting(n, is_user))
      continue;
    Bit64u left = COUNTER_MASK - counter[n] + 1;
    if (event == BRANCHES || event == CONDITIONALS) {
      Bit64u at = branches + left;
      branches_look_at = at < branches_look_at ? at : branches_look_at;
      continue;
    }
    /* An instruction is six cycles at most. */
    Bit64u instructions = event == INSTRUCTIONS ? left : left / (event == CYCLES ? 6 : 3);
    Bit64u ahead = instructions > BX_MAX_TRACE_LENGTH ? instructions - BX_MAX_TRACE_LENGTH : 0;
    Bit64u at = cpu->retired + ahead;
    look_at = at < look_at ? at : look_at;
  }
}

bool bx_pmu_c::update()
{
  bool was_host = !is_user && !is_guest;

  retired_early = 0;
  fold();
  is_user = cpu->sregs[BX_SEG_REG_CS].selector.rpl != 0;
  is_guest = cpu->in_vmx_guest || cpu->in_svm_guest;
  tally.entries += !was_host && !is_user && !is_guest;
  plan();
  return is_due(cpu->retired);
}

void bx_pmu_c::stop_behind_branch()
{
  look_at = 0;
  cpu->async_event |= BX_ASYNC_EVENT_STOP_TRACE;
}

void bx_pmu_c::retire_now()
{
  retired_early = 1;
  fold();
  look_at = 0;
}

void bx_pmu_c::load_global_ctrl(Bit64u value)
{
  fold();
  global_ctrl = value;
  look_at = 0;
}

bool bx_pmu_c::rdpmc(Bit32u index, Bit64u *value)
{
  unsigned n = index & 0x3fffffff;

  if (index & 0x80000000 || n >= (index >> 30 ? BX_PMU_FIXED : BX_PMU_GENERAL))
    return false;
  fold();
  *value = counter[index >> 30 ? BX_PMU_GENERAL + n : n];
  tally.pmc_reads++;
  return true;
}

bool bx_pmu_c::read_tally(Bit32u index, Bit64u *value)
{
  Bit32u n = index - RDPMC_TALLY;

  if (n >= 10)
    return false;
  fold();
  const Bit64u numbers[] = {
    tally.insns[0], tally.insns[1], tally.entries, tally.interrupts,
    tally.msr_reads, tally.msr_writes, tally.pmc_reads, exits[cpu->bx_cpuid],
    /* The place of the last overflow is not kept. */
    0, tally.guest_insns,
  };
  *value = numbers[n];
  return true;
}

/* Whether this is a register of a counter that only processors with more of them have. */
static bool is_absent(Bit32u index)
{
  Bit32u general = index - (index < MSR_PERFEVTSEL0 ? MSR_PMC0 : MSR_PERFEVTSEL0);
  Bit32u fixed = index - MSR_FIXED_CTR0;

  return (general >= BX_PMU_GENERAL && general < COUNTERS_MAX) ||
         (fixed >= BX_PMU_FIXED && fixed < COUNTERS_MAX);
}

bx_pmu_answer bx_pmu_c::rdmsr(Bit32u index, Bit64u *value)
{
  if (is_absent(index))
    return BX_PMU_REFUSED;
  fold();
  if (index - MSR_PMC0 < BX_PMU_GENERAL)
    *value = counter[index - MSR_PMC0];
  else if (index - MSR_PERFEVTSEL0 < BX_PMU_GENERAL)
    *value = select[index - MSR_PERFEVTSEL0];
  else if (index - MSR_FIXED_CTR0 < BX_PMU_FIXED)
    *value = counter[BX_PMU_GENERAL + index - MSR_FIXED_CTR0];
  else if (index == MSR_FIXED_CTR_CTRL)
    *value = fixed_ctrl;
  else if (index == MSR_GLOBAL_STATUS)
    *value = global_status;
  else if (index == MSR_GLOBAL_CTRL)
    *value = global_ctrl;
  else if (index == MSR_GLOBAL_OVF_CTRL)
    *value = 0;
  else if (index == MSR_MISC_ENABLE)
    *value = BX_PMU_MISC_ENABLE;
  else
    return BX_PMU_NOT_OURS;
  tally.msr_reads++;
  return BX_PMU_DONE;
}

/* Whether a write of this value to one of our registers is refused. */
bool bx_pmu_c::refuses(Bit32u index, Bit64u value)
{
  switch (index) {
  case MSR_FIXED_CTR_CTRL: return value & ~(Bit64u)FIXED_CTRL_MASK;
  case MSR_GLOBAL_STATUS: return true;
  case MSR_GLOBAL_CTRL: return !is_global_ctrl(value);
  case MSR_GLOBAL_OVF_CTRL: return value & ~(GLOBAL_MASK | STATUS_OTHERS);
  default:
    if (index - MSR_PERFEVTSEL0 < BX_PMU_GENERAL)
      return value >> 32;
    return index >= MSR_FIXED_CTR0 && value & ~COUNTER_MASK;
  }
}

bx_pmu_answer bx_pmu_c::wrmsr(Bit32u index, Bit64u value)
{
  bool is_general = index - MSR_PMC0 < BX_PMU_GENERAL;
  bool is_select = index - MSR_PERFEVTSEL0 < BX_PMU_GENERAL;
  bool is_fixed = index - MSR_FIXED_CTR0 < BX_PMU_FIXED;

  if (is_absent(index))
    return BX_PMU_REFUSED;
  if (!is_general && !is_select && !is_fixed &&
      (index < MSR_FIXED_CTR_CTRL || index > MSR_GLOBAL_OVF_CTRL))
    return BX_PMU_NOT_OURS;
  if (!is_general && refuses(index, value))
    return BX_PMU_REFUSED;
  if (is_list) {
    fold();
  } else {
    tally.msr_writes++;
    retire_now();
  }
  look_at = 0;
  if (is_general)
    counter[index - MSR_PMC0] = extended(value);
  else if (is_select)
    select[index - MSR_PERFEVTSEL0] = value;
  else if (is_fixed)
    counter[BX_PMU_GENERAL + index - MSR_FIXED_CTR0] = value;
  else if (index == MSR_FIXED_CTR_CTRL)
    fixed_ctrl = value;
  else if (index == MSR_GLOBAL_CTRL)
    global_ctrl = value;
  else
    global_status &= ~value;
  return BX_PMU_DONE;
}
