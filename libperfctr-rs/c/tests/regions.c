/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Regions of several threads and processes. If the argument is "none" or "perhaps", they count
 * calls only, as they do on any machine.
 */

#include <assert.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

#define THREADS 4
#define ROUNDS 100u
#define EMPTY_MAX 20u

/* Programs that were compiled with an earlier header rely on this. */
static_assert(offsetof(struct perfctr_region, calls) == 16, "calls");
static_assert(offsetof(struct perfctr_region, total) == 32, "total");
static_assert(offsetof(struct perfctr_region, own) == 176, "own");
static_assert(offsetof(struct perfctr_region, thread) == 328, "thread");
static_assert(sizeof(struct perfctr_region) == 368, "perfctr_region");

KNOWN_LOOP;

static int counts;

/* Finds a region of a thread in the table, of which another one is taken. */
static struct perfctr_region row_of(const char *name, uint32_t thread)
{
	struct perfctr_region row;
	uint32_t rows, n;

	DONE(perfctr_region_table(&rows));
	for (n = 0; n < rows; n++) {
		DONE(perfctr_region_row(n, &row));
		CHECK(row.events == (counts ? 2u : 0u));
		if (!strcmp(row.region, name) && row.thread == thread)
			return row;
	}
	CHECK(!"the region has a row");
	exit(1);
}

static void empty(void)
{
	DONE(perfctr_region_start("empty"));
	DONE(perfctr_region_stop("empty"));
}

/* A region with the loop, within which are others. */
static void outer(unsigned loops)
{
	DONE(perfctr_region_start("outer"));
	for (; loops > 0; loops--) {
		DONE(perfctr_region_start(
			"a loop, in a region with a name that is longer"));
		known_loop(NULL);
		DONE(perfctr_region_stop(
			"a loop, in a region with a name that is longer"));
	}
	empty();
	DONE(perfctr_region_stop("outer"));
}

/* The sum of the first numbers, by a region that is within itself. */
static void recursive(unsigned depth)
{
	DONE(perfctr_region_start("recursive"));
	known_loop(NULL);
	if (depth > 1)
		recursive(depth - 1);
	DONE(perfctr_region_stop("recursive"));
}

static void *thread(void *unused)
{
	unsigned round;

	(void)unused;
	for (round = 0; round < ROUNDS; round++)
		outer(2);
	recursive(3);
	/* It ends within a region. */
	DONE(perfctr_region_start("ends"));
	return NULL;
}

/* What a thread has counted that nothing has disturbed. Each call adds the same to the loop. */
static int exact(uint32_t number)
{
	const struct perfctr_region loop = row_of(
		"a loop, in a region with a name that is longer", number);
	const struct perfctr_region none = row_of("empty", number);
	const struct perfctr_region all = row_of("outer", number);
	const struct perfctr_region deep = row_of("recursive", number);
	unsigned n;

	CHECK(loop.calls == 2 * ROUNDS && none.calls == ROUNDS);
	CHECK(all.calls == ROUNDS && deep.calls == 3);
	CHECK(row_of("ends", number).open == 1);
	if (!counts || loop.retries || none.retries || all.retries ||
	    deep.retries)
		return 0;
	for (n = 0; n < 2; n++) {
		uint64_t known = n ? LOOP_BRANCHES : LOOP_INSTRUCTIONS;

		CHECK(loop.total[n] == loop.own[n]);
		CHECK(loop.own[n] % (2 * ROUNDS) == 0);
		CHECK(loop.own[n] / (2 * ROUNDS) - known < EMPTY_MAX);
		CHECK(none.total[n] % ROUNDS == 0);
		CHECK(none.total[n] / ROUNDS < EMPTY_MAX);
		CHECK(all.total[n] ==
		      all.own[n] + loop.total[n] + none.total[n]);
		CHECK(deep.total[n] == deep.own[n]);
		CHECK(deep.total[n] - 3 * known < 10 * EMPTY_MAX);
	}
	return 1;
}

