// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Bugs planted on purpose, each of which the simulator must find.
//!
//! They are the faults of `tests/faults` whose tier is `sim`. The sources have none of them:
//! `cargo xtask sim` builds a copy of the sources, where each can be switched on.

#[cfg(faults)]
pub use shared_abi::faults::Fault as Bug;

/// A bug, of which there are none in the sources themselves.
#[cfg(not(faults))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug(());

#[cfg(not(faults))]
impl Bug {
    /// Every bug.
    pub const ALL: &[Self] = &[];
    /// The bugs that the simulator must find.
    pub const SIMULATED: &[Self] = &[];

    /// Switches one bug, or none, on in this thread.
    pub fn switch(_: Option<Self>) {}

    /// Returns the bug that is switched on in this thread.
    pub fn switched_on() -> Option<Self> {
        None
    }
}
