// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The module's parameter, and who else has the PMU. */

#define pr_fmt(fmt) "perfctr: " fmt

#include <linux/kvm_host.h>
#include <linux/module.h>
#include <linux/parser.h>
#include <asm/nmi.h>
#include <asm/perf_event.h>
#include <asm/tsc.h>

#include "x86.h"

#include "private.h"

/* perfctr=on|off[,all][,cost][,events=all][,rate=<overflows per ms>] */
static char *perfctr_option = "off";
module_param_named(perfctr, perfctr_option, charp, 0444);

struct perfctr_options {
	bool on, cost, all_events;
	/* Overflows that a vCPU may have in each millisecond. */
	unsigned int rate;
};

enum { OPT_ON, OPT_OFF, OPT_ALL, OPT_COST, OPT_EVENTS, OPT_RATE, OPT_OTHER };

static const match_table_t perfctr_tokens = {
	{ OPT_ON, "on" },
	{ OPT_ON, "1" },
	{ OPT_OFF, "off" },
	{ OPT_OFF, "0" },
	{ OPT_ALL, "all" },
	{ OPT_COST, "cost" },
	{ OPT_EVENTS, "events=all" },
	{ OPT_RATE, "rate=%u" },
	{ OPT_OTHER, NULL },
};

static int parse_one(char *word, struct perfctr_options *options)
{
	substring_t args[MAX_OPT_ARGS];
	int err = 0;

	switch (match_token(word, perfctr_tokens, args)) {
	case OPT_ON:
		break;
	case OPT_OFF:
		options->on = false;
		return 0;
	case OPT_ALL:
		perfctr_all = true;
		break;
	case OPT_COST:
		options->cost = true;
		break;
	case OPT_EVENTS:
		options->all_events = true;
		break;
	case OPT_RATE:
		err = match_uint(&args[0], &options->rate);
		break;
	default:
		return -EINVAL;
	}
	options->on = true;
	return err;
}

static int parse(struct perfctr_options *options)
{
	char *copy = kstrdup(perfctr_option, GFP_KERNEL), *rest = copy, *word;
	int err = copy ? 0 : -ENOMEM;

	while (!err && (word = strsep(&rest, ",")))
		err = parse_one(word, options);
	if (err)
		pr_err("off: expected on|off[,all][,cost][,events=all][,rate=<number>], found %s\n",
		       perfctr_option);
	kfree(copy);
	return err;
}

/* The registers of this CPU's general counters; perf takes those it uses. */
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

/* perf is refused while the driver is on, and the driver while perf counts. */
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

/* With the counters reserved; why the driver is off, which is said. */
static int take(const struct perfctr_options *options)
{
	const struct perfctr_settings settings = {
		.rate = { .window_tsc = tsc_khz,
			  .overflows_max = options->rate },
		.measure_cost = options->cost,
		.all_events = options->all_events,
	};
	struct perfctr_cpuid cpuid;
	struct perfctr_why why;
	int err;

	perfctr_core_read_cpuid(&cpuid);
	if (perfctr_core_init(perfctr_driver(), &cpuid, &settings, &why)) {
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
	struct perfctr_options options = { .rate = 50 };

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
		options.cost ? ", measuring its own cost" : "");
}

/* No machine is left. */
void perfctr_exit(void)
{
	if (!perfctr_on)
		return;
	perfctr_give_cpus_back();
	perfctr_give_interrupt_back();
	release_all();
}
