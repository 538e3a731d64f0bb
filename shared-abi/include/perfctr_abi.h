/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What hypervisor, guest kernel and library agree on.  Generated from the
 * crate shared-abi; the documentation of every field and number is there.
 */
#ifndef PERFCTR_ABI_H
#define PERFCTR_ABI_H

#ifdef __XEN__
#include <xen/types.h>
typedef uint32_t __u32;
typedef uint64_t __u64;
typedef int32_t __s32;
#else
#include <linux/types.h>
#endif

#define PERFCTR_OFFSET(type, field) __builtin_offsetof(type, field)

#ifdef __cplusplus
#define PERFCTR_ASSERT(condition) static_assert(condition, #condition)
#else
#define PERFCTR_ASSERT(condition) _Static_assert(condition, #condition)
#endif

#define PERFCTR_ABI_MAJOR 0x2
#define PERFCTR_ABI_MINOR 0xd
#define PERFCTR_ABI_WORD 0xd0002
#define PERFCTR_VCPU_PAGE_MAGIC 0x63566350
#define PERFCTR_THREAD_PAGE_MAGIC 0x68546350
#define PERFCTR_MAX_COUNTERS 0x12
#define PERFCTR_MAX_GENERAL 0x10
#define PERFCTR_MAX_FIXED 0x8
#define PERFCTR_MAX_SLOTS 0x18
#define PERFCTR_MAX_VCPUS 0x200
#define PERFCTR_READ_ATTEMPTS_MAX 0x64
#define PERFCTR_PERIOD_EVENTS_MAX 0x7fffffff
#define PERFCTR_RING_PAGES_MAX 0x40
#define PERFCTR_RING_CALLERS_MAX 0x7c
#define PERFCTR_VCPU_REGISTERED 0x1
#define PERFCTR_VCPU_DIRECT 0x2
#define PERFCTR_VCPU_TSC 0x4
#define PERFCTR_VCPU_EXECUTING 0x8
#define PERFCTR_THREAD_ACTIVE 0x1
#define PERFCTR_THREAD_DIRECT 0x2
#define PERFCTR_THREAD_TSC 0x4
#define PERFCTR_THREAD_FAILED 0x8
#define PERFCTR_THREAD_PAUSED 0x10
#define PERFCTR_VENDOR_INTEL 0x1
#define PERFCTR_VENDOR_AMD 0x2
#define PERFCTR_CAPS_GLOBAL_INTEL 0x1
#define PERFCTR_CAPS_GLOBAL_AMD 0x2
#define PERFCTR_CAPS_SAMPLING 0x4
#define PERFCTR_CAPS_FULL_WIDTH 0x8
#define PERFCTR_CAPS_GUEST_ONLY 0x10
#define PERFCTR_CAPS_EVENT_12BIT 0x20
#define PERFCTR_CAPS_ALL_EVENTS 0x40
#define PERFCTR_CAPS_SIBLING_ERRATUM 0x80
#define PERFCTR_CAPS_SHARED_MASKS 0x100
#define PERFCTR_MODE_COUNTING 0x0
#define PERFCTR_MODE_SAMPLING 0x1
#define PERFCTR_MODE_PRECISE 0x2
#define PERFCTR_EVNTSEL_USR 0x10000
#define PERFCTR_EVNTSEL_OS 0x20000
#define PERFCTR_EVNTSEL_EDGE 0x40000
#define PERFCTR_EVNTSEL_EN 0x400000
#define PERFCTR_HYPERCALL_NUMBER 0x35
#define PERFCTR_KVM_HYPERCALL_NUMBER 0x50435452
#define PERFCTR_KVM_LVTPC_VECTOR 0x50
#define PERFCTR_OP_QUERY 0x0
#define PERFCTR_OP_REGISTER 0x1
#define PERFCTR_OP_UNREGISTER 0x2
#define PERFCTR_OP_LOAD 0x3
#define PERFCTR_OP_STOP 0x4
#define PERFCTR_OP_DOMAIN 0x5
#define PERFCTR_OP_STATS 0x6
#define PERFCTR_OP_PLACE 0x7
#define PERFCTR_OP_GO_ON 0x8
#define PERFCTR_OP_PROFILE_START 0x9
#define PERFCTR_OP_PROFILE_READ 0xa
#define PERFCTR_OP_PROFILE_STOP 0xb
#define PERFCTR_PROFILE_LEASE_MS 0x7d0
#define PERFCTR_PROFILE_PERIOD_MIN 0x2710
#define PERFCTR_PROFILE_AT_GUESTS 0x1
#define PERFCTR_SAMPLES_MAX 0x17
#define PERFCTR_SAMPLE_HYPERVISOR 0x3
#define PERFCTR_SAMPLE_FOR_KERNEL 0x4
#define PERFCTR_SAMPLE_FOR_USER 0x5
#define PERFCTR_OP_ACCOUNTS_START 0xc
#define PERFCTR_OP_ACCOUNTS_READ 0xd
#define PERFCTR_OP_ACCOUNTS_STOP 0xe
#define PERFCTR_OP_RECORD 0xf
#define PERFCTR_OP_BRANCHES 0x10
#define PERFCTR_OP_DOMAINS 0x11
#define PERFCTR_OP_SHOW 0x12
#define PERFCTR_DOMAINS_MAX 0x2f
#define PERFCTR_OP_CLOCK 0x13
#define PERFCTR_ACCOUNTS_LEASE_MS 0x2710
#define PERFCTR_ACCOUNTS_MAX 0x17
#define PERFCTR_ACCOUNT_UNDIVIDED 0x1
#define PERFCTR_PLACE_NONE 0x0
#define PERFCTR_PLACE_USER 0x1
#define PERFCTR_PLACE_KERNEL 0x2
#define PERFCTR_PLACE_PRECISE 0x100
#define PERFCTR_FEATURE_ENABLED 0x1
#define PERFCTR_FEATURE_COST 0x2
#define PERFCTR_FEATURE_BRANCHES 0x4
#define PERFCTR_FEATURE_PRECISE 0x8
#define PERFCTR_FEATURE_USER_BRANCHES 0x10
#define PERFCTR_FEATURE_INTERRUPTS 0x20
#define PERFCTR_BRANCHES_USER 0x1
#define PERFCTR_BRANCHES_KERNEL 0x2
#define PERFCTR_BRANCHES_CONDITIONAL 0x4
#define PERFCTR_BRANCHES_RELATIVE_CALLS 0x8
#define PERFCTR_BRANCHES_INDIRECT_CALLS 0x10
#define PERFCTR_BRANCHES_RETURNS 0x20
#define PERFCTR_BRANCHES_INDIRECT_JUMPS 0x40
#define PERFCTR_BRANCHES_RELATIVE_JUMPS 0x80
#define PERFCTR_BRANCHES_MAX 0x10
#define PERFCTR_BRANCH_MISPREDICTED 0x1
#define PERFCTR_HOOK_SWITCH_FROM 0x0
#define PERFCTR_HOOK_SWITCH_TO 0x1
#define PERFCTR_HOOK_TOGGLE 0x2
#define PERFCTR_HOOK_LOAD 0x3
#define PERFCTR_HOOK_INTERRUPT 0x4
#define PERFCTR_HOOKS 0x5
#define PERFCTR_VIRQ_NUMBER 0x14
#define PERFCTR_IOC_INFO 0x8060d040
#define PERFCTR_IOC_CREATE 0x4020d041
#define PERFCTR_IOC_OPEN 0x4020d042
#define PERFCTR_IOC_CONTROL 0x4260d043
#define PERFCTR_IOC_READ 0x8098d044
#define PERFCTR_IOC_READ_CONTROL 0x8260d045
#define PERFCTR_IOC_UNLINK 0xd046
#define PERFCTR_IOC_RESUME 0xd047
#define PERFCTR_IOC_RING 0x4020d048
#define PERFCTR_IOC_RING_TAKE 0x4008d049
#define PERFCTR_IOC_INTERRUPTS 0x8008d04a
#define PERFCTR_SIGNAL_CODE 0x50
#define PERFCTR_CONTROL_TSC 0x1
#define PERFCTR_CONTROL_CLOEXEC 0x2
#define PERFCTR_CONTROL_KEEP_TSC 0x4
#define PERFCTR_CONTROL_KEEP_PERIOD 0x8
#define PERFCTR_CONTROL_RING 0x10
#define PERFCTR_IOC_CPU_CONTROL 0x4300d050
#define PERFCTR_IOC_CPU_START 0xd051
#define PERFCTR_IOC_CPU_STOP 0xd052
#define PERFCTR_IOC_CPU_READ 0xc300d053
#define PERFCTR_FEATURE_KEEP_PERIOD 0x1
#define PERFCTR_FEATURE_RING 0x2
#define PERFCTR_MODULE_FEATURES 0x3
#define PERFCTR_RING_FIRST_PAGE 0x100000

