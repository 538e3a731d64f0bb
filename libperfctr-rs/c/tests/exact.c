/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Counts code of known length, in threads that compete. The argument is the provider's name. */

#include <assert.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

#define THREADS 6
#define ROUNDS 300
#define COST_MAX 300u

/* Programs that were compiled with an earlier header rely on this. */
#define AT(member, offset)                                                  \
	static_assert(offsetof(struct perfctr_reading, member) == (offset), \
		      #member)

AT(clock, 0);
AT(counts, 8);
AT(events, 152);
AT(retries, 156);
AT(direct, 160);
AT(reserved, 164);
static_assert(sizeof(struct perfctr_reading) == 168, "perfctr_reading");

KNOWN_LOOP;

static void nothing(void *argument)
{
	(void)argument;
}

/* Compiled once, so that each region is read by the same instructions. */
__attribute__((noinline)) static struct perfctr_reading
region(struct perfctr_counters *counters, uint64_t rounds)
{
	struct perfctr_reading before, spent;

	DONE(perfctr_counts_read(counters, &before));
	work(rounds);
	DONE(perfctr_counts_since(counters, &before, &spent));
	CHECK(spent.events == 2 && spent.reserved == 0 && spent.clock != 0);
	return spent;
}

/* Measures the loop again and again. Readings that were disturbed have counted more. */
static void *measures(void *provider)
{
	struct perfctr_counters *counters;
	struct perfctr_reading spent;
	unsigned round, undisturbed = 0;

	(void)provider;
	DONE(perfctr_counts_open(EVENTS, PERFCTR_PROVIDER_ANY, 0, &counters));
	for (round = 0; round < ROUNDS; round++) {
		DONE(perfctr_counts_measure(counters, known_loop, NULL,
					    &spent));
		if (spent.retries)
			continue;
		undisturbed++;
		CHECK(spent.counts[0] == LOOP_INSTRUCTIONS);
		CHECK(spent.counts[1] == LOOP_BRANCHES);
		CHECK(spent.counts[2] == 0 && spent.clock == 0);
	}
	CHECK(undisturbed > ROUNDS / 2);
	DONE(perfctr_counts_measure(counters, nothing, NULL, &spent));
	CHECK(spent.retries || (spent.counts[0] < 10 && spent.counts[1] == 0));
	DONE(perfctr_counts_close(counters));
	return NULL;
}

static void compete(void)
{
	pthread_t threads[THREADS];
	unsigned n;

	for (n = 0; n < THREADS; n++)
		CHECK(!pthread_create(&threads[n], NULL, measures, NULL));
	for (n = 0; n < THREADS; n++)
		CHECK(!pthread_join(threads[n], NULL));
}

static void regions(struct perfctr_counters *counters, int direct)
{
	struct perfctr_reading shorter, longer;
	unsigned round, undisturbed = 0;

	/* In the first region the dynamic linker has to find the functions. */
	region(counters, 10);
	for (round = 0; round < ROUNDS; round++) {
		shorter = region(counters, 10);
		longer = region(counters, 12345);
		if (shorter.retries || longer.retries)
			continue;
		undisturbed++;
		CHECK(longer.counts[0] - shorter.counts[0] == 2 * 12335);
		CHECK(longer.counts[1] - shorter.counts[1] == 12335);
		CHECK(shorter.direct == (uint32_t)direct);
		if (direct)
			CHECK(shorter.counts[0] - 2 * 10 < COST_MAX);
	}
	CHECK(undisturbed > ROUNDS / 2);
	printf("note a region of no length counts %llu instructions\n",
	       (unsigned long long)shorter.counts[0] - 2 * 10);
}

static void stops(struct perfctr_counters *counters)
{
	struct perfctr_reading stopped, later;

	DONE(perfctr_counts_stop(counters));
	DONE(perfctr_counts_read(counters, &stopped));
	work(100000);
	DONE(perfctr_counts_read(counters, &later));
	CHECK(!memcmp(stopped.counts, later.counts, sizeof(later.counts)));
	DONE(perfctr_counts_start(counters));
	work(100000);
	DONE(perfctr_counts_read(counters, &later));
	CHECK(later.counts[0] - stopped.counts[0] >= 200000);
	CHECK(later.counts[0] - stopped.counts[0] < 202000);
	DONE(perfctr_counts_restart(counters));
	DONE(perfctr_counts_read(counters, &later));
	CHECK(later.counts[0] < 2000);
}

/*
 * From now on the kernel ends the process at each system call but exit(). Its mode "strict" would
 * also forbid RDTSC.
 */
static void forbid_system_calls(void)
{
	struct sock_filter filter[] = {
		{ BPF_LD | BPF_W | BPF_ABS, 0, 0,
		  offsetof(struct seccomp_data, nr) },
		{ BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_exit },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW },
		{ BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS },
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]),
				      filter };

	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* Reads where the kernel ends whoever makes a system call. */
