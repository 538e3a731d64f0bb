/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Writes to so many new pages. */

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096

int main(int arguments, char **argument)
{
	long pages = arguments > 1 ? atol(argument[1]) : 0;
	volatile char *memory = mmap(NULL, 4000 * PAGE, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED ||
	    madvise((void *)memory, 4000 * PAGE, MADV_NOHUGEPAGE))
		return 1;
	for (long n = 0; n < pages; n++)
		memory[n * PAGE] = 1;
	return 0;
}