struct perfctr_vcpu_slot {
	__u64 sum;
	__u64 start;
	__u64 mask;
	__u64 evntsel;
};
PERFCTR_ASSERT(sizeof(struct perfctr_vcpu_slot) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_slot, sum) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_slot, start) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_slot, mask) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_slot, evntsel) == 24);

struct perfctr_vcpu_page {
	__u32 magic;
	__u32 abi;
	__u32 size_bytes;
	__u32 flags;
	__u64 seq;
	__u32 vcpu_id;
	__u32 loaded;
	__u64 tsc_sum;
	__u64 tsc_start;
	__u64 generation;
	__u64 switches;
	__u64 migrations;
	__u64 overflows;
	__u64 throttled;
	__u64 reserved_head[5];
	struct perfctr_vcpu_slot slots[24];
	__u64 reserved_tail[400];
};
PERFCTR_ASSERT(sizeof(struct perfctr_vcpu_page) == 4096);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, magic) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, abi) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, size_bytes) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, flags) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, seq) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, vcpu_id) == 24);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, loaded) == 28);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, tsc_sum) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, tsc_start) == 40);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, generation) == 48);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, switches) == 56);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, migrations) == 64);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, overflows) == 72);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, throttled) == 80);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, reserved_head) == 88);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, slots) == 128);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_vcpu_page, reserved_tail) == 896);

