/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the hooks in KVM call. */
#ifndef PERFCTR_H
#define PERFCTR_H

#include <linux/types.h>

#include "perfctr_abi.h"

struct kvm_vcpu;

/* The module comes, which it does whether or not there is a driver; and goes. */
void perfctr_init(void);
void perfctr_exit(void);

/*
 * The vCPU's thread starts, or stops, to execute on this physical CPU; between
 * them the guest is entered any number of times, or never.
 */
void perfctr_vcpu_load(struct kvm_vcpu *vcpu);
void perfctr_vcpu_enter(struct kvm_vcpu *vcpu);
void perfctr_vcpu_put(struct kvm_vcpu *vcpu);

/* Its local APIC's registers, and so all others, were set from outside. */
void perfctr_vcpu_restored(struct kvm_vcpu *vcpu);

/* The vCPU does not execute again. */
void perfctr_vcpu_destroy(struct kvm_vcpu *vcpu);

/* Called by the vCPU's kernel; gives 0 or a negative error number. */
int perfctr_hypercall(struct kvm_vcpu *vcpu, u32 op, u64 address, u32 length);

/* Whether RDPMC has to exit from the vCPU. */
bool perfctr_intercept_rdpmc(const struct kvm_vcpu *vcpu);
/* Reads what its RDPMC names, if it may; otherwise that raises #GP. */
bool perfctr_rdpmc(struct kvm_vcpu *vcpu);

/*
 * What IA32_PERF_GLOBAL_CTRL is to hold in the vCPU's guest, and after it, which
 * is equal if it may stay as it is; false while the PMU is not the driver's.
 */
bool perfctr_at_switch(const struct kvm_vcpu *vcpu, u64 *inside, u64 *outside);

#endif /* PERFCTR_H */
