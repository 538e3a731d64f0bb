// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Costs at several sizes of a machine, and how they may grow.

use anyhow::{Context, Result, ensure};

use super::shapes::{DIMENSIONS, Dimension, Shape, shape};
use crate::suites::noise::{NOISE_INSTRUCTIONS, NOISE_PERCENT};

/// The least noise of a number of bytes: memory that the kernel frees or takes meanwhile for
/// something else, divided by some hundreds of threads.
const NOISE_BYTES: f64 = 512.0;
/// The least noise of a switch, unit: instructions. Xen's scheduler takes one of two ways at a
/// switch, which differ by 1,326 instructions, and takes the same way in all turns of some runs.
const NOISE_SWITCH: f64 = 1_400.0;
/// The least noise of a sample, unit: instructions. A sample is the difference of two runs of five
/// million instructions, in which the kernel's timer interrupts.
const NOISE_SAMPLE: f64 = 2_000.0;
/// The least noise of a read, unit: instructions. The compiler unrolls the loop over counters by
/// four, so that some numbers of counters cost less than others.
const NOISE_READ: f64 = 16.0;
/// The least noise of a number of locks: a session takes one, or it does not.
const NOISE_LOCKS: f64 = 0.5;
/// The least noise of a number of interrupts for 100 sessions. The kernel sends a few for its own
/// purposes. If a session interrupted the vCPUs, there would be 100 for each of them.
const NOISE_INTERRUPTS: f64 = 10.0;
/// By what factor a cost may grow steeper that is to grow by a straight line, or by n log n. On the
/// numbers that are measured, n log n becomes steeper by at most 1.6, and n² by at least 2
/// (a test computes both).
const STEEPER: f64 = 1.7;

/// An operation's cost by the size of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What grows, by its name in the program's output.
    pub dimension: &'static str,
    /// The operation.
    pub operation: String,
    /// The sizes and the costs, as exact as the tables show them.
    pub points: Vec<(u32, f64)>,
}

/// All costs, in the order in which they were measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Growth(Vec<Series>);

impl Growth {
    /// Adds what a run of the program has printed.
    ///
    /// # Errors
    ///
    /// A line is not as the program prints it, or a cost is there already.
    pub fn add(&mut self, printed: &str) -> Result<()> {
        for line in printed.lines().filter_map(|line| line.strip_prefix("growth ")) {
            let parts: Vec<&str> = line.split(" | ").collect();
            let [size, operation, cost] = parts[..] else {
                anyhow::bail!("{line}: no three parts")
            };
            let (dimension, number) = size.split_once(' ').context("no number")?;
            let number = number.parse().with_context(|| line.to_owned())?;
            let cost: f64 = cost.parse().with_context(|| line.to_owned())?;
            self.insert(dimension, operation, number, cost.round())?;
        }
        Ok(())
    }

    /// Adds one cost.
    ///
    /// # Errors
    ///
    /// Nobody knows the dimension, or the cost is there already.
    pub fn insert(
        &mut self,
        dimension: &str,
        operation: &str,
        number: u32,
        cost: f64,
    ) -> Result<()> {
        let known = DIMENSIONS.iter().find(|one| one.name == dimension);
        let dimension = known.with_context(|| format!("no dimension {dimension}"))?.name;
        let is_its = |one: &&mut Series| one.dimension == dimension && one.operation == operation;
        let series = match self.0.iter_mut().find(is_its) {
            Some(series) => series,
            None => {
                let operation = operation.to_owned();
                self.0.push(Series { dimension, operation, points: Vec::new() });
                self.0.last_mut().context("it was just added")?
            }
        };
        ensure!(
            series.points.last().is_none_or(|&(last, _)| last < number),
            "{operation} at {number} {dimension} comes twice, or after a greater number"
        );
        series.points.push((number, cost));
        Ok(())
    }

    /// Returns the costs of a dimension.
    pub fn of(&self, dimension: &Dimension) -> impl Iterator<Item = &Series> {
        self.0.iter().filter(|series| series.dimension == dimension.name)
    }

    /// Returns all costs.
    pub fn all(&self) -> &[Series] {
        &self.0
    }
}

impl Series {
    /// Returns how far two measurements of this cost may differ.
    fn noise(&self, cost: f64) -> f64 {
        let is = |start| self.operation.starts_with(start);
        let least = match () {
            () if is("bytes ") => NOISE_BYTES,
            () if is("locks ") => NOISE_LOCKS,
            () if is("interrupts ") => NOISE_INTERRUPTS,
            () if is("a switch") => NOISE_SWITCH,
            () if is("a sample") => NOISE_SAMPLE,
            () if is("a read") => NOISE_READ,
            () => NOISE_INSTRUCTIONS,
        };
        (cost.abs() * NOISE_PERCENT / 100.0).max(least)
    }

    /// Checks that the cost does not grow more than it may.
    ///
    /// # Errors
    ///
    /// It does, or there are too few measurements to say so.
    pub fn check(&self) -> Result<()> {
        let [(first, least), .., (before, last_but_one), (number, cost)] = self.points[..] else {
            anyhow::bail!("{} measurements, at least 3 expected", self.points.len())
        };
        let shape = shape(self.dimension, &self.operation);
        let allowed = match shape {
            Shape::Flat => least + self.noise(least),
            Shape::Straight => {
                let slope = (last_but_one - least).max(0.0) / f64::from(before - first);
                let steeper = STEEPER * slope * f64::from(number - before);
                last_but_one + steeper + self.noise(last_but_one)
            }
        };
        let greatest = match shape {
            Shape::Flat => self.points.iter().map(|&(_, cost)| cost).fold(cost, f64::max),
            Shape::Straight => cost,
        };
        ensure!(
            greatest <= allowed,
            "{greatest} at up to {number} {}, at most {allowed:.0} expected: {:?}",
            self.dimension,
            self.points
        );
        if let Some(most) = super::shapes::most(&self.operation) {
            ensure!(greatest <= most, "{greatest} found, at most {most} expected");
        }
        Ok(())
    }

