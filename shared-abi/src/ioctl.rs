// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The ioctls and the mapping of the guest's device `/dev/perfctr`.
//!
//! After [`IOC_CREATE`] or [`IOC_OPEN`], a descriptor is bound to the counters of one thread.
//! [`REQUESTS`](crate::requests::REQUESTS) says for each ioctl who may use it.
//!
//! | ioctl | argument | errors besides `EFAULT` |
//! |---|---|---|
//! | [`IOC_INFO`] | [`Info`], out | - |
//! | [`IOC_CREATE`] | [`Create`] | `EPROTO` other major, `EOPNOTSUPP` the module lacks a feature, `EEXIST` the thread has counters or the descriptor is bound, `EINVAL` reserved fields, `ENOMEM`, `ENOSPC` too many users of the same owner have counters, `ESRCH` the caller may not operate the thread, `EBUSY` whole CPUs count; `EPERM` the host does not let the domain count; after the guest was restored on another host, `ENODEV`, `ENOSYS` or `EOPNOTSUPP` that host does not count for it, `ESTALE` that host has other counters |
//! | [`IOC_OPEN`] | [`Create`] | `EPROTO`, `EOPNOTSUPP`, `ESRCH` the thread has none, `EEXIST`, `EINVAL` |
//! | [`IOC_CONTROL`] | [`Control`] | those of [`ConfigError`](crate::ConfigError) and of the hypercall; `ESRCH` the counters are unlinked, or the caller may not operate their thread |
//! | [`IOC_READ`] | [`Sums`], out | `EINVAL` not bound |
//! | [`IOC_READ_CONTROL`] | [`Control`], out | `EINVAL` not bound |
//! | [`IOC_INTERRUPTS`] | `u64`, out: [`ThreadPage::interrupts`](crate::ThreadPage) | `EINVAL` not bound |
//! | [`IOC_RESUME`] | - | `EPERM` no overflow has paused the counters; `ESRCH` the counters are unlinked, or the caller may not operate their thread |
//! | [`IOC_RING`] | [`RingRequest`] | `EINVAL` no such size, or not bound; `ESRCH` the counters are unlinked; `EPERM` the counters belong to another thread than the caller; `EBUSY` they count; `EEXIST` the thread has a ring; `ENOSPC` all rings of its user together exceed `RLIMIT_MEMLOCK`; `ENOMEM` |
//! | [`IOC_RING_TAKE`] | `u64`: number of records taken since the ring was made | `EINVAL` fewer than before, or more than were written; `ENXIO` no ring |
//! | [`IOC_UNLINK`] | - | `ESRCH` the caller may not operate the thread; unlinking twice is no error |
//! | [`IOC_CPU_CONTROL`] | [`CpuState`] | `EPERM` not privileged, or a counter samples; `EINVAL` no such CPU, or it is offline; `EBUSY` counting has started |
//! | [`IOC_CPU_START`] | - | `EPERM` not privileged; `EBUSY` counting has started, or threads have counters |
//! | [`IOC_CPU_STOP`] | - | `EPERM` not privileged |
//! | [`IOC_CPU_READ`] | [`CpuState`], in and out | `EPERM` not privileged; `EINVAL` no such CPU |
//!
//! `IOC_CPU_CONTROL` and `IOC_CPU_START` return the number of CPUs that have something to count;
//! all other ioctls return 0. Threads and whole CPUs do not count at the same time: threads get no
//! counters while CPUs count, and CPUs do not start while threads have counters (`EBUSY`).
//!
//! A thread may operate its own counters, and its tracer may operate them while the thread is
//! stopped (`ptrace(2)`). The module checks a tracer's request at once. The request takes effect
//! before the thread executes another instruction in user mode.
//!
//! The mapping has `1 + Info::vcpus` pages at offset 0: the thread's page, then one page of each
//! vCPU. It must be shared and read-only (else `EPERM`). A ring has a mapping of its own, see
//! [`ring`](crate::ring). poll(2) says `POLLIN` while a ring is full to its watermark, and
//! `POLLHUP` when the thread's counters are unlinked.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::caps::WireCaps;
use crate::config::CounterConfig;
use crate::layout::layout;
use crate::limits::MAX_COUNTERS;
use crate::ring::RingRequest;

/// Path of the device.
pub const DEVICE_PATH: &str = "/dev/perfctr";

/// The ioctls' type byte.
pub const IOC_TYPE: u32 = 0xd0;

