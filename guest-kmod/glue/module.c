/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Loads and unloads the module. */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>

#include "perfctr.h"

static int perfctr_handshake(void)
{
	const char *name = "neither Xen nor KVM", *found = "";
	int err = -ENODEV;

	if (perfctr_platform_find()) {
		name = perfctr_platform->name;
		err = perfctr_core_handshake(nr_cpu_ids, &found);
	}
	if (err)
		pr_err("found %s %s (error %d), expected perfctr on, ABI major %d, at most %d vCPUs\n",
		       name, found, err, PERFCTR_ABI_MAJOR, PERFCTR_MAX_VCPUS);
	return err;
}

/*
 * The module's parts are set up in this order and taken down in the opposite
 * one. The watch of switches ends when no vCPU can need it any more.
 */
static const struct {
	int (*init)(void);
	void (*exit)(void);
} perfctr_parts[] = {
	{ perfctr_cpus_init, perfctr_core_vcpus_free },
	{ perfctr_sched_init, perfctr_watch_exit },
	{ perfctr_vcpus_init, perfctr_vcpus_exit },
	{ perfctr_task_init, perfctr_task_exit },
	{ perfctr_debugfs_init, perfctr_debugfs_exit },
	{ perfctr_chardev_init, perfctr_chardev_exit },
	{ perfctr_pmu_init, perfctr_pmu_exit },
};

static void perfctr_take_down(unsigned int parts)
{
	while (parts--)
		perfctr_parts[parts].exit();
}

static int __init perfctr_init(void)
{
	int err = perfctr_handshake();
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(perfctr_parts) && !err; i++) {
		err = perfctr_parts[i].init();
		if (err)
			perfctr_take_down(i);
	}
	return err;
}

static void __exit perfctr_exit(void)
{
	perfctr_take_down(ARRAY_SIZE(perfctr_parts));
}

module_init(perfctr_init);
module_exit(perfctr_exit);
MODULE_DESCRIPTION(
	"Per-thread hardware performance counters in a virtual machine");
MODULE_LICENSE("Dual MIT/GPL");
/* This is the version in the workspace's Cargo.toml. */
MODULE_VERSION("0.1.0");
