# SPDX-License-Identifier: MIT OR GPL-2.0-only
# Three functions with frames, of which each calls the next one; the last one executes a loop. Each
# begins at a multiple of 256 bytes from the first, which the linker puts at 0x401000.
	.text
	.globl _start
_start:
	xor %ebp, %ebp
	call outer
	mov $60, %eax			# exit
	xor %edi, %edi
	syscall

	.balign 256
outer:
	push %rbp
	mov %rsp, %rbp
	call inner
	pop %rbp
	ret

	.balign 256
inner:
	push %rbp
	mov %rsp, %rbp
	mov $1000000, %ecx
1:	dec %ecx
	jnz 1b
	pop %rbp
	ret
