// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads an input as numbers and choices.

use shared_abi::CounterConfig;
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR};

/// The rest of an input.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts at the beginning of an input.
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Returns whether all of it was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next byte, or 0 after the end.
    pub fn byte(&mut self) -> u8 {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                *first
            }
            [] => 0,
        }
    }

    /// Returns the next byte, as a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// Returns one of these elements.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns the next eight bytes as a number.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes([(); 8].map(|()| self.byte()))
    }

    /// Returns a number that is small, or near a power of two, or any number.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..200 => u64::from(small),
            200..224 => 1 << self.below(64),
            224..240 => (1_u64 << self.below(64)).wrapping_sub(1),
            _ => self.word(),
        }
    }

    /// Overwrites some of these bytes with bytes of the input.
    pub fn disturb(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.below(4) {
            let place = (self.byte() as usize | (self.byte() as usize) << 8) % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(place) {
                *byte = self.byte();
            }
        }
    }

    /// Returns a counter's configuration that may well be valid.
    pub fn counter(&mut self) -> CounterConfig {
        let rings = self.pick(&[EVNTSEL_USR, EVNTSEL_OS, EVNTSEL_USR | EVNTSEL_OS, EVNTSEL_USR]);
        let event = self.pick(&[0xc0, 0x3c, 0xc4, 0xc5, 0x13c, 0xb7, 0]);
        let sampling = self.byte() < 80;
        // Fixed counters have no event to choose.
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
