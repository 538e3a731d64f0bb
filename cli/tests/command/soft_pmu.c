/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A PMU for tests on machines that have none: preloaded, it has hardware events count the time
 * that their thread executes, in nanoseconds, by Linux's software clock.
 *
 * SOFT_PMU=paranoid refuses what kernel.perf_event_paranoid=2 forbids to everybody but root, since
 * tests may run as root; SOFT_PMU=none knows no hardware event, as a machine without a PMU.
 * SOFT_PMU_LEVEL is a file to be read in place of kernel.perf_event_paranoid.
 * SOFT_PMU_GROUPS is a file that gets a line for each hardware event that was
 * opened: its descriptor, and that of its group's first event, or -1.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEVEL "/proc/sys/kernel/perf_event_paranoid"

static int mode_is(const char *name)
{
	const char *mode = getenv("SOFT_PMU");

	return mode && !strcmp(mode, name);
}

static long (*next(void))(long, ...)
{
	return (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
}

static void note_group(int event, int first)
{
	const char *groups = getenv("SOFT_PMU_GROUPS");
	int file = groups ? open(groups, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;

	if (file >= 0) {
		dprintf(file, "%d %d\n", event, first);
		close(file);
	}
}

static long open_event(const struct perf_event_attr *asked, const long *arg)
{
	struct perf_event_attr attr = *asked;
	int is_hardware = attr.type == PERF_TYPE_HARDWARE ||
			  attr.type == PERF_TYPE_RAW;
	long event;

	if (is_hardware) {
		if (mode_is("none")) {
			errno = ENOENT;
			return -1;
		}
		if (mode_is("paranoid") &&
		    (!attr.exclude_kernel || arg[1] < 0)) {
			errno = EACCES;
			return -1;
		}
		attr.type = PERF_TYPE_SOFTWARE;
		attr.config = PERF_COUNT_SW_TASK_CLOCK;
	}
	event = next()(SYS_perf_event_open, &attr, arg[1], arg[2], arg[3],
		       arg[4]);
	if (is_hardware && event >= 0)
		note_group(event, arg[3]);
	return event;
}

long syscall(long number, ...)
{
	long arg[6];
	va_list list;
	int n;

	va_start(list, number);
	for (n = 0; n < 6; n++)
		arg[n] = va_arg(list, long);
	va_end(list);
	if (number == SYS_perf_event_open)
		return open_event((const struct perf_event_attr *)arg[0], arg);
	return next()(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

int open64(const char *path, int flags, ...)
{
	int (*next_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
	const char *level = getenv("SOFT_PMU_LEVEL");
	va_list list;
	int mode;

	va_start(list, flags);
	mode = va_arg(list, int);
	va_end(list);
	return next_open(level && !strcmp(path, LEVEL) ? level : path, flags,
			 mode);
}
