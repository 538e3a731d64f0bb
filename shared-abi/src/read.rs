// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The read path applies the two-level formula under both sequence words.
//!
//! A thread reads its own counters like this:
//!
//! 1. take the stamp of its [`ThreadPage`], and the number of the vCPU it was resumed on;
//! 2. take the stamp of that vCPU's [`VcpuPage`];
//! 3. read the TSC and the counters, and combine them with the sums of both pages;
//! 4. if either stamp is no longer valid, the thread or its vCPU was preempted or moved in
//!    between, or the guest kernel ran: start over.
//!
//! The guest kernel samples a vCPU with steps 2 to 4.
//!
//! An attempt has no branch that depends on what it read, so each failed attempt costs the same
//! number of instructions and a retry adds a constant to what the reader itself executes.

use core::hint::black_box;

use crate::arch::CLOCK_MASK;
use crate::count::{log_thread, phys_star};
use crate::limits::{MAX_COUNTERS, READ_ATTEMPTS_MAX};
use crate::seq::Stamp;
use crate::slot::PhysSlot;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU32, AtomicU64};
use crate::thread_page::{THREAD_ACTIVE, THREAD_DIRECT, THREAD_FAILED, ThreadPage, ThreadSlot};
use crate::vcpu_page::{VCPU_DIRECT, VcpuPage, VcpuSlot};

/// The instructions with which a reader reads counters, the clock and pages.
pub trait Counters {
    /// Reads a hardware counter; `index` is a [`PhysSlot::counter_index`].
    fn counter(&self, index: u32) -> u64;
    /// Reads the clock after all earlier instructions have completed.
    fn clock(&self) -> u64;

    /// Reads a hardware counter as a part of a read with this stamp. If the CPU does not let the
    /// caller read counters, the value has no meaning, and the stamp becomes [one that is never
    /// valid](Stamp::not_read).
    ///
    /// A reader checks the stamp anyway, so it needs no further instruction to detect this.
    #[inline(always)]
    fn counter_under(&self, index: u32, _stamp: &mut Stamp) -> u64 {
        self.counter(index)
    }

    /// Makes the following reads wait until all earlier instructions have completed.
    #[inline(always)]
    fn fence(&self) {}

    /// Loads a word of a page.
    #[inline(always)]
    fn load(&self, word: &AtomicU64) -> u64 {
        word.load(Relaxed)
    }

    /// Loads half a word of a page.
    #[inline(always)]
    fn load_half(&self, half: &AtomicU32) -> u32 {
        half.load(Relaxed)
    }

    /// Returns whether a bit is set in either word, with a single branch.
    #[inline(always)]
    fn any(&self, one: u64, other: u64) -> bool {
        black_box(one | other) != 0
    }

    /// Returns the same word. The compiler has to compute the word here, and knows nothing of its
    /// value afterwards.
    #[inline(always)]
    fn opaque(&self, word: u64) -> u64 {
        black_box(word)
    }
}

/// The reason why a direct read gives no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The thread may not read directly now, and has to ask the kernel.
    NotDirect,
    /// The thread's configuration could not be loaded; the negative error number is the reason.
    NotLoaded(i32),
    /// A page names a vCPU or a counter that does not exist, or more counters were asked for
    /// than the thread has.
    Malformed,
    /// All of [`READ_ATTEMPTS_MAX`] attempts were disturbed.
    Disturbed,
    /// The CPU does not let the reader read counters, although the pages say that it does.
    Faulted,
}

/// The result of a read. The counters' values go to the caller's slice. They and the TSC are of
/// one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The thread's TSC, unit: TSC ticks.
    pub tsc: u64,
    /// Number of failed attempts before this one.
    pub retries: u32,
}

/// Reads the calling thread's TSC and its first `counts.len()` counters.
///
/// The function `vcpus` returns the page of the vCPU with a number, or `None` if there is no such
/// vCPU.
#[inline(always)]
pub fn read_thread<'a>(
    thread: &ThreadPage,
    vcpus: impl Fn(u32) -> Option<&'a VcpuPage> + Copy,
    hw: &impl Counters,
    counts: &mut [u64],
) -> Result<Snapshot, ReadError> {
    attempt::<true>(thread, vcpus, hw, counts)
}

