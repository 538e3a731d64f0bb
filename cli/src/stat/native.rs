// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Through `perf_event_open(2)`, whose events are handed down to threads and children.

use std::ffi::OsString;

use anyhow::{Context, Result};
use perfctr::raw::{PerfCount, PerfEvent, of_program};
use perfctr::{Error, Event};

use super::{Count, Run};
use crate::program::child::Child;
use crate::program::ptrace::{self, Change};

/// Runs the program.
pub fn run(command: &[OsString], events: &[Event]) -> Result<Run> {
    let child = Child::new(command)?;
    let first = child.pid();
    let open = |event: &Event| of_program(event, first.cast_unsigned());
    let opened = events.iter().map(open).collect::<Result<Vec<PerfEvent>, Error>>()?;
    let started = child.go()?;
    let mut status = 0;
    // Nothing is traced: only the first process's end is told.
    while let Some((pid, change)) = ptrace::wait().context("cannot wait for the program")? {
        if let (true, Change::Ended(code)) = (pid == first, change) {
            status = code;
        }
    }
    let elapsed = started.ended()?;
    let counts = opened.iter().map(|event| Ok(estimate(event.counted()?)));
    Ok(Run {
        status,
        elapsed,
        counts: counts.collect::<Result<_>>()?,
        threads: Vec::new(),
        unobserved: 0,
    })
}

/// What the event would have counted if it had been counted all the time.
fn estimate(PerfCount { count, enabled_ns, running_ns }: PerfCount) -> Count {
    if running_ns == enabled_ns {
        return Count { value: count, share: 1.0 };
    }
    let share = running_ns as f64 / enabled_ns as f64;
    let value = if running_ns == 0 { 0 } else { (count as f64 / share).round() as u64 };
    Count { value, share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_all_the_time_is_an_estimate() {
        let of =
            |count, enabled_ns, running_ns| estimate(PerfCount { count, enabled_ns, running_ns });
        assert_eq!(of(u64::MAX, 8, 8), Count { value: u64::MAX, share: 1.0 });
        assert_eq!(of(100, 8, 2), Count { value: 400, share: 0.25 });
        assert_eq!(of(0, 8, 0), Count { value: 0, share: 0.0 });
        assert_eq!(of(7, 0, 0), Count { value: 7, share: 1.0 });
    }
}
