// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what readers see while both pages change, and in pages of threads that do not execute.
#![cfg(not(loom))]

use std::cell::{Cell, RefCell};

use shared_abi::read::{
    Counters, ReadError, Snapshot, VcpuSample, read_published, read_thread, sample_stopped_vcpu,
    sample_vcpu, sample_vcpu_into,
};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::{THREAD_ACTIVE, THREAD_DIRECT, THREAD_FAILED};
use shared_abi::vcpu_page::VCPU_DIRECT;
use shared_abi::{PhysSlot, ThreadPage, VcpuPage};

/// Counters that call this function at each RDPMC.
struct Disturbing<F: Fn()>(F);

impl<F: Fn()> Counters for Disturbing<F> {
    fn counter(&self, _: u32) -> u64 {
        (self.0)();
        7
    }
    fn clock(&self) -> u64 {
        0
    }
}

fn running() -> (ThreadPage, VcpuPage) {
    let (thread, vcpu) = (ThreadPage::default(), VcpuPage::default());
    thread.state.store(THREAD_ACTIVE | THREAD_DIRECT, Relaxed);
    thread.counters.store(1, Relaxed);
    vcpu.flags.store(VCPU_DIRECT, Relaxed);
    vcpu.slots[0].mask.store(u64::MAX, Relaxed);
    (thread, vcpu)
}

/// Both sequence words change by the same number here.
#[test]
fn a_switch_of_thread_and_vcpu_at_once_is_noticed() {
    let (thread, vcpu) = running();
    let (reads, writes) = (Cell::new(0), RefCell::new([0; 2]));
    let hw = Disturbing(|| {
        reads.set(reads.get() + 1);
        if reads.get() == 1 {
            let [one, two] = &mut *writes.borrow_mut();
            drop(thread.seq.write(one));
            drop(vcpu.seq.write(two));
        }
    });
    let mut counts = [0];
    let snapshot = read_thread(&thread, |_| Some(&vcpu), &hw, &mut counts);
    assert_eq!((snapshot, counts), (Ok(Snapshot { tsc: 0, retries: 1 }), [7]));
}

#[test]
fn a_sample_says_how_often_it_was_disturbed() {
    let (_, vcpu) = running();
    let (reads, writes) = (Cell::new(0), RefCell::new(0));
    let hw = Disturbing(|| {
        reads.set(reads.get() + 1);
        if reads.get() < 4 {
            drop(vcpu.seq.write(&mut writes.borrow_mut()));
        }
    });
    let sample = sample_vcpu(&vcpu, &hw, &[PhysSlot::general(0).unwrap()]).unwrap();
    assert_eq!((sample.retries, sample.counter[0]), (3, 7));
    vcpu.flags.store(0, Relaxed);
    assert_eq!(sample_vcpu(&vcpu, &hw, &[]), Err(ReadError::NotDirect));
}

#[test]
fn a_sample_begins_to_count_its_attempts_anew() {
    let (_, vcpu) = running();
    let mut sample = VcpuSample { retries: 5, ..VcpuSample::default() };
    let slots = [PhysSlot::general(0).unwrap()];
    for _ in 0..2 {
        sample_vcpu_into(&vcpu, &Disturbing(|| ()), &slots, &mut sample).unwrap();
        assert_eq!((sample.retries, sample.counter[0]), (0, 7));
    }
}

#[test]
fn a_page_that_is_being_written_says_nothing_of_the_kernel() {
    let (thread, vcpu) = running();
    let read = || read_thread(&thread, |_| Some(&vcpu), &Disturbing(|| ()), &mut [0]).err();
    let mut writes = 0;
    let writing = vcpu.seq.write(&mut writes);
    vcpu.flags.store(0, Relaxed);
    assert_eq!(read(), Some(ReadError::Disturbed), "nobody knows yet what it will say");
    drop(writing);
    assert_eq!(read(), Some(ReadError::NotDirect));
}

#[test]
fn what_has_stopped_is_read_without_counters() {
    let (_, vcpu) = running();
    let slots = [PhysSlot::general(1).unwrap(), PhysSlot::general(0).unwrap()];
    let mut sample = VcpuSample::default();
    vcpu.flags.store(0, Relaxed);
    for (slot, sum) in vcpu.slots.iter().zip([20, 30]) {
        slot.sum.store(sum, Relaxed);
    }
    assert_eq!(sample_stopped_vcpu(&vcpu, &slots, &mut sample), Ok(()));
    assert_eq!(sample.counter[..2], [30, 20]);
    let mut writes = 0;
    let writing = vcpu.seq.write(&mut writes);
    let disturbed = sample_stopped_vcpu(&vcpu, &slots, &mut sample);
    assert_eq!(disturbed, Err(ReadError::Disturbed));
    drop(writing);
}

#[test]
fn what_is_published_is_read_as_it_was() {
    let thread = ThreadPage::default();
    thread.counters.store(2, Relaxed);
    thread.tsc_sum.store(50, Relaxed);
    for (slot, sum) in thread.slots.iter().zip([10, 20, 30]) {
        slot.sum.store(sum, Relaxed);
    }
    let mut counts = [9; 4];
    assert_eq!(read_published(&thread, &mut counts), Ok(50));
    assert_eq!(counts, [10, 20, 0, 0], "what is not in use is 0");
    let mut one = [9];
    assert_eq!((read_published(&thread, &mut one), one), (Ok(50), [10]));
    thread.state.store(THREAD_FAILED | THREAD_ACTIVE, Relaxed);
    thread.error.store(-1, Relaxed);
    assert_eq!(read_published(&thread, &mut counts), Err(ReadError::NotLoaded(-1)));
    let writing = thread.seq.write(&mut 0);
    assert_eq!(read_published(&thread, &mut counts), Err(ReadError::Disturbed));
    drop(writing);
    thread.state.store(THREAD_ACTIVE, Relaxed);
    assert_eq!(read_published(&thread, &mut counts), Ok(50));
}

/// A stopped thread has no counters to read, but its sums may change, too.
#[test]
fn the_sums_of_a_stopped_thread_are_never_torn() {
    let (thread, vcpu) = running();
    thread.state.store(0, Relaxed);
    thread.tsc_sum.store(900, Relaxed);
    thread.slots[0].sum.store(30, Relaxed);
    let hw = Disturbing(|| panic!("no counter is to be read"));
    let mut counts = [0];
    let read = |counts: &mut [u64]| read_thread(&thread, |_| Some(&vcpu), &hw, counts);
    assert_eq!(read(&mut counts), Ok(Snapshot { tsc: 900, retries: 0 }));
    let mut writes = 0;
    let writing = thread.seq.write(&mut writes);
    // These are the first stores of a write: the sums are of two different moments.
    thread.tsc_sum.store(950, Relaxed);
    assert_eq!(read(&mut counts), Err(ReadError::Disturbed));
    thread.slots[0].sum.store(45, Relaxed);
    drop(writing);
    assert_eq!(read(&mut counts), Ok(Snapshot { tsc: 950, retries: 0 }));
    assert_eq!(counts, [45]);
}
