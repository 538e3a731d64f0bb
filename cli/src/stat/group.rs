// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Named groups of events that are counted together, and the metrics of their counts.
//!
//! The events are those that Intel's architectural PMU has (SDM volume 3, "Pre-defined
//! Architectural Performance Events") and that Linux' perf offers on other processors, so that a
//! group means the same everywhere.

use clap::ValueEnum;
use perfctr::Event;

use super::metric::Metric;

/// A group of events. All are counted in user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// How many instructions the program executes in a cycle
    Ipc,
    /// How often the program branches, and how often the processor predicts that wrongly
    Branches,
    /// How often the program needs the last level of the caches, and how often it misses there
    Caches,
}

/// A ratio of two counts of a group.
struct Ratio {
    of: Event,
    by: Event,
    times: f64,
    unit: &'static str,
}

impl Group {
    /// Returns the events to count.
    pub fn events(self) -> Vec<Event> {
        let all: &[Event] = match self {
            Self::Ipc => &[Event::INSTRUCTIONS, Event::CYCLES],
            Self::Branches => &[Event::INSTRUCTIONS, Event::BRANCHES, Event::BRANCH_MISSES],
            Self::Caches => &[Event::INSTRUCTIONS, Event::CACHE_REFERENCES, Event::CACHE_MISSES],
        };
        all.iter().map(|event| event.user()).collect()
    }

    fn ratios(self) -> Vec<Ratio> {
        let (instructions, cycles) = (Event::INSTRUCTIONS, Event::CYCLES);
        let (branches, mispredicted) = (Event::BRANCHES, Event::BRANCH_MISSES);
        let (references, misses) = (Event::CACHE_REFERENCES, Event::CACHE_MISSES);
        let ratio = |of, by, times, unit| Ratio { of, by, times, unit };
        match self {
            Self::Ipc => vec![
                ratio(instructions, cycles, 1.0, "instructions per cycle"),
                ratio(cycles, instructions, 1.0, "cycles per instruction"),
            ],
            Self::Branches => vec![
                ratio(branches, instructions, 1e3, "branches per 1000 instructions"),
                ratio(mispredicted, instructions, 1e3, "mispredicted per 1000 instructions"),
                ratio(mispredicted, branches, 100.0, "% of branches mispredicted"),
            ],
            Self::Caches => vec![
                ratio(references, instructions, 1e3, "references per 1000 instructions"),
                ratio(misses, instructions, 1e3, "misses per 1000 instructions"),
                ratio(misses, references, 100.0, "% of references missed"),
            ],
        }
    }

    /// Returns the metrics of these counts. A ratio with the divisor 0 is left out, and so is one
    /// whose events were not counted.
    pub fn metrics(self, counted: &[(Event, f64)]) -> Vec<Metric> {
        let count = |of: Event| {
            counted.iter().find(|(event, _)| *event == of.user()).map(|(_, count)| *count)
        };
        let value = |Ratio { of, by, times, unit }| {
            let value = times * count(of)? / count(by)?;
            value.is_finite().then(|| Metric::new(value, unit))
        };
        self.ratios().into_iter().filter_map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(all: &[(f64, &'static str)]) -> Vec<Metric> {
        all.iter().map(|&(value, unit)| Metric::new(value, unit)).collect()
    }

    #[test]
    fn each_ratio_of_a_group_is_of_the_two_counts_that_its_unit_names() {
        let counted = [
            // Of both modes, which no ratio is of.
            (Event::INSTRUCTIONS, 7.0),
            (Event::CYCLES, 3.0),
            (Event::INSTRUCTIONS.user(), 80_000.0),
            (Event::CYCLES.user(), 32_000.0),
            (Event::BRANCHES.user(), 4_000.0),
            (Event::BRANCH_MISSES.user(), 120.0),
            (Event::CACHE_REFERENCES.user(), 2_400.0),
            (Event::CACHE_MISSES.user(), 600.0),
            (Event::BRANCHES, 9.0),
        ];
        let values = |group: Group| group.metrics(&counted);
        assert_eq!(
            values(Group::Ipc),
            metrics(&[(2.5, "instructions per cycle"), (0.4, "cycles per instruction")])
        );
        assert_eq!(
            values(Group::Branches),
            metrics(&[
                (50.0, "branches per 1000 instructions"),
                (1.5, "mispredicted per 1000 instructions"),
                (3.0, "% of branches mispredicted"),
            ])
        );
        assert_eq!(
            values(Group::Caches),
            metrics(&[
                (30.0, "references per 1000 instructions"),
                (7.5, "misses per 1000 instructions"),
                (25.0, "% of references missed"),
            ])
        );
    }

    #[test]
    fn every_ratio_is_of_events_that_its_group_counts() {
        for &group in Group::value_variants() {
            let counted: Vec<_> = group.events().into_iter().zip([30.0, 20.0, 10.0]).collect();
            assert_eq!(group.metrics(&counted).len(), group.ratios().len(), "{group:?}");
        }
    }

    #[test]
    fn a_ratio_by_0_or_by_what_was_not_counted_is_left_out() {
        let counted = |branches| {
            [
                (Event::INSTRUCTIONS.user(), 1_000.0),
                (Event::BRANCHES.user(), branches),
                (Event::BRANCH_MISSES.user(), 0.0),
            ]
        };
        let units = |branches| {
            let metrics = Group::Branches.metrics(&counted(branches)).into_iter();
            metrics.map(|metric| metric.unit).collect::<Vec<_>>()
        };
        assert_eq!(units(9.0).len(), 3, "there are branches");
        assert_eq!(
            units(0.0),
            ["branches per 1000 instructions", "mispredicted per 1000 instructions"]
        );
        assert_eq!(Group::Caches.metrics(&counted(9.0)), []);
    }
}