static void without_system_calls(void)
{
	struct perfctr_counters *counters;
	struct perfctr_reading before, spent;
	unsigned round;

	DONE(perfctr_counts_open(EVENTS, PERFCTR_PROVIDER_ANY, 0, &counters));
	DONE(perfctr_counts_measure(counters, known_loop, NULL, &spent));
	DONE(perfctr_counts_read(counters, &before));
	DONE(perfctr_counts_since(counters, &before, &spent));
	forbid_system_calls();
	for (round = 0; round < ROUNDS; round++) {
		if (perfctr_counts_read(counters, &before) ||
		    perfctr_counts_since(counters, &before, &spent) ||
		    perfctr_counts_measure(counters, known_loop, NULL, &spent))
			syscall(SYS_exit, 1);
	}
	syscall(SYS_exit, 0);
}

/* A child has neither its parent's counters nor their pages, and may open its own. */
static void child(struct perfctr_counters *inherited)
{
	struct perfctr_counters *own;
	struct perfctr_reading reading;

	REFUSED(FORKED, perfctr_counts_read(inherited, &reading));
	REFUSED(FORKED, perfctr_counts_stop(inherited));
	DONE(perfctr_counts_open(EVENTS, PERFCTR_PROVIDER_ANY, 0, &own));
	CHECK(own != inherited);
	REFUSED(HANDLE, perfctr_counts_read(inherited, &reading));
	work(1000);
	DONE(perfctr_counts_read(own, &reading));
	CHECK(reading.counts[0] >= 2000);
	_exit(0);
}

static void in_child(void (*body)(struct perfctr_counters *),
		     struct perfctr_counters *counters)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		body(counters);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void reads_silently(struct perfctr_counters *inherited)
{
	(void)inherited;
	without_system_calls();
}

static void facts(struct perfctr_counters *counters, const char *provider)
{
	struct perfctr_facts facts;

	DONE(perfctr_counts_facts(counters, &facts));
	CHECK(!strcmp(perfctr_counts_provider_name(facts.provider), provider));
	CHECK(facts.events == 2 && facts.clock_khz > 0);
	if (facts.provider == PERFCTR_PROVIDER_PARAVIRT)
		CHECK(facts.general >= 2 && facts.general_width >= 32 &&
		      facts.vcpus >= 1);
	CHECK(!strcmp(perfctr_counts_event(counters, 0), "instructions:u"));
	CHECK(!strcmp(perfctr_counts_event(counters, 1), "branches:u"));
	CHECK(perfctr_counts_event(counters, 2) == NULL);
}

/* The flag leaves the judgement of an event to the kernel, which refuses some itself. */
static void unverified(void)
{
	struct perfctr_counters *counters;

	REFUSED(UNAVAILABLE, perfctr_counts_open("r2c0:u", 0, 0, &counters));
	CHECK(counters == NULL);
	CHECK(strstr(perfctr_counts_error(), "r2c0:u is not available"));
	if (perfctr_counts_open("r2c0:u", 0, PERFCTR_COUNTS_UNVERIFIED,
				&counters))
		CHECK(strstr(perfctr_counts_error(), "invalid configuration"));
	else
		DONE(perfctr_counts_close(counters));
	DONE(perfctr_counts_open(EVENTS, 0, PERFCTR_COUNTS_UNVERIFIED,
				 &counters));
	DONE(perfctr_counts_close(counters));
}

int main(int argc, char **argv)
{
	const char *provider = argc > 1 ? argv[1] : "paravirt";
	int direct = !strcmp(provider, "paravirt");
	struct perfctr_counters *counters;

	compete();
	DONE(perfctr_counts_open(EVENTS, PERFCTR_PROVIDER_ANY, 0, &counters));
	facts(counters, provider);
	regions(counters, direct);
	stops(counters);
	in_child(child, counters);
	if (direct)
		in_child(reads_silently, counters);
	DONE(perfctr_counts_close(counters));
	unverified();
	return 0;
}
