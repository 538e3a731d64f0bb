// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod error;
mod event;
mod map;
mod native;
pub mod overflow;
mod paravirt;
pub mod raw;
pub mod rdpmc;
mod session;
mod sys;
mod tsc;

pub use error::Error;
pub use event::Event;
pub use session::{Description, Provider, Reading, Session};
pub use shared_abi::{CounterWidth, PhysSlot, PmuCaps};
