/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A program without a library that takes branches of all kinds, in an order
 * that looks like chance, and is short enough to be stepped. It is compiled
 * twice, at different addresses, with another seed each time.
 */

#ifndef SEED
#define SEED 1
#endif
#define ROUNDS 500
#define GETPID 39
#define EXIT   60

	.globl _start
	.text
_start:
	mov $SEED, %ebx
	mov $ROUNDS, %ebp
	mov $memory, %r12d
round:
	imul $1103515245, %ebx
	add $12345, %ebx
	mov %ebx, %eax
	shr $16, %eax
	/* A conditional branch either way, short and long. */
	test $1, %eax
	jz 1f
	nop
1:	test $2, %eax
	.byte 0x0f, 0x85 /* JNZ with a distance of 32 bits */
	.long 2f - 3f
3:	nop
2:	/* A call by distance, or through a register. */
	test $4, %eax
	jz 4f
	call leaf
	jmp 5f
4:	mov $leaf, %edx
	call *%rdx
5:	/* A jump through a table. */
	mov %eax, %edx
	and $3, %edx
	jmp *table(, %rdx, 8)
case0:	jmp 6f
case1:	mov $3, %ecx
7:	loop 7b
	jmp 6f
case2:	/* A page that nobody has touched yet: a fault. */
	movb $1, (%r12)
	add $4096, %r12
	cmp $memory_end, %r12
	jb 6f
	mov $memory, %r12d
	jmp 6f
case3:	test $0x70, %eax
	jnz 6f
	mov %eax, %r13d
	mov $GETPID, %eax
	syscall
	mov %r13d, %eax
6:	dec %ebp
	jnz round
	mov $EXIT, %eax
	xor %edi, %edi
	syscall

leaf:	test $8, %eax
	jnz 8f
	ret
8:	nop
	ret

	.section .rodata
	.balign 8
table:	.quad case0, case1, case2, case3

	.bss
	.balign 4096
memory:	.skip 64 * 4096
memory_end:

	.section .note.GNU-stack, "", @progbits
