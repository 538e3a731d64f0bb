/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Finds out which hypervisor this guest has, and which kind of guest it is. */

#include <asm/hypervisor.h>
#include <asm/io.h>
#include <xen/page.h>
#include <xen/xen.h>

#include "../perfctr.h"

const struct perfctr_platform *perfctr_platform;

bool perfctr_platform_find(void)
{
	if (xen_domain())
		perfctr_platform = &perfctr_xen;
	else if (hypervisor_is_type(X86_HYPER_KVM))
		perfctr_platform = &perfctr_kvm;
	return perfctr_platform;
}

int perfctr_glue_hypercall(u32 op, void *argument, u32 length)
{
	return perfctr_platform->hypercall(op, argument, length);
}

/* The hypervisor knows a PV guest's frames by the machine's numbers. */
u64 perfctr_glue_gfn(const struct perfctr_vcpu_page *page)
{
	return xen_pv_domain() ? virt_to_gfn(page) :
				 virt_to_phys((void *)page) >> PAGE_SHIFT;
}
