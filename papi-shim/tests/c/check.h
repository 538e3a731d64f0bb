/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* An assertion, and a loop of known length, for the programs here. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "libperfctr.h"

/* Ends the program with a message unless the condition holds. */
#define CHECK(condition) \
	((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))

/* Checks that a call returns -1 or null, with this error number. */
#define REFUSED(error, call) CHECK((errno = 0, (call)) && errno == (error))

static inline void check_failed(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: not so: %s (errno %d, %s)\n", file, line, what,
		errno, strerror(errno));
	exit(1);
}

/* The event select of instructions that retire in user mode. */
#define INSTRUCTIONS 0x004100c0u
#define INTERRUPT 0x00100000u

/* Executes 2 * rounds instructions and a few more. */
static inline void work(unsigned long rounds)
{
	__asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(rounds) : : "cc");
}

/* Returns a control that counts retired instructions, and interrupts if there is a period. */
static inline struct vperfctr_control counting(int period)
{
	struct vperfctr_control control;

	memset(&control, 0, sizeof(control));
	control.cpu_control.tsc_on = 1;
	control.cpu_control.evntsel[0] = INSTRUCTIONS;
	control.cpu_control.nractrs = period == 0;
	if (period) {
		control.cpu_control.nrictrs = 1;
		control.cpu_control.evntsel[0] |= INTERRUPT;
		control.cpu_control.ireset[0] = -period;
	}
	return control;
}

/* Returns whether count is 2 * rounds and the few instructions around the loop. */
static inline int is_count_of(unsigned long long count, unsigned long rounds)
{
	return count >= 2 * rounds && count < 2 * rounds + 2000;
}

#endif /* CHECK_H */