struct perfctr_thread_slot {
	__u64 sum;
	__u64 start;
	__u32 slot;
	__u32 rdpmc;
	__u64 reserved;
};
PERFCTR_ASSERT(sizeof(struct perfctr_thread_slot) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_slot, sum) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_slot, start) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_slot, slot) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_slot, rdpmc) == 20);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_slot, reserved) == 24);

struct perfctr_thread_page {
	__u32 magic;
	__u32 abi;
	__u32 size_bytes;
	__u32 state;
	__u64 seq;
	__u32 vcpu;
	__u32 counters;
	__u64 tsc_sum;
	__u64 tsc_start;
	__u32 tid;
	__s32 error;
	__u64 switches;
	__u64 migrations;
	__u64 ring_written;
	__u64 ring_lost;
	__u64 interrupts;
	__u64 reserved_head[4];
	struct perfctr_thread_slot slots[18];
	__u64 reserved_tail[424];
};
PERFCTR_ASSERT(sizeof(struct perfctr_thread_page) == 4096);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, magic) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, abi) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, size_bytes) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, state) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, seq) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, vcpu) == 24);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, counters) == 28);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, tsc_sum) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, tsc_start) == 40);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, tid) == 48);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, error) == 52);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, switches) == 56);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, migrations) == 64);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, ring_written) == 72);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, ring_lost) == 80);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, interrupts) == 88);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, reserved_head) == 96);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, slots) == 128);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_thread_page, reserved_tail) == 704);

struct perfctr_caps {
	__u32 vendor;
	__u32 version;
	__u32 features;
	__u32 general;
	__u32 fixed;
	__u32 general_width;
	__u32 fixed_width;
	__u32 reserved;
};
PERFCTR_ASSERT(sizeof(struct perfctr_caps) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_caps, vendor) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_caps, version) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_caps, features) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_caps, general) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_caps, fixed) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_caps, general_width) == 20);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_caps, fixed_width) == 24);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_caps, reserved) == 28);

