/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Stands in for the library where nobody counts, for tests of what is made of its counts: whatever
 * is between two readings counts 1,000 events, and as many more as the variable MORE says.
 */

#include <stdlib.h>
#include <string.h>
#include "perfctr_counts.h"

static uint32_t events;
static uint64_t readings;

enum perfctr_status perfctr_counts_open(const char *names, uint32_t provider,
					uint32_t flags,
					struct perfctr_counters **counters)
{
	(void)provider;
	(void)flags;
	for (events = 1; (names = strchr(names, ',')); names++)
		events++;
	*counters = (struct perfctr_counters *)1;
	return PERFCTR_STATUS_OK;
}

enum perfctr_status perfctr_counts_read(struct perfctr_counters *counters,
					struct perfctr_reading *reading)
{
	const char *more = getenv("MORE");
	uint32_t n;

	(void)counters;
	memset(reading, 0, sizeof(*reading));
	reading->events = events;
	reading->direct = 1;
	readings += 1000 + (more ? strtoull(more, NULL, 10) : 0);
	for (n = 0; n < events; n++)
		reading->counts[n] = readings;
	return PERFCTR_STATUS_OK;
}

enum perfctr_status perfctr_counts_since(struct perfctr_counters *counters,
					 const struct perfctr_reading *before,
					 struct perfctr_reading *difference)
{
	uint32_t n;

	perfctr_counts_read(counters, difference);
	for (n = 0; n < events; n++)
		difference->counts[n] -= before->counts[n];
	return PERFCTR_STATUS_OK;
}

enum perfctr_status perfctr_counts_close(struct perfctr_counters *counters)
{
	(void)counters;
	return PERFCTR_STATUS_OK;
}

enum perfctr_status perfctr_counts_stop(struct perfctr_counters *counters)
{
	return perfctr_counts_close(counters);
}

enum perfctr_status perfctr_counts_start(struct perfctr_counters *counters)
{
	return perfctr_counts_close(counters);
}

enum perfctr_status perfctr_counts_restart(struct perfctr_counters *counters)
{
	return perfctr_counts_close(counters);
}

enum perfctr_status perfctr_counts_facts(struct perfctr_counters *counters,
					 struct perfctr_facts *facts)
{
	memset(facts, 0, sizeof(*facts));
	facts->provider = PERFCTR_PROVIDER_PARAVIRT;
	facts->events = events;
	return perfctr_counts_close(counters);
}

const char *perfctr_counts_event(struct perfctr_counters *counters, uint32_t n)
{
	(void)counters;
	return n ? "branches:u" : "instructions:u";
}

const char *perfctr_counts_error(void)
{
	return "";
}

const char *perfctr_counts_status_name(int32_t status)
{
	return status ? NULL : "PERFCTR_STATUS_OK";
}

const char *perfctr_counts_provider_name(uint32_t provider)
{
	return provider == PERFCTR_PROVIDER_PARAVIRT ? "paravirt" : NULL;
}

uint32_t perfctr_counts_interface(void)
{
	return PERFCTR_COUNTS_INTERFACE;
}
