/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * This file has only the differences between the releases of Linux that
 * hooks/anchors.toml names. Where there is a choice, older kernels get what the
 * newest have.
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
 * The arguments of the callbacks around the machine's sleep. The guest's module
 * has the same lines in its own compat.h: each of the two is built from sources
 * without the other's, and a common file would go into Xen as well.
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
 * Later releases export KVM's functions only to its own modules. Their build
 * looks for the name of the older macro, so this puts that name together.
 */
#ifndef EXPORT_SYMBOL_FOR_KVM_INTERNAL
#define PERFCTR_PASTE(one, other) one##other
#define EXPORT_SYMBOL_FOR_KVM_INTERNAL(symbol) \
	PERFCTR_PASTE(EXPORT_SYMBOL_, GPL)(symbol)
#endif

/* The request that makes a vCPU set its intercepts anew. */
#ifndef KVM_REQ_RECALC_INTERCEPTS
#define KVM_REQ_RECALC_INTERCEPTS KVM_REQ_MSR_FILTER_CHANGED
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
/* KVM's own virtual PMU lets some guests read counters. */
#define perfctr_kvm_intercepts_rdpmc(vcpu) kvm_need_rdpmc_intercept(vcpu)
#define perfctr_switch_msr add_atomic_switch_msr
#else
#define perfctr_kvm_intercepts_rdpmc(vcpu) true
/* VMX loads `inside` when it enters the guest, and `outside` afterwards. */
#define perfctr_switch_msr(vmx, msr, inside, outside) \
	add_atomic_switch_msr(vmx, msr, inside, outside, false)
#endif

#endif /* PERFCTR_COMPAT_H */
