/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The driver's state of the host and of each physical CPU. */

#include <xen/cpu.h>
#include <xen/init.h>
#include <xen/percpu.h>
#include <xen/smp.h>

#include <asm/acpi.h>
#include <asm/apic.h>
#include <irq_vectors.h>

#include "private.h"

bool __read_mostly perfctr_on;

struct perfctr_core_driver *perfctr_driver(void)
{
    static uint64_t __read_mostly
        driver[PERFCTR_DRIVER_BYTES / sizeof(uint64_t)];

    return (struct perfctr_core_driver *)driver;
}

struct cpu_slot {
    /*
     * The system's resets when this CPU was prepared: each loses its registers,
     * also the boot CPU's, which comes back without a notification. 0: not yet.
     */
    uint32_t resets;
    uint64_t core[PERFCTR_CPU_BYTES / sizeof(uint64_t)];
};

static DEFINE_PER_CPU(struct cpu_slot, cpu_slot);

/* Interrupts are disabled. */
struct perfctr_core_cpu *perfctr_this_cpu(void)
{
    struct cpu_slot *slot = &this_cpu(cpu_slot);
    struct perfctr_core_cpu *cpu = (struct perfctr_core_cpu *)slot->core;

    if ( slot->resets != system_reset_counter )
    {
        perfctr_core_cpu_init(cpu, perfctr_driver(), smp_processor_id());
        perfctr_unmask_interrupt();
        slot->resets = system_reset_counter;
    }
    return cpu;
}

/* The local APIC masks the entry when it delivers. */
void perfctr_unmask_interrupt(void)
{
    apic_write(APIC_LVTPC, PMU_APIC_VECTOR);
}

/* A CPU that comes up again may have kept its state here and lost its registers. */
static int cf_check notified(struct notifier_block *block, unsigned long action,
                             void *cpu)
{
    if ( action == CPU_STARTING )
        this_cpu(cpu_slot).resets = 0;
    return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = notified };

static int __init cf_check watch_cpus(void)
{
    register_cpu_notifier(&notifier);
    return 0;
}
__initcall(watch_cpus);