/// Makes one attempt of [`read_thread`]. Returns the TSC, or `None` if the attempt was disturbed
/// or the pages do not let the thread read directly.
///
/// This executes fewer instructions than [`read_thread`], because it keeps nothing for another
/// attempt.
#[inline(always)]
pub fn try_read_thread<'a>(
    thread: &ThreadPage,
    vcpus: impl Fn(u32) -> Option<&'a VcpuPage> + Copy,
    hw: &impl Counters,
    counts: &mut [u64],
) -> Option<u64> {
    let (tsc, [thread_change, vcpu_change]) = once::<true>(thread, vcpus, hw, counts)?;
    (!hw.any(thread_change, vcpu_change)).then_some(tsc)
}

/// Reads the calling thread's first `counts.len()` counters without its TSC. The TSC of the
/// snapshot has no meaning.
#[inline(always)]
pub fn read_counts<'a>(
    thread: &ThreadPage,
    vcpus: impl Fn(u32) -> Option<&'a VcpuPage> + Copy,
    hw: &impl Counters,
    counts: &mut [u64],
) -> Result<Snapshot, ReadError> {
    attempt::<false>(thread, vcpus, hw, counts)
}

/// Repeats attempts until one is undisturbed.
///
/// The function returns a [`Snapshot`] even without the TSC. Compilers pack a result that fits
/// into one word into that word and unpack it again, which costs more.
#[inline(always)]
fn attempt<'a, const TSC: bool>(
    thread: &ThreadPage,
    vcpus: impl Fn(u32) -> Option<&'a VcpuPage> + Copy,
    hw: &impl Counters,
    counts: &mut [u64],
) -> Result<Snapshot, ReadError> {
    let mut retries = 0;
    loop {
        let change = match once::<TSC>(thread, vcpus, hw, counts) {
            // There is one branch on both words. With two, an attempt's cost would depend on which
            // word has changed, and compilers split even a joint comparison if they can.
            Some((tsc, [thread_change, vcpu_change])) => {
                if !hw.any(thread_change, vcpu_change) {
                    return Ok(Snapshot { tsc, retries });
                }
                vcpu_change
            }
            None => {
                if let Some(answer) = answer_indirectly(thread, vcpus, counts) {
                    return answer.map(|tsc| Snapshot { tsc, retries });
                }
                0
            }
        };
        retries += 1;
        if retries >= READ_ATTEMPTS_MAX {
            return Err(no_attempt_left(change));
        }
    }
}

/// Returns the error of the last attempt, given how the stamps changed.
///
/// When a hypervisor or kernel takes the counters away, it usually also changes a page. So a reader
/// that could not read a counter repeats its attempt as often as after any other disturbance.
#[cold]
const fn no_attempt_left(change: u64) -> ReadError {
    if Stamp::was_not_read(change) { ReadError::Faulted } else { ReadError::Disturbed }
}

/// Makes one attempt for a running thread. Returns its TSC and two words, which are both 0 if
/// nothing has disturbed the attempt. Returns `None` if the pages do not let the thread read
/// directly.
#[inline(always)]
fn once<'a, const TSC: bool>(
    thread: &ThreadPage,
    vcpus: impl Fn(u32) -> Option<&'a VcpuPage> + Copy,
    hw: &impl Counters,
    counts: &mut [u64],
) -> Option<(u64, [u64; 2])> {
    let stamp = thread.seq.stamp();
    if hw.load_half(&thread.state) & THREAD_DIRECT == 0 {
        return None;
    }
    let vcpu = vcpus(hw.load_half(&thread.vcpu))?;
    let mut vcpu_stamp = vcpu.seq.stamp();
    if hw.load_half(&vcpu.flags) & VCPU_DIRECT == 0 {
        return None;
    }
    if counts.len() > hw.load_half(&thread.counters) as usize {
        return None;
    }
    let tsc = if TSC {
        // Without `opaque`, compilers keep all parts of this sum in registers until they know that
        // the attempt succeeds, and add words of pages to each other first.
        let phys = hw.opaque(vcpu_tsc(vcpu, hw));
        let start = hw.load(&thread.tsc_start);
        hw.opaque(log_thread(hw.load(&thread.tsc_sum), start, phys))
    } else {
        hw.fence();
        0
    };
    for (count, slot) in counts.iter_mut().zip(&thread.slots) {
        let counter = vcpu.slots.get(hw.load_half(&slot.slot) as usize)?;
        let raw = hw.counter_under(hw.load_half(&slot.counter_index), &mut vcpu_stamp);
        let phys = hw.opaque(vcpu_counter(counter, hw, raw));
        let start = hw.load(&slot.start);
        *count = log_thread(hw.load(&slot.sum), start, phys);
    }
    let vcpu_change = vcpu.seq.change(vcpu_stamp, |word| hw.load(word));
    let thread_change = thread.seq.change(stamp, |word| hw.load(word));
    Some((tsc, [thread_change, vcpu_change]))
}

