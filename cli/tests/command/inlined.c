/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A function that the compiler has to put into its callers. */

static inline __attribute__((always_inline)) unsigned long
inlined(unsigned long length)
{
	volatile unsigned long sum = 0;

	for (unsigned long n = 0; n < length; n++)
		sum += n;
	return sum;
}

static __attribute__((noinline)) unsigned long around(unsigned long length)
{
	return inlined(length) + 1;
}

int main(int arguments, char **unused)
{
	(void)unused;
	return around(100000000UL * arguments) == 0;
}
