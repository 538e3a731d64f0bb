/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Accounts of vCPUs, which the control domain begins, reads and ends. */

#include <xen/rcupdate.h>
#include <xen/sched.h>
#include <xen/smp.h>
#include <xen/spinlock.h>

#include "private.h"

static DEFINE_SPINLOCK(accounts_lock);

/* Executes on each CPU, with interrupts disabled. */
static void cf_check account_here(void *unused)
{
    perfctr_account_current(current);
}

static bool add_vcpu(struct perfctr_hv_accounts *answer, const struct vcpu *v)
{
    return perfctr_core_add_account(perfctr_driver(), answer,
                                    perfctr_account_of(v), v->domain->domain_id,
                                    v->vcpu_id, perfctr_rings_of(v));
}

static bool add_domain(struct perfctr_hv_accounts *answer,
                       const struct domain *d)
{
    const struct vcpu *v;

    for_each_vcpu(d, v)
    {
        if ( !add_vcpu(answer, v) )
            return false;
    }

    return true;
}

/*
 * Xen lists domains in the order of their numbers, without the idle domain. A
 * domain that has ended stays in the list as long as anybody has a reference to
 * it.
 */
static bool add_domains(struct perfctr_hv_accounts *answer)
{
    const struct domain *d;
    bool more = true;

    rcu_read_lock(&domlist_read_lock);
    for_each_domain(d)
    {
        more = d->is_dying || add_domain(answer, d);
        if ( !more )
            break;
    }
    rcu_read_unlock(&domlist_read_lock);
    return more;
}

/* The idle vCPUs stay when their CPUs go down. */
static void add_idle(struct perfctr_hv_accounts *answer)
{
    unsigned int cpu;

    for ( cpu = 0; cpu < nr_cpu_ids; cpu++ )
    {
        if ( idle_vcpu[cpu] && !add_vcpu(answer, idle_vcpu[cpu]) )
            return;
    }
}

int perfctr_glue_accounts_start(const struct perfctr_hv_accounting *accounting)
{
    int rc;

    spin_lock(&accounts_lock);
    rc = perfctr_core_begin_accounts(perfctr_driver(), accounting);
    if ( !rc )
        on_each_cpu(account_here, NULL, 1);
    spin_unlock(&accounts_lock);
    return rc;
}

int perfctr_glue_accounts_read(struct perfctr_hv_accounts *answer)
{
    int rc;

    spin_lock(&accounts_lock);
    rc = perfctr_core_wants_accounts(perfctr_driver(), answer);
    if ( rc > 0 )
        on_each_cpu(account_here, NULL, 1);
    if ( rc >= 0 && add_domains(answer) )
        add_idle(answer);
    spin_unlock(&accounts_lock);
    return rc < 0 ? rc : 0;
}

int perfctr_glue_accounts_stop(void)
{
    bool was_active;

    spin_lock(&accounts_lock);
    was_active = perfctr_core_end_accounts(perfctr_driver());
    if ( was_active )
        on_each_cpu(account_here, NULL, 1);
    spin_unlock(&accounts_lock);
    return was_active ? 0 : -ENXIO;
}
