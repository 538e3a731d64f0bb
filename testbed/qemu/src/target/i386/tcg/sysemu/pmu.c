/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Performance monitoring unit of the emulated processor: registers, counters, overflow.
 *
 * Intel: architectural performance monitoring versions 2 to 4 (SDM volume 3, chapter "Performance
 * Monitoring"), Nehalem's branch records (chapter "Debug, Branch Profile, TSC"), and the records of
 * PEBS in format 3. AMD: the four K7-style counters, the six of the core extension, version 2 with
 * its global registers (APM volume 2, "Performance Monitoring Counters"), and its branch records.
 * The registers live in the fields that CPUX86State has for them anyway, so they migrate.
 */

#include "qemu/osdep.h"
#include "qemu/main-loop.h"
#include "qemu/cutils.h"
#include "qapi/error.h"
#include "cpu.h"
#include "exec/helper-proto.h"
#include "exec/exec-all.h"
#include "sysemu/cpu-timers.h"
#include "sysemu/tcg.h"
#include "hw/i386/apic.h"

#define INTEL_COUNTERS   4 /* general ones */
#define INTEL_COUNTERS_MAX 8 /* that some processor has, of either kind */
#define K7_COUNTERS      4
#define CORE_COUNTERS    6 /* of AMD's core extension */
#define MAX_GENERAL      CORE_COUNTERS
#define FIXED_COUNTERS   3
#define COUNTERS         (MAX_GENERAL + FIXED_COUNTERS)
#define FIXED_BIT        32 /* the first fixed counter's bit in the global registers */
#define RDPMC_FIXED      (1u << 30)
#define RDPMC_TALLY      0x74616c79 /* the first one */
#define FULL_PMC0        0x4c1 /* IA32_A_PMC0: the same counters, which take all of their bits */

#define K7_EVNTSEL0      0xc0010000
#define K7_PERFCTR0      0xc0010004
#define CORE_EVNTSEL0    0xc0010200 /* selectors and counters take turns */
#define V2_STATUS        0xc0000300
#define V2_CONTROL       0xc0000301
#define V2_STATUS_CLEAR  0xc0000302
#define V2_STATUS_SET    0xc0000303
#define V2_CPUID         0x80000022
#define V2_PRESENT       1u /* CPUID: version 2, and freezing (LbrAndPmcFreeze) */
#define V2_RECORDS       (1u << 1) /* LbrExtV2 */
#define V2_FREEZES       (1u << 2)
#define V2_PAIRS_SHIFT   4
#define CORE_TYPE_CPUID  0x1a
#define MASKS_CPUID      0x23

#define EVNTSEL_USR      (1u << 16)
#define EVNTSEL_OS       (1u << 17)
#define EVNTSEL_INT      (1u << 20)
#define EVNTSEL_ANY      (1u << 21)
#define EVNTSEL_EN       (1u << 22)
#define EVNTSEL_CMASK    0xff000000u
#define EVNTSEL_EVENT    0x0000ffffull /* event and unit mask */
#define K7_EVENT_HIGH    0xf00000000ull
#define K7_GUEST_ONLY    (1ull << 40)
#define K7_HOST_ONLY     (1ull << 41)

#define FIXED_OS         1
#define FIXED_USR        2
#define FIXED_PMI        8
#define FIXED_ANY        0x444 /* of all fixed counters */

#define GLOBAL_COUNTERS  (((1ull << FIXED_COUNTERS) - 1) << FIXED_BIT | \
                          ((1ull << INTEL_COUNTERS) - 1))
#define GLOBAL_FROZEN    (1ull << 59) /* CTR_FRZ in the status: no counter counts */
#define GLOBAL_RECORDS_FROZEN (1ull << 58) /* AMD: no branch is recorded */
#define GLOBAL_CLEARABLE (GLOBAL_COUNTERS | 3ull << 62)
#define GLOBAL_SETTABLE  (GLOBAL_COUNTERS | GLOBAL_FROZEN | 1ull << 62)
#define GLOBAL_STATUS_SET 0x391

#define DEBUGCTL         0x1d9
#define DEBUGCTL_LBR     1
#define DEBUGCTL_FREEZE_RECORDS  (1u << 11) /* when a counter interrupts, recording stops */
#define DEBUGCTL_FREEZE_COUNTERS (1u << 12) /* and all counters stop */
#define LBR_SELECT       0x1c8
#define LBR_NOT_RING_0   1 /* no branches that end there */
#define LBR_NOT_OTHERS   2
#define LBR_SELECTABLE   0x1ff
#define LBR_TOS          0x1c9 /* which pair is the latest */
#define LBR_FROM         0x680
#define LBR_TO           0x6c0
#define LBR_PAIRS        16
#define LBR_PAIRS_MAX    32 /* that some processor has */
#define LBR_MISPREDICTED (1ull << 63) /* in the address of the branch */
#define LBR_WITH_FLAGS   3 /* IA32_PERF_CAPABILITIES: EIP, with that flag */

#define V2_LBR_SELECT    0xc000010e
#define V2_LBR_CONTROL   0xc000010f /* DBG_EXTN_CFG */
#define V2_LBR_ENABLE    (1u << 6)
#define V2_LBR           0xc0010300 /* addresses of branches and of their ends take turns */
#define V2_LBR_UNUSED    (3ull << 61) /* in the address of an end, such as: speculative */
#define V2_LBR_VALID     (1ull << 63) /* in the address of an end */

#define PEBS_ENABLE      0x3f1
#define PEBS_COUNTERS    ((1ull << INTEL_COUNTERS) - 1)
#define DS_AREA          0x600
#define PEBS_TRAP        (1u << 6) /* IA32_PERF_CAPABILITIES: RIP is of the next instruction */
#define PEBS_REGISTERS   (1u << 7) /* and records have the registers */
#define PEBS_FORMAT      (3u << 8)
#define FULL_WRITES      (1u << 13) /* IA32_PERF_CAPABILITIES: there are FULL_PMC0 and so on */
#define STATUS_BUFFER    (1ull << 62) /* the buffer's index has reached its threshold */

#define VECTOR_DEBUG     1
#define VECTOR_NMI       2

/* What processors do and the manuals do not promise: the property pmu-habits. */
#define HABIT_VMRUN      1u /* VMRUN retires in the mode that it enters */
#define HABIT_INTERRUPTS 2u /* one instruction more for each interrupt and exception */
#define HABIT_LATCHED    4u /* counters that overflow together interrupt by two NMIs */
#define HABIT_FREEZE     8u /* the firmware has left DEBUGCTL_FREEZE_COUNTERS set: pmu_reset() */
#define DELAY_MAX        1000000 /* instructions */
#define OVERFLOWED       0 /* pmu_late of the interrupt of an overflow */
#define SPURIOUS         1 /* of another one, for which there is no reason */

