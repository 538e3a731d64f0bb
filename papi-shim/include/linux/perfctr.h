/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Structures and constants of perfctr 2.6 that do not depend on the CPU. */
#ifndef _LINUX_PERFCTR_H
#define _LINUX_PERFCTR_H

#ifdef CONFIG_KPERFCTR

#include <linux/ioctl.h>
#include <asm/perfctr.h>

/* Two versions are compatible if their major bytes, 3 and 1, are the same. */
#define PERFCTR_API_VERSION	0x0502
#define PERFCTR_ABI_VERSION	((PERFCTR_API_VERSION << 16) | PERFCTR_CPU_VERSION)

/* perfctr_info.cpu_features */
#define PERFCTR_FEATURE_RDPMC	0x01	/* reading needs no system call */
#define PERFCTR_FEATURE_RDTSC	0x02
#define PERFCTR_FEATURE_PCINT	0x04	/* overflows interrupt */

/* vperfctr_control.flags: unlink when the thread executes another program. */
#define VPERFCTR_CONTROL_CLOEXEC	0x01

/* vperfctr_open_mode(): create counters, or fail if the thread has some. */
#define VPERFCTR_OPEN_CREAT_EXCL	3

struct perfctr_info {
	unsigned int abi_version;
	char driver_version[32];
	unsigned int cpu_type;
	unsigned int cpu_features;
	unsigned int cpu_khz;
	unsigned int tsc_to_cpu_mult;
	unsigned int _reserved2;
	unsigned int _reserved3;
	unsigned int _reserved4;
};

/* CPU n is bit n % 32 of word n / 32. */
struct perfctr_cpu_mask {
	unsigned int nrwords;
	unsigned int mask[1];	/* nrwords of them */
};

struct vperfctr_state {
	struct perfctr_cpu_state cpu_state;
};

struct vperfctr_control {
	int si_signo;
	struct perfctr_cpu_control cpu_control;
	unsigned int preserve;	/* bit i: counter i keeps its sum */
	unsigned int flags;
	unsigned int _reserved2;
	unsigned int _reserved3;
	unsigned int _reserved4;
};

struct gperfctr_cpu_control {
	unsigned int cpu;
	struct perfctr_cpu_control cpu_control;
	unsigned int _reserved1;
	unsigned int _reserved2;
	unsigned int _reserved3;
	unsigned int _reserved4;
};

struct gperfctr_cpu_state {
	unsigned int cpu;
	struct perfctr_cpu_control cpu_control;
	struct perfctr_sum_ctrs sum;
	unsigned int _reserved1;
	unsigned int _reserved2;
	unsigned int _reserved3;
	unsigned int _reserved4;
};

struct perfctr_struct_buf {
	unsigned int rdsize;
	unsigned int wrsize;
	unsigned int buffer[1];
};

/*
 * The numbers of perfctr's own device. The library's device has others and
 * refuses these; programs that only name them still compile.
 */
#define _PERFCTR_IOCTL		0xD0
#define PERFCTR_ABI		_IOR(_PERFCTR_IOCTL, 0, unsigned int)
#define PERFCTR_INFO		_IOR(_PERFCTR_IOCTL, 1, struct perfctr_struct_buf)
#define PERFCTR_CPUS		_IOWR(_PERFCTR_IOCTL, 2, struct perfctr_cpu_mask)
#define PERFCTR_CPUS_FORBIDDEN	_IOWR(_PERFCTR_IOCTL, 3, struct perfctr_cpu_mask)
#define VPERFCTR_CREAT		_IO(_PERFCTR_IOCTL, 6)
#define VPERFCTR_OPEN		_IO(_PERFCTR_IOCTL, 7)
#define VPERFCTR_READ_SUM	_IOR(_PERFCTR_IOCTL, 8, struct perfctr_struct_buf)
#define VPERFCTR_UNLINK		_IO(_PERFCTR_IOCTL, 9)
#define VPERFCTR_CONTROL	_IOW(_PERFCTR_IOCTL, 10, struct perfctr_struct_buf)
#define VPERFCTR_IRESUME	_IO(_PERFCTR_IOCTL, 11)
#define VPERFCTR_READ_CONTROL	_IOR(_PERFCTR_IOCTL, 12, struct perfctr_struct_buf)
#define GPERFCTR_CONTROL	_IOWR(_PERFCTR_IOCTL, 16, struct perfctr_struct_buf)
#define GPERFCTR_READ		_IOWR(_PERFCTR_IOCTL, 17, struct perfctr_struct_buf)
#define GPERFCTR_STOP		_IO(_PERFCTR_IOCTL, 18)
#define GPERFCTR_START		_IO(_PERFCTR_IOCTL, 19)

#endif /* CONFIG_KPERFCTR */

#endif /* _LINUX_PERFCTR_H */
