// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides whether an NMI is the PMU's, on hosts where the PMU interrupts by NMIs.
//!
//! Such interrupts come for other reasons, too: memory errors, a watchdog, the administrator's
//! button. These interrupts must reach their own handlers, even while a guest counts for a long
//! time. So the driver claims an interrupt only if a counter has overflowed that was to interrupt,
//! and if no earlier interrupt was claimed for that overflow. On Intel's CPUs the mask bit of the
//! interrupt controller's entry shows this, without a look at the counters.
//!
//! On AMD's CPUs an interrupt of the PMU may also come when no counter shows its overflow any more.
//! Nothing distinguishes it from an interrupt for a reason that nobody knows. So the driver claims
//! it only if such an interrupt is due, and on KVM only after everybody else was asked.
//!
//! An interrupt comes at any moment, also while the core executes. So its handler reads only
//! atomics and the counters' values.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use shared_abi::read::Counters;
use shared_abi::slot::slots_of;
use shared_abi::{PhysSlot, PmuCaps};

use crate::arch;

/// How long the interrupt of an overflow that was already seen may still take to arrive, unit: TSC
/// ticks.
///
/// Hardware takes a microsecond or less, so that hardly any overflow is seen before its interrupt
/// has come. Emulated hardware takes longer; this is some half a millisecond.
const ON_ITS_WAY_TICKS: u64 = 1_500_000;
/// How long the second interrupt of overflows that happened together may take to arrive, unit: TSC
/// ticks.
///
/// It arrives as soon as the first one is handled. But if the host is a virtual machine itself, the
/// hypervisor below may take the CPU away in between. So this is a tenth of a second at 3 GHz, as
/// long as Linux' own driver for AMD's PMU waits (`perf_nmi_window`).
const SECOND_TICKS: u64 = 300_000_000;

/// The interrupts of the PMU that a physical CPU has to expect.
#[derive(Debug, Default)]
pub struct ExpectedInterrupts {
    /// Slots that interrupt when they overflow, and have not overflowed yet.
    armed: AtomicU32,
    /// The TSC until which the interrupt of an overflow that was seen may arrive, or 0 if there is
    /// no such interrupt.
    until_tsc: AtomicU64,
}

impl ExpectedInterrupts {
    /// Makes the state of a CPU that expects no interrupt.
    pub const fn new() -> Self {
        Self { armed: AtomicU32::new(0), until_tsc: AtomicU64::new(0) }
    }

    /// Sets the slots that interrupt from `now` on when they overflow. `seen` says that the driver
    /// has seen an overflow without its interrupt, which may still arrive.
    pub fn expect(&self, slots: u32, seen: bool, now: u64) {
        let unclaimed = self.armed.swap(slots, Relaxed) & !slots;
        if seen && unclaimed != 0 {
            self.wait(now, ON_ITS_WAY_TICKS);
        }
    }

    /// Returns whether the slot interrupts, and was not yet seen to have overflowed.
    pub(crate) fn is_armed(&self, slot: PhysSlot) -> bool {
        self.armed.load(Relaxed) & slot.bit() != 0
    }

    /// Notes that an interrupt was claimed for an overflow that may interrupt once more, since
    /// another overflow happened together with it.
    pub fn expect_another(&self, now: u64) {
        self.wait(now, SECOND_TICKS);
    }

    /// Expects one more interrupt for so many ticks, or for longer if it is expected for longer
    /// already.
    fn wait(&self, now: u64, ticks: u64) {
        // 0 has a meaning of its own.
        let until = now.wrapping_add(ticks).max(1);
        let before = self.until_tsc.load(Relaxed);
        if before == 0 || until.wrapping_sub(before) as i64 > 0 {
            self.until_tsc.store(until, Relaxed);
        }
    }

    /// Returns whether an interrupt that has just arrived is the PMU's, where the CPU's interrupt
    /// controller can be asked. `is_masked` says whether its entry for the PMU is masked; only the
    /// controller itself masks it.
    pub fn explains_beside_entry(
        &self,
        is_masked: bool,
        caps: &PmuCaps,
        hardware: &impl Counters,
    ) -> bool {
        // The counters say no more than the entry: a counter that has overflowed may hold any value
        // by now.
        if arch::masks_entry_of_pmu(caps) { is_masked } else { self.has_overflowed(caps, hardware) }
    }

