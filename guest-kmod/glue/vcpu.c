/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * vCPUs: their pages, CPU hotplug, the sleep of the machine, and the kernel's
 * end (reboot, kexec).
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuhotplug.h>
#include <linux/limits.h>
#include <linux/notifier.h>
#include <linux/reboot.h>

#include "perfctr.h"

static enum cpuhp_state perfctr_cpuhp_state;
static bool perfctr_is_loaded;

void perfctr_glue_log(const char *what, int err)
{
	pr_err_ratelimited("CPU %u: %s: error %d\n", raw_smp_processor_id(),
			   what, err);
}

void perfctr_glue_keep_page(const struct perfctr_vcpu_page *page)
{
	get_page(virt_to_page(page));
}

/* Executed on each CPU that is called. Interrupts are disabled. */
static void perfctr_called(void *call)
{
	perfctr_core_called(call, perfctr_this_vcpu(),
			    perfctr_core_of_task(current));
}

void perfctr_glue_call_all(const void *call)
{
	on_each_cpu(perfctr_called, (void *)call, true);
}

int perfctr_glue_call_one(u32 cpu, const void *call)
{
	return smp_call_function_single(cpu, perfctr_called, (void *)call,
					true);
}

/*
 * The kernel calls this on the CPU that comes online. A CPU is useful without
 * counters, so it comes online even if the hypervisor refuses its page. But the
 * module is not loaded if the hypervisor refuses the page of a CPU that is
 * already online.
 */
static int perfctr_vcpu_online(unsigned int cpu)
{
	int err = perfctr_platform->bind(cpu, perfctr_overflow);

	local_irq_disable();
	err = perfctr_core_vcpu_online(perfctr_this_vcpu(), err);
	local_irq_enable();
	/* The host may allow the domain to count later. */
	if (perfctr_is_loaded)
		return 0;
	if (err)
		perfctr_platform->unbind(cpu);
	return err;
}

static int perfctr_vcpu_offline(unsigned int cpu)
{
	local_irq_disable();
	perfctr_core_vcpu_offline(perfctr_this_vcpu());
	local_irq_enable();
	perfctr_platform->unbind(cpu);
	return 0;
}

/*
 * Before a machine sleeps, all CPUs but the boot CPU are taken offline. The
 * thread that executes this may have counters that count.
 */
static int perfctr_sleep(PERFCTR_SYSCORE_ARGS)
{
	perfctr_core_vcpu_sleep(perfctr_this_vcpu(),
				perfctr_core_of_task(current));
	return 0;
}

static void perfctr_wake(PERFCTR_SYSCORE_ARGS)
{
	perfctr_core_vcpu_wake(perfctr_this_vcpu(),
			       perfctr_core_of_task(current));
}

static struct syscore_ops perfctr_syscore_ops = {
	.suspend = perfctr_sleep,
	.resume = perfctr_wake,
};

static struct syscore perfctr_syscore = { .ops = &perfctr_syscore_ops };

static void perfctr_vcpus_take_back(void)
{
	if (!perfctr_is_loaded)
		return;
	unregister_syscore(&perfctr_syscore);
	/* An interrupt that is still on its way finds its handler. */
	perfctr_is_loaded = false;
	cpuhp_remove_state(perfctr_cpuhp_state);
	perfctr_platform->off_restore();
}

/*
 * This kernel may start another one (kexec). The pages are unregistered, since
 * otherwise the hypervisor would go on writing to memory that belongs to the
 * other kernel. Threads that still execute count nothing from now on.
 */
static int perfctr_reboot(struct notifier_block *block, unsigned long action,
			  void *data)
{
	perfctr_vcpus_take_back();
	return NOTIFY_DONE;
}

/*
 * This is called after perf's own notifier, which removes perf's events from
 * the CPUs.
 */
static struct notifier_block perfctr_reboot_block = {
	.notifier_call = perfctr_reboot,
	.priority = INT_MIN,
};

int perfctr_vcpus_init(void)
{
	int err = perfctr_platform->on_restore();

	if (err)
		return err;
	err = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "perfctr:online",
				perfctr_vcpu_online, perfctr_vcpu_offline);
	if (err < 0) {
		perfctr_platform->off_restore();
		return err;
	}
	perfctr_cpuhp_state = err;
	perfctr_is_loaded = true;
	register_syscore(&perfctr_syscore);
	/* This fails only if the block is already registered. */
	register_reboot_notifier(&perfctr_reboot_block);
	return 0;
}

void perfctr_vcpus_exit(void)
{
	unregister_reboot_notifier(&perfctr_reboot_block);
	perfctr_vcpus_take_back();
}
