// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates hosts and guests deterministically. It runs the very code of the hypervisor's driver,
//! the guest's module and the user's read path.
//!
//! `truth` keeps ledgers of the events that happened, and derives from them, never from a counter
//! or a page, what each reader should get. Whatever the cores publish or return is compared with
//! that, and after each step also what the executing thread would read.
//!
//! * `machine` executes CPUs, vCPUs and threads, one step at a time; `fiber` gives each a stack.
//! * `host` and `guest` do what Xen and Linux do around the cores; `thread` does what programs do.
//! * `kvm` does what is different if the hypervisor is Linux with KVM; `contention` simulates that
//!   host's own perf, which also wants the counters.
//! * `cpu_wide` simulates CPU-wide counting, `perf` Linux's perf, and `rings` the readers of rings.
//! * `frames` gives each page of a vCPU its frame in the guest's memory.
//! * `users` simulates the users of one guest, and checks that each sees only its own threads.
//! * `pmu` simulates the hardware, by the numbers in `model`.
//! * `audit` checks the rules after each step; `choice` decides what happens next.
//! * `run` runs seeds, replays and minimises.
//! * `guided` looks for runs that have new features, which `coverage` records.
//! * `search` tries every interleaving of small machines.
//! * `growth` counts what operations cost.
//!
//! Accesses happen in the order in which they are made, as if processors had no store buffers. On
//! x86 this omits nothing. An x86 processor delays its stores, in order, behind its own later
//! loads, and reorders nothing else. The delay is visible only if two processors each store to one
//! place and then load the other's. That does not happen with these pages. The hypervisor loads
//! only pages that were left by a vCPU which executes nowhere. Threads store to no page. A guest's
//! kernel stores only to pages and rings of threads, and to pages of CPU-wide counters, which the
//! hypervisor never loads. `machine` fails if any of this is not true. So a late store has the same
//! effect as a writer that comes later, which the simulation tries. Loom checks the sequence
//! protocol under weaker orders (`shared-abi/tests/loom_seq.rs`).
//!
//! The cores announce their accesses only in builds with `--cfg sim`, so this crate is empty in any
//! other build: `cargo xtask sim` builds it.
#![cfg(sim)]

mod audit;
mod build;
mod choice;
mod contention;
mod coverage;
mod cpu_wide;
mod fiber;
mod frames;
pub mod growth;
mod guest;
pub mod guided;
mod host;
mod kvm;
mod machine;
mod model;
mod perf;
pub mod planted;
mod pmu;
mod rings;
mod rng;
pub mod run;
pub mod search;
mod shape;
mod thread;
mod trace;
mod truth;
mod users;
