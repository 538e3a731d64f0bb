// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hypercall `perfctr_op(op, argument, length)`.
//!
//! `argument` points to `length` bytes in the caller's memory. The length must be the structure's;
//! for [`OP_LOAD`] it must be [`HvLoad::bytes`] of the counters that are passed, and for
//! [`OP_SHOW`] [`HvShow::bytes`]. The result is 0 or a negative [`Errno`](crate::Errno). After an
//! error nothing has changed, except that [`OP_SHOW`] may have forgotten the page that was
//! registered.
//!
//! | op | argument | who | errors besides `EFAULT` and `EINVAL` (length, reserved fields) |
//! |---|---|---|---|
//! | [`OP_QUERY`] | [`HvQuery`], in and out | any guest | `EPROTO` other major, `ENODEV` driver off |
//! | [`OP_REGISTER`] | [`HvRegister`] | any vCPU, for itself | `EPERM` domain not enabled, `EEXIST`, `EINVAL` not a writable page of the guest, `EOPNOTSUPP` a kind of guest that cannot count, `ENOMEM` |
//! | [`OP_UNREGISTER`] | none | any vCPU, for itself | `ENXIO` none registered |
//! | [`OP_LOAD`] | [`HvLoad`] | any vCPU, for itself | `ENXIO` no page, `EPERM` domain not enabled or event not allowed, `ESTALE` a counter that the host does not let the domain use, `ENODEV` nothing counts on this physical CPU, `EBUSY` the host itself uses the counters (KVM), `EOPNOTSUPP` no precise places here, or not of this event, those of [`ConfigError`](crate::ConfigError) |
//! | [`OP_STOP`] | none | any vCPU, for itself | `ENXIO` no page |
//! | [`OP_DOMAIN`] | [`HvDomain`] | the control domain | `EPERM`, `ESRCH` |
//! | [`OP_DOMAINS`] | [`HvDomains`], in and out | the control domain | `EPERM` |
//! | [`OP_STATS`] | [`HvStats`], out | the control domain | `EPERM` |
//! | [`OP_PLACE`] | [`HvPlace`], in and out | any vCPU, for itself | `ENXIO` no page |
//! | [`OP_PROFILE_START`] | [`HvProfile`] | the control domain | `EPERM`, `EOPNOTSUPP` no counter is reserved, `EBUSY` somebody samples, `ENOMEM`, those of [`ConfigError`](crate::ConfigError) |
//! | [`OP_PROFILE_READ`] | [`HvSamples`], in and out | the control domain | `EPERM`, `EOPNOTSUPP`, `ENXIO` nobody samples, `ENOENT` that physical CPU is not sampled |
//! | [`OP_PROFILE_STOP`] | none | the control domain | `EPERM`, `EOPNOTSUPP`, `ENXIO` nobody samples |
//! | [`OP_ACCOUNTS_START`] | [`HvAccounting`] | the control domain | `EPERM`, `EOPNOTSUPP` no counters are reserved, `EBUSY` events are accounted already, those of [`ConfigError`](crate::ConfigError) |
//! | [`OP_ACCOUNTS_READ`] | [`HvAccounts`], in and out | the control domain | `EPERM`, `EOPNOTSUPP`, `ENXIO` no events are accounted |
//! | [`OP_ACCOUNTS_STOP`] | none | the control domain | `EPERM`, `EOPNOTSUPP`, `ENXIO` no events are accounted |
//! | [`OP_RECORD`] | [`HvRecord`] | any vCPU, for itself | `EOPNOTSUPP` no branches are recorded here, or not for this kind of guest, `ENXIO` no page, `EPERM` domain not enabled, `ENODEV` nothing counts on this physical CPU |
//! | [`OP_BRANCHES`] | [`HvBranches`], in and out | any vCPU, for itself | `EOPNOTSUPP` as for [`OP_RECORD`], `ENXIO` no page |
//! | [`OP_CLOCK`] | [`HvClock`], in and out | the control domain | `EPERM`, `ESRCH` no such virtual CPU, `EOPNOTSUPP` the hypervisor emulates its time-stamp counter, or has no domains (KVM) |
//! | [`OP_GO_ON`] | [`HvRegister`] | any vCPU, for itself | as for [`OP_REGISTER`], `EINVAL` not a page that a vCPU has left, `ENODEV`, `EBUSY` and `ESTALE` as for [`OP_LOAD`], and those of [`ConfigError`](crate::ConfigError) |
//! | [`OP_SHOW`] | [`HvShow`] | any vCPU, for itself | as for [`OP_REGISTER`], but not `EEXIST`, and as for [`OP_LOAD`] |
//!
//! If the driver is off, every operation returns `ENODEV`. A hypervisor without the driver returns
//! `ENOSYS`.

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

