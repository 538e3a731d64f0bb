// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! An input, taken apart.

use shared_abi::CounterConfig;
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR};

/// What is left of an input.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A whole input.
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Whether all of it was taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte; 0 behind the end.
    pub fn byte(&mut self) -> u8 {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                *first
            }
            [] => 0,
        }
    }

    /// The next byte, as one of a few numbers.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// The next eight bytes.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.byte()))
    }

    /// A number that is small, or at an edge, or anything.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..200 => u64::from(small),
            200..224 => 1 << self.below(64),
            224..240 => (1_u64 << self.below(64)).wrapping_sub(1),
            _ => self.word(),
        }
    }

    /// Bytes, with these at some places.
    pub fn disturb(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.below(4) {
            let place = (self.byte() as usize | (self.byte() as usize) << 8) % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(place) {
                *byte = self.byte();
            }
        }
    }

    /// A counter that may well be valid.
    pub fn counter(&mut self) -> CounterConfig {
        let rings = self.pick(&[EVNTSEL_USR, EVNTSEL_OS, EVNTSEL_USR | EVNTSEL_OS, EVNTSEL_USR]);
        let event = self.pick(&[0xc0, 0x3c, 0xc4, 0xc5, 0x13c, 0xb7, 0]);
        let sampling = self.byte() < 80;
        // The fixed counters have no event.
        let slot = self.below(20) as u32;
        CounterConfig {
            slot,
            mode: sampling.into(),
            evntsel: if slot < 16 { event } else { 0 } | rings | EVNTSEL_EN,
            period: if sampling { self.pick(&[1_000, 10_000, 77_777, 1, 1 << 31]) } else { 0 },
            reserved: 0,
        }
    }
}
