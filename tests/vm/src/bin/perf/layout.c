/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A program whose code is laid out badly: where its source has a rare case, the
 * usual case jumps over it. Without a library it executes the same everywhere,
 * and it is short enough to be stepped.
 */

#define ROUNDS 2000
#define OWN __attribute__((noinline))
#define WRITE 1
#define EXIT 60

static unsigned seed = 1, sum, rare;

static OWN unsigned next(void)
{
	seed = seed * 1103515245 + 12345;
	return seed >> 16;
}

static OWN void classify(unsigned n)
{
	if (n % 64 == 3)
		rare += n ^ sum;
	if ((n & 0x300) == 0x300)
		sum -= rare + 7;
	else
		sum += n;
	if (n % 128 < 2)
		sum ^= rare << 3;
	for (unsigned i = 0; i < 4; i++) {
		if (n >> i & 0x800)
			sum += i;
		if (n % 32 == 31)
			break;
	}
}

static long call(long number, long first, const void *second, long third)
{
	long result;

	__asm__ volatile("syscall" : "=a"(result)
			 : "a"(number), "D"(first), "S"(second), "d"(third)
			 : "rcx", "r11", "memory");
	return result;
}

/* Writes what it has computed, by which its optimised form is compared. */
void _start(void)
{
	unsigned result[2];

	for (unsigned round = 0; round < ROUNDS; round++)
		classify(next());
	result[0] = sum;
	result[1] = rare;
	call(WRITE, 1, result, sizeof(result));
	call(EXIT, 0, 0, 0);
	__builtin_unreachable();
}
