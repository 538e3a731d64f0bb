/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Functions on descriptors, information, and printing. */

#include <fcntl.h>
#include <unistd.h>
#include "check.h"

static void information(int fd)
{
	struct perfctr_info info, same;
	struct perfctr_cpus_info *cpus;
	const struct perfctr_event_set *events;

	CHECK(perfctr_info(fd, &info) == 0);
	CHECK(perfctr_get_info(&same) == 0);
	CHECK(!memcmp(&info, &same, sizeof(same)));
	CHECK(info.abi_version == PERFCTR_ABI_VERSION);
	CHECK(info.cpu_features & PERFCTR_FEATURE_RDPMC);
	CHECK(info.cpu_khz > 0 && info.tsc_to_cpu_mult == 1);
	CHECK(perfctr_info_nrctrs(&info) >= 2);
	CHECK(strlen(perfctr_info_cpu_name(&info)) > 1);
	perfctr_info_print(&info);

	cpus = perfctr_cpus_info(fd);
	CHECK(cpus != NULL &&
	      cpus->cpus->nrwords == cpus->cpus_forbidden->nrwords);
	CHECK(cpus->cpus->mask[0] & 1 && cpus->cpus_forbidden->mask[0] == 0);
	perfctr_cpus_info_print(cpus);
	free(cpus);

	events = perfctr_cpu_event_set(info.cpu_type);
	CHECK(events != NULL && events->cpu_type == info.cpu_type);
	CHECK(events->nevents > 0 && strlen(events->events[0].name) > 1);

	CHECK(perfctr_abi_check_fd(fd) == 0);
	REFUSED(EPROTO, _perfctr_abi_check_fd(fd, 0x06020501) == -1);
	REFUSED(EPROTO, _perfctr_abi_check_fd(fd, 0x05020601) == -1);
	CHECK(_perfctr_abi_check_fd(fd, PERFCTR_ABI_VERSION + 1) == 0);
}

/*
 * Checks that every function gives this error for a descriptor that is closed, or of something
 * else.
 */
static void refused(int error, int fd)
{
	struct vperfctr_control control = counting(0);
	struct perfctr_sum_ctrs sums;
	struct perfctr_info info;

	REFUSED(error, _vperfctr_control(fd, &control) == -1);
	REFUSED(error, _vperfctr_read_control(fd, &control) == -1);
	REFUSED(error, _vperfctr_read_sum(fd, &sums) == -1);
	REFUSED(error, perfctr_abi_check_fd(fd) == -1);
	REFUSED(error, perfctr_info(fd, &info) == -1);
	REFUSED(error, perfctr_cpus_info(fd) == NULL);
}

/* Checks bad arguments on the descriptor of a thread without counters. */
static void bad_arguments(int fd)
{
	struct vperfctr_control control = counting(0);
	struct perfctr_sum_ctrs sums;

	REFUSED(EINVAL, _vperfctr_control(fd, &control) == -1);
	REFUSED(EINVAL, _vperfctr_read_sum(fd, &sums) == -1);
	REFUSED(EINVAL, _vperfctr_read_control(fd, &control) == -1);
	REFUSED(EINVAL, _vperfctr_control(fd, NULL) == -1);
	REFUSED(EINVAL, _vperfctr_read_sum(fd, NULL) == -1);
	REFUSED(EINVAL, _vperfctr_read_control(fd, NULL) == -1);
	REFUSED(EINVAL, perfctr_info(fd, NULL) == -1);
	REFUSED(EINVAL, perfctr_get_info(NULL) == -1);
}

/* Checks descriptions of nothing. */
static void descriptions(void)
{
	struct perfctr_cpus_info none = { NULL, NULL };
	struct perfctr_cpu_control control = counting(0).cpu_control;
	struct perfctr_info info;

	perfctr_info_print(NULL);
	perfctr_cpus_info_print(NULL);
	perfctr_cpus_info_print(&none);
	perfctr_cpu_control_print(NULL);
	control.nractrs = control.nrictrs = 0xffffffff;
	perfctr_cpu_control_print(&control);
	/* The version has no end, and the type does not exist. */
	memset(&info, 0xff, sizeof(info));
	perfctr_info_print(&info);
	CHECK(perfctr_info_nrctrs(&info) == 0);
	CHECK(!strcmp(perfctr_info_cpu_name(&info), "?"));
	CHECK(perfctr_info_nrctrs(NULL) == 0);
	CHECK(!strcmp(perfctr_info_cpu_name(NULL), "?"));
	CHECK(perfctr_cpu_event_set(info.cpu_type) == NULL);
	CHECK(perfctr_cpu_event_set(PERFCTR_X86_GENERIC) == NULL);
}

int main(void)
{
	struct vperfctr_control control = counting(0);
	struct vperfctr_control read;
	struct perfctr_sum_ctrs sums;
	int none, null, fd;

	none = _vperfctr_open(0);
	CHECK(none >= 0 && fcntl(none, F_GETFD) == FD_CLOEXEC);
	information(none);
	bad_arguments(none);
	descriptions();
	null = open("/dev/null", O_RDONLY);
	CHECK(null >= 0);
	refused(ENOTTY, null);
	close(null);
	refused(EBADF, null);
	refused(EBADF, -1);

	fd = _vperfctr_open(1);
	CHECK(fd >= 0);
	REFUSED(EEXIST, _vperfctr_open(1) == -1);
	control.flags = VPERFCTR_CONTROL_CLOEXEC;
	CHECK(_vperfctr_control(fd, &control) == 0);
	work(1000);
	CHECK(_vperfctr_read_sum(fd, &sums) == 0 && sums.pmc[0] > 2000);
	CHECK(_vperfctr_read_control(fd, &read) == 0);
	CHECK(!memcmp(&read, &control, sizeof(read)));
	perfctr_cpu_control_print(&read.cpu_control);
	close(fd);
	/* The counters are still there. */
	fd = _vperfctr_open(0);
	CHECK(fd >= 0 && _vperfctr_read_sum(fd, &sums) == 0 &&
	      sums.pmc[0] > 2000);
	return 0;
}
