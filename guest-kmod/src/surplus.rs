// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides which interrupts and exceptions are subtracted from counts of user-mode instructions, on
//! CPUs that count each of them as one more instruction of the code that it interrupts.
//!
//! The kernel calls the module wherever it traces an interrupt or an exception. That may be several
//! times for one, and also for one that has interrupted the kernel. So two questions are asked:
//!
//! 1. Has the thread left user mode by an interrupt or an exception ([`Entry::is_counted`])?
//! 2. Has the thread executed in user mode since the last one that was subtracted? Nothing counts
//!    in user mode while the kernel executes, and an interrupt in user mode counts itself. So the
//!    count has changed exactly if the answer is yes.

use shared_abi::arch::{EVNTSEL_RINGS, EVNTSEL_USR, events, is_instruction};
use shared_abi::{Config, PhysSlot};

use crate::ioctl::Order;

/// A mode in which a CPU of the guest executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Programs.
    User,
    /// The guest's kernel.
    Kernel,
}

/// The number of no system call. The kernel has it in place of one if a thread has left user mode
/// in another way.
const NO_SYSTEM_CALL: i64 = -1;

/// What the kernel knows of how the executing thread has entered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The mode that the present interrupt or exception has stopped, if there is one and if the
    /// kernel knows that.
    pub interrupted: Option<Mode>,
    /// The number of the system call by which the thread has left user mode, or -1.
    pub system_call: i64,
    /// The vector of the exception for which the thread gets a signal now, or 0.
    pub vector: u32,
}

impl Entry {
    /// Returns whether the CPU has counted this entry as one more instruction of user mode. `None`
    /// says that user mode was not left just now, and that nothing is known of how it was left.
    ///
    /// If the kernel does not know what was interrupted, the thread's way out of user mode decides.
    /// That would be wrong while the kernel returns from a signal's handler, since the thread then
    /// gets the way out by which it had come to the signal. So C tells the core of such a return,
    /// by the vector of an instruction.
    pub fn is_counted(&self) -> Option<bool> {
        if is_instruction(self.vector as u8) {
            return Some(false);
        }
        let is_of_user_mode = match self.interrupted {
            Some(mode) => mode == Mode::User,
            None => self.system_call == NO_SYSTEM_CALL,
        };
        is_of_user_mode.then_some(true)
    }
}

/// Returns whether a counter with this event select counts the instructions of user mode alone.
///
/// A counter that counts the kernel, too, counts the interrupts of the kernel, of which the module
/// does not know.
pub(crate) fn is_counted_by(slot: PhysSlot, evntsel: u64) -> bool {
    evntsel & EVNTSEL_RINGS == EVNTSEL_USR && events::counts_instructions(slot, evntsel)
}

/// What was subtracted from the counters of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Surplus {
    /// One bit for each of its counters that counts the instructions of user mode alone.
    counters: u32,
    /// What the first of these had counted when it was last set, or when an interrupt was last
    /// subtracted from it.
    noted: u64,
}

impl Surplus {
    /// Makes the state of counters that begin at these counts.
    pub(crate) fn begin(config: &Config, order: &Order, counts: &[u64]) -> Self {
        let slots = order.slots().iter().enumerate();
        let counting = slots.filter(|(_, slot)| is_counted_by(**slot, config.evntsel(**slot)));
        let counters = counting.fold(0, |counters, (index, _)| counters | 1 << index);
        let mut surplus = Self { counters, noted: 0 };
        surplus.noted = surplus.first().and_then(|first| counts.get(first)).copied().unwrap_or(0);
        surplus
    }

    /// Returns the counters from which interrupts are subtracted, by one bit for each.
    pub(crate) const fn counters(&self) -> u32 {
        self.counters
    }

    /// Returns the first of these counters, if there is one.
    pub(crate) fn first(&self) -> Option<usize> {
        (self.counters != 0).then(|| self.counters.trailing_zeros() as usize)
    }

    /// Returns whether an interrupt has to be subtracted, if the first counter has this count. The
    /// caller subtracts it then. Otherwise, if an instruction has brought the thread into the
    /// kernel, nothing is subtracted before the thread has executed in user mode again.
    pub(crate) fn note(&mut self, count: u64, is_counted: bool) -> bool {
        let is_new = is_counted && count != self.noted;
        self.noted = count.wrapping_sub(is_new.into());
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_is_counted_where_it_interrupts_and_instructions_are_not() {
        for (system_call, interrupted, vector, is_counted, what) in [
            (-1, None, 0, Some(true), "a page fault"),
            (-1, None, 6, Some(true), "an invalid instruction, which gets a signal"),
            (-1, None, 3, Some(false), "INT3, which gets a signal"),
            (-1, None, 4, Some(false), "INTO, which gets a signal"),
            (15, None, 3, Some(false), "the return from a signal's handler"),
            (7, None, 0, None, "a system call"),
            (0, None, 0, None, "system call 0, or a thread of the kernel"),
            (-1, Some(Mode::Kernel), 0, None, "an interrupt after a page fault"),
            (7, Some(Mode::Kernel), 0, None, "an interrupt in a system call"),
            (-1, Some(Mode::User), 0, Some(true), "an interrupt"),
        ] {
            assert_eq!(
                Entry { system_call, interrupted, vector }.is_counted(),
                is_counted,
                "{what}"
            );
        }
    }
}