/* CPUID.0AH:EBX: these architectural events do not exist here. */
#define NO_CACHE_EVENTS  (3u << 3)
#define NO_BRANCH_MISSES (1u << 6)

#define MISC_ENABLE_PMU     (1ull << 7)
#define MISC_ENABLE_NO_BTS  (1ull << 11)
#define MISC_ENABLE_NO_PEBS (1ull << 12)

/*
 * An event is a weighted sum of what is exact here. The core is made up: it spends 2 cycles on an
 * instruction and 4 more on a branch, and its reference clock runs at half the speed. So cycles
 * are deterministic, stop in HLT, and cannot be mistaken for instructions.
 */
typedef struct PMUEvent {
    uint32_t per_insn;
    uint32_t per_branch;
    uint32_t per_conditional; /* more, if the branch is a conditional one */
    uint32_t per_arithmetic; /* SSE's */
} PMUEvent;

static const PMUEvent instructions = { 1, 0, 0, 0 };
static const PMUEvent branches = { 0, 1, 0, 0 };
static const PMUEvent conditionals = { 0, 0, 1, 0 };
static const PMUEvent core_cycles = { 2, 4, 0, 0 };
static const PMUEvent ref_cycles = { 1, 2, 0, 0 };
static const PMUEvent arithmetic = { 0, 0, 0, 1 };

/* What a counter does under the present configuration. */
typedef struct PMUCounter {
    uint64_t *value;
    const PMUEvent *event; /* NULL: it does not count */
    bool counts[2];        /* by privilege class */
    bool interrupts;
    int status_bit;
} PMUCounter;

static bool is_intel(CPUX86State *env)
{
    return tcg_enabled() && env_archcpu(env)->enable_pmu && IS_INTEL_CPU(env);
}

static bool is_amd(CPUX86State *env)
{
    return tcg_enabled() && env_archcpu(env)->enable_pmu && IS_AMD_CPU(env);
}

/* AMD's core extension. */
static bool has_core_counters(CPUX86State *env)
{
    return is_amd(env) && (env->features[FEAT_8000_0001_ECX] & CPUID_EXT3_PERFCORE);
}

/* AMD's version 2. */
static bool is_v2(CPUX86State *env)
{
    return is_amd(env) && env_archcpu(env)->has_perfmon_v2;
}

/* Global control and status. */
static bool has_globals(CPUX86State *env)
{
    return is_intel(env) || is_v2(env);
}

static uint32_t general_counters(CPUX86State *env)
{
    return is_intel(env) ? INTEL_COUNTERS : has_core_counters(env) ? CORE_COUNTERS : K7_COUNTERS;
}

/* The general counters that exist. */
static uint32_t general_mask(CPUX86State *env)
{
    uint32_t all = (1u << general_counters(env)) - 1;

    return is_intel(env) ? all & env_archcpu(env)->pmu_mask : all;
}

static uint64_t width_mask(CPUX86State *env)
{
    return MAKE_64BIT_MASK(0, env_archcpu(env)->pmu_width);
}

/* Version 3 brought the bits that count for all threads of a core. */
static bool has_any_thread(CPUX86State *env)
{
    return env_archcpu(env)->pmu_version >= 3;
}

/*
 * Intel's version 4 and AMD's version 2 freeze counters by GLOBAL_FROZEN, which software can also
 * set. Before, freezing clears the register that enables counters.
 */
static bool has_frozen_bit(CPUX86State *env)
{
    return is_intel(env) ? env_archcpu(env)->pmu_version >= 4 : is_v2(env);
}

/* The bits of the counters that count if their own selectors say so. */
static uint64_t globally_enabled(CPUX86State *env)
{
    return env->msr_global_status & GLOBAL_FROZEN ? 0 : env->msr_global_ctrl;
}

static const PMUEvent *intel_event(uint32_t select)
{
    switch (select & EVNTSEL_EVENT) {
    case 0x003c:
        return &core_cycles;
    case 0x013c:
        return &ref_cycles;
    case 0x00c0:
        return &instructions;
    case 0x00c4:
    case 0x7f88: /* BR_INST_EXEC.ANY of Nehalem; nothing is executed that does not retire */
        return &branches;
    case 0x01c4: /* BR_INST_RETIRED.CONDITIONAL of Nehalem */
        return &conditionals;
    case 0x0410: /* FP_COMP_OPS_EXE.SSE_FP of Nehalem */
        return &arithmetic;
    default:
        return NULL;
    }
}

static const PMUEvent *amd_event(uint64_t select)
{
    switch (select & (EVNTSEL_EVENT | K7_EVENT_HIGH)) {
    case 0x76:
        return &core_cycles;
    case 0xc0:
        return &instructions;
    case 0xc2:
        return &branches;
    case 0xd1: /* of family 17h */
        return &conditionals;
    default:
        return NULL;
    }
}

/* Whether AMD's counter with this selector counts in the present world, guest or host. */
static bool counts_in_world(CPUX86State *env, uint64_t select)
{
    uint64_t worlds = select & (K7_GUEST_ONLY | K7_HOST_ONLY);

    if (!worlds) {
        return true;
    }
    return (env->efer & MSR_EFER_SVME)
           && (worlds & (env->hflags & HF_GUEST_MASK ? K7_GUEST_ONLY : K7_HOST_ONLY));
}

static PMUCounter general_counter(CPUX86State *env, int i)
{
    uint64_t select = env->msr_gp_evtsel[i];
    PMUCounter c = {
        .value = &env->msr_gp_counters[i],
        .counts = { (select & EVNTSEL_OS) != 0, (select & EVNTSEL_USR) != 0 },
        .interrupts = select & EVNTSEL_INT,
        .status_bit = i,
    };
    bool enabled = select & EVNTSEL_EN;

    if (has_globals(env)) {
        enabled &= globally_enabled(env) >> c.status_bit;
    }
    if (is_amd(env)) {
        enabled &= counts_in_world(env, select);
    }
    /* A threshold compares events per cycle, and there are no real cycles. */
    if (enabled && !(select & EVNTSEL_CMASK)) {
        c.event = is_intel(env) ? intel_event(select) : amd_event(select);
    }
    return c;
}

static PMUCounter fixed_counter(CPUX86State *env, int i)
{
    static const PMUEvent *const events[] = { &instructions, &core_cycles, &ref_cycles };
    int control = env->msr_fixed_ctr_ctrl >> (4 * i);
    PMUCounter c = {
        .value = &env->msr_fixed_counters[i],
        .counts = { (control & FIXED_OS) != 0, (control & FIXED_USR) != 0 },
        .interrupts = control & FIXED_PMI,
        .status_bit = FIXED_BIT + i,
    };

    if (globally_enabled(env) >> c.status_bit & 1) {
        c.event = events[i];
    }
    return c;
}

