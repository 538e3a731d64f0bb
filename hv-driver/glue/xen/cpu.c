/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The driver's state of the host and of each physical CPU. */

#include <xen/cpu.h>
#include <xen/init.h>
#include <xen/lib.h>
#include <xen/percpu.h>
#include <xen/sched.h>
#include <xen/smp.h>
#include <xen/spinlock.h>

#include <asm/acpi.h>
#include <asm/apic.h>
/* The name differs between Xen up to 4.18 and later releases. */
#if __has_include(<irq_vectors.h>)
#include <irq_vectors.h>
#else
#include <asm/irq-vectors.h>
#endif

#include "private.h"

bool __read_mostly perfctr_on;
bool __read_mostly perfctr_counts_entries;
bool __read_mostly perfctr_counts_interrupts;
bool __read_mostly perfctr_keeps_accounts;

struct perfctr_core_driver *perfctr_driver(void)
{
    static uint64_t __read_mostly
        driver[PERFCTR_DRIVER_BYTES / sizeof(uint64_t)];

    return (struct perfctr_core_driver *)driver;
}

struct perfctr_pcpu {
    /*
     * The number of the system's resets when this CPU last came up. A reset
     * loses all registers, and nobody is notified of it for the boot CPU.
     */
    uint32_t resets;
    uint64_t core[PERFCTR_CPU_BYTES / sizeof(uint64_t)];
};

/* When a CPU goes down, Xen keeps this if it parks the CPU, or clears it. */
static DEFINE_PER_CPU(struct perfctr_pcpu, perfctr_pcpu);

/*
 * The memory in which this CPU stores precise records. It has a page of its
 * own, since Xen also maps it where it hides its other memory from PV guests
 * (XPTI).
 */
struct perfctr_records {
    uint8_t __aligned(PAGE_SIZE) bytes[PERFCTR_RECORD_AREA_BYTES];
};
DEFINE_PER_CPU_PAGE_ALIGNED(struct perfctr_records, perfctr_records);

/*
 * The address is that of the direct map. The boot CPU's data also have an
 * address in Xen's image, whose page tables all CPUs share under XPTI.
 */
void *perfctr_records_of(unsigned int cpu)
{
    BUILD_BUG_ON(sizeof(struct perfctr_records) != PAGE_SIZE);

    return __va(__pa(&per_cpu(perfctr_records, cpu)));
}

/* Whether the PMU interrupts by NMIs. */
static DEFINE_PER_CPU(bool, interrupts_by_nmi);

static struct perfctr_core_cpu *core_of(struct perfctr_pcpu *pcpu)
{
    return (struct perfctr_core_cpu *)pcpu->core;
}

/* Whether events are accounted here. Only the CPU itself uses it. */
static DEFINE_PER_CPU(bool, accounting);

bool perfctr_is_accounting(void)
{
    return this_cpu(accounting);
}

static void account(const struct perfctr_core_cpu *core, const struct vcpu *v)
{
    this_cpu(accounting) =
        perfctr_core_account(core, perfctr_account_of(v), perfctr_rings_of(v));
}

void perfctr_account_current(const struct vcpu *v)
{
    unsigned long flags;

    local_irq_save(flags);
    account(perfctr_this_cpu(), v);
    local_irq_restore(flags);
}

/* The statistics of CPUs that have gone down. */
static DEFINE_SPINLOCK(departed_lock);
static struct perfctr_hv_stats departed;

/* Interrupts are disabled. */
static void keep_stats(struct perfctr_pcpu *pcpu)
{
    spin_lock(&departed_lock);
    perfctr_core_add_stats(core_of(pcpu), &departed);
    spin_unlock(&departed_lock);
}

void perfctr_departed_stats(struct perfctr_hv_stats *stats)
{
    unsigned long flags;

    spin_lock_irqsave(&departed_lock, flags);
    *stats = departed;
    spin_unlock_irqrestore(&departed_lock, flags);
}

