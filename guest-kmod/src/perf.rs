// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts and samples Linux's perf events on one vCPU.
//!
//! perf adds an event on the vCPU where the event's task executes, or on the CPU that the event
//! counts, and removes it again.  In between the event *holds* a counter, beside those that the
//! present thread has of its own, and its count is the sum of what that counter's `Phys*` grew by.
//!
//! * `event` is what perf asks for, and which counters can count it.
//! * `branches` is what perf calls the branches that the hypervisor records.
//! * `held` are the events of one vCPU and what each has counted.  It knows no hardware.
//! * `stall` is for how long an event has not counted although perf takes it for one that counts.
//! * `sample` is what a sample says of where its event has overflowed.
//! * `cpu` is what perf's PMU does on a vCPU.
//! * `local` is in which order perf's callbacks do that.
//!
//! Events are *live* while what they hold is loaded and each has a `Phys*` to subtract.  They are
//! folded whenever that ends: when perf disables its PMU, when something else is to be loaded, and
//! when the vCPU's page is taken back.  Folding and going live again loses nothing that user mode
//! does, since both happen in the kernel.
//!
//! Events are *stalled* if they are not live although perf's PMU is enabled: the host forbids the
//! domain to count, or has other counters.  perf must not take that time for time of counting.

mod branches;
mod cpu;
mod event;
pub(crate) mod held;
mod local;
mod sample;
mod stall;

pub use branches::BranchStack;
pub use event::{EventAttr, EventConfig};
pub use held::{Progress, fit};
pub use local::{EventTime, LocalEvents};
pub use sample::Registers;

#[cfg(test)]
mod tests;
