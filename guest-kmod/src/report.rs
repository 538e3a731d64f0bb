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

    /// Sends the signal to the thread. Returns whether the thread will get it.
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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use shared_abi::ring::RingRequest;
    use shared_abi::sync::Ordering::Relaxed;

    use super::*;

    /// A thread with a ring.
    struct Recorded {
        pmu: ThreadPmu,
        page: ThreadPage,
        ring: Ring,
        /// For each record that was written its counter, and how many could be taken before.
        written: Vec<(u32, u64)>,
        /// How many could be taken when somebody was woken.
        woken: Vec<u64>,
    }

    impl Recorded {
        fn new(watermark: u32) -> Self {
            let (page, ring) = (ThreadPage::default(), Ring::default());
            ring.begin(&RingRequest { pages: 1, watermark, ..RingRequest::default() }).unwrap();
            let pmu = ThreadPmu::new(&page, 1);
            Self { pmu, page, ring, written: Vec::new(), woken: Vec::new() }
        }

        fn can_be_taken(&self) -> u64 {
            self.page.ring_written.load(Relaxed)
        }
    }

    impl Reporter for Recorded {
        fn with_ring<R>(&mut self, run: impl FnOnce(&ThreadPmu, &ThreadPage, &Ring) -> R) -> R {
            run(&self.pmu, &self.page, &self.ring)
        }

        fn send(&mut self, signal: Signal) -> bool {
            panic!("{signal:?} in place of records");
        }

        fn signal_lost(&mut self) {}

        fn write(&mut self, place: &RingPlace) {
            self.written.push((place.counter, self.can_be_taken()));
        }

        fn wake(&mut self) {
            self.woken.push(self.can_be_taken());
        }
    }

    #[test]
    fn a_record_can_be_taken_only_after_it_was_written() {
        let mut thread = Recorded::new(3);
        thread.report(Signal { number: 0, counters: 0b101 });
        assert_eq!(thread.written, [(0, 0), (2, 1)]);
        assert_eq!((thread.can_be_taken(), &thread.woken), (2, &vec![]));
        thread.report(Signal { number: 0, counters: 0b1000 });
        assert_eq!(thread.written[2..], [(3, 2)]);
        assert_eq!((thread.can_be_taken(), &thread.woken), (3, &vec![3]), "at the watermark");
    }

    #[test]
    fn each_record_without_room_is_lost_and_the_reader_is_woken() {
        let mut thread = Recorded::new(1);
        while thread.page.ring_lost.load(Relaxed) == 0 {
            thread.report(Signal { number: 0, counters: 1 });
        }
        let written = thread.can_be_taken();
        assert_eq!(thread.woken.pop(), Some(written));
        thread.woken.clear();
        thread.report(Signal { number: 0, counters: 0b1011 });
        assert_eq!(thread.page.ring_lost.load(Relaxed), 1 + 3);
        assert_eq!((thread.can_be_taken(), &thread.woken), (written, &vec![written]));
    }
}
