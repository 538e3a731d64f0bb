/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* vCPUs: registering their pages, CPU hotplug, suspension, and the kernel's end. */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuhotplug.h>
#include <linux/limits.h>
#include <linux/mm.h>
#include <linux/notifier.h>
#include <linux/reboot.h>
#include <linux/syscore_ops.h>

#include "perfctr.h"

struct perfctr_hv_query perfctr_query;

static enum cpuhp_state perfctr_cpuhp_state;
static bool perfctr_is_loaded;
/* Why the host that the domain was restored on cannot count, or 0. */
static int perfctr_restored_error;

/* On that CPU: threads are told this reason why they do not count there. */
static int perfctr_vcpu_refuse(unsigned int cpu, int err)
{
	unsigned long flags;

	local_irq_save(flags);
	perfctr_core_vcpu_refuse(perfctr_cpus[cpu].core, err);
	local_irq_restore(flags);
	pr_err("CPU %u: nothing can be counted there: error %d\n", cpu, err);
	return err;
}

/* On that CPU. */
static int perfctr_vcpu_register(unsigned int cpu)
{
	unsigned long flags;
	int err = perfctr_restored_error;

	if (!err) {
		local_irq_save(flags);
		err = perfctr_core_vcpu_online(perfctr_cpus[cpu].core);
		local_irq_restore(flags);
	}
	return err ? perfctr_vcpu_refuse(cpu, err) : 0;
}

/* On that CPU. */
static int perfctr_vcpu_unregister(unsigned int cpu)
{
	unsigned long flags;
	int err;

	local_irq_save(flags);
	err = perfctr_core_vcpu_offline(perfctr_cpus[cpu].core);
	local_irq_restore(flags);
	return err;
}

/*
 * A CPU is of use without counters, so it comes online whatever is refused.
 * The module is not: it is not loaded then.
 */
static int perfctr_vcpu_online(unsigned int cpu)
{
	int err = perfctr_platform->bind(cpu, perfctr_overflow);

	err = err ? perfctr_vcpu_refuse(cpu, err) : perfctr_vcpu_register(cpu);
	if (err)
		perfctr_platform->unbind(cpu);
	return perfctr_is_loaded ? 0 : err;
}

static int perfctr_vcpu_offline(unsigned int cpu)
{
	int err = perfctr_vcpu_unregister(cpu);

	if (err) {
		/* The hypervisor may still write there: never reuse it. */
		get_page(virt_to_page(
			perfctr_core_vcpu_page(perfctr_cpus[cpu].core)));
		pr_err("CPU %u: cannot take back its page: error %d\n", cpu,
		       err);
	}
	/* Going offline cannot be refused. */
	return 0;
}

static int perfctr_cpu_down(unsigned int cpu)
{
	perfctr_vcpu_offline(cpu);
	perfctr_platform->unbind(cpu);
	return 0;
}

/*
 * Only the boot CPU is online while a machine sleeps: the others are unplugged.
 * Whoever puts it to sleep may be counting.
 */
static int perfctr_sleep(PERFCTR_SYSCORE_ARGS)
{
	perfctr_suspend_current();
	return perfctr_vcpu_offline(smp_processor_id());
}

static void perfctr_wake(PERFCTR_SYSCORE_ARGS)
{
	perfctr_vcpu_register(smp_processor_id());
	perfctr_events_restored();
	perfctr_resume_current();
}

static struct syscore_ops perfctr_syscore_ops = {
	.suspend = perfctr_sleep,
	.resume = perfctr_wake,
};

static struct syscore perfctr_syscore = {
	.ops = &perfctr_syscore_ops,
};

static void perfctr_vcpu_restore(void *unused)
{
	unsigned int cpu = smp_processor_id();

	perfctr_vcpu_unregister(cpu);
	perfctr_core_vcpu_forget_page(perfctr_cpus[cpu].core);
	perfctr_vcpu_register(cpu);
	perfctr_events_restored();
}

/*
 * No thread that counts executes there, so no sum depends on what the old pages
 * said.  The host may be another one.
 */
static void perfctr_restored(const struct cpumask *cpus)
{
	if (!perfctr_is_loaded)
		return;
	perfctr_restored_error = perfctr_core_handshake_again(&perfctr_query);
	if (perfctr_restored_error)
		pr_err("this host cannot count what the one before did: error %d\n",
		       perfctr_restored_error);
	on_each_cpu_mask(cpus, perfctr_vcpu_restore, NULL, true);
}

static void perfctr_vcpus_take_back(void)
{
	if (!perfctr_is_loaded)
		return;
	unregister_syscore(&perfctr_syscore);
	/* The last interrupt still finds its handler. */
	perfctr_is_loaded = false;
	cpuhp_remove_state(perfctr_cpuhp_state);
	perfctr_platform->off_restore();
}

/*
 * What comes next may be a kernel that this one starts (kexec): the hypervisor
 * would go on writing to what is that one's memory.  Threads that still execute
 * count no more.
 */
static int perfctr_reboot(struct notifier_block *block, unsigned long action,
			  void *data)
{
	perfctr_vcpus_take_back();
	return NOTIFY_DONE;
}

/* After perf's own, which takes its events from the CPUs. */
static struct notifier_block perfctr_reboot_block = {
	.notifier_call = perfctr_reboot,
	.priority = INT_MIN,
};

int perfctr_vcpus_init(void)
{
	int err = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "perfctr:online",
				    perfctr_vcpu_online, perfctr_cpu_down);

	if (err < 0)
		return err;
	perfctr_cpuhp_state = err;
	err = perfctr_platform->on_restore(perfctr_restored);
	if (err) {
		cpuhp_remove_state(perfctr_cpuhp_state);
		return err;
	}
	perfctr_is_loaded = true;
	register_syscore(&perfctr_syscore);
	/* It fails only if it is there already. */
	register_reboot_notifier(&perfctr_reboot_block);
	return 0;
}

void perfctr_vcpus_exit(void)
{
	unregister_reboot_notifier(&perfctr_reboot_block);
	perfctr_vcpus_take_back();
}
