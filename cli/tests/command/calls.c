/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Two threads and a child process, in which functions with these names call each other. */

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN __attribute__((noinline))

static OWN int innermost(int length)
{
	volatile int sum = 0;

	for (int n = 0; n < length; n++)
		sum += n;
	return sum;
}

static OWN int middle(int length)
{
	return innermost(length) + innermost(length / 2);
}

static OWN int beside(int length)
{
	return middle(length / 4) + innermost(length);
}

static OWN void *second(void *nothing)
{
	for (int n = 0; n < 10; n++)
		beside(2000000);
	return nothing;
}

static OWN void child(void)
{
	for (int n = 0; n < 10; n++)
		middle(1000000);
	/* Whoever observes this finds it here for a while. */
	usleep(100000);
	_exit(0);
}

int main(void)
{
	pthread_t thread;
	pid_t pid = fork();

	if (!pid)
		child();
	pthread_create(&thread, NULL, second, NULL);
	for (int n = 0; n < 10; n++)
		middle(2000000);
	pthread_join(thread, NULL);
	return pid < 0 || waitpid(pid, NULL, 0) != pid;
}