static PMUCounter counter(CPUX86State *env, int i)
{
    return i < MAX_GENERAL ? general_counter(env, i) : fixed_counter(env, i - MAX_GENERAL);
}

static bool is_counting(const PMUCounter *c)
{
    return c->event && (c->counts[0] || c->counts[1]);
}

/* Whether the overflow of the counter makes its next event write a record. */
static bool is_precise(CPUX86State *env, const PMUCounter *c)
{
    return (env->pmu_pebs_enable >> c->status_bit & 1)
           && (c->event == &instructions || c->event == &branches || c->event == &conditionals);
}

/* Hands an interrupt to the local APIC. */
static void send_interrupt(CPUX86State *env)
{
    CPUState *cs = env_cpu(env);
    DeviceState *apic = env_archcpu(env)->apic_state;
    bool locked = qemu_mutex_iothread_locked();
    uint32_t can_do_io = cs->can_do_io;

    env->pmu_tally.interrupts++;
    if (!apic) {
        return;
    }
    if (!locked) {
        qemu_mutex_lock_iothread();
    }
    /* With -icount interrupts may only rise at known points; the end of a block is one. */
    cs->can_do_io = 1;
    apic_deliver_pmi(apic, is_intel(env));
    cs->can_do_io = can_do_io;
    if (!locked) {
        qemu_mutex_unlock_iothread();
    }
}

static void deliver_interrupt(CPUX86State *env)
{
    env->pmu_tally.place = 0;
    env->pmu_tally.place_pending = pmu_class(env->hflags) || (env->hflags & HF_GUEST_MASK);
    if (env->pmu_debugctl & DEBUGCTL_FREEZE_RECORDS) {
        if (is_intel(env)) {
            env->pmu_debugctl &= ~DEBUGCTL_LBR;
        } else {
            env->msr_global_status |= GLOBAL_RECORDS_FROZEN;
        }
    }
    if (env->pmu_debugctl & DEBUGCTL_FREEZE_COUNTERS) {
        if (has_frozen_bit(env)) {
            env->msr_global_status |= GLOBAL_FROZEN;
        } else {
            env->msr_global_ctrl = 0;
        }
    }
    send_interrupt(env);
}

static void deliver_interrupt_of_overflows(CPUX86State *env)
{
    X86CPU *cpu = env_archcpu(env);

    env->pmu_latches = (cpu->pmu_habits & HABIT_LATCHED) && env->pmu_overflows > 1;
    env->pmu_overflows = 0;
    deliver_interrupt(env);
    env->pmu_late[SPURIOUS] = cpu->pmu_spurious;
}

/* Delivers interrupts for which so many instructions had to retire first. */
static void deliver_late_interrupts(CPUX86State *env, int64_t retired)
{
    for (int i = 0; i < ARRAY_SIZE(env->pmu_late); i++) {
        bool was_late = env->pmu_late[i] > 0;

        env->pmu_late[i] = MAX(env->pmu_late[i] - retired, 0);
        if (!was_late || env->pmu_late[i]) {
            continue;
        }
        if (i == OVERFLOWED) {
            deliver_interrupt_of_overflows(env);
            return; /* the spurious one begins to wait only now */
        }
        deliver_interrupt(env);
    }
}

/* Returns a pseudo-random number below this one. */
static uint32_t next_random(CPUX86State *env, uint32_t choices)
{
    /* This is a linear congruential generator, whose lower bits repeat too soon to be used. */
    env->pmu_random = env->pmu_random * 6364136223846793005ull + 1442695040888963407ull;
    return (env->pmu_random >> 32) % choices;
}

/* Returns how late the next interrupt comes. */
static uint32_t next_skid(CPUX86State *env)
{
    X86CPU *cpu = env_archcpu(env);

    return cpu->pmu_skid_least + next_random(env, cpu->pmu_skid_most - cpu->pmu_skid_least + 1);
}

/* The interrupt of so many overflows is due: it comes now, or late. */
static void raise_interrupt_of_overflows(CPUX86State *env, int overflows)
{
    env->pmu_overflows += overflows;
    if (!env_archcpu(env)->pmu_skid_most) {
        deliver_interrupt_of_overflows(env);
    } else if (!env->pmu_late[OVERFLOWED]) {
        env->pmu_late[OVERFLOWED] = next_skid(env);
    }
}

/* The instructions that a meter still grants, or that a cost takes. */
static int64_t meter_budget(int64_t meter)
{
    return meter >> (2 * PMU_FIELD_BITS);
}

/* The beginning of the area to which IA32_DS_AREA points. */
typedef struct DSArea {
    uint64_t bts[4];
    uint64_t base, index, end, threshold; /* of the buffer of records */
    uint64_t reset[INTEL_COUNTERS];
} DSArea;

/* A record of format 3. */
typedef struct PEBSRecord {
    uint64_t flags, ip;
    uint64_t ax, bx, cx, dx, si, di, bp, sp, r[8];
    uint64_t counters;
    uint64_t address, source, latency; /* of memory that was read, which no event here reports */
    uint64_t event_ip;
    uint64_t transaction;
    uint64_t tsc;
} PEBSRecord;

QEMU_BUILD_BUG_ON(sizeof(PEBSRecord) != 200);

/*
 * Copies from or to linear addresses, through the present page tables. The area is system
 * software's like a descriptor table, so CPL does not matter. For a page that is not mapped the
 * manual only says that records "may not operate properly"; here nothing is copied then.
 */
static bool copy_linear(CPUX86State *env, uint64_t linear, void *data, size_t size, bool is_write)
{
    return !cpu_memory_rw_debug(env_cpu(env), linear, data, size, is_write);
}

/*
 * The counters `due` have overflowed, and the instruction that has just retired is their next
 * event. Returns whether the record has filled the buffer up to its threshold.
 */
static bool write_pebs_record(CPUX86State *env, uint64_t due)
{
    const target_ulong *regs = env->regs;
    PEBSRecord record = {
        .flags = cpu_compute_eflags(env), .ip = env->eip,
        .ax = regs[R_EAX], .bx = regs[R_EBX], .cx = regs[R_ECX], .dx = regs[R_EDX],
        .si = regs[R_ESI], .di = regs[R_EDI], .bp = regs[R_EBP], .sp = regs[R_ESP],
        .counters = due,
        .event_ip = env->pmu_last_insn,
        .tsc = cpu_get_tsc(env),
    };
    DSArea area;
    uint64_t next;

    env->pmu_pebs_armed &= ~due;
    memcpy(record.r, &regs[8], sizeof(record.r));
    if (!copy_linear(env, env->pmu_ds_area, &area, sizeof(area), false)) {
        return false;
    }
    next = area.index + sizeof(record);
    if (area.index < area.base || next > area.end
        || !copy_linear(env, area.index, &record, sizeof(record), true)
        || !copy_linear(env, env->pmu_ds_area + offsetof(DSArea, index), &next, sizeof(next),
                        true)) {
        return false;
    }
    env->msr_global_status &= ~due;
    for (int i = 0; i < INTEL_COUNTERS; i++) {
        if (due >> i & 1) {
            env->msr_gp_counters[i] = area.reset[i] & width_mask(env);
        }
    }
    if (next < area.threshold) {
        return false;
    }
    env->msr_global_status |= STATUS_BUFFER;
    return true;
}

