/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * RDPMC of ECX to RAX and RDX.  It changes no other register, so those who call
 * it at every switch have nothing to save.
 *
 * The host may take the right to read counters away between the caller's look at
 * the page and the instruction. A fault gives 0, and sets all bits of R10, which
 * is the caller's stamp of the page: the caller does not take the 0 for a count.
 * R10 is free in the callers that execute most often.
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