/// Answers a read that cannot be made directly. If the thread does not count now, this copies its
/// sums and returns the TSC's sum. Otherwise it returns the reason why there is no value. It
/// returns `None` if the pages have changed meanwhile.
#[cold]
#[inline(never)]
fn answer_indirectly<'a>(
    thread: &ThreadPage,
    vcpus: impl Fn(u32) -> Option<&'a VcpuPage> + Copy,
    counts: &mut [u64],
) -> Option<Result<u64, ReadError>> {
    let stamp = thread.seq.stamp();
    let state = thread.state.load(Relaxed);
    let answer = if state & THREAD_FAILED != 0 {
        Err(ReadError::NotLoaded(thread.error.load(Relaxed)))
    } else if state & THREAD_ACTIVE == 0 {
        sums(thread, counts)
    } else if state & THREAD_DIRECT == 0 {
        Err(ReadError::NotDirect)
    } else {
        Err(refusal(thread, vcpus, counts.len())?)
    };
    thread.seq.is_valid(stamp).then_some(answer)
}

/// Copies the sums of a thread that does not count now, and returns the TSC's sum.
fn sums(thread: &ThreadPage, counts: &mut [u64]) -> Result<u64, ReadError> {
    if counts.len() > thread.counters.load(Relaxed) as usize {
        return Err(ReadError::Malformed);
    }
    Ok(copy_sums(thread, counts))
}

/// Returns why a thread whose page lets it read directly cannot read `asked` counters, or `None` if
/// it can by now.
fn refusal<'a>(
    thread: &ThreadPage,
    vcpus: impl Fn(u32) -> Option<&'a VcpuPage> + Copy,
    asked: usize,
) -> Option<ReadError> {
    let Some(vcpu) = vcpus(thread.vcpu.load(Relaxed)) else {
        return Some(ReadError::Malformed);
    };
    let stamp = vcpu.seq.stamp();
    let exists = |slot: &ThreadSlot| (slot.slot.load(Relaxed) as usize) < vcpu.slots.len();
    let refusal = if vcpu.flags.load(Relaxed) & VCPU_DIRECT == 0 {
        ReadError::NotDirect
    } else if asked > thread.counters.load(Relaxed) as usize
        || !thread.slots.iter().take(asked).all(exists)
    {
        ReadError::Malformed
    } else {
        return None;
    };
    vcpu.seq.is_valid(stamp).then_some(refusal)
}

/// Copies the sums of a thread's counters, and returns the TSC's sum.
fn copy_sums(thread: &ThreadPage, counts: &mut [u64]) -> u64 {
    for (count, slot) in counts.iter_mut().zip(&thread.slots) {
        *count = slot.sum.load(Relaxed);
    }
    thread.tsc_sum.load(Relaxed)
}

/// Reads the sums that were last published for any thread, and returns the TSC's sum. Elements of
/// `counts` behind the thread's last counter become 0.
pub fn read_published(thread: &ThreadPage, counts: &mut [u64]) -> Result<u64, ReadError> {
    for _ in 0..READ_ATTEMPTS_MAX {
        let stamp = thread.seq.stamp();
        let failed = thread.state.load(Relaxed) & THREAD_FAILED != 0;
        let error = thread.error.load(Relaxed);
        let used = (thread.counters.load(Relaxed) as usize).min(counts.len());
        let (used, unused) = counts.split_at_mut_checked(used).unwrap_or_default();
        unused.fill(0);
        let tsc = copy_sums(thread, used);
        if thread.seq.is_valid(stamp) {
            return if failed { Err(ReadError::NotLoaded(error)) } else { Ok(tsc) };
        }
    }
    Err(ReadError::Disturbed)
}

#[inline(always)]
fn vcpu_tsc(vcpu: &VcpuPage, hw: &impl Counters) -> u64 {
    let raw = hw.clock();
    let start = hw.load(&vcpu.tsc_start);
    phys_star(hw.load(&vcpu.tsc_sum), start, CLOCK_MASK, raw)
}

/// Words are loaded in the order in which the sum needs them, in which case each is an operand of
/// the instruction that uses it. A word that is loaded earlier takes an instruction and a register.
#[inline(always)]
fn vcpu_counter(counter: &VcpuSlot, hw: &impl Counters, raw: u64) -> u64 {
    let (start, mask) = (hw.load(&counter.start), hw.load(&counter.mask));
    phys_star(hw.load(&counter.sum), start, mask, raw)
}