    /// Returns whether an interrupt that nobody can explain is one of the PMU's that was due, where
    /// the CPU's interrupt controller can be asked. Only one interrupt was due.
    ///
    /// A guest decides how often its counters overflow together, and thus how often one is due. So
    /// the caller has first asked everybody else who may know the interrupt's reason.
    pub fn explains_unknown(&self, caps: &PmuCaps, now: u64) -> bool {
        !arch::masks_entry_of_pmu(caps) && self.was_due(now)
    }

    /// Returns whether an interrupt that has just arrived is the PMU's, by what the counters hold,
    /// or because one was due.
    pub fn explains(&self, caps: &PmuCaps, hardware: &impl Counters) -> bool {
        self.has_overflowed(caps, hardware) || self.was_due(hardware.clock())
    }

    /// Returns whether counters have overflowed that explain an interrupt. Each overflow explains
    /// only one interrupt. If several overflows explain one interrupt, another interrupt may be on
    /// its way.
    fn has_overflowed(&self, caps: &PmuCaps, hardware: &impl Counters) -> bool {
        let sign = |mask: u64| mask & !(mask >> 1);
        let overflowed = slots_of(self.armed.load(Relaxed))
            .filter(|&slot| {
                hardware.counter(slot.counter_index()) & sign(caps.width(slot).mask()) == 0
            })
            .fold(0, |mask, slot| mask | slot.bit());
        if overflowed != 0 {
            self.armed.fetch_and(!overflowed, Relaxed);
            if overflowed.count_ones() > 1 {
                self.expect_another(hardware.clock());
            }
        }
        overflowed != 0
    }

    /// Returns whether one more interrupt was to come, and expects none any more.
    fn was_due(&self, now: u64) -> bool {
        let until = self.until_tsc.swap(0, Relaxed);
        until != 0 && until.wrapping_sub(now) as i64 > 0
    }
}

/// The reason of a non-maskable interrupt, on a host that samples itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nmi {
    /// The interrupt is not the PMU's.
    Foreign,
    /// The interrupt is the PMU's, and there is nothing left to do for it.
    Handled,
    /// A guest's counter has interrupted, perhaps together with the host's.
    Guest,
}

