// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts and samples Linux's perf events on one vCPU.
//!
//! perf adds an event on the vCPU where the event's task executes, or on the CPU that the event
//! counts, and removes it again. In between the event *holds* a counter, beside the present
//! thread's own counters, and its count is the sum of the growth of that counter's `Phys*`.
//!
//! * `event` translates perf's request, and knows which counters can count it.
//! * `branches` translates perf's words for the branches that the hypervisor records.
//! * `held` keeps the events of one vCPU and their counts. It accesses no hardware.
//! * `stall` computes for how long an event has not counted although perf believes that it counts.
//! * `sample` decides whose registers a sample reports.
//! * `cpu` does the work of perf's PMU on a vCPU.
//! * `local` decides in which order each of perf's callbacks does that work.
//! * `state` keeps perf's notes of an event's state.
//! * `contexts` decides when tasks are searched for contexts that perf has left.
//!
//! Events are *live* while what they hold is loaded and each has a `Phys*` to subtract. They are
//! folded whenever that ends: when perf disables its PMU, when something else is to be loaded, and
//! when the vCPU's page is taken back. Folding and going live again loses no event of user mode,
//! since both happen in the kernel.
//!
//! Events are *stalled* if they are not live although perf's PMU is enabled: the host forbids the
//! domain to count, or has other counters. perf must not count this time as time of counting.

mod branches;
mod contexts;
mod cpu;
mod event;
pub(crate) mod held;
mod local;
mod sample;
mod stall;
mod state;

pub use branches::BranchStack;
pub use contexts::Searches;
pub use event::{EventAttr, EventConfig, PRECISE_MAX};
pub use held::{Progress, fit};
pub use local::{EventTime, LocalEvents};
pub use sample::Registers;
pub use state::{is_unread, stopped};

#[cfg(test)]
mod tests;
