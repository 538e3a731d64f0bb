/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef PERFCTR_PRIVATE_H
#define PERFCTR_PRIVATE_H

#include <xen/percpu.h>

#include "core.h"
#include "perfctr.h"

/* A vCPU with a registered page; reached by v->arch.perfctr. */
struct perfctr_vcpu {
    struct perfctr_vcpu_page *page; /* Xen's mapping, pinned */
    struct perfctr_core_vcpu core;
};

/* Set once at boot; nothing else here happens while it is false. */
extern bool perfctr_on;
extern struct perfctr_driver perfctr_driver;

/* This physical CPU's state.  Interrupts are disabled. */
struct perfctr_pcpu *perfctr_this_pcpu(void);

/*
 * d->arch.perfctr_policy: by default only the control domain may count,
 * unless the boot option lets all.
 */
extern bool perfctr_all;
#define PERFCTR_POLICY_DEFAULT 0
#define PERFCTR_POLICY_ALLOW   1
#define PERFCTR_POLICY_FORBID  2
bool perfctr_allowed(const struct domain *d);

int perfctr_page_register(struct vcpu *v, uint64_t gfn);
int perfctr_page_unregister(struct vcpu *v);

#endif /* PERFCTR_PRIVATE_H */