/// The vector that the module writes to the interrupt controller's entry for the PMU in a guest of
/// KVM. With the delivery mode NMI, processors ignore the vector (SDM volume 3, local vector
/// table).
///
/// The VMM saves and restores the vector together with the entry. The vector tells the driver that
/// this guest knows the meaning of the NMI after a restoration. Another kernel would take that NMI
/// for a fault of the machine.
pub const KVM_LVTPC_VECTOR: u32 = 0x50;

/// The guest and the hypervisor exchange their ABI versions, and the guest learns what the PMU can
/// do.
pub const OP_QUERY: u32 = 0;
/// The hypervisor begins to publish the calling vCPU's counters in a page of the guest.
pub const OP_REGISTER: u32 = 1;
/// The hypervisor stops counting for the calling vCPU, and no longer writes to its page.
pub const OP_UNREGISTER: u32 = 2;
/// The hypervisor programs a configuration for the calling vCPU in place of the previous one.
pub const OP_LOAD: u32 = 3;
/// The hypervisor removes the calling vCPU's configuration. The sums in its page stay.
pub const OP_STOP: u32 = 4;
/// The control domain allows a domain to count, perhaps within limits, or forbids it.
pub const OP_DOMAIN: u32 = 5;
/// The control domain reads the statistics of the driver's work since boot.
pub const OP_STATS: u32 = 6;
/// The guest asks where the calling vCPU was when one of its counters overflowed.
///
/// The answer is not in the vCPU's page, because user mode may read the page and must not learn
/// addresses of the kernel.
pub const OP_PLACE: u32 = 7;

/// The hypervisor begins to publish the calling vCPU's counters in a page that another hypervisor
/// has written before the guest was restored here, and continues from the counts in that page.
pub const OP_GO_ON: u32 = 8;

/// The control domain begins to sample physical CPUs.
pub const OP_PROFILE_START: u32 = 9;
/// The control domain takes the oldest samples of one physical CPU. This renews the lease: the
/// driver stops by itself [`PROFILE_LEASE_MS`] after the last such call.
pub const OP_PROFILE_READ: u32 = 10;
/// The control domain ends sampling. Samples that it has not taken are lost.
pub const OP_PROFILE_STOP: u32 = 11;

/// How long the driver samples after the control domain has last asked for samples, unit:
/// milliseconds.
pub const PROFILE_LEASE_MS: u64 = 2_000;
/// The shortest [`HvProfile::period`]. A sample costs the hypervisor some hundred instructions.
pub const PROFILE_PERIOD_MIN: u64 = 10_000;

/// The control domain makes the driver account events to vCPUs from now on.
pub const OP_ACCOUNTS_START: u32 = 12;
/// The control domain reads accounts of vCPUs. If it reads from the first one on, this renews the
/// lease: the driver stops by itself [`ACCOUNTS_LEASE_MS`] after the last such call.
pub const OP_ACCOUNTS_READ: u32 = 13;
/// The control domain ends the accounting. Accounts that it has not read are lost.
pub const OP_ACCOUNTS_STOP: u32 = 14;

/// The hypervisor discards the branches that were recorded for the calling vCPU. From now on it
/// records the vCPU's branches of the kinds in the argument.
///
/// It records until the next such call, or until the page is no longer registered or the domain may
/// no longer count. Sums and configuration do not change.
pub const OP_RECORD: u32 = 15;
/// The guest asks for the last branches that the calling vCPU took before one of its counters
/// overflowed.
pub const OP_BRANCHES: u32 = 16;

/// The control domain asks for a list of the domains, and which of them may count.
pub const OP_DOMAINS: u32 = 17;
/// The hypervisor says which time-stamp counter a domain's virtual CPU reads.
pub const OP_CLOCK: u32 = 19;