struct perfctr_counter_config {
	__u32 slot;
	__u32 mode;
	__u64 evntsel;
	__u64 period;
	__u64 reserved;
};
PERFCTR_ASSERT(sizeof(struct perfctr_counter_config) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_counter_config, slot) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_counter_config, mode) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_counter_config, evntsel) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_counter_config, period) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_counter_config, reserved) == 24);

struct perfctr_hv_query {
	__u32 abi_major;
	__u32 abi_minor;
	__u32 features;
	__u32 reserved;
	struct perfctr_caps caps;
	__u64 machine;
	__u64 reserved_tail;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_query) == 64);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_query, abi_major) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_query, abi_minor) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_query, features) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_query, reserved) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_query, caps) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_query, machine) == 48);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_query, reserved_tail) == 56);

struct perfctr_hv_register {
	__u64 gfn;
	__u32 observer;
	__u32 reserved;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_register) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_register, gfn) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_register, observer) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_register, reserved) == 12);

struct perfctr_hv_load {
	__u32 counters;
	__u32 reserved;
	struct perfctr_counter_config counter[24];
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_load) == 776);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_load, counters) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_load, reserved) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_load, counter) == 8);

struct perfctr_hv_show {
	struct perfctr_hv_register page;
	struct perfctr_hv_load load;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_show) == 792);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_show, page) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_show, load) == 16);

struct perfctr_hv_domain {
	__u32 domid;
	__u32 enabled;
	__u32 counters_max;
	__u32 overflows_per_ms;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_domain) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_domain, domid) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_domain, enabled) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_domain, counters_max) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_domain, overflows_per_ms) == 12);

struct perfctr_hv_domains {
	__u32 first;
	__u32 count;
	struct perfctr_hv_domain domain[47];
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_domains) == 760);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_domains, first) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_domains, count) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_domains, domain) == 8);

struct perfctr_hv_hook_stats {
	__u64 calls;
	__u64 instructions;
	__u64 pmc_reads;
	__u64 msr_reads;
	__u64 msr_writes;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_hook_stats) == 40);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_hook_stats, calls) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_hook_stats, instructions) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_hook_stats, pmc_reads) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_hook_stats, msr_reads) == 24);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_hook_stats, msr_writes) == 32);

struct perfctr_hv_stats {
	struct perfctr_hv_hook_stats hook[5];
	__u64 hypercalls;
	__u64 residue_clears;
	__u64 reserved[5];
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_stats) == 256);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_stats, hook) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_stats, hypercalls) == 200);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_stats, residue_clears) == 208);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_stats, reserved) == 216);

struct perfctr_hv_place {
	__u32 slot;
	__u32 mode;
	__u64 ip;
	__u64 sp;
	__u64 flags;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_place) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_place, slot) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_place, mode) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_place, ip) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_place, sp) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_place, flags) == 24);

struct perfctr_hv_profile {
	__u64 evntsel;
	__u64 period;
	__u64 cpus;
	__u64 flags;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_profile) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_profile, evntsel) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_profile, period) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_profile, cpus) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_profile, flags) == 24);

struct perfctr_hv_clock {
	__u32 domain;
	__u32 vcpu;
	__u64 offset;
	__u64 scale;
	__u32 fraction_bits;
	__u32 reserved;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_clock) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_clock, domain) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_clock, vcpu) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_clock, offset) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_clock, scale) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_clock, fraction_bits) == 24);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_clock, reserved) == 28);

struct perfctr_hv_sample {
	__u64 tsc;
	__u64 ip;
	__u32 domain;
	__u32 vcpu;
	__u32 mode;
	__u32 cpu;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_sample) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_sample, tsc) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_sample, ip) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_sample, domain) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_sample, vcpu) == 20);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_sample, mode) == 24);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_sample, cpu) == 28);

struct perfctr_hv_samples {
	__u32 cpu;
	__u32 count;
	__u64 lost;
	struct perfctr_hv_sample sample[23];
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_samples) == 752);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_samples, cpu) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_samples, count) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_samples, lost) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_samples, sample) == 16);

struct perfctr_hv_accounting {
	__u64 evntsel;
	__u64 reserved;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_accounting) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_accounting, evntsel) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_accounting, reserved) == 8);