/*
 * Prepares this CPU, whose registers may hold anything. Interrupts are
 * disabled. cpuid is NULL for the boot CPU when it comes back, since CPUID may
 * then give a guest's view.
 */
static bool come_up(struct perfctr_pcpu *pcpu,
                    const struct perfctr_cpuid *cpuid)
{
    struct perfctr_why why;

    if ( !cpuid )
        keep_stats(pcpu);
    pcpu->resets = system_reset_counter;

    perfctr_core_cpu_init(core_of(pcpu), perfctr_driver(), smp_processor_id(),
                          perfctr_records_of(smp_processor_id()));
    if ( perfctr_core_cpu_up(core_of(pcpu), cpuid, &why) )
    {
        printk(XENLOG_ERR
               "perfctr: CPU %u cannot count: expected %.*s, found %#x\n",
               smp_processor_id(), why.expected_bytes,
               (const char *)why.expected, why.found);
        return false;
    }

    account(core_of(pcpu), current);
    perfctr_unmask_interrupt();
    return true;
}

/* Prepares this CPU when it comes up for the first time, or again. */
static bool come_up_anew(void)
{
    struct perfctr_cpuid cpuid;

    perfctr_core_read_cpuid(&cpuid);
    return come_up(&this_cpu(perfctr_pcpu), &cpuid);
}

static void go_down(void)
{
    struct perfctr_pcpu *pcpu = &this_cpu(perfctr_pcpu);

    this_cpu(interrupts_by_nmi) = false;
    apic_write(APIC_LVTPC, PMU_APIC_VECTOR | APIC_LVT_MASKED);
    account(core_of(pcpu), current);
    this_cpu(accounting) = false;
    perfctr_core_cpu_down(core_of(pcpu));
    keep_stats(pcpu);
}

/*
 * The boot CPU has come back after a reset. This is not inlined, so that hooks
 * do not save registers for it.
 */
static noinline struct perfctr_core_cpu *come_back(struct perfctr_pcpu *pcpu)
{
    come_up(pcpu, NULL);
    return core_of(pcpu);
}

struct perfctr_core_cpu *perfctr_this_cpu(void)
{
    struct perfctr_pcpu *pcpu = &this_cpu(perfctr_pcpu);

    if ( unlikely(pcpu->resets != system_reset_counter) )
        return come_back(pcpu);
    return core_of(pcpu);
}

/* Executes on the CPU itself, with interrupts disabled. */
static int cf_check notified(struct notifier_block *block, unsigned long action,
                             void *cpu)
{
    if ( action == CPU_STARTING )
        come_up_anew();
    else if ( action == CPU_DYING )
        go_down();
    return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = notified };

static void __init cf_check take_this(void *all)
{
    if ( !come_up_anew() )
        *(bool *)all = false;
}

static void __init cf_check give_back(void *unused)
{
    go_down();
}

bool __init perfctr_take_cpus(bool some)
{
    bool all = true;

    on_each_cpu(take_this, &all, 1);
    if ( all || some )
        register_cpu_notifier(&notifier);
    else
        on_each_cpu(give_back, NULL, 1);
    return all || some;
}

/*
 * Intel's local APICs mask the entry for the PMU when they deliver an interrupt
 * by it. This unmasks the entry.
 */
void perfctr_unmask_interrupt(void)
{
    apic_write(APIC_LVTPC,
               this_cpu(interrupts_by_nmi) ? APIC_DM_NMI : PMU_APIC_VECTOR);
}

void perfctr_interrupt_by_nmi(bool by_nmi)
{
    this_cpu(interrupts_by_nmi) = by_nmi;
    perfctr_unmask_interrupt();
}

/*
 * The NMI may have interrupted code that sends another IPI. A self-IPI by
 * shorthand writes only one register, so it does not disturb that.
 */
void perfctr_interrupt_again(void)
{
    send_IPI_self(PMU_APIC_VECTOR);
}

/* This does not look for a reset: after one the PMU raises no NMI. */
struct perfctr_core_cpu *perfctr_cpu_in_nmi(void)
{
    return core_of(&this_cpu(perfctr_pcpu));
}