pub(crate) const WRITE: u32 = 1;
pub(crate) const READ: u32 = 2;

/// Composes an ioctl's number (Linux, `Documentation/userspace-api/ioctl/ioctl-number.rst`).
const fn ioc(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | IOC_TYPE << 8 | number
}

/// The caller asks for the machine's capabilities.
pub const IOC_INFO: u32 = ioc(READ, 0x40, size_of::<Info>());
/// The module gives a thread counters and binds the descriptor to them.
pub const IOC_CREATE: u32 = ioc(WRITE, 0x41, size_of::<Create>());
/// The module binds the descriptor to the counters that a thread has.
pub const IOC_OPEN: u32 = ioc(WRITE, 0x42, size_of::<Create>());
/// The caller sets what is counted, and counting starts. With no counters and no TSC, counting
/// stops.
pub const IOC_CONTROL: u32 = ioc(WRITE, 0x43, size_of::<Control>());
/// The caller reads all sums.
pub const IOC_READ: u32 = ioc(READ, 0x44, size_of::<Sums>());
/// The caller reads the last [`Control`] that was set.
pub const IOC_READ_CONTROL: u32 = ioc(READ, 0x45, size_of::<Control>());
/// The module stops the counters and takes them from their thread. Their sums stay readable.
pub const IOC_UNLINK: u32 = ioc(0, 0x46, 0);
/// Counters that an overflow has paused go on.
pub const IOC_RESUME: u32 = ioc(0, 0x47, 0);
/// The module gives the calling thread a ring for samples. A thread gets at most one ring.
pub const IOC_RING: u32 = ioc(WRITE, 0x48, size_of::<RingRequest>());
/// The caller says how many records of the ring it has taken. The module reuses their places.
pub const IOC_RING_TAKE: u32 = ioc(WRITE, 0x49, size_of::<u64>());
/// The caller reads how many interrupts and exceptions were subtracted from the thread's counters
/// of user-mode instructions. What the hardware has counted is the sum and this number.
pub const IOC_INTERRUPTS: u32 = ioc(READ, 0x4a, size_of::<u64>());
/// The caller sets what one CPU counts, whatever thread executes on it. Its sums start from 0.
pub const IOC_CPU_CONTROL: u32 = ioc(WRITE, 0x50, size_of::<CpuState>());
/// Counting starts on all CPUs for which something was set.
pub const IOC_CPU_START: u32 = ioc(0, 0x51, 0);
/// Counting stops on all CPUs. The sums stay.
pub const IOC_CPU_STOP: u32 = ioc(0, 0x52, 0);
/// The caller reads one CPU's [`Control`] and sums.
pub const IOC_CPU_READ: u32 = ioc(READ | WRITE, 0x53, size_of::<CpuState>());

/// The `si_code` of an overflow's signal. The word behind it has the bit of each counter that has
/// overflowed set; the bits are in the order of [`Control::counter`].
pub const SIGNAL_CODE: i32 = b'P' as i32;

/// The [`Info::features`] of this version.
pub const MODULE_FEATURES: u32 = FEATURE_KEEP_PERIOD | FEATURE_RING;

/// [`Info::features`]: the module knows [`CONTROL_KEEP_PERIOD`].
pub const FEATURE_KEEP_PERIOD: u32 = 1 << 0;
/// [`Info::features`]: the module knows [`IOC_RING`], [`IOC_RING_TAKE`] and [`CONTROL_RING`].
pub const FEATURE_RING: u32 = 1 << 1;

/// Result of [`IOC_INFO`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Info {
    /// The module's major version.
    pub abi_major: u32,
    /// The module's minor version.
    pub abi_minor: u32,
    /// The features that the module has beyond the first version of its major:
    /// [`MODULE_FEATURES`].
    pub features: u32,
    /// Always 0.
    pub reserved: u32,
    /// What the PMU can do.
    pub caps: WireCaps,
    /// Number of vCPU pages in the mapping.
    pub vcpus: u32,
    /// Family, model and stepping of the processor, in the form in which the processor
    /// itself reports them.
    pub cpu_signature: u32,
    /// Frequency of the time-stamp counter, unit: kHz.
    pub tsc_khz: u32,
    /// Always 0.
    pub reserved_tail: [u32; 9],
}

layout!(Info, "perfctr_info_arg", 96, {
    0 abi_major: "__u32",
    4 abi_minor: "__u32",
    8 features: "__u32",
    12 reserved: "__u32",
    16 caps: "struct perfctr_caps",
    48 vcpus: "__u32",
    52 cpu_signature: "__u32",
    56 tsc_khz: "__u32",
    60 reserved_tail: "__u32" [9],
});

