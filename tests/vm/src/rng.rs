// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes reproducible random numbers.

/// Marsaglia's xorshift64 ("Xorshift RNGs", Journal of Statistical Software 8(14), 2003).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts a sequence. Different seeds and streams give different sequences.
    pub fn new(seed: u64, stream: u64) -> Self {
        // The state is odd, so it is never 0, which is the one state that xorshift does not leave.
        let mut rng = Self((seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 1 | 1);
        for _ in 0..8 {
            rng.next();
        }
        rng
    }

    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "an endless sequence needs no Option")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number between `low` and `high - 1`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    /// Returns one of the elements.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.between(0, from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_repeat() {
        let sequence = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [(); 4].map(|()| rng.next())
        };
        assert_eq!(sequence(1, 2), sequence(1, 2));
        assert_ne!(sequence(1, 2), sequence(1, 3));
        assert_ne!(sequence(1, 2), sequence(2, 2));
        assert!((0..100).all(|_| (5..8).contains(&Rng::new(3, 3).between(5, 8))));
    }
}
