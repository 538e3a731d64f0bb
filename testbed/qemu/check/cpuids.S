/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A program of 2 * CPUIDS + 3 instructions, of which CPUIDS are CPUID. */
	.globl	_start
_start:
	.rept	CPUIDS
	xor	%eax, %eax
	cpuid
	.endr
	mov	$60, %eax	/* exit */
	xor	%edi, %edi
	syscall

	.section .note.GNU-stack, "", @progbits
