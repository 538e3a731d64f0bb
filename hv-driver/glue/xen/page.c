/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Registration of a vCPU's page: pinned while Xen may write to it. */

#include <xen/domain_page.h>
#include <xen/mm.h>
#include <asm/p2m.h>
#include <asm/pv/domain.h>
#include <asm/system.h>

#include "private.h"

/* Numbers domains, so that a domain never inherits another one's residue. */
static uint64_t domain_serial(struct domain *d)
{
    static DEFINE_SPINLOCK(lock);
    static uint64_t last;

    spin_lock(&lock);
    if ( !d->arch.perfctr_serial )
        d->arch.perfctr_serial = ++last;
    spin_unlock(&lock);

    return d->arch.perfctr_serial;
}

static int map(struct domain *d, uint64_t gfn, void **mapping)
{
    struct page_info *page = get_page_from_gfn(d, gfn, NULL, P2M_UNSHARE);

    if ( !page )
        return -EINVAL;

    if ( !get_page_type(page, PGT_writable_page) )
    {
        put_page(page);
        return -EINVAL;
    }

    *mapping = __map_domain_page_global(page);
    if ( !*mapping )
    {
        put_page_and_type(page);
        return -ENOMEM;
    }

    return 0;
}

static void unmap(void *mapping)
{
    mfn_t mfn = domain_page_map_to_mfn(mapping);

    unmap_domain_page_global(mapping);
    put_page_and_type(mfn_to_page(mfn));
}

/* The TSC that the guest reads must be the one that the core samples. */
static bool supported(const struct domain *d)
{
    return is_pv_64bit_domain(d) && !d->arch.vtsc;
}

/* v is current. */
int perfctr_page_register(struct vcpu *v, uint64_t gfn)
{
    struct perfctr_vcpu *p;
    void *mapping;
    int rc;

    if ( !supported(v->domain) )
        return -EOPNOTSUPP;
    if ( !perfctr_allowed(v->domain) )
        return -EPERM;
    if ( v->arch.perfctr )
        return -EEXIST;

    p = xzalloc(struct perfctr_vcpu);
    if ( !p )
        return -ENOMEM;

    rc = map(v->domain, gfn, &mapping);
    if ( rc )
    {
        xfree(p);
        return rc;
    }
    p->page = mapping;

    local_irq_disable();
    perfctr_core_register(&perfctr_driver, perfctr_this_pcpu(), &p->core,
                          p->page, v->vcpu_id, domain_serial(v->domain),
                          smp_processor_id());
    v->arch.perfctr = p;
    write_cr4(pv_make_cr4(v));
    local_irq_enable();

    return 0;
}

/* v is current. */
int perfctr_page_unregister(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;

    if ( !p )
        return -ENXIO;

    local_irq_disable();
    perfctr_core_unregister(&perfctr_driver, perfctr_this_pcpu(), &p->core,
                            p->page);
    v->arch.perfctr = NULL;
    write_cr4(pv_make_cr4(v));
    local_irq_enable();

    unmap(p->page);
    xfree(p);
    return 0;
}

void perfctr_vcpu_destroy(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;

    if ( !p )
        return;

    v->arch.perfctr = NULL;
    unmap(p->page);
    xfree(p);
}