/// `Phys*` of the TSC and of some counters of a vCPU, all of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuSample {
    /// The vCPU's TSC, unit: TSC ticks.
    pub tsc: u64,
    /// The counters, unit: events, in the order of the slots asked for.
    pub counter: [u64; MAX_COUNTERS],
    /// Number of failed attempts before this one.
    pub retries: u32,
}

/// Samples the vCPU that executes this code. The guest kernel calls it.
#[inline(always)]
pub fn sample_vcpu(
    vcpu: &VcpuPage,
    hw: &impl Counters,
    slots: &[PhysSlot],
) -> Result<VcpuSample, ReadError> {
    let mut sample = VcpuSample::default();
    sample_vcpu_into(vcpu, hw, slots, &mut sample)?;
    Ok(sample)
}

/// Samples the vCPU that executes this code, and writes the result into the caller's sample.
///
/// Unlike [`sample_vcpu`] it neither clears nor copies a sample, which matters to hot paths.
/// Counters of the sample that were not asked for stay as they were. After an error nothing in
/// the sample is valid.
#[inline(always)]
pub fn sample_vcpu_into(
    vcpu: &VcpuPage,
    hw: &impl Counters,
    slots: &[PhysSlot],
    sample: &mut VcpuSample,
) -> Result<(), ReadError> {
    sample.retries = 0;
    loop {
        let mut stamp = vcpu.seq.stamp();
        if vcpu.flags.load(Relaxed) & VCPU_DIRECT == 0 {
            return Err(ReadError::NotDirect);
        }
        sample.tsc = vcpu_tsc(vcpu, hw);
        for (count, slot) in sample.counter.iter_mut().zip(slots) {
            let counter = vcpu.slots.get(slot.index()).ok_or(ReadError::Malformed)?;
            let raw = hw.counter_under(slot.counter_index(), &mut stamp);
            *count = vcpu_counter(counter, hw, raw);
        }
        let change = vcpu.seq.change(stamp, |word| word.load(Relaxed));
        if change == 0 {
            return Ok(());
        }
        sample.retries += 1;
        if sample.retries >= READ_ATTEMPTS_MAX {
            return Err(no_attempt_left(change));
        }
    }
}

/// Makes one attempt of [`sample_vcpu`] for the counters in `slots`, whose indices for the hardware
/// are `indices`. Returns the TSC and the counters, or `None` if the attempt was disturbed or the
/// vCPU may not count.
#[inline(always)]
pub fn try_sample_vcpu<const N: usize>(
    vcpu: &VcpuPage,
    hw: &impl Counters,
    slots: &[PhysSlot; N],
    indices: &[u32; N],
) -> Option<(u64, [u64; N])> {
    let mut stamp = vcpu.seq.stamp();
    if hw.load_half(&vcpu.flags) & VCPU_DIRECT == 0 {
        return None;
    }
    // Without `opaque`, compilers keep all parts of this sum in registers until they know that the
    // attempt succeeds. They would do the same with the parts of each counter's sum below.
    let tsc = hw.opaque(vcpu_tsc(vcpu, hw));
    let mut counts = [0; N];
    for (count, (slot, &index)) in counts.iter_mut().zip(slots.iter().zip(indices)) {
        let counter = vcpu.slots.get(slot.index())?;
        let raw = hw.counter_under(index, &mut stamp);
        *count = hw.opaque(vcpu_counter(counter, hw, raw));
    }
    let change = vcpu.seq.change(stamp, |word| hw.load(word));
    (change == 0).then_some((tsc, counts))
}

