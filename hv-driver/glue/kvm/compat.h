/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What differs between the releases of Linux that hooks/anchors.toml names, and
 * nothing else. Where there is a choice, older kernels get what the newest have.
 */
#ifndef PERFCTR_COMPAT_H
#define PERFCTR_COMPAT_H

#include <linux/export.h>
#include <linux/kvm_types.h>
#include <linux/syscore_ops.h>
#include <linux/version.h>

#if __has_include(<asm/cpuid/api.h>)
#include <asm/cpuid/api.h>
#endif

/*
 * What the machine's sleep calls back with. The guest's module has the same
 * lines in its own compat.h: each of the two is built from sources that lack the
 * other's, and a file for both would go into Xen as well.
 */
#ifdef PERFCTR_HAS_SYSCORE
#define PERFCTR_SYSCORE_ARGS void *unused
#else
#define PERFCTR_SYSCORE_ARGS void

struct syscore {
	struct syscore_ops *ops;
};

static inline void register_syscore(struct syscore *syscore)
{
	register_syscore_ops(syscore->ops);
}

static inline void unregister_syscore(struct syscore *syscore)
{
	unregister_syscore_ops(syscore->ops);
}
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 16, 0)
#define rdmsrq_safe rdmsrl_safe
#define wrmsrq_safe wrmsrl_safe
#endif

/*
 * Later releases export KVM's functions to its own modules only. Their build
 * looks for the name of the older macro, so that is put together here.
 */
#ifndef EXPORT_SYMBOL_FOR_KVM_INTERNAL
#define PERFCTR_PASTE(one, other) one##other
#define EXPORT_SYMBOL_FOR_KVM_INTERNAL(symbol) \
	PERFCTR_PASTE(EXPORT_SYMBOL_, GPL)(symbol)
#endif

/* The request that has a vCPU's intercepts set anew. */
#ifndef KVM_REQ_RECALC_INTERCEPTS
#define KVM_REQ_RECALC_INTERCEPTS KVM_REQ_MSR_FILTER_CHANGED
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
/* KVM's own virtual PMU lets some guests read counters. */
#define perfctr_kvm_intercepts_rdpmc(vcpu) kvm_need_rdpmc_intercept(vcpu)
#define perfctr_switch_msr add_atomic_switch_msr
#else
#define perfctr_kvm_intercepts_rdpmc(vcpu) true
/* VMX loads one value when it enters the guest, and the other one afterwards. */
#define perfctr_switch_msr(vmx, msr, inside, outside) \
	add_atomic_switch_msr(vmx, msr, inside, outside, false)
#endif

#endif /* PERFCTR_COMPAT_H */