/* Adds what was retired since the last time. */
static void fold(CPUX86State *env)
{
    uint64_t due = 0;
    int64_t retired[2], branched[2], decided[2], computed[2]; /* by privilege class */
    int overflows = 0;

    for (int class = 0; class < 2; class++) {
        int64_t meter = env->pmu_meter[class];

        retired[class] = env->pmu_granted[class] - meter_budget(meter);
        branched[class] = extract64(meter, PMU_FIELD_BITS, PMU_FIELD_BITS);
        decided[class] = extract64(meter, 0, PMU_FIELD_BITS);
        env->pmu_granted[class] -= retired[class];
        env->pmu_tally.insns[class] += retired[class];
        env->pmu_tally.guest_insns += class || !(env->hflags & HF_GUEST_MASK) ? 0 : retired[class];
        env->pmu_meter[class] += PMU_COST(0, branched[class], decided[class]);
        computed[class] = env->pmu_arithmetic[class];
        env->pmu_arithmetic[class] = 0;
    }
    for (int i = 0; i < COUNTERS; i++) {
        PMUCounter c = counter(env, i);
        uint64_t before;

        if (!is_counting(&c)) {
            continue;
        }
        before = *c.value;
        for (int class = 0; class < 2; class++) {
            if (c.counts[class]) {
                *c.value += retired[class] * c.event->per_insn
                            + branched[class] * c.event->per_branch
                            + decided[class] * c.event->per_conditional
                            + computed[class] * c.event->per_arithmetic;
            }
        }
        if (*c.value != before) {
            due |= env->pmu_pebs_armed & 1ull << c.status_bit;
        }
        if (*c.value & ~width_mask(env)) {
            *c.value &= width_mask(env);
            if (has_globals(env)) {
                env->msr_global_status |= 1ull << c.status_bit;
            }
            overflows += c.interrupts;
            env->pmu_pebs_armed |= (uint64_t)is_precise(env, &c) << c.status_bit;
        }
    }
    if (due) {
        overflows += write_pebs_record(env, due);
    }
    deliver_late_interrupts(env, retired[0] + retired[1]);
    if (overflows) {
        raise_interrupt_of_overflows(env, overflows);
    }
}

/*
 * Something happens after so many instructions of the classes that count. If both do, each gets a
 * half, the present one the larger; so the next look may come too early, but never too late.
 */
static void limit(int64_t budget[2], int here, const bool counts[2], uint64_t insns)
{
    if (counts[!here]) {
        uint64_t there = counts[here] ? insns / 2 : insns;

        budget[!here] = MIN(budget[!here], there);
        insns -= counts[here] ? there : 0;
    }
    if (counts[here]) {
        budget[here] = MIN(budget[here], insns);
    }
}

static bool is_recording(CPUX86State *env)
{
    return is_intel(env) ? env->pmu_debugctl & DEBUGCTL_LBR
                         : (env->pmu_lbr_control & V2_LBR_ENABLE) &&
                           !(env->msr_global_status & GLOBAL_RECORDS_FROZEN);
}

/*
 * Grants each class as many instructions as cannot overflow any counter, or make an interrupt come
 * that is late, before the last of them.
 */
static void grant(CPUX86State *env)
{
    int here = pmu_class(env->hflags);
    int64_t budget[2] = { PMU_BUDGET_MAX, PMU_BUDGET_MAX };
    static const bool both[2] = { true, true };
    bool metered = env_archcpu(env)->has_pmu_tally;

    for (int i = 0; i < COUNTERS; i++) {
        PMUCounter c = counter(env, i);
        uint64_t room, insns;

        if (!is_counting(&c)) {
            continue;
        }
        metered = true;
        room = env->pmu_pebs_armed >> c.status_bit & 1 ? 1 : width_mask(env) - *c.value + 1;
        insns = DIV_ROUND_UP(room, c.event->per_insn + c.event->per_branch
                                       + c.event->per_conditional + c.event->per_arithmetic);
        limit(budget, here, c.counts, insns);
    }
    for (int i = 0; i < ARRAY_SIZE(env->pmu_late); i++) {
        if (env->pmu_late[i]) {
            metered = true;
            limit(budget, here, both, env->pmu_late[i]);
        }
    }
    for (int class = 0; class < 2; class++) {
        env->pmu_granted[class] = budget[class];
        env->pmu_meter[class] = budget[class] * PMU_INSN;
        env->pmu_arithmetic[class] = 0;
    }
    env->hflags = deposit32(env->hflags, HF_PMU_SHIFT, 1, metered);
    env->hflags = deposit32(env->hflags, HF_LBR_SHIFT, 1, is_recording(env));
    env->hflags = deposit32(env->hflags, HF_PEBS_SHIFT, 1, env->pmu_pebs_armed != 0);
}

void pmu_sync(CPUX86State *env)
{
    if (tcg_enabled()) {
        fold(env);
        grant(env);
    }
}

/* Notes what the counters hold where nothing earlier is in flight any more: the habit rdpmc. */
static void note_fence(CPUX86State *env)
{
    for (int i = 0; i < COUNTERS; i++) {
        env->pmu_fenced[i] = *counter(env, i).value;
    }
}

void pmu_fence(CPUX86State *env)
{
    pmu_sync(env);
    note_fence(env);
}

void pmu_load(CPUX86State *env)
{
    if (tcg_enabled()) {
        grant(env);
        note_fence(env);
    }
}

void pmu_leave_for_guest(CPUX86State *env)
{
    if ((env_archcpu(env)->pmu_habits & HABIT_VMRUN) && (env->hflags & HF_PMU_MASK)) {
        env->pmu_meter[pmu_class(env->hflags)] += PMU_COST(1, 0, 0);
    }
    pmu_sync(env);
}

void pmu_enter_guest(CPUX86State *env)
{
    if ((env_archcpu(env)->pmu_habits & HABIT_VMRUN) && (env->hflags & HF_PMU_MASK)) {
        env->pmu_meter[pmu_class(env->hflags)] -= PMU_COST(1, 1, 0);
        pmu_sync(env);
    }
}

