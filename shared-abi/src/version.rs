// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The version handshake.
//!
//! Both pages and every opening call carry a major and a minor number.  Sides with different
//! majors refuse each other with [`Errno::PROTO`](crate::Errno::PROTO); a minor only adds.

/// Incompatible changes.
///
/// | major | change |
/// |---|---|
/// | 1 | first version |
pub const ABI_MAJOR: u16 = 1;

/// Compatible additions within [`ABI_MAJOR`].
///
/// | major.minor | addition |
/// |---|---|
/// | 1.0 | accumulating (a-mode) counters |
pub const ABI_MINOR: u16 = 0;

/// First word of a [`VcpuPage`](crate::VcpuPage): `"PcVc"` in memory order.
pub const VCPU_PAGE_MAGIC: u32 = u32::from_le_bytes(*b"PcVc");

/// First word of a [`ThreadPage`](crate::ThreadPage): `"PcTh"` in memory order.
pub const THREAD_PAGE_MAGIC: u32 = u32::from_le_bytes(*b"PcTh");
