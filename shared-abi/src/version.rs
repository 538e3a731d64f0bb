// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The version handshake; its rules are in `docs/ABI.md`.
//!
//! Both pages and every opening call carry a major and a minor number. Sides with different
//! majors refuse each other with [`Errno::PROTO`](crate::Errno::PROTO).
//!
//! A minor only adds. Two sides that talk to each other do not compare minors: each addition that
//! the other side must know of has a feature bit. Only [`OP_GO_ON`](crate::hypercall::OP_GO_ON)
//! looks at the minor of a page that another hypervisor has written, because that hypervisor cannot
//! be asked any more.

/// The major version, which an incompatible change increments.
///
/// | major | change |
/// |---|---|
/// | 1 | first version |
/// | 2 | capabilities have one form and a features word; structures have room to grow |
pub const ABI_MAJOR: u16 = 2;

/// The minor version, which a compatible addition within [`ABI_MAJOR`] increments.
///
/// | major.minor | addition |
/// |---|---|
/// | 1.0 | accumulating (a-mode) counters; then, before any release and under the same number, sampling ones, tracers, and whole CPUs |
/// | 2.0 | a control can keep the rest of a period, see [`FEATURE_KEEP_PERIOD`](crate::ioctl::FEATURE_KEEP_PERIOD) |
/// | 2.1 | [`OP_PLACE`](crate::hypercall::OP_PLACE); a hypervisor without it answers `EINVAL` |
/// | 2.2 | [`OP_GO_ON`](crate::hypercall::OP_GO_ON), what it needs in the vCPU page, and [`HvQuery::machine`](crate::hypercall::HvQuery); a hypervisor without it answers `EINVAL`, and 0 |
/// | 2.3 | rings for samples, see [`FEATURE_RING`](crate::ioctl::FEATURE_RING) |
/// | 2.4 | [`OP_PROFILE_START`](crate::hypercall::OP_PROFILE_START) and its like; a hypervisor without them answers `EINVAL` |
/// | 2.5 | [`OP_ACCOUNTS_START`](crate::hypercall::OP_ACCOUNTS_START) and its like; a hypervisor without them answers `EINVAL` |
/// | 2.6 | [`PROFILE_AT_GUESTS`](crate::hypercall::PROFILE_AT_GUESTS); a hypervisor without it answers `EINVAL` |
/// | 2.7 | [`OP_RECORD`](crate::hypercall::OP_RECORD) and [`OP_BRANCHES`](crate::hypercall::OP_BRANCHES); a hypervisor that has them says [`FEATURE_BRANCHES`](crate::hypercall::FEATURE_BRANCHES) |
/// | 2.8 | [`OP_DOMAINS`](crate::hypercall::OP_DOMAINS), and limits of single domains in [`HvDomain`](crate::hypercall::HvDomain); a hypervisor without them answers `EINVAL` |
/// | 2.9 | [`MODE_PRECISE`](crate::config::MODE_PRECISE) and [`PLACE_PRECISE`](crate::hypercall::PLACE_PRECISE); a hypervisor that has them says [`FEATURE_PRECISE`](crate::hypercall::FEATURE_PRECISE) |
/// | 2.10 | [`OP_SHOW`](crate::hypercall::OP_SHOW); a hypervisor without it answers `EINVAL` |
/// | 2.11 | [`OP_CLOCK`](crate::hypercall::OP_CLOCK); a hypervisor without it answers `EINVAL` |
/// | 2.12 | [`FEATURE_USER_BRANCHES`](crate::hypercall::FEATURE_USER_BRANCHES): [`OP_RECORD`](crate::hypercall::OP_RECORD) for user mode only |
/// | 2.13 | [`FEATURE_INTERRUPTS`](crate::hypercall::FEATURE_INTERRUPTS), [`IOC_INTERRUPTS`](crate::ioctl::IOC_INTERRUPTS) and [`ThreadPage::interrupts`](crate::ThreadPage) |
pub const ABI_MINOR: u16 = 13;

/// The word that pages carry, with the major in its low half and the minor in its high half.
pub const ABI_WORD: u32 = ABI_MAJOR as u32 | (ABI_MINOR as u32) << 16;

/// The first word of a [`VcpuPage`](crate::VcpuPage): `"PcVc"` in memory order.
pub const VCPU_PAGE_MAGIC: u32 = u32::from_le_bytes(*b"PcVc");

/// The first word of a [`ThreadPage`](crate::ThreadPage): `"PcTh"` in memory order.
pub const THREAD_PAGE_MAGIC: u32 = u32::from_le_bytes(*b"PcTh");
