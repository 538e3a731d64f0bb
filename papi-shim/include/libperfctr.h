/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Hardware performance counters, with the interface of perfctr 2.6's library.
 *
 * Functions that return an int return 0, or -1 with errno set; functions that
 * return a pointer return NULL with errno set. Null pointers, closed handles
 * and whatever else is no open handle of the right kind are refused with EINVAL.
 * A handle must not be closed while another thread is in a call with it.
 */
#ifndef LIBPERFCTR_H
#define LIBPERFCTR_H

#ifndef CONFIG_KPERFCTR
#define CONFIG_KPERFCTR 1
#endif
#include <linux/perfctr.h>

#ifdef __cplusplus
extern "C" {
#endif

struct vperfctr;	/* a thread's counters, used by the thread itself */
struct rvperfctr;	/* another thread's counters, used by its tracer */
struct gperfctr;	/* every CPU's counters */

/* One block: release it with free(). */
struct perfctr_cpus_info {
	struct perfctr_cpu_mask *cpus;
	struct perfctr_cpu_mask *cpus_forbidden;
};

/*
 * The calling thread's counters.
 */

/* vperfctr_open_mode(VPERFCTR_OPEN_CREAT_EXCL) */
struct vperfctr *vperfctr_open(void);
/* VPERFCTR_OPEN_CREAT_EXCL, or 0 for another handle of existing counters. */
struct vperfctr *vperfctr_open_mode(unsigned int mode);
int vperfctr_info(const struct vperfctr *, struct perfctr_info *);
struct perfctr_cpus_info *vperfctr_cpus_info(const struct vperfctr *);
unsigned long long vperfctr_read_tsc(const struct vperfctr *);
unsigned long long vperfctr_read_pmc(const struct vperfctr *, unsigned int);
/* Without a system call while the time-stamp counter is on. */
int vperfctr_read_ctrs(const struct vperfctr *, struct perfctr_sum_ctrs *);
/* Asks the kernel. Either pointer may be NULL. */
int vperfctr_read_state(const struct vperfctr *, struct perfctr_sum_ctrs *,
			struct vperfctr_control *);
int vperfctr_control(const struct vperfctr *, struct vperfctr_control *);
/* Sums stay. */
int vperfctr_stop(const struct vperfctr *);
int vperfctr_is_running(const struct vperfctr *);
/* Ends the pause that an overflow has begun. */
int vperfctr_iresume(const struct vperfctr *);
/* Takes the counters from the thread; their sums stay readable. */
int vperfctr_unlink(const struct vperfctr *);
/* The counters go on counting. */
void vperfctr_close(struct vperfctr *);

/*
 * Another thread's counters. It must be traced by the caller, and stopped.
 */

/* Creates them, in the thread with this id. */
struct rvperfctr *rvperfctr_open(int pid);
int rvperfctr_pid(const struct rvperfctr *);
int rvperfctr_info(const struct rvperfctr *, struct perfctr_info *);
int rvperfctr_read_ctrs(const struct rvperfctr *, struct perfctr_sum_ctrs *);
int rvperfctr_read_state(const struct rvperfctr *, struct perfctr_sum_ctrs *,
			 struct vperfctr_control *);
int rvperfctr_control(const struct rvperfctr *, struct vperfctr_control *);
int rvperfctr_stop(const struct rvperfctr *);
int rvperfctr_iresume(const struct rvperfctr *);
int rvperfctr_unlink(const struct rvperfctr *);
void rvperfctr_close(struct rvperfctr *);

/*
 * What all threads do on each CPU of this guest.
 */

struct gperfctr *gperfctr_open(void);
void gperfctr_close(struct gperfctr *);
/* Both give the number of CPUs that have something to count. */
int gperfctr_control(const struct gperfctr *, struct gperfctr_cpu_control *);
int gperfctr_start(const struct gperfctr *, unsigned int interval_usec);
/* The CPU's number goes in, control and sums come out. */
int gperfctr_read(const struct gperfctr *, struct gperfctr_cpu_state *);
int gperfctr_stop(const struct gperfctr *);
int gperfctr_info(const struct gperfctr *, struct perfctr_info *);
struct perfctr_cpus_info *gperfctr_cpus_info(const struct gperfctr *);

/*
 * Descriptors.
 */

/* With 0, succeeds for a thread that has no counters, too. */
int _vperfctr_open(int creat);
int _vperfctr_control(int fd, const struct vperfctr_control *);
int _vperfctr_read_control(int fd, struct vperfctr_control *);
int _vperfctr_read_sum(int fd, struct perfctr_sum_ctrs *);
int _perfctr_abi_check_fd(int fd, unsigned int user_abi);
static __inline__ int perfctr_abi_check_fd(int fd)
{
	return _perfctr_abi_check_fd(fd, PERFCTR_ABI_VERSION);
}
int perfctr_info(int fd, struct perfctr_info *);
int perfctr_get_info(struct perfctr_info *);
struct perfctr_cpus_info *perfctr_cpus_info(int fd);

/*
 * Descriptions.
 */

/* Counters that this kind of CPU has. */
unsigned int perfctr_info_nrctrs(const struct perfctr_info *);
const char *perfctr_info_cpu_name(const struct perfctr_info *);
void perfctr_info_print(const struct perfctr_info *);
void perfctr_cpus_info_print(const struct perfctr_cpus_info *);
void perfctr_cpu_control_print(const struct perfctr_cpu_control *);

enum perfctr_unit_mask_type {
	perfctr_um_type_fixed,		/* the default value only */
	perfctr_um_type_exclusive,	/* one of the values */
	perfctr_um_type_bitmask		/* any of the values together */
};

struct perfctr_unit_mask_value {
	unsigned int value;
	const char *description;
};

struct perfctr_unit_mask {
	unsigned short default_value;
	enum perfctr_unit_mask_type type:8;
	unsigned char nvalues;
	struct perfctr_unit_mask_value values[1];	/* nvalues of them */
};

struct perfctr_event {
	unsigned short evntsel;
	unsigned short counters_set;	/* bit i: counter i can count it */
	const struct perfctr_unit_mask *unit_mask;
	const char *name;
	const char *description;
};

struct perfctr_event_set {
	unsigned int cpu_type;
	const char *event_prefix;
	const struct perfctr_event_set *include;	/* or NULL */
	unsigned int nevents;
	const struct perfctr_event *events;
};

/* NULL if there is none. */
const struct perfctr_event_set *perfctr_cpu_event_set(unsigned int cpu_type);

#ifdef __cplusplus
}
#endif

#endif /* LIBPERFCTR_H */
