/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Threads that sample with PAPI, each at a threshold of its own, know beforehand how many overflows
 * they will see and what they will have counted in the end. Neither may be off by one.
 *
 * What PAPI itself executes while the counters count is found out first: between starting and
 * reading, for each overflow, and by a reading that was disturbed and begins anew. The handler
 * is not counted, because an overflow pauses the counters; on perf's events the first does not.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "papi.h"

#define READINGS 50000
#define RUNS 20
/* More than any thread counts. */
#define NEVER 1000000000

/* Primes, so that overflows fall everywhere. */
static const int thresholds[] = {
	10007, 20011, 50021, 100003, 200003, 300007, 500009, 1000003
};
#define THREADS (int)(sizeof(thresholds) / sizeof(thresholds[0]))
/* The least number of instructions that each thread executes. */
#define INSTRUCTIONS 20000000

/* Instructions, which overflow, and branches, which do not. */
enum { INS, BR, EVENTS };
/* PAPI_BR_INS would be of branches executed. */
static const char *const names[] = { "PAPI_TOT_INS", "BRANCH_INSTRUCTIONS_RETIRED" };

/* What is executed in addition to the loop. */
static struct {
	long long run[EVENTS], first[EVENTS], overflow[EVENTS], read[EVENTS], retry[EVENTS];
} cost;

struct worker {
	pthread_t thread;
	unsigned long id;
	int set, threshold;
	long rounds;
	long long count[EVENTS];
	/* These are counted by the signal handler. */
	volatile long overflows, strays;
};

static __thread struct worker *self;
static struct worker workers[THREADS];
static volatile long homeless;

static void check(int is_good, const char *what)
{
	if (!is_good) {
		fprintf(stderr, "%s failed\n", what);
		exit(1);
	}
}

static void on_overflow(int set, void *address, long long vector, void *context)
{
	int event = -1, events = 1;

	(void)address;
	(void)context;
	if (!self) {
		homeless++;
	} else if (set != self->set || PAPI_thread_id() != self->id ||
		   PAPI_get_overflow_event_index(set, vector, &event, &events) != PAPI_OK ||
		   events != 1 || event != INS) {
		self->strays++;
	} else {
		self->overflows++;
	}
}

static void set_threshold(struct worker *worker, int threshold)
{
	check(PAPI_overflow(worker->set, PAPI_TOT_INS, 0, 0, on_overflow) == PAPI_OK,
	      "PAPI_overflow");
	check(PAPI_overflow(worker->set, PAPI_TOT_INS, threshold, 0, on_overflow) == PAPI_OK,
	      "PAPI_overflow");
}

/*
 * Forgets the rest of a period, which otherwise continues at the next start, unless another
 * period was asked for since.
 */
static void forget_period(struct worker *worker)
{
	set_threshold(worker, NEVER);
	check(PAPI_start(worker->set) == PAPI_OK, "PAPI_start");
	check(PAPI_stop(worker->set, NULL) == PAPI_OK, "PAPI_stop");
	set_threshold(worker, worker->threshold);
}

/* Executes 2 * rounds instructions, of which rounds are branches. */
static void run(struct worker *worker, long rounds)
{
	forget_period(worker);
	worker->overflows = worker->strays = 0;
	check(PAPI_start(worker->set) == PAPI_OK, "PAPI_start");
	__asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(rounds) : : "cc");
	check(PAPI_stop(worker->set, worker->count) == PAPI_OK, "PAPI_stop");
}

static void begin(struct worker *worker, int threshold)
{
	self = worker;
	worker->id = PAPI_thread_id();
	worker->threshold = threshold;
	worker->set = PAPI_NULL;
	check(PAPI_create_eventset(&worker->set) == PAPI_OK, "PAPI_create_eventset");
	check(PAPI_add_named_event(worker->set, names[INS]) == PAPI_OK, names[INS]);
	check(PAPI_add_named_event(worker->set, names[BR]) == PAPI_OK, names[BR]);
	check(PAPI_overflow(worker->set, PAPI_TOT_INS, threshold, 0, on_overflow) == PAPI_OK,
	      "PAPI_overflow");
}

