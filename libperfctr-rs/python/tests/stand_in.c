/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Stands in for the library where nobody counts, for tests of what is made of its counts. Its
 * events are instructions:u and branches:u, in this order. There are two builds:
 *
 * What is counted is what stand_in_execute() is told, and each reading itself executes
 * READING_INSTRUCTIONS and READING_BRANCHES.
 *
 * With -DSTEPPING, what is counted are the instructions that the thread executes in user mode
 * while the counters are open: the processor traps after each of them. That takes some microseconds
 * an instruction. There are no branches.
 */

#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include "perfctr_counts.h"

#define READING_INSTRUCTIONS 100
#define READING_BRANCHES 10

static const char *const NAMES[] = { "instructions:u", "branches:u" };

static int is_open;
static uint32_t events;
static uint64_t executed[2];

/* Adds to what is executed between two readings. */
void stand_in_execute(uint64_t instructions, uint64_t branches)
{
	executed[0] += instructions;
	executed[1] += branches;
}

#ifdef STEPPING
/* The trap flag of RFLAGS. */
#define TRAP_FLAG 0x100

/* Counts the instruction before the trap. Each round of a string instruction traps, too. */
static void trapped(int number, siginfo_t *info, void *context)
{
	static greg_t last;
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;

	(void)number;
	(void)info;
	if (registers[REG_RIP] != last)
		executed[0]++;
	last = registers[REG_RIP];
	if (is_open)
		registers[REG_EFL] |= TRAP_FLAG;
	else
		registers[REG_EFL] &= ~TRAP_FLAG;
}

/* Has the thread trap after each instruction from now on if the counters are open. */
static void step(void)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_sigaction = trapped;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGTRAP, &action, NULL);
	/* raise() may block signals, and a trap while it is blocked ends the process. */
	syscall(SYS_tgkill, getpid(), gettid(), SIGTRAP);
}
#else
static void step(void)
{
}
#endif

/* What a function returns that has nothing to refuse but a handle that is not open. */
static enum perfctr_status status(void)
{
	return is_open ? PERFCTR_STATUS_OK : PERFCTR_STATUS_HANDLE;
}

enum perfctr_status perfctr_counts_open(const char *names, uint32_t provider,
					uint32_t flags,
					struct perfctr_counters **counters)
{
	(void)provider;
	(void)flags;
	*counters = NULL;
	if (is_open)
		return PERFCTR_STATUS_OPEN;
	is_open = 1;
	events = strchr(names, ',') ? 2 : 1;
	*counters = (struct perfctr_counters *)1;
	step();
	return PERFCTR_STATUS_OK;
}

enum perfctr_status perfctr_counts_close(struct perfctr_counters *counters)
{
	enum perfctr_status was = status();

	(void)counters;
	is_open = 0;
	step();
	return was;
}

enum perfctr_status perfctr_counts_read(struct perfctr_counters *counters,
					struct perfctr_reading *reading)
{
	(void)counters;
	memset(reading, 0, sizeof(*reading));
#ifndef STEPPING
	stand_in_execute(READING_INSTRUCTIONS, READING_BRANCHES);
#endif
	reading->clock = 3 * executed[0];
	memcpy(reading->counts, executed, events * sizeof(executed[0]));
	reading->events = events;
	reading->retries = 2;
	reading->direct = 1;
	return status();
}

enum perfctr_status perfctr_counts_since(struct perfctr_counters *counters,
					 const struct perfctr_reading *before,
					 struct perfctr_reading *difference)
{
	uint32_t n;

	if (perfctr_counts_read(counters, difference))
		return status();
	difference->clock -= before->clock;
	for (n = 0; n < events; n++)
		difference->counts[n] -= before->counts[n];
	return PERFCTR_STATUS_OK;
}

enum perfctr_status perfctr_counts_stop(struct perfctr_counters *counters)
{
	(void)counters;
	return status();
}

enum perfctr_status perfctr_counts_start(struct perfctr_counters *counters)
{
	(void)counters;
	return status();
}

enum perfctr_status perfctr_counts_restart(struct perfctr_counters *counters)
{
	(void)counters;
	return status();
}

enum perfctr_status perfctr_counts_facts(struct perfctr_counters *counters,
					 struct perfctr_facts *facts)
{
	(void)counters;
	memset(facts, 0, sizeof(*facts));
	facts->provider = PERFCTR_PROVIDER_PARAVIRT;
	facts->events = events;
	facts->clock_khz = 2600000;
	return status();
}

const char *perfctr_counts_event(struct perfctr_counters *counters, uint32_t n)
{
	(void)counters;
	return n < events ? NAMES[n] : NULL;
}

const char *perfctr_counts_error(void)
{
	return "refused by what stands in for the library";
}

const char *perfctr_counts_status_name(int32_t number)
{
	return number == PERFCTR_STATUS_OPEN ? "PERFCTR_STATUS_OPEN" :
					       "another status";
}

const char *perfctr_counts_provider_name(uint32_t provider)
{
	return provider == PERFCTR_PROVIDER_PARAVIRT ? "paravirt" : NULL;
}

uint32_t perfctr_counts_interface(void)
{
	return PERFCTR_COUNTS_INTERFACE;
}
