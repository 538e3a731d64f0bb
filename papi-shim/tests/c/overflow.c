/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Interrupting counters: signal, pause, resumption. */

#include <signal.h>
#include "check.h"

#define PERIOD 100000
#define SIGNALS 20
#define SHORT_PERIOD 25
#define STRETCHES 50
#define ROUNDS 1000000

static struct vperfctr *self;
static volatile int signals;

static void on_overflow(int number, siginfo_t *info, void *context)
{
	static struct perfctr_sum_ctrs sums, again;

	(void)context;
	CHECK(number == SIGIO && info->si_code == SI_PMC_OVF);
	CHECK(info->si_pmc_ovf_mask == 2);
	CHECK(vperfctr_is_running(self) == 1);
	CHECK(vperfctr_read_state(self, &sums, NULL) == 0);
	CHECK(sums.pmc[1] >= (unsigned long long)(signals + 1) * PERIOD);
	/* Only the time-stamp counter continues before iresume. */
	CHECK(vperfctr_read_state(self, &again, NULL) == 0);
	CHECK(!memcmp(sums.pmc, again.pmc, sizeof(sums.pmc)));
	CHECK(again.tsc > sums.tsc);
	memset(&again, 0xff, sizeof(again));
	CHECK(vperfctr_read_ctrs(self, &again) == 0);
	CHECK(again.tsc > sums.tsc && again.pmc[0] == ~0ull);
	CHECK(vperfctr_read_pmc(self, 1) == sums.pmc[1]);
	signals++;
	CHECK(vperfctr_iresume(self) == 0);
}

static void count_and_go_on(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	(void)context;
	signals++;
	CHECK(vperfctr_iresume(self) == 0);
}

static void handle(void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_sigaction = handler;
	action.sa_flags = SA_SIGINFO;
	CHECK(sigaction(SIGIO, &action, NULL) == 0);
}

/*
 * Counts with a period as programs for perfctr ask for: more overflows than the host allows. Some
 * periods have no signal of their own, the program makes progress, and counts stay right.
 */
static void short_period(void)
{
	struct vperfctr_control control = counting(SHORT_PERIOD);
	struct perfctr_sum_ctrs sums;

	handle(count_and_go_on);
	signals = 0;
	control.si_signo = SIGIO;
	control.cpu_control.nractrs = 1;
	control.cpu_control.pmc_map[0] = 1;
	control.cpu_control.evntsel[1] = INSTRUCTIONS | INTERRUPT;
	control.cpu_control.evntsel[0] = INSTRUCTIONS;
	control.cpu_control.ireset[1] = -SHORT_PERIOD;
	control.cpu_control.ireset[0] = 0;
	CHECK(vperfctr_control(self, &control) == 0);
	work(ROUNDS);
	CHECK(vperfctr_stop(self) == 0);
	CHECK(vperfctr_read_ctrs(self, &sums) == 0);
	printf("%d signals, %llu periods\n", signals,
	       sums.pmc[1] / SHORT_PERIOD);
	CHECK(signals > 0 && sums.pmc[1] >= 2 * ROUNDS);
	CHECK(sums.pmc[0] == sums.pmc[1]);
	CHECK((unsigned long long)signals <= sums.pmc[1] / SHORT_PERIOD);
}

/*
 * Stops and starts as a profiler does around each fork: stretches that are shorter than a period
 * add up to periods.
 */
static void short_stretches(void)
{
	struct vperfctr_control control = counting(PERIOD);
	struct perfctr_sum_ctrs sums;
	unsigned long long total = 0;
	int i;

	handle(count_and_go_on);
	signals = 0;
	control.si_signo = SIGIO;
	for (i = 0; i < STRETCHES; i++) {
		CHECK(vperfctr_control(self, &control) == 0);
		work(PERIOD / 8);
		CHECK(vperfctr_stop(self) == 0);
		CHECK(vperfctr_read_ctrs(self, &sums) == 0);
		CHECK(sums.pmc[0] >= PERIOD / 4 && sums.pmc[0] < PERIOD);
		total += sums.pmc[0];
	}
	printf("%d signals, %llu periods\n", signals, total / PERIOD);
	CHECK(signals > 0 && (unsigned long long)signals == total / PERIOD);
}

int main(void)
{
	struct vperfctr_control control = counting(PERIOD);
	struct perfctr_sum_ctrs sums;

	handle(on_overflow);
	self = vperfctr_open();
	CHECK(self != NULL);

	/* An accumulating counter in front of it: the mask is by the order here. */
	control.si_signo = SIGIO;
	control.cpu_control.nractrs = 1;
	control.cpu_control.pmc_map[0] = 1;
	control.cpu_control.evntsel[1] = INSTRUCTIONS | INTERRUPT;
	control.cpu_control.evntsel[0] = INSTRUCTIONS;
	control.cpu_control.ireset[1] = -PERIOD;
	control.cpu_control.ireset[0] = 0;
	CHECK(vperfctr_control(self, &control) == 0);
	work(PERIOD / 2 * SIGNALS + PERIOD / 4);
	CHECK(vperfctr_stop(self) == 0);
	CHECK(signals == SIGNALS);
	CHECK(vperfctr_read_ctrs(self, &sums) == 0);
	CHECK(sums.pmc[0] / PERIOD == SIGNALS &&
	      sums.pmc[1] / PERIOD == SIGNALS);
	REFUSED(EPERM, vperfctr_iresume(self) == -1);

	control.cpu_control.ireset[1] = 0;
	REFUSED(EINVAL, vperfctr_control(self, &control) == -1);
	control.cpu_control.ireset[1] = -PERIOD;
	control.cpu_control.evntsel[1] = INSTRUCTIONS;
	REFUSED(EINVAL, vperfctr_control(self, &control) == -1);
	short_period();
	short_stretches();
	CHECK(vperfctr_unlink(self) == 0);
	vperfctr_close(self);
	return 0;
}
