// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reports overflows to the thread that executes: by a signal, or by records in its ring.
//!
//! The module's glue and the simulator both implement [`Reporter`].

use shared_abi::ThreadPage;
use shared_abi::slot::bits_of;

use crate::overflow::Signal;
use crate::ring::{Ring, RingPlace};
use crate::thread::ThreadPmu;

/// The thread that executes this, with interrupts disabled, as overflows are reported to it.
pub trait Reporter {
    /// Executes this with the thread's counters, its page and its ring.
    fn with_ring<R>(&mut self, run: impl FnOnce(&ThreadPmu, &ThreadPage, &Ring) -> R) -> R;

    /// Sends the signal to the thread.  Returns whether the thread will get it.
    fn send(&mut self, signal: Signal) -> bool;

    /// Calls [`ThreadPmu::signal_lost`].
    fn signal_lost(&mut self);

    /// Writes a record at its place: the values in `place`, and where the thread was.
    fn write(&mut self, place: &RingPlace);

    /// Wakes whoever waits for records.
    fn wake(&mut self);

    /// Reports the overflows that [`ThreadPmu`] has found.
    fn report(&mut self, found: Signal) {
        if found.number == 0 {
            self.record(found.counters);
        } else if !self.send(found) {
            // Otherwise nothing would let the counters go on.
            self.signal_lost();
        }
    }

    /// Writes a record of each of these counters for which there is room.
    fn record(&mut self, counters: u32) {
        for counter in bits_of(counters) {
            let place = self.with_ring(|pmu, page, ring| {
                let offset = ring.place(page)?;
                let (count, tsc) = pmu.counted(counter as usize);
                let callers = ring.callers();
                Some(RingPlace { offset, count, tsc, counter, callers })
            });
            if let Some(place) = place {
                self.write(&place);
                self.with_ring(|_, page, ring| ring.wrote(page));
            }
        }
        if self.with_ring(|_, _, ring| ring.is_ready()) {
            self.wake();
        }
    }
}
