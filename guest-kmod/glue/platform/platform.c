/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Which hypervisor this is a guest of. */

#include <linux/kernel.h>

#include "../perfctr.h"

const struct perfctr_platform *perfctr_platform;

static const struct perfctr_platform *const perfctr_platforms[] = {
	&perfctr_xen,
	&perfctr_kvm,
};

bool perfctr_platform_find(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(perfctr_platforms); i++) {
		if (perfctr_platforms[i]->exists())
			perfctr_platform = perfctr_platforms[i];
	}
	return perfctr_platform;
}

int perfctr_glue_hypercall(u32 op, void *argument, u32 length)
{
	return perfctr_platform->hypercall(op, argument, length);
}

u64 perfctr_glue_gfn(const struct perfctr_vcpu_page *page)
{
	return perfctr_platform->gfn(page);
}
