/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The part for 64-bit PV guests. Both of their modes execute in ring 3, CR4
 * allows RDPMC there, and they read the host's time-stamp counter.
 */

#include <xen/sched.h>

#include <asm/pv/domain.h>
#include <asm/system.h>

#include "private.h"

bool perfctr_pv_guest(const struct domain *d, struct perfctr_guest *guest)
{
    const struct perfctr_guest pv = { .rings = PERFCTR_RINGS_FOLDED };

    /* The TSC that the guest reads must be the one that the core samples. */
    if ( !is_pv_64bit_domain(d) || d->arch.vtsc )
        return false;

    *guest = pv;
    return true;
}

bool perfctr_pce(const struct vcpu *v)
{
    return v->arch.perfctr;
}

/* Called when curr has got or lost its page. */
void perfctr_pv_update_pce(struct vcpu *curr)
{
    write_cr4(pv_make_cr4(curr));
}

void perfctr_guest_interrupted(const struct cpu_user_regs *regs)
{
    struct perfctr_vcpu *p;

    /* In another ring Xen itself was interrupted. */
    if ( !perfctr_counts_interrupts || (regs->cs & 3) != 3 )
        return;

    p = current->arch.perfctr;
    if ( p )
        perfctr_core_guest_interrupted(perfctr_this_cpu(), perfctr_core_of(p),
                                       regs->entry_vector);
}
