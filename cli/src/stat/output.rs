// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What `perfctr stat` prints, for people and for programs.

use std::fs::File;
use std::io::{self, Write};

use anyhow::{Context, Result};
use perfctr::Event;
use serde::Serialize;

use super::{Options, Run};
use crate::info::Here;

/// One event over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Summary {
    event: String,
    mean: f64,
    min: u64,
    max: u64,
    /// The least part of the time for which it was counted in any run; estimated if less than 1.
    share: f64,
}

impl Summary {
    fn of(n: usize, event: &Event, runs: &[Run]) -> Self {
        let counts = || runs.iter().map(|run| run.counts[n]);
        let values = || counts().map(|count| count.value);
        Self {
            event: event.to_string(),
            mean: values().map(|value| value as f64).sum::<f64>() / runs.len() as f64,
            min: values().min().unwrap_or(0),
            max: values().max().unwrap_or(0),
            share: counts().map(|count| count.share).fold(1.0, f64::min),
        }
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    command: Vec<String>,
    provider: String,
    events: &'a [Summary],
    runs: Vec<RunDocument>,
}

#[derive(Debug, Serialize)]
struct RunDocument {
    status: u8,
    elapsed_ns: u64,
    counts: Vec<u64>,
    unobserved: u32,
    threads: Vec<ThreadDocument>,
}

#[derive(Debug, Serialize)]
struct ThreadDocument {
    pid: u32,
    name: String,
    time_ns: u64,
    counts: Vec<u64>,
}

impl RunDocument {
    fn of(run: &Run, per_thread: bool) -> Self {
        let threads = run.threads.iter().filter(|_| per_thread).map(|thread| ThreadDocument {
            pid: thread.pid,
            name: thread.name.clone(),
            time_ns: thread.time.as_nanos() as u64,
            counts: thread.counts.clone(),
        });
        Self {
            status: run.status,
            elapsed_ns: run.elapsed.as_nanos() as u64,
            counts: run.counts.iter().map(|count| count.value).collect(),
            unobserved: run.unobserved,
            threads: threads.collect(),
        }
    }
}

/// Writes what the runs counted to where `options` say.
pub fn write(options: &Options, here: &Here, runs: &[Run]) -> Result<()> {
    let summaries = options.event.iter().enumerate();
    let summaries: Vec<_> = summaries.map(|(n, event)| Summary::of(n, event, runs)).collect();
    let text = if options.json {
        let words = options.command.iter().map(|word| word.display().to_string());
        let document = Document {
            command: words.collect(),
            provider: here.description.provider.to_string(),
            events: &summaries,
            runs: runs.iter().map(|run| RunDocument::of(run, options.per_thread)).collect(),
        };
        serde_json::to_string_pretty(&document)? + "\n"
    } else {
        table(options, here, &summaries, runs)
    };
    match &options.output {
        Some(path) => {
            let file = File::create(path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(io::stderr().write_all(text.as_bytes())?),
    }
}

fn table(options: &Options, here: &Here, summaries: &[Summary], runs: &[Run]) -> String {
    let provider = here.description.provider;
    let mut lines = vec![String::new()];
    for summary in summaries {
        let mut line =
            format!("{:>20}  {:<20}", grouped(summary.mean.round() as u64), summary.event);
        if runs.len() > 1 {
            line += &format!("{} to {}", grouped(summary.min), grouped(summary.max));
        }
        if summary.share < 1.0 {
            line += &format!(" estimated: counted {:.1} % of the time", summary.share * 100.0);
        }
        lines.push(line.trim_end().to_owned());
    }
    if let Some(ratio) = per_cycle(summaries) {
        lines.push(format!("{ratio:>20.2}  instructions per cycle"));
    }
    let seconds = runs.iter().map(|run| run.elapsed.as_secs_f64()).sum::<f64>() / runs.len() as f64;
    let times = if runs.len() > 1 { format!(", {} runs", runs.len()) } else { String::new() };
    lines.push(format!("{seconds:>20.6}  seconds{times}; provider {provider}"));
    if options.per_thread {
        lines.extend(runs.last().into_iter().flat_map(per_thread));
    }
    let unobserved: u32 = runs.iter().map(|run| run.unobserved).sum();
    if unobserved > 0 {
        lines.push(format!("{unobserved:>20}  threads or programs could not be counted"));
    }
    lines.join("\n") + "\n"
}

/// Each thread's counts, in the order of events.
fn per_thread(run: &Run) -> impl Iterator<Item = String> {
    run.threads.iter().map(|thread| {
        let counts: Vec<_> = thread.counts.iter().map(|&count| grouped(count)).collect();
        format!("{:>20}  {:<16} {}", thread.pid, thread.name, counts.join("  "))
    })
}

/// Instructions per cycle, where both were counted in the same mode.
fn per_cycle(summaries: &[Summary]) -> Option<f64> {
    let mean = |name: &str| {
        let mut all = summaries.iter().filter(|summary| summary.event.starts_with(name));
        all.next().map(|summary| (summary.event.trim_start_matches(name), summary.mean))
    };
    let ((mode, instructions), (other, cycles)) = (mean("instructions")?, mean("cycles")?);
    (mode == other && cycles > 0.0).then(|| instructions / cycles)
}

/// A number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::super::Count;
    use super::*;
    use std::time::Duration;

    fn run(values: [u64; 2]) -> Run {
        Run {
            status: 0,
            elapsed: Duration::from_millis(5),
            counts: values.map(|value| Count { value, share: 1.0 }).to_vec(),
            threads: Vec::new(),
            unobserved: 0,
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn runs_are_summed_up() {
        let runs = [run([10, 4]), run([12, 4])];
        let summaries = [Event::INSTRUCTIONS.user(), Event::CYCLES.user()];
        let summaries: Vec<_> =
            summaries.iter().enumerate().map(|(n, event)| Summary::of(n, event, &runs)).collect();
        assert_eq!((summaries[0].mean, summaries[0].min, summaries[0].max), (11.0, 10, 12));
        assert_eq!(per_cycle(&summaries), Some(2.75));
        assert_eq!(per_cycle(&summaries[..1]), None);
    }
}