void pmu_interrupted(CPUX86State *env, int class, int vector)
{
    env->pmu_tally.interrupted[class]++;
    if (env->pmu_latches && vector == VECTOR_NMI && !(env->hflags & HF_GUEST_MASK)) {
        env->pmu_latches = false;
        send_interrupt(env); /* the CPU takes it when the handler returns by IRET */
    }
    if ((env_archcpu(env)->pmu_habits & HABIT_INTERRUPTS) && (env->hflags & HF_PMU_MASK)) {
        env->pmu_meter[class] -= PMU_COST(1, 0, 0);
        pmu_sync(env);
    }
}

/*
 * A record is due, so every block has only one instruction where counters count, and begins with
 * this. The instruction before may have been the event.
 */
void helper_pmu_record_due(CPUX86State *env)
{
    pmu_sync(env);
    env->pmu_last_insn = env->eip;
}

void pmu_about_to_interrupt(CPUX86State *env)
{
    if (env->hflags & HF_PEBS_MASK) {
        pmu_sync(env);
    }
}

/* Records a branch that has ended at the present EIP and CPL. */
static void record(CPUX86State *env, target_ulong from, PMUBranch kind)
{
    uint64_t ending_here = pmu_class(env->hflags) ? LBR_NOT_OTHERS : LBR_NOT_RING_0;
    LBREntry *latest;

    if (is_recording(env) && !(env->pmu_lbr_select & (ending_here | kind))) {
        env->pmu_lbr_tos = (env->pmu_lbr_tos + 1) % LBR_PAIRS;
        latest = &env->lbr_records[env->pmu_lbr_tos];
        latest->from = from & ~LBR_MISPREDICTED; /* nothing is predicted, and nothing wrongly */
        latest->to = is_intel(env) ? env->eip : (env->eip & ~V2_LBR_UNUSED) | V2_LBR_VALID;
    }
}

/* Recording may have ended within the block, which does not know of that. */
void helper_pmu_record(CPUX86State *env, uint32_t kind)
{
    record(env, env->pmu_branch_from, kind);
}

void pmu_record_interrupt(CPUX86State *env, target_ulong from, int vector)
{
    if (vector == VECTOR_DEBUG && is_intel(env)) {
        env->pmu_debugctl &= ~DEBUGCTL_LBR;
        env->hflags &= ~HF_LBR_MASK;
    } else {
        record(env, from, PMU_FAR);
    }
}

/* The same for an instruction that must not count itself yet. It has to be its block's last. */
static void sync_before_insn(CPUX86State *env)
{
    int64_t self = env->hflags & HF_PMU_MASK ? PMU_COST(1, 0, 0) : 0;
    int64_t *meter = &env->pmu_meter[pmu_class(env->hflags)];

    *meter += self;
    pmu_sync(env);
    *meter -= self;
}

/* The instruction itself, which has to be its block's last, comes behind the fence. */
void helper_pmu_fence(CPUX86State *env)
{
    sync_before_insn(env);
    note_fence(env);
}

void pmu_unwind(CPUState *cs, const TranslationBlock *tb, int insns_left)
{
    CPUX86State *env = cs->env_ptr;

    if (tb->flags & HF_PMU_MASK) {
        env->pmu_meter[pmu_class(tb->flags)] += tb->pmu_cost
                                                - PMU_COST(tb->icount - insns_left, 0, 0);
    }
}

/*
 * A block of this cost found its budget too small and is not run. If some budget is left, the next
 * block is made to use up exactly that, so that an overflow is raised between two instructions.
 */
void helper_pmu_expired(CPUX86State *env, uint64_t cost)
{
    CPUState *cs = env_cpu(env);
    int64_t *meter = &env->pmu_meter[pmu_class(env->hflags)];
    int insns = meter_budget(cost + PMU_INSN - 1);
    int64_t budget;

    *meter += cost;
    pmu_sync(env);
    budget = meter_budget(*meter);
    if (budget < insns) {
        cs->cflags_next_tb = (curr_cflags(cs) & ~CF_COUNT_MASK) | budget;
    }
    if (icount_enabled()) {
        cpu_neg(cs)->icount_decr.u16.low += insns;
    }
    /* The main loop wants to see a reason for leaving a block at its start. */
    qatomic_set(&cpu_neg(cs)->icount_decr.u16.high, -1);
}

/* The number behind a habit's name, after a colon. */
static bool read_delay(const char *name, const char *text, uint32_t *delay, Error **errp)
{
    unsigned int value;

    if (qemu_strtoui(text, NULL, 10, &value) || !value || value > DELAY_MAX) {
        error_setg(errp, "pmu-habits: %s has to be from 1 to %d", name, DELAY_MAX);
        return false;
    }
    *delay = value;
    return true;
}

/* One number, or the least and the greatest one with a hyphen between them. */
static bool read_skid(X86CPU *cpu, const char *text, Error **errp)
{
    g_auto(GStrv) bounds = g_strsplit(text, "-", 2);
    uint32_t *least = &cpu->pmu_skid_least, *most = &cpu->pmu_skid_most;

    if (!read_delay("skid", bounds[0], least, errp)) {
        return false;
    }
    *most = *least;
    if (bounds[0] && bounds[1] && !read_delay("skid", bounds[1], most, errp)) {
        return false;
    }
    if (*least > *most) {
        error_setg(errp, "pmu-habits: skid's first number has to be the smaller one");
        return false;
    }
    return true;
}

/* Switches a habit on that only some processors have. */
static bool set_habit(X86CPU *cpu, uint32_t habit, const char *name, const char *processor,
                      bool is_such, Error **errp)
{
    if (!is_such) {
        error_setg(errp, "pmu-habits: %s needs an %s", name, processor);
        return false;
    }
    cpu->pmu_habits |= habit;
    return true;
}

static bool read_habit(X86CPU *cpu, const char *habit, Error **errp)
{
    CPUX86State *env = &cpu->env;
    const char *delay;

    if (!strcmp(habit, "vmrun")) {
        return set_habit(cpu, HABIT_VMRUN, habit, "AMD processor with pmu", is_amd(env), errp);
    } else if (!strcmp(habit, "latched")) {
        return set_habit(cpu, HABIT_LATCHED, habit, "AMD processor with pmu", is_amd(env), errp);
    } else if (!strcmp(habit, "freeze")) {
        return set_habit(cpu, HABIT_FREEZE, habit,
                         "Intel processor with pmu, or an AMD one with perfmon-v2",
                         is_intel(env) || is_v2(env), errp);
    } else if (!strcmp(habit, "interrupts")) {
        cpu->pmu_habits |= HABIT_INTERRUPTS;
    } else if (strstart(habit, "skid:", &delay)) {
        return read_skid(cpu, delay, errp);
    } else if (strstart(habit, "spurious:", &delay)) {
        return read_delay("spurious", delay, &cpu->pmu_spurious, errp);
    } else if (strstart(habit, "rdpmc:", &delay)) {
        return read_delay("rdpmc", delay, &cpu->pmu_window, errp);
    } else {
        error_setg(errp, "pmu-habits: there is no habit '%s', only vmrun, interrupts, latched, "
                   "freeze, skid:N, skid:A-B, spurious:N, rdpmc:N", habit);
        return false;
    }
    return true;
}

