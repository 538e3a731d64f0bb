/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The functions that the hooks in KVM call. */
#ifndef PERFCTR_H
#define PERFCTR_H

#include <linux/types.h>

#include "compat.h"
#include "perfctr_abi.h"

struct kvm_vcpu;

/*
 * KVM's module calls these when it is loaded, even if the driver stays off, and
 * when it is unloaded.
 */
void perfctr_init(void);
void perfctr_exit(void);

/*
 * KVM calls these when the vCPU's thread starts to execute on this physical
 * CPU, before it enters the guest, and when it stops. In between, the thread
 * may enter the guest often, or never.
 */
void perfctr_vcpu_load(struct kvm_vcpu *vcpu);
void perfctr_vcpu_enter(struct kvm_vcpu *vcpu);
void perfctr_vcpu_put(struct kvm_vcpu *vcpu);

/*
 * KVM calls this before VMRUN enters the guest at this CPL, with interrupts
 * disabled.
 */
void perfctr_svm_enter(struct kvm_vcpu *vcpu, u8 cpl);

/*
 * KVM calls this when the VMM has set the local APIC's registers, to reset or
 * restore the vCPU.
 */
void perfctr_vcpu_restored(struct kvm_vcpu *vcpu);

/* KVM calls this when the vCPU will not execute again. */
void perfctr_vcpu_destroy(struct kvm_vcpu *vcpu);

/* Serves the vCPU's hypercall. Returns 0 or a negative error number. */
int perfctr_hypercall(struct kvm_vcpu *vcpu, u32 op, u64 address, u32 length);

/* Returns whether RDPMC has to exit from the vCPU. */
bool perfctr_intercept_rdpmc(struct kvm_vcpu *vcpu);
/*
 * Reads the counter for a vCPU's RDPMC. Returns false if the RDPMC has to raise
 * #GP.
 */
bool perfctr_rdpmc(struct kvm_vcpu *vcpu);

/*
 * Stores the values that IA32_PERF_GLOBAL_CTRL has to have while the vCPU's
 * guest executes, and after the guest was left. They are equal if the register
 * need not change. Returns false while the driver does not have the PMU.
 */
bool perfctr_at_switch(const struct kvm_vcpu *vcpu, u64 *inside, u64 *outside);

#endif /* PERFCTR_H */