impl Nmi {
    /// Returns the reason of an interrupt. `hosts` says whether an overflow of the host's counter
    /// explains it, `guests` whether one of a guest's counter does, and `is_masked` whether the
    /// interrupt controller's entry for the PMU is masked now.
    ///
    /// An interrupt may come so late that the driver has seen its overflow before. If the entry is
    /// masked, the interrupt is still the PMU's: the driver has to unmask the entry.
    pub fn of(hosts: bool, guests: bool, is_masked: bool, caps: &PmuCaps) -> Self {
        if guests {
            Self::Guest
        } else if hosts || arch::masks_entry_of_pmu(caps) && is_masked {
            Self::Handled
        } else {
            Self::Foreign
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use shared_abi::CounterWidth;
    use shared_abi::caps::VENDOR_INTEL;

    use super::*;
    use crate::arch::Identity;

    const SIGN: u64 = 1 << 47;

    /// Two counters and a clock.
    #[derive(Default)]
    struct Hardware {
        counters: [Cell<u64>; 2],
        tsc: Cell<u64>,
    }

    impl Counters for Hardware {
        fn counter(&self, index: u32) -> u64 {
            self.counters[index as usize].get()
        }
        fn clock(&self) -> u64 {
            self.tsc.get()
        }
    }

    fn caps() -> PmuCaps {
        let amd = Identity {
            vendor: [0x6874_7541, 0x6974_6e65, 0x444d_4163],
            signature: 0x0010_0f42,
            ..Identity::NONE
        };
        amd.pmu().unwrap().0
    }

    /// Counters 0 and 1 are to interrupt, and have some way to go.
    fn armed() -> (ExpectedInterrupts, Hardware) {
        let (expected, hardware) = (ExpectedInterrupts::new(), Hardware::default());
        hardware.counters.iter().for_each(|counter| counter.set(SIGN | 5));
        hardware.tsc.set(1_000);
        expected.expect(0b11, false, 1_000);
        (expected, hardware)
    }

    #[test]
    fn an_interrupt_without_an_overflow_is_anothers() {
        let (expected, hardware) = armed();
        for _ in 0..3 {
            assert!(!expected.explains(&caps(), &hardware));
        }
        let none = ExpectedInterrupts::new();
        hardware.counters.iter().for_each(|counter| counter.set(0));
        assert!(!none.explains(&caps(), &hardware), "a counter that does not interrupt");
    }

    #[test]
    fn where_the_entry_masks_itself_it_alone_tells_whose_an_interrupt_is() {
        let (intel, amd) = (PmuCaps { vendor: VENDOR_INTEL, ..caps() }, caps());
        for (holds, has_overflowed) in [(SIGN | 5, false), (2, true)] {
            for is_masked in [false, true] {
                for (caps, ours) in [(&intel, is_masked), (&amd, has_overflowed)] {
                    let (expected, hardware) = armed();
                    hardware.counters[1].set(holds);
                    let explained = expected.explains_beside_entry(is_masked, caps, &hardware);
                    let vendor = caps.vendor;
                    assert_eq!(explained, ours, "{vendor}: masked {is_masked}, holds {holds:#x}");
                }
            }
        }
    }

    #[test]
    fn pairs_that_are_renewed_hide_only_what_nobody_knows_and_one_for_each_pair() {
        const PAIRS: u32 = 100;
        let ((expected, hardware), caps) = (armed(), caps());
        let overflowed = || expected.explains_beside_entry(false, &caps, &hardware);
        let unknown = || expected.explains_unknown(&caps, hardware.clock());
        let mut hidden = 0;
        for _ in 0..PAIRS {
            hardware.counters.iter().for_each(|counter| counter.set(2));
            assert!(overflowed(), "the first of the two");
            // The second one never comes, and foreign ones do.
            for _ in 0..3 {
                assert!(!overflowed(), "everybody else is asked");
            }
            hidden += [(); 3].map(|()| u32::from(unknown())).iter().sum::<u32>();
            hardware.counters.iter().for_each(|counter| counter.set(SIGN | 5));
            expected.expect(0b11, true, hardware.clock());
        }
        assert_eq!(hidden, PAIRS);
    }

    #[test]
    fn where_the_entry_masks_itself_none_is_due() {
        let intel = PmuCaps { vendor: VENDOR_INTEL, ..caps() };
        for (caps, due) in [(&intel, false), (&caps(), true)] {
            let (expected, hardware) = armed();
            expected.expect(0, true, 1_000);
            let vendor = caps.vendor;
            assert_eq!(expected.explains_unknown(caps, hardware.clock()), due, "{vendor}");
        }
    }

    #[test]
    fn a_masked_entry_of_intels_is_the_pmus_also_if_no_overflow_explains_it() {
        let (intel, amd) = (PmuCaps { vendor: VENDOR_INTEL, ..caps() }, caps());
        for (hosts, guests, is_masked, of_intel, of_amd) in [
            (false, false, false, Nmi::Foreign, Nmi::Foreign),
            (false, false, true, Nmi::Handled, Nmi::Foreign),
            (true, false, false, Nmi::Handled, Nmi::Handled),
            (false, true, true, Nmi::Guest, Nmi::Guest),
            (true, true, false, Nmi::Guest, Nmi::Guest),
        ] {
            let of = |caps| Nmi::of(hosts, guests, is_masked, caps);
            assert_eq!((of(&intel), of(&amd)), (of_intel, of_amd), "{hosts} {guests} {is_masked}");
        }
    }

    #[test]
    fn an_overflow_that_came_with_another_explains_one_interrupt_more_for_a_while() {
        for (after, expected) in [(SECOND_TICKS - 1, true), (SECOND_TICKS, false)] {
            let (expected_interrupts, hardware) = armed();
            expected_interrupts.expect_another(1_000);
            hardware.tsc.set(1_000 + after);
            let explained = [(); 2].map(|()| expected_interrupts.explains(&caps(), &hardware));
            assert_eq!(explained, [expected, false], "{after} ticks later");
        }
    }

    #[test]
    fn overflows_that_one_interrupt_told_explain_one_more_for_a_while() {
        for (after, expected) in [(SECOND_TICKS - 1, true), (SECOND_TICKS, false)] {
            let (expected_interrupts, hardware) = armed();
            hardware.counters.iter().for_each(|counter| counter.set(2));
            assert!(expected_interrupts.explains(&caps(), &hardware));
            hardware.tsc.set(1_000 + after);
            let explained = [(); 2].map(|()| expected_interrupts.explains(&caps(), &hardware));
            assert_eq!(explained, [expected, false], "{after} ticks later");
        }
    }

    #[test]
    fn each_overflow_explains_one_interrupt() {
        let (expected, hardware) = armed();
        for counter in &hardware.counters {
            counter.set(2);
            assert!(expected.explains(&caps(), &hardware));
            assert!(!expected.explains(&caps(), &hardware), "the next one is another's");
        }
        hardware.counters.iter().for_each(|counter| counter.set(SIGN | 5));
        expected.expect(0b11, true, 1_000);
        assert!(!expected.explains(&caps(), &hardware), "those had come");
        hardware.counters[1].set(0);
        assert!(expected.explains(&caps(), &hardware), "armed again");
    }

    /// Every counter holds the first number, and the clock shows the second.
    struct Holding(u64, u64);

    impl Counters for Holding {
        fn counter(&self, _: u32) -> u64 {
            self.0
        }
        fn clock(&self) -> u64 {
            self.1
        }
    }

    #[test]
    fn each_kind_of_counter_overflows_at_its_own_width() {
        let [general_width, fixed_width] = [48, 40].map(|bits| CounterWidth::new(bits).unwrap());
        let (general, fixed) = (PhysSlot::general(1).unwrap(), PhysSlot::fixed(2).unwrap());
        let caps = PmuCaps { fixed: 3, general_width, fixed_width, ..caps() };
        for (slot, holds, ours) in [
            (fixed, (1 << 40) - 1_000, false),
            (fixed, 1 << 39, false),
            (fixed, 700, true),
            (general, (1 << 48) - 1_000, false),
            (general, 1 << 47, false),
            (general, (1 << 39) + 700, true),
        ] {
            let expected = ExpectedInterrupts::new();
            expected.expect(slot.bit(), false, 1);
            let explained = expected.explains(&caps, &Holding(holds, 2));
            let bits = caps.width(slot).bits();
            assert_eq!(explained, ours, "counter {slot:?} of {bits} bits holds {holds:#x}");
        }
    }

    #[test]
    fn one_that_is_on_its_way_is_waited_for_but_not_for_long() {
        for (later, ours) in [(0, true), (ON_ITS_WAY_TICKS - 1, true), (ON_ITS_WAY_TICKS, false)] {
            for start in [1_000, u64::MAX - 10, 7_u64.wrapping_sub(ON_ITS_WAY_TICKS)] {
                let (expected, hardware) = armed();
                expected.expect(0, true, start);
                hardware.tsc.set(start.wrapping_add(later));
                assert_eq!(expected.explains(&caps(), &hardware), ours, "{start} + {later}");
                assert!(!expected.explains(&caps(), &hardware), "once");
            }
        }
    }

    #[test]
    fn one_that_is_expected_soon_does_not_replace_one_that_may_take_longer() {
        for short_first in [true, false] {
            let (expected, hardware) = armed();
            if short_first {
                expected.expect(0, true, 1_000);
            }
            expected.expect_another(1_000);
            expected.expect(0b11, false, 1_000);
            expected.expect(0, true, 1_000);
            hardware.tsc.set(1_000 + SECOND_TICKS - 1);
            assert!(expected.explains(&caps(), &hardware), "the short one first: {short_first}");
        }
        let (expected, hardware) = armed();
        expected.expect_another(1_000);
        hardware.tsc.set(2_000_000 + SECOND_TICKS);
        expected.expect(0, true, 1_999_000 + SECOND_TICKS);
        assert!(expected.explains(&caps(), &hardware), "the later one is expected for longer");
    }

    #[test]
    fn one_that_is_armed_again_is_not_on_its_way() {
        let (expected, hardware) = armed();
        expected.expect(0b11, true, 1_000);
        assert!(!expected.explains(&caps(), &hardware), "both are armed still");
        expected.expect(0b01, true, 1_000);
        assert!(expected.explains(&caps(), &hardware), "the second is not, and may have come");
        assert!(!expected.explains(&caps(), &hardware), "once");
    }

    #[test]
    fn a_vcpu_that_is_left_before_its_overflow_leaves_no_doubt() {
        let (expected, hardware) = armed();
        expected.expect(0, false, 1_000);
        hardware.counters.iter().for_each(|counter| counter.set(0));
        assert!(!expected.explains(&caps(), &hardware));
    }
}
