/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The functions that the hooks in Xen call. */
#ifndef PERFCTR_H
#define PERFCTR_H

#include <xen/sched.h>

/* The guest's vCPU stops, or starts, to execute on this physical CPU. */
void perfctr_switch_from(struct vcpu *v);
void perfctr_switch_to(struct vcpu *v);

/* VMRUN is about to enter the current vCPU's guest, with interrupts disabled. */
void perfctr_svm_enter(struct vcpu *curr);

/* A PV guest has gone between its kernel and its user mode. */
void perfctr_toggle(struct vcpu *v);

/* The PMU has interrupted this physical CPU. */
void perfctr_interrupt(void);

/* Returns whether the vCPU's user mode may execute RDPMC. */
bool perfctr_pce(const struct vcpu *v);

/*
 * Returns whether RDPMC has to exit from an HVM or PVH guest's vCPU, and raise
 * #GP there.
 */
bool perfctr_intercept_rdpmc(const struct vcpu *v);

/* An HVM or PVH domain starts another kernel in the memory that it has. */
void perfctr_domain_reset(struct domain *d);

/* The vCPU will not execute again. */
void perfctr_vcpu_destroy(struct vcpu *v);

#endif /* PERFCTR_H */
