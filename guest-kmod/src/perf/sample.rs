// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides whose registers a sample reports, and so which place.

use shared_abi::hypercall::{HvPlace, PLACE_NONE, PLACE_PRECISE, PLACE_USER};

/// The registers that a sample gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Registers {
    /// The thread's registers when it entered the kernel.
    User = 0,
    /// The registers that the interrupt has stopped.
    Interrupted = 1,
    /// The place that the hypervisor has given.
    Place = 2,
    /// The same, and it is that of the event itself.
    Precise = 3,
}

impl Registers {
    /// Returns the registers for an event that the hypervisor has seen overflow at `place`.
    pub(crate) fn by_place(
        is_precise: bool,
        counts_kernel: bool,
        interrupted: &HvPlace,
        place: &HvPlace,
    ) -> Self {
        if is_precise && place.mode & PLACE_PRECISE != 0 {
            Self::Precise
        } else if counts_kernel {
            Self::of_both_modes(interrupted, place)
        } else {
            Self::of_user_mode(interrupted)
        }
    }

    /// Returns the registers for an event that counts user mode alone: it has overflowed before the
    /// thread entered the kernel.
    pub(crate) const fn of_user_mode(interrupted: &HvPlace) -> Self {
        if interrupted.mode == PLACE_USER { Self::Interrupted } else { Self::User }
    }

    /// Returns the registers for an event that also counts the kernel, and that the hypervisor has
    /// seen overflow at `place`. If the hypervisor knows the place, it is more exact than the place
    /// of the interrupt.
    pub(crate) const fn of_both_modes(interrupted: &HvPlace, place: &HvPlace) -> Self {
        let is_interrupt = interrupted.mode != PLACE_NONE;
        let same = interrupted.ip == place.ip && interrupted.sp == place.sp;
        match place.mode & !PLACE_PRECISE {
            PLACE_USER => Self::User,
            PLACE_NONE if is_interrupt => Self::Interrupted,
            PLACE_NONE => Self::User,
            _ if is_interrupt && same => Self::Interrupted,
            _ => Self::Place,
        }
    }
}
