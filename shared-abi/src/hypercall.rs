// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hypercall `perfctr_op(op, argument, length)`.
//!
//! `argument` points to `length` bytes in the caller's memory; the length must be exactly the
//! structure's (for [`OP_LOAD`], of as many counters as it holds).  The result is 0 or a negative
//! [`Errno`](crate::Errno); after an error nothing has changed.
//!
//! | op | argument | who | errors besides `EFAULT` and `EINVAL` (length, reserved fields) |
//! |---|---|---|---|
//! | [`OP_QUERY`] | [`HvQuery`], in and out | any guest | `EPROTO` other major, `ENODEV` driver off |
//! | [`OP_REGISTER`] | [`HvRegister`] | any vCPU, for itself | `EPERM` domain not enabled, `EEXIST`, `EINVAL` not a writable page of the guest, `EOPNOTSUPP` a kind of guest that cannot count, `ENOMEM` |
//! | [`OP_UNREGISTER`] | none | any vCPU, for itself | `ENXIO` none registered |
//! | [`OP_LOAD`] | [`HvLoad`] | any vCPU, for itself | `ENXIO` no page, `EPERM` domain not enabled or event not allowed, `ENODEV` nothing counts on this physical CPU, those of [`ConfigError`](crate::ConfigError) |
//! | [`OP_STOP`] | none | any vCPU, for itself | `ENXIO` no page |
//! | [`OP_DOMAIN`] | [`HvDomain`] | the control domain | `EPERM`, `ESRCH` |
//! | [`OP_STATS`] | [`HvStats`], out | the control domain | `EPERM` |
//! | [`OP_PLACE`] | [`HvPlace`], in and out | any vCPU, for itself | `ENXIO` no page |
//! | [`OP_GO_ON`] | [`HvRegister`] | any vCPU, for itself | as for [`OP_REGISTER`], `EINVAL` not a page that a vCPU has left, and those of [`ConfigError`](crate::ConfigError) |
//!
//! With the driver off every operation returns `ENODEV`; a hypervisor without it, `ENOSYS`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::caps::WireCaps;
use crate::config::CounterConfig;
use crate::layout::layout;
use crate::limits::MAX_SLOTS;

/// The hypercall's number: `__HYPERVISOR_arch_5`, which Xen uses for nothing else.
pub const HYPERCALL_NUMBER: u32 = 53;

/// The hypercall's number under KVM: "PCTR" in ASCII, far from the numbers that KVM has itself.
/// `docs/ABI.md` says which registers hold the number and the arguments.
pub const KVM_HYPERCALL_NUMBER: u32 = 0x5043_5452;

/// The vector that the module writes to the local APIC's entry for the PMU in a guest of KVM.
/// Processors ignore it beside the delivery mode NMI (SDM volume 3, local vector table).
///
/// The VMM saves and restores it with the entry.  It tells the driver that this guest knows what
/// the NMI after a restoration means, and is not another kernel, which would take that NMI for a
/// broken machine.
pub const KVM_LVTPC_VECTOR: u32 = 0x50;

/// Handshake and capabilities.
pub const OP_QUERY: u32 = 0;
/// Publish the calling vCPU's counters in a page.
pub const OP_REGISTER: u32 = 1;
/// Stop counting and publishing for the calling vCPU; forget its page.
pub const OP_UNREGISTER: u32 = 2;
/// Program a configuration for the calling vCPU, in place of the one before.
pub const OP_LOAD: u32 = 3;
/// Program nothing for the calling vCPU.  Sums stay.
pub const OP_STOP: u32 = 4;
/// Allow or forbid a domain.
pub const OP_DOMAIN: u32 = 5;
/// What the driver has done, and what it cost.
pub const OP_STATS: u32 = 6;
/// Where the calling vCPU was when one of its counters overflowed.
///
/// Not in its page, which user mode may read: addresses of the kernel are its secret.
pub const OP_PLACE: u32 = 7;

/// Publish the calling vCPU's counters in a page in which another hypervisor did before the guest
/// was restored, and count on from there.
pub const OP_GO_ON: u32 = 8;

/// The per-vCPU virtual interrupt of an overflow: `VIRQ_ARCH_4`, which Xen uses for nothing else.
///
/// It only says that some counter of the vCPU has overflowed, perhaps one of a thread that is
/// suspended by now.  The guest finds out whose by looking at its threads' counts: a counter has
/// overflowed as often as its period fits into its count.  [`OP_DOMAIN`] sends it as well.
pub const VIRQ_NUMBER: u32 = 20;

/// [`HvQuery::features`]: the caller's domain may register and load.
pub const FEATURE_ENABLED: u32 = 1 << 0;
/// [`HvQuery::features`]: the driver counts its own instructions, see [`HvHookStats`].
pub const FEATURE_COST: u32 = 1 << 1;

/// Argument of [`OP_QUERY`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvQuery {
    /// In: the guest's major.  Out: the hypervisor's.
    pub abi_major: u32,
    /// In: the guest's minor.  Out: the hypervisor's.
    pub abi_minor: u32,
    /// Out: `FEATURE_*` bits.
    pub features: u32,
    /// 0.
    pub reserved: u32,
    /// Out: what the PMU can do.
    pub caps: WireCaps,
    /// Out: a number of the caller's domain, another one after it was restored or allowed to count;
    /// 0 if the hypervisor has another way to tell that.
    pub machine: u64,
    /// 0.
    pub reserved_tail: u64,
}

