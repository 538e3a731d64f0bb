// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The part of the driver that differs from one processor architecture to another.
//!
//! An [`Identity`] is what a CPU reports about itself; it determines which PMU the CPU has.
//! [`Registers`] has the numbers of that PMU's registers, and [`Selectors`] has the values of the
//! registers that select events. `probe` tries each register before the driver relies on it.
//!
//! The rest of the driver gets the registers' numbers from here, and names none itself.

mod x86;

pub(crate) use x86::branches::BranchRecord;
pub use x86::branches::{BranchRegisters, Filter};
pub(crate) use x86::probe::{freeze_again, keep_counting, probe};
pub use x86::selectors::{EVNTSEL_GUEST_ONLY, EVNTSEL_OWN_INSTRUCTIONS, Selectors};
pub(crate) use x86::selectors::{can_limit_selectors, of_guest, of_hypervisor};
pub use x86::{
    Fixed, Global, Identity, RECORD_AREA_BYTES, Readable, RecordArea, Refusal, Registers,
    global_bits, slots_of_global,
};
pub(crate) use x86::{
    PreciseRecord, entry_slots, instruction_slots, masks_entry_of_pmu, mode_at, precise_slots,
};
