// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The guest's device `/dev/perfctr`: its ioctls and its mapping.
//!
//! A descriptor names the counters of one thread once [`IOC_CREATE`] or [`IOC_OPEN`] has bound it.
//!
//! | ioctl | argument | errors besides `EFAULT` |
//! |---|---|---|
//! | [`IOC_INFO`] | [`Info`], out | - |
//! | [`IOC_CREATE`] | [`Create`] | `EPROTO` other major, `EOPNOTSUPP` a feature that the module lacks, `EEXIST` the thread has counters or the descriptor is bound, `EINVAL` reserved fields, `ENOMEM`, `ESRCH` a thread that may not be operated, `EBUSY` whole CPUs count; `EPERM` the host does not let the domain count, `ENODEV`, `ENOSYS`, `EOPNOTSUPP` nor does the one where it was restored, `ESTALE` that has other counters |
//! | [`IOC_OPEN`] | [`Create`] | `EPROTO`, `EOPNOTSUPP`, `ESRCH` the thread has none, `EEXIST`, `EINVAL` |
//! | [`IOC_CONTROL`] | [`Control`] | those of [`ConfigError`](crate::ConfigError) and of the hypercall; `ESRCH` unlinked, or of a thread that may not be operated |
//! | [`IOC_READ`] | [`Sums`], out | `EINVAL` not bound |
//! | [`IOC_READ_CONTROL`] | [`Control`], out | `EINVAL` not bound |
//! | [`IOC_RESUME`] | - | `EPERM` not paused by an overflow; `ESRCH` unlinked, or of a thread that may not be operated |
//! | [`IOC_RING`] | [`RingRequest`] | `EINVAL` no such size, or not bound; `ESRCH` unlinked; `EPERM` by another thread than the one whose the counters are; `EBUSY` it counts; `EEXIST` it has a ring; `ENOSPC` more than `RLIMIT_MEMLOCK` for all rings of its user; `ENOMEM` |
//! | [`IOC_RING_TAKE`] | `u64`: records taken since there is a ring | `EINVAL` fewer than before, or more than were written; `ENXIO` no ring |
//! | [`IOC_UNLINK`] | - | `ESRCH` of a thread that may not be operated; repeating it is no error |
//! | [`IOC_CPU_CONTROL`] | [`CpuState`] | `EPERM` not privileged, or a counter samples; `EINVAL` no such CPU, or offline; `EBUSY` started |
//! | [`IOC_CPU_START`] | - | `EPERM` not privileged; `EBUSY` started, or threads have counters |
//! | [`IOC_CPU_STOP`] | - | `EPERM` not privileged |
//! | [`IOC_CPU_READ`] | [`CpuState`], in and out | `EPERM` not privileged; `EINVAL` no such CPU |
//!
//! All return 0, but for `IOC_CPU_CONTROL` and `IOC_CPU_START`: the number of CPUs that have
//! something to count.  Threads cannot be given counters while CPUs count (`EBUSY`), nor the other
//! way round.
//!
//! A thread may be operated by itself, and by its tracer while it is stopped (`ptrace(2)`).  What
//! the tracer asks for is judged at once, and takes effect before the thread executes anything of
//! its own.
//!
//! The mapping is `1 + Info::vcpus` pages at offset 0, shared and read-only (else `EPERM`): the
//! thread's page, then each vCPU's.  A ring is another one, see [`ring`](crate::ring).  poll(2)
//! says `POLLIN` while a ring is full to its watermark, `POLLHUP` when the thread's counters are
//! unlinked.

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

/// An ioctl's number (Linux, `Documentation/userspace-api/ioctl/ioctl-number.rst`).
const fn ioc(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | IOC_TYPE << 8 | number
}

/// What this machine offers.
pub const IOC_INFO: u32 = ioc(READ, 0x40, size_of::<Info>());
/// Give a thread counters and bind the descriptor to them.
pub const IOC_CREATE: u32 = ioc(WRITE, 0x41, size_of::<Create>());
/// Bind the descriptor to a thread's counters.
pub const IOC_OPEN: u32 = ioc(WRITE, 0x42, size_of::<Create>());
/// Set what is counted and start; no counters and no TSC to stop.
pub const IOC_CONTROL: u32 = ioc(WRITE, 0x43, size_of::<Control>());
/// Read all sums.
pub const IOC_READ: u32 = ioc(READ, 0x44, size_of::<Sums>());
/// Read the last control.
pub const IOC_READ_CONTROL: u32 = ioc(READ, 0x45, size_of::<Control>());
/// Stop, and take the counters from their thread; their sums stay readable.
pub const IOC_UNLINK: u32 = ioc(0, 0x46, 0);
/// Let counters go on that an overflow has paused.
pub const IOC_RESUME: u32 = ioc(0, 0x47, 0);
/// Give the calling thread a ring for samples, once.
pub const IOC_RING: u32 = ioc(WRITE, 0x48, size_of::<RingRequest>());
/// Say how many records of the ring have been taken; their places are written again.
pub const IOC_RING_TAKE: u32 = ioc(WRITE, 0x49, size_of::<u64>());
/// Set what one CPU counts, whatever thread executes on it; its sums start from 0.
pub const IOC_CPU_CONTROL: u32 = ioc(WRITE, 0x50, size_of::<CpuState>());
/// Start counting on all CPUs that have been set.
pub const IOC_CPU_START: u32 = ioc(0, 0x51, 0);
/// Stop counting on all CPUs.  Sums stay.
pub const IOC_CPU_STOP: u32 = ioc(0, 0x52, 0);
/// Read one CPU's control and sums.
pub const IOC_CPU_READ: u32 = ioc(READ | WRITE, 0x53, size_of::<CpuState>());

