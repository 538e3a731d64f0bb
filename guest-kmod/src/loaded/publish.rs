// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes the thread pages. Nothing else writes them.

use shared_abi::ioctl::Sums;
use shared_abi::read::{ReadError, read_published};
use shared_abi::slot::bits_of;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::{
    THREAD_ACTIVE, THREAD_DIRECT, THREAD_FAILED, THREAD_PAUSED, THREAD_TSC,
};
use shared_abi::version::{ABI_WORD, THREAD_PAGE_MAGIC};
use shared_abi::{Errno, PhysSlot, ThreadPage};

/// The writer of one page.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    writes: u64,
    /// `THREAD_TSC` or nothing.
    flags: u32,
}

impl Publisher {
    /// Writes the fields that never change.
    pub(crate) fn create(&mut self, page: &ThreadPage, tid: u32) {
        let _guard = page.seq.write(&mut self.writes);
        page.magic.store(THREAD_PAGE_MAGIC, Relaxed);
        page.abi.store(ABI_WORD, Relaxed);
        page.size_bytes.store(ThreadPage::USED_BYTES, Relaxed);
        page.tid.store(tid, Relaxed);
    }

    /// Publishes which counters a suspended thread has.
    pub(crate) fn configured(
        &mut self,
        page: &ThreadPage,
        slots: &[PhysSlot],
        tsc: bool,
        sums: &Sums,
    ) {
        self.flags = if tsc { THREAD_TSC } else { 0 };
        // This is one write, so that no reader finds the new counters with the old sums.
        let _guard = page.seq.write(&mut self.writes);
        page.counters.store(slots.len() as u32, Relaxed);
        for (published, slot) in page.slots.iter().zip(slots) {
            published.slot.store(slot.index() as u32, Relaxed);
            published.counter_index.store(slot.counter_index(), Relaxed);
        }
        self.store_sums(page, sums.tsc, sums.counter.get(..slots.len()).unwrap_or_default());
    }

    /// Publishes the sums of a thread that does not run: its TSC's, and those of its counters.
    #[inline(always)]
    pub(crate) fn suspended(&mut self, page: &ThreadPage, tsc: u64, counts: &[u64]) {
        let _guard = page.seq.write(&mut self.writes);
        self.store_sums(page, tsc, counts);
    }

    #[inline(always)]
    fn store_sums(&self, page: &ThreadPage, tsc: u64, counts: &[u64]) {
        page.state.store(self.flags, Relaxed);
        page.tsc_sum.store(tsc, Relaxed);
        for (published, sum) in page.slots.iter().zip(counts) {
            published.sum.store(*sum, Relaxed);
        }
    }

    /// Publishes the starts of a resumed thread, and its vCPU if that has changed.
    #[inline(always)]
    pub(crate) fn resumed(
        &mut self,
        page: &ThreadPage,
        vcpu: Option<u32>,
        tsc: u64,
        counts: &[u64],
        paused: bool,
    ) {
        // Direct reads would have to leave out what is paused, so the kernel is asked instead.
        let direct = if paused { THREAD_PAUSED } else { THREAD_DIRECT };
        let _guard = page.seq.write(&mut self.writes);
        page.state.store(THREAD_ACTIVE | direct | self.flags, Relaxed);
        if let Some(vcpu) = vcpu {
            page.vcpu.store(vcpu, Relaxed);
        }
        page.tsc_start.store(tsc, Relaxed);
        for (published, start) in page.slots.iter().zip(counts) {
            published.start.store(*start, Relaxed);
        }
    }

    /// Publishes that an interrupt was subtracted from these counters of a running thread, by one
    /// bit for each, and the starts of all counters.
    pub(crate) fn subtracted(&mut self, page: &ThreadPage, counters: u32, starts: &[u64]) {
        let _guard = page.seq.write(&mut self.writes);
        for index in bits_of(counters).map(|index| index as usize) {
            if let (Some(published), Some(start)) = (page.slots.get(index), starts.get(index)) {
                published.start.store(*start, Relaxed);
            }
        }
        let before = page.interrupts.load(Relaxed);
        page.interrupts.store(before.wrapping_add(1), Relaxed);
    }

    /// Publishes that the counters begin anew, and nothing was subtracted from them.
    pub(crate) fn nothing_subtracted(&self, page: &ThreadPage) {
        page.interrupts.store(0, Relaxed);
    }

    /// Publishes how often the thread was resumed.
    #[inline(always)]
    pub(crate) fn switched(&self, page: &ThreadPage, switches: u64) {
        page.switches.store(switches, Relaxed);
    }

    /// Publishes how often the thread was resumed on another vCPU than before.
    pub(crate) fn migrated(&self, page: &ThreadPage, migrations: u64) {
        page.migrations.store(migrations, Relaxed);
    }

    /// Publishes why there are no numbers.
    pub(crate) fn failed(&mut self, page: &ThreadPage, errno: Errno) {
        let _guard = page.seq.write(&mut self.writes);
        page.state.store(THREAD_FAILED, Relaxed);
        page.error.store(errno.to_return(), Relaxed);
    }
}

/// Returns the sums as they were last published, for any thread to ask. If the page was being
/// written during every attempt, it returns `None`, and the caller asks again.
///
/// # Errors
///
/// The reason for which there are no numbers, which may be any error, also `BUSY`.
pub fn published(page: &ThreadPage) -> Result<Option<Sums>, Errno> {
    let mut sums = Sums::default();
    match read_published(page, &mut sums.counter) {
        Ok(tsc) => Ok(Some(Sums { tsc, ..sums })),
        Err(ReadError::NotLoaded(error)) => Err(Errno(error.wrapping_neg())),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_whether_the_clock_is_on_while_its_thread_does_not_run() {
        for (tsc, expected) in [(true, THREAD_TSC), (false, 0)] {
            let (page, mut publisher) = (ThreadPage::default(), Publisher::default());
            publisher.configured(&page, &[PhysSlot::FIRST], tsc, &Sums::default());
            publisher.resumed(&page, Some(1), 10, &[20], false);
            let running = THREAD_ACTIVE | THREAD_DIRECT | expected;
            assert_eq!(page.state.load(Relaxed), running, "running, clock: {tsc}");
            publisher.suspended(&page, 11, &[21]);
            assert_eq!(page.state.load(Relaxed), expected, "suspended, clock: {tsc}");
        }
    }
}
