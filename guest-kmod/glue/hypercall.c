/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The two instructions that the core cannot execute itself. */

#include <asm/asm.h>
#include <asm/xen/hypercall.h>
#include <xen/interface/xen.h>

#include "perfctr.h"

_Static_assert(PERFCTR_HYPERCALL_NUMBER == __HYPERVISOR_arch_5,
	       "the hypercall's number is Xen's arch_5");

int perfctr_glue_hypercall(u32 op, void *argument, u32 length)
{
	return _hypercall3(int, arch_5, op, argument, length);
}

/*
 * A fault gives 0: the host may take the right to read counters away between
 * the caller's look at the page and the instruction.
 */
u64 perfctr_glue_rdpmc(u32 index)
{
	u32 low = 0, high = 0;

	asm volatile("1: rdpmc\n2:\n" _ASM_EXTABLE(1b, 2b)
		     : "+a"(low), "+d"(high)
		     : "c"(index));
	return (u64)high << 32 | low;
}
