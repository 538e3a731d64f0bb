/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Performance monitoring unit of the emulated processor: what the rest of QEMU calls.
 *
 * Translated code keeps one meter for each privilege class (CPL 0, CPL 1 to 3), of three numbers.
 * The uppermost are the instructions that this class may still retire before somebody must look at
 * the counters; below are the branches that it has retired since the last look, and how many of
 * them were conditional. A block subtracts PMU_COST of all its instructions at its start; whoever
 * leaves it early gives the rest back. SSE arithmetic is rare enough to be counted by each
 * instruction itself, behind what it does.
 *
 * While branches are recorded, which a bit of a block's key says, each branch also stores where it
 * is, and calls a function where it is taken. Otherwise blocks have no code for branch records.
 * Likewise, while the next event of a counter writes a record of PEBS, each block begins with a
 * call.
 */
#ifndef I386_TCG_PMU_H
#define I386_TCG_PMU_H

#define PMU_FIELD_BITS 21 /* of each count of branches, and of the budget beside its sign */
#define PMU_INSN       ((int64_t)1 << (2 * PMU_FIELD_BITS))
#define PMU_BRANCH     ((int64_t)1 << PMU_FIELD_BITS)
#define PMU_BUDGET_MAX (((int64_t)1 << PMU_FIELD_BITS) - 1)

#define PMU_COST(insns, branches, conditionals) \
    ((insns) * PMU_INSN - (branches) * PMU_BRANCH - (conditionals))

/* Kinds of branches: the bits of MSR_LBR_SELECT that leave them out. */
typedef enum PMUBranch {
    PMU_CONDITIONAL = 1 << 2,
    PMU_RELATIVE_CALL = 1 << 3,
    PMU_INDIRECT_CALL = 1 << 4,
    PMU_RETURN = 1 << 5,
    PMU_INDIRECT_JUMP = 1 << 6,
    PMU_RELATIVE_JUMP = 1 << 7,
    PMU_FAR = 1 << 8, /* interrupts and exceptions, too */
} PMUBranch;

/* The privilege class, an index into the meters, of some hflags. */
static inline int pmu_class(uint32_t hflags)
{
    return (hflags & HF_CPL_MASK) != 0;
}

#if defined(CONFIG_TCG) && !defined(CONFIG_USER_ONLY)

typedef enum PMUAccess {
    PMU_NOT_MINE, /* not a register of this PMU */
    PMU_DONE,
    PMU_FAULT,    /* the access has to raise #GP(0) */
} PMUAccess;

/* Checks the properties that the user gave. */
bool pmu_realize(X86CPU *cpu, Error **errp);
void pmu_reset(X86CPU *cpu);
/* The bits of IA32_MISC_ENABLE that the PMU owns; they are read-only. */
uint64_t pmu_misc_enable(X86CPU *cpu);
/* CPUID leaf 0xA; leaves the registers alone if there is no architectural PMU. */
void pmu_cpuid_leaf_a(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx, uint32_t *edx);
/* CPUID leaf 0x1A: the kind of core. */
void pmu_cpuid_core_type(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx, uint32_t *edx);
/* CPUID leaf 0x23: which counters there are. */
void pmu_cpuid_masks(X86CPU *cpu, uint32_t subleaf, uint32_t *eax, uint32_t *ebx, uint32_t *ecx,
                     uint32_t *edx);
/* CPUID leaf 0x80000022, AMD's version 2; all zeroes without it. */
void pmu_cpuid_v2(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx, uint32_t *edx);
/*
 * The bits of CPUID leaf 1 that the PMU sets: CPUID_EXT_PDCM, if there is an
 * IA32_PERF_CAPABILITIES, and those of the area for records of PEBS.
 */
uint32_t pmu_cpuid_leaf_1_ecx(X86CPU *cpu);
uint32_t pmu_cpuid_leaf_1_edx(X86CPU *cpu);

PMUAccess pmu_rdmsr(CPUX86State *env, uint32_t msr, uint64_t *val);
PMUAccess pmu_wrmsr(CPUX86State *env, uint32_t msr, uint64_t val);
PMUAccess pmu_rdpmc(CPUX86State *env, uint32_t index, uint64_t *val);
/*
 * With the property pmu-tally all that happens is counted beside the counters, to be read by RDPMC
 * with indices of its own at any CPL: so software can measure from within what the whole machine
 * does, without a counter and without asking whoever owns the PMU. False for any other index.
 */
bool pmu_read_tally(CPUX86State *env, uint32_t index, uint64_t *val);

/* Brings the counters up to date, raises overflows, and grants new budgets. */
void pmu_sync(CPUX86State *env);
/*
 * Grants new budgets when the counters, or what decides whether they count, have been replaced:
 * nothing was retired since the last pmu_sync().
 */
void pmu_load(CPUX86State *env);
/*
 * The habit vmrun: VMRUN is about to leave the host, and has entered a guest, where it retires in
 * the mode that it enters.
 */
void pmu_leave_for_guest(CPUX86State *env);
void pmu_enter_guest(CPUX86State *env);
/* An interrupt or an exception is about to be delivered, and the registers are still as before. */
void pmu_about_to_interrupt(CPUX86State *env);
/*
 * An interrupt or an exception has interrupted this privilege class. It was not INT n, which
 * retires by itself.
 */
void pmu_interrupted(CPUX86State *env, int class, int vector);
/*
 * Records that an interrupt or an exception, INT n among them, was delivered; `from` is EIP before
 * that. A debug exception ends recording instead.
 */
void pmu_record_interrupt(CPUX86State *env, target_ulong from, int vector);
/* Gives back what a block did not execute of its last insns_left instructions. */
void pmu_unwind(CPUState *cs, const struct TranslationBlock *tb, int insns_left);

#else

static inline bool pmu_realize(X86CPU *cpu, Error **errp)
{
    return true;
}

static inline void pmu_reset(X86CPU *cpu)
{
}

static inline uint64_t pmu_misc_enable(X86CPU *cpu)
{
    return 0;
}

static inline void pmu_cpuid_leaf_a(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx,
                                    uint32_t *edx)
{
}

static inline void pmu_cpuid_core_type(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx,
                                       uint32_t *edx)
{
}

static inline void pmu_cpuid_masks(X86CPU *cpu, uint32_t subleaf, uint32_t *eax, uint32_t *ebx,
                                   uint32_t *ecx, uint32_t *edx)
{
}

static inline void pmu_cpuid_v2(X86CPU *cpu, uint32_t *eax, uint32_t *ebx, uint32_t *ecx,
                                uint32_t *edx)
{
}

static inline uint32_t pmu_cpuid_leaf_1_ecx(X86CPU *cpu)
{
    return 0;
}

static inline uint32_t pmu_cpuid_leaf_1_edx(X86CPU *cpu)
{
    return 0;
}

static inline void pmu_sync(CPUX86State *env)
{
}

static inline void pmu_load(CPUX86State *env)
{
}

static inline void pmu_about_to_interrupt(CPUX86State *env)
{
}

static inline void pmu_interrupted(CPUX86State *env, int class, int vector)
{
}

static inline void pmu_record_interrupt(CPUX86State *env, target_ulong from, int vector)
{
}

#endif
#endif
