/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A program without a library, short enough to be stepped. */

	.globl _start
	.text
_start:
	mov $500, %ecx
1:	dec %ecx
	jnz 1b
	/* Pages that nobody has touched. */
	lea memory(%rip), %rdi
	mov $5, %edx
	xor %eax, %eax
2:	mov $50, %ecx
	rep stosb
	add $4096, %rdi
	dec %edx
	jnz 2b
	/* exit(0) */
	mov $60, %eax
	xor %edi, %edi
	syscall

	.bss
memory:	.skip 24576

	.section .note.GNU-stack, "", @progbits
