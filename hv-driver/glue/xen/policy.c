/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Decides which domains may count, and who may change that. */

#include <xen/event.h>
#include <xen/rcupdate.h>
#include <xen/sched.h>
#include <xen/smp.h>
#include <xsm/xsm.h>
#include <public/pmu.h>

#include "private.h"

/* The security module is asked for the same rights as for xenpmu_op. */
int perfctr_glue_permits(bool control)
{
    struct domain *currd = current->domain;

    if ( control && !is_control_domain(currd) )
        return -EPERM;

    return xsm_pmu_op(XSM_OTHER, currd,
                      control ? XENPMU_mode_set : XENPMU_init);
}

const struct perfctr_core_domain *perfctr_glue_domain(bool *controls)
{
    *controls = is_control_domain(current->domain);
    return perfctr_core_of_domain(current->domain);
}

/* A vCPU may go on executing for a long time, so an IPI stops it. */
static void cf_check revoke_here(void *data)
{
    struct domain *d = data;
    struct perfctr_vcpu *p = current->arch.perfctr;

    if ( p && current->domain == d )
        perfctr_core_revoke(perfctr_this_cpu(), perfctr_core_of(p),
                            perfctr_core_of_domain(d), is_control_domain(d));
}

static void set_policy(struct domain *d, const struct perfctr_hv_domain *wanted)
{
    perfctr_policy_change change =
        perfctr_core_set_policy(perfctr_driver(), perfctr_core_of_domain(d),
                                is_control_domain(d), wanted);
    struct vcpu *v;

    if ( change == PERFCTR_POLICY_CHANGE_NOTHING )
        return;
    /* Any load that saw the old policy has finished when this IPI arrives. */
    if ( change == PERFCTR_POLICY_CHANGE_REVOKE )
        on_each_cpu(revoke_here, d, 1);
    for_each_vcpu(d, v)
    {
        if ( v->arch.perfctr )
            send_guest_vcpu_virq(v, PERFCTR_VIRQ_NUMBER);
    }
}

/* A domain that has ended stays in the list while anybody refers to it. */
void perfctr_glue_list_domains(struct perfctr_hv_domains *answer)
{
    const struct domain *d;

    rcu_read_lock(&domlist_read_lock);
    for_each_domain(d)
    {
        if ( !d->is_dying )
            perfctr_core_add_domain(perfctr_driver(), answer,
                                    perfctr_core_of_domain(d), d->domain_id,
                                    is_control_domain(d));
    }
    rcu_read_unlock(&domlist_read_lock);
}

int perfctr_glue_set_policy(const struct perfctr_hv_domain *wanted)
{
    domid_t domid = wanted->domid;
    struct domain *d = NULL;
    int rc;

    if ( wanted->domid < DOMID_FIRST_RESERVED )
        d = rcu_lock_domain_by_id(domid);
    if ( !d )
        return -ESRCH;

    /* A domain whose label denies it the use of a PMU cannot be allowed. */
    rc = wanted->enabled ? xsm_pmu_op(XSM_OTHER, d, XENPMU_init) : 0;
    if ( !rc )
        set_policy(d, wanted);
    rcu_unlock_domain(d);
    return rc;
}

/* A PV guest reads the host's counter, which is what the core has put there. */
static int clock_of(const struct domain *d, const struct vcpu *v,
                    struct perfctr_clock *clock)
{
    if ( !v )
        return -ESRCH;
    if ( d->arch.vtsc )
        return -EOPNOTSUPP;
    if ( is_hvm_vcpu(v) )
        *clock = perfctr_hvm_clock(v);
    return 0;
}

int perfctr_glue_clock(uint32_t domain, uint32_t vcpu,
                       struct perfctr_clock *clock)
{
    struct domain *d = NULL;
    int rc;

    if ( domain < DOMID_FIRST_RESERVED )
        d = rcu_lock_domain_by_id(domain);
    if ( !d )
        return -ESRCH;
    rc = clock_of(d, domain_vcpu(d, vcpu), clock);
    rcu_unlock_domain(d);
    return rc;
}
