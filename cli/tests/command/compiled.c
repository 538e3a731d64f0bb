/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A program that compiles a function at run time, and describes it in a dump
 * as jitdump-specification.txt (in the kernel's tools/perf/Documentation)
 * says. Its argument is the dump's directory.
 */

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* movabs $800000000, %rcx; dec %rcx; jnz to the dec; ret */
static const uint8_t code[] = {
	0x48, 0xb9, 0x00, 0x08, 0xaf, 0x2f, 0, 0,
	0,    0,    0x48, 0xff, 0xc9, 0x75, 0xfb, 0xc3,
};
static const char name[] = "js::hot at /srv/app.js:7";

struct header {
	uint32_t magic, version, size, machine, pad, pid;
	uint64_t time, flags;
};

struct load {
	uint32_t kind, size;
	uint64_t time;
	uint32_t pid, tid;
	uint64_t vma, address, bytes, index;
};

int main(int argc, char **argv)
{
	struct header header = { 0x4a695444, 1, sizeof(header), 62 };
	struct load load = { 0, sizeof(load) + sizeof(name) + sizeof(code) };
	char path[4096];
	uint8_t *place;
	void *mark;
	FILE *dump;
	volatile int waited = 0;

	if (argc != 2)
		return 2;
	place = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	snprintf(path, sizeof(path), "%s/jit-%d.dump", argv[1], getpid());
	dump = fopen(path, "w+");
	if (place == MAP_FAILED || !dump)
		return 1;
	/* Whoever samples this may read the mappings before there is a dump. */
	while (++waited < 10000000)
		;
	memcpy(place, code, sizeof(code));
	header.pid = load.pid = load.tid = getpid();
	load.vma = load.address = (uintptr_t)place;
	load.bytes = sizeof(code);
	fwrite(&header, sizeof(header), 1, dump);
	fwrite(&load, sizeof(load), 1, dump);
	fwrite(name, sizeof(name), 1, dump);
	fwrite(code, sizeof(code), 1, dump);
	fflush(dump);
	mark = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE,
		    fileno(dump), 0);
	if (mark == MAP_FAILED)
		return 1;
	((void (*)(void))place)();
	return 0;
}
