/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Checks, on two CPUs, that a device stays where it is while the memory map changes: one CPU reads
 * its local APIC's version, of which every reading has to be the same, while the other has the
 * host bridge (440FX, registers PAM0-PAM6) take 768 KiB to 1 MiB apart and put it together again.
 *
 *   map-check SECONDS    needs root, and a kernel booted with iomem=relaxed
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HOST_BRIDGE  "/sys/bus/pci/devices/0000:00:00.0/config"
#define PAM0         0x59
#define PAMS         7
#define APART        0x20 /* the second half of what a register says: writes go to memory */
#define APIC         0xfee00000
#define APIC_VERSION 0x30

static void stay_on(int cpu)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof(one), &one)) {
        err(2, "CPU %d", cpu);
    }
}

/* Returns how many readings differed from the first. */
static int read_apic(time_t end)
{
    int mem = open("/dev/mem", O_RDONLY | O_SYNC);
    volatile uint32_t *apic = mmap(NULL, 4096, PROT_READ, MAP_SHARED, mem, APIC);
    uint32_t first;
    long readings = 0, wrong = 0;

    if (apic == MAP_FAILED) {
        err(2, "/dev/mem at %#x", APIC);
    }
    first = apic[APIC_VERSION / 4];
    while (time(NULL) < end) {
        for (int i = 0; i < 1000; i++) {
            wrong += apic[APIC_VERSION / 4] != first;
        }
        readings += 1000;
    }
    printf("map-check: %ld readings of %#x, %ld of something else\n", readings, first, wrong);
    return wrong != 0;
}

static void change_map(time_t end)
{
    int bridge = open(HOST_BRIDGE, O_RDWR);
    uint8_t whole[PAMS];

    if (pread(bridge, whole, PAMS, PAM0) != PAMS) {
        err(2, HOST_BRIDGE);
    }
    while (time(NULL) < end) {
        for (int i = 0; i < 2 * PAMS; i++) {
            uint8_t value = i < PAMS ? APART : whole[i % PAMS];

            if (pwrite(bridge, &value, 1, PAM0 + i % PAMS) != 1) {
                err(2, HOST_BRIDGE);
            }
        }
    }
}

int main(int argc, char **argv)
{
    time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 10);
    pid_t reader = fork();
    int status;

    if (reader < 0) {
        err(2, "fork");
    }
    if (!reader) {
        stay_on(1);
        return read_apic(end);
    }
    stay_on(0);
    change_map(end);
    if (waitpid(reader, &status, 0) != reader) {
        err(2, "waitpid");
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
