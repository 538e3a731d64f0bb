// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The part of this crate that differs from one processor architecture to another.
//!
//! Everything else in the crate is arithmetic, pages and protocol, and names no instruction and no
//! register. An architecture has a file here, which defines:
//!
//! * the bits of an event-select word (`EVNTSEL_*`), and which of them a guest may set;
//! * which events count only their own logical processor ([`events`]);
//! * the number by which the instruction that reads a counter names it ([`counter_index`],
//!   [`slot_of_counter_index`]);
//! * which vectors are those of instructions, and not of interrupts or faults ([`is_instruction`]);
//! * which addresses are those of a kernel ([`is_kernels_address`]);
//! * the width of the clock that counts a thread's time ([`CLOCK_MASK`]);
//! * how far from its overflow a counter can be preset ([`PRESET_EVENTS_MAX`]).
//!
//! The instructions themselves are behind [`Counters`](crate::read::Counters). The interface has
//! one architecture so far; the book's decision record 27 says what arm64 would put here.

mod x86;

pub use x86::{
    CLOCK_MASK, EVNTSEL_AMD_EVENT_HIGH, EVNTSEL_ANY, EVNTSEL_CMASK, EVNTSEL_EDGE, EVNTSEL_EN,
    EVNTSEL_EVENT_MASK, EVNTSEL_INSTRUCTIONS, EVNTSEL_INT, EVNTSEL_INV, EVNTSEL_OS, EVNTSEL_PC,
    EVNTSEL_QUALIFIERS, EVNTSEL_RINGS, EVNTSEL_USR, PRESET_EVENTS_MAX, counter_index, events,
    is_instruction, is_kernels_address, slot_of_counter_index,
};
pub(crate) use x86::{EVNTSEL_EVENT, EVNTSEL_GUEST, EVNTSEL_PRIVILEGED};
