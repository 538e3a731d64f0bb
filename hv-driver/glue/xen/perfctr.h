/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The functions that the hooks in Xen call. */
#ifndef PERFCTR_H
#define PERFCTR_H

#include <xen/sched.h>

/*
 * Xen calls these when the guest's vCPU stops, or starts, to execute on this
 * CPU.
 */
void perfctr_switch_from(struct vcpu *v);
void perfctr_switch_to(struct vcpu *v);

/*
 * Xen calls this before VMRUN enters the guest of curr, with interrupts
 * disabled.
 */
void perfctr_svm_enter(struct vcpu *curr);

/*
 * Xen calls this when an interrupt or an exception has come, before it enables
 * interrupts.
 */
void perfctr_guest_interrupted(const struct cpu_user_regs *regs);

/*
 * Xen calls this when a PV guest has changed between its kernel and user mode.
 */
void perfctr_toggle(struct vcpu *v);

/* Handles the PMU's interrupt of this physical CPU. */
void perfctr_interrupt(void);

/*
 * Returns the page in which a physical CPU stores precise records. The CPU does
 * so while a PV guest executes, at any CPL. So Xen maps the page in every
 * address space in which it executes PV guests on that CPU.
 */
void *perfctr_records_of(unsigned int cpu);

/* Returns whether the vCPU's user mode may execute RDPMC. */
bool perfctr_pce(const struct vcpu *v);

/*
 * Returns whether RDPMC has to exit from an HVM or PVH guest's vCPU, and raise
 * #GP there.
 */
bool perfctr_intercept_rdpmc(const struct vcpu *v);

/*
 * Xen calls this when an HVM or PVH domain starts another kernel in its memory.
 */
void perfctr_domain_reset(struct domain *d);

/* Xen calls this when the vCPU will not execute again. */
void perfctr_vcpu_destroy(struct vcpu *v);

#endif /* PERFCTR_H */
