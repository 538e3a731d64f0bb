/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Reads the boot option, and starts the driver. */

#include <xen/init.h>
#include <xen/lib.h>
#include <xen/param.h>
#include <xen/xenoprof.h>
#include <asm/apic.h>
#include <asm/nmi.h>
#include <asm/time.h>
#include <asm/vpmu.h>

#include "private.h"

static struct perfctr_options __initdata options;

static int __init cf_check parse_perfctr(const char *s)
{
    struct perfctr_why why;

    if ( !perfctr_core_parse(s, strlen(s), &options, &why) )
        return 0;

    printk(XENLOG_ERR "perfctr: off: expected %.*s, found %s\n",
           why.expected_bytes, (const char *)why.expected, s);
    options.on = false;
    return -EINVAL;
}
custom_param("perfctr", parse_perfctr);

/*
 * Returns what else in Xen uses the counters or the branch records, or NULL if
 * nothing does.
 */
static const char *__init other_owner(void)
{
    if ( vpmu_mode != XENPMU_MODE_OFF )
        return "option vpmu is on";
    if ( nmi_watchdog == NMI_LOCAL_APIC )
        return "the NMI watchdog uses a counter";
    if ( options.branches && cpu_has_xen_lbr )
        return "Xen records its own branches (option ler)";
    if ( !acquire_pmu_ownership(PMU_OWNER_HVM) )
        return "xenoprof owns the counters";
    return NULL;
}

static int __init cf_check perfctr_init(void)
{
    struct perfctr_cpuid cpuid;
    /*
     * No domain can write to a counter's register, so the driver has all of
     * them.
     */
    const struct perfctr_host_facts host = {
        .ticks_per_ms = cpu_khz,
        .owns_all = true,
        .can_profile = true,
        .can_record = true,
    };
    struct perfctr_why why;
    const char *owner;

    if ( !options.on )
        return 0;

    owner = other_owner();
    if ( owner )
    {
        printk(XENLOG_ERR "perfctr: off: %s\n", owner);
        return 0;
    }

    perfctr_core_read_cpuid(&cpuid);
    if ( perfctr_core_init(perfctr_driver(), &cpuid, &options, &host, &why) )
    {
        printk(XENLOG_ERR "perfctr: off: expected %.*s, found %#x\n",
               why.expected_bytes, (const char *)why.expected, why.found);
        release_pmu_ownership(PMU_OWNER_HVM);
        return 0;
    }

    if ( !perfctr_take_cpus(options.some_cpus) )
    {
        printk(XENLOG_ERR "perfctr: off: not every CPU can count;"
                          " cpus=some counts on the others\n");
        release_pmu_ownership(PMU_OWNER_HVM);
        return 0;
    }

    perfctr_counts_entries = options.counts_entries;
    perfctr_counts_interrupts = options.counts_interrupts;
    perfctr_keeps_accounts = options.accounts;
    perfctr_on = true;
    printk("perfctr: on, ABI %d.%d%s\n", PERFCTR_ABI_MAJOR, PERFCTR_ABI_MINOR,
           options.measure_cost ? ", measuring its own cost" : "");
    return 0;
}
__initcall(perfctr_init);
