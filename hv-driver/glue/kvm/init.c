// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Reads the module's parameter, and starts the driver. */

#define pr_fmt(fmt) "perfctr: " fmt

#include <linux/kvm_host.h>
#include <linux/module.h>
#include <asm/tsc.h>

#include "x86.h"

/* Up to Linux 6.12 at least, pmu.h needs declarations of x86.h. */
#include "pmu.h"

#include "private.h"

/* The core parses the option's value. */
static char *perfctr_option = "off";
module_param_named(perfctr, perfctr_option, charp, 0444);

static int parse(struct perfctr_options *options)
{
	struct perfctr_why why;

	if (!perfctr_core_parse(perfctr_option, strlen(perfctr_option), options,
				&why))
		return 0;
	pr_err("off: expected %.*s, found %s\n", why.expected_bytes,
	       (const char *)why.expected, perfctr_option);
	return -EINVAL;
}

/* Starts the driver, or logs why it stays off. */
static int start(const struct perfctr_options *options)
{
	/* The counters that several cores share stay with Linux' perf. */
	const struct perfctr_host_facts host = { .ticks_per_ms = tsc_khz };
	struct perfctr_cpuid cpuid;
	struct perfctr_why why;
	int err;

	perfctr_core_read_cpuid(&cpuid);
	if (perfctr_core_init(perfctr_driver(), &cpuid, options, &host, &why)) {
		pr_err("off: expected %.*s, found %#x\n", why.expected_bytes,
		       (const char *)why.expected, why.found);
		return -ENODEV;
	}
	perfctr_some_cpus = options->some_cpus;
	err = perfctr_take_interrupt();
	if (err)
		return err;
	err = perfctr_start_cpus();
	if (err)
		goto no_cpus;
	err = perfctr_show_machines();
	if (err)
		goto no_list;
	err = perfctr_core_try_cpus();
	if (err) {
		pr_err("off: not every CPU can count; cpus=some counts on the others\n");
		goto no_counters;
	}
	return 0;

no_counters:
	perfctr_hide_machines();
no_list:
	perfctr_stop_cpus();
no_cpus:
	perfctr_give_interrupt_back();
	return err;
}

void perfctr_init(void)
{
	struct perfctr_options options;

	if (parse(&options) || !options.on)
		return;
	if (enable_pmu) {
		pr_err("off: KVM's own virtual PMU is on; expected enable_pmu=0\n");
		return;
	}
	if (start(&options))
		return;
	perfctr_counts_entries = options.counts_entries;
	perfctr_on = true;
	pr_info("on, ABI %d.%d%s\n", PERFCTR_ABI_MAJOR, PERFCTR_ABI_MINOR,
		options.measure_cost ? ", measuring its own cost" : "");
}

/* KVM calls this when no machine is left. */
void perfctr_exit(void)
{
	if (!perfctr_on)
		return;
	perfctr_hide_machines();
	perfctr_stop_counters();
	perfctr_stop_cpus();
	perfctr_give_interrupt_back();
}
