/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The driver's state of the host and of each physical CPU. */

#include <xen/percpu.h>
#include <xen/smp.h>

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
    bool ready;
    uint64_t core[PERFCTR_CPU_BYTES / sizeof(uint64_t)];
};

/* Cleared when a CPU goes online again, whose registers are then unknown. */
static DEFINE_PER_CPU(struct cpu_slot, cpu_slot);

/* Interrupts are disabled. */
struct perfctr_core_cpu *perfctr_this_cpu(void)
{
    struct cpu_slot *slot = &this_cpu(cpu_slot);
    struct perfctr_core_cpu *cpu = (struct perfctr_core_cpu *)slot->core;

    if ( !slot->ready )
    {
        perfctr_core_cpu_init(cpu, perfctr_driver(), smp_processor_id());
        perfctr_unmask_interrupt();
        slot->ready = true;
    }
    return cpu;
}

/* The local APIC masks the entry when it delivers. */
void perfctr_unmask_interrupt(void)
{
    apic_write(APIC_LVTPC, PMU_APIC_VECTOR);
}
