/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Calls that must be refused, on any machine. If the argument is "none", nobody counts here; if it
 * is "perhaps", somebody may. If nobody does, the text has to say why.
 */

#include <pthread.h>
#include "check.h"

KNOWN_LOOP;

static struct perfctr_counters *clock_alone(void)
{
	struct perfctr_counters *counters;

	DONE(perfctr_counts_open("", PERFCTR_PROVIDER_TSC, 0, &counters));
	CHECK(counters != NULL);
	return counters;
}

/* Checks that no function takes this for a handle. */
static void no_handle(struct perfctr_counters *none)
{
	struct perfctr_reading reading;
	struct perfctr_facts facts;

	memset(&reading, 0, sizeof(reading));
	REFUSED(HANDLE, perfctr_counts_read(none, &reading));
	REFUSED(HANDLE, perfctr_counts_since(none, &reading, &reading));
	REFUSED(HANDLE,
		perfctr_counts_measure(none, known_loop, NULL, &reading));
	REFUSED(HANDLE, perfctr_counts_stop(none));
	REFUSED(HANDLE, perfctr_counts_start(none));
	REFUSED(HANDLE, perfctr_counts_restart(none));
	REFUSED(HANDLE, perfctr_counts_facts(none, &facts));
	REFUSED(HANDLE, perfctr_counts_close(none));
	CHECK(perfctr_counts_event(none, 0) == NULL);
}

static void *stranger(void *handle)
{
	struct perfctr_counters *own = clock_alone();

	CHECK(own != (struct perfctr_counters *)handle);
	no_handle((struct perfctr_counters *)handle);
	DONE(perfctr_counts_close(own));
	no_handle(own);
	/* A thread that ends without closing its counters leaves none. */
	clock_alone();
	return NULL;
}

static void handles(void)
{
	struct perfctr_counters *own = clock_alone();
	struct perfctr_counters *second = own;
	unsigned long local[64];
	pthread_t thread;

	memset(local, 0xff, sizeof(local));
	no_handle(NULL);
	no_handle((struct perfctr_counters *)local);
	no_handle((struct perfctr_counters *)1000001);
	no_handle((struct perfctr_counters *)~0ul);
	REFUSED(OPEN,
		perfctr_counts_open("", PERFCTR_PROVIDER_TSC, 0, &second));
	CHECK(second == NULL);
	CHECK(!pthread_create(&thread, NULL, stranger, own));
	CHECK(!pthread_join(thread, NULL));
	DONE(perfctr_counts_close(own));
	no_handle(own);
}

/* Changes what is counted, which the body of a measurement may not. */
static void meddles(void *argument)
{
	struct perfctr_counters *counters = (struct perfctr_counters *)argument;
	struct perfctr_reading reading;

	DONE(perfctr_counts_read(counters, &reading));
	DONE(perfctr_counts_measure(counters, known_loop, NULL, &reading));
	REFUSED(BUSY, perfctr_counts_stop(counters));
	REFUSED(BUSY, perfctr_counts_restart(counters));
	REFUSED(BUSY, perfctr_counts_close(counters));
}

static void notes_the_call(void *called)
{
	*(int *)called = 1;
}

static void arguments(void)
{
	int called = 0;
	struct perfctr_counters *counters;
	struct perfctr_reading reading;
	struct perfctr_reading *crooked =
		(struct perfctr_reading *)((char *)&reading + 1);

	REFUSED(ARGUMENT, perfctr_counts_open("", 3, 0, NULL));
	REFUSED(ARGUMENT, perfctr_counts_open(NULL, 3, 0, &counters));
	REFUSED(ARGUMENT, perfctr_counts_open("\xff", 3, 0, &counters));
	REFUSED(ARGUMENT, perfctr_counts_open("", 4, 0, &counters));
	REFUSED(ARGUMENT, perfctr_counts_open("", 3, 2, &counters));
	CHECK(!strcmp(perfctr_counts_error(),
		      "flags 0x2 found, 0 or 1 expected"));
	counters = clock_alone();
	REFUSED(ARGUMENT, perfctr_counts_read(counters, NULL));
	REFUSED(ARGUMENT, perfctr_counts_read(counters, crooked));
	REFUSED(ARGUMENT, perfctr_counts_facts(counters, NULL));
	REFUSED(ARGUMENT,
		perfctr_counts_measure(counters, NULL, NULL, &reading));
	REFUSED(ARGUMENT, perfctr_counts_measure(counters, notes_the_call,
						 &called, NULL));
	CHECK(!called);
	DONE(perfctr_counts_read(counters, &reading));
	CHECK(reading.events == 0 && reading.clock != 0);
	REFUSED(ARGUMENT, perfctr_counts_since(counters, NULL, &reading));
	REFUSED(ARGUMENT, perfctr_counts_since(counters, &reading, NULL));
	DONE(perfctr_counts_since(counters, &reading, &reading));
	reading.events = 1;
	REFUSED(ARGUMENT, perfctr_counts_since(counters, &reading, &reading));
	DONE(perfctr_counts_measure(counters, meddles, counters, &reading));
	DONE(perfctr_counts_close(counters));
}

static void events(void)
{
	struct perfctr_counters *counters;

	REFUSED(EVENT, perfctr_counts_open("cycels", 0, 0, &counters));
	CHECK(strstr(perfctr_counts_error(), "did you mean `cycles`?"));
	REFUSED(EVENT, perfctr_counts_open("cycles:u,", 0, 0, &counters));
	REFUSED(NO_COUNTERS, perfctr_counts_open("cycles:u", 3, 0, &counters));
	CHECK(counters == NULL);
}

static void names(void)
{
	CHECK(perfctr_counts_interface() == PERFCTR_COUNTS_INTERFACE);
	CHECK(strchr(perfctr_counts_version(), '.'));
	CHECK(!strcmp(perfctr_counts_status_name(PERFCTR_STATUS_BUSY),
		      "PERFCTR_STATUS_BUSY"));
	CHECK(perfctr_counts_status_name(-1) == NULL);
	CHECK(perfctr_counts_provider_name(4) == NULL);
}

static void nobody_counts(void)
{
	struct perfctr_counters *counters;

	REFUSED(NO_COUNTERS, perfctr_counts_open(EVENTS, 0, 0, &counters));
	CHECK(strstr(perfctr_counts_error(), "no counters for instructions:u"));
	CHECK(strstr(perfctr_counts_error(), "\nparavirt: "));
	CHECK(strstr(perfctr_counts_error(), "\nnative: "));
	REFUSED(NO_COUNTERS, perfctr_counts_open(EVENTS, 2, 0, &counters));
	CHECK(strstr(perfctr_counts_error(), "no counters: native: "));
	printf("nobody counts, for this reason: %s\n", perfctr_counts_error());
}

/* Counts if somebody does here. */
static int somebody_counts(void)
{
	struct perfctr_counters *counters;
	struct perfctr_reading spent;

	if (perfctr_counts_open(EVENTS, 0, 0, &counters))
		return 0;
	DONE(perfctr_counts_measure(counters, known_loop, NULL, &spent));
	CHECK(spent.counts[0] >= LOOP_INSTRUCTIONS);
	DONE(perfctr_counts_close(counters));
	return 1;
}

int main(int argc, char **argv)
{
	const char *somebody = argc > 1 ? argv[1] : "";

	CHECK(*perfctr_counts_error() == 0);
	names();
	handles();
	arguments();
	events();
	if (!strcmp(somebody, "none") ||
	    (!strcmp(somebody, "perhaps") && !somebody_counts()))
		nobody_counts();
	return 0;
}
