// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What differs from one processor architecture to another.
//!
//! [`Identity`] is what a CPU says of itself, from which follows which PMU it has.  [`Registers`]
//! says where the registers of that PMU are, and [`Selectors`] what is written to those that select
//! events.  `probe` tries each register before anybody relies on it.
//!
//! The rest of the driver reads and writes registers whose numbers it was given here, and names
//! none itself.

mod x86;

pub(crate) use x86::probe::probe;
pub use x86::selectors::{EVNTSEL_GUEST_ONLY, EVNTSEL_OWN_INSTRUCTIONS, Selectors};
pub use x86::{
    Fixed, Global, Identity, Readable, Refusal, Registers, global_bits, slots_of_global,
};