/// The hypervisor publishes the calling vCPU's counters in another page of the guest from now on,
/// and programs a configuration there.
///
/// This is [`OP_UNREGISTER`] if the vCPU has a page, then [`OP_REGISTER`], and then [`OP_LOAD`] if
/// any counters are passed. After an error the vCPU has the page that it had before, or none: the
/// guest has to call [`OP_UNREGISTER`] before it uses the page for something else.
pub const OP_SHOW: u32 = 18;

/// The operations on the whole host. Any domain but the control domain gets `EPERM` for them.
pub const HOST_OPS: [u32; 10] = [
    OP_DOMAIN,
    OP_STATS,
    OP_PROFILE_START,
    OP_PROFILE_READ,
    OP_PROFILE_STOP,
    OP_ACCOUNTS_START,
    OP_ACCOUNTS_READ,
    OP_ACCOUNTS_STOP,
    OP_DOMAINS,
    OP_CLOCK,
];

/// How long the driver keeps accounts after the control domain has last read the first of them,
/// unit: milliseconds.
///
/// Each physical CPU reads its counters whenever the first account is read, so that none wraps
/// between two reads. To wrap, a counter of 40 bits would need 10^11 events in a second. Hosts with
/// narrower counters keep no accounts.
pub const ACCOUNTS_LEASE_MS: u64 = 10_000;

/// The per-vCPU virtual interrupt of an overflow: `VIRQ_ARCH_4`, which Xen uses for nothing else.
///
/// The interrupt only says that some counter of the vCPU has overflowed. The counter may belong to
/// a thread that is suspended by now. The guest finds the counter by the counts of its threads: a
/// counter has overflowed as often as its period fits into its count. [`OP_DOMAIN`] sends the same
/// interrupt if it changes whether the domain may count.
pub const VIRQ_NUMBER: u32 = 20;

/// [`HvQuery::features`]: the caller's domain may register and load.
pub const FEATURE_ENABLED: u32 = 1 << 0;
/// [`HvQuery::features`]: the driver counts its own instructions, see [`HvHookStats`].
pub const FEATURE_COST: u32 = 1 << 1;
/// [`HvQuery::features`]: the hypervisor can record the caller's branches of both modes, see
/// [`OP_RECORD`].
pub const FEATURE_BRANCHES: u32 = 1 << 2;
/// [`HvQuery::features`]: the caller's counters of retired instructions and of retired branches may
/// have the mode [`MODE_PRECISE`](crate::config::MODE_PRECISE).
pub const FEATURE_PRECISE: u32 = 1 << 3;
/// [`HvQuery::features`]: the hypervisor can record the caller's branches of user mode, but not
/// those of its kernel, see [`OP_RECORD`].
pub const FEATURE_USER_BRANCHES: u32 = 1 << 4;
/// [`HvQuery::features`]: the CPUs count each interrupt and each exception that the caller's kernel
/// takes as one more instruction of the code that it interrupts, and the hypervisor does not
/// subtract them.
pub const FEATURE_INTERRUPTS: u32 = 1 << 5;

/// Argument of [`OP_QUERY`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvQuery {
    /// In: the guest's major version. Out: the hypervisor's major version.
    pub abi_major: u32,
    /// In: the guest's minor version. Out: the hypervisor's minor version.
    pub abi_minor: u32,
    /// Out: `FEATURE_*` bits.
    pub features: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Out: what the PMU can do.
    pub caps: WireCaps,
    /// Out: a number of the caller's domain, which changes when the domain is restored or allowed
    /// to count. It is 0 if the guest learns of these events in another way.
    pub machine: u64,
    /// Must be 0.
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
    /// Guest frame number of the page. For a PV guest this is a machine frame number.
    pub gfn: u64,
    /// The observer that may read the page and the counters of this vCPU; the guest chooses the
    /// number. The driver first clears what the counters hold of another observer's events.
    pub observer: u32,
    /// Must be 0.
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
    /// Number of counters that follow.
    pub counters: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The counters and what each of them counts.
    pub counter: [CounterConfig; MAX_SLOTS],
}

layout!(HvLoad, "perfctr_hv_load", 776, {
    0 counters: "__u32",
    4 reserved: "__u32",
    8 counter: "struct perfctr_counter_config" [MAX_SLOTS],
});

impl HvLoad {
    /// Returns the size in bytes of an argument with this many counters.
    pub const fn bytes(counters: usize) -> usize {
        core::mem::offset_of!(HvLoad, counter) + counters * size_of::<CounterConfig>()
    }
}