static void end(struct worker *worker)
{
	check(PAPI_overflow(worker->set, PAPI_TOT_INS, 0, 0, on_overflow) == PAPI_OK,
	      "PAPI_overflow");
	check(PAPI_cleanup_eventset(worker->set) == PAPI_OK, "PAPI_cleanup_eventset");
	check(PAPI_destroy_eventset(&worker->set) == PAPI_OK, "PAPI_destroy_eventset");
}

/* PAPI's perfctr component asks for an overflow one event before the threshold. */
static int is_early;

static long period(int threshold)
{
	return threshold - is_early;
}

/* Returns what is executed for this many overflows. */
static long long overhead(long overflows, int event)
{
	if (!overflows)
		return 0;
	return cost.first[event] + (overflows - 1) * cost.overflow[event];
}

/* Returns the value that more than half of them have. */
static long long usual(const long long *all, int number)
{
	long long found = 0;
	int i, votes = 0;

	for (i = 0; i < number; i++) {
		if (!votes)
			found = all[i];
		votes += all[i] == found ? 1 : -1;
	}
	return found;
}

/*
 * Readings one after the other cost the same, but for those that were disturbed: such a one begins
 * anew, by a way of its own that the next one still counts the end of.
 */
static void find_cost_of_retry(void)
{
	static long long reading[READINGS][EVENTS], each[READINGS - 1];
	struct worker worker;
	long long extra;
	int i, e, disturbed, once;

	begin(&worker, NEVER);
	check(PAPI_start(worker.set) == PAPI_OK, "PAPI_start");
	for (i = 0; i < READINGS; i++)
		PAPI_read(worker.set, reading[i]);
	check(PAPI_stop(worker.set, NULL) == PAPI_OK, "PAPI_stop");
	end(&worker);
	for (e = 0; e < EVENTS; e++) {
		for (i = 0; i < READINGS - 1; i++)
			each[i] = reading[i + 1][e] - reading[i][e];
		cost.read[e] = usual(each, READINGS - 1);
		disturbed = once = 0;
		for (i = 1; i < READINGS - 1; i++) {
			extra = each[i] - cost.read[e];
			if (!extra || each[i - 1] != cost.read[e])
				continue;
			check(extra > 0, "a reading's constant cost");
			disturbed++;
			if (!once || extra < cost.retry[e]) {
				cost.retry[e] = extra;
				once = 0;
			}
			once += extra == cost.retry[e];
		}
		check(disturbed < READINGS / 10, "readings that are not disturbed");
		check(2 * once >= disturbed, "a constant cost of beginning anew");
	}
	printf("PAPI_read: %lld instructions, and %lld if it begins anew\n", cost.read[INS],
	       cost.retry[INS]);
}

/* Counts the least of several runs, which has had no retry. */
static void least_count(struct worker *worker, long rounds, long overflows, long long *least)
{
	int i, e;

	for (i = 0; i < RUNS; i++) {
		run(worker, rounds);
		check(worker->overflows == overflows && !worker->strays, "counting overflows");
		for (e = 0; e < EVENTS; e++)
			if (!i || worker->count[e] < least[e])
				least[e] = worker->count[e];
	}
}

/* Finds what is executed in addition to the loop and to what is known already. */
static void find_rest(struct worker *worker, long overflows, long long *rest)
{
	const int each = period(worker->threshold);
	const long rounds = overflows ? (overflows * each + each / 2) / 2 : 1000;
	const long long loop[EVENTS] = { 2 * rounds, rounds };
	long long least[EVENTS];
	int e;

	least_count(worker, rounds, overflows, least);
	for (e = 0; e < EVENTS; e++)
		rest[e] = least[e] - loop[e] - cost.run[e] - overhead(overflows, e);
}

