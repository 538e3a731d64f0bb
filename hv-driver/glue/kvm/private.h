/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Declarations that the files here share. Each calls only those before it in
 * this order: probe, cpu, reserve, policy, page, switch and hypercall.
 */
#ifndef PERFCTR_PRIVATE_H
#define PERFCTR_PRIVATE_H

#include <linux/kvm_host.h>
#include <linux/percpu.h>

#include "perfctr_core.h"
#include "perfctr.h"

/* A vCPU with a registered page. vcpu->arch.perfctr points to it. */
struct perfctr_vcpu {
	struct page *page; /* the guest's page, pinned */
	gfn_t gfn;
	bool in; /* switched in, at its first entry after a load */
	/* KVM's two values when the core was last given the guest's clock. */
	u64 tsc_offset, tsc_ratio;
	/* The values that VMX loads into the register that enables counters. */
	u64 inside, outside;
	u64 core[PERFCTR_VCPU_BYTES / sizeof(u64)];
};

/* What a vCPU keeps when its page is unregistered. */
struct perfctr_kept {
	u64 demand[PERFCTR_VCPU_DEMAND_BYTES / sizeof(u64)];
	u64 window[PERFCTR_WINDOW_BYTES / sizeof(u64)];
};

static inline struct perfctr_kept *perfctr_kept_of(struct kvm_vcpu *vcpu)
{
	BUILD_BUG_ON(sizeof(vcpu->arch.perfctr_kept) !=
		     sizeof(struct perfctr_kept));

	return (struct perfctr_kept *)vcpu->arch.perfctr_kept;
}

static inline struct perfctr_core_vcpu_demand *
perfctr_demand_of(struct kvm_vcpu *vcpu)
{
	return (struct perfctr_core_vcpu_demand *)perfctr_kept_of(vcpu)->demand;
}

static inline struct perfctr_core_window *
perfctr_window_of(struct kvm_vcpu *vcpu)
{
	return (struct perfctr_core_window *)perfctr_kept_of(vcpu)->window;
}

static inline struct perfctr_core_vcpu *perfctr_core_of(struct perfctr_vcpu *p)
{
	return (struct perfctr_core_vcpu *)p->core;
}

/*
 * Sends the guest the PMU's interrupt, by the entry for the PMU in the vCPU's
 * local APIC.
 */
static inline void perfctr_notify(struct kvm_vcpu *vcpu)
{
	kvm_make_request(KVM_REQ_PMI, vcpu);
}

/*
 * cpu.c: whether the driver is on. This is set once. The driver does nothing
 * while it is false.
 */
extern bool perfctr_on;
/*
 * Whether the core is called at each entry to a guest of SVM. This is set
 * before perfctr_on.
 */
extern bool perfctr_counts_entries;
/*
 * Whether it is enough that some CPUs can count. This is set before any CPU is
 * taken.
 */
extern bool perfctr_some_cpus;
struct perfctr_core_driver *perfctr_driver(void);
/* From this call on CPUs may be taken, also those that come up later. */
int perfctr_start_cpus(void);
void perfctr_stop_cpus(void);
/* How often all CPUs' counters were taken, or 0 while the host has them. */
extern u64 perfctr_taken;
int perfctr_take_cpus(void);
void perfctr_give_cpus_back(void);

/*
 * A physical CPU. It is in this header so that switches need no call to find
 * it.
 */
struct perfctr_pcpu {
	/*
	 * Whether the PMU interrupts by NMI, and the APIC's entry as it was
	 * before.
	 */
	bool interrupts;
	u32 lvtpc;
	u64 core[PERFCTR_CPU_BYTES / sizeof(u64)];
};

DECLARE_PER_CPU(struct perfctr_pcpu, perfctr_pcpu);

static inline struct perfctr_core_cpu *
perfctr_core_of_cpu(struct perfctr_pcpu *p)
{
	return (struct perfctr_core_cpu *)p->core;
}

/* Interrupts are disabled. */
static inline struct perfctr_core_cpu *perfctr_this_cpu(void)
{
	return perfctr_core_of_cpu(this_cpu_ptr(&perfctr_pcpu));
}

/* Returns whether an overflow explains an NMI that has just come. */
bool perfctr_nmi_is_ours(void);
/* Returns whether an NMI that nobody has explained is the PMU's. */
bool perfctr_unknown_nmi_is_ours(void);
/* Stops guests' counters here if perf has let them count; NMIs may call it. */
void perfctr_close_gate(void);
/* Lets the local APIC deliver the PMU's next interrupt. */
void perfctr_unmask_interrupt(void);

/* Returns the core's object of a machine, which only the core writes to. */
static inline const struct perfctr_core_domain *
perfctr_core_of_machine(const struct kvm *kvm)
{
	BUILD_BUG_ON(sizeof(kvm->arch.perfctr_domain) != PERFCTR_DOMAIN_BYTES);

	return (const struct perfctr_core_domain *)kvm->arch.perfctr_domain;
}

/*
 * reserve.c: begin and end a vCPU's demand for the counters. Getting them may
 * wait. A vCPU that was switched in has to be switched in anew afterwards.
 */
int perfctr_get_counters(struct kvm_vcpu *vcpu);
void perfctr_put_counters(struct kvm_vcpu *vcpu);
/*
 * Takes the counters if a machine needs them, and gives them back to the host
 * if none does. Returns when that is done or has failed.
 */
void perfctr_settle_counters(void);
/* Gives the counters back when no machine is left. */
void perfctr_stop_counters(void);

/* Returns whether the driver has kept the counters since the vCPU got them. */
static inline bool perfctr_has_counters(struct kvm_vcpu *vcpu)
{
	return perfctr_core_has_counters(perfctr_demand_of(vcpu),
					 READ_ONCE(perfctr_taken));
}

/* policy.c: returns whether the host lets the machine count. */
bool perfctr_allowed(const struct kvm *kvm);
/*
 * Sends the guest the PMU's interrupt if our module is there. The vCPU need not
 * have a page.
 */
void perfctr_notify_module(struct kvm_vcpu *vcpu);
/*
 * Returns the machine's number, which is another one after the machine was
 * restored or was allowed to count.
 */
u64 perfctr_machine(struct kvm *kvm);
/* Makes and removes the file in which the host's administrator sees machines. */
int perfctr_show_machines(void);
void perfctr_hide_machines(void);

/* page.c */
bool perfctr_guest(struct kvm_vcpu *vcpu, struct perfctr_guest *guest);
struct perfctr_clock perfctr_clock_of(const struct kvm_vcpu *vcpu);
int perfctr_page_register(struct kvm_vcpu *vcpu, gfn_t gfn,
			  const struct perfctr_guest *guest, bool goes_on);
void perfctr_page_unregister(struct kvm_vcpu *vcpu);
void perfctr_page_abandon(struct kvm_vcpu *vcpu);
void perfctr_page_written(struct kvm_vcpu *vcpu, const struct perfctr_vcpu *p);
/* Makes the vCPU set its intercept of RDPMC anew before it goes on. */
void perfctr_update_rdpmc(struct kvm_vcpu *vcpu);

/* switch.c: switches the vCPU in now, unless that is done already. */
void perfctr_switch_in(struct kvm_vcpu *vcpu);
/* Begin and end the handling of the PMU's interrupt. */
int perfctr_take_interrupt(void);
void perfctr_give_interrupt_back(void);

#endif /* PERFCTR_PRIVATE_H */
