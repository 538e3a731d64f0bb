// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod claim;
mod cpus;
mod error;
mod event;
pub mod host;
mod map;
pub mod overflow;
mod provider;
pub mod raw;
pub mod rdpmc;
mod session;
mod sys;

pub use error::Error;
#[cfg(feature = "pfm")]
pub use event::{Described, catalogue};
pub use event::{Event, ParseEventError};
pub use provider::refusal::{Cause, Refusal};
pub use provider::types::{Description, Provider};
pub use session::{Counts, Reading, Session};
pub use shared_abi::caps::CAPS_SAMPLING;
pub use shared_abi::{CounterWidth, PhysSlot, PmuCaps};
