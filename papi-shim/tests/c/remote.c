/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* rvperfctr_*: another thread's counters. */

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

#define ROUNDS 3000000ul

static void child(void)
{
	CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
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

int main(void)
{
	struct vperfctr_control control = counting(0);
	struct vperfctr_control read;
	struct perfctr_sum_ctrs sums, final;
	struct perfctr_info info;
	struct rvperfctr *other;
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		child();
	wait_for_stop(pid);
	REFUSED(ESRCH, rvperfctr_open(1) == NULL);
	REFUSED(ESRCH, rvperfctr_open(0) == NULL);
	REFUSED(ESRCH, rvperfctr_open(-1) == NULL);
	other = rvperfctr_open(pid);
	CHECK(other != NULL && rvperfctr_pid(other) == pid);
	REFUSED(EEXIST, rvperfctr_open(pid) == NULL);
	CHECK(rvperfctr_info(other, &info) == 0 && info.cpu_khz > 0);
	control.cpu_control.pmc_map[0] = 99;
	REFUSED(EINVAL, rvperfctr_control(other, &control) == -1);
	control.cpu_control.pmc_map[0] = 1;
	CHECK(rvperfctr_control(other, &control) == 0);
	CHECK(rvperfctr_read_state(other, &sums, &read) == 0);
	CHECK(sums.pmc[0] == 0 && read.cpu_control.pmc_map[0] == 1);

	go_on(pid);
	REFUSED(ESRCH, (usleep(1000), rvperfctr_stop(other)) == -1 ||
		(errno = ESRCH));
	wait_for_stop(pid);
	CHECK(rvperfctr_read_ctrs(other, &sums) == 0);
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
	REFUSED(EINVAL, rvperfctr_read_ctrs(other, &sums) == -1);
	REFUSED(EINVAL, rvperfctr_pid(NULL) == -1);
	REFUSED(EINVAL, rvperfctr_iresume(NULL) == -1);
	rvperfctr_close(NULL);
	return 0;
}
