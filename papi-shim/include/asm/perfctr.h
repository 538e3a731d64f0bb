/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What a counter configuration and its sums look like on x86, and the kinds of
 * CPU. Layouts are those of perfctr 2.6 and must not change: programs are
 * compiled with them.
 */
#ifndef _ASM_PERFCTR_H
#define _ASM_PERFCTR_H

/* Capacity of the arrays, in counters. */
#define PERFCTR_X86_COUNTERS_MAX	18

/* perfctr_info.cpu_type */
#define PERFCTR_X86_GENERIC		0	/* time-stamp counter only */
#define PERFCTR_X86_INTEL_P5		1
#define PERFCTR_X86_INTEL_P5MMX		2
#define PERFCTR_X86_INTEL_P6		3
#define PERFCTR_X86_INTEL_PII		4
#define PERFCTR_X86_INTEL_PIII		5
#define PERFCTR_X86_CYRIX_MII		6
#define PERFCTR_X86_WINCHIP_C6		7
#define PERFCTR_X86_WINCHIP_2		8
#define PERFCTR_X86_AMD_K7		9
#define PERFCTR_X86_VIA_C3		10
#define PERFCTR_X86_INTEL_P4		11
#define PERFCTR_X86_INTEL_P4M2		12
#define PERFCTR_X86_AMD_K8		13
#define PERFCTR_X86_INTEL_PENTM		14
#define PERFCTR_X86_AMD_K8C		15
#define PERFCTR_X86_INTEL_P4M3		16
#define PERFCTR_X86_INTEL_CORE		17
#define PERFCTR_X86_INTEL_CORE2		18
#define PERFCTR_X86_AMD_FAM10H		19
#define PERFCTR_X86_AMD_FAM10		PERFCTR_X86_AMD_FAM10H
#define PERFCTR_X86_INTEL_ATOM		20
#define PERFCTR_X86_INTEL_NHLM		21
#define PERFCTR_X86_INTEL_COREI7	PERFCTR_X86_INTEL_NHLM
#define PERFCTR_X86_INTEL_WSTMR		22
#define PERFCTR_X86_INTEL_SNB		23

#define PERFCTR_CPU_VERSION		0x0501

struct perfctr_sum_ctrs {
	unsigned long long tsc;
	unsigned long long pmc[PERFCTR_X86_COUNTERS_MAX];
};

struct perfctr_cpu_control {
	unsigned int tsc_on;
	unsigned int nractrs;		/* accumulating, first in the arrays */
	unsigned int nrictrs;		/* interrupting, behind them */
	unsigned int pmc_map[PERFCTR_X86_COUNTERS_MAX];	/* RDPMC's index */
	unsigned int evntsel[PERFCTR_X86_COUNTERS_MAX];
#ifdef __GNUC__
	__extension__
#endif
	union {
		struct {
			unsigned int escr[PERFCTR_X86_COUNTERS_MAX];
			unsigned int pebs_enable;
			unsigned int pebs_matrix_vert;
		} p4;
		unsigned int evntsel_high[PERFCTR_X86_COUNTERS_MAX];
		struct {
			unsigned int _padding[PERFCTR_X86_COUNTERS_MAX];
			unsigned int offcore_rsp[2];
		} nhlm;
	};
	int ireset[PERFCTR_X86_COUNTERS_MAX];	/* minus the period */
	unsigned int _reserved1;
	unsigned int _reserved2;
	unsigned int _reserved3;
	unsigned int _reserved4;
};

/* Kept for their names: this library publishes its state in another form. */
struct perfctr_cpu_state {
	unsigned int cstatus;
	struct {
		unsigned int id;
		int isuspend_cpu;
	} k1;
	unsigned int tsc_start;
	unsigned long long tsc_sum;
	struct {
		unsigned int map;
		unsigned int start;
		unsigned long long sum;
	} pmc[PERFCTR_X86_COUNTERS_MAX];
};

/*
 * A word that says what is counted: bit 31 the time-stamp counter, bits 22:16
 * whether there are interrupting counters, bits 14:8 all counters, bits 6:0 the
 * accumulating ones.
 */
static __inline__ unsigned int
__perfctr_mk_cstatus(unsigned int tsc_on, unsigned int have_ictrs,
		     unsigned int nrictrs, unsigned int nractrs)
{
	return tsc_on << 31 | have_ictrs << 16 | (nractrs + nrictrs) << 8 | nractrs;
}

static __inline__ unsigned int
perfctr_mk_cstatus(unsigned int tsc_on, unsigned int nractrs, unsigned int nrictrs)
{
	return __perfctr_mk_cstatus(tsc_on, nrictrs, nrictrs, nractrs);
}

static __inline__ unsigned int perfctr_cstatus_enabled(unsigned int cstatus)
{
	return cstatus;
}

static __inline__ int perfctr_cstatus_has_tsc(unsigned int cstatus)
{
	return cstatus >> 31 != 0;
}

static __inline__ unsigned int perfctr_cstatus_nractrs(unsigned int cstatus)
{
	return cstatus & 0x7f;
}

static __inline__ unsigned int perfctr_cstatus_nrctrs(unsigned int cstatus)
{
	return cstatus >> 8 & 0x7f;
}

static __inline__ unsigned int perfctr_cstatus_has_ictrs(unsigned int cstatus)
{
	return cstatus >> 16 & 0x7f;
}

/* A signal of an overflow, and the counters that overflowed: bit i is counter i. */
#define SI_PMC_OVF		('P')
#define si_pmc_ovf_mask		_sifields._pad[0]

#endif /* _ASM_PERFCTR_H */
