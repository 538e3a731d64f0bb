/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Samples the host itself. While a session lasts, the PMU interrupts by NMIs.
 */

#include <xen/lib.h>
#include <xen/sched.h>
#include <xen/smp.h>
#include <xen/spinlock.h>
#include <xen/xmalloc.h>

#include <asm/apic.h>
#include <asm/nmi.h>
#include <asm/regs.h>

#include "private.h"

struct sampled {
    struct perfctr_core_ring *ring; /* protected by the lock */
    bool on; /* written by the CPU itself, or while it is not up */
};

static DEFINE_SPINLOCK(profile_lock);
static struct sampled sampled[NR_CPUS];
/* The former callback for NMIs. This is set once, before ours is installed. */
static nmi_callback_t *__read_mostly next;
static bool __read_mostly installed;

/*
 * Finds where curr was left. Xen's entries save a PV guest's registers by
 * several instructions, and until then this finds the previous place. The idle
 * vCPU is never left.
 */
static void left_at(struct vcpu *curr, bool in_guest,
                    struct perfctr_hv_place *guest)
{
    bool in_kernel;

    guest->mode = PERFCTR_PLACE_NONE;
    if ( is_idle_vcpu(curr) )
        return;

    /*
     * Xen changes a PV guest's mode before its registers, so the address
     * decides.
     */
    guest->ip = guest_cpu_user_regs()->rip;
    in_kernel = in_guest ? perfctr_pv_in_kernel(curr) : guest->ip >> 63;
    guest->mode = in_kernel ? PERFCTR_PLACE_KERNEL : PERFCTR_PLACE_USER;
    if ( is_hvm_vcpu(curr) )
        perfctr_hvm_place(curr, guest);
}

/*
 * Finds where the NMI came, and where the current guest was left if that is
 * wanted.
 */
static void place(const struct cpu_user_regs *regs, bool at_guests,
                  struct perfctr_hv_sample *at, struct perfctr_hv_place *guest)
{
    struct vcpu *curr = current;
    bool in_guest =
        guest_mode(regs) ||
        (is_hvm_vcpu(curr) && perfctr_hvm_left_by_nmi(curr, regs->rip));

    at->cpu = smp_processor_id();
    at->domain = curr->domain->domain_id;
    at->vcpu = curr->vcpu_id;
    at->mode = PERFCTR_SAMPLE_HYPERVISOR;
    at->ip = regs->rip;

    if ( in_guest || at_guests )
        left_at(curr, in_guest, guest);
    if ( in_guest )
    {
        at->mode = guest->mode;
        at->ip = guest->ip;
    }
}

/* Returns whether the PMU interrupts by NMIs, and its entry is masked. */
static bool is_masked(void)
{
    uint32_t masked = APIC_LVT_MASKED | APIC_DM_NMI;

    return (apic_read(APIC_LVTPC) & masked) == masked;
}

/* Xen's type of a callback returns int or bool, depending on the release. */
static typeof(((nmi_callback_t *)NULL)(NULL, 0)) cf_check
on_nmi(const struct cpu_user_regs *regs, int cpu)
{
    const struct sampled *s = &sampled[cpu];
    const struct perfctr_core_ring *ring;
    struct perfctr_hv_place guest = { .mode = PERFCTR_PLACE_NONE };
    struct perfctr_hv_sample at;
    bool masked = is_masked();

    ring = ACCESS_ONCE(s->on) ? s->ring : NULL;
    place(regs, perfctr_core_is_at_guests(ring), &at, &guest);
    switch ( perfctr_core_nmi(perfctr_cpu_in_nmi(), masked, ring, &at, &guest) )
    {
    case PERFCTR_NMI_FOREIGN:
        return next ? next(regs, cpu) : 0;
    case PERFCTR_NMI_GUEST:
        perfctr_interrupt_again();
        break;
    }

    perfctr_unmask_interrupt();
    return 1;
}

static void cf_check start_here(void *profile)
{
    struct sampled *s = &sampled[smp_processor_id()];

    if ( !s->ring )
        return;

    perfctr_interrupt_by_nmi(true);
    ACCESS_ONCE(s->on) = true;
    barrier();
    if ( !perfctr_core_start_samples(perfctr_this_cpu(), s->ring, profile) )
    {
        ACCESS_ONCE(s->on) = false;
        perfctr_interrupt_by_nmi(false);
    }
}

static void cf_check stop_here(void *unused)
{
    struct sampled *s = &sampled[smp_processor_id()];

    if ( !s->on )
        return;

    perfctr_core_stop_samples(perfctr_this_cpu());
    ACCESS_ONCE(s->on) = false;
    perfctr_interrupt_by_nmi(false);
}

/* Stops all CPUs, and then frees their rings, which no CPU uses any more. */
static void end(void)
{
    unsigned int cpu;

    on_each_cpu(stop_here, NULL, 1);
    for ( cpu = 0; cpu < nr_cpu_ids; cpu++ )
    {
        sampled[cpu].on = false;
        xfree(sampled[cpu].ring);
        sampled[cpu].ring = NULL;
    }
}

static bool wanted(const struct perfctr_hv_profile *profile, unsigned int cpu)
{
    return cpu < 64 ? (profile->cpus >> cpu) & 1 : !~profile->cpus;
}

static int begin(const struct perfctr_hv_profile *profile)
{
    unsigned int cpu;

    for_each_online_cpu(cpu)
    {
        if ( !wanted(profile, cpu) )
            continue;
        sampled[cpu].ring = _xzalloc(PERFCTR_RING_BYTES, sizeof(uint64_t));
        if ( !sampled[cpu].ring )
            return -ENOMEM;
    }

    if ( !installed )
    {
        next = set_nmi_callback(on_nmi);
        installed = true;
    }
    on_each_cpu(start_here, (void *)profile, 1);
    return 0;
}

int perfctr_glue_profile_start(const struct perfctr_hv_profile *profile)
{
    int rc;

    spin_lock(&profile_lock);
    rc = perfctr_core_begin_profile(perfctr_driver());
    if ( !rc )
    {
        /* This ends a session whose lease has ended. */
        end();
        rc = begin(profile);
        if ( rc )
        {
            end();
            perfctr_core_end_profile(perfctr_driver());
        }
    }
    spin_unlock(&profile_lock);
    return rc;
}

int perfctr_glue_profile_read(uint32_t cpu, struct perfctr_hv_samples *samples)
{
    int rc;

    spin_lock(&profile_lock);
    rc = perfctr_core_take_samples(
        perfctr_driver(),
        cpu < nr_cpu_ids && sampled[cpu].on ? sampled[cpu].ring : NULL,
        samples);
    spin_unlock(&profile_lock);
    return rc;
}

int perfctr_glue_profile_stop(void)
{
    bool was_active;

    spin_lock(&profile_lock);
    was_active = perfctr_core_end_profile(perfctr_driver());
    if ( was_active )
        end();
    spin_unlock(&profile_lock);
    return was_active ? 0 : -ENXIO;
}
