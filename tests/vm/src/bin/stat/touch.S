/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A program without a library that faults at each of many pages, and does nothing else. */

	.globl _start
	.text
_start:
	/* prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0): each fault maps one page of 4 KiB. */
	mov $157, %eax
	mov $41, %edi
	mov $1, %esi
	xor %edx, %edx
	xor %r10d, %r10d
	xor %r8d, %r8d
	syscall
	lea memory(%rip), %rdi
	mov $16384, %ecx
1:	movb $1, (%rdi)
	add $4096, %rdi
	dec %ecx
	jnz 1b
	/* exit(0) */
	mov $60, %eax
	xor %edi, %edi
	syscall

	.bss
memory:	.skip 67108864

	.section .note.GNU-stack, "", @progbits
