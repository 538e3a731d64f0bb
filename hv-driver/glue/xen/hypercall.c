/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The hypercall: copies the argument once, lets the core decode it, acts. */

#include <xen/guest_access.h>
#include <xen/hypercall.h>
#include <xen/rcupdate.h>
#include <xen/smp.h>
#include <asm/system.h>

#include "private.h"

union argument {
    struct perfctr_hv_load load;
    struct perfctr_hv_query query;
    struct perfctr_hv_register reg;
    struct perfctr_hv_domain domain;
    struct perfctr_hv_stats stats;
};

bool perfctr_allowed(const struct domain *d)
{
    if ( d->arch.perfctr_policy == PERFCTR_POLICY_DEFAULT )
        return perfctr_all || is_control_domain(d);
    return d->arch.perfctr_policy == PERFCTR_POLICY_ALLOW;
}

static int load(struct vcpu *v, const struct perfctr_request *request)
{
    struct perfctr_vcpu *p = v->arch.perfctr;

    if ( !p )
        return -ENXIO;
    if ( !perfctr_allowed(v->domain) )
        return -EPERM;

    local_irq_disable();
    perfctr_core_load(&perfctr_driver, perfctr_this_pcpu(), &p->core, p->page,
                      request);
    local_irq_enable();
    return 0;
}

static int stop(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;

    if ( !p )
        return -ENXIO;

    local_irq_disable();
    perfctr_core_stop(&perfctr_driver, perfctr_this_pcpu(), &p->core, p->page);
    local_irq_enable();
    return 0;
}

static int allow(const struct perfctr_request *request)
{
    struct domain *d;

    if ( !is_control_domain(current->domain) )
        return -EPERM;

    d = rcu_lock_domain_by_id(request->domid);
    if ( !d )
        return -ESRCH;

    d->arch.perfctr_policy = request->enabled ? PERFCTR_POLICY_ALLOW
                                              : PERFCTR_POLICY_FORBID;
    rcu_unlock_domain(d);
    return 0;
}

struct sum {
    spinlock_t lock;
    struct perfctr_hv_stats *stats;
};

static void cf_check add_stats(void *data)
{
    struct sum *sum = data;
    unsigned long flags;

    spin_lock_irqsave(&sum->lock, flags);
    perfctr_core_add_stats(perfctr_this_pcpu(), sum->stats);
    spin_unlock_irqrestore(&sum->lock, flags);
}

static int get_stats(struct perfctr_hv_stats *stats)
{
    struct sum sum = { .stats = stats };

    if ( !is_control_domain(current->domain) )
        return -EPERM;

    spin_lock_init(&sum.lock);
    memset(stats, 0, sizeof(*stats));
    on_each_cpu(add_stats, &sum, 1);
    return 0;
}

static int act(const struct perfctr_request *request, union argument *argument)
{
    struct vcpu *curr = current;

    switch ( request->kind )
    {
    case PERFCTR_REQUEST_QUERY:
        return 0;
    case PERFCTR_REQUEST_REGISTER:
        return perfctr_page_register(curr, request->gfn);
    case PERFCTR_REQUEST_UNREGISTER:
        return perfctr_page_unregister(curr);
    case PERFCTR_REQUEST_LOAD:
        return load(curr, request);
    case PERFCTR_REQUEST_STOP:
        return stop(curr);
    case PERFCTR_REQUEST_DOMAIN:
        return allow(request);
    case PERFCTR_REQUEST_STATS:
        return get_stats(&argument->stats);
    }
    return -EINVAL;
}

static bool writes_back(uint32_t kind)
{
    return kind == PERFCTR_REQUEST_QUERY || kind == PERFCTR_REQUEST_STATS;
}

static void count(void)
{
    local_irq_disable();
    perfctr_core_count_hypercall(perfctr_this_pcpu());
    local_irq_enable();
}

long do_perfctr_op(unsigned int op, XEN_GUEST_HANDLE_PARAM(void) arg,
                   unsigned int length)
{
    XEN_GUEST_HANDLE_PARAM(char) bytes = guest_handle_cast(arg, char);
    struct perfctr_request request;
    union argument argument;
    int rc;

    if ( !perfctr_on )
        return -ENODEV;

    count();
    if ( length > sizeof(argument) )
        return -EINVAL;
    if ( length && copy_from_guest((char *)&argument, bytes, length) )
        return -EFAULT;

    rc = perfctr_core_decode(&perfctr_driver, op, &argument, length,
                             perfctr_allowed(current->domain), &request);
    if ( !rc )
        rc = act(&request, &argument);
    if ( !rc && writes_back(request.kind) &&
         copy_to_guest(bytes, (char *)&argument, length) )
        rc = -EFAULT;

    return rc;
}
