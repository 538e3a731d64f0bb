/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Registration of a vCPU's page: pinned while Xen may write to it. */

#include <xen/domain_page.h>
#include <xen/mm.h>
#include <asm/p2m.h>

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

int perfctr_page_register(struct vcpu *curr, uint64_t gfn,
                          const struct perfctr_guest *guest)
{
    struct domain *d = curr->domain;
    struct perfctr_vcpu *p = xzalloc(struct perfctr_vcpu);
    void *mapping;
    int rc;

    if ( !p )
        return -ENOMEM;

    rc = map(d, gfn, &mapping);
    if ( rc )
    {
        xfree(p);
        return rc;
    }
    p->page = mapping;

    local_irq_disable();
    perfctr_core_register(perfctr_this_cpu(), perfctr_core_of(p), p->page,
                          guest, curr->vcpu_id, domain_serial(d),
                          perfctr_allowed(d));
    curr->arch.perfctr = p;
    perfctr_pv_update_pce(curr);
    local_irq_enable();

    return 0;
}

/* The core has stopped curr's counters. */
void perfctr_page_forget(struct vcpu *curr)
{
    struct perfctr_vcpu *p = curr->arch.perfctr;

    local_irq_disable();
    curr->arch.perfctr = NULL;
    perfctr_pv_update_pce(curr);
    local_irq_enable();

    unmap(p->page);
    xfree(p);
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
