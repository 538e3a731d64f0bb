/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The hypercall: the core decides, and calls back for Xen's part of it. */

#include <xen/guest_access.h>
#include <xen/hypercall.h>
#include <xen/sched.h>
#include <xen/smp.h>

#include "private.h"

/* The caller's argument for the copying functions. */
struct caller {
    XEN_GUEST_HANDLE_PARAM(char) argument;
};

int perfctr_glue_copy_in(void *caller, void *to, uint32_t length)
{
    struct caller *from = caller;

    return copy_from_guest((char *)to, from->argument, length) ? -EFAULT : 0;
}

int perfctr_glue_copy_out(void *caller, const void *from, uint32_t length)
{
    struct caller *to = caller;

    return copy_to_guest(to->argument, (const char *)from, length) ? -EFAULT
                                                                   : 0;
}

bool perfctr_glue_guest(struct perfctr_guest *guest)
{
    return is_hvm_vcpu(current) ? perfctr_hvm_guest(current, guest)
                                : perfctr_pv_guest(current->domain, guest);
}

const struct perfctr_core_cpu *perfctr_glue_cpu(void)
{
    return perfctr_this_cpu();
}

struct perfctr_core_vcpu *perfctr_glue_vcpu(void)
{
    struct perfctr_vcpu *p = current->arch.perfctr;

    return p ? perfctr_core_of(p) : NULL;
}

/* Xen itself tells domains that they were restored, so they need no number. */
uint64_t perfctr_glue_machine(void)
{
    return 0;
}

/* The driver has the counters from the boot on. */
int perfctr_glue_take_counters(void)
{
    return 0;
}

void perfctr_glue_put_counters(void)
{
}

/* Since the driver keeps the counters, the core never asks for a step. */
int perfctr_glue_host_step(perfctr_host_step step)
{
    return 0;
}

int perfctr_glue_register(uint64_t gfn, const struct perfctr_guest *guest,
                          bool goes_on)
{
    return perfctr_page_register(current, gfn, guest, goes_on);
}

void perfctr_glue_unregister(void)
{
    perfctr_page_unregister(current);
}

struct sum {
    spinlock_t lock;
    struct perfctr_hv_stats *stats;
};

static void cf_check add_stats(void *data)
{
    struct sum *sum = data;
    unsigned long flags;

    spin_lock_irqsave(&sum->lock, flags);
    perfctr_core_add_stats(perfctr_this_cpu(), sum->stats);
    spin_unlock_irqrestore(&sum->lock, flags);
}

void perfctr_glue_add_stats(struct perfctr_hv_stats *total)
{
    struct sum sum = { .stats = total };

    perfctr_departed_stats(total);
    spin_lock_init(&sum.lock);
    on_each_cpu(add_stats, &sum, 1);
}

long do_perfctr_op(unsigned int op, XEN_GUEST_HANDLE_PARAM(void) arg,
                   unsigned int length)
{
    struct caller caller = { .argument = guest_handle_cast(arg, char) };
    uint64_t argument[PERFCTR_ARGUMENT_BYTES / sizeof(uint64_t)];

    if ( !perfctr_on )
        return -ENODEV;

    return perfctr_core_hypercall(perfctr_driver(), &caller, op, argument,
                                  length);
}
