/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What README.md counts and samples. Without a library it executes the same everywhere. */

#define LIMIT 100000u
#define TRIED 6000u
#define OWN __attribute__((noinline))

static unsigned char composite[LIMIT];

static OWN void strike(unsigned prime)
{
	for (unsigned n = prime * prime; n < LIMIT; n += prime)
		composite[n] = 1;
}

static OWN unsigned sieve(void)
{
	unsigned primes = 0;

	for (unsigned n = 2; n * n < LIMIT; n++)
		if (!composite[n])
			strike(n);
	for (unsigned n = 2; n < LIMIT; n++)
		primes += !composite[n];
	return primes;
}

static OWN int is_prime(unsigned n)
{
	for (unsigned divisor = 2; divisor * divisor <= n; divisor++)
		if (n % divisor == 0)
			return 0;
	return 1;
}

static OWN unsigned trial_division(void)
{
	unsigned primes = 0;

	for (unsigned n = 2; n < TRIED; n++)
		primes += is_prime(n);
	return primes;
}

/* 9,592 and 783 of them. */
OWN int main(void)
{
	unsigned sieved = sieve();
	unsigned tried = trial_division();

	return sieved != 9592 || tried != 783;
}

__asm__(".globl _start\n"
	"_start:\n"
	"	.cfi_startproc\n"
	"	.cfi_undefined rip\n"
	"	xor %ebp, %ebp\n"
	"	call main\n"
	"	mov %eax, %edi\n"
	"	mov $60, %eax\n"
	"	syscall\n"
	"	.cfi_endproc\n");
