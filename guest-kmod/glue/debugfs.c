/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The file /sys/kernel/debug/perfctr/stats, which has a line "key value" for
 * each number.
 */

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>

#include "perfctr.h"

static struct dentry *perfctr_dir;

static int stats_show(struct seq_file *file, void *unused)
{
	const char *name;
	u32 index = 0;
	u64 value;

	while ((name = perfctr_core_stat(index++, &value)))
		seq_printf(file, "%s %llu\n", name, value);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

/* The module works without the file, so errors are ignored. */
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
