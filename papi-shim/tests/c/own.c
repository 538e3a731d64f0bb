/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* vperfctr_*: the calling thread's counters. */

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

#define ROUNDS 1000000ul

/* Checks that a child inherits the handle, but neither the counters nor their pages. */
static void inherited(struct vperfctr *self)
{
	struct vperfctr_control control = counting(0);
	struct perfctr_sum_ctrs sums;
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(vperfctr_read_ctrs(self, &sums) == 0);
		CHECK(vperfctr_read_tsc(self) >= sums.tsc);
		CHECK(vperfctr_is_running(self) == 1);
		REFUSED(ESRCH, vperfctr_control(self, &control) == -1);
		REFUSED(ESRCH, vperfctr_open_mode(0) == NULL);
		vperfctr_close(self);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* Counts time, but no events. */
static void time_only(struct vperfctr *self)
{
	struct vperfctr_control control;
	struct perfctr_sum_ctrs sums;
	unsigned long long tsc;

	memset(&control, 0, sizeof(control));
	control.cpu_control.tsc_on = 1;
	CHECK(vperfctr_control(self, &control) == 0);
	inherited(self);
	tsc = vperfctr_read_tsc(self);
	CHECK(vperfctr_read_ctrs(self, &sums) == 0);
	CHECK(tsc != 0 && sums.tsc > tsc && vperfctr_read_pmc(self, 0) == 0);
}

static void reads_agree(struct vperfctr *self)
{
	struct perfctr_sum_ctrs before, after;
	unsigned long long tsc, pmc;
	struct vperfctr_control control = counting(0);
	struct vperfctr_control read;

	CHECK(vperfctr_control(self, &control) == 0);
	CHECK(vperfctr_is_running(self) == 1);
	CHECK(vperfctr_read_ctrs(self, &before) == 0);
	work(ROUNDS);
	CHECK(vperfctr_read_ctrs(self, &after) == 0);
	CHECK(is_count_of(after.pmc[0] - before.pmc[0], ROUNDS));
	CHECK(after.tsc > before.tsc);
	tsc = vperfctr_read_tsc(self);
	pmc = vperfctr_read_pmc(self, 0);
	CHECK(tsc > after.tsc && pmc > after.pmc[0]);
	CHECK(vperfctr_read_state(self, &after, &read) == 0);
	CHECK(after.pmc[0] > pmc && after.pmc[1] == 0);
	CHECK(read.cpu_control.nractrs == 1 && read.preserve == 0);
	CHECK(read.cpu_control.evntsel[0] == INSTRUCTIONS);
	CHECK(vperfctr_read_state(self, &after, NULL) == 0);
	CHECK(vperfctr_read_state(self, NULL, &read) == 0);
}

static void sums_survive(struct vperfctr *self)
{
	struct perfctr_sum_ctrs stopped, later;
	struct vperfctr_control control = counting(0);
	unsigned long long tsc;

	CHECK(vperfctr_stop(self) == 0);
	CHECK(vperfctr_is_running(self) == 0);
	CHECK(vperfctr_read_ctrs(self, &stopped) == 0);
	CHECK(stopped.pmc[0] > 2 * ROUNDS);
	work(ROUNDS);
	CHECK(vperfctr_read_ctrs(self, &later) == 0);
	CHECK(!memcmp(&stopped, &later, sizeof(later)));
	tsc = vperfctr_read_tsc(self);
	CHECK(tsc == stopped.tsc);

	control.preserve = 1;
	control._reserved4 = 0xdeadbeef;
	CHECK(vperfctr_control(self, &control) == 0);
	CHECK(vperfctr_read_ctrs(self, &later) == 0);
	CHECK(later.pmc[0] >= stopped.pmc[0] && later.tsc > stopped.tsc);
	control.preserve = 0;
	CHECK(vperfctr_control(self, &control) == 0);
	stopped = later;
	CHECK(vperfctr_read_ctrs(self, &later) == 0);
	CHECK(later.pmc[0] < 2000 && later.tsc > stopped.tsc);
}

/* Checks that null and closed handles are refused. */
static void refused(struct vperfctr *none)
{
	struct vperfctr_control control = counting(0);
	struct perfctr_sum_ctrs sums;
	struct perfctr_info info;

	REFUSED(EINVAL, vperfctr_info(none, &info) == -1);
	REFUSED(EINVAL, vperfctr_cpus_info(none) == NULL);
	REFUSED(EINVAL, vperfctr_read_tsc(none) == 0);
	REFUSED(EINVAL, vperfctr_read_pmc(none, 0) == 0);
	REFUSED(EINVAL, vperfctr_read_ctrs(none, &sums) == -1);
	REFUSED(EINVAL, vperfctr_read_state(none, &sums, &control) == -1);
	REFUSED(EINVAL, vperfctr_control(none, &control) == -1);
	REFUSED(EINVAL, vperfctr_stop(none) == -1);
	REFUSED(EINVAL, vperfctr_is_running(none) == -1);
	REFUSED(EINVAL, vperfctr_iresume(none) == -1);
	REFUSED(EINVAL, vperfctr_unlink(none) == -1);
	vperfctr_close(none);
}

static void bad_controls(struct vperfctr *self)
{
	struct vperfctr_control good = counting(0);
	struct vperfctr_control bad;
	struct perfctr_info info;

#define REFUSED_CONTROL(error, change)                       \
	(bad = good, bad.cpu_control.change,                 \
	 CHECK(vperfctr_control(self, &good) == 0),          \
	 REFUSED(error, vperfctr_control(self, &bad) == -1), \
	 CHECK(vperfctr_is_running(self) == 0))
	REFUSED_CONTROL(EINVAL, nractrs = 19);
	REFUSED_CONTROL(EINVAL, nrictrs = 0xffffffff);
	REFUSED_CONTROL(EINVAL, pmc_map[0] = 99);
	REFUSED_CONTROL(EINVAL, nractrs = 2);
	REFUSED_CONTROL(EINVAL, evntsel[0] = INSTRUCTIONS & ~0x400000u);
	REFUSED_CONTROL(EINVAL, evntsel[0] = INSTRUCTIONS & ~0x10000u);
	REFUSED_CONTROL(EINVAL, evntsel[0] = INSTRUCTIONS | INTERRUPT);
	REFUSED_CONTROL(EPERM, evntsel[0] = INSTRUCTIONS | 0x080000);
	REFUSED_CONTROL(EPERM, evntsel[0] = INSTRUCTIONS | 0x200000);
	CHECK(vperfctr_info(self, &info) == 0);
	if (!strncmp(perfctr_info_cpu_name(&info), "Intel", 5))
		REFUSED_CONTROL(EINVAL, nhlm.offcore_rsp[0] = 0x800);
}

static void bad_arguments(struct vperfctr *self)
{
	REFUSED(EINVAL, vperfctr_control(self, NULL) == -1);
	REFUSED(EINVAL, vperfctr_read_ctrs(self, NULL) == -1);
	CHECK(vperfctr_read_state(self, NULL, NULL) == 0);
	REFUSED(EINVAL, vperfctr_info(self, NULL) == -1);
	REFUSED(EINVAL, vperfctr_read_pmc(self, 18) == 0);
	REFUSED(EPERM, vperfctr_iresume(self) == -1);
	REFUSED(EEXIST, vperfctr_open() == NULL);
	REFUSED(EINVAL, vperfctr_open_mode(1) == NULL);
}

/*
 * Checks what another thread may do with this one's handle: read it, which gives the sums of when
 * this one last left its CPU.
 */
static void *stranger(void *handle)
{
	struct vperfctr *other = (struct vperfctr *)handle;
	struct vperfctr_control control = counting(0);
	struct perfctr_sum_ctrs sums;

	CHECK(vperfctr_read_ctrs(other, &sums) == 0);
	CHECK(vperfctr_read_state(other, &sums, &control) == 0);
	CHECK(vperfctr_read_tsc(other) >= sums.tsc);
	CHECK(vperfctr_read_pmc(other, 0) >= sums.pmc[0]);
	CHECK(vperfctr_is_running(other) == 1);
	REFUSED(ESRCH, vperfctr_iresume(other) == -1);
	REFUSED(ESRCH, vperfctr_control(other, &control) == -1);
	REFUSED(ESRCH, vperfctr_stop(other) == -1);
	REFUSED(ESRCH, vperfctr_unlink(other) == -1);
	REFUSED(ESRCH, vperfctr_open_mode(0) == NULL);
	return NULL;
}

/* Checks pointers that never were handles, and handles of another kind. */
static void wild(struct vperfctr *self)
{
	struct gperfctr *all = gperfctr_open();
	unsigned long local[64];

	memset(local, 0xff, sizeof(local));
	CHECK(all != NULL);
	refused((struct vperfctr *)local);
	refused((struct vperfctr *)1);
	refused((struct vperfctr *)(~0ul));
	refused((struct vperfctr *)((unsigned long)self ^ 1));
	refused((struct vperfctr *)((unsigned long)self ^ 0x100000));
	refused((struct vperfctr *)all);
	REFUSED(EINVAL, gperfctr_stop((struct gperfctr *)self) == -1);
	gperfctr_close((struct gperfctr *)self);
	gperfctr_close(all);
	CHECK(vperfctr_is_running(self) == 1);
}

/* Opens counters that a stale handle would name if its place were simply reused. */
static void *opens_its_own(void *stale)
{
	struct vperfctr *own = vperfctr_open();

	CHECK(own != NULL && own != (struct vperfctr *)stale);
	refused((struct vperfctr *)stale);
	CHECK(vperfctr_unlink(own) == 0);
	vperfctr_close(own);
	return NULL;
}

int main(void)
{
	struct vperfctr *self, *again;
	struct perfctr_sum_ctrs sums, final;
	struct vperfctr_control control = counting(0);
	pthread_t thread;

	refused(NULL);
	REFUSED(ESRCH, vperfctr_open_mode(0) == NULL);
	self = vperfctr_open();
	CHECK(self != NULL);
	time_only(self);
	reads_agree(self);
	inherited(self);
	sums_survive(self);
	bad_controls(self);
	bad_arguments(self);

	CHECK(vperfctr_control(self, &control) == 0);
	wild(self);
	CHECK(pthread_create(&thread, NULL, stranger, self) == 0);
	CHECK(pthread_join(thread, NULL) == 0);

	again = vperfctr_open_mode(0);
	CHECK(again != NULL && again != self);
	CHECK(vperfctr_read_ctrs(again, &sums) == 0 && sums.pmc[0] != 0);
	CHECK(vperfctr_unlink(self) == 0);
	CHECK(vperfctr_unlink(again) == 0);
	CHECK(vperfctr_is_running(self) == 0);
	CHECK(vperfctr_read_ctrs(again, &sums) == 0);
	CHECK(vperfctr_read_ctrs(self, &final) == 0);
	CHECK(sums.pmc[0] != 0 && !memcmp(&sums, &final, sizeof(final)));
	REFUSED(ESRCH, vperfctr_control(self, &control) == -1);
	vperfctr_close(self);
	refused(self);
	CHECK(pthread_create(&thread, NULL, opens_its_own, self) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	/* A new state is created at once, while an old handle is still open. */
	self = vperfctr_open();
	CHECK(self != NULL);
	vperfctr_close(again);
	CHECK(vperfctr_unlink(self) == 0);
	vperfctr_close(self);
	return 0;
}
