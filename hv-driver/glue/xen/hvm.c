/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What HVM and PVH guests need: they have rings and a time-stamp counter of
 * their own, and RDPMC exits unless the vCPU has a page.
 */

#include <xen/event.h>
#include <xen/sched.h>

#include <asm/hvm/hvm.h>
#include <asm/hvm/nestedhvm.h>
#include <asm/hvm/svm/vmcb.h>
#include <asm/paging.h>

#include "private.h"

static struct perfctr_clock clock_of(const struct vcpu *v)
{
    struct perfctr_clock clock = {
        .offset = v->arch.hvm.cache_tsc_offset,
    };
    uint64_t ratio = hvm_tsc_scaling_ratio(v->domain);

    if ( hvm_tsc_scaling_supported && ratio != hvm_default_tsc_scaling_ratio )
    {
        clock.scale = ratio;
        clock.fraction_bits = hvm_funcs.tsc_scaling.ratio_frac_bits;
    }

    return clock;
}

/*
 * Of SVM's guests, those with nested paging, so that no page of theirs is a
 * page table of Xen's; and none that run guests of their own, whose RDPMC would
 * not exit either.
 */
bool perfctr_hvm_guest(const struct vcpu *curr, struct perfctr_guest *guest)
{
    const struct domain *d = curr->domain;
    const struct perfctr_guest hvm = {
        .rings = PERFCTR_RINGS_HARDWARE,
        .clock = clock_of(curr),
    };

    if ( !cpu_has_svm || !paging_mode_hap(d) || nestedhvm_enabled(d) ||
         d->arch.vtsc || curr->hcall_compat )
        return false;

    *guest = hvm;
    return true;
}

/* v is about to be switched in. */
void perfctr_hvm_update_clock(const struct vcpu *v)
{
    struct perfctr_clock clock = clock_of(v);

    perfctr_core_set_clock(perfctr_core_of(v->arch.perfctr), &clock);
}

/*
 * In a softirq, before a guest goes on. With interrupts disabled, Xen would have
 * the idle vCPU assert the guest's interrupt: v would be switched out for it, and
 * others might execute first.
 */
void cf_check perfctr_hvm_tell(void *v)
{
    send_guest_vcpu_virq(v, PERFCTR_VIRQ_NUMBER);
}

/*
 * PV guests are kept off by CR4.PCE. These own their CR4, and at CPL 0 it does
 * not matter: whatever the counters hold, which is other guests' events.
 */
bool perfctr_intercept_rdpmc(const struct vcpu *v)
{
    return perfctr_on && !v->arch.perfctr;
}

/* v, which is current or does not execute, has got its page, or lost it. */
void perfctr_hvm_update_intercept(struct vcpu *v)
{
    struct vmcb_struct *vmcb = v->arch.hvm.svm.vmcb;
    uint32_t intercepts = vmcb_get_general1_intercepts(vmcb);

    if ( perfctr_intercept_rdpmc(v) )
        intercepts |= GENERAL1_INTERCEPT_RDPMC;
    else
        intercepts &= ~GENERAL1_INTERCEPT_RDPMC;
    vmcb_set_general1_intercepts(vmcb, intercepts);
}

/*
 * Where v was when it was last left: the interrupt that leaves a guest is taken
 * before Xen has copied its registers.
 */
void perfctr_hvm_place(const struct vcpu *v, struct perfctr_hv_place *place)
{
    const struct vmcb_struct *vmcb = v->arch.hvm.svm.vmcb;

    place->mode = vmcb_get_cpl(vmcb) ? PERFCTR_PLACE_USER
                                     : PERFCTR_PLACE_KERNEL;
    place->ip = vmcb->rip;
    place->sp = vmcb->rsp;
    place->flags = vmcb->rflags;
}
