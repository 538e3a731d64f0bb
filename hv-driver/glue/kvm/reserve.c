// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Carries out what the core decides about the host's counters (src/reserve.rs):
 * the driver has them while a guest needs them, and otherwise the host.
 *
 * Whoever holds one of these may wait for one with a higher number, and never
 * for one with a lower number:
 * 1. a vCPU's mutex, or the mutex of KVM's module parameters
 * 2. the worker of settle()
 * 3. perfctr_reserve_lock
 * 4. kvm_lock, or the lock of CPU hotplug and those of the watchdog's file, but
 *    never kvm_lock together with these
 * 5. a machine's slots_lock, which others take while they hold kvm_lock
 * 6. the end of all sections of that machine's SRCU
 * So nobody who is in such a section waits for any of the others. A CPU that
 * comes up or goes down takes only perfctr_departed_lock.
 */

#define pr_fmt(fmt) "perfctr: " fmt

#include <linux/fs.h>
#include <linux/kvm_host.h>
#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/ratelimit.h>
#include <linux/workqueue.h>
#include <asm/nmi.h>
#include <asm/perf_event.h>

#include "private.h"

/* Modules have no other way to switch the kernel's watchdog on and off. */
#define PERFCTR_WATCHDOG "/proc/sys/kernel/nmi_watchdog"

/*
 * Protects the reservation. The worker also holds it while it takes the
 * counters or gives them back.
 */
static DEFINE_MUTEX(perfctr_reserve_lock);
static u64 perfctr_reservation[PERFCTR_RESERVATION_BYTES / sizeof(u64)];
static DEFINE_RATELIMIT_STATE(perfctr_busy_log, 60 * HZ, 1);

static struct perfctr_core_reservation *reservation(void)
{
	return (struct perfctr_core_reservation *)perfctr_reservation;
}

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

static void log_busy(void)
{
	if (__ratelimit(&perfctr_busy_log))
		pr_warn("no virtual machine can count: perf on this host has the counters\n");
}

int perfctr_glue_host_step(perfctr_host_step step)
{
	switch (step) {
	case PERFCTR_HOST_STEP_RESERVE:
		return reserve();
	case PERFCTR_HOST_STEP_RELEASE:
		release_all();
		break;
	case PERFCTR_HOST_STEP_WATCHDOG_IS_ON:
		return watchdog_is_on();
	case PERFCTR_HOST_STEP_WATCHDOG_ON:
		switch_watchdog("1");
		break;
	case PERFCTR_HOST_STEP_WATCHDOG_OFF:
		switch_watchdog("0");
		break;
	case PERFCTR_HOST_STEP_TAKE_CPUS:
		return perfctr_take_cpus();
	case PERFCTR_HOST_STEP_GIVE_CPUS_BACK:
		perfctr_give_cpus_back();
		break;
	case PERFCTR_HOST_STEP_LOG_PERF_HAS_COUNTERS:
		log_busy();
		break;
	case PERFCTR_HOST_STEP_LOG_GUESTS_COUNT:
		pr_info_once(
			"virtual machines count, so perf gets EBUSY: see perfctr domains\n");
		break;
	case PERFCTR_HOST_STEP_LOG_WATCHDOG_STOPPED:
		pr_warn("the hard-lockup watchdog is stopped while virtual machines count\n");
		break;
	case PERFCTR_HOST_STEP_LOG_WATCHDOG_RUNS:
		pr_info("the hard-lockup watchdog runs again\n");
		break;
	case PERFCTR_HOST_STEP_LOG_WATCHDOG_LOST:
		pr_err("the hard-lockup watchdog does not run again\n");
		break;
	}
	return 0;
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

/* A worker executes this. It may open the watchdog's file for any caller. */
static void settle(struct work_struct *unused)
{
	mutex_lock(&perfctr_reserve_lock);
	perfctr_core_settle(reservation(), is_needed(), ktime_get_ns());
	mutex_unlock(&perfctr_reserve_lock);
}

/*
 * Two works do the same, because delaying a shared one would also delay a
 * caller who waits for it. No CPU is taken while the machine goes to sleep, so
 * the works use a workqueue that is frozen during that time.
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

/*
 * Notes that the vCPU needs the counters. If the driver has them, it keeps them
 * as long as the vCPU needs them. Returns 0 if the driver has them, or an
 * error. may_try says whether the driver could take them now.
 */
static int join(struct kvm_vcpu *vcpu, bool *may_try)
{
	int err;

	mutex_lock(&perfctr_reserve_lock);
	perfctr_core_demand_begins(perfctr_demand_of(vcpu),
				   perfctr_core_of_machine(vcpu->kvm),
				   perfctr_taken);
	err = perfctr_core_reservation_state(reservation());
	*may_try = perfctr_core_may_try(reservation(), ktime_get_ns());
	mutex_unlock(&perfctr_reserve_lock);
	return err;
}

/*
 * The worker may wait for kvm_lock, and that lock's holder for slots_lock,
 * under which KVM waits until every vCPU has left its SRCU section. So this
 * vCPU leaves its section.
 */
int perfctr_get_counters(struct kvm_vcpu *vcpu)
{
	bool may_try;
	int err;

	kvm_vcpu_srcu_read_unlock(vcpu);
	err = join(vcpu, &may_try);
	if (may_try) {
		perfctr_settle_counters();
		err = join(vcpu, &may_try);
	}
	kvm_vcpu_srcu_read_lock(vcpu);
	if (err)
		perfctr_put_counters(vcpu);
	return err;
}

/*
 * Ends the vCPU's demand. The counters are not given back at once, because
 * another vCPU, or this one with another page, may soon need them.
 */
void perfctr_put_counters(struct kvm_vcpu *vcpu)
{
	if (perfctr_core_demand_ends(perfctr_demand_of(vcpu),
				     perfctr_core_of_machine(vcpu->kvm)))
		mod_delayed_work(system_freezable_wq, &perfctr_settle_later,
				 HZ);
}
