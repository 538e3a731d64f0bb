/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the files here share.  Each calls only those above it: probe, cpu,
 * policy, page, switch and hypercall.
 */
#ifndef PERFCTR_PRIVATE_H
#define PERFCTR_PRIVATE_H

#include <linux/kvm_host.h>

#include "perfctr_core.h"
#include "perfctr.h"

/* A vCPU with a registered page; reached by vcpu->arch.perfctr. */
struct perfctr_vcpu {
	struct page *page; /* the guest's, pinned */
	gfn_t gfn;
	/* What VMX loads, where it does, into what enables counters. */
	u64 inside, outside;
	u64 core[PERFCTR_VCPU_BYTES / sizeof(u64)];
};

static inline struct perfctr_core_vcpu *perfctr_core_of(struct perfctr_vcpu *p)
{
	return (struct perfctr_core_vcpu *)p->core;
}

/* cpu.c: set once; nothing else here happens while it is false. */
extern bool perfctr_on;
struct perfctr_core_driver *perfctr_driver(void);
/* Takes over every CPU that is up, and from then on those that come up. */
int perfctr_take_cpus(void);
void perfctr_give_cpus_back(void);
/* Interrupts are disabled. */
struct perfctr_core_cpu *perfctr_this_cpu(void);

/* policy.c: a machine may count by option, or since the host said so. */
extern bool perfctr_all;
bool perfctr_allowed(const struct kvm *kvm);
/* A number that changes where it is restored, and when it is allowed. */
u64 perfctr_machine(struct kvm *kvm);

/* page.c */
bool perfctr_guest(struct kvm_vcpu *vcpu, struct perfctr_guest *guest);
struct perfctr_clock perfctr_clock_of(const struct kvm_vcpu *vcpu);
int perfctr_page_register(struct kvm_vcpu *vcpu, gfn_t gfn,
			  const struct perfctr_guest *guest, bool goes_on);
void perfctr_page_forget(struct kvm_vcpu *vcpu);
void perfctr_page_abandon(struct kvm_vcpu *vcpu);
void perfctr_page_written(struct kvm_vcpu *vcpu);

/* switch.c: the PMU's interrupt. */
int perfctr_take_interrupt(void);
void perfctr_give_interrupt_back(void);
void perfctr_notify(struct kvm_vcpu *vcpu);

#endif /* PERFCTR_PRIVATE_H */
