// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Reads the module's parameter, and takes the PMU if nobody else has it. */

#define pr_fmt(fmt) "perfctr: " fmt

#include <linux/kvm_host.h>
#include <linux/module.h>
#include <asm/nmi.h>
#include <asm/perf_event.h>
#include <asm/tsc.h>

#include "x86.h"

#include "private.h"

/* The core parses its value. */
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

/* Finds this CPU's general counters, which perf reserves when it uses them. */
static void general(unsigned int *counter, unsigned int *select,
		    unsigned int *step, unsigned int *number)
{
	if (boot_cpu_data.x86_vendor == X86_VENDOR_INTEL) {
		*counter = MSR_ARCH_PERFMON_PERFCTR0;
		*select = MSR_ARCH_PERFMON_EVENTSEL0;
		*step = 1;
		*number = cpuid_eax(0xa) >> 8 & 0xff;
	} else if (boot_cpu_has(X86_FEATURE_PERFCTR_CORE)) {
		*counter = MSR_F15H_PERF_CTR;
		*select = MSR_F15H_PERF_CTL;
		*step = 2;
		*number = AMD64_NUM_COUNTERS_CORE;
	} else {
		*counter = MSR_K7_PERFCTR0;
		*select = MSR_K7_EVNTSEL0;
		*step = 1;
		*number = AMD64_NUM_COUNTERS;
	}
}

static void release(unsigned int number)
{
	unsigned int counter, select, step, all;

	general(&counter, &select, &step, &all);
	while (number--) {
		release_evntsel_nmi(select + step * number);
		release_perfctr_nmi(counter + step * number);
	}
}

/* Reserves all counters, so that either the driver or perf has them. */
static bool reserve(void)
{
	unsigned int counter, select, step, number, i;

	general(&counter, &select, &step, &number);
	for (i = 0; i < number; i++) {
		if (!reserve_perfctr_nmi(counter + step * i))
			break;
		if (!reserve_evntsel_nmi(select + step * i)) {
			release_perfctr_nmi(counter + step * i);
			break;
		}
	}
	if (i == number)
		return true;
	release(i);
	return false;
}

static void release_all(void)
{
	unsigned int counter, select, step, number;

	general(&counter, &select, &step, &number);
	release(number);
}

/* Starts the driver with the counters reserved, or logs why it stays off. */
static int take(const struct perfctr_options *options)
{
	/* Linux' perf may use the counters that several cores share. */
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
	err = perfctr_take_interrupt();
	if (err)
		return err;
	err = perfctr_take_cpus();
	if (err) {
		pr_err("off: not every CPU can count\n");
		perfctr_give_interrupt_back();
	}
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
	if (!reserve()) {
		pr_err("off: perf, perhaps its NMI watchdog, has counters\n");
		return;
	}
	if (take(&options)) {
		release_all();
		return;
	}
	perfctr_on = true;
	pr_info("on, ABI %d.%d%s\n", PERFCTR_ABI_MAJOR, PERFCTR_ABI_MINOR,
		options.measure_cost ? ", measuring its own cost" : "");
}

/* Called when no machine is left. */
void perfctr_exit(void)
{
	if (!perfctr_on)
		return;
	perfctr_give_cpus_back();
	perfctr_give_interrupt_back();
	release_all();
}
