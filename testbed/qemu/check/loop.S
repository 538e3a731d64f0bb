/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A program of 2 * ITERATIONS + 4 instructions, of which ITERATIONS + 1 are branches: the system
 * call is one.
 */
	.globl	_start
_start:
	mov	$ITERATIONS, %ecx
1:	dec	%ecx
	jnz	1b
	mov	$60, %eax	/* exit */
	xor	%edi, %edi
	syscall

	.section .note.GNU-stack, "", @progbits
