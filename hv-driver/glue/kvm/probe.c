// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What a physical CPU says of itself, and registers that perhaps do not exist. */

#include <asm/msr.h>
#include <asm/processor.h>

#include "private.h"

bool perfctr_glue_try_rdmsr(uint32_t msr, uint64_t *value)
{
	return !rdmsrl_safe(msr, value);
}

bool perfctr_glue_try_wrmsr(uint32_t msr, uint64_t value)
{
	return !wrmsrl_safe(msr, value);
}

static u64 perfctr_read_msr(u32 msr)
{
	u64 value;

	return perfctr_glue_try_rdmsr(msr, &value) ? value : 0;
}

void perfctr_read_cpuid(struct perfctr_cpuid *id)
{
	u32 leaf, extended, eax, ebx, ecx, edx;

	memset(id, 0, sizeof(*id));
	cpuid(0, &leaf, &id->vendor[0], &id->vendor[2], &id->vendor[1]);
	cpuid(1, &eax, &ebx, &ecx, &edx);
	id->signature = eax;
	id->features = edx;
	if (leaf >= 7)
		id->structured = cpuid_edx(7);
	if (leaf >= 0xa)
		cpuid(0xa, &id->perfmon[0], &id->perfmon[1], &id->perfmon[2],
		      &id->perfmon[3]);
	if (leaf >= 0x1a)
		id->core_type = cpuid_eax(0x1a);
	extended = cpuid_eax(0x80000000);
	if (extended >= 0x80000001)
		id->extended = cpuid_ecx(0x80000001);
	if (extended >= 0x80000022)
		cpuid(0x80000022, &id->perfmon_amd[0], &id->perfmon_amd[1],
		      &ecx, &edx);
	id->misc_enable = perfctr_read_msr(MSR_IA32_MISC_ENABLE);
	id->perf_capabilities = perfctr_read_msr(MSR_IA32_PERF_CAPABILITIES);
	id->tsx_force_abort = perfctr_read_msr(MSR_TSX_FORCE_ABORT);
}
