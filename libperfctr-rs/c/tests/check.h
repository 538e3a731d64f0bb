/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Assertions, and code of known length, for the programs here. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "perfctr_counts.h"

/* Ends the program with a message unless the condition holds. */
#define CHECK(condition) \
	((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))

/* Checks that a call succeeds. */
#define DONE(call) CHECK((call) == PERFCTR_STATUS_OK)

/* Checks that a call fails with this status, and that there is a text about it. */
#define REFUSED(status, call) \
	CHECK((call) == PERFCTR_STATUS_##status && *perfctr_counts_error() != 0)

static inline void check_failed(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: not so: %s (last failure: %s)\n", file, line,
		what, perfctr_counts_error());
	exit(1);
}

#define EVENTS "instructions:u,branches:u"

/* What known_loop() executes, its return left out: instructions and branches. */
#define LOOP_ROUNDS 1000u
#define LOOP_INSTRUCTIONS (1 + 2 * LOOP_ROUNDS)
#define LOOP_BRANCHES LOOP_ROUNDS

#ifdef __cplusplus
extern "C"
#endif
	void
	known_loop(void *argument);

#define KNOWN_LOOP                    \
	__asm__(".text\n"             \
		".globl known_loop\n" \
		"known_loop:\n"       \
		"mov $1000, %eax\n"   \
		"1: dec %eax\n"       \
		"jnz 1b\n"            \
		"ret\n")

/* Executes 2 * rounds instructions. */
static inline void work(uint64_t rounds)
{
	__asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(rounds) : : "cc");
}

#endif /* CHECK_H */
