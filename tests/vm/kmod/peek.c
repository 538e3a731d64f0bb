/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What a guest's kernel reads from the counters without asking anybody.
 *
 * /sys/module/peek/parameters/rdpmc and .../rdmsr: a line for each counter and
 * register, read anew: its number and its value, or "fault".
 */

#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sysfs.h>
#include <asm/asm.h>
#include <asm/msr.h>

/* Every general counter that RDPMC may know, and Intel's fixed ones. */
static const u32 counters[] = {
	0, 1, 2, 3, 4, 5, 6, 7,
	1u << 30, (1u << 30) + 1, (1u << 30) + 2, (1u << 30) + 3,
};

/* Intel's counters, by both names, selectors and globals; AMD's likewise. */
static const struct {
	u32 first, number;
} registers[] = {
	{ 0xc1, 8 }, { 0x186, 8 }, { 0x309, 4 }, { 0x38d, 4 }, { 0x4c1, 8 },
	{ 0xc0010000, 8 }, { 0xc0010200, 12 }, { 0xc0000300, 4 },
};

static bool read_counter(u32 index, u64 *value)
{
	u32 low = 0, high = 0, fault = 1;

	asm volatile("1: rdpmc\n\txor %[fault], %[fault]\n2:\n"
		     _ASM_EXTABLE(1b, 2b)
		     : "+a" (low), "+d" (high), [fault] "+r" (fault)
		     : "c" (index) : "cc");
	*value = (u64)high << 32 | low;
	return !fault;
}

static int line(char *buffer, int length, u32 number, bool good, u64 value)
{
	if (!good)
		return sysfs_emit_at(buffer, length, "%#x fault\n", number);
	return sysfs_emit_at(buffer, length, "%#x %llu\n", number, value);
}

static int get_rdpmc(char *buffer, const struct kernel_param *param)
{
	int i, length = 0;

	for (i = 0; i < ARRAY_SIZE(counters); i++) {
		u64 value;
		bool good = read_counter(counters[i], &value);

		length += line(buffer, length, counters[i], good, value);
	}
	return length;
}

static int get_rdmsr(char *buffer, const struct kernel_param *param)
{
	int i, length = 0;
	u32 n;

	for (i = 0; i < ARRAY_SIZE(registers); i++) {
		for (n = 0; n < registers[i].number; n++) {
			u32 msr = registers[i].first + n;
			u64 value;
			bool good = !rdmsrl_safe(msr, &value);

			length += line(buffer, length, msr, good, value);
		}
	}
	return length;
}

static const struct kernel_param_ops rdpmc_ops = { .get = get_rdpmc };
static const struct kernel_param_ops rdmsr_ops = { .get = get_rdmsr };

module_param_cb(rdpmc, &rdpmc_ops, NULL, 0400);
module_param_cb(rdmsr, &rdmsr_ops, NULL, 0400);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("what the counters tell a guest's kernel");