/* Finds the costs in a thread, since the C library knows whether a program has only one. */
static void *find_costs(void *unused)
{
	const int more = 9;
	struct worker worker;
	long long rest[EVENTS];
	int e;

	(void)unused;
	check(PAPI_register_thread() == PAPI_OK, "PAPI_register_thread");
	find_cost_of_retry();
	begin(&worker, 100001);
	find_rest(&worker, 0, cost.run);
	find_rest(&worker, 1, cost.first);
	find_rest(&worker, 1 + more, rest);
	end(&worker);
	for (e = 0; e < EVENTS; e++) {
		check(rest[e] % more == 0, "an overflow's constant cost");
		cost.overflow[e] = rest[e] / more;
	}
	printf("start and stop: %lld instructions; first overflow: %lld; each other: %lld\n",
	       cost.run[INS], cost.first[INS], cost.overflow[INS]);
	check(PAPI_unregister_thread() == PAPI_OK, "PAPI_unregister_thread");
	return NULL;
}

static long expected(const struct worker *worker)
{
	return INSTRUCTIONS / period(worker->threshold) + 1;
}

static void *work(void *argument)
{
	struct worker *worker = (struct worker *)argument;
	long events;

	check(PAPI_register_thread() == PAPI_OK, "PAPI_register_thread");
	begin(worker, worker->threshold);
	/* Stops between two overflows, so that the last is neither just missed nor just caught. */
	events = expected(worker) * period(worker->threshold) + period(worker->threshold) / 2;
	worker->rounds = (events - cost.run[INS] - overhead(expected(worker), INS)) / 2;
	run(worker, worker->rounds);
	end(worker);
	check(PAPI_unregister_thread() == PAPI_OK, "PAPI_unregister_thread");
	return NULL;
}

/*
 * Returns whether the rest is that of a last reading which was disturbed. Two such readings
 * happen once in millions.
 */
static int is_retry(long long rest, int event)
{
	return !rest || (cost.retry[event] && rest == cost.retry[event]);
}

static int is_exact(const struct worker *worker)
{
	long long loop[EVENTS] = { 2 * worker->rounds, worker->rounds };
	long long rest;
	int e, good;

	good = worker->overflows == expected(worker) && !worker->strays &&
	       worker->count[INS] / period(worker->threshold) == worker->overflows;
	printf("threshold %d: %ld overflows of %ld, %ld elsewhere\n", worker->threshold,
	       worker->overflows, expected(worker), worker->strays);
	for (e = 0; e < EVENTS; e++) {
		rest = worker->count[e] - loop[e] - cost.run[e] -
		       overhead(worker->overflows, e);
		printf("    %s: %lld, which is %lld too many\n", names[e], worker->count[e], rest);
		good = good && is_retry(rest, e);
	}
	return good;
}

int main(void)
{
	pthread_t thread;
	int i, good = 1;

	check(PAPI_library_init(PAPI_VER_CURRENT) == PAPI_VER_CURRENT, "PAPI_library_init");
	check(PAPI_thread_init((unsigned long (*)(void))pthread_self) == PAPI_OK,
	      "PAPI_thread_init");
	is_early = PAPI_get_component_index("perf_event") < 0;
	check(pthread_create(&thread, NULL, find_costs, NULL) == 0, "pthread_create");
	check(pthread_join(thread, NULL) == 0, "pthread_join");
	for (i = 0; i < THREADS; i++) {
		workers[i].threshold = thresholds[i];
		check(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0,
		      "pthread_create");
	}
	for (i = 0; i < THREADS; i++) {
		check(pthread_join(workers[i].thread, NULL) == 0, "pthread_join");
		good &= is_exact(&workers[i]);
	}
	good &= homeless == 0;
	printf("%s\n", good ? "PASSED" : "FAILED");
	return !good;
}