/// Argument of [`OP_SHOW`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvShow {
    /// The page.
    pub page: HvRegister,
    /// The configuration, of which only the counters that it has are passed.
    pub load: HvLoad,
}

layout!(HvShow, "perfctr_hv_show", 792, {
    0 page: "struct perfctr_hv_register",
    16 load: "struct perfctr_hv_load",
});

impl HvShow {
    /// Returns the size in bytes of an argument with this many counters.
    pub const fn bytes(counters: usize) -> usize {
        core::mem::offset_of!(HvShow, load) + HvLoad::bytes(counters)
    }
}

/// Argument of [`OP_DOMAIN`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvDomain {
    /// The domain's number.
    pub domid: u32,
    /// 1 to allow the domain to count, 0 to forbid it. A domain that is forbidden to count stops
    /// at once.
    pub enabled: u32,
    /// The most counters that the domain may have loaded on a vCPU, or 0 for all counters. It gets
    /// the general counters first, and then the fixed ones. It must be 0 if the domain is
    /// forbidden.
    pub counters_max: u32,
    /// The most overflows that interrupt in a millisecond, for each vCPU of the domain, or 0. The
    /// host's own limit holds as well. It must be 0 if the domain is forbidden.
    pub overflows_per_ms: u32,
}

layout!(HvDomain, "perfctr_hv_domain", 16, {
    0 domid: "__u32",
    4 enabled: "__u32",
    8 counters_max: "__u32",
    12 overflows_per_ms: "__u32",
});

/// Number of elements of [`HvDomains::domain`].
pub const DOMAINS_MAX: usize = 47;

/// Argument of [`OP_DOMAINS`].
///
/// To list all domains, the caller asks from 0 on, and then from the number after the last one of
/// each answer, until an answer has fewer than [`DOMAINS_MAX`]. A domain that exists throughout
/// these calls is in exactly one of the answers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvDomains {
    /// In: the first domain that is wanted.
    pub first: u32,
    /// Out: the number of domains that follow. If it is [`DOMAINS_MAX`], there may be more.
    pub count: u32,
    /// Out: the domains in the order of their numbers.
    pub domain: [HvDomain; DOMAINS_MAX],
}

layout!(HvDomains, "perfctr_hv_domains", 760, {
    0 first: "__u32",
    4 count: "__u32",
    8 domain: "struct perfctr_hv_domain" [DOMAINS_MAX],
});

/// [`HvPlace::mode`]: the place is not known. Either the counter has not overflowed since it was
/// loaded, or the guest has already asked for the place of that overflow.
pub const PLACE_NONE: u32 = 0;
/// [`HvPlace::mode`]: the vCPU was in the guest's user mode.
pub const PLACE_USER: u32 = 1;
/// [`HvPlace::mode`]: the vCPU was in the guest's kernel.
pub const PLACE_KERNEL: u32 = 2;
/// [`HvPlace::mode`], beside [`PLACE_USER`] or [`PLACE_KERNEL`]: the instruction pointer is that of
/// the first event after the period, however late the interrupt has come. Only counters with the
/// mode [`MODE_PRECISE`](crate::config::MODE_PRECISE) have such places.
pub const PLACE_PRECISE: u32 = 1 << 8;

/// Argument of [`OP_PLACE`].
///
/// The driver notes the registers when it sees the overflow. That is at the overflow's interrupt,
/// or, if it comes first, when the vCPU leaves its physical CPU or the mode in which it counted.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvPlace {
    /// In: the counter's slot.
    pub slot: u32,
    /// Out: a `PLACE_*` number. If it is [`PLACE_NONE`], the other outputs are 0.
    pub mode: u32,
    /// Out: the instruction pointer, which is the address of the next instruction.
    pub ip: u64,
    /// Out: the stack pointer. With [`PLACE_PRECISE`] it is that of the interrupt, or 0 if the
    /// interrupt has come in the other mode.
    pub sp: u64,
    /// Out: the flags register.
    pub flags: u64,
}

layout!(HvPlace, "perfctr_hv_place", 32, {
    0 slot: "__u32",
    4 mode: "__u32",
    8 ip: "__u64",
    16 sp: "__u64",
    24 flags: "__u64",
});

