/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Samples of the host itself: the PMU interrupts by NMIs while there are any. */

#include <xen/lib.h>
#include <xen/sched.h>
#include <xen/smp.h>
#include <xen/spinlock.h>
#include <xen/xmalloc.h>

#include <asm/nmi.h>
#include <asm/regs.h>

#include "private.h"

struct sampled {
    struct perfctr_core_ring *ring; /* protected by the lock */
    bool on; /* written by the CPU itself, or while it is not up */
};

static DEFINE_SPINLOCK(profile_lock);
static struct sampled sampled[NR_CPUS];
/* Who was called at an NMI before; set once, before our own callback is. */
static nmi_callback_t *__read_mostly next;
static bool __read_mostly installed;

static void place(const struct cpu_user_regs *regs,
                  struct perfctr_hv_sample *at)
{
    struct vcpu *curr = current;
    bool hvm = is_hvm_vcpu(curr);
    struct perfctr_hv_place guest = {
        .mode = perfctr_pv_in_kernel(curr) ? PERFCTR_PLACE_KERNEL
                                           : PERFCTR_PLACE_USER,
        .ip = regs->rip,
    };

    at->cpu = smp_processor_id();
    at->domain = curr->domain->domain_id;
    at->vcpu = curr->vcpu_id;
    at->mode = PERFCTR_SAMPLE_HYPERVISOR;
    at->ip = regs->rip;

    if ( guest_mode(regs) || (hvm && perfctr_hvm_left_by_nmi(curr, regs->rip)) )
    {
        if ( hvm )
            perfctr_hvm_place(curr, &guest);
        at->mode = guest.mode;
        at->ip = guest.ip;
    }
}

/* Xen's type of a callback returns int or bool, depending on the release. */
static typeof(((nmi_callback_t *)NULL)(NULL, 0)) cf_check
on_nmi(const struct cpu_user_regs *regs, int cpu)
{
    const struct sampled *s = &sampled[cpu];
    struct perfctr_hv_sample at;

    place(regs, &at);
    switch ( perfctr_core_nmi(perfctr_cpu_in_nmi(),
                              ACCESS_ONCE(s->on) ? s->ring : NULL, &at) )
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

/* No CPU uses a ring any more when it is freed. */
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
        /* What is left of a session that was not ended. */
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
    bool was;

    spin_lock(&profile_lock);
    was = perfctr_core_end_profile(perfctr_driver());
    if ( was )
        end();
    spin_unlock(&profile_lock);
    return was ? 0 : -ENXIO;
}
