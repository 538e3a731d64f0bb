// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The driver's state of the host and of each physical CPU. */

#define pr_fmt(fmt) "perfctr: " fmt

#include <linux/cpuhotplug.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <asm/apic.h>

#include "private.h"

bool __read_mostly perfctr_on;
bool __read_mostly perfctr_counts_entries;
bool __read_mostly perfctr_some_cpus;
u64 __read_mostly perfctr_taken;

struct perfctr_core_driver *perfctr_driver(void)
{
	static u64 driver[PERFCTR_DRIVER_BYTES / sizeof(u64)] __read_mostly;

	return (struct perfctr_core_driver *)driver;
}

DEFINE_PER_CPU(struct perfctr_pcpu, perfctr_pcpu);

/* The statistics of CPUs that have gone down. */
static DEFINE_RAW_SPINLOCK(perfctr_departed_lock);
static struct perfctr_hv_stats perfctr_departed;

static enum cpuhp_state perfctr_cpuhp_state;

/* Modules of Linux 6.6 and later have no apic_read() and apic_write(). */
static u32 read_lvtpc(void)
{
	return apic->read(APIC_LVTPC);
}

static void write_lvtpc(u32 value)
{
	apic->write(APIC_LVTPC, value);
}

void perfctr_unmask_interrupt(void)
{
	write_lvtpc(APIC_DM_NMI);
}

bool perfctr_nmi_is_ours(void)
{
	struct perfctr_pcpu *pcpu = this_cpu_ptr(&perfctr_pcpu);

	return READ_ONCE(pcpu->interrupts) &&
	       perfctr_core_explains_nmi(perfctr_core_of_cpu(pcpu),
					 read_lvtpc() & APIC_LVT_MASKED);
}

bool perfctr_unknown_nmi_is_ours(void)
{
	struct perfctr_pcpu *pcpu = this_cpu_ptr(&perfctr_pcpu);

	return READ_ONCE(pcpu->interrupts) &&
	       perfctr_core_explains_unknown_nmi(perfctr_core_of_cpu(pcpu));
}

void perfctr_close_gate(void)
{
	struct perfctr_pcpu *pcpu = this_cpu_ptr(&perfctr_pcpu);

	if (READ_ONCE(pcpu->interrupts))
		perfctr_core_close_gate(perfctr_core_of_cpu(pcpu));
}

/* Executes on the CPU itself, with interrupts disabled. */
static int come_up(void)
{
	struct perfctr_pcpu *pcpu = this_cpu_ptr(&perfctr_pcpu);
	struct perfctr_cpuid cpuid;
	struct perfctr_why why;

	perfctr_core_read_cpuid(&cpuid);
	if (perfctr_core_cpu_up(perfctr_core_of_cpu(pcpu), &cpuid, &why)) {
		pr_err("CPU %u cannot count: expected %.*s, found %#x\n",
		       smp_processor_id(), why.expected_bytes,
		       (const char *)why.expected, why.found);
		return -ENODEV;
	}
	pcpu->lvtpc = read_lvtpc();
	perfctr_unmask_interrupt();
	WRITE_ONCE(pcpu->interrupts, true);
	return 0;
}

static void go_down(void)
{
	struct perfctr_pcpu *pcpu = this_cpu_ptr(&perfctr_pcpu);

	/* Nothing was changed on a CPU that was refused. */
	if (!pcpu->interrupts)
		return;
	WRITE_ONCE(pcpu->interrupts, false);
	perfctr_core_cpu_down(perfctr_core_of_cpu(pcpu));
	write_lvtpc(pcpu->lvtpc);
}

/*
 * No vCPU executes on a CPU that comes up before this has returned. If the CPU
 * cannot count, the driver stays on.
 */
static int perfctr_cpu_online(unsigned int cpu)
{
	unsigned long flags;

	perfctr_core_cpu_init(
		perfctr_core_of_cpu(per_cpu_ptr(&perfctr_pcpu, cpu)),
		perfctr_driver(), cpu, NULL);
	local_irq_save(flags);
	if (perfctr_taken)
		come_up();
	local_irq_restore(flags);
	return 0;
}

/*
 * Before Linux calls this, the scheduler begins to move each thread that it
 * picks on this CPU to another CPU. It waits for the last thread only
 * afterwards, and a module cannot be called later. So a vCPU may still be
 * switched in here, and it is unlikely that it enters the guest. If it does, it
 * counts nothing until the guest's module loads its events again.
 */