/// [`HvRecord::filter`]: branches of the guest's user mode.
pub const BRANCHES_USER: u32 = 1 << 0;
/// [`HvRecord::filter`]: branches of the guest's kernel.
pub const BRANCHES_KERNEL: u32 = 1 << 1;
/// [`HvRecord::filter`]: conditional branches, which are recorded only if they are taken.
pub const BRANCHES_CONDITIONAL: u32 = 1 << 2;
/// [`HvRecord::filter`]: calls whose distance is in the instruction.
pub const BRANCHES_RELATIVE_CALLS: u32 = 1 << 3;
/// [`HvRecord::filter`]: calls through a register or a pointer.
pub const BRANCHES_INDIRECT_CALLS: u32 = 1 << 4;
/// [`HvRecord::filter`]: returns.
pub const BRANCHES_RETURNS: u32 = 1 << 5;
/// [`HvRecord::filter`]: jumps through a register or a pointer.
pub const BRANCHES_INDIRECT_JUMPS: u32 = 1 << 6;
/// [`HvRecord::filter`]: jumps whose distance is in the instruction.
pub const BRANCHES_RELATIVE_JUMPS: u32 = 1 << 7;

/// The bits of [`HvRecord::filter`] that select modes.
pub const BRANCHES_MODES: u32 = BRANCHES_USER | BRANCHES_KERNEL;
/// The bits of [`HvRecord::filter`] that select kinds of branches. No bit selects far branches,
/// because they lead to the hypervisor or come from it.
pub const BRANCHES_KINDS: u32 = BRANCHES_CONDITIONAL
    | BRANCHES_RELATIVE_CALLS
    | BRANCHES_INDIRECT_CALLS
    | BRANCHES_RETURNS
    | BRANCHES_INDIRECT_JUMPS
    | BRANCHES_RELATIVE_JUMPS;

/// Argument of [`OP_RECORD`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvRecord {
    /// `BRANCHES_*` bits, at least one mode and one kind, or 0 to record nothing.
    pub filter: u32,
    /// Must be 0.
    pub reserved: u32,
}

layout!(HvRecord, "perfctr_hv_record", 8, {
    0 filter: "__u32",
    4 reserved: "__u32",
});

/// A branch that was taken.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvBranch {
    /// The address of the branch instruction.
    pub from: u64,
    /// The address of the instruction that was executed next.
    pub to: u64,
    /// `BRANCH_*` bits.
    pub flags: u64,
}

layout!(HvBranch, "perfctr_hv_branch", 24, {
    0 from: "__u64",
    8 to: "__u64",
    16 flags: "__u64",
});

/// [`HvBranch::flags`]: the processor had predicted it wrongly.
pub const BRANCH_MISPREDICTED: u64 = 1 << 0;

/// Number of elements of [`HvBranches::branch`].
pub const BRANCHES_MAX: usize = 16;

/// Argument of [`OP_BRANCHES`].
///
/// The driver reads the records when it notes the overflow's place; see [`HvPlace`]. It clears the
/// records when the vCPU is switched in.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvBranches {
    /// In: the counter's slot.
    pub slot: u32,
    /// Out: the number of branches that follow. It is 0 if the counter has not overflowed since it
    /// was loaded, if the guest has already asked, or if another counter has overflowed meanwhile.
    pub count: u32,
    /// Out: the branches, the latest first.
    pub branch: [HvBranch; BRANCHES_MAX],
}

layout!(HvBranches, "perfctr_hv_branches", 392, {
    0 slot: "__u32",
    4 count: "__u32",
    8 branch: "struct perfctr_hv_branch" [BRANCHES_MAX],
});

/// Argument of [`OP_CLOCK`].
///
/// When the host's time-stamp counter is `host`, the virtual CPU reads
/// `offset + (scale * host >> fraction_bits)`. The product has 128 bits, and the sum has 64.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvClock {
    /// In: the domain.
    pub domain: u32,
    /// In: the number of the virtual CPU in it.
    pub vcpu: u32,
    /// Out: what is added. Unit: ticks.
    pub offset: u64,
    /// Out: a fixed-point number, or 0 if the counter has the host's frequency. The product is then
    /// the host's counter itself.
    pub scale: u64,
    /// Out: the number of bits after the point in `scale`, below 64.
    pub fraction_bits: u32,
    /// Out: 0.
    pub reserved: u32,
}

