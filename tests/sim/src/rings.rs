// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates rings of samples in a guest: their memory, somebody who takes the records on any vCPU,
//! and the rules for both.
//!
//! Every overflow that is reported to a thread by records is a record of the thread's ring, in
//! order, or is counted as lost. A record is in no other ring, is taken once, and keeps its place
//! until then.

use std::cell::{Cell, RefCell};

use guest_kmod::overflow::Signal;
use guest_kmod::ring::RingPlace;
use guest_kmod::{Ring, ThreadPmu};
use shared_abi::Errno;
use shared_abi::limits::{PAGE_BYTES, RING_CALLERS_MAX};
use shared_abi::ring::RingRequest;
use shared_abi::sync::Ordering::{Acquire, Relaxed};
use shared_abi::thread_page::THREAD_FAILED;

use crate::machine::{Machine, without_steps};
use crate::rng::Rng;
use crate::shape::Kind;
use crate::trace::Step;

/// A request for a ring of four records, so that it is soon full.
const REQUEST: RingRequest = RingRequest {
    pages: 1,
    callers: RING_CALLERS_MAX,
    watermark: 1,
    reserved: 0,
    reserved_tail: [0; 2],
};
const RECORD_BYTES: u64 = 1024;

/// A record: its thread, and the number of records that the thread had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    thread: usize,
    number: u64,
    counter: u32,
    count: u64,
}

/// A thread's ring, and the truth about it.
#[derive(Default)]
pub struct ThreadRing {
    pub ring: Ring,
    /// The ring's memory, by places for records.
    memory: RefCell<[Option<Record>; PAGE_BYTES / RECORD_BYTES as usize]>,
    /// The number of overflows that were reported to the thread by records.
    overflows: Cell<u64>,
    /// The counters of the last of these overflows, which have no record yet.
    due: Cell<u32>,
    /// Whether the waiter for records was woken.
    pub is_woken: Cell<bool>,
    /// Every record that was written.
    written: RefCell<Vec<Record>>,
    /// The number of records that were taken.
    taken: Cell<u64>,
    /// Whether somebody is taking records.
    is_taken_from: Cell<bool>,
}

impl ThreadRing {
    /// Returns whether there is a ring.
    pub fn exists(&self) -> bool {
        without_steps(|| self.ring.exists())
    }

    /// Returns whether an atomic of the ring is at this address.
    pub fn has(&self, address: usize) -> bool {
        let ring = (&raw const self.ring).addr();
        (ring..ring + size_of::<Ring>()).contains(&address)
    }
}

impl Machine {
    /// Makes the request `IOC_RING` for a thread whose counters have just been created.
    pub fn begin_ring(&self, thread: usize, pmu: &mut ThreadPmu) {
        let own = &self.threads[thread];
        let good = self.domains[own.domain].kind == Kind::Good;
        if !self.shape.rings || !good || own.tid.is_multiple_of(3) {
            return;
        }
        let begun = pmu.begin_ring(&own.ring.ring, &REQUEST);
        let again = pmu.begin_ring(&own.ring.ring, &REQUEST);
        if (begun, again) != (Ok(()), Err(Errno::EXIST)) && !self.is_gone() {
            self.fail(format!("thread {thread} gets a ring: {begun:?}, another: {again:?}"));
        }
    }

    /// Makes the kernel write a record to the ring of the thread that executes here.
    pub fn write_record(&self, thread: usize, place: &RingPlace) {
        let own = &self.threads[thread];
        let number = own.ring.written.borrow().len() as u64;
        let record = Record { thread, number, counter: place.counter, count: place.count };
        let due = own.ring.due.get();
        own.ring.due.set(due & !(1 << place.counter));
        if due >> place.counter & 1 == 0 {
            self.fail(format!("thread {thread}: a record of {} is of no overflow", place.counter));
        }
        self.check_room(thread);
        match own.ring.memory.borrow_mut().get_mut((place.offset / RECORD_BYTES) as usize) {
            Some(at) if place.offset.is_multiple_of(RECORD_BYTES) => *at = Some(record),
            _ => self.fail(format!("thread {thread}: a record goes to {:#x}", place.offset)),
        }
        own.ring.written.borrow_mut().push(record);
    }

