/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Registers vCPUs' pages, and pins them while Xen may write to them. */

#include <xen/domain_page.h>
#include <xen/mm.h>
#include <asm/p2m.h>
#include <asm/paging.h>

#include "private.h"

/*
 * Accepts only the guest's own memory, to which the guest itself may write. The
 * p2m type excludes foreign pages, and also read-only ones, whose page type
 * would let Xen write. Whatever the guest does to the frame later, the
 * reference and the type keep the page as it is until it is unpinned.
 */
static struct page_info *get_writable(struct domain *d, uint64_t gfn)
{
    p2m_type_t type;
    struct page_info *page = get_page_from_gfn(d, gfn, &type, P2M_UNSHARE);

    if ( !page )
        return NULL;

    if ( (type == p2m_ram_rw || type == p2m_ram_logdirty) &&
         get_page_type(page, PGT_writable_page) )
        return page;

    put_page(page);
    return NULL;
}

static int map(struct domain *d, uint64_t gfn, void **mapping)
{
    struct page_info *page = get_writable(d, gfn);

    if ( !page )
        return -EINVAL;

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

/* Prepares curr before it gets its page. */
static int prepare(struct vcpu *curr, uint64_t gfn, struct perfctr_vcpu *p)
{
    void *mapping;
    int rc = map(curr->domain, gfn, &mapping);

    if ( rc )
        return rc;

    rc = is_hvm_vcpu(curr) ? perfctr_hvm_add_gate(curr) : 0;
    if ( rc )
        unmap(mapping);
    else
        p->page = mapping;

    return rc;
}

static void release(struct perfctr_vcpu *p)
{
    unmap(p->page);
    xfree(p);
}

/*
 * Removes the gate that `prepare` has added, when curr has lost its page or
 * cannot get one.
 */
static void remove_gate(struct vcpu *curr)
{
    if ( is_hvm_vcpu(curr) )
        perfctr_hvm_remove_gate(curr);
}

/* Called when curr has got or lost its page. */
static void update_rdpmc(struct vcpu *curr)
{
    if ( is_hvm_vcpu(curr) )
        perfctr_hvm_update_intercept(curr);
    else
        perfctr_pv_update_pce(curr);
}

int perfctr_page_register(struct vcpu *curr, uint64_t gfn,
                          const struct perfctr_guest *guest, bool goes_on)
{
    struct domain *d = curr->domain;
    struct perfctr_vcpu *p = xzalloc(struct perfctr_vcpu);
    int rc;

    if ( !p )
        return -ENOMEM;

    rc = prepare(curr, gfn, p);
    if ( rc )
    {
        xfree(p);
        return rc;
    }

    local_irq_disable();
    rc = perfctr_core_register(perfctr_this_cpu(), perfctr_core_of(p), p->page,
                               guest, curr->vcpu_id, perfctr_window_of(curr),
                               perfctr_core_of_domain(d), is_control_domain(d),
                               goes_on);
    if ( !rc )
    {
        curr->arch.perfctr = p;
        update_rdpmc(curr);
    }
    local_irq_enable();

    if ( rc )
    {
        remove_gate(curr);
        release(p);
    }

    return rc;
}

void perfctr_page_unregister(struct vcpu *curr)
{
    struct perfctr_vcpu *p = curr->arch.perfctr;

    local_irq_disable();
    perfctr_core_unregister(perfctr_this_cpu(), perfctr_core_of(p),
                            perfctr_window_of(curr));
    curr->arch.perfctr = NULL;
    update_rdpmc(curr);
    local_irq_enable();

    remove_gate(curr);
    release(p);
}

/* During a live migration, the page has to be copied again after a write. */
void perfctr_page_written(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;

    if ( unlikely(paging_mode_log_dirty(v->domain)) )
        paging_mark_dirty(v->domain, domain_page_map_to_mfn(p->page));
}

void perfctr_vcpu_destroy(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;

    if ( !p )
        return;

    v->arch.perfctr = NULL;
    release(p);
}

/* The vCPUs are paused, and their pages' memory belongs to the new kernel. */
void perfctr_domain_reset(struct domain *d)
{
    struct vcpu *v;

    for_each_vcpu(d, v)
    {
        if ( !v->arch.perfctr )
            continue;
        perfctr_vcpu_destroy(v);
        perfctr_hvm_update_intercept(v);
        perfctr_hvm_remove_gate(v);
    }
}
