// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The arithmetic by which counts of a vCPU and of a thread are computed.
//!
//! ```text
//! Phys*(t)      = Sum_vcpu   + (Phys(t)  - Start_vcpu)       the hypervisor owns Sum and Start
//! Log_thread(t) = Sum_thread + (Phys*(t) - Start*_thread)    the guest kernel owns them
//! ```
//!
//! The glossary defines these words. Hardware counters are narrower than 64 bits and wrap, so
//! `Phys - Start` is a difference modulo 2^width. The difference is correct as long as fewer than
//! 2^width events happen between two folds. Sums are 64 bits wide and are only ever compared by
//! their difference.
//!
//! Source: Nikolaev and Back, "Perfctr-Xen", VEE 2011, section 3.

/// Width of a hardware counter in bits: 32 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterWidth(u8);

impl CounterWidth {
    /// Makes a width of `bits` bits, or returns `None` unless `bits` is between 32 and 64.
    pub const fn new(bits: u32) -> Option<Self> {
        if bits >= 32 && bits <= 64 { Some(Self(bits as u8)) } else { None }
    }

    /// Returns the number of bits.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Returns a mask of every bit that the counter has.
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.0 as u32)
    }
}

/// Returns `Phys*`: the events of this vCPU up to the moment when the hardware counter held `raw`.
///
/// `mask` is the counter's [`CounterWidth::mask`], or 0 for a counter that is not running now. The
/// result is then `sum`.
#[inline(always)]
pub const fn phys_star(sum: u64, start: u64, mask: u64, raw: u64) -> u64 {
    sum.wrapping_add(raw.wrapping_sub(start) & mask)
}

/// Returns `Log_thread`: the events of this thread up to the moment when its vCPU's count was
/// `phys_star`.
#[inline(always)]
pub const fn log_thread(sum: u64, start_star: u64, phys_star: u64) -> u64 {
    sum.wrapping_add(phys_star.wrapping_sub(start_star))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_is_bounded() {
        assert_eq!(CounterWidth::new(31), None);
        assert_eq!(CounterWidth::new(65), None);
        assert_eq!(CounterWidth::new(32).map(CounterWidth::mask), Some(0xffff_ffff));
        assert_eq!(CounterWidth::new(64).map(CounterWidth::mask), Some(u64::MAX));
    }

    #[test]
    fn difference_is_modular_at_every_width() {
        for bits in 32..=64 {
            let mask = CounterWidth::new(bits).unwrap().mask();
            // Fixed-width code fails most often where the value crosses the sign bit or zero.
            for start in [0, 1, mask / 2, mask / 2 + 1, mask - 99, mask] {
                for events in [0, 1, 100, 200, mask / 2, mask - 1, mask] {
                    let raw = start.wrapping_add(events) & mask;
                    assert_eq!(phys_star(1000, start, mask, raw), 1000u64.wrapping_add(events));
                }
            }
        }
    }

    #[test]
    fn a_slot_that_does_not_run_reads_as_its_sum() {
        assert_eq!(phys_star(77, 5, 0, 123_456), 77);
    }

    #[test]
    fn segments_of_a_thread_add_up() {
        // Two slices of 30 and 12 events; the vCPU counts 1000 events of others in between.
        let after_first = log_thread(0, 500, 530);
        assert_eq!(log_thread(after_first, 1530, 1542), 42);
    }
}
