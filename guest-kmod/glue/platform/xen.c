/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A guest of Xen: hypercalls, interrupts, restoration. */

#include <linux/platform_device.h>
#include <linux/pm.h>
#include <asm/xen/hypercall.h>
#include <xen/events.h>
#include <xen/interface/xen.h>
#include <xen/page.h>
#include <xen/xen-ops.h>
#include <xen/xen.h>

#include "../perfctr.h"

_Static_assert(PERFCTR_HYPERCALL_NUMBER == __HYPERVISOR_arch_5,
	       "the hypercall's number is Xen's arch_5");
_Static_assert(PERFCTR_VIRQ_NUMBER == VIRQ_ARCH_4,
	       "the virtual interrupt's number is Xen's VIRQ_ARCH_4");

static bool exists(void)
{
	return xen_domain();
}

static bool owns_cr4(void)
{
	return !xen_pv_domain();
}

static int hypercall(u32 op, void *argument, u32 length)
{
	return _hypercall3(int, arch_5, op, argument, length);
}

static u64 gfn(const void *page)
{
	return virt_to_gfn(page);
}

static int bind(unsigned int cpu, irq_handler_t handler)
{
	return bind_virq_to_irqhandler(PERFCTR_VIRQ_NUMBER, cpu, handler,
				       IRQF_PERCPU | IRQF_NOBALANCING,
				       "perfctr", &perfctr_cpus[cpu]);
}

static void unbind(unsigned int cpu, int irq)
{
	unbind_from_irqhandler(irq, &perfctr_cpus[cpu]);
}

/* Before any thread of the restored domain goes on. */
static void (*perfctr_restore_function)(const struct cpumask *cpus);

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
static int perfctr_restore(struct notifier_block *unused, unsigned long event,
			   void *data)
{
	perfctr_restore_function(cpu_online_mask);
	return NOTIFY_OK;
}

static struct notifier_block perfctr_restore_notifier = {
	.notifier_call = perfctr_restore,
};

static int on_restore(void (*function)(const struct cpumask *cpus))
{
	perfctr_restore_function = function;
	xen_resume_notifier_register(&perfctr_restore_notifier);
	return 0;
}

static void off_restore(void)
{
	xen_resume_notifier_unregister(&perfctr_restore_notifier);
}
#else
/*
 * Xen's notifier cannot be taken back there.  Xen has its guests' devices freeze
 * when a domain is saved, and restore; a save that was cancelled has them thaw.
 */
static int perfctr_restore(struct device *unused)
{
	perfctr_restore_function(cpu_online_mask);
	return 0;
}

static const struct dev_pm_ops perfctr_pm_ops = {
	.restore_noirq = perfctr_restore,
};

static struct platform_driver perfctr_driver = {
	.driver = {
		.name = "perfctr",
		.pm = &perfctr_pm_ops,
	},
};

static struct platform_device *perfctr_device;

static int on_restore(void (*function)(const struct cpumask *cpus))
{
	int err;

	perfctr_restore_function = function;
	err = platform_driver_register(&perfctr_driver);
	if (err)
		return err;
	perfctr_device = platform_device_register_simple(
		"perfctr", PLATFORM_DEVID_NONE, NULL, 0);
	err = PTR_ERR_OR_ZERO(perfctr_device);
	if (err)
		platform_driver_unregister(&perfctr_driver);
	return err;
}

static void off_restore(void)
{
	platform_device_unregister(perfctr_device);
	platform_driver_unregister(&perfctr_driver);
}
#endif

const struct perfctr_platform perfctr_xen = {
	.name = "Xen",
	.exists = exists,
	.owns_cr4 = owns_cr4,
	.hypercall = hypercall,
	.gfn = gfn,
	.bind = bind,
	.unbind = unbind,
	.on_restore = on_restore,
	.off_restore = off_restore,
};
