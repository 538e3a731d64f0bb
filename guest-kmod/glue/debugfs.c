/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* /sys/kernel/debug/perfctr/stats: "key value" lines. */

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>

#include "perfctr.h"

static struct dentry *perfctr_dir;

static u64 perfctr_sum_stat(u32 index)
{
	u64 sum = 0;
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++)
		sum += perfctr_core_stat(perfctr_cpus[cpu].core, index);
	return sum;
}

static int stats_show(struct seq_file *file, void *unused)
{
	const char *name;
	u32 index;

	seq_printf(file, "threads %u\n", perfctr_core_threads());
	for (index = 0;; index++) {
		name = perfctr_core_stat_name(perfctr_cpus[0].core, index);
		if (!name)
			return 0;
		seq_printf(file, "%s %llu\n", name, perfctr_sum_stat(index));
	}
}
DEFINE_SHOW_ATTRIBUTE(stats);

/* Nothing else depends on it. */
int perfctr_debugfs_init(void)
{
	perfctr_dir = debugfs_create_dir("perfctr", NULL);
	debugfs_create_file("stats", 0444, perfctr_dir, NULL, &stats_fops);
	return 0;
}

void perfctr_debugfs_exit(void)
{
	debugfs_remove_recursive(perfctr_dir);
}