struct perfctr_hv_account {
	__u32 domain;
	__u32 vcpu;
	__u32 flags;
	__u32 reserved;
	__u64 executed;
	__u64 hypervisor;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_account) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_account, domain) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_account, vcpu) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_account, flags) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_account, reserved) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_account, executed) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_account, hypervisor) == 24);

struct perfctr_hv_accounts {
	__u32 domain;
	__u32 vcpu;
	__u32 count;
	__u32 reserved;
	struct perfctr_hv_account account[23];
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_accounts) == 752);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_accounts, domain) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_accounts, vcpu) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_accounts, count) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_accounts, reserved) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_accounts, account) == 16);

struct perfctr_hv_record {
	__u32 filter;
	__u32 reserved;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_record) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_record, filter) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_record, reserved) == 4);

struct perfctr_hv_branch {
	__u64 from;
	__u64 to;
	__u64 flags;
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_branch) == 24);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_branch, from) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_branch, to) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_branch, flags) == 16);

struct perfctr_hv_branches {
	__u32 slot;
	__u32 count;
	struct perfctr_hv_branch branch[16];
};
PERFCTR_ASSERT(sizeof(struct perfctr_hv_branches) == 392);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_branches, slot) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_branches, count) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_hv_branches, branch) == 8);

struct perfctr_info_arg {
	__u32 abi_major;
	__u32 abi_minor;
	__u32 features;
	__u32 reserved;
	struct perfctr_caps caps;
	__u32 vcpus;
	__u32 cpu_signature;
	__u32 tsc_khz;
	__u32 reserved_tail[9];
};
PERFCTR_ASSERT(sizeof(struct perfctr_info_arg) == 96);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, abi_major) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, abi_minor) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, features) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, reserved) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, caps) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, vcpus) == 48);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, cpu_signature) == 52);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, tsc_khz) == 56);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_info_arg, reserved_tail) == 60);

struct perfctr_create {
	__u32 abi_major;
	__u32 abi_minor;
	__u32 tid;
	__u32 features;
	__u64 reserved[2];
};
PERFCTR_ASSERT(sizeof(struct perfctr_create) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_create, abi_major) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_create, abi_minor) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_create, tid) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_create, features) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_create, reserved) == 16);

struct perfctr_control_arg {
	__u32 flags;
	__u32 counters;
	__u32 preserve;
	__u32 signal;
	struct perfctr_counter_config counter[18];
	__u64 reserved[2];
};
PERFCTR_ASSERT(sizeof(struct perfctr_control_arg) == 608);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_control_arg, flags) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_control_arg, counters) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_control_arg, preserve) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_control_arg, signal) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_control_arg, counter) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_control_arg, reserved) == 592);

struct perfctr_sums {
	__u64 tsc;
	__u64 counter[18];
};
PERFCTR_ASSERT(sizeof(struct perfctr_sums) == 152);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_sums, tsc) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_sums, counter) == 8);

struct perfctr_cpu_state_arg {
	__u32 cpu;
	__u32 reserved;
	struct perfctr_control_arg control;
	struct perfctr_sums sums;
};
PERFCTR_ASSERT(sizeof(struct perfctr_cpu_state_arg) == 768);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_cpu_state_arg, cpu) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_cpu_state_arg, reserved) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_cpu_state_arg, control) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_cpu_state_arg, sums) == 616);

struct perfctr_ring_request {
	__u32 pages;
	__u32 callers;
	__u32 watermark;
	__u32 reserved;
	__u64 reserved_tail[2];
};
PERFCTR_ASSERT(sizeof(struct perfctr_ring_request) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_request, pages) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_request, callers) == 4);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_request, watermark) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_request, reserved) == 12);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_request, reserved_tail) == 16);

struct perfctr_ring_record {
	__u64 ip;
	__u64 count;
	__u64 tsc;
	__u32 counter;
	__u32 callers;
};
PERFCTR_ASSERT(sizeof(struct perfctr_ring_record) == 32);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_record, ip) == 0);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_record, count) == 8);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_record, tsc) == 16);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_record, counter) == 24);
PERFCTR_ASSERT(PERFCTR_OFFSET(struct perfctr_ring_record, callers) == 28);

#endif /* PERFCTR_ABI_H */