    /// Returns whether the cost grows by more than noise.
    pub fn grows(&self) -> bool {
        let costs = self.points.iter().map(|&(_, cost)| cost);
        let least = self.points.first().map_or(0.0, |&(_, cost)| cost);
        costs.fold(least, f64::max) > least + self.noise(least)
    }

    /// Returns the exponent of the power of the size that is nearest to the cost: the slope of the
    /// straight line through the logarithms, by least squares. A flat cost has 0, a cost that is
    /// proportional to the size has 1. `None` if a cost has no logarithm.
    pub fn exponent(&self) -> Option<f64> {
        if self.points.iter().any(|&(_, cost)| cost <= 0.0) {
            return None;
        }
        let logs = || self.points.iter().map(|&(n, cost)| (f64::from(n).ln(), cost.ln()));
        let count = self.points.len() as f64;
        let (sum_x, sum_y) = logs().fold((0.0, 0.0), |(x, y), (a, b)| (x + a, y + b));
        let (mean_x, mean_y) = (sum_x / count, sum_y / count);
        let (products, squares) = logs().fold((0.0, 0.0), |(products, squares), (x, y)| {
            (products + (x - mean_x) * (y - mean_y), squares + (x - mean_x).powi(2))
        });
        (squares > 0.0).then(|| products / squares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(operation: &str, points: &[(u32, f64)]) -> Series {
        Series { dimension: "vcpus", operation: operation.to_owned(), points: points.to_vec() }
    }

    /// Returns costs at the sizes that are measured of a dimension.
    fn by(dimension: &Dimension, operation: &str, cost: impl Fn(f64) -> f64) -> Series {
        let points = dimension.numbers.iter().map(|&n| (n, cost(f64::from(n)))).collect();
        Series { dimension: dimension.name, operation: operation.to_owned(), points }
    }

    #[test]
    fn what_is_printed_is_collected() {
        let mut growth = Growth::default();
        growth.add("growth vcpus 2 | a read | 56.20\nsomething else\n").unwrap();
        growth.add("growth vcpus 8 | a read | 55.90\ngrowth users 1 | a read | 57.00\n").unwrap();
        let points = |at: usize| growth.all()[at].points.clone();
        assert_eq!((points(0), points(1)), (vec![(2, 56.0), (8, 56.0)], vec![(1, 57.0)]));
        assert_eq!(growth.of(&DIMENSIONS[0]).count(), 1);
        for wrong in ["growth vcpus 8 | a read | 1", "growth moons 9 | a | 1", "growth vcpus | 1"] {
            growth.clone().add(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_flat_cost_may_grow_by_noise_only() {
        let flat = |costs: [f64; 3]| {
            series("a read", &[(2, costs[0]), (8, costs[1]), (32, costs[2])]).check()
        };
        flat([1_000.0, 1_050.0, 1_050.0]).unwrap();
        flat([10_000.0, 9_000.0, 10_500.0]).unwrap();
        flat([10_000.0, 10_000.0, 10_501.0]).unwrap_err();
        flat([10_000.0, 10_501.0, 10_000.0]).unwrap_err();
        series("a read", &[(2, 1.0), (8, 1.0)]).check().unwrap_err();
        let events =
            |cost| series("locks of the module", &[(2, 0.0), (8, 0.0), (32, cost)]).check();
        events(0.0).unwrap();
        events(1.0).unwrap_err();
    }

    /// Checks that the factor divides n log n from n², on the numbers that are measured.
    #[test]
    fn what_grows_by_more_than_n_log_n_is_refused() {
        let mut deviations = 0;
        for dimension in DIMENSIONS {
            for deviation in super::super::shapes::DEVIATIONS {
                for operation in deviation.operations {
                    if !deviation.dimensions.contains(&dimension.name) {
                        continue;
                    }
                    deviations += 1;
                    let large = 1e6;
                    let check = |cost: fn(f64) -> f64| {
                        by(dimension, operation, |n| large * cost(n)).check()
                    };
                    let unlimited = super::super::shapes::most(operation).is_none();
                    for straight in [|n| n, |n: f64| n + 100.0, |n: f64| n * n.log2()] {
                        assert_eq!(check(straight).is_ok(), unlimited, "{operation}");
                    }
                    check(|n| n * n).unwrap_err();
                }
            }
        }
        assert!(deviations > 0);
    }

    #[test]
    fn an_exponent_is_that_of_a_power() {
        for (power, name) in [(0, "flat"), (1, "straight"), (2, "square")] {
            let exponent = by(&DIMENSIONS[0], name, |n| 7.0 * n.powi(power)).exponent().unwrap();
            assert!((exponent - f64::from(power)).abs() < 1e-9, "{name}: {exponent}");
        }
        assert_eq!(series("locks", &[(2, 0.0), (8, 0.0)]).exponent(), None);
    }

    #[test]
    fn growth_is_more_than_noise() {
        assert!(!series("a read", &[(2, 100.0), (8, 116.0)]).grows());
        assert!(series("a read", &[(2, 100.0), (8, 117.0), (32, 100.0)]).grows());
        assert!(!series("a start and a stop", &[(2, 56.0), (8, 106.0)]).grows());
        assert!(series("a start and a stop", &[(2, 56.0), (8, 107.0)]).grows());
        assert!(!series("a switch, nobody counts", &[(2, 9_457.0), (8, 10_783.0)]).grows());
    }
}
