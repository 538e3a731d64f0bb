// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Processor event-based sampling (SDM volume 3, "Processor Event Based Sampling (PEBS)" and "DS
//! Save Area"): when a counter has overflowed, its next event makes the processor store a record in
//! memory.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{Refusal, global_bits};
use crate::hal::{Pmu, Probe};

/// Bytes of a [`RecordArea`], which is one page.
pub const RECORD_AREA_BYTES: usize = 4096;
const WORDS: usize = RECORD_AREA_BYTES / size_of::<u64>();

/// Words of the area that manage the buffer: its first byte, where the next record goes, the byte
/// after its end, and where a record interrupts.
const BASE: usize = 4;
const INDEX: usize = 5;
const END: usize = 6;
const THRESHOLD: usize = 7;
/// The words with which general counters go on when they have a record.
const RESETS: core::ops::Range<usize> = 8..16;
/// The first word of the first record.
const FIRST_RECORD: usize = 64;
/// Records for which there is room. One interrupts, and a later one may come before its interrupt.
const RECORDS: usize = 8;

/// Words of a record: the counters that have overflowed, and the address of the instruction that
/// was the event.
const RECORD_COUNTERS: usize = 18;
const RECORD_EVENT_IP: usize = 22;
/// Words of the longest record.
const RECORD_WORDS_MAX: usize = 25;

const _: () = assert!(FIRST_RECORD + RECORDS * RECORD_WORDS_MAX <= WORDS);

/// The memory in which a physical CPU stores its records. It is the hypervisor's own, and mapped at
/// the same address whenever a guest with [`Rings::Folded`](crate::guest::Rings::Folded) executes.
///
/// The processor writes to it at any time, so it consists of atomics.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct RecordArea {
    words: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<RecordArea>() == RECORD_AREA_BYTES);

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreciseRecord {
    /// The slots that have overflowed.
    pub(crate) slots: u32,
    /// The address of the instruction that was the first event after that.
    pub(crate) ip: u64,
}

impl RecordArea {
    /// Makes an area of zeroes, into which nothing is stored yet.
    pub const fn new() -> Self {
        Self { words: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// Returns the content of the area, in the order in which the processor sees it.
    pub const fn words(&self) -> &[AtomicU64; WORDS] {
        &self.words
    }

    // ATOMICS: only the CPU that executes this stores into its area, and a CPU sees its own stores
    // in order.
    fn get(&self, word: usize) -> u64 {
        self.words().get(word).map_or(0, |word| word.load(Relaxed))
    }

    fn set(&self, word: usize, value: u64) {
        if let Some(word) = self.words().get(word) {
            word.store(value, Relaxed);
        }
    }

    /// Returns the linear address of a word.
    fn address(&self, word: usize) -> u64 {
        core::ptr::from_ref(self).addr() as u64 + (word * size_of::<u64>()) as u64
    }
}

impl Default for RecordArea {
    fn default() -> Self {
        Self::new()
    }
}

/// The registers of PEBS, and the format of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreciseRegisters {
    /// IA32_PEBS_ENABLE.
    enable: u32,
    /// IA32_DS_AREA.
    area: u32,
    /// Words of a record.
    words: usize,
}

impl PreciseRegisters {
    /// Returns the registers of a CPU that has PEBS, if records of this format have the address of
    /// the event itself, as those of formats 2 and 3 do.
    pub(super) const fn new(format: u32, enable: u32) -> Option<Self> {
        let words = match format {
            2 => 24,
            3 => RECORD_WORDS_MAX,
            _ => return None,
        };
        Some(Self { enable, area: 0x600, words })
    }

    /// Tries the registers on the CPU that executes this, and lets it use `area` from now on. No
    /// counter writes records afterwards.
    ///
    /// # Errors
    ///
    /// Names the first register that is not as it should be.
    pub(crate) fn probe(&self, pmu: &impl Probe, area: &RecordArea) -> Result<(), Refusal> {
        self.prepare(area);
        for (register, value) in [(self.enable, 0), (self.area, area.address(0))] {
            let kept = pmu.try_write_register(register, value)
                && pmu.try_read_register(register) == Some(value);
            if !kept {
                return Err(Refusal::Register(register));
            }
        }
        Ok(())
    }

    /// Takes the area away from the CPU that executes this.
    pub(crate) fn give_back(&self, pmu: &impl Pmu) {
        pmu.write_register(self.enable, 0);
        pmu.write_register(self.area, 0);
    }