/// Argument of [`IOC_CREATE`] and [`IOC_OPEN`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Create {
    /// The caller's major version.
    pub abi_major: u32,
    /// The caller's minor version.
    pub abi_minor: u32,
    /// The thread's id; 0 stands for the calling thread.
    pub tid: u32,
    /// The features that the caller relies on: bits of [`Info::features`].
    pub features: u32,
    /// Must be 0.
    pub reserved: [u64; 2],
}

layout!(Create, "perfctr_create", 32, {
    0 abi_major: "__u32",
    4 abi_minor: "__u32",
    8 tid: "__u32",
    12 features: "__u32",
    16 reserved: "__u64" [2],
});

/// [`Control::flags`]: the time-stamp counter is counted, too.
pub const CONTROL_TSC: u32 = 1 << 0;
/// [`Control::flags`]: the counters are unlinked when the thread executes another program.
pub const CONTROL_CLOEXEC: u32 = 1 << 1;

/// [`Control::flags`]: the TSC's sum is kept.
pub const CONTROL_KEEP_TSC: u32 = 1 << 2;

/// [`Control::flags`]: each counter continues with the rest of its period, instead of beginning a
/// new one. This holds only if the same counters were set last, in the same order and with the same
/// periods.
pub const CONTROL_KEEP_PERIOD: u32 = 1 << 3;

/// [`Control::flags`]: an overflow writes a record into the thread's ring, sends no signal, and
/// does not pause the counters. The thread must have a ring (else `ENXIO`). At least one counter
/// must sample, and [`Control::signal`] must be 0 (else `EINVAL`).
pub const CONTROL_RING: u32 = 1 << 4;

/// Argument of [`IOC_CONTROL`].
///
/// The sum of a counter whose bit in `preserve` is clear starts from 0. The TSC's sum starts from
/// 0 unless the TSC was counted and stays counted, or [`CONTROL_KEEP_TSC`] is set. With no
/// counters and no TSC everything stops and all sums stay.
///
/// A sampling counter overflows whenever its count since this call reaches a multiple of its
/// period. With [`CONTROL_KEEP_PERIOD`] the count begins with the call that began the period. At
/// an overflow all counters pause, the TSC goes on, and the thread gets the signal. The counters
/// count nothing until [`IOC_RESUME`] lets them go on. With [`CONTROL_RING`] they do not pause.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Control {
    /// `CONTROL_*` bits.
    pub flags: u32,
    /// Number of elements of `counter` in use.
    pub counters: u32,
    /// One bit for each element of `counter`; the sum of an element whose bit is set is kept.
    pub preserve: u32,
    /// The signal that the thread gets at an overflow. It must be 0 if no counter samples, and
    /// with [`CONTROL_RING`].
    pub signal: u32,
    /// The counters, in the order in which [`Sums::counter`] gives their sums.
    pub counter: [CounterConfig; MAX_COUNTERS],
    /// Must be 0.
    pub reserved: [u64; 2],
}

layout!(Control, "perfctr_control_arg", 608, {
    0 flags: "__u32",
    4 counters: "__u32",
    8 preserve: "__u32",
    12 signal: "__u32",
    16 counter: "struct perfctr_counter_config" [MAX_COUNTERS],
    592 reserved: "__u64" [2],
});

/// Result of [`IOC_READ`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Sums {
    /// The TSC's sum, unit: TSC ticks.
    pub tsc: u64,
    /// The counters' sums, unit: events. Those of counters that are not in use are 0.
    pub counter: [u64; MAX_COUNTERS],
}

layout!(Sums, "perfctr_sums", 152, {
    0 tsc: "__u64",
    8 counter: "__u64" [MAX_COUNTERS],
});

/// Argument of [`IOC_CPU_CONTROL`] and [`IOC_CPU_READ`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CpuState {
    /// The CPU's number.
    pub cpu: u32,
    /// Must be 0.
    pub reserved: u32,
    /// What the CPU counts. `CONTROL_CLOEXEC` and `preserve` have no meaning here.
    pub control: Control,
    /// Out: the CPU's sums.
    pub sums: Sums,
}

layout!(CpuState, "perfctr_cpu_state_arg", 768, {
    0 cpu: "__u32",
    4 reserved: "__u32",
    8 control: "struct perfctr_control_arg",
    616 sums: "struct perfctr_sums",
});
