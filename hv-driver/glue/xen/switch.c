/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The hooks in context switch, PV mode switch and the PMU's interrupt. */

#include <xen/event.h>
#include <xen/percpu.h>
#include <xen/sched.h>

#include <asm/apic.h>
#include <irq_vectors.h>

#include "private.h"

struct pcpu_slot {
    bool ready;
    struct perfctr_pcpu state;
};

/* Cleared when a CPU goes online again, whose registers are then unknown. */
static DEFINE_PER_CPU(struct pcpu_slot, pcpu_slot);

struct perfctr_pcpu *perfctr_this_pcpu(void)
{
    struct pcpu_slot *slot = &this_cpu(pcpu_slot);

    if ( !slot->ready )
    {
        perfctr_core_pcpu_init(&slot->state);
        apic_write(APIC_LVTPC, PMU_APIC_VECTOR);
        slot->ready = true;
    }
    return &slot->state;
}

static void notify(struct vcpu *v)
{
    send_guest_vcpu_virq(v, PERFCTR_VIRQ_NUMBER);
}

static bool in_kernel(const struct vcpu *v)
{
    return v->arch.flags & TF_kernel_mode;
}

void perfctr_switch_from(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;
    unsigned long flags;

    if ( !p )
        return;

    local_irq_save(flags);
    perfctr_core_switch_from(&perfctr_driver, perfctr_this_pcpu(),
                             &p->core, p->page);
    local_irq_restore(flags);
}

void perfctr_switch_to(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;
    unsigned long flags;

    /* The idle vCPU executes in ring 0, where no counter counts. */
    if ( !perfctr_on || is_idle_vcpu(v) )
        return;

    local_irq_save(flags);
    if ( !p )
        perfctr_core_run_stranger(perfctr_this_pcpu());
    else if ( perfctr_core_switch_to(&perfctr_driver, perfctr_this_pcpu(),
                                     &p->core, p->page, smp_processor_id(),
                                     in_kernel(v),
                                     perfctr_allowed(v->domain)) )
        notify(v);
    local_irq_restore(flags);
}

void perfctr_toggle(struct vcpu *v)
{
    struct perfctr_vcpu *p = v->arch.perfctr;
    unsigned long flags;

    if ( !p )
        return;

    local_irq_save(flags);
    if ( perfctr_core_toggle(&perfctr_driver, perfctr_this_pcpu(),
                             &p->core, p->page, in_kernel(v)) )
        notify(v);
    local_irq_restore(flags);
}

/* Interrupts are disabled. */
void perfctr_interrupt(void)
{
    struct vcpu *curr = current;
    struct perfctr_vcpu *p = curr->arch.perfctr;

    if ( !perfctr_on )
        return;

    if ( !p )
        perfctr_core_acknowledge(&perfctr_driver, perfctr_this_pcpu());
    else if ( perfctr_core_interrupt(&perfctr_driver, perfctr_this_pcpu(),
                                     &p->core, p->page) )
        notify(curr);

    /* The local APIC masks the entry when it delivers. */
    apic_write(APIC_LVTPC, PMU_APIC_VECTOR);
}

bool perfctr_pce(const struct vcpu *v)
{
    return v->arch.perfctr;
}
