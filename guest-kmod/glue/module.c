/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Loading and unloading. */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/miscdevice.h>
#include <linux/module.h>

#include "perfctr.h"

static const char *perfctr_found(int err)
{
	switch (err) {
	case -ENOSYS:
		return "without perfctr";
	case -ENODEV:
		return "with perfctr off; its log says why";
	case -EPROTO:
		return "whose perfctr has another ABI";
	case -EPERM:
		return "that does not let this domain count";
	default:
		return "that does not support this kind of domain";
	}
}

static int perfctr_handshake(void)
{
	int err = -ENODEV;
	const char *name = "neither Xen nor KVM", *found = "";

	if (perfctr_platform_find()) {
		name = perfctr_platform->name;
		err = perfctr_core_handshake(&perfctr_query);
		found = perfctr_found(err);
	}
	if (!err && perfctr_platform->owns_cr4() && !PERFCTR_MAY_CHANGE_CR4) {
		err = -EOPNOTSUPP;
		found = "whose guest's kernel lends its modules no CR4";
	}
	if (!err && nr_cpu_ids > PERFCTR_MAX_VCPUS) {
		err = -E2BIG;
		found = "with too many vCPUs";
	}
	if (err)
		pr_err("found %s %s (error %d), expected perfctr on, ABI major %d, at most %d vCPUs\n",
		       name, found, err, PERFCTR_ABI_MAJOR, PERFCTR_MAX_VCPUS);
	return err;
}

static int __init perfctr_init(void)
{
	int err = perfctr_handshake();

	if (err)
		return err;
	err = perfctr_cpus_init();
	if (err)
		return err;
	err = perfctr_users_init();
	if (err)
		goto undo_cpus;
	err = perfctr_vcpus_init();
	if (err)
		goto undo_users;
	perfctr_sched_init();
	err = perfctr_task_init();
	if (err)
		goto undo_vcpus;
	err = perfctr_pce_init();
	if (err)
		goto undo_task;
	perfctr_debugfs_init();
	err = misc_register(&perfctr_device);
	if (!err) {
		perfctr_pmu_init();
		return 0;
	}
	perfctr_debugfs_exit();
	perfctr_pce_exit();
undo_task:
	perfctr_task_exit();
undo_vcpus:
	perfctr_vcpus_exit();
undo_users:
	perfctr_users_exit();
undo_cpus:
	perfctr_cpus_exit();
	return err;
}

static void __exit perfctr_exit(void)
{
	perfctr_pmu_exit();
	misc_deregister(&perfctr_device);
	perfctr_debugfs_exit();
	perfctr_pce_exit();
	perfctr_task_exit();
	perfctr_vcpus_exit();
	perfctr_watch_exit();
	perfctr_users_exit();
	perfctr_cpus_exit();
}

module_init(perfctr_init);
module_exit(perfctr_exit);
MODULE_DESCRIPTION(
	"Per-thread hardware performance counters in a virtual machine");
MODULE_LICENSE("Dual MIT/GPL");
/* The workspace's, Cargo.toml. */
MODULE_VERSION("0.1.0");
