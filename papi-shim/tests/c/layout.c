/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The layouts that programs are compiled with; src/abi.rs asserts the same. */

#include <stddef.h>
#include <signal.h>
#include "libperfctr.h"

#ifdef __cplusplus
#define CHECK(condition) static_assert(condition, #condition)
#else
#define CHECK(condition) _Static_assert(condition, #condition)
#endif
#define AT(type, field, offset) CHECK(offsetof(struct type, field) == (offset))
#define SIZE(type, size) CHECK(sizeof(struct type) == (size))

SIZE(perfctr_info, 64);
AT(perfctr_info, driver_version, 4);
AT(perfctr_info, cpu_type, 36);
AT(perfctr_info, cpu_features, 40);
AT(perfctr_info, cpu_khz, 44);
AT(perfctr_info, tsc_to_cpu_mult, 48);
AT(perfctr_info, _reserved2, 52);

SIZE(perfctr_cpu_mask, 8);
AT(perfctr_cpu_mask, mask, 4);
SIZE(perfctr_cpus_info, 16);
AT(perfctr_cpus_info, cpus_forbidden, 8);

SIZE(perfctr_sum_ctrs, 152);
AT(perfctr_sum_ctrs, pmc, 8);

SIZE(perfctr_cpu_control, 324);
AT(perfctr_cpu_control, nractrs, 4);
AT(perfctr_cpu_control, nrictrs, 8);
AT(perfctr_cpu_control, pmc_map, 12);
AT(perfctr_cpu_control, evntsel, 84);
AT(perfctr_cpu_control, p4.escr, 156);
AT(perfctr_cpu_control, p4.pebs_enable, 228);
AT(perfctr_cpu_control, p4.pebs_matrix_vert, 232);
AT(perfctr_cpu_control, evntsel_high, 156);
AT(perfctr_cpu_control, nhlm.offcore_rsp, 228);
AT(perfctr_cpu_control, ireset, 236);
AT(perfctr_cpu_control, _reserved1, 308);
AT(perfctr_cpu_control, _reserved4, 320);

SIZE(vperfctr_control, 348);
AT(vperfctr_control, cpu_control, 4);
AT(vperfctr_control, preserve, 328);
AT(vperfctr_control, flags, 332);
AT(vperfctr_control, _reserved2, 336);

SIZE(gperfctr_cpu_control, 344);
AT(gperfctr_cpu_control, cpu_control, 4);
AT(gperfctr_cpu_control, _reserved1, 328);
SIZE(gperfctr_cpu_state, 496);
AT(gperfctr_cpu_state, sum, 328);
AT(gperfctr_cpu_state, _reserved1, 480);

SIZE(perfctr_cpu_state, 312);
AT(perfctr_cpu_state, tsc_start, 12);
AT(perfctr_cpu_state, tsc_sum, 16);
AT(perfctr_cpu_state, pmc, 24);
SIZE(vperfctr_state, 312);
SIZE(perfctr_struct_buf, 12);

SIZE(perfctr_unit_mask_value, 16);
SIZE(perfctr_unit_mask, 24);
AT(perfctr_unit_mask, nvalues, 3);
AT(perfctr_unit_mask, values, 8);
SIZE(perfctr_event, 32);
AT(perfctr_event, unit_mask, 8);
SIZE(perfctr_event_set, 40);
AT(perfctr_event_set, include, 16);
AT(perfctr_event_set, events, 32);

CHECK(PERFCTR_ABI_VERSION == 0x05020501);
CHECK(PERFCTR_ABI == 0x8004d000);
CHECK(PERFCTR_INFO == 0x800cd001);
CHECK(PERFCTR_CPUS_FORBIDDEN == 0xc008d003);
CHECK(VPERFCTR_CREAT == 0xd006);
CHECK(VPERFCTR_CONTROL == 0x400cd00a);
CHECK(GPERFCTR_CONTROL == 0xc00cd010);
CHECK(GPERFCTR_START == 0xd013);
CHECK(PERFCTR_X86_AMD_FAM10 == 19 && PERFCTR_X86_INTEL_COREI7 == 21);

/* The mask's place in a signal, which is that of the sender's process id. */
CHECK(offsetof(siginfo_t, si_pmc_ovf_mask) == offsetof(siginfo_t, si_pid));

int main(void)
{
	unsigned int cstatus = perfctr_mk_cstatus(1, 2, 3);

	if (cstatus != 0x80030502 || !perfctr_cstatus_enabled(cstatus) ||
	    !perfctr_cstatus_has_tsc(cstatus) ||
	    perfctr_cstatus_nractrs(cstatus) != 2 ||
	    perfctr_cstatus_nrctrs(cstatus) != 5 ||
	    !perfctr_cstatus_has_ictrs(cstatus))
		return 1;
	return 0;
}
