/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The part for HVM and PVH guests. They have rings and a time-stamp counter of
 * their own, and their RDPMC exits unless the vCPU has a page.
 */

#include <xen/event.h>
#include <xen/init.h>
#include <xen/sched.h>
#include <xen/tasklet.h>

#include <asm/hvm/hvm.h>
#include <asm/hvm/nestedhvm.h>
#include <asm/paging.h>

#include "private.h"

struct perfctr_clock perfctr_hvm_clock(const struct vcpu *v)
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
 * Shadow paging is refused, since Xen may have shadowed the guest's page as a
 * page table. Nested virtualisation is refused, since RDPMC would not exit from
 * a nested guest either.
 */
static const char *why_not(const struct vcpu *curr)
{
    const struct domain *d = curr->domain;

    if ( !paging_mode_hap(d) )
        return "shadow page tables";
    if ( nestedhvm_enabled(d) )
        return "nested virtualisation";
    if ( d->arch.vtsc )
        return "an emulated time-stamp counter";
    if ( curr->hcall_compat )
        return "a 32-bit caller";
    return NULL;
}

bool perfctr_hvm_guest(const struct vcpu *curr, struct perfctr_guest *guest)
{
    const char *why = why_not(curr);
    const struct perfctr_guest hvm = {
        .rings = PERFCTR_RINGS_HARDWARE,
        .clock = perfctr_hvm_clock(curr),
    };

    if ( why )
    {
        gprintk(XENLOG_WARNING, "perfctr: no counters for a guest with %s\n",
                why);
        return false;
    }

    *guest = hvm;
    return true;
}

/* Xen calls this before v is switched in. */
void perfctr_hvm_update_clock(const struct vcpu *v)
{
    struct perfctr_clock clock = perfctr_hvm_clock(v);

    perfctr_core_set_clock(perfctr_core_of(v->arch.perfctr), &clock);
}

/*
 * The channel's own lock and state say whether the port is still that of the
 * virtual interrupt.
 */
static void raise_virq(struct vcpu *v)
{
    evtchn_port_t port = read_atomic(&v->virq_to_evtchn[PERFCTR_VIRQ_NUMBER]);
    struct evtchn *channel;

    if ( !port )
        return;

    channel = evtchn_from_port(v->domain, port);
    if ( !evtchn_read_trylock(channel) )
        return;

    if ( channel->state == ECS_VIRQ && channel->u.virq == PERFCTR_VIRQ_NUMBER )
        evtchn_port_set_pending(v->domain, v->vcpu_id, channel);
    evtchn_read_unlock(channel);

    /*
     * Another event may have been pending before, whose interrupt Xen has left
     * to the idle vCPU. Then Xen asserts none for this one.
     */
    if ( vcpu_info(v, evtchn_upcall_pending) )
        hvm_assert_evtchn_irq(v);
}

/*
 * This executes in a softirq, with interrupts enabled, before the guest goes
 * on. Where interrupts are disabled, as they are in send_guest_vcpu_virq(), Xen
 * leaves it to the idle vCPU to assert the guest's interrupt. For that the vCPU
 * would be switched out, and it might go on elsewhere without its interrupt.
 */
static void cf_check notify_current(void *unused)
{
    struct perfctr_vcpu *p = current->arch.perfctr;

    if ( !p || !p->unnotified )
        return;

    p->unnotified = false;
    raise_virq(current);
}

/*
 * The notifier of each CPU. A notifier of each vCPU could still be in progress
 * on the CPU that the vCPU has left.
 */
static struct tasklet notifiers[NR_CPUS];

static int __init cf_check perfctr_hvm_init(void)
{
    unsigned int cpu;

    for ( cpu = 0; cpu < NR_CPUS; cpu++ )
        softirq_tasklet_init(&notifiers[cpu], notify_current, NULL);
    return 0;
}
presmp_initcall(perfctr_hvm_init);

/* v may be switched out before the notifier of this CPU executes. */
void perfctr_hvm_notify(struct vcpu *v)
{
    v->arch.perfctr->unnotified = true;
    tasklet_schedule(&notifiers[smp_processor_id()]);
}

/*
 * CR4.PCE keeps PV guests from RDPMC. HVM guests own their CR4, and it has no
 * effect at CPL 0, so without the intercept they could read other guests'
 * counts.
 */
bool perfctr_intercept_rdpmc(const struct vcpu *v)
{
    return perfctr_on && !v->arch.perfctr;
}

/* Called when v has got or lost its page. v is current or does not execute. */
void perfctr_hvm_update_intercept(struct vcpu *v)
{
    if ( cpu_has_svm )
        perfctr_svm_intercept_rdpmc(v, perfctr_intercept_rdpmc(v));
    else
        perfctr_vmx_intercept_rdpmc(v, perfctr_intercept_rdpmc(v));
}

/*
 * Called before the vCPU gets its page, and after it has lost it. If selectors
 * cannot keep counters from counting Xen, this prepares a gate that can.
 */
int perfctr_hvm_add_gate(struct vcpu *curr)
{
    return cpu_has_svm ? 0 : perfctr_vmx_add_gate(curr);
}

void perfctr_hvm_remove_gate(struct vcpu *v)
{
    if ( !cpu_has_svm )
        perfctr_vmx_remove_gate(v);
}

/* Reads where v, which is current, was when it was last left. */
void perfctr_hvm_place(struct vcpu *v, struct perfctr_hv_place *place)
{
    if ( cpu_has_svm )
        perfctr_svm_place(v, place);
    else
        perfctr_vmx_place(v, place);
}

/*
 * Returns whether an NMI that has interrupted Xen at ip has made curr exit.
 * With VT-x, Xen itself calls the handler of NMIs, with the guest's registers.
 */
bool perfctr_hvm_left_by_nmi(const struct vcpu *curr, unsigned long ip)
{
    return cpu_has_svm && perfctr_svm_left_by_nmi(curr, ip);
}
