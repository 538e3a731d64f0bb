/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The part that is specific to AMD's SVM. */

#include <xen/sched.h>

#include <asm/hvm/svm/vmcb.h>

#include "private.h"

/* The instruction of Xen behind the STGI that follows each exit. */
extern const char svm_stgi_label[];

void perfctr_svm_intercept_rdpmc(struct vcpu *v, bool intercept)
{
    struct vmcb_struct *vmcb = v->arch.hvm.svm.vmcb;
    uint32_t intercepts = vmcb_get_general1_intercepts(vmcb);

    if ( intercept )
        intercepts |= GENERAL1_INTERCEPT_RDPMC;
    else
        intercepts &= ~GENERAL1_INTERCEPT_RDPMC;
    vmcb_set_general1_intercepts(vmcb, intercepts);
}

void perfctr_svm_enter(struct vcpu *curr)
{
    struct perfctr_vcpu *p;

    if ( !perfctr_counts_entries )
        return;

    p = curr->arch.perfctr;
    if ( p )
        perfctr_core_enter_guest(perfctr_this_cpu(), perfctr_core_of(p),
                                 !vmcb_get_cpl(curr->arch.hvm.svm.vmcb));
}

/* If an interrupt causes an exit, it is handled before Xen has copied these. */
void perfctr_svm_place(const struct vcpu *v, struct perfctr_hv_place *place)
{
    const struct vmcb_struct *vmcb = v->arch.hvm.svm.vmcb;

    place->mode = vmcb_get_cpl(vmcb) ? PERFCTR_PLACE_USER
                                     : PERFCTR_PLACE_KERNEL;
    place->ip = vmcb->rip;
    place->sp = vmcb->rsp;
    place->flags = vmcb->rflags;
}

/*
 * Returns whether the NMI at ip is the one by which curr has exited. Such an
 * NMI stays pending, and is delivered behind STGI. The NMI of an overflow after
 * the exit is delivered there, too, but then curr has exited for another
 * reason.
 */
bool perfctr_svm_left_by_nmi(const struct vcpu *curr, unsigned long ip)
{
    return ip == (unsigned long)svm_stgi_label &&
           curr->arch.hvm.svm.vmcb->exitcode == VMEXIT_NMI;
}
