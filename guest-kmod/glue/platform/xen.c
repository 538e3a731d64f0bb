/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Guests of Xen: their hypercalls and interrupts, and their restoration. */

#include <linux/cpu.h>
#include <linux/platform_device.h>
#include <linux/pm.h>
#include <asm/xen/hypercall.h>
#include <xen/events.h>
#include <xen/interface/xen.h>

#include "../perfctr.h"

static_assert(PERFCTR_HYPERCALL_NUMBER == __HYPERVISOR_arch_5);
static_assert(PERFCTR_VIRQ_NUMBER == VIRQ_ARCH_4);

static int hypercall(u32 op, void *argument, u32 length)
{
	return _hypercall3(int, arch_5, op, argument, length);
}

/*
 * The number of each CPU's interrupt of overflows, or 0 or an error if the
 * interrupt is not bound.
 */
static DEFINE_PER_CPU(int, perfctr_irq);

/* The handler of every CPU's interrupt, from the first bind() on. */
static irq_handler_t perfctr_handler;

/*
 * A Xen without the driver lets only the first vCPU bind this interrupt, and
 * where it refuses Linux crashes. A domain can be restored on such a Xen.
 */
static int bind(unsigned int cpu, irq_handler_t handler)
{
	int *irq = per_cpu_ptr(&perfctr_irq, cpu);

	if (!perfctr_core_has_driver())
		return -ENOSYS;
	perfctr_handler = handler;
	*irq = bind_virq_to_irqhandler(PERFCTR_VIRQ_NUMBER, cpu, handler,
				       IRQF_PERCPU | IRQF_NOBALANCING,
				       "perfctr", irq);
	return *irq < 0 ? *irq : 0;
}

static void unbind(unsigned int cpu)
{
	int *irq = per_cpu_ptr(&perfctr_irq, cpu);

	if (*irq > 0)
		unbind_from_irqhandler(*irq, irq);
	*irq = 0;
}

/*
 * Linux calls this before the domain is saved, when its threads are frozen.
 * When a domain is restored, Linux binds the interrupts that are still bound
 * anew, and crashes if it cannot.
 */
static int perfctr_freeze(struct device *unused)
{
	unsigned int cpu;

	cpus_read_lock();
	for_each_online_cpu(cpu)
		unbind(cpu);
	cpus_read_unlock();
	return 0;
}

/* Does what the interrupt would have done that could not come. */
static void interrupt_here(void *unused)
{
	perfctr_handler(0, NULL);
}

/* Linux calls this before it thaws the threads, also if the save has failed. */
static int perfctr_thaw(struct device *unused)
{
	unsigned int cpu;

	cpus_read_lock();
	for_each_online_cpu(cpu)
		bind(cpu, perfctr_handler);
	on_each_cpu(interrupt_here, NULL, 1);
	cpus_read_unlock();
	return 0;
}

/*
 * Linux calls this before any thread of the restored domain goes on. Linux
 * freezes the devices of a guest of Xen before the domain is saved, and
 * restores them afterwards. After a save that was cancelled it thaws them. The
 * module is such a device, because from 7.0 on nobody can unregister from Xen's
 * own notifier of restorations.
 */
static int perfctr_restore(struct device *unused)
{
	perfctr_core_restored();
	return 0;
}

static const struct dev_pm_ops perfctr_pm_ops = {
	.freeze = perfctr_freeze,
	.thaw = perfctr_thaw,
	.restore_noirq = perfctr_restore,
	.restore = perfctr_thaw,
};

static struct platform_driver perfctr_driver = {
	.driver = {
		.name = "perfctr",
		.pm = &perfctr_pm_ops,
	},
};

static struct platform_device *perfctr_device;

static int on_restore(void)
{
	perfctr_device =
		platform_create_bundle(&perfctr_driver, NULL, NULL, 0, NULL, 0);
	return PTR_ERR_OR_ZERO(perfctr_device);
}

static void off_restore(void)
{
	platform_device_unregister(perfctr_device);
	platform_driver_unregister(&perfctr_driver);
}

const struct perfctr_platform perfctr_xen = {
	.name = "Xen",
	.hypercall = hypercall,
	.bind = bind,
	.unbind = unbind,
	.on_restore = on_restore,
	.off_restore = off_restore,
};