    /// Notes that a thread is told of these overflows by records.
    pub fn note_recorded(&self, thread: usize, counters: u32) {
        let ring = &self.threads[thread].ring;
        ring.due.set(counters);
        ring.overflows.set(ring.overflows.get() + u64::from(counters.count_ones()));
    }

    /// Checks that whoever waits for records of a thread was woken if there are any. The watermark
    /// of each ring here is one record.
    pub fn check_woken(&self, thread: usize, found: Signal) {
        let ring = &self.threads[thread].ring;
        let is_woken = ring.is_woken.take();
        let there = ring.written.borrow().len() as u64 - ring.taken.get();
        let waits = found.number == 0 && there > 0 && !ring.is_taken_from.get();
        if waits && !is_woken && !self.is_gone() {
            self.fail(format!("thread {thread}: nobody is woken for {there} records"));
        }
    }

    /// Checks that the place of the next record is free. Somebody who is taking records may have
    /// freed it already.
    fn check_room(&self, thread: usize) {
        let ring = &self.threads[thread].ring;
        let there = ring.written.borrow().len() as u64 - ring.taken.get();
        let is_full = there >= ring.memory.borrow().len() as u64;
        if is_full && !ring.is_taken_from.get() && !self.is_gone() {
            self.fail(format!("thread {thread}: a record goes where one was not taken"));
        }
    }

    /// Checks that every overflow is a record, or is counted as lost.
    pub fn check_ring(&self, thread: usize) {
        let own = &self.threads[thread];
        if self.is_gone() {
            return;
        }
        let page = &own.page;
        let published =
            without_steps(|| (page.ring_written.load(Relaxed), page.ring_lost.load(Relaxed)));
        let written = own.ring.written.borrow().len() as u64;
        let truth = (written, own.ring.overflows.get() - written);
        if published != truth {
            self.fail(format!(
                "thread {thread}: records and lost ones {published:?}, not {truth:?}"
            ));
        }
    }

    /// Checks at the end of a thread's own request that nothing waits to be recorded.
    pub fn check_all_recorded(&self, thread: usize) {
        let own = &self.threads[thread];
        let (truth, good) = (own.truth.borrow(), self.domains[own.domain].kind == Kind::Good);
        let failed = without_steps(|| own.page.state.load(Relaxed)) & THREAD_FAILED != 0;
        if truth.is_recorded() && truth.untold() != 0 && good && !failed && !self.is_gone() {
            let untold = truth.untold();
            self.fail(format!("thread {thread}: overflows {untold:#b} are never recorded"));
        }
    }

    /// Makes a thread take records of any ring of its domain from which nobody else is taking.
    pub fn take_records(&self, thread: usize, rng: &mut Rng) {
        let threads = self.domains[self.threads[thread].domain].threads.clone();
        let other = threads.start + rng.index(threads.len());
        let own = &self.threads[other];
        if !own.ring.exists() || own.ring.is_taken_from.replace(true) {
            return;
        }
        let before = own.ring.taken.get();
        let there = own.page.ring_written.load(Acquire);
        for number in before..there {
            self.step(Step::Note("record"));
            self.check_record(other, number);
        }
        // The thread takes some of them, or more than there are.
        let most = there - before + u64::from(rng.one_in(8));
        let taken = before + rng.below(most + 1);
        let answer = self.in_kernel(|_| own.ring.ring.take(taken));
        let written = own.ring.written.borrow().len() as u64;
        match answer {
            Some(Ok(())) if taken <= written => own.ring.taken.set(taken),
            Some(Err(Errno::INVAL)) if taken > there => (),
            None => (),
            Some(answer) if !self.is_gone() => self.fail(format!(
                "thread {other}: {taken} records of {written} after {before} are taken: {answer:?}"
            )),
            Some(_) => (),
        }
        own.ring.is_taken_from.set(false);
    }

    /// Checks that a record which was not taken is still where it was written.
    fn check_record(&self, thread: usize, number: u64) {
        let own = &self.threads[thread];
        let written = own.ring.written.borrow().get(number as usize).copied();
        let memory = own.ring.memory.borrow();
        let found = memory[number as usize % memory.len()];
        if (found != written || found.is_none()) && !self.is_gone() {
            self.fail(format!("thread {thread}: record {number} is {found:?}, not {written:?}"));
        }
    }
}