layout!(HvClock, "perfctr_hv_clock", 32, {
    0 domain: "__u32",
    4 vcpu: "__u32",
    8 offset: "__u64",
    16 scale: "__u64",
    24 fraction_bits: "__u32",
    28 reserved: "__u32",
});

/// Argument of [`OP_PROFILE_START`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvProfile {
    /// The event, and the rings, in the layout of [`CounterConfig::evntsel`]. The hypervisor
    /// executes in ring 0, and so does the kernel of a guest that has rings of its own. 64-bit PV
    /// guests execute only in ring 3.
    pub evntsel: u64,
    /// A sample is taken after this many events on each physical CPU, at least
    /// [`PROFILE_PERIOD_MIN`].
    pub period: u64,
    /// Bit n stands for physical CPU n. All bits together also stand for those from number 64 on.
    pub cpus: u64,
    /// 0, or [`PROFILE_AT_GUESTS`].
    pub flags: u64,
}

layout!(HvProfile, "perfctr_hv_profile", 32, {
    0 evntsel: "__u64",
    8 period: "__u64",
    16 cpus: "__u64",
    24 flags: "__u64",
});

/// [`HvProfile::flags`]: a sample of the hypervisor has the instruction at which the current guest
/// entered the hypervisor, in place of the hypervisor's own.
pub const PROFILE_AT_GUESTS: u64 = 1 << 0;

/// [`HvSample::mode`]: the hypervisor executed, for [`HvSample::domain`] or while the CPU was idle.
pub const SAMPLE_HYPERVISOR: u32 = 3;
/// [`HvSample::mode`]: the hypervisor executed for a guest, which entered it from its kernel at
/// [`HvSample::ip`].
pub const SAMPLE_FOR_KERNEL: u32 = 4;
/// [`HvSample::mode`]: the hypervisor executed for a guest, which entered it from user mode at
/// [`HvSample::ip`].
pub const SAMPLE_FOR_USER: u32 = 5;

/// A sample: where a physical CPU was when a period ended.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvSample {
    /// The host's time-stamp counter.
    pub tsc: u64,
    /// The instruction pointer, which is the address of the next instruction.
    pub ip: u64,
    /// The domain whose vCPU was current, such as 32767 for the idle domain.
    pub domain: u32,
    /// The number of that vCPU in its domain.
    pub vcpu: u32,
    /// [`PLACE_USER`], [`PLACE_KERNEL`] or [`SAMPLE_HYPERVISOR`]. With [`PROFILE_AT_GUESTS`] also
    /// [`SAMPLE_FOR_KERNEL`] or [`SAMPLE_FOR_USER`].
    pub mode: u32,
    /// The physical CPU.
    pub cpu: u32,
}

layout!(HvSample, "perfctr_hv_sample", 32, {
    0 tsc: "__u64",
    8 ip: "__u64",
    16 domain: "__u32",
    20 vcpu: "__u32",
    24 mode: "__u32",
    28 cpu: "__u32",
});

/// Number of elements of [`HvSamples::sample`].
pub const SAMPLES_MAX: usize = 23;

/// Argument of [`OP_PROFILE_READ`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvSamples {
    /// In: the physical CPU.
    pub cpu: u32,
    /// Out: the number of samples that follow. If it is [`SAMPLES_MAX`], there may be more.
    pub count: u32,
    /// Out: the number of samples of that physical CPU that were lost since the start. A sample is
    /// lost if the ring is full, or if its period ends before the previous sample was taken.
    pub lost: u64,
    /// Out: the samples, the oldest first.
    pub sample: [HvSample; SAMPLES_MAX],
}

layout!(HvSamples, "perfctr_hv_samples", 752, {
    0 cpu: "__u32",
    4 count: "__u32",
    8 lost: "__u64",
    16 sample: "struct perfctr_hv_sample" [SAMPLES_MAX],
});

/// Argument of [`OP_ACCOUNTS_START`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvAccounting {
    /// The event, in the layout of [`CounterConfig::evntsel`], with the bits of both modes.
    pub evntsel: u64,
    /// Must be 0.
    pub reserved: u64,
}

layout!(HvAccounting, "perfctr_hv_accounting", 16, {
    0 evntsel: "__u64",
    8 reserved: "__u64",
});

