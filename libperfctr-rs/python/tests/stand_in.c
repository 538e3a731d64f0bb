/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Stands in for the library where nobody counts, for tests of what is made of its counts. Its
 * events are instructions:u and branches:u, in this order. What is counted of them is what
 * stand_in_execute() is told, and each reading itself executes READING_INSTRUCTIONS and
 * READING_BRANCHES.
 */

#include <stddef.h>
#include <string.h>
#include "perfctr_counts.h"

#define READING_INSTRUCTIONS 100
#define READING_BRANCHES 10

static const char *const NAMES[] = { "instructions:u", "branches:u" };

static int is_open;
static uint32_t events;
static uint64_t executed[2];

/* Executes so much between two readings. */
void stand_in_execute(uint64_t instructions, uint64_t branches)
{
	executed[0] += instructions;
	executed[1] += branches;
}

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
	return PERFCTR_STATUS_OK;
}

enum perfctr_status perfctr_counts_close(struct perfctr_counters *counters)
{
	enum perfctr_status was = status();

	(void)counters;
	is_open = 0;
	return was;
}

enum perfctr_status perfctr_counts_read(struct perfctr_counters *counters,
					struct perfctr_reading *reading)
{
	(void)counters;
	memset(reading, 0, sizeof(*reading));
	stand_in_execute(READING_INSTRUCTIONS, READING_BRANCHES);
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
