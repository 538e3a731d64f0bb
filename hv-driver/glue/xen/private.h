/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the files here share.  Each calls only those above it: probe, cpu,
 * policy, pv, svm, vmx, hvm, page, switch and hypercall.
 */
#ifndef PERFCTR_PRIVATE_H
#define PERFCTR_PRIVATE_H

#include <xen/percpu.h>
#include <xen/sched.h>
#include <xen/tasklet.h>

#include <asm/acpi.h>

#include "perfctr_core.h"
#include "perfctr.h"

/* A vCPU with a registered page; reached by v->arch.perfctr. */
struct perfctr_vcpu {
    struct perfctr_vcpu_page *page; /* Xen's mapping, pinned */
    struct tasklet tells; /* an HVM or PVH guest of an overflow */
    uint64_t core[PERFCTR_VCPU_BYTES / sizeof(uint64_t)];
};

static inline struct perfctr_core_vcpu *perfctr_core_of(struct perfctr_vcpu *p)
{
    return (struct perfctr_core_vcpu *)p->core;
}

/* cpu.c: a physical CPU. */
struct perfctr_cpu {
    /*
     * The system's resets when it last came up.  Each loses all registers, also
     * those of the boot CPU, of which nobody is notified.
     */
    uint32_t resets;
    uint64_t core[PERFCTR_CPU_BYTES / sizeof(uint64_t)];
};
DECLARE_PER_CPU(struct perfctr_cpu, perfctr_cpu);

static inline struct perfctr_core_cpu *
perfctr_core_of_cpu(struct perfctr_cpu *cpu)
{
    return (struct perfctr_core_cpu *)cpu->core;
}

/* Set once at boot; nothing else here happens while it is false. */
extern bool perfctr_on;
struct perfctr_core_driver *perfctr_driver(void);
/* Takes over every CPU that is up, and from then on those that come up. */
bool perfctr_take_cpus(void);
/* This CPU comes back after a reset. */
void perfctr_cpu_back(struct perfctr_cpu *cpu);

/* Interrupts are disabled. */
static inline struct perfctr_core_cpu *perfctr_this_cpu(void)
{
    struct perfctr_cpu *cpu = &this_cpu(perfctr_cpu);

    if ( unlikely(cpu->resets != system_reset_counter) )
        perfctr_cpu_back(cpu);
    return perfctr_core_of_cpu(cpu);
}

void perfctr_departed_stats(struct perfctr_hv_stats *stats);
void perfctr_unmask_interrupt(void);

/* policy.c: the control domain may count, others by option or hypercall. */
extern bool perfctr_all;
bool perfctr_allowed(const struct domain *d);

/* pv.c */
bool perfctr_pv_guest(const struct domain *d, struct perfctr_guest *guest);
void perfctr_pv_update_pce(struct vcpu *curr);

static inline bool perfctr_pv_in_kernel(const struct vcpu *v)
{
    return v->arch.flags & TF_kernel_mode;
}

/* svm.c */
void perfctr_svm_update_intercept(struct vcpu *v);
void perfctr_svm_place(const struct vcpu *v, struct perfctr_hv_place *place);

/* vmx.c */
int perfctr_vmx_add_gate(struct vcpu *curr);
void perfctr_vmx_remove_gate(struct vcpu *v);
void perfctr_vmx_update_intercept(struct vcpu *v);
void perfctr_vmx_place(struct vcpu *curr, struct perfctr_hv_place *place);

/* hvm.c */
bool perfctr_hvm_guest(const struct vcpu *curr, struct perfctr_guest *guest);
void perfctr_hvm_update_clock(const struct vcpu *v);
void cf_check perfctr_hvm_tell(void *v);
void perfctr_hvm_update_intercept(struct vcpu *v);
int perfctr_hvm_add_gate(struct vcpu *curr);
void perfctr_hvm_remove_gate(struct vcpu *v);
void perfctr_hvm_place(struct vcpu *v, struct perfctr_hv_place *place);

/* page.c */
int perfctr_page_register(struct vcpu *curr, uint64_t gfn,
                          const struct perfctr_guest *guest, bool goes_on);
void perfctr_page_forget(struct vcpu *curr);
/* Interrupts are enabled. */
void perfctr_page_written(struct vcpu *v);

#endif /* PERFCTR_PRIVATE_H */
