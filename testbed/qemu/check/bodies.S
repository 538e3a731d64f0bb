/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Code whose number of instructions and branches is known by reading it. Each body takes its
 * number of rounds in %rdi; the formulas are in pmu-check.c. None of them counts its RET.
 */
#define IOCTL       16
#define ENABLE      0x2400
#define DISABLE     0x2401
#define GETPID      39
#define SIGRETURN   15
#define UC_RIP      168 /* of the saved instruction pointer in a ucontext */

        .text

/* measured(fd, body, rounds): enables the event group, runs the body, disables the group. */
        .globl  measured, measured_first, measured_end
measured:
        push    %rbx
        push    %r12
        push    %r13
        mov     %edi, %ebx
        mov     %rsi, %r12
        mov     %rdx, %r13
        mov     $IOCTL, %eax
        mov     $ENABLE, %esi
        mov     $1, %edx
        syscall
measured_first:                 /* 7 instructions and 2 branches from here, without the RET */
        mov     %r13, %rdi
        call    *%r12
        mov     $IOCTL, %eax
        mov     %ebx, %edi
        mov     $DISABLE, %esi
        mov     $1, %edx
        syscall
measured_end:
        pop     %r13
        pop     %r12
        pop     %rbx
        ret

        .globl  body_loop
body_loop:
1:      dec     %rdi
        jnz     1b
        ret

/* The first write to each page of the arena faults. */
        .globl  body_faults
body_faults:
        mov     arena(%rip), %rax
1:      movb    $1, (%rax)
        add     $4096, %rax
        dec     %rdi
        jnz     1b
        ret

        .globl  body_syscalls
body_syscalls:
        push    %rbx
        mov     %rdi, %rbx
1:      mov     $GETPID, %eax
        syscall
        dec     %rbx
        jnz     1b
        pop     %rbx
        ret

/* Strings of all lengths down to none, across a page that is not there yet. */
        .globl  body_strings
body_strings:
        mov     %rdi, %rdx
        mov     $7, %al
1:      mov     arena(%rip), %rdi
        add     $4000, %rdi
        mov     %rdx, %rcx
        rep stosb
        sub     %rdx, %rdi
        mov     %rdx, %rcx
        repe scasb
        dec     %rdx
        jnz     1b
        rep stosb               /* %rcx is 0 */
        ret

/* Taken, not taken, indirect, near; one of each a round. */
        .globl  body_branches, indirect_jump, indirect_target
body_branches:
        lea     3f(%rip), %rsi
1:      test    %rdi, %rdi
        jz      4f
        call    2f
indirect_jump:
        jmp     *%rsi
2:      ret
indirect_target:
3:      dec     %rdi
        jmp     1b
4:      ret

/* All kinds of conditional branches, taken and not taken. */
        .globl  body_conditionals
body_conditionals:
1:      mov     $3, %ecx
2:      nop
        loop    2b
        jrcxz   3f
        ud2
3:      test    %rdi, %rdi
        jc      1b
        jns     4f
        ud2
4:      dec     %rdi
        jnz     1b
        ret

/* Each of the three instructions faults; the handler steps over it. */
        .globl  body_signals
body_signals:
        xor     %ecx, %ecx
1:      ud2
        movb    (%rcx), %al
        div     %ecx
        dec     %rdi
        jnz     1b
        ret

        .globl  skip_two_bytes, signal_return
skip_two_bytes:
        addq    $2, UC_RIP(%rdx)
        ret
signal_return:
        mov     $SIGRETURN, %eax
        syscall

/* A locked operation on two pages. */
        .globl  body_split_lock
body_split_lock:
        mov     arena(%rip), %rax
1:      lock incl 4094(%rax)
        dec     %rdi
        jnz     1b
        ret

/* An instruction, and then a jump, on two pages. */
        .balign 4096
        .skip   4093
        .globl  body_crossing
body_crossing:
1:      movabs  $0x123456789abcdef, %rax
        jmp     2f
        .skip   4081
2:      dec     %rdi
        .byte   0x0f, 0x85      /* JNZ with a 32-bit displacement */
        .long   1b - 3f
3:      ret

/* The first instruction changes the one that follows it. */
        .section .modified, "awx"
        .globl  body_modified
body_modified:
1:      incl    2f + 1(%rip)
2:      mov     $0, %eax
        dec     %rdi
        jnz     1b
        ret

        .section .note.GNU-stack, "", @progbits