/* Names with a plus between them. */
static bool read_habits(X86CPU *cpu, Error **errp)
{
    g_auto(GStrv) habits = g_strsplit(cpu->pmu_habits_named ?: "", "+", 0);

    for (char **habit = habits; *habit; habit++) {
        if (!read_habit(cpu, *habit, errp)) {
            return false;
        }
    }
    return true;
}

bool pmu_realize(X86CPU *cpu, Error **errp)
{
    CPUX86State *env = &cpu->env;

    if (cpu->pmu_version < 2 || cpu->pmu_version > 4) {
        error_setg(errp, "pmu-version has to be from 2 to 4");
        return false;
    }
    if (cpu->pmu_width < 32 || cpu->pmu_width > 48) {
        error_setg(errp, "pmu-width has to be from 32 to 48");
        return false;
    }
    if (tcg_enabled() && !cpu->enable_pmu) {
        env->features[FEAT_8000_0001_ECX] &= ~CPUID_EXT3_PERFCORE;
    }
    if (cpu->has_perfmon_v2) {
        if (!has_core_counters(env)) {
            error_setg(errp, "perfmon-v2 needs an AMD processor with pmu and perfctr-core");
            return false;
        }
        env->cpuid_xlevel = MAX(env->cpuid_xlevel, V2_CPUID);
    }
    if (!(cpu->pmu_mask & 1)) {
        error_setg(errp, "pmu-mask has to have the first counter");
        return false;
    }
    if (is_intel(env) && cpu->pmu_mask != UINT8_MAX) {
        env->cpuid_level = MAX(env->cpuid_level, MASKS_CPUID);
    }
    if (is_intel(env) && cpu->pmu_core_type) {
        env->cpuid_level = MAX(env->cpuid_level, CORE_TYPE_CPUID);
    }
    if (cpu->has_pmu_lbr && !(is_intel(env) ? !has_frozen_bit(env) : is_v2(env))) {
        error_setg(errp, "pmu-lbr needs an Intel processor with pmu of version 2 or 3, or an AMD "
                         "one with perfmon-v2");
        return false;
    }
    if (cpu->has_pmu_pebs && !is_intel(env)) {
        error_setg(errp, "pmu-pebs needs an Intel processor with pmu");
        return false;
    }
    if (cpu->has_pmu_full_writes && !is_intel(env)) {
        error_setg(errp, "pmu-full-writes needs an Intel processor with pmu");
        return false;
    }
    return read_habits(cpu, errp);
}

/* Whether there is IA32_DEBUGCTL. */
static bool has_debugctl(X86CPU *cpu)
{
    return cpu->has_pmu_lbr || (cpu->pmu_habits & HABIT_FREEZE);
}

/* Whether there is IA32_PERF_CAPABILITIES. */
static bool has_capabilities(X86CPU *cpu)
{
    return is_intel(&cpu->env)
           && (has_debugctl(cpu) || cpu->has_pmu_pebs || cpu->has_pmu_full_writes);
}

void pmu_reset(X86CPU *cpu)
{
    CPUX86State *env = &cpu->env;

    if (has_globals(env)) {
        env->msr_global_ctrl = general_mask(env);
    }
    env->pmu_lbr_control = 0;
    env->pmu_capabilities = (cpu->has_pmu_lbr ? LBR_WITH_FLAGS : 0) |
                            (cpu->has_pmu_pebs ? PEBS_TRAP | PEBS_REGISTERS | PEBS_FORMAT : 0) |
                            (cpu->has_pmu_full_writes ? FULL_WRITES : 0);
    env->pmu_pebs_enable = env->pmu_pebs_armed = 0;
    env->pmu_ds_area = 0;
    env->pmu_debugctl = 0;
    if (cpu->pmu_habits & HABIT_FREEZE) {
        env->pmu_debugctl = DEBUGCTL_FREEZE_COUNTERS;
        /* A counter of the firmware's has interrupted, and nobody has cleared the bit. */
        env->msr_global_status = has_frozen_bit(env) ? GLOBAL_FROZEN : 0;
    }
    env->pmu_random = CPU(cpu)->cpu_index; /* the same in each run, and different CPUs' differ */
    env->pmu_window = cpu->pmu_window;
    pmu_load(env);
}

uint64_t pmu_misc_enable(X86CPU *cpu)
{
    return is_intel(&cpu->env) ? MISC_ENABLE_PMU | MISC_ENABLE_NO_BTS |
                                 (cpu->has_pmu_pebs ? 0 : MISC_ENABLE_NO_PEBS) : 0;
}

void pmu_cpuid_leaf_a(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx, uint32_t *edx)
{
    if (is_intel(&cpu->env)) {
        *eax = 7u << 24 | cpu->pmu_width << 16 | cto32(general_mask(&cpu->env)) << 8 |
               cpu->pmu_version;
        *ebx = NO_CACHE_EVENTS | NO_BRANCH_MISSES;
        *ecx = 0;
        *edx = cpu->pmu_width << 5 | FIXED_COUNTERS;
    }
}

void pmu_cpuid_core_type(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx, uint32_t *edx)
{
    *eax = (uint32_t)cpu->pmu_core_type << 24;
    *ebx = *ecx = *edx = 0;
}

void pmu_cpuid_masks(X86CPU *cpu, uint32_t subleaf, uint32_t *eax, uint32_t *ebx, uint32_t *ecx,
                     uint32_t *edx)
{
    *eax = *ebx = *ecx = *edx = 0;
    if (!is_intel(&cpu->env)) {
        return;
    }
    if (subleaf == 0) {
        *eax = 3; /* there are sub-leaves 0 and 1 */
    } else if (subleaf == 1) {
        *eax = general_mask(&cpu->env);
        *ebx = (1u << FIXED_COUNTERS) - 1;
    }
}

void pmu_cpuid_v2(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx, uint32_t *edx)
{
    *eax = is_v2(&cpu->env) ? V2_PRESENT | (has_debugctl(cpu) ? V2_FREEZES : 0) |
                                  (cpu->has_pmu_lbr ? V2_RECORDS : 0) : 0;
    *ebx = is_v2(&cpu->env) ? CORE_COUNTERS |
                              (cpu->has_pmu_lbr ? LBR_PAIRS << V2_PAIRS_SHIFT : 0) : 0;
    *ecx = *edx = 0;
}