/// Samples the last sums of a vCPU that may not count any more. For such a vCPU
/// [`sample_vcpu_into`] returns [`ReadError::NotDirect`].
pub fn sample_stopped_vcpu(
    vcpu: &VcpuPage,
    slots: &[PhysSlot],
    sample: &mut VcpuSample,
) -> Result<(), ReadError> {
    for _ in 0..READ_ATTEMPTS_MAX {
        let stamp = vcpu.seq.stamp();
        for (count, slot) in sample.counter.iter_mut().zip(slots) {
            let counter = vcpu.slots.get(slot.index()).ok_or(ReadError::Malformed)?;
            *count = counter.sum.load(Relaxed);
        }
        if vcpu.seq.is_valid(stamp) {
            return Ok(());
        }
    }
    Err(ReadError::Disturbed)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use core::cell::{Cell, RefCell};

    use super::*;
    use crate::thread_page::THREAD_TSC;

    /// Counters, of which number `n` reads as `pmc + n`. Each read calls `disturb`, which may
    /// disturb the reader.
    struct FakeCounters<F: Fn()> {
        tsc: u64,
        pmc: u64,
        disturb: F,
    }

    impl<F: Fn()> Counters for FakeCounters<F> {
        fn counter(&self, index: u32) -> u64 {
            (self.disturb)();
            self.pmc + u64::from(index)
        }
        fn clock(&self) -> u64 {
            self.tsc
        }
    }

    const WIDTH_MASK: u64 = (1 << 40) - 1;

    fn running_thread() -> (ThreadPage, VcpuPage) {
        let (thread, vcpu) = (ThreadPage::default(), VcpuPage::default());
        thread.state.store(THREAD_ACTIVE | THREAD_DIRECT | THREAD_TSC, Relaxed);
        thread.counters.store(1, Relaxed);
        thread.tsc_sum.store(1_000, Relaxed);
        thread.tsc_start.store(300, Relaxed);
        thread.slots[0].slot.store(2, Relaxed);
        thread.slots[0].counter_index.store(2, Relaxed);
        thread.slots[0].sum.store(50, Relaxed);
        thread.slots[0].start.store(400, Relaxed);
        vcpu.flags.store(VCPU_DIRECT, Relaxed);
        vcpu.tsc_sum.store(250, Relaxed);
        vcpu.tsc_start.store(9_000, Relaxed);
        vcpu.slots[2].sum.store(390, Relaxed);
        vcpu.slots[2].start.store(WIDTH_MASK - 4, Relaxed);
        vcpu.slots[2].mask.store(WIDTH_MASK, Relaxed);
        (thread, vcpu)
    }

    #[test]
    fn both_levels_add_up_across_a_wrap() {
        let (thread, vcpu) = running_thread();
        let hw = FakeCounters { tsc: 9_100, pmc: 13, disturb: || () };
        let mut counts = [0];
        let snapshot = read_thread(&thread, |n| (n == 0).then_some(&vcpu), &hw, &mut counts);
        // TSC: 1000 + (250 + 100 - 300). Counter: raw 15 is 20 events after the start, so
        // 50 + (390 + 20 - 400).
        assert_eq!(snapshot, Ok(Snapshot { tsc: 1_050, retries: 0 }));
        assert_eq!(counts, [60]);
    }

    #[test]
    fn a_disturbed_attempt_is_discarded() {
        let (thread, vcpu) = running_thread();
        let reads = Cell::new(0);
        let writes = RefCell::new(0);
        let hw = FakeCounters {
            tsc: 9_100,
            pmc: 13,
            disturb: || {
                reads.set(reads.get() + 1);
                // The first attempt is hit by a vCPU switch, the second by a thread switch.
                match reads.get() {
                    1 => drop(vcpu.seq.write(&mut writes.borrow_mut())),
                    2 => drop(thread.seq.write(&mut writes.borrow_mut())),
                    _ => (),
                }
            },
        };
        let mut counts = [0];
        let once = |counts: &mut [u64]| try_read_thread(&thread, |_| Some(&vcpu), &hw, counts);
        assert_eq!([once(&mut counts), once(&mut counts)], [None; 2]);
        assert_eq!((once(&mut counts), counts), (Some(1_050), [60]));
        reads.set(0);
        let snapshot = read_thread(&thread, |_| Some(&vcpu), &hw, &mut counts);
        assert_eq!(snapshot, Ok(Snapshot { tsc: 1_050, retries: 2 }));
        assert_eq!(counts, [60]);
    }

    #[test]
    fn retries_are_bounded() {
        let (thread, vcpu) = running_thread();
        let writes = RefCell::new(0);
        let hw = FakeCounters {
            tsc: 0,
            pmc: 0,
            disturb: || drop(vcpu.seq.write(&mut writes.borrow_mut())),
        };
        assert_eq!(read_thread(&thread, |_| Some(&vcpu), &hw, &mut [0]), Err(ReadError::Disturbed));
        let slots = [PhysSlot::general(2).unwrap()];
        assert_eq!(sample_vcpu(&vcpu, &hw, &slots), Err(ReadError::Disturbed));
    }

    /// A CPU that refuses the first `left` reads of counters. It calls `disturb` before each read.
    struct Refusing<F: Fn()> {
        left: Cell<u32>,
        disturb: F,
    }

    impl<F: Fn()> Counters for Refusing<F> {
        fn counter(&self, _: u32) -> u64 {
            panic!("only under a stamp");
        }
        fn counter_under(&self, index: u32, stamp: &mut Stamp) -> u64 {
            (self.disturb)();
            if self.left.get() == 0 {
                return 13 + u64::from(index);
            }
            self.left.set(self.left.get() - 1);
            stamp.not_read();
            0
        }
        fn clock(&self) -> u64 {
            9_100
        }
    }

    #[test]
    fn a_counter_that_cannot_be_read_is_an_error_and_never_a_number() {
        let (thread, vcpu) = running_thread();
        let slots = [PhysSlot::general(2).unwrap()];
        let never = Refusing { left: Cell::new(u32::MAX), disturb: || () };
        for _ in 0..2 {
            let faulted = Err(ReadError::Faulted);
            assert_eq!(read_thread(&thread, |_| Some(&vcpu), &never, &mut [0]), faulted);
            assert_eq!(read_counts(&thread, |_| Some(&vcpu), &never, &mut [0]), faulted);
            assert_eq!(try_read_thread(&thread, |_| Some(&vcpu), &never, &mut [0]), None);
            assert_eq!(sample_vcpu(&vcpu, &never, &slots).err(), Some(ReadError::Faulted));
            assert_eq!(try_sample_vcpu(&vcpu, &never, &slots, &[2]), None);
            // A read of the clock alone needs no counter.
            assert!(read_thread(&thread, |_| Some(&vcpu), &never, &mut []).is_ok());
        }
        let soon = Refusing { left: Cell::new(3), disturb: || () };
        let mut counts = [0];
        let snapshot = read_thread(&thread, |_| Some(&vcpu), &soon, &mut counts);
        assert_eq!((snapshot, counts), (Ok(Snapshot { tsc: 1_050, retries: 3 }), [60]));
    }

    #[test]
    fn whoever_takes_the_counters_away_and_says_so_is_believed() {
        let (thread, vcpu) = running_thread();
        let writes = RefCell::new(0);
        let hw = Refusing {
            left: Cell::new(u32::MAX),
            disturb: || {
                let _guard = vcpu.seq.write(&mut writes.borrow_mut());
                vcpu.flags.store(0, Relaxed);
            },
        };
        assert_eq!(read_thread(&thread, |_| Some(&vcpu), &hw, &mut [0]), Err(ReadError::NotDirect));
        vcpu.flags.store(VCPU_DIRECT, Relaxed);
        let slots = [PhysSlot::general(2).unwrap()];
        assert_eq!(sample_vcpu(&vcpu, &hw, &slots), Err(ReadError::NotDirect));
    }

    #[test]
    fn a_stopped_thread_reads_its_sums() {
        let (thread, vcpu) = running_thread();
        thread.state.store(0, Relaxed);
        let hw = FakeCounters { tsc: 1, pmc: 1, disturb: || panic!("no counter is to be read") };
        let mut counts = [0];
        let snapshot = read_thread(&thread, |_| Some(&vcpu), &hw, &mut counts);
        assert_eq!(snapshot, Ok(Snapshot { tsc: 1_000, retries: 0 }));
        assert_eq!(counts, [50]);
        let read = |counts: &mut [u64]| read_thread(&thread, |_| Some(&vcpu), &hw, counts);
        assert_eq!(read(&mut []), snapshot);
        assert_eq!(read(&mut [0; 2]), Err(ReadError::Malformed), "it has one counter");
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_never_a_number() {
        let (thread, vcpu) = running_thread();
        let hw = FakeCounters { tsc: 0, pmc: 0, disturb: || () };
        let read = |counts: &mut [u64]| read_thread(&thread, |_| Some(&vcpu), &hw, counts);
        assert_eq!(read(&mut [0; 2]), Err(ReadError::Malformed));
        assert_eq!(read_thread(&thread, |_| None, &hw, &mut [0]), Err(ReadError::Malformed));
        thread.slots[0].slot.store(24, Relaxed);
        assert_eq!(read(&mut [0]), Err(ReadError::Malformed));
        vcpu.flags.store(0, Relaxed);
        assert_eq!(read(&mut [0]), Err(ReadError::NotDirect));
        thread.state.store(THREAD_ACTIVE, Relaxed);
        assert_eq!(read(&mut [0]), Err(ReadError::NotDirect));
        thread.state.store(THREAD_FAILED, Relaxed);
        thread.error.store(-95, Relaxed);
        assert_eq!(read(&mut [0]), Err(ReadError::NotLoaded(-95)));
    }
}
