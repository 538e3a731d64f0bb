/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* rvperfctr_*: another thread's counters. */

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

#define ROUNDS 3000000ul

/* Shared with the child: until it is set, the child executes and does not stop. */
static volatile int *may_stop;

static void child(void)
{
	CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
	raise(SIGSTOP);
	while (!*may_stop)
		;
	raise(SIGSTOP);
	work(ROUNDS);
	raise(SIGSTOP);
	work(ROUNDS);
	_exit(0);
}

static void wait_for_stop(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
}

static void go_on(pid_t pid)
{
	CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
}

/* Checks that null and closed handles are refused. */
static void refused(struct rvperfctr *none)
{
	struct vperfctr_control control = counting(0);
	struct perfctr_sum_ctrs sums;
	struct perfctr_info info;

	REFUSED(EINVAL, rvperfctr_pid(none) == -1);
	REFUSED(EINVAL, rvperfctr_info(none, &info) == -1);
	REFUSED(EINVAL, rvperfctr_read_ctrs(none, &sums) == -1);
	REFUSED(EINVAL, rvperfctr_read_state(none, &sums, &control) == -1);
	REFUSED(EINVAL, rvperfctr_control(none, &control) == -1);
	REFUSED(EINVAL, rvperfctr_stop(none) == -1);
	REFUSED(EINVAL, rvperfctr_iresume(none) == -1);
	REFUSED(EINVAL, rvperfctr_unlink(none) == -1);
	rvperfctr_close(none);
}

/* Checks what is refused for a thread that is not stopped, or is not the caller's tracee. */
static void may_only_read(struct rvperfctr *other)
{
	struct vperfctr_control control = counting(0);
	struct perfctr_sum_ctrs sums;

	REFUSED(ESRCH, rvperfctr_control(other, &control) == -1);
	REFUSED(ESRCH, rvperfctr_stop(other) == -1);
	REFUSED(ESRCH, rvperfctr_iresume(other) == -1);
	REFUSED(ESRCH, rvperfctr_unlink(other) == -1);
	CHECK(rvperfctr_read_ctrs(other, &sums) == 0);
	CHECK(rvperfctr_read_state(other, &sums, &control) == 0);
}

/* Checks a process that inherits the handle but is not the tracer. */
static void stranger(struct rvperfctr *other, pid_t traced)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		may_only_read(other);
		REFUSED(ESRCH, rvperfctr_open(traced) == NULL);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static struct rvperfctr *opened(pid_t pid)
{
	struct rvperfctr *other;

	REFUSED(ESRCH, rvperfctr_open(1) == NULL);
	REFUSED(ESRCH, rvperfctr_open(0) == NULL);
	REFUSED(ESRCH, rvperfctr_open(-1) == NULL);
	other = rvperfctr_open(pid);
	CHECK(other != NULL && rvperfctr_pid(other) == pid);
	REFUSED(EEXIST, rvperfctr_open(pid) == NULL);
	return other;
}

static void bad_arguments(struct rvperfctr *other)
{
	struct vperfctr_control control = counting(0);
	struct perfctr_info info;

	CHECK(rvperfctr_info(other, &info) == 0 && info.cpu_khz > 0);
	REFUSED(EINVAL, rvperfctr_info(other, NULL) == -1);
	REFUSED(EINVAL, rvperfctr_read_ctrs(other, NULL) == -1);
	CHECK(rvperfctr_read_state(other, NULL, NULL) == 0);
	REFUSED(EINVAL, rvperfctr_control(other, NULL) == -1);
	control.cpu_control.pmc_map[0] = 99;
	REFUSED(EINVAL, rvperfctr_control(other, &control) == -1);
	control = counting(0);
	control.cpu_control.evntsel[0] |= 0x200000;
	REFUSED(EPERM, rvperfctr_control(other, &control) == -1);
}

int main(void)
{
	struct vperfctr_control control = counting(0);
	struct vperfctr_control read;
	struct perfctr_sum_ctrs sums, final;
	struct rvperfctr *other;
	int status;
	pid_t pid;

	may_stop = (volatile int *)mmap(NULL, sizeof(*may_stop),
					PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(may_stop != MAP_FAILED);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		child();
	wait_for_stop(pid);
	refused(NULL);
	other = opened(pid);
	bad_arguments(other);
	stranger(other, pid);
	go_on(pid);
	may_only_read(other);
	*may_stop = 1;
	wait_for_stop(pid);

	control.cpu_control.pmc_map[0] = 1;
	CHECK(rvperfctr_control(other, &control) == 0);
	go_on(pid);
	wait_for_stop(pid);
	CHECK(rvperfctr_read_state(other, &sums, &read) == 0);
	CHECK(read.cpu_control.pmc_map[0] == 1);
	CHECK(is_count_of(sums.pmc[0], ROUNDS));
	CHECK(rvperfctr_read_ctrs(other, &final) == 0);
	CHECK(!memcmp(&sums, &final, sizeof(final)));
	CHECK(rvperfctr_control(other, &control) == 0);

	go_on(pid);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	CHECK(rvperfctr_read_ctrs(other, &final) == 0);
	CHECK(is_count_of(final.pmc[0], ROUNDS));
	REFUSED(ESRCH, rvperfctr_control(other, &control) == -1);
	CHECK(rvperfctr_unlink(other) == 0);
	rvperfctr_close(other);
	refused(other);
	return 0;
}
