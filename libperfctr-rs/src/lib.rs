// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
// Public types may get more fields and variants, so these lints demand `non_exhaustive`.
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]
#![cfg_attr(not(feature = "std"), no_std)]

// These modules need an operating system.
#[cfg(feature = "std")]
mod claim;
#[cfg(feature = "std")]
mod counting;
#[cfg(feature = "std")]
mod cpus;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod event;
#[cfg(feature = "std")]
pub mod host;
#[cfg(feature = "std")]
mod map;
#[cfg(feature = "std")]
pub mod nested;
#[cfg(feature = "std")]
pub mod overflow;
#[cfg(feature = "std")]
mod overhead;
#[cfg(feature = "std")]
mod polls;
#[cfg(feature = "std")]
mod provider;
#[cfg(feature = "std")]
pub mod raw;
#[cfg(feature = "std")]
pub mod regions;
#[cfg(feature = "std")]
mod session;
#[cfg(feature = "std")]
mod shared;
#[cfg(feature = "std")]
mod sys;
#[cfg(feature = "std")]
mod total;
#[cfg(feature = "std")]
pub mod watch;

#[cfg(target_arch = "x86_64")]
pub mod rdpmc;
#[cfg(target_arch = "x86_64")]
pub mod reader;

// Machines other than x86 have no pages to read: these modules are private there, and the providers
// that need them refuse.
#[cfg(not(target_arch = "x86_64"))]
#[path = "rdpmc/elsewhere.rs"]
mod rdpmc;
#[cfg(not(target_arch = "x86_64"))]
mod reader;

#[cfg(feature = "std")]
pub use counting::{Counting, start};
#[cfg(feature = "std")]
pub use error::Error;
#[cfg(feature = "pfm")]
pub use event::{Described, catalogue};
#[cfg(feature = "std")]
pub use event::{Event, ParseEventError};
#[cfg(feature = "std")]
pub use polls::Polls;
#[cfg(feature = "std")]
pub use provider::refusal::{Cause, Refusal};
#[cfg(feature = "std")]
pub use provider::types::{Description, Provider};
#[cfg(feature = "std")]
pub use session::{Counts, Reading, Session};
#[cfg(feature = "std")]
pub use shared::shared;
pub use shared_abi::caps::CAPS_SAMPLING;
pub use shared_abi::{CounterWidth, PhysSlot, PmuCaps, ThreadPage, VcpuPage};
