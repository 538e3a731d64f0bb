/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Reads the counter whose number is in ECX to RAX and RDX. No other register
 * changes, so that callers have nothing to save at each switch.
 *
 * After the caller has looked at the page, and before it executes the
 * instruction, the host may take back the right to read counters. Then the
 * instruction faults, and the result is 0. R10 holds the caller's stamp of the
 * page, and the fault sets all of its bits, so that the caller does not take
 * the 0 for a count. R10 is the register that the most frequent callers can
 * spare.
 */

#include <linux/linkage.h>
#include <asm/asm.h>

SYM_FUNC_START(perfctr_glue_rdpmc)
1:	rdpmc
2:	RET
3:	movq	$-1, %r10
	xorl	%eax, %eax
	xorl	%edx, %edx
	jmp	2b
	_ASM_EXTABLE(1b, 3b)
SYM_FUNC_END(perfctr_glue_rdpmc)