    /// Lets exactly these counters write records. If the next event of another counter was to write
    /// one, the processor forgets that.
    pub(crate) fn enable(&self, pmu: &impl Pmu, slots: u32) {
        pmu.write_register(self.enable, global_bits(slots));
    }

    /// Describes the buffer, of which the first record interrupts.
    ///
    /// A counter that has a record holds 1 then, which is what it would hold without a record, so
    /// that no count is lost.
    fn prepare(&self, area: &RecordArea) {
        let record = |n: usize| area.address(FIRST_RECORD + n * self.words);
        area.set(BASE, record(0));
        area.set(INDEX, record(0));
        area.set(END, record(RECORDS));
        area.set(THRESHOLD, record(1));
        RESETS.for_each(|word| area.set(word, 1));
    }

    /// Calls `each` with each record, the oldest first, and clears them, so that no vCPU sees
    /// another one's.
    pub(crate) fn take(&self, area: &RecordArea, mut each: impl FnMut(PreciseRecord)) {
        let index = area.get(INDEX);
        if index == area.address(FIRST_RECORD) {
            return;
        }
        let firsts = (0..RECORDS).map(|n| FIRST_RECORD + n * self.words);
        for first in firsts.take_while(|&first| area.address(first) < index) {
            let slots = super::slots_of_global(area.get(first + RECORD_COUNTERS));
            each(PreciseRecord { slots, ip: area.get(first + RECORD_EVENT_IP) });
            (first..first + self.words).for_each(|word| area.set(word, 0));
        }
        area.set(INDEX, area.address(FIRST_RECORD));
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    /// Stores a record as the processor does.
    fn store(registers: &PreciseRegisters, area: &RecordArea, counters: u64, ip: u64) {
        let first = (area.get(INDEX) - area.address(0)) as usize / size_of::<u64>();
        (first..first + registers.words).for_each(|word| area.set(word, 0x5a5a));
        area.set(first + RECORD_COUNTERS, counters);
        area.set(first + RECORD_EVENT_IP, ip);
        area.set(INDEX, area.get(INDEX) + 8 * registers.words as u64);
    }

    fn registers(format: u32) -> Option<PreciseRegisters> {
        PreciseRegisters::new(format, 0x3f1)
    }

    #[test]
    fn records_have_the_manuals_lengths() {
        let bytes = [0, 1, 2, 3, 4].map(|format| registers(format).map(|found| found.words * 8));
        assert_eq!(bytes, [None, None, Some(192), Some(200), None]);
    }

    #[test]
    fn the_area_describes_a_buffer_of_which_the_first_record_interrupts() {
        for format in [2, 3] {
            let (registers, area) = (registers(format).unwrap(), RecordArea::new());
            registers.prepare(&area);
            let bytes = 8 * registers.words as u64;
            let [base, index, end, threshold] = [4, 5, 6, 7].map(|word| area.get(word));
            assert_eq!((index, end, threshold), (base, base + 8 * bytes, base + bytes));
            let page = area.address(0);
            assert!(page % 4096 == 0 && base >= page + 0x100 && end <= page + 4096);
            assert!((8..16).all(|word| area.get(word) == 1), "counters go on with 1");
        }
    }

    #[test]
    fn records_are_taken_once_and_nothing_of_them_stays() {
        for format in [2, 3] {
            let (registers, area) = (registers(format).unwrap(), RecordArea::new());
            registers.prepare(&area);
            let taken = |area: &RecordArea| {
                let mut all = Vec::new();
                registers.take(area, |record| all.push((record.slots, record.ip)));
                all
            };
            assert_eq!(taken(&area), []);
            store(&registers, &area, 1 << 2, 0x1234);
            store(&registers, &area, 0b11, 0x5678);
            assert_eq!(taken(&area), [(0b100, 0x1234), (0b11, 0x5678)], "format {format}");
            assert_eq!((area.get(INDEX), taken(&area)), (area.get(BASE), Vec::new()));
            assert!((FIRST_RECORD..WORDS).all(|word| area.get(word) == 0));
        }
    }

    #[test]
    fn an_index_beyond_the_buffer_is_not_followed() {
        let (registers, area) = (registers(3).unwrap(), RecordArea::new());
        for (index, expected) in [
            (area.address(FIRST_RECORD) - 8, 0),
            (area.address(WORDS), RECORDS),
            (u64::MAX, RECORDS),
        ] {
            registers.prepare(&area);
            area.set(INDEX, index);
            let mut number = 0;
            registers.take(&area, |_| number += 1);
            assert_eq!((number, area.get(INDEX)), (expected, area.get(BASE)), "{index:#x}");
        }
    }
}
