// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Who may count, and who says so. */

#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/random.h>

#include "private.h"

bool __read_mostly perfctr_all;

/* kvm->arch.perfctr_policy */
enum { PERFCTR_DEFAULT, PERFCTR_ALLOW, PERFCTR_FORBID };

bool perfctr_allowed(const struct kvm *kvm)
{
	u8 policy = READ_ONCE(kvm->arch.perfctr_policy);

	return policy == PERFCTR_DEFAULT ? perfctr_all :
					   policy == PERFCTR_ALLOW;
}

/* As its guest knows it, whatever host that comes from. */
u64 perfctr_machine(struct kvm *kvm)
{
	cmpxchg64(&kvm->arch.perfctr_machine, 0, get_random_u64() | 1);
	return READ_ONCE(kvm->arch.perfctr_machine);
}

/* No guest controls its host. */
int perfctr_glue_permits(bool control)
{
	return control && kvm_get_running_vcpu() ? -EPERM : 0;
}

bool perfctr_glue_allowed(void)
{
	struct kvm_vcpu *vcpu = kvm_get_running_vcpu();

	return vcpu && perfctr_allowed(vcpu->kvm);
}

/* A vCPU that executes may not be switched for a long time. */
static void revoke_here(void *kvm)
{
	struct kvm_vcpu *vcpu = kvm_get_running_vcpu();

	if (!vcpu || vcpu->kvm != kvm || !vcpu->arch.perfctr ||
	    perfctr_allowed(kvm))
		return;
	perfctr_core_revoke(perfctr_this_cpu(),
			    perfctr_core_of(vcpu->arch.perfctr));
	/* Its kernel looks what counts now. */
	perfctr_notify(vcpu);
}

/* A guest that was restored where it was not allowed looks again. */
static void tell(struct kvm *kvm)
{
	struct kvm_vcpu *vcpu;
	unsigned long i;

	WRITE_ONCE(kvm->arch.perfctr_machine, get_random_u64() | 1);
	kvm_for_each_vcpu(i, vcpu, kvm)
	{
		perfctr_notify(vcpu);
		kvm_vcpu_kick(vcpu);
	}
}

static void set_policy(struct kvm *kvm, bool allowed)
{
	bool was = perfctr_allowed(kvm);

	WRITE_ONCE(kvm->arch.perfctr_policy,
		   allowed ? PERFCTR_ALLOW : PERFCTR_FORBID);
	/* Whoever loads meanwhile has seen the old policy before this arrives. */
	if (!allowed)
		on_each_cpu(revoke_here, kvm, 1);
	else if (!was)
		tell(kvm);
}

/* A machine is called by the process that made it. */
int perfctr_glue_set_policy(uint32_t pid, bool allowed)
{
	struct kvm *kvm;
	int err = -ESRCH;

	mutex_lock(&kvm_lock);
	list_for_each_entry(kvm, &vm_list, vm_list) {
		if (kvm->userspace_pid != pid)
			continue;
		set_policy(kvm, allowed);
		err = 0;
	}
	mutex_unlock(&kvm_lock);
	return err;
}

static int set(const char *text, bool allowed)
{
	u32 pid;
	int err = perfctr_on ? kstrtou32(text, 0, &pid) : -ENODEV;

	return err ?: perfctr_glue_set_policy(pid, allowed);
}

static int allow(const char *text, const struct kernel_param *unused)
{
	return set(text, true);
}

static int forbid(const char *text, const struct kernel_param *unused)
{
	return set(text, false);
}

static const struct kernel_param_ops perfctr_allow_ops = { .set = allow };
static const struct kernel_param_ops perfctr_forbid_ops = { .set = forbid };

/* Written with a process's number; each machine that it has made may count. */
module_param_cb(perfctr_allow, &perfctr_allow_ops, NULL, 0200);
module_param_cb(perfctr_forbid, &perfctr_forbid_ops, NULL, 0200);

/* A process, and 0 or 1. */
#define PERFCTR_LINE_BYTES sizeof("4194304 1")

static int list_machines(char *text, const struct kernel_param *unused)
{
	struct kvm *kvm;
	int length = 0;

	if (!perfctr_on)
		return -ENODEV;
	mutex_lock(&kvm_lock);
	list_for_each_entry(kvm, &vm_list, vm_list) {
		if (length > PAGE_SIZE - 1 - PERFCTR_LINE_BYTES) {
			length = -E2BIG;
			break;
		}
		length += sysfs_emit_at(text, length, "%d %d\n",
					kvm->userspace_pid,
					perfctr_allowed(kvm));
	}
	mutex_unlock(&kvm_lock);
	return length;
}

static const struct kernel_param_ops perfctr_domains_ops = {
	.get = list_machines,
};

/* Each machine, by the process that has made it, and whether it may count. */
module_param_cb(perfctr_domains, &perfctr_domains_ops, NULL, 0400);
