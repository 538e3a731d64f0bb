/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The boot option. */

#include <xen/init.h>
#include <xen/lib.h>
#include <xen/param.h>
#include <xen/xenoprof.h>
#include <asm/apic.h>
#include <asm/nmi.h>
#include <asm/time.h>
#include <asm/vpmu.h>

#include "private.h"

static bool __initdata opt_perfctr;
static bool __initdata opt_cost;
static bool __initdata opt_all_events;
/* Overflows that a vCPU may have in each millisecond. */
static unsigned int __initdata opt_rate = 50;

static int __init parse_one(const char *s, const char *end)
{
    int val = parse_bool(s, end);

    if ( s == end || val > 0 )
        opt_perfctr = true;
    else if ( val == 0 )
        opt_perfctr = false;
    else if ( !cmdline_strcmp(s, "all") )
        opt_perfctr = perfctr_all = true;
    else if ( !cmdline_strcmp(s, "cost") )
        opt_perfctr = opt_cost = true;
    else if ( !cmdline_strcmp(s, "events=all") )
        opt_perfctr = opt_all_events = true;
    else if ( !strncmp(s, "rate=", 5) )
    {
        opt_perfctr = true;
        opt_rate = simple_strtoul(s + 5, &s, 0);
    }
    else
        return -EINVAL;

    return 0;
}

/* perfctr[=<bool>][,all][,cost][,events=all][,rate=<overflows per ms>] */
static int __init cf_check parse_perfctr(const char *s)
{
    int rc = 0;

    for ( ;; )
    {
        const char *end = strchr(s, ',') ?: strchr(s, '\0');

        rc = parse_one(s, end) ?: rc;
        if ( !*end )
            return rc;
        s = end + 1;
    }
}
custom_param("perfctr", parse_perfctr);

/* Who else drives the PMU, or NULL. */
static const char *__init other_owner(void)
{
    if ( vpmu_mode != XENPMU_MODE_OFF )
        return "option vpmu is on";
    if ( nmi_watchdog == NMI_LOCAL_APIC )
        return "the NMI watchdog uses a counter";
    if ( !acquire_pmu_ownership(PMU_OWNER_HVM) )
        return "xenoprof owns the counters";
    return NULL;
}

static int __init cf_check perfctr_init(void)
{
    struct perfctr_cpuid cpuid;
    struct perfctr_settings settings = {
        .rate = { .window_tsc = cpu_khz, .overflows_max = opt_rate },
        .measure_cost = opt_cost,
        .all_events = opt_all_events,
    };
    struct perfctr_why why;
    const char *owner;

    if ( !opt_perfctr )
        return 0;

    owner = other_owner();
    if ( owner )
    {
        printk(XENLOG_ERR "perfctr: off: %s\n", owner);
        return 0;
    }

    perfctr_core_read_cpuid(&cpuid);
    if ( perfctr_core_init(perfctr_driver(), &cpuid, &settings, &why) )
    {
        printk(XENLOG_ERR "perfctr: off: expected %.*s, found %#x\n",
               why.expected_bytes, (const char *)why.expected, why.found);
        release_pmu_ownership(PMU_OWNER_HVM);
        return 0;
    }

    if ( !perfctr_take_cpus() )
    {
        printk(XENLOG_ERR "perfctr: off: not every CPU can count\n");
        release_pmu_ownership(PMU_OWNER_HVM);
        return 0;
    }

    perfctr_on = true;
    printk("perfctr: on, ABI %d.%d%s\n", PERFCTR_ABI_MAJOR, PERFCTR_ABI_MINOR,
           opt_cost ? ", measuring its own cost" : "");
    return 0;
}
__initcall(perfctr_init);
