// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod counts;
mod subscriber;
mod thread;

pub use counts::{Closed, SpanCounts};
pub use subscriber::{CountingSubscriber, SpanCounter};
