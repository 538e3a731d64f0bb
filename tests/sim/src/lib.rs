// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A deterministic simulation of hosts and guests that runs the very code of the hypervisor's
//! driver, the guest's module and the user's read path.
//!
//! Nothing here computes a counter's value: `truth` keeps ledgers of what happened, and what the
//! cores publish and return is compared with them, after every step.
//!
//! * `machine` executes CPUs, vCPUs and threads, one step at a time; `fiber` gives each a stack.
//! * `host` and `guest` do what Xen and Linux do around the cores; `thread` does what programs do.
//! * `kvm` does what differs where the hypervisor is Linux with KVM; `contention` simulates that
//!   host's own perf, which wants the counters, too.
//! * `cpu_wide` simulates CPU-wide counting, `perf` Linux's perf, and `rings` the readers of rings.
//! * `frames` keeps the pages that a guest has registered.
//! * `users` keeps the users of one guest, and what each sees of its vCPUs.
//! * `pmu` simulates the hardware, by the numbers in `model`.
//! * `audit` checks the rules after each step; `choice` decides what happens next.
//! * `run` runs seeds, replays and minimises.
//! * `guided` looks for steps that are new, as `coverage` shows them.
//! * `search` tries every interleaving of small machines.
//! * `growth` counts what operations cost.
//!
//! Accesses happen in the order in which they are made, as if processors had no store buffers.  On
//! x86 that leaves nothing out.  A processor there delays its stores, in order, behind its own
//! later loads, and reorders nothing else; that is seen only if two processors each store to one
//! place and then load the other's.  Of these pages the hypervisor loads none but what a vCPU has
//! left that executes nowhere, threads store to none, and a guest's kernel stores only to threads'
//! pages, which the hypervisor never looks at: `machine` fails if any of this is not true.  So late
//! stores are as good as a writer that comes later, which is tried.  Weaker orders of the sequence
//! protocol are loom's (`shared-abi/tests/loom_seq.rs`).
//!
//! The cores announce their accesses only in builds with `--cfg sim`, so this crate is empty in
//! any other: `cargo xtask sim` builds it.
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
