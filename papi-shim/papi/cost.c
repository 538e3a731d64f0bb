/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Prints how many instructions one reading costs, by counting them between two readings: the least
 * of many, so that nothing else has happened in between. With -DPERFCTR the reading is the C
 * library's, else PAPI's, whatever counters it uses.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef PERFCTR
#include "libperfctr.h"
#else
#include "papi.h"
#endif

#define READINGS 1000
#define INSTRUCTIONS 0x004000c0u
#define USER 0x10000u
#define KERNEL 0x20000u

static void check(int is_good, const char *what)
{
	if (!is_good) {
		fprintf(stderr, "%s failed\n", what);
		exit(1);
	}
}

#ifdef PERFCTR

#define NAME "vperfctr_read_ctrs"

static void take(long long *counts, int with_kernel)
{
	struct vperfctr *self = vperfctr_open();
	struct vperfctr_control control;
	struct perfctr_sum_ctrs sums;
	int i;

	check(self != NULL, "vperfctr_open");
	memset(&control, 0, sizeof(control));
	control.cpu_control.tsc_on = 1;
	control.cpu_control.nractrs = 1;
	control.cpu_control.evntsel[0] =
		INSTRUCTIONS | USER | (with_kernel ? KERNEL : 0);
	check(vperfctr_control(self, &control) == 0, "vperfctr_control");
	for (i = 0; i < READINGS; i++) {
		vperfctr_read_ctrs(self, &sums);
		counts[i] = sums.pmc[0];
	}
	check(vperfctr_unlink(self) == 0, "vperfctr_unlink");
	vperfctr_close(self);
}

#else

#define NAME "PAPI_read"

static void take(long long *counts, int with_kernel)
{
	int set = PAPI_NULL;
	int domain = with_kernel ? PAPI_DOM_USER | PAPI_DOM_KERNEL : PAPI_DOM_USER;
	int i;

	check(PAPI_library_init(PAPI_VER_CURRENT) == PAPI_VER_CURRENT, "PAPI_library_init");
	check(PAPI_set_domain(domain) == PAPI_OK, "PAPI_set_domain");
	check(PAPI_create_eventset(&set) == PAPI_OK, "PAPI_create_eventset");
	check(PAPI_add_event(set, PAPI_TOT_INS) == PAPI_OK, "PAPI_add_event");
	check(PAPI_start(set) == PAPI_OK, "PAPI_start");
	for (i = 0; i < READINGS; i++)
		PAPI_read(set, &counts[i]);
	PAPI_shutdown();
}

#endif

static long long least(int with_kernel)
{
	static long long counts[READINGS];
	long long cost, minimum;
	int i;

	take(counts, with_kernel);
	minimum = counts[1] - counts[0];
	for (i = 2; i < READINGS; i++) {
		cost = counts[i] - counts[i - 1];
		if (cost < minimum)
			minimum = cost;
	}
	return minimum;
}

int main(void)
{
	long long user = least(0);
	long long both = least(1);

	printf("%-20s %8lld %16lld\n", NAME, user, both);
	return 0;
}
