// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Decides which machines may count, and who may change that. */

#include <linux/kobject.h>
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/pid.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/sysfs.h>
#include <asm/apic.h>

#include "lapic.h"

#include "private.h"

bool perfctr_allowed(const struct kvm *kvm)
{
	return perfctr_core_allows(perfctr_driver(),
				   perfctr_core_of_machine(kvm), false);
}

/* The number is random, so that a guest recognises a move to another host. */
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

const struct perfctr_core_domain *perfctr_glue_domain(bool *controls)
{
	*controls = false;
	return perfctr_core_of_machine(kvm_get_running_vcpu()->kvm);
}

/*
 * The guest's local APIC shows whether our module is there. Another kernel may
 * take an unexplained NMI for a hardware fault. If the entry is masked, KVM
 * itself delivers nothing.
 */
void perfctr_notify_module(struct kvm_vcpu *vcpu)
{
	u32 lvtpc;

	if (!lapic_in_kernel(vcpu))
		return;
	lvtpc = kvm_lapic_get_reg(vcpu->arch.apic, APIC_LVTPC) &
		(APIC_MODE_MASK | APIC_VECTOR_MASK);
	if (lvtpc == (APIC_DM_NMI | PERFCTR_KVM_LVTPC_VECTOR))
		perfctr_notify(vcpu);
}

/* A vCPU may go on executing for a long time, so an IPI stops it. */
static void revoke_here(void *data)
{
	struct kvm_vcpu *vcpu = kvm_get_running_vcpu();
	struct perfctr_vcpu *p;

	if (!vcpu || vcpu->kvm != data)
		return;
	p = vcpu->arch.perfctr;
	/*
	 * A vCPU that is not switched in now is stopped when it is switched in.
	 */
	if (p && p->in &&
	    perfctr_core_revoke(perfctr_this_cpu(), perfctr_core_of(p),
				perfctr_core_of_machine(vcpu->kvm), false))
		/* The interrupt makes the guest's module look at its page. */
		perfctr_notify(vcpu);
}

/*
 * Tells a guest to try again, if it was restored before it was allowed, and if
 * our module is there.
 */
static void tell(struct kvm *kvm)
{
	struct kvm_vcpu *vcpu;
	unsigned long i;

	WRITE_ONCE(kvm->arch.perfctr_machine, get_random_u64() | 1);
	kvm_for_each_vcpu(i, vcpu, kvm)
	{
		perfctr_notify_module(vcpu);
		kvm_vcpu_kick(vcpu);
	}
}

static void set_policy(struct kvm *kvm, const struct perfctr_hv_domain *wanted)
{
	perfctr_policy_change change = perfctr_core_set_policy(
		perfctr_driver(), perfctr_core_of_machine(kvm), false, wanted);

	/*
	 * Any load that saw the old policy has finished when this IPI arrives.
	 */
	if (change == PERFCTR_POLICY_CHANGE_REVOKE)
		on_each_cpu(revoke_here, kvm, 1);
	else if (change == PERFCTR_POLICY_CHANGE_TELL)
		tell(kvm);
	/* This makes each vCPU set its intercept of RDPMC anew. */
	kvm_make_all_cpus_request(kvm, KVM_REQ_RECALC_INTERCEPTS);
}

/*
 * A machine is named by the process that made it. To be allowed, the process
 * must still exist, since a later process may have the same number. A machine
 * can always be forbidden, also if its creator was a thread that has ended.
 */
static struct mm_struct *memory_of(u32 pid)
{
	struct pid *number = find_get_pid(pid);
	struct task_struct *task = get_pid_task(number, PIDTYPE_PID);
	struct mm_struct *mm = task ? get_task_mm(task) : NULL;

	if (task)
		put_task_struct(task);
	put_pid(number);
	return mm;
}

int perfctr_glue_set_policy(const struct perfctr_hv_domain *wanted)
{
	struct mm_struct *mm = NULL;
	struct kvm *kvm;
	int err = -ESRCH;

	if (wanted->enabled) {
		mm = memory_of(wanted->domid);
		if (!mm)
			return err;
	}
	mutex_lock(&kvm_lock);
	list_for_each_entry(kvm, &vm_list, vm_list) {
		if (kvm->userspace_pid != wanted->domid ||
		    (mm && kvm->mm != mm))
			continue;
		set_policy(kvm, wanted);
		err = 0;
	}
	mutex_unlock(&kvm_lock);
	if (mm)
		mmput(mm);
	if (!wanted->enabled)
		perfctr_settle_counters();
	return err;
}

static int set(const char *text, bool allowed)
{
	struct perfctr_hv_domain wanted;
	int err = -ENODEV;

	if (perfctr_on)
		err = perfctr_core_parse_policy(text, strlen(text), allowed,
						&wanted);
	return err ?: perfctr_glue_set_policy(&wanted);
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

/*
 * Writing a process' number allows all machines that it has made. Two limits
 * may follow, 0 for none: of counters, and of overflows in a millisecond.
 */
module_param_cb(perfctr_allow, &perfctr_allow_ops, NULL, 0200);
module_param_cb(perfctr_forbid, &perfctr_forbid_ops, NULL, 0200);

void perfctr_glue_list_domains(struct perfctr_hv_domains *answer)
{
	struct kvm *kvm;

	mutex_lock(&kvm_lock);
	list_for_each_entry(kvm, &vm_list, vm_list)
		perfctr_core_add_domain(perfctr_driver(), answer,
					perfctr_core_of_machine(kvm),
					kvm->userspace_pid, false);
	mutex_unlock(&kvm_lock);
}

/* Linux's perf, which samples hosts of KVM, knows their machines. */
int perfctr_glue_clock(u32 domain, u32 vcpu, struct perfctr_clock *clock)
{
	return -EOPNOTSUPP;
}

/*
 * A host has more machines than fit into a page of text. So the file is not
 * text: a read of a structure at an offset returns the machines of processes
 * from that number on.
 */
static ssize_t read_machines(struct file *file, struct kobject *unused,
			     struct bin_attribute *attribute, char *to,
			     loff_t first, size_t length)
{
	struct perfctr_hv_domains *answer = (void *)to;

	if (length < sizeof(*answer) || first > U32_MAX)
		return -EINVAL;
	memset(answer, 0, sizeof(*answer));
	answer->first = first;
	perfctr_glue_list_domains(answer);
	return sizeof(*answer);
}

static const struct bin_attribute perfctr_machines = {
	.attr = { .name = "perfctr_domains", .mode = 0400 },
	.read = read_machines,
};

int perfctr_show_machines(void)
{
	return sysfs_create_bin_file(kernel_kobj, &perfctr_machines);
}

void perfctr_hide_machines(void)
{
	sysfs_remove_bin_file(kernel_kobj, &perfctr_machines);
}