/// `si_code` of an overflow's signal; the word behind it holds one bit for each counter, in the
/// order of [`Control::counter`], that has overflowed.
pub const SIGNAL_CODE: i32 = b'P' as i32;

/// [`Info::features`] of this version.
pub const MODULE_FEATURES: u32 = FEATURE_KEEP_PERIOD | FEATURE_RING;

/// [`Info::features`]: the module knows [`CONTROL_KEEP_PERIOD`].
pub const FEATURE_KEEP_PERIOD: u32 = 1 << 0;
/// [`Info::features`]: the module knows [`IOC_RING`], [`IOC_RING_TAKE`] and [`CONTROL_RING`].
pub const FEATURE_RING: u32 = 1 << 1;

/// Result of [`IOC_INFO`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Info {
    /// The module's major.
    pub abi_major: u32,
    /// The module's minor.
    pub abi_minor: u32,
    /// [`MODULE_FEATURES`]: what the module can do beyond the first version of its major.
    pub features: u32,
    /// 0.
    pub reserved: u32,
    /// What the PMU can do.
    pub caps: WireCaps,
    /// Pages of vCPUs in the mapping.
    pub vcpus: u32,
    /// Family, model and stepping of the processor, in the form in which it gives them itself.
    pub cpu_signature: u32,
    /// Frequency of the time-stamp counter.
    pub tsc_khz: u32,
    /// 0.
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
    /// The caller's major.
    pub abi_major: u32,
    /// The caller's minor.
    pub abi_minor: u32,
    /// The thread; 0 for the caller.
    pub tid: u32,
    /// What the caller relies on: bits of [`Info::features`].
    pub features: u32,
    /// 0.
    pub reserved: [u64; 2],
}

layout!(Create, "perfctr_create", 32, {
    0 abi_major: "__u32",
    4 abi_minor: "__u32",
    8 tid: "__u32",
    12 features: "__u32",
    16 reserved: "__u64" [2],
});

/// [`Control::flags`]: count the time-stamp counter.
pub const CONTROL_TSC: u32 = 1 << 0;
/// [`Control::flags`]: unlink when the thread executes another program.
pub const CONTROL_CLOEXEC: u32 = 1 << 1;

/// [`Control::flags`]: keep the TSC's sum.
pub const CONTROL_KEEP_TSC: u32 = 1 << 2;

/// [`Control::flags`]: if these very counters were set last, in this order and with these periods,
/// go on with what was left of each period, instead of beginning whole ones.
pub const CONTROL_KEEP_PERIOD: u32 = 1 << 3;

/// [`Control::flags`]: overflows are records in the thread's ring (else `ENXIO`), not signals, and
/// do not pause the counters.  With a counter that samples, and without a signal (else `EINVAL`).
pub const CONTROL_RING: u32 = 1 << 4;

/// Argument of [`IOC_CONTROL`].
///
/// Sums of counters whose bit in `preserve` is clear start from 0, and so does the TSC's unless it
/// was and stays counted, or is to be kept.  With no counters and no TSC everything stops and all
/// sums stay.
///
/// A sampling counter overflows whenever its count since this call reaches a multiple of its
/// period; with [`CONTROL_KEEP_PERIOD`], its count since the call that began the period.  At an
/// overflow all counters pause, the TSC goes on, and the thread gets the signal; [`IOC_RESUME`]
/// lets them go on.  Nothing is counted in between.  With [`CONTROL_RING`] they go on by
/// themselves.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Control {
    /// `CONTROL_*` bits.
    pub flags: u32,
    /// Elements of `counter` in use.
    pub counters: u32,
    /// One bit per element whose sum is kept.
    pub preserve: u32,
    /// The signal that the thread gets at an overflow; 0 unless a counter samples, and with
    /// [`CONTROL_RING`].
    pub signal: u32,
    /// The counters, in the order in which their sums are given.
    pub counter: [CounterConfig; MAX_COUNTERS],
    /// 0.
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
    /// Unit: TSC ticks.
    pub tsc: u64,
    /// Unit: events.  0 for counters not in use.
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
    /// The CPU.
    pub cpu: u32,
    /// 0.
    pub reserved: u32,
    /// What it counts; `CONTROL_CLOEXEC` and `preserve` have no meaning here.
    pub control: Control,
    /// Out only.
    pub sums: Sums,
}

layout!(CpuState, "perfctr_cpu_state_arg", 768, {
    0 cpu: "__u32",
    4 reserved: "__u32",
    8 control: "struct perfctr_control_arg",
    616 sums: "struct perfctr_sums",
});
