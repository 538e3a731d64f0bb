// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* A file whose functions have addresses like Xen's. Nobody executes it. */

__attribute__((noinline)) int schedule(int n)
{
	volatile int sum = n;

	for (int i = 0; i < n; i++)
		sum += i;
	return sum;
}

__attribute__((noinline)) int do_softirq(int n)
{
	volatile int sum = n;

	for (int i = 0; i < n; i++)
		sum -= i;
	return sum;
}

void _start(void)
{
	schedule(1);
	do_softirq(2);
}
