// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The generator of the C header that declares this crate's constants and structures.
//!
//! `include/perfctr_abi.h` is this module's output. It is committed, so that C in the hypervisor
//! and in the kernel module can include it without a build of Rust. `cargo xtask headers` writes
//! it. The header asserts the size and every offset of each structure, so both C compilers confirm
//! the layout that Rust asserts.

use core::fmt::{self, Write};

use crate::layout::Struct;
use crate::{arch, caps, config, hypercall, ioctl, limits, ring, thread_page, vcpu_page, version};

const PREFIX: &str = "PERFCTR_";

macro_rules! constants {
    ($($module:ident :: { $($name:ident),+ $(,)? })+) => {
        &[$($((stringify!($name), $module::$name as u64)),+),+]
    };
}

const CONSTANTS: &[(&str, u64)] = constants! {
    version::{ABI_MAJOR, ABI_MINOR, ABI_WORD, VCPU_PAGE_MAGIC, THREAD_PAGE_MAGIC}
    limits::{
        MAX_COUNTERS, MAX_GENERAL, MAX_FIXED, MAX_SLOTS, MAX_VCPUS, READ_ATTEMPTS_MAX,
        PERIOD_EVENTS_MAX, RING_PAGES_MAX, RING_CALLERS_MAX,
    }
    vcpu_page::{VCPU_REGISTERED, VCPU_DIRECT, VCPU_TSC, VCPU_EXECUTING}
    thread_page::{THREAD_ACTIVE, THREAD_DIRECT, THREAD_TSC, THREAD_FAILED, THREAD_PAUSED}
    caps::{
        VENDOR_INTEL, VENDOR_AMD, CAPS_GLOBAL_INTEL, CAPS_GLOBAL_AMD, CAPS_SAMPLING,
        CAPS_FULL_WIDTH, CAPS_GUEST_ONLY, CAPS_EVENT_12BIT, CAPS_ALL_EVENTS,
        CAPS_SIBLING_ERRATUM, CAPS_SHARED_MASKS,
    }
    config::{MODE_COUNTING, MODE_SAMPLING, MODE_PRECISE}
    arch::{EVNTSEL_USR, EVNTSEL_OS, EVNTSEL_EDGE, EVNTSEL_EN}
    hypercall::{
        HYPERCALL_NUMBER, KVM_HYPERCALL_NUMBER, KVM_LVTPC_VECTOR,
        OP_QUERY, OP_REGISTER, OP_UNREGISTER, OP_LOAD, OP_STOP, OP_DOMAIN,
        OP_STATS, OP_PLACE, OP_GO_ON, OP_PROFILE_START, OP_PROFILE_READ, OP_PROFILE_STOP,
        PROFILE_LEASE_MS, PROFILE_PERIOD_MIN, PROFILE_AT_GUESTS,
        SAMPLES_MAX, SAMPLE_HYPERVISOR, SAMPLE_FOR_KERNEL, SAMPLE_FOR_USER,
        OP_ACCOUNTS_START, OP_ACCOUNTS_READ, OP_ACCOUNTS_STOP, OP_RECORD, OP_BRANCHES,
        OP_DOMAINS, OP_SHOW, DOMAINS_MAX, OP_CLOCK,
        ACCOUNTS_LEASE_MS, ACCOUNTS_MAX, ACCOUNT_UNDIVIDED,
        PLACE_NONE, PLACE_USER, PLACE_KERNEL, PLACE_PRECISE, FEATURE_ENABLED,
        FEATURE_COST, FEATURE_BRANCHES, FEATURE_PRECISE, FEATURE_USER_BRANCHES, FEATURE_INTERRUPTS,
        BRANCHES_USER, BRANCHES_KERNEL, BRANCHES_CONDITIONAL, BRANCHES_RELATIVE_CALLS,
        BRANCHES_INDIRECT_CALLS, BRANCHES_RETURNS, BRANCHES_INDIRECT_JUMPS,
        BRANCHES_RELATIVE_JUMPS, BRANCHES_MAX, BRANCH_MISPREDICTED,
        HOOK_SWITCH_FROM, HOOK_SWITCH_TO, HOOK_TOGGLE, HOOK_LOAD, HOOK_INTERRUPT, HOOKS,
        VIRQ_NUMBER,
    }
    ioctl::{
        IOC_INFO, IOC_CREATE, IOC_OPEN, IOC_CONTROL, IOC_READ, IOC_READ_CONTROL, IOC_UNLINK,
        IOC_RESUME, IOC_RING, IOC_RING_TAKE, IOC_INTERRUPTS, SIGNAL_CODE,
        CONTROL_TSC, CONTROL_CLOEXEC, CONTROL_KEEP_TSC,
        CONTROL_KEEP_PERIOD, CONTROL_RING,
        IOC_CPU_CONTROL, IOC_CPU_START, IOC_CPU_STOP, IOC_CPU_READ,
        FEATURE_KEEP_PERIOD, FEATURE_RING, MODULE_FEATURES,
    }
    ring::{RING_FIRST_PAGE}
};

macro_rules! types {
    ($($module:ident :: { $($name:ident),+ $(,)? })+) => {
        const STRUCTS: &[Struct] = &[$($($module::$name::LAYOUT),+),+];

        /// Names of the shared structures: Rust's, and C's.
        pub const TYPES: &[(&str, &str)] =
            &[$($((stringify!($name), $module::$name::LAYOUT.name)),+),+];
    };
}

// In the order in which C needs them.
types! {
    vcpu_page::{VcpuSlot, VcpuPage}
    thread_page::{ThreadSlot, ThreadPage}
    caps::{WireCaps}
    config::{CounterConfig}
    hypercall::{HvQuery, HvRegister, HvLoad, HvShow, HvDomain, HvDomains, HvHookStats, HvStats,
        HvPlace, HvProfile, HvClock,
        HvSample, HvSamples, HvAccounting, HvAccount, HvAccounts, HvRecord, HvBranch, HvBranches}
    ioctl::{Info, Create, Control, Sums, CpuState}
    ring::{RingRequest, RingRecord}
}

const HEAD: &str = "\
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

";

/// Writes the header.
///
/// # Errors
///
/// The errors of `out`.
pub fn write(out: &mut impl Write) -> fmt::Result {
    out.write_str(HEAD)?;
    for (name, value) in CONSTANTS {
        writeln!(out, "#define {PREFIX}{name} {value:#x}")?;
    }
    for layout in STRUCTS {
        write_struct(out, layout)?;
    }
    out.write_str("\n#endif /* PERFCTR_ABI_H */\n")
}

fn write_struct(out: &mut impl Write, layout: &Struct) -> fmt::Result {
    writeln!(out, "\nstruct {} {{", layout.name)?;
    for field in layout.fields {
        write!(out, "\t{} {}", field.c_type, field.name)?;
        if field.elements > 0 {
            write!(out, "[{}]", field.elements)?;
        }
        out.write_str(";\n")?;
    }
    out.write_str("};\n")?;
    let name = layout.name;
    writeln!(out, "PERFCTR_ASSERT(sizeof(struct {name}) == {});", layout.size)?;
    for field in layout.fields {
        writeln!(
            out,
            "PERFCTR_ASSERT(PERFCTR_OFFSET(struct {name}, {}) == {});",
            field.name, field.offset
        )?;
    }
    Ok(())
}