layout!(HvQuery, "perfctr_hv_query", 64, {
    0 abi_major: "__u32",
    4 abi_minor: "__u32",
    8 features: "__u32",
    12 reserved: "__u32",
    16 caps: "struct perfctr_caps",
    48 machine: "__u64",
    56 reserved_tail: "__u64",
});

/// Argument of [`OP_REGISTER`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvRegister {
    /// Guest frame number of the page; a PV guest's frames are machine frames.
    pub gfn: u64,
    /// Who may read the page and the counters of this vCPU: any number of the guest's choice.  What
    /// the counters hold of another observer is cleared before.
    pub observer: u32,
    /// 0.
    pub reserved: u32,
}

layout!(HvRegister, "perfctr_hv_register", 16, {
    0 gfn: "__u64",
    8 observer: "__u32",
    12 reserved: "__u32",
});

/// Argument of [`OP_LOAD`]: the first `counters` elements of the array are passed.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvLoad {
    /// Counters that follow.
    pub counters: u32,
    /// 0.
    pub reserved: u32,
    /// What each counter counts.
    pub counter: [CounterConfig; MAX_SLOTS],
}

layout!(HvLoad, "perfctr_hv_load", 776, {
    0 counters: "__u32",
    4 reserved: "__u32",
    8 counter: "struct perfctr_counter_config" [MAX_SLOTS],
});

impl HvLoad {
    /// Bytes of an argument with this many counters.
    pub const fn bytes(counters: usize) -> usize {
        core::mem::offset_of!(HvLoad, counter) + counters * size_of::<CounterConfig>()
    }
}

/// Argument of [`OP_DOMAIN`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvDomain {
    /// The domain's number.
    pub domid: u32,
    /// 1 to allow, 0 to forbid.  A domain that is forbidden stops counting at once.
    pub enabled: u32,
    /// 0.
    pub reserved: u64,
}

layout!(HvDomain, "perfctr_hv_domain", 16, {
    0 domid: "__u32",
    4 enabled: "__u32",
    8 reserved: "__u64",
});

/// [`HvPlace::mode`]: not known; the counter has not overflowed since it was loaded, or was asked
/// for already.
pub const PLACE_NONE: u32 = 0;
/// [`HvPlace::mode`]: in the guest's user mode.
pub const PLACE_USER: u32 = 1;
/// [`HvPlace::mode`]: in the guest's kernel.
pub const PLACE_KERNEL: u32 = 2;

/// Argument of [`OP_PLACE`].
///
/// The registers are those when the overflow was seen: with its interrupt, or when the guest was
/// about to leave the mode in which it was counted, or its physical CPU.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvPlace {
    /// In: the counter's slot.
    pub slot: u32,
    /// Out: `PLACE_*`; without one the rest is 0.
    pub mode: u32,
    /// Out: the instruction pointer: the next instruction.
    pub ip: u64,
    /// Out: the stack pointer.
    pub sp: u64,
    /// Out: the register of flags.
    pub flags: u64,
}

layout!(HvPlace, "perfctr_hv_place", 32, {
    0 slot: "__u32",
    4 mode: "__u32",
    8 ip: "__u64",
    16 sp: "__u64",
    24 flags: "__u64",
});

/// Index in [`HvStats::hook`]: an enrolled vCPU was switched out.
pub const HOOK_SWITCH_FROM: usize = 0;
/// Index in [`HvStats::hook`]: an enrolled vCPU was switched in.
pub const HOOK_SWITCH_TO: usize = 1;
/// Index in [`HvStats::hook`]: an enrolled vCPU went between guest user and guest kernel mode.
pub const HOOK_TOGGLE: usize = 2;
/// Index in [`HvStats::hook`]: [`OP_LOAD`] or [`OP_STOP`].
pub const HOOK_LOAD: usize = 3;
/// Index in [`HvStats::hook`]: a performance monitoring interrupt.
pub const HOOK_INTERRUPT: usize = 4;
/// Elements of [`HvStats::hook`].
pub const HOOKS: usize = 5;

/// What one kind of entry into the driver did since boot, over all physical CPUs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvHookStats {
    /// Entries.
    pub calls: u64,
    /// Instructions that the driver executed in them; 0 without [`FEATURE_COST`].
    pub instructions: u64,
    /// How often counters were read.
    pub pmc_reads: u64,
    /// How often other registers of the PMU were read.
    pub msr_reads: u64,
    /// How often registers of the PMU were written.
    pub msr_writes: u64,
}

layout!(HvHookStats, "perfctr_hv_hook_stats", 40, {
    0 calls: "__u64",
    8 instructions: "__u64",
    16 pmc_reads: "__u64",
    24 msr_reads: "__u64",
    32 msr_writes: "__u64",
});

/// Argument of [`OP_STATS`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvStats {
    /// By kind of entry, `HOOK_*`.
    pub hook: [HvHookStats; HOOKS],
    /// Hypercalls of any kind.
    pub hypercalls: u64,
    /// Times that counters were cleared because another domain had run.
    pub residue_clears: u64,
    /// 0.
    pub reserved: [u64; 5],
}

layout!(HvStats, "perfctr_hv_stats", 256, {
    0 hook: "struct perfctr_hv_hook_stats" [HOOKS],
    200 hypercalls: "__u64",
    208 residue_clears: "__u64",
    216 reserved: "__u64" [5],
});
