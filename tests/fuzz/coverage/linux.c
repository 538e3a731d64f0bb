/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * How many places of the module were reached since it was loaded, for the
 * fuzzer: /sys/module/perfctr/parameters/coverage. In no other build.
 */

#include <linux/atomic.h>
#include <linux/bitops.h>
#include <linux/module.h>

/* Code of the module that is looked at, in bytes; calls are apart by more than four. */
#define CODE_BYTES (1 << 18)
#define CALL_BYTES 4

static DECLARE_BITMAP(reached, CODE_BYTES / CALL_BYTES);
static unsigned int coverage;
module_param(coverage, uint, 0444);

void __sanitizer_cov_trace_pc(void);

/* The compiler calls this in every basic block, in every context. */
notrace void __sanitizer_cov_trace_pc(void)
{
	unsigned long start = (unsigned long)THIS_MODULE->core_layout.base;
	unsigned long place = (_RET_IP_ - start) / CALL_BYTES;

	/* Places before and behind are not kept, such as the initialisation. */
	if (place < CODE_BYTES / CALL_BYTES && !test_bit(place, reached) &&
	    !test_and_set_bit(place, reached))
		xadd(&coverage, 1);
}