static void threads(void)
{
	pthread_t ids[THREADS];
	unsigned n, undisturbed = 0;

	for (n = 0; n < THREADS; n++)
		CHECK(!pthread_create(&ids[n], NULL, thread, NULL));
	for (n = 0; n < THREADS; n++)
		CHECK(!pthread_join(ids[n], NULL));
	for (n = 0; n < THREADS; n++)
		undisturbed += exact(2 + n);
	CHECK(!counts || undisturbed > 0);
	if (counts)
		printf("note an empty region of C counts %llu instructions\n",
		       (unsigned long long)row_of("empty", 2).total[0] /
			       ROUNDS);
}

static void refusals(void)
{
	struct perfctr_region row;
	uint32_t rows;

	REFUSED(REGION, perfctr_region_stop("never"));
	CHECK(strstr(perfctr_counts_error(),
		     "`never`, which it has not started: it is in no region"));
	DONE(perfctr_region_start("one"));
	DONE(perfctr_region_start("other"));
	REFUSED(REGION, perfctr_region_stop("third"));
	CHECK(strstr(perfctr_counts_error(), "it is in `other`, in `one`"));
	DONE(perfctr_region_stop("one"));
	DONE(perfctr_region_stop("other"));
	REFUSED(REGION, perfctr_region_start(""));
	REFUSED(ARGUMENT, perfctr_region_start(NULL));
	REFUSED(ARGUMENT, perfctr_region_stop("\xff"));
	CHECK(!strcmp(perfctr_counts_error(),
		      "the region's name is not UTF-8"));
	REFUSED(EVENT, perfctr_region_events("cycels"));
	REFUSED(REGION, perfctr_region_events("cycles:u"));
	REFUSED(ARGUMENT, perfctr_region_table(NULL));
	REFUSED(ARGUMENT, perfctr_region_row(0, NULL));
	DONE(perfctr_region_table(&rows));
	REFUSED(ARGUMENT, perfctr_region_row(rows, &row));
	CHECK(perfctr_region_event(counts ? 2 : 0) == NULL);
	CHECK(strstr(perfctr_region_text(), "region"));
	if (counts)
		CHECK(!strcmp(perfctr_region_event(1), "branches:u"));
}

/* A child begins with an empty table, and says at its end what it has not stopped. */
static void child(int output)
{
	uint32_t rows;

	DONE(perfctr_region_table(&rows));
	CHECK(rows == 0);
	REFUSED(REGION, perfctr_region_stop("of the parent"));
	DONE(perfctr_region_start("of the child"));
	known_loop(NULL);
	CHECK(row_of("of the child", 1).open == 1);
	CHECK(dup2(output, 2) == 2);
	DONE(perfctr_region_print_at_exit());
	DONE(perfctr_region_print_at_exit());
	exit(0);
}

static void forked(void)
{
	char text[4096] = "";
	size_t length = 0;
	ssize_t more;
	int ends[2], status;
	const char *said = "`of the child` was started once in thread 1 and "
			   "not stopped\n";
	pid_t pid;

	CHECK(!pipe(ends));
	DONE(perfctr_region_start("of the parent"));
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		child(ends[1]);
	close(ends[1]);
	while ((more = read(ends[0], text + length,
			    sizeof(text) - 1 - length)) > 0)
		length += more;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(!strncmp(text, "region ", 7) && strstr(text, said));
	/* It is printed once. */
	CHECK(!strstr(strstr(text, said) + 1, said));
	DONE(perfctr_region_stop("of the parent"));
	CHECK(row_of("of the parent", 1).calls == 1);
}

/* A thread has its counters for a handle or for regions. */
static void handles(void)
{
	struct perfctr_counters *counters;

	REFUSED(OPEN,
		perfctr_counts_open("", PERFCTR_PROVIDER_TSC, 0, &counters));
}

int main(int argc, char **argv)
{
	counts = argc <= 1 || !*argv[1];
	DONE(perfctr_region_events(counts ? EVENTS : ""));
	empty();
	refusals();
	threads();
	handles();
	forked();
	return 0;
}