/// [`HvAccount::flags`]: the processor does not distinguish this guest's kernel from the
/// hypervisor. The kernel's events are in [`HvAccount::hypervisor`].
pub const ACCOUNT_UNDIVIDED: u32 = 1 << 0;

/// The events of a vCPU since [`OP_ACCOUNTS_START`], or since the vCPU was made.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvAccount {
    /// The vCPU's domain, such as 32767 for the idle domain.
    pub domain: u32,
    /// The number of the vCPU in its domain. An idle one has the number of its physical CPU.
    pub vcpu: u32,
    /// `ACCOUNT_*` bits.
    pub flags: u32,
    /// Always 0.
    pub reserved: u32,
    /// The events of the vCPU's own code, in its kernel and in its user mode. With
    /// [`ACCOUNT_UNDIVIDED`], only those in user mode.
    pub executed: u64,
    /// The events of the hypervisor while the vCPU was current, for whatever purpose the hypervisor
    /// executed. What it executes to switch to a vCPU is in the account of that vCPU.
    pub hypervisor: u64,
}

layout!(HvAccount, "perfctr_hv_account", 32, {
    0 domain: "__u32",
    4 vcpu: "__u32",
    8 flags: "__u32",
    12 reserved: "__u32",
    16 executed: "__u64",
    24 hypervisor: "__u64",
});

/// Number of elements of [`HvAccounts::account`].
pub const ACCOUNTS_MAX: usize = 23;

/// Argument of [`OP_ACCOUNTS_READ`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HvAccounts {
    /// In: the first domain that is wanted.
    pub domain: u32,
    /// In: the first vCPU of this domain that is wanted. If both are 0, every account is brought
    /// up to this moment before any is read.
    pub vcpu: u32,
    /// Out: the number of accounts that follow. If it is [`ACCOUNTS_MAX`], there may be more, from
    /// the vCPU after the last one on.
    pub count: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Out: the accounts in the order of domains and vCPUs, those of the idle domain last.
    pub account: [HvAccount; ACCOUNTS_MAX],
}

layout!(HvAccounts, "perfctr_hv_accounts", 752, {
    0 domain: "__u32",
    4 vcpu: "__u32",
    8 count: "__u32",
    12 reserved: "__u32",
    16 account: "struct perfctr_hv_account" [ACCOUNTS_MAX],
});

/// Index in [`HvStats::hook`]: a vCPU with a page was switched out.
pub const HOOK_SWITCH_FROM: usize = 0;
/// Index in [`HvStats::hook`]: a vCPU with a page was switched in.
pub const HOOK_SWITCH_TO: usize = 1;
/// Index in [`HvStats::hook`]: a vCPU with a page changed between guest user and guest kernel mode.
pub const HOOK_TOGGLE: usize = 2;
/// Index in [`HvStats::hook`]: a vCPU made the hypercall [`OP_LOAD`] or [`OP_STOP`].
pub const HOOK_LOAD: usize = 3;
/// Index in [`HvStats::hook`]: a performance monitoring interrupt arrived.
pub const HOOK_INTERRUPT: usize = 4;
/// Number of elements of [`HvStats::hook`].
pub const HOOKS: usize = 5;

/// The work that entries of one kind into the driver have done since boot, on all physical CPUs
/// together.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct HvHookStats {
    /// Number of entries.
    pub calls: u64,
    /// Number of instructions that the driver executed in these entries; 0 without
    /// [`FEATURE_COST`].
    pub instructions: u64,
    /// Number of reads of counters.
    pub pmc_reads: u64,
    /// Number of reads of other registers of the PMU.
    pub msr_reads: u64,
    /// Number of writes of registers of the PMU.
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
    /// The work of each kind of entry; the indices are `HOOK_*`.
    pub hook: [HvHookStats; HOOKS],
    /// Number of hypercalls of any kind.
    pub hypercalls: u64,
    /// Number of times that the driver cleared counters because another domain had used them.
    pub residue_clears: u64,
    /// Always 0.
    pub reserved: [u64; 5],
}

layout!(HvStats, "perfctr_hv_stats", 256, {
    0 hook: "struct perfctr_hv_hook_stats" [HOOKS],
    200 hypercalls: "__u64",
    208 residue_clears: "__u64",
    216 reserved: "__u64" [5],
});