static int perfctr_cpu_offline(unsigned int cpu)
{
	unsigned long flags;

	local_irq_save(flags);
	go_down();
	raw_spin_lock(&perfctr_departed_lock);
	perfctr_core_add_stats(perfctr_this_cpu(), &perfctr_departed);
	raw_spin_unlock(&perfctr_departed_lock);
	local_irq_restore(flags);
	return 0;
}

/*
 * The boot CPU executes this before the machine sleeps, because that CPU does
 * not go offline.
 */
static int perfctr_sleep(PERFCTR_SYSCORE_ARGS)
{
	go_down();
	return 0;
}

static void perfctr_wake(PERFCTR_SYSCORE_ARGS)
{
	if (perfctr_taken)
		come_up();
}

static struct syscore_ops perfctr_syscore_ops = {
	.suspend = perfctr_sleep,
	.resume = perfctr_wake,
};

static struct syscore perfctr_syscore = { .ops = &perfctr_syscore_ops };

int perfctr_start_cpus(void)
{
	int err = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "kvm/perfctr:online",
				    perfctr_cpu_online, perfctr_cpu_offline);

	if (err < 0)
		return err;
	perfctr_cpuhp_state = err;
	register_syscore(&perfctr_syscore);
	return 0;
}

void perfctr_stop_cpus(void)
{
	unregister_syscore(&perfctr_syscore);
	cpuhp_remove_state(perfctr_cpuhp_state);
}

static void take_here(void *failed)
{
	if (come_up())
		WRITE_ONCE(*(bool *)failed, true);
}

static void give_back_here(void *unused)
{
	go_down();
}

int perfctr_take_cpus(void)
{
	static u64 times;
	bool failed = false;

	cpus_read_lock();
	/*
	 * This comes first. Otherwise a VMX guest that is left on a CPU that is
	 * already taken could have perf's value in the register that enables
	 * counters.
	 */
	WRITE_ONCE(perfctr_taken, ++times);
	on_each_cpu(take_here, &failed, 1);
	cpus_read_unlock();
	if (!failed || perfctr_some_cpus)
		return 0;
	perfctr_give_cpus_back();
	return -ENODEV;
}

void perfctr_give_cpus_back(void)
{
	cpus_read_lock();
	WRITE_ONCE(perfctr_taken, 0);
	on_each_cpu(give_back_here, NULL, 1);
	cpus_read_unlock();
}

struct perfctr_sum {
	raw_spinlock_t lock;
	struct perfctr_hv_stats *stats;
};

static void add_stats(void *data)
{
	struct perfctr_sum *sum = data;

	raw_spin_lock(&sum->lock);
	perfctr_core_add_stats(perfctr_this_cpu(), sum->stats);
	raw_spin_unlock(&sum->lock);
}

void perfctr_glue_add_stats(struct perfctr_hv_stats *total)
{
	struct perfctr_sum sum = { .stats = total };

	raw_spin_lock_init(&sum.lock);
	raw_spin_lock_irq(&perfctr_departed_lock);
	*total = perfctr_departed;
	raw_spin_unlock_irq(&perfctr_departed_lock);
	on_each_cpu(add_stats, &sum, 1);
}

/* Prints the numbers in a structure, in their order. */
static int emit(char *text, const void *structure, size_t bytes)
{
	const u64 *number = structure;
	int i, length = 0;

	for (i = 0; i < bytes / sizeof(*number); i++)
		length += sysfs_emit_at(text, length, "%llu\n", number[i]);
	return length;
}

static int get_stats(char *text, const struct kernel_param *unused)
{
	struct perfctr_hv_stats stats;

	if (!perfctr_on)
		return -ENODEV;
	perfctr_glue_add_stats(&stats);
	return emit(text, &stats, sizeof(stats));
}

static int get_query(char *text, const struct kernel_param *unused)
{
	struct perfctr_hv_query query;

	if (!perfctr_on)
		return -ENODEV;
	perfctr_core_query(perfctr_driver(), &query);
	return emit(text, &query, sizeof(query));
}

static const struct kernel_param_ops perfctr_stats_ops = { .get = get_stats };

/* Shows what the driver has done, as OP_STATS does in Xen. */
module_param_cb(perfctr_stats, &perfctr_stats_ops, NULL, 0400);

static const struct kernel_param_ops perfctr_query_ops = { .get = get_query };

/* Shows what the driver has, as OP_QUERY does to guests. */
module_param_cb(perfctr_query, &perfctr_query_ops, NULL, 0400);
