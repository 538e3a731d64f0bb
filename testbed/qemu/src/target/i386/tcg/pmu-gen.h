/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Performance monitoring unit: the code that metered translation blocks contain.
 * Included by translate.c only.
 */
#ifndef I386_TCG_PMU_GEN_H
#define I386_TCG_PMU_GEN_H

/* The part of a block's translation that concerns the PMU. */
typedef struct PMUGen {
    TCGOp *charge;     /* subtracts the block's cost; NULL if the block is not metered */
    TCGLabel *expired; /* where to go on a small budget; NULL in an uninterruptible block */
    int branch_at;     /* the number of the last instruction that is a branch */
    bool conditional;  /* that branch is a conditional one */
    bool faults;       /* the block's last instruction is known to raise an exception */
    PMUBranch kind;    /* of that branch */
    bool no_branch;    /* what is generated only goes on to the next instruction */
} PMUGen;

#ifdef CONFIG_USER_ONLY

static inline void pmu_gen_start(PMUGen *g, DisasContextBase *db)
{
}

static inline void pmu_gen_stop(PMUGen *g, DisasContextBase *db)
{
}

static inline void pmu_gen_uncount(PMUGen *g, DisasContextBase *db)
{
}

static inline void pmu_gen_arithmetic(DisasContextBase *db, int opcode)
{
}

static inline void pmu_gen_fence(DisasContextBase *db)
{
}

static inline void pmu_gen_from(DisasContextBase *db, target_ulong pc_save)
{
}

static inline void pmu_gen_taken(PMUGen *g, DisasContextBase *db)
{
}

#else

static size_t pmu_meter_offset(DisasContextBase *db)
{
    return offsetof(CPUX86State, pmu_meter) + sizeof(int64_t) * pmu_class(db->tb->flags);
}

/* The cost is not known yet: pmu_gen_stop() puts it in. */
static void pmu_gen_start(PMUGen *g, DisasContextBase *db)
{
    TCGv_i64 meter;

    QEMU_BUILD_BUG_MSG(TCG_TARGET_REG_BITS != 64, "a subtraction has to be one operation");
    *g = (PMUGen) { };
    if (!(db->tb->flags & HF_PMU_MASK)) {
        return;
    }
    if (db->tb->flags & HF_PEBS_MASK) {
        gen_helper_pmu_record_due(cpu_env);
    }
    meter = tcg_temp_new_i64();
    tcg_gen_ld_i64(meter, cpu_env, pmu_meter_offset(db));
    tcg_gen_sub_i64(meter, meter, tcg_constant_i64(0));
    g->charge = tcg_last_op();
    /* A branch ends the life of a temporary, so store first: the helper undoes it. */
    tcg_gen_st_i64(meter, cpu_env, pmu_meter_offset(db));
    if (tcg_ctx->exitreq_label) {
        g->expired = gen_new_label();
        tcg_gen_brcondi_i64(TCG_COND_LT, meter, 0, g->expired);
    }
    tcg_temp_free_i64(meter);
}

/* Has to be the last code of the block: it runs on into the generic exit of a block not run. */
static void pmu_gen_stop(PMUGen *g, DisasContextBase *db)
{
    bool branch = g->branch_at == db->num_insns && !g->faults;
    int64_t cost = PMU_COST(db->num_insns - g->faults, branch, branch && g->conditional);

    db->tb->pmu_cost = cost;
    if (g->charge) {
        tcg_set_insn_param(g->charge, 2, tcgv_i64_arg(tcg_constant_i64(cost)));
    }
    if (g->expired) {
        gen_set_label(g->expired);
        gen_helper_pmu_expired(cpu_env, tcg_constant_i64(cost));
    }
}

/* Takes one instruction back: it will be charged again. */
static void pmu_gen_uncount(PMUGen *g, DisasContextBase *db)
{
    TCGv_i64 meter;

    if (g->charge) {
        meter = tcg_temp_new_i64();
        tcg_gen_ld_i64(meter, cpu_env, pmu_meter_offset(db));
        tcg_gen_addi_i64(meter, meter, PMU_COST(1, 0, 0));
        tcg_gen_st_i64(meter, cpu_env, pmu_meter_offset(db));
        tcg_temp_free_i64(meter);
    }
}