uint32_t pmu_cpuid_leaf_1_ecx(X86CPU *cpu)
{
    return (has_capabilities(cpu) ? CPUID_EXT_PDCM : 0) |
           (cpu->has_pmu_pebs ? CPUID_EXT_DTES64 : 0);
}

uint32_t pmu_cpuid_leaf_1_edx(X86CPU *cpu)
{
    return cpu->has_pmu_pebs ? CPUID_DTS : 0;
}

/* The same for AMD's branch records. The latest one is always the first pair. */
static uint64_t *find_amd_lbr_msr(CPUX86State *env, uint32_t msr, uint64_t *writable)
{
    LBREntry *pair = &env->lbr_records[(env->pmu_lbr_tos - (msr - V2_LBR) / 2) % LBR_PAIRS];

    switch (msr) {
    case V2_LBR_SELECT:
        *writable = LBR_SELECTABLE;
        return &env->pmu_lbr_select;
    case V2_LBR_CONTROL:
        *writable = V2_LBR_ENABLE;
        return &env->pmu_lbr_control;
    case V2_LBR ... V2_LBR + 2 * LBR_PAIRS - 1:
        *writable = UINT64_MAX;
        return (msr - V2_LBR) % 2 ? &pair->to : &pair->from;
    }
    return NULL;
}

/* The same for AMD as below. */
static uint64_t *find_amd_msr(CPUX86State *env, uint32_t msr, uint64_t *writable)
{
    uint32_t n = msr - CORE_EVNTSEL0;

    *writable = UINT64_MAX;
    if (msr >= K7_EVNTSEL0 && msr < K7_EVNTSEL0 + K7_COUNTERS) {
        return &env->msr_gp_evtsel[msr - K7_EVNTSEL0];
    }
    if (msr >= K7_PERFCTR0 && msr < K7_PERFCTR0 + K7_COUNTERS) {
        return &env->msr_gp_counters[msr - K7_PERFCTR0];
    }
    if (has_core_counters(env) && n < 2 * CORE_COUNTERS) {
        return n % 2 ? &env->msr_gp_counters[n / 2] : &env->msr_gp_evtsel[n / 2];
    }
    if (is_v2(env)) {
        *writable = (1ull << CORE_COUNTERS) - 1;
        switch (msr) {
        case V2_STATUS:
            *writable = 0;
            return &env->msr_global_status;
        case V2_CONTROL:
            return &env->msr_global_ctrl;
        case V2_STATUS_CLEAR:
            *writable = UINT64_MAX; /* Linux sets all bits */
            return &env->msr_global_ovf_ctrl;
        case V2_STATUS_SET:
            *writable |= has_debugctl(env_archcpu(env)) ? GLOBAL_FROZEN : 0;
            *writable |= env_archcpu(env)->has_pmu_lbr ? GLOBAL_RECORDS_FROZEN : 0;
            return &env->msr_global_ovf_ctrl;
        case DEBUGCTL:
            *writable = UINT64_MAX;
            return has_debugctl(env_archcpu(env)) ? &env->pmu_debugctl : NULL;
        }
        return env_archcpu(env)->has_pmu_lbr ? find_amd_lbr_msr(env, msr, writable) : NULL;
    }
    return NULL;
}

/* The same for branch records. */
static uint64_t *find_lbr_msr(CPUX86State *env, uint32_t msr, uint64_t *writable)
{
    switch (msr) {
    case LBR_SELECT:
        *writable = LBR_SELECTABLE;
        return &env->pmu_lbr_select;
    case LBR_TOS:
        *writable = LBR_PAIRS - 1;
        return &env->pmu_lbr_tos;
    case LBR_FROM ... LBR_FROM + LBR_PAIRS - 1:
        *writable = UINT64_MAX;
        return &env->lbr_records[msr - LBR_FROM].from;
    case LBR_TO ... LBR_TO + LBR_PAIRS - 1:
        *writable = UINT64_MAX;
        return &env->lbr_records[msr - LBR_TO].to;
    }
    return NULL;
}

/* The same for PEBS. */
static uint64_t *find_pebs_msr(CPUX86State *env, uint32_t msr, uint64_t *writable)
{
    switch (msr) {
    case PEBS_ENABLE:
        *writable = PEBS_COUNTERS & general_mask(env);
        return &env->pmu_pebs_enable;
    case DS_AREA:
        *writable = UINT64_MAX;
        return &env->pmu_ds_area;
    }
    return NULL;
}

/* Where a register is kept, and which bits of it software may set; NULL if there is no such. */
static uint64_t *find_msr(CPUX86State *env, uint32_t msr, uint64_t *writable)
{
    if (is_intel(env)) {
        switch (msr) {
        case MSR_P6_EVNTSEL0 ... MSR_P6_EVNTSEL0 + INTEL_COUNTERS - 1:
            *writable = UINT32_MAX & ~(has_any_thread(env) ? 0 : EVNTSEL_ANY);
            return &env->msr_gp_evtsel[msr - MSR_P6_EVNTSEL0];
        case MSR_P6_PERFCTR0 ... MSR_P6_PERFCTR0 + INTEL_COUNTERS - 1:
            *writable = UINT64_MAX;
            return &env->msr_gp_counters[msr - MSR_P6_PERFCTR0];
        case FULL_PMC0 ... FULL_PMC0 + INTEL_COUNTERS - 1:
            *writable = width_mask(env);
            return env_archcpu(env)->has_pmu_full_writes
                   ? &env->msr_gp_counters[msr - FULL_PMC0] : NULL;
        case MSR_CORE_PERF_FIXED_CTR0 ... MSR_CORE_PERF_FIXED_CTR0 + FIXED_COUNTERS - 1:
            *writable = width_mask(env);
            return &env->msr_fixed_counters[msr - MSR_CORE_PERF_FIXED_CTR0];
        case MSR_CORE_PERF_FIXED_CTR_CTRL:
            *writable = MAKE_64BIT_MASK(0, 4 * FIXED_COUNTERS) &
                        ~(has_any_thread(env) ? 0ull : FIXED_ANY);
            return &env->msr_fixed_ctr_ctrl;
        case MSR_CORE_PERF_GLOBAL_CTRL:
            *writable = (GLOBAL_COUNTERS & -(1ull << FIXED_BIT)) | general_mask(env);
            return &env->msr_global_ctrl;
        case MSR_CORE_PERF_GLOBAL_STATUS:
            *writable = 0;
            return &env->msr_global_status;
        case MSR_CORE_PERF_GLOBAL_OVF_CTRL:
            *writable = GLOBAL_CLEARABLE | (has_frozen_bit(env) ? GLOBAL_FROZEN : 0);
            return &env->msr_global_ovf_ctrl;
        case GLOBAL_STATUS_SET:
            *writable = GLOBAL_SETTABLE;
            return has_frozen_bit(env) ? &env->msr_global_ovf_ctrl : NULL;
        case MSR_IA32_PERF_CAPABILITIES:
            *writable = 0;
            return has_capabilities(env_archcpu(env)) ? &env->pmu_capabilities : NULL;
        case DEBUGCTL:
            *writable = UINT64_MAX;
            return has_debugctl(env_archcpu(env)) ? &env->pmu_debugctl : NULL;
        }
        if (env_archcpu(env)->has_pmu_pebs && (msr == PEBS_ENABLE || msr == DS_AREA)) {
            return find_pebs_msr(env, msr, writable);
        }
        if (env_archcpu(env)->has_pmu_lbr) {
            return find_lbr_msr(env, msr, writable);
        }
    } else if (is_amd(env)) {
        return find_amd_msr(env, msr, writable);
    }
    return NULL;
}

