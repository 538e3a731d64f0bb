/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The part that is specific to Intel's VMX. No selector can be limited to
 * guests, so VM entries and VM exits load the register that enables counters
 * (SDM volume 3, 27.4 and 28.6).
 */

#include <xen/lib.h>
#include <xen/sched.h>

#include <asm/hardirq.h>
#include <asm/hvm/vmx/vmcs.h>
#include <asm/hvm/vmx/vmx.h>

#include "private.h"

/* Until the core sets other values, nothing counts in the guest or outside. */
int perfctr_vmx_add_gate(struct vcpu *curr)
{
    int rc =
        vmx_add_msr(curr, MSR_CORE_PERF_GLOBAL_CTRL, 0, VMX_MSR_GUEST_LOADONLY);

    if ( !rc )
        rc = vmx_add_host_load_msr(curr, MSR_CORE_PERF_GLOBAL_CTRL, 0);
    if ( rc )
        perfctr_vmx_remove_gate(curr);

    return rc;
}

/* v is current or does not execute. It may have no entries. */
void perfctr_vmx_remove_gate(struct vcpu *v)
{
    vmx_del_msr(v, MSR_CORE_PERF_GLOBAL_CTRL, VMX_MSR_GUEST_LOADONLY);
    vmx_del_msr(v, MSR_CORE_PERF_GLOBAL_CTRL, VMX_MSR_HOST);
}

/*
 * The lists are in memory, so it does not matter whose VMCS is loaded. But an
 * interrupt must not change them, since it may have come while Xen moves
 * entries.
 */
void perfctr_glue_load_at_switch(uint64_t inside, uint64_t outside)
{
    struct vmx_msr_entry *at_entry, *at_exit;

    if ( in_irq() )
        return;

    at_entry = vmx_find_msr(current, MSR_CORE_PERF_GLOBAL_CTRL,
                            VMX_MSR_GUEST_LOADONLY);
    at_exit = vmx_find_msr(current, MSR_CORE_PERF_GLOBAL_CTRL, VMX_MSR_HOST);
    /*
     * The entries were added before the vCPU got its page. Without them its
     * counters would also count Xen.
     */
    if ( !at_entry || !at_exit )
    {
        domain_crash(current->domain);
        return;
    }
    at_entry->data = inside;
    at_exit->data = outside;
}

void perfctr_vmx_intercept_rdpmc(struct vcpu *v, bool intercept)
{
    if ( intercept )
        v->arch.hvm.vmx.exec_control |= CPU_BASED_RDPMC_EXITING;
    else
        v->arch.hvm.vmx.exec_control &= ~CPU_BASED_RDPMC_EXITING;

    vmx_vmcs_enter(v);
    vmx_update_cpu_exec_control(v);
    vmx_vmcs_exit(v);
}

/*
 * Xen copies the other registers from the VMCS before it enables interrupts.
 * The mode is only in the VMCS. It is unknown if the interrupt has come while
 * Xen had loaded another vCPU's VMCS.
 */
void perfctr_vmx_place(struct vcpu *curr, struct perfctr_hv_place *place)
{
    if ( !vmx_vmcs_try_enter(curr) )
    {
        *place = (struct perfctr_hv_place){ .mode = PERFCTR_PLACE_NONE };
        return;
    }

    place->mode = vmx_get_cpl() ? PERFCTR_PLACE_USER : PERFCTR_PLACE_KERNEL;
    vmx_vmcs_exit(curr);
}
