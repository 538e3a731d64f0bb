// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Has the counters while a guest counts, and leaves them to the host's perf
 * otherwise. Both reserve them in the same allocator, so that one of them has
 * all counters: perf from the first event that is opened to the last that is
 * closed.
 *
 * Whoever holds one of these may wait for a later one, and never for an earlier
 * one:
 * 1. a vCPU's mutex, or the mutex of KVM's module parameters
 * 2. the worker of settle()
 * 3. perfctr_reserve_lock
 * 4. kvm_lock, or the lock of CPU hotplug and those of the watchdog's file, but
 *    never kvm_lock together with these
 * 5. a machine's slots_lock, which others take while they hold kvm_lock
 * 6. the end of all sections of that machine's SRCU
 * So nobody who is in such a section waits for any of the others. A CPU that
 * comes up or goes down takes perfctr_departed_lock only.
 */

#define pr_fmt(fmt) "perfctr: " fmt

#include <linux/fs.h>
#include <linux/kvm_host.h>
#include <linux/mutex.h>
#include <linux/ratelimit.h>
#include <linux/workqueue.h>
#include <asm/nmi.h>
#include <asm/perf_event.h>

#include "private.h"

/* The kernel has no other way for modules to switch its watchdog. */
#define PERFCTR_WATCHDOG "/proc/sys/kernel/nmi_watchdog"

/* Covers what is here, and who has the counters. */
static DEFINE_MUTEX(perfctr_reserve_lock);
/* The hard-lockup watchdog was stopped, and is to be started again. */
static bool perfctr_stopped_watchdog;
/* Why a vCPU that needs the counters does not get them now. */
static int perfctr_refusal = -EPERM;
/* What the last try to take them returned, and when the next one may be. */
static int perfctr_last_error;
static unsigned long perfctr_next_try;
static DEFINE_RATELIMIT_STATE(perfctr_busy_log, 60 * HZ, 1);

/* Finds this CPU's general counters. */
static void general(unsigned int *counter, unsigned int *select,
		    unsigned int *step, unsigned int *number)
{
	if (boot_cpu_data.x86_vendor == X86_VENDOR_INTEL) {
		*counter = MSR_ARCH_PERFMON_PERFCTR0;
		*select = MSR_ARCH_PERFMON_EVENTSEL0;
		*step = 1;
		*number = cpuid_eax(0xa) >> 8 & 0xff;
	} else if (boot_cpu_has(X86_FEATURE_PERFCTR_CORE)) {
		*counter = MSR_F15H_PERF_CTR;
		*select = MSR_F15H_PERF_CTL;
		*step = 2;
		*number = AMD64_NUM_COUNTERS_CORE;
	} else {
		*counter = MSR_K7_PERFCTR0;
		*select = MSR_K7_EVNTSEL0;
		*step = 1;
		*number = AMD64_NUM_COUNTERS;
	}
}

static void release(unsigned int number)
{
	unsigned int counter, select, step, all;

	general(&counter, &select, &step, &all);
	while (number--) {
		release_evntsel_nmi(select + step * number);
		release_perfctr_nmi(counter + step * number);
	}
}

/* Reserves all counters, so that either the driver or perf has them. */
static bool reserve(void)
{
	unsigned int counter, select, step, number, i;

	general(&counter, &select, &step, &number);
	for (i = 0; i < number; i++) {
		if (!reserve_perfctr_nmi(counter + step * i))
			break;
		if (!reserve_evntsel_nmi(select + step * i)) {
			release_perfctr_nmi(counter + step * i);
			break;
		}
	}
	if (i == number)
		return true;
	release(i);
	return false;
}

static void release_all(void)
{
	unsigned int counter, select, step, number;

	general(&counter, &select, &step, &number);
	release(number);
}

static bool watchdog_is_on(void)
{
	struct file *file = filp_open(PERFCTR_WATCHDOG, O_RDONLY, 0);
	char text = '0';
	loff_t at = 0;

	if (IS_ERR(file))
		return false;
	kernel_read(file, &text, 1, &at);
	filp_close(file, NULL);
	return text == '1';
}

static void switch_watchdog(const char *text)
{
	struct file *file = filp_open(PERFCTR_WATCHDOG, O_WRONLY, 0);
	loff_t at = 0;

	if (IS_ERR(file))
		return;
	kernel_write(file, text, 1, &at);
	filp_close(file, NULL);
}

/*
 * Starts the watchdog if it was stopped, or if somebody has switched it on while
 * there was no counter for it. Returns whether it runs now that did not before.
 */
static bool restart_watchdog(void)
{
	bool stopped = perfctr_stopped_watchdog;

	perfctr_stopped_watchdog = false;
	if (watchdog_is_on())
		switch_watchdog("0");
	else if (!stopped)
		return false;
	switch_watchdog("1");
	if (!reserve())
		return true;
	release_all();
	if (stopped)
		pr_err("the hard-lockup watchdog does not run again\n");
	return false;
}