/*
 * Whether this is a register of a counter of Intel's, or of a branch record, that a processor with
 * more of them has. QEMU itself lets software access registers that do not exist.
 */
static bool is_left_out(CPUX86State *env, uint32_t msr)
{
    static const uint32_t general[] = { MSR_P6_PERFCTR0, MSR_P6_EVNTSEL0, FULL_PMC0 };
    uint32_t pair = msr - (msr < LBR_TO ? LBR_FROM : LBR_TO);
    uint32_t fixed = msr - MSR_CORE_PERF_FIXED_CTR0;

    if (!is_intel(env)) {
        return env_archcpu(env)->has_pmu_lbr && msr >= V2_LBR + 2 * LBR_PAIRS
               && msr < V2_LBR + 2 * LBR_PAIRS_MAX;
    }
    for (int i = 0; i < ARRAY_SIZE(general); i++) {
        uint32_t n = msr - general[i];

        if (n < INTEL_COUNTERS_MAX) {
            return !(general_mask(env) & 1u << n)
                   || (general[i] == FULL_PMC0 && !env_archcpu(env)->has_pmu_full_writes);
        }
    }
    return (fixed >= FIXED_COUNTERS && fixed < INTEL_COUNTERS_MAX)
           || (env_archcpu(env)->has_pmu_lbr && pair >= LBR_PAIRS && pair < LBR_PAIRS_MAX);
}

PMUAccess pmu_rdmsr(CPUX86State *env, uint32_t msr, uint64_t *val)
{
    uint64_t writable, *reg = find_msr(env, msr, &writable);

    if (is_left_out(env, msr)) {
        return PMU_FAULT;
    }
    if (!reg) {
        return PMU_NOT_MINE;
    }
    sync_before_insn(env);
    env->pmu_tally.msr_reads++;
    *val = *reg;
    return PMU_DONE;
}

/* The WRMSR itself retires under the configuration that it replaces. */
PMUAccess pmu_wrmsr(CPUX86State *env, uint32_t msr, uint64_t val)
{
    uint64_t writable, *reg = find_msr(env, msr, &writable);

    if (is_left_out(env, msr)) {
        return PMU_FAULT;
    }
    if (!reg) {
        return PMU_NOT_MINE;
    }
    if ((val & ~writable) || !writable
        || (reg == &env->pmu_ds_area && sextract64(val, 0, 48) != val)) {
        return PMU_FAULT;
    }
    fold(env);
    env->pmu_tally.msr_writes++;
    if (reg == &env->msr_global_ovf_ctrl) {
        env->msr_global_status &= ~val;
        env->msr_global_status |= msr == V2_STATUS_SET || msr == GLOBAL_STATUS_SET ? val : 0;
    } else if (reg >= env->msr_gp_counters && reg < env->msr_gp_counters + MAX_GENERAL) {
        bool is_extended = is_intel(env) && msr < FULL_PMC0;

        *reg = (is_extended ? sextract64(val, 0, 32) : val) & width_mask(env);
    } else if (reg == &env->pmu_debugctl) {
        /* QEMU has none of the others. */
        *reg = val & (DEBUGCTL_FREEZE_COUNTERS |
                      (env_archcpu(env)->has_pmu_lbr ? DEBUGCTL_FREEZE_RECORDS : 0) |
                      (env_archcpu(env)->has_pmu_lbr && is_intel(env) ? DEBUGCTL_LBR : 0));
    } else {
        *reg = val;
    }
    env->pmu_pebs_armed &= env->pmu_pebs_enable;
    pmu_load(env);
    return PMU_DONE;
}

/*
 * Returns what RDPMC reads of this counter. With the habit rdpmc, some events before the
 * instruction have not been counted yet, or some behind it have; but none from before the last
 * fence is missing, and none of a mode that the counter does not count.
 */
static uint64_t value_in_flight(CPUX86State *env, int i)
{
    PMUCounter c = counter(env, i);
    uint64_t most_missing;

    if (!env->pmu_window || !is_counting(&c) || !c.counts[pmu_class(env->hflags)]) {
        return *c.value;
    }
    most_missing = MIN(env->pmu_window, (*c.value - env->pmu_fenced[i]) & width_mask(env));
    return (*c.value - most_missing + next_random(env, most_missing + env->pmu_window + 1))
           & width_mask(env);
}

PMUAccess pmu_rdpmc(CPUX86State *env, uint32_t index, uint64_t *val)
{
    int i;

    if ((is_intel(env) || is_amd(env)) && index < general_counters(env) &&
        (general_mask(env) & 1u << index)) {
        i = index;
    } else if (index - RDPMC_FIXED < FIXED_COUNTERS && is_intel(env)) {
        i = MAX_GENERAL + index - RDPMC_FIXED;
    } else {
        return is_intel(env) || is_amd(env) ? PMU_FAULT : PMU_NOT_MINE;
    }
    sync_before_insn(env);
    env->pmu_tally.pmc_reads++;
    *val = value_in_flight(env, i);
    return PMU_DONE;
}

bool pmu_read_tally(CPUX86State *env, uint32_t index, uint64_t *val)
{
    uint32_t n = index - RDPMC_TALLY;

    if (!env_archcpu(env)->has_pmu_tally || n >= 12) {
        return false;
    }
    sync_before_insn(env);
    *val = (const uint64_t[]) {
        env->pmu_tally.insns[0],
        env->pmu_tally.insns[1],
        env->pmu_tally.entries,
        env->pmu_tally.interrupts,
        env->pmu_tally.msr_reads,
        env->pmu_tally.msr_writes,
        env->pmu_tally.pmc_reads,
        env->pmu_tally.exits,
        env->pmu_tally.place,
        env->pmu_tally.guest_insns,
        env->pmu_tally.interrupted[0],
        env->pmu_tally.interrupted[1],
    }[n];
    return true;
}
