/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The hooks in the context switch, the mode switch and the PMU's interrupt. */

#include <xen/event.h>
#include <xen/sched.h>

#include "private.h"

/* The guest's registers are still as they were when v's counter overflowed. */
static void overflowed_here(struct vcpu *v, bool in_kernel)
{
    const struct cpu_user_regs *regs = guest_cpu_user_regs();
    struct perfctr_hv_place place = {
        .mode = in_kernel ? PERFCTR_PLACE_KERNEL : PERFCTR_PLACE_USER,
        .ip = regs->rip,
        .sp = regs->rsp,
        .flags = regs->rflags,
    };

    if ( is_hvm_vcpu(v) )
        perfctr_hvm_place(v, &place);

    perfctr_core_overflowed_at(perfctr_core_of(v->arch.perfctr), &place);
}

/* Interrupts are disabled. */
static void notify(struct vcpu *v)
{
    if ( is_hvm_vcpu(v) )
        perfctr_hvm_notify(v);
    else
        send_guest_vcpu_virq(v, PERFCTR_VIRQ_NUMBER);
}

static void switch_from(struct vcpu *v, struct perfctr_vcpu *p)
{
    unsigned long flags;

    local_irq_save(flags);
    if ( perfctr_core_switch_from(perfctr_this_cpu(), perfctr_core_of(p)) )
        overflowed_here(v, perfctr_pv_in_kernel(v));
    local_irq_restore(flags);
    perfctr_page_written(v);
}

void perfctr_switch_from(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;

    if ( p )
        switch_from(v, p);
    /* This comes last, so that v's account also has the work above. */
    if ( unlikely(perfctr_keeps_accounts) && perfctr_is_accounting() )
        perfctr_account_current(v);
}

/*
 * Interrupts are disabled. If v was switched out before it was notified, it is
 * notified here.
 */
static void switch_to(struct vcpu *v, struct perfctr_vcpu *p)
{
    if ( is_hvm_vcpu(v) )
        perfctr_hvm_update_clock(v);
    if ( perfctr_core_switch_to(
             perfctr_this_cpu(), perfctr_core_of(p), perfctr_pv_in_kernel(v),
             perfctr_core_of_domain(v->domain), is_control_domain(v->domain)) ||
         p->unnotified )
        notify(v);
}

void perfctr_switch_to(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;
    unsigned long flags;

    /* Nothing is done for the idle vCPU: no counter counts its ring 0. */
    if ( !perfctr_on || is_idle_vcpu(v) )
        return;

    local_irq_save(flags);
    if ( p )
        switch_to(v, p);
    else
        perfctr_core_run_stranger(perfctr_this_cpu());
    if ( unlikely(perfctr_keeps_accounts) && perfctr_is_accounting() )
        perfctr_core_account_next(perfctr_this_cpu(), perfctr_rings_of(v));
    local_irq_restore(flags);
}

void perfctr_toggle(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;
    unsigned long flags;

    if ( !p )
        return;

    local_irq_save(flags);
    if ( perfctr_core_toggle(perfctr_this_cpu(), perfctr_core_of(p),
                             perfctr_pv_in_kernel(v)) )
    {
        /* The overflow happened in the mode that the guest leaves. */
        overflowed_here(v, !perfctr_pv_in_kernel(v));
        notify(v);
    }
    local_irq_restore(flags);
}

/* Interrupts are disabled. */
void perfctr_interrupt(void)
{
    struct vcpu *curr = current;
    struct perfctr_vcpu *p = curr->arch.perfctr;

    if ( !perfctr_on )
        return;

    if ( perfctr_core_interrupt(perfctr_this_cpu(),
                                p ? perfctr_core_of(p) : NULL) )
    {
        overflowed_here(curr, perfctr_pv_in_kernel(curr));
        notify(curr);
    }

    perfctr_unmask_interrupt();
}