/* The watchdog is an event of perf's, so it has the counters, too. */
static bool reserve_without_watchdog(void)
{
	if (reserve())
		return true;
	if (!watchdog_is_on())
		return false;
	switch_watchdog("0");
	perfctr_stopped_watchdog = true;
	if (reserve())
		return true;
	restart_watchdog();
	return false;
}

static int try_to_take(void)
{
	int err;

	if (!reserve_without_watchdog()) {
		if (__ratelimit(&perfctr_busy_log))
			pr_warn("no virtual machine can count: perf on this host has the counters\n");
		return -EBUSY;
	}
	err = perfctr_take_cpus();
	if (err) {
		release_all();
		restart_watchdog();
		return err;
	}
	if (perfctr_stopped_watchdog)
		pr_warn("the hard-lockup watchdog is stopped while virtual machines count\n");
	pr_info_once(
		"virtual machines count, so perf gets EBUSY: see perfctr domains\n");
	return 0;
}

/*
 * A guest may ask as often as it likes. Each try stops the watchdog, and may
 * interrupt every CPU, so a second passes between one that fails and the next.
 */
static int take(void)
{
	if (perfctr_last_error && time_before(jiffies, perfctr_next_try))
		return perfctr_last_error;
	perfctr_last_error = try_to_take();
	perfctr_next_try = jiffies + HZ;
	return perfctr_last_error;
}

static void give_back(void)
{
	perfctr_give_cpus_back();
	release_all();
	if (restart_watchdog())
		pr_info("the hard-lockup watchdog runs again\n");
}

static bool is_needed(void)
{
	struct kvm *kvm;
	bool needed = false;

	mutex_lock(&kvm_lock);
	list_for_each_entry(kvm, &vm_list, vm_list)
		needed |= perfctr_core_needs_counters(
			perfctr_driver(), perfctr_core_of_machine(kvm));
	mutex_unlock(&kvm_lock);
	return needed;
}

/* In a worker, which may open the watchdog's file whoever is to count. */
static void settle(struct work_struct *unused)
{
	bool needed;

	mutex_lock(&perfctr_reserve_lock);
	needed = is_needed();
	if (!needed)
		perfctr_refusal = -EPERM;
	else if (!perfctr_taken)
		perfctr_refusal = take();
	if (!needed && perfctr_taken)
		give_back();
	mutex_unlock(&perfctr_reserve_lock);
}

/*
 * Both do the same. Were it one work, whoever puts it off would take it from
 * somebody who waits for it. No CPU is taken while the machine goes to sleep, so
 * the workqueue is one that is frozen then.
 */
static DECLARE_WORK(perfctr_settle_now, settle);
static DECLARE_DELAYED_WORK(perfctr_settle_later, settle);

void perfctr_settle_counters(void)
{
	queue_work(system_freezable_wq, &perfctr_settle_now);
	flush_work(&perfctr_settle_now);
}

void perfctr_stop_counters(void)
{
	cancel_delayed_work_sync(&perfctr_settle_later);
	perfctr_settle_counters();
}

/* The counters do not go while the vCPU needs them. */
static int join(struct kvm *kvm, struct perfctr_vcpu *p)
{
	int err;

	mutex_lock(&perfctr_reserve_lock);
	if (!p->needs)
		perfctr_core_demand_begins(perfctr_core_of_machine(kvm));
	p->needs = true;
	p->taken = perfctr_taken;
	err = perfctr_taken ? 0 : perfctr_refusal;
	mutex_unlock(&perfctr_reserve_lock);
	return err;
}

/*
 * The worker may wait for kvm_lock, and its holder for slots_lock, under which
 * KVM waits until every vCPU has left its SRCU section. So this one leaves it.
 */
int perfctr_get_counters(struct kvm_vcpu *vcpu, struct perfctr_vcpu *p)
{
	int err;

	kvm_vcpu_srcu_read_unlock(vcpu);
	err = join(vcpu->kvm, p);
	if (err) {
		perfctr_settle_counters();
		err = join(vcpu->kvm, p);
	}
	kvm_vcpu_srcu_read_lock(vcpu);
	if (err)
		perfctr_put_counters(vcpu->kvm, p);
	return err;
}

/* Another vCPU, or this one with another page, may need them in a moment. */
void perfctr_put_counters(struct kvm *kvm, struct perfctr_vcpu *p)
{
	if (!p->needs)
		return;
	p->needs = false;
	p->taken = 0;
	if (perfctr_core_demand_ends(perfctr_core_of_machine(kvm)))
		mod_delayed_work(system_freezable_wq, &perfctr_settle_later,
				 HZ);
}

int perfctr_try_counters(void)
{
	int err;

	if (!reserve())
		return 0;
	err = perfctr_take_cpus();
	if (!err)
		perfctr_give_cpus_back();
	release_all();
	return err;
}
