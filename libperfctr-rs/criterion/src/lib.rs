// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

use std::fmt;

use criterion::Throughput;
use criterion::measurement::{Measurement, ValueFormatter};
use perfctr::nested::Source;
use perfctr::{Error, Event, Session};

/// Number of empty measurements. The least of their counts is the cost of a measurement.
const CALIBRATIONS: usize = 16;

/// A measurement that counts an event of the calling thread.
#[derive(Debug)]
pub struct Counted<S = Session> {
    source: S,
    /// What a measurement counts of itself.
    cost: u64,
    units: Units,
}

impl Counted {
    /// Counts this event of the calling thread, which has to run the benchmarks.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::open`], [`Session::start`] and [`Session::read`].
    pub fn event(event: Event) -> Result<Self, Error> {
        let mut session = Session::open()?;
        session.start(&[event])?;
        Self::with_source(session, &event.to_string())
    }
}

impl<S: Source> Counted<S> {
    /// Counts by the first counter of another source, and calls what it counts by this name.
    ///
    /// # Errors
    ///
    /// The errors of the source.
    pub fn with_source(source: S, event: &str) -> Result<Self, Error> {
        let mut counted = Self { source, cost: 0, units: Units::new(event) };
        let mut least = u64::MAX;
        for _ in 0..CALIBRATIONS {
            let before = counted.count()?;
            least = least.min(counted.since(before)?);
        }
        counted.cost = least;
        Ok(counted)
    }

    #[inline(never)]
    fn count(&self) -> Result<u64, Error> {
        let mut count = [0];
        self.source.counts_into(&mut count)?;
        Ok(count[0])
    }

    fn since(&self, before: u64) -> Result<u64, Error> {
        // Counts of other events than retired instructions vary, and may be below the cost.
        Ok(self.count()?.wrapping_sub(before).saturating_sub(self.cost))
    }
}

/// Ends the benchmarks, since criterion knows no measurement that fails.
fn required(count: Result<u64, Error>) -> u64 {
    count.unwrap_or_else(|error| panic!("the benchmark cannot be counted: {error}"))
}

impl<S: Source> Measurement for Counted<S> {
    type Intermediate = u64;
    type Value = u64;

    fn start(&self) -> u64 {
        required(self.count())
    }

    fn end(&self, before: u64) -> u64 {
        required(self.since(before))
    }

    fn add(&self, one: &u64, other: &u64) -> u64 {
        one + other
    }

    fn zero(&self) -> u64 {
        0
    }

    fn to_f64(&self, count: &u64) -> f64 {
        *count as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &self.units
    }
}

/// The units of counts. Criterion wants them to live as long as the program.
#[derive(Clone, Copy)]
struct Units {
    event: &'static str,
    /// Each factor by which counts are divided, with the unit of the result.
    scaled: [(f64, &'static str); 4],
    per_byte: &'static str,
    per_element: &'static str,
    per_bit: &'static str,
}

impl Units {
    fn new(event: &str) -> Self {
        // A program has few measurements.
        let unit = |text: String| -> &'static str { text.leak() };
        let scaled = [(1.0, ""), (1e3, "thousand "), (1e6, "million "), (1e9, "thousand million ")]
            .map(|(factor, word)| (factor, unit(format!("{word}{event}"))));
        Self {
            event: scaled[0].1,
            scaled,
            per_byte: unit(format!("{event}/byte")),
            per_element: unit(format!("{event}/element")),
            per_bit: unit(format!("{event}/bit")),
        }
    }
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.event)
    }
}

impl ValueFormatter for Units {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        let fits = |&&(factor, _): &&(f64, &str)| typical >= 10.0 * factor;
        let &(factor, unit) = self.scaled.iter().rev().find(fits).unwrap_or(&self.scaled[0]);
        for value in values {
            *value /= factor;
        }
        unit
    }

    /// A throughput is a number of events for each byte or element.
    fn scale_throughputs(
        &self,
        _typical: f64,
        throughput: &Throughput,
        values: &mut [f64],
    ) -> &'static str {
        let (number, unit) = match *throughput {
            Throughput::Bytes(bytes) | Throughput::BytesDecimal(bytes) => (bytes, self.per_byte),
            Throughput::Bits(bits) => (bits, self.per_bit),
            Throughput::Elements(elements) | Throughput::ElementsAndBytes { elements, .. } => {
                (elements, self.per_element)
            }
        };
        for value in values {
            *value /= number as f64;
        }
        unit
    }

    fn scale_for_machines(&self, _values: &mut [f64]) -> &'static str {
        self.event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units_that_can_be_read() {
        let units = Units::new("branches:u");
        for (count, expected) in [
            (0.0, "0.0000 branches:u"),
            (1_234.0, "1234.0 branches:u"),
            (25_000.0, "25.000 thousand branches:u"),
            (3.5e9, "3500.0 million branches:u"),
            (3.5e10, "35.000 thousand million branches:u"),
        ] {
            assert_eq!(units.format_value(count).trim(), expected);
        }
        for (throughput, expected) in [
            (Throughput::Bytes(100), "2.5000 branches:u/byte"),
            (Throughput::BytesDecimal(10), "25.000 branches:u/byte"),
            (Throughput::Bits(1_000), "0.2500 branches:u/bit"),
            (Throughput::Elements(5), "50.000 branches:u/element"),
            (Throughput::ElementsAndBytes { elements: 2, bytes: 9 }, "125.00 branches:u/element"),
        ] {
            let said = units.format_throughput(&throughput, 250.0);
            assert_eq!(said.trim(), expected, "{throughput:?}");
        }
        let mut values = [1.0, 2e9];
        assert_eq!(units.scale_for_machines(&mut values), "branches:u");
        assert_eq!(values, [1.0, 2e9]);
        assert_eq!(format!("{units:?}"), "branches:u");
    }
}