/* Behind an instruction, counts it if it is SSE arithmetic (0x100 added after a 0x0F byte). */
static void pmu_gen_arithmetic(DisasContextBase *db, int opcode)
{
    size_t offset = offsetof(CPUX86State, pmu_arithmetic)
                    + sizeof(uint64_t) * pmu_class(db->tb->flags);
    TCGv_i64 count;

    switch (opcode) {
    case 0x151 ... 0x153: /* SQRT, RSQRT, RCP */
    case 0x158: /* ADD */
    case 0x159: /* MUL */
    case 0x15c ... 0x15f: /* SUB, MIN, DIV, MAX */
        if (db->tb->flags & HF_PMU_MASK) {
            count = tcg_temp_new_i64();
            tcg_gen_ld_i64(count, cpu_env, offset);
            tcg_gen_addi_i64(count, count, 1);
            tcg_gen_st_i64(count, cpu_env, offset);
            tcg_temp_free_i64(count);
        }
    }
}

/* Before LFENCE and CPUID, behind which RDPMC misses nothing of before: the habit rdpmc. */
static void pmu_gen_fence(DisasContextBase *db)
{
    if (db->tb->flags & HF_PMU_MASK) {
        gen_helper_pmu_fence(cpu_env);
    }
}

/* Before a branch, whose place is as far from EIP as the translator has gone on since pc_save. */
static void pmu_gen_from(DisasContextBase *db, target_ulong pc_save)
{
    TCGv from;

    QEMU_BUILD_BUG_MSG(!TARGET_TB_PCREL, "EIP is not known while a block executes");
    if (db->tb->flags & HF_LBR_MASK) {
        from = tcg_temp_new();
        tcg_gen_addi_tl(from, cpu_eip, db->pc_next - pc_save);
        tcg_gen_st_tl(from, cpu_env, offsetof(CPUX86State, pmu_branch_from));
        tcg_temp_free(from);
    }
}

/* Where the block's last instruction, if it is a branch, is taken and has written EIP. */
static void pmu_gen_taken(PMUGen *g, DisasContextBase *db)
{
    if ((db->tb->flags & HF_LBR_MASK) && g->branch_at == db->num_insns) {
        gen_helper_pmu_record(cpu_env, tcg_constant_i32(g->kind));
    }
}

#endif

/* Where the translator lets a block go on at an address that it knows. */
static inline void pmu_gen_relative(PMUGen *g, DisasContextBase *db)
{
    if (!g->no_branch) {
        pmu_gen_taken(g, db);
    }
}

/*
 * Notes that the current instruction is a branch. The number is kept and not a flag, because the
 * translator may still find that the instruction does not fit into the block and drop it.
 */
static inline void pmu_gen_branch(PMUGen *g, DisasContextBase *db, PMUBranch kind,
                                  target_ulong pc_save)
{
    g->branch_at = db->num_insns;
    g->conditional = kind == PMU_CONDITIONAL;
    g->kind = kind;
    pmu_gen_from(db, pc_save);
}

/* The same for the indirect ones of opcode 0xFF, by the middle field of their ModRM byte. */
static void pmu_gen_indirect(PMUGen *g, DisasContextBase *db, int op, target_ulong pc_save)
{
    pmu_gen_branch(g, db, op == 2 ? PMU_INDIRECT_CALL : op == 4 ? PMU_INDIRECT_JUMP : PMU_FAR,
                   pc_save);
}

/* The same by opcode (0x100 added after a 0x0F byte), for all others. */
static void pmu_gen_opcode(PMUGen *g, DisasContextBase *db, int opcode, target_ulong pc_save)
{
    switch (opcode) {
    case 0x70 ... 0x7f: /* Jcc */
    case 0x180 ... 0x18f:
    case 0xe0 ... 0xe3: /* LOOP, JCXZ */
        pmu_gen_branch(g, db, PMU_CONDITIONAL, pc_save);
        break;
    case 0xc2: /* RET */
    case 0xc3:
        pmu_gen_branch(g, db, PMU_RETURN, pc_save);
        break;
    case 0xe8: /* CALL */
        pmu_gen_branch(g, db, PMU_RELATIVE_CALL, pc_save);
        break;
    case 0xe9: /* JMP */
    case 0xeb:
        pmu_gen_branch(g, db, PMU_RELATIVE_JUMP, pc_save);
        break;
    case 0x9a: /* CALL far */
    case 0xca: /* RET far */
    case 0xcb:
    case 0xcc: /* INT */
    case 0xcd:
    case 0xcf: /* IRET */
    case 0xea: /* JMP far */
    case 0x105: /* SYSCALL */
    case 0x107: /* SYSRET */
    case 0x134: /* SYSENTER */
    case 0x135: /* SYSEXIT */
        pmu_gen_branch(g, db, PMU_FAR, pc_save);
    }
}

#endif
