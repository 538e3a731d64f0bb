/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* vCPUs: their pages, CPU hotplug, and suspension of the domain. */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuhotplug.h>
#include <linux/gfp.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/syscore_ops.h>
#include <linux/workqueue.h>
#include <xen/page.h>
#include <xen/xen-ops.h>

#include "perfctr.h"

#define PERFCTR_STOP_DELAY_MS 100

struct perfctr_cpu *perfctr_cpus;
static enum cpuhp_state perfctr_cpuhp_state;

static int perfctr_vcpu_online(unsigned int cpu)
{
	struct perfctr_cpu *vcpu = &perfctr_cpus[cpu];
	unsigned long flags;
	int err;

	local_irq_save(flags);
	err = perfctr_core_vcpu_register(vcpu->core, virt_to_gfn(vcpu->page));
	local_irq_restore(flags);
	if (err)
		pr_err("CPU %u: cannot register its page: error %d\n", cpu,
		       err);
	return err;
}

static int perfctr_cpu_up(unsigned int cpu)
{
	int err = perfctr_overflow_bind(cpu);

	if (err)
		return err;
	err = perfctr_vcpu_online(cpu);
	if (err)
		perfctr_overflow_unbind(cpu);
	return err;
}

static int perfctr_vcpu_offline(unsigned int cpu)
{
	struct perfctr_cpu *vcpu = &perfctr_cpus[cpu];
	unsigned long flags;
	int err;

	local_irq_save(flags);
	perfctr_global_offline(cpu);
	err = perfctr_core_vcpu_unregister(vcpu->core);
	local_irq_restore(flags);
	if (err) {
		/* The hypervisor may still write there: never reuse it. */
		get_page(virt_to_page(vcpu->page));
		pr_err("CPU %u: cannot take back its page: error %d\n", cpu,
		       err);
	}
	/* Going offline cannot be refused. */
	return 0;
}

static int perfctr_cpu_down(unsigned int cpu)
{
	perfctr_vcpu_offline(cpu);
	perfctr_overflow_unbind(cpu);
	return 0;
}

/* Only the boot CPU is online while a machine sleeps: the others are unplugged. */
static int perfctr_suspend(void)
{
	return perfctr_vcpu_offline(smp_processor_id());
}

static void perfctr_resume(void)
{
	perfctr_vcpu_online(smp_processor_id());
}

static struct syscore_ops perfctr_syscore_ops = {
	.suspend = perfctr_suspend,
	.resume = perfctr_resume,
};

static void perfctr_vcpu_restore(void *unused)
{
	unsigned int cpu = smp_processor_id();

	perfctr_global_offline(cpu);
	/* Refused if the domain is a new one, which has no page yet. */
	perfctr_core_vcpu_unregister(perfctr_cpus[cpu].core);
	perfctr_vcpu_online(cpu);
}

/*
 * A domain that is saved keeps all its CPUs.  No thread has been resumed yet,
 * so no sum depends on what the old pages said.
 */
static int perfctr_restored(struct notifier_block *unused, unsigned long event,
			    void *data)
{
	on_each_cpu(perfctr_vcpu_restore, NULL, true);
	return NOTIFY_OK;
}

static struct notifier_block perfctr_restore_notifier = {
	.notifier_call = perfctr_restored,
};

static void perfctr_stop_vcpu(void *unused)
{
	perfctr_core_vcpu_stop_if_idle(perfctr_this_vcpu());
}

static void perfctr_stop_vcpus(struct work_struct *unused)
{
	if (perfctr_core_is_idle())
		on_each_cpu(perfctr_stop_vcpu, NULL, true);
}

static DECLARE_DELAYED_WORK(perfctr_stop_work, perfctr_stop_vcpus);

/*
 * After a while, since programs that stop often start again soon: they find
 * their configuration loaded, and no CPU is interrupted.
 */
void perfctr_stop_if_idle(void)
{
	if (perfctr_core_is_idle())
		schedule_delayed_work(&perfctr_stop_work,
				      msecs_to_jiffies(PERFCTR_STOP_DELAY_MS));
}

static int perfctr_alloc_vcpu(unsigned int cpu)
{
	struct perfctr_cpu *vcpu = &perfctr_cpus[cpu];

	vcpu->page = (void *)get_zeroed_page(GFP_KERNEL);
	vcpu->core = kzalloc(perfctr_core_vcpu_bytes(), GFP_KERNEL);
	if (!vcpu->page || !vcpu->core)
		return -ENOMEM;
	perfctr_core_vcpu_init(vcpu->core, cpu, vcpu->page);
	return 0;
}

static void perfctr_free_vcpus(void)
{
	unsigned int cpu;

	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		free_page((unsigned long)perfctr_cpus[cpu].page);
		kfree(perfctr_cpus[cpu].core);
	}
	kfree(perfctr_cpus);
}

int perfctr_vcpus_init(void)
{
	unsigned int cpu;
	int err = 0;

	perfctr_cpus = kcalloc(nr_cpu_ids, sizeof(*perfctr_cpus), GFP_KERNEL);
	if (!perfctr_cpus)
		return -ENOMEM;
	for (cpu = 0; cpu < nr_cpu_ids && !err; cpu++)
		err = perfctr_alloc_vcpu(cpu);
	if (!err)
		err = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "perfctr:online",
					perfctr_cpu_up, perfctr_cpu_down);
	if (err < 0) {
		perfctr_free_vcpus();
		return err;
	}
	perfctr_cpuhp_state = err;
	register_syscore_ops(&perfctr_syscore_ops);
	xen_resume_notifier_register(&perfctr_restore_notifier);
	return 0;
}

void perfctr_vcpus_exit(void)
{
	cancel_delayed_work_sync(&perfctr_stop_work);
	xen_resume_notifier_unregister(&perfctr_restore_notifier);
	unregister_syscore_ops(&perfctr_syscore_ops);
	cpuhp_remove_state(perfctr_cpuhp_state);
	perfctr_free_vcpus();
}
