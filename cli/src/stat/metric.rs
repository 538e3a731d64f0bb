// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Computes metrics of counts, in the words of perf's users.

use std::borrow::Cow;
use std::time::Duration;

use perfctr::Event;
use serde::Serialize;

/// A number that is computed from counts, with its unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    pub value: f64,
    pub unit: Cow<'static, str>,
}

impl Metric {
    pub fn new(value: f64, unit: impl Into<Cow<'static, str>>) -> Self {
        Self { value, unit: unit.into() }
    }
}

/// Returns the metric of the `n`th event, if these events were counted together while threads
/// executed for `time`.
///
/// A ratio has counts of the same mode.
pub fn of(n: usize, counted: &[(Event, f64)], time: Duration) -> Option<Metric> {
    let (event, value) = *counted.get(n)?;
    let same = |of: Event| {
        let is = |other: &Event| *other == in_mode(of, event);
        counted.iter().find(|(other, _)| is(other)).map(|(_, count)| *count)
    };
    let is = |of: Event| event == in_mode(of, event);
    let metric =
        |value: f64, unit: &'static str| value.is_finite().then(|| Metric::new(value, unit));
    let seconds = time.as_secs_f64();
    if is(Event::TASK_CLOCK) {
        // This event is the time itself.
        None
    } else if is(Event::INSTRUCTIONS) {
        metric(value / same(Event::CYCLES)?, "insn per cycle")
    } else if is(Event::BRANCH_MISSES) {
        metric(100.0 * value / same(Event::BRANCHES)?, "% of all branches")
    } else if is(Event::CACHE_MISSES) {
        metric(100.0 * value / same(Event::CACHE_REFERENCES)?, "% of all cache refs")
    } else if is(Event::CYCLES) {
        metric(value / seconds / 1e9, "GHz")
    } else {
        metric(value / seconds / 1e6, "M/sec")
    }
}

/// Returns `event` in the mode of `other`.
fn in_mode(event: Event, other: Event) -> Event {
    if other == other.user() {
        event.user()
    } else if other == other.kernel() {
        event.kernel()
    } else {
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_mode_and_rates_of_the_time() {
        let counted = [
            (Event::INSTRUCTIONS.user(), 30.0),
            (Event::CYCLES.user(), 15.0),
            (Event::INSTRUCTIONS.kernel(), 8.0),
            (Event::BRANCHES, 2e6),
            (Event::BRANCH_MISSES, 1e5),
            (Event::CACHE_MISSES, 5.0),
            (Event::raw(0x1c5).user(), 1e6),
        ];
        let of = |n| of(n, &counted, Duration::from_millis(500)).map(|m| (m.value, m.unit));
        let some = |value, unit: &'static str| Some((value, Cow::from(unit)));
        assert_eq!(of(0), some(2.0, "insn per cycle"));
        assert_eq!(of(1), some(15.0 / 5e8, "GHz"));
        assert_eq!(of(2), None, "the kernel's cycles were not counted");
        assert_eq!(of(3), some(4.0, "M/sec"));
        assert_eq!(of(4), some(5.0, "% of all branches"));
        assert_eq!(of(5), None, "references were not counted");
        assert_eq!(of(6), some(2.0, "M/sec"));
        assert_eq!(super::of(3, &counted, Duration::ZERO), None);
    }

    #[test]
    fn there_is_no_ratio_by_0() {
        for misses in [0.0, 7.0] {
            let counted = [(Event::BRANCH_MISSES, misses), (Event::BRANCHES, 0.0)];
            assert_eq!(of(0, &counted, Duration::from_secs(1)), None, "{misses} by 0");
        }
    }
}
