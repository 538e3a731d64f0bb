/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * How many places of the driver were reached since boot, for the fuzzer:
 * /params/perfctr-coverage of Xen's own file system. In no other build.
 */

#include <xen/bitops.h>
#include <xen/kernel.h>
#include <xen/param.h>
#include <xen/types.h>

/* Xen's code that is looked at, in bytes; calls are apart by more than four. */
#define CODE_BYTES (4UL << 20)
#define CALL_BYTES 4

static DECLARE_BITMAP(reached, CODE_BYTES / CALL_BYTES);
static unsigned int perfctr_coverage;
integer_runtime_param("perfctr-coverage", perfctr_coverage);

void __sanitizer_cov_trace_pc(void);

/* The compiler calls this in every basic block, in every context. */
void __sanitizer_cov_trace_pc(void)
{
    unsigned long address = (unsigned long)__builtin_return_address(0);
    unsigned long place = (address - (unsigned long)_stext) / CALL_BYTES;

    if ( place < CODE_BYTES / CALL_BYTES && !test_bit(place, reached) &&
         !test_and_set_bit(place, reached) )
        (void)arch_fetch_and_add(&perfctr_coverage, 1);
}
