/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Who may count, and who says so. */

#include <xen/rcupdate.h>
#include <xen/sched.h>

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

int perfctr_glue_permits(bool control)
{
    return control && !is_control_domain(current->domain) ? -EPERM : 0;
}

bool perfctr_glue_allowed(void)
{
    return perfctr_allowed(current->domain);
}

int perfctr_glue_set_policy(uint16_t domid, bool allowed)
{
    struct domain *d = rcu_lock_domain_by_id(domid);

    if ( !d )
        return -ESRCH;

    ACCESS_ONCE(d->arch.perfctr_policy) = allowed ? POLICY_ALLOW
                                                  : POLICY_FORBID;
    rcu_unlock_domain(d);
    return 0;
}
