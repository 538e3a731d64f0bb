/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* gperfctr_*: what CPUs count. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <unistd.h>
#include "check.h"

#define ROUNDS 1000000ul
#define CPU 1

static void move_to(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	CHECK(sched_setaffinity(0, sizeof(cpus), &cpus) == 0);
}

static unsigned long long count_of(const struct gperfctr *global)
{
	struct gperfctr_cpu_state state;

	state.cpu = CPU;
	CHECK(gperfctr_read(global, &state) == 0);
	CHECK(state.cpu_control.evntsel[0] == INSTRUCTIONS);
	return state.sum.pmc[0];
}

/* Checks that null and closed handles are refused. */
static void refused(struct gperfctr *none)
{
	struct gperfctr_cpu_control control;
	struct gperfctr_cpu_state state;
	struct perfctr_info info;

	memset(&control, 0, sizeof(control));
	memset(&state, 0, sizeof(state));
	REFUSED(EINVAL, gperfctr_control(none, &control) == -1);
	REFUSED(EINVAL, gperfctr_start(none, 0) == -1);
	REFUSED(EINVAL, gperfctr_read(none, &state) == -1);
	REFUSED(EINVAL, gperfctr_stop(none) == -1);
	REFUSED(EINVAL, gperfctr_info(none, &info) == -1);
	REFUSED(EINVAL, gperfctr_cpus_info(none) == NULL);
	gperfctr_close(none);
}

/* Checks bad arguments while nothing counts. */
static void bad_arguments(struct gperfctr *global)
{
	struct gperfctr_cpu_control control, bad;
	struct gperfctr_cpu_state state;

	memset(&control, 0, sizeof(control));
	control.cpu = CPU;
	control.cpu_control = counting(0).cpu_control;
#define REFUSED_CONTROL(error, change) \
	(bad = control, bad.change,    \
	 REFUSED(error, gperfctr_control(global, &bad) == -1))
	REFUSED_CONTROL(EINVAL, cpu = 4096);
	REFUSED_CONTROL(EPERM, cpu_control.nrictrs = 1);
	REFUSED_CONTROL(EINVAL, cpu_control.nractrs = 19);
	REFUSED_CONTROL(EINVAL, cpu_control.pmc_map[0] = 99);
	REFUSED_CONTROL(EINVAL,
			cpu_control.evntsel[0] = INSTRUCTIONS | INTERRUPT);
	REFUSED_CONTROL(EPERM,
			cpu_control.evntsel[0] = INSTRUCTIONS | 0x200000);
	REFUSED(EINVAL, gperfctr_control(global, NULL) == -1);
	REFUSED(EINVAL, gperfctr_read(global, NULL) == -1);
	REFUSED(EINVAL, gperfctr_info(global, NULL) == -1);
	REFUSED(EINVAL, gperfctr_start(global, 9999) == -1);
	state.cpu = 4096;
	REFUSED(EINVAL, gperfctr_read(global, &state) == -1);
}

/* Checks what is refused without the right to observe the whole system. */
static void unprivileged(void)
{
	struct gperfctr_cpu_control control;
	struct gperfctr_cpu_state state;
	struct gperfctr *global = gperfctr_open();

	CHECK(global != NULL);
	CHECK(setuid(65534) == 0);
	REFUSED(EACCES, gperfctr_open() == NULL);
	memset(&control, 0, sizeof(control));
	control.cpu_control = counting(0).cpu_control;
	state.cpu = CPU;
	REFUSED(EPERM, gperfctr_control(global, &control) == -1);
	REFUSED(EPERM, gperfctr_start(global, 0) == -1);
	REFUSED(EPERM, gperfctr_read(global, &state) == -1);
	REFUSED(EPERM, gperfctr_stop(global) == -1);
	gperfctr_close(global);
}

int main(void)
{
	struct gperfctr_cpu_control control;
	struct perfctr_info info;
	struct perfctr_cpus_info *cpus;
	struct gperfctr *global = gperfctr_open();
	unsigned long long before, after;

	refused(NULL);
	CHECK(global != NULL);
	CHECK(gperfctr_info(global, &info) == 0 && info.cpu_khz > 0);
	cpus = gperfctr_cpus_info(global);
	CHECK(cpus != NULL);
	free(cpus);

	memset(&control, 0xff, sizeof(control));
	control.cpu = CPU;
	control.cpu_control = counting(0).cpu_control;
	CHECK(gperfctr_control(global, &control) == 1);
	CHECK(gperfctr_start(global, 0) == 1);
	REFUSED(EBUSY, gperfctr_start(global, 0) == -1);
	REFUSED(EBUSY, gperfctr_control(global, &control) == -1);
	REFUSED(EBUSY, vperfctr_open() == NULL);

	move_to(CPU);
	before = count_of(global);
	work(ROUNDS);
	after = count_of(global);
	CHECK(after - before >= 2 * ROUNDS);
	CHECK(gperfctr_stop(global) == 0);
	before = count_of(global);
	CHECK(before >= after);
	work(ROUNDS);
	CHECK(count_of(global) == before);
	CHECK(gperfctr_stop(global) == 0);

	bad_arguments(global);
	memset(&control.cpu_control, 0, sizeof(control.cpu_control));
	CHECK(gperfctr_control(global, &control) == 0);
	CHECK(gperfctr_start(global, 0) == 0);

	gperfctr_close(global);
	refused(global);
	unprivileged();
	return 0;
}
