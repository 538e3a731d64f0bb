/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Declarations that the files here share. Each calls only those before it in
 * this order: probe, cpu, policy, pv, svm, vmx, hvm, profile, accounts, page,
 * switch, hypercall.
 */
#ifndef PERFCTR_PRIVATE_H
#define PERFCTR_PRIVATE_H

#include <xen/percpu.h>
#include <xen/sched.h>

#include "perfctr_core.h"
#include "perfctr.h"

/* A vCPU with a registered page. v->arch.perfctr points to it. */
struct perfctr_vcpu {
    struct perfctr_vcpu_page *page; /* Xen's mapping, pinned */
    bool unnotified; /* an HVM or PVH guest's interrupt is still to be sent */
    uint64_t core[PERFCTR_VCPU_BYTES / sizeof(uint64_t)];
};

static inline struct perfctr_core_vcpu *perfctr_core_of(struct perfctr_vcpu *p)
{
    return (struct perfctr_core_vcpu *)p->core;
}

/*
 * cpu.c: whether the driver is on. This is set once, at boot. The driver does
 * nothing while it is false.
 */
extern bool perfctr_on;
/*
 * Whether the core is called at each entry to a guest of SVM. This is set once,
 * before perfctr_on.
 */
extern bool perfctr_counts_entries;
/*
 * Whether the core is called at each interrupt of a PV guest. This is set once,
 * before perfctr_on.
 */
extern bool perfctr_counts_interrupts;
/*
 * Whether CPUs may have to account at a switch. This is set once, before
 * perfctr_on.
 */
extern bool perfctr_keeps_accounts;
struct perfctr_core_driver *perfctr_driver(void);
/*
 * Takes over every CPU that is up, and later each one that comes up. If one of
 * them cannot count, it takes none, unless some are enough.
 */
bool perfctr_take_cpus(bool some);
/* Interrupts are disabled. */
struct perfctr_core_cpu *perfctr_this_cpu(void);
void perfctr_departed_stats(struct perfctr_hv_stats *stats);
/* Returns whether this CPU has to account at its next switch. */
bool perfctr_is_accounting(void);
/* Adds to the account of v, which is current, what was counted here. */
void perfctr_account_current(const struct vcpu *v);
void perfctr_unmask_interrupt(void);
/* Sets whether this CPU's PMU interrupts by NMIs; interrupts are disabled. */
void perfctr_interrupt_by_nmi(bool by_nmi);
/* Called in an NMI: makes the PMU's interrupt come again as a maskable one. */
void perfctr_interrupt_again(void);
struct perfctr_core_cpu *perfctr_cpu_in_nmi(void);

/* Returns the core's account of a vCPU, which only the core writes to. */
static inline const struct perfctr_core_vcpu_account *
perfctr_account_of(const struct vcpu *v)
{
    BUILD_BUG_ON(sizeof(v->arch.perfctr_account) != PERFCTR_ACCOUNT_BYTES);

    return (const struct perfctr_core_vcpu_account *)v->arch.perfctr_account;
}

static inline struct perfctr_core_window *perfctr_window_of(struct vcpu *v)
{
    BUILD_BUG_ON(sizeof(v->arch.perfctr_window) != PERFCTR_WINDOW_BYTES);

    return (struct perfctr_core_window *)v->arch.perfctr_window;
}

static inline perfctr_rings perfctr_rings_of(const struct vcpu *v)
{
    return is_hvm_vcpu(v) ? PERFCTR_RINGS_HARDWARE : PERFCTR_RINGS_FOLDED;
}

/* Returns the core's object of a domain, which only the core writes to. */
static inline const struct perfctr_core_domain *
perfctr_core_of_domain(const struct domain *d)
{
    BUILD_BUG_ON(sizeof(d->arch.perfctr_domain) != PERFCTR_DOMAIN_BYTES);

    return (const struct perfctr_core_domain *)d->arch.perfctr_domain;
}

/* pv.c */
bool perfctr_pv_guest(const struct domain *d, struct perfctr_guest *guest);
void perfctr_pv_update_pce(struct vcpu *curr);

static inline bool perfctr_pv_in_kernel(const struct vcpu *v)
{
    return v->arch.flags & TF_kernel_mode;
}

/* svm.c */
void perfctr_svm_intercept_rdpmc(struct vcpu *v, bool intercept);
void perfctr_svm_place(const struct vcpu *v, struct perfctr_hv_place *place);
bool perfctr_svm_left_by_nmi(const struct vcpu *curr, unsigned long ip);

/* vmx.c */
int perfctr_vmx_add_gate(struct vcpu *curr);
void perfctr_vmx_remove_gate(struct vcpu *v);
void perfctr_vmx_intercept_rdpmc(struct vcpu *v, bool intercept);
void perfctr_vmx_place(struct vcpu *curr, struct perfctr_hv_place *place);

/* hvm.c */
bool perfctr_hvm_guest(const struct vcpu *curr, struct perfctr_guest *guest);
struct perfctr_clock perfctr_hvm_clock(const struct vcpu *v);
void perfctr_hvm_update_clock(const struct vcpu *v);
/* Sends v, which is current, its interrupt; interrupts are disabled. */
void perfctr_hvm_notify(struct vcpu *v);
void perfctr_hvm_update_intercept(struct vcpu *v);
int perfctr_hvm_add_gate(struct vcpu *curr);
void perfctr_hvm_remove_gate(struct vcpu *v);
void perfctr_hvm_place(struct vcpu *v, struct perfctr_hv_place *place);
bool perfctr_hvm_left_by_nmi(const struct vcpu *curr, unsigned long ip);

/* page.c */
int perfctr_page_register(struct vcpu *curr, uint64_t gfn,
                          const struct perfctr_guest *guest, bool goes_on);
void perfctr_page_unregister(struct vcpu *curr);
/* Interrupts are enabled. */
void perfctr_page_written(struct vcpu *v);

#endif /* PERFCTR_PRIVATE_H */
