// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What a sample says of where its event has overflowed.

use shared_abi::hypercall::{HvPlace, PLACE_NONE, PLACE_USER};

/// Whose registers a sample gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Registers {
    /// The thread's when it entered the kernel.
    User = 0,
    /// Those that the interrupt has stopped.
    Interrupted = 1,
    /// The place that the hypervisor has given.
    Place = 2,
}

impl Registers {
    /// Of an event that counts user mode alone: it did so before the kernel was entered.
    pub(crate) const fn of_user_mode(interrupted: &HvPlace) -> Self {
        if interrupted.mode == PLACE_USER { Self::Interrupted } else { Self::User }
    }

    /// Of an event that counts the kernel too, which the hypervisor has seen overflow at `place`:
    /// it knows better than where the interrupt was taken, if it knows.
    pub(crate) const fn of_both_modes(interrupted: &HvPlace, place: &HvPlace) -> Self {
        let is_interrupt = interrupted.mode != PLACE_NONE;
        let same = interrupted.ip == place.ip && interrupted.sp == place.sp;
        match place.mode {
            PLACE_USER => Self::User,
            PLACE_NONE if is_interrupt => Self::Interrupted,
            PLACE_NONE => Self::User,
            _ if is_interrupt && same => Self::Interrupted,
            _ => Self::Place,
        }
    }
}
