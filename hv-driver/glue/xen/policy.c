/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Who may count, and who says so. */

#include <xen/event.h>
#include <xen/rcupdate.h>
#include <xen/sched.h>
#include <xen/smp.h>
#include <xsm/xsm.h>
#include <public/pmu.h>

#include "private.h"

bool __read_mostly perfctr_all;

/* d->arch.perfctr_policy */
#define POLICY_DEFAULT 0
#define POLICY_ALLOW 1
#define POLICY_FORBID 2

bool perfctr_allowed(const struct domain *d)
{
    uint8_t policy = ACCESS_ONCE(d->arch.perfctr_policy);

    if ( policy == POLICY_DEFAULT )
        return perfctr_all || is_control_domain(d);
    return policy == POLICY_ALLOW;
}

/* The security module's rights are those of xenpmu_op. */
int perfctr_glue_permits(bool control)
{
    struct domain *currd = current->domain;

    if ( control && !is_control_domain(currd) )
        return -EPERM;

    return xsm_pmu_op(XSM_OTHER, currd,
                      control ? XENPMU_mode_set : XENPMU_init);
}

bool perfctr_glue_allowed(void)
{
    return perfctr_allowed(current->domain);
}

/* A vCPU that executes may not be switched for a long time. */
static void cf_check revoke_here(void *data)
{
    struct vcpu *curr = current;
    struct perfctr_vcpu *p = curr->arch.perfctr;

    if ( p && curr->domain == data && !perfctr_allowed(curr->domain) )
        perfctr_core_revoke(perfctr_this_cpu(), perfctr_core_of(p));
}

int perfctr_glue_set_policy(uint32_t domid, bool allowed)
{
    struct domain *d;
    struct vcpu *v;

    d = domid < DOMID_FIRST_RESERVED ? rcu_lock_domain_by_id(domid) : NULL;
    if ( !d )
        return -ESRCH;

    ACCESS_ONCE(d->arch.perfctr_policy) = allowed ? POLICY_ALLOW
                                                  : POLICY_FORBID;
    /* Whoever loads meanwhile has seen the old policy before this arrives. */
    if ( !allowed )
        on_each_cpu(revoke_here, d, 1);
    /* Its kernel looks what counts now. */
    for_each_vcpu(d, v)
    {
        if ( v->arch.perfctr )
            send_guest_vcpu_virq(v, PERFCTR_VIRQ_NUMBER);
    }
    rcu_unlock_domain(d);
    return 0;
}
