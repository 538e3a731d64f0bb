// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Returns whether the driver, and not perf, sets the value that enables
 * counters.
 */
static bool perfctr_switch_global_ctrl(struct vcpu_vmx *vmx)
{
	u64 inside, outside;

	if (!perfctr_intercept_rdpmc(&vmx->vcpu)) {
		if (!is_guest_mode(&vmx->vcpu))
			exec_controls_clearbit(vmx, CPU_BASED_RDPMC_EXITING);
	} else if (perfctr_kvm_intercepts_rdpmc(&vmx->vcpu)) {
		exec_controls_setbit(vmx, CPU_BASED_RDPMC_EXITING);
	}

	if (!perfctr_at_switch(&vmx->vcpu, &inside, &outside))
		return false;

	if (inside == outside)
		clear_atomic_switch_msr(vmx, MSR_CORE_PERF_GLOBAL_CTRL);
	else
		perfctr_switch_msr(vmx, MSR_CORE_PERF_GLOBAL_CTRL, inside,
				   outside);
	return true;
}
