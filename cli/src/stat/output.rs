// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Prints the results of `perfctr stat`, for people and for programs.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use perfctr::Event;
use perfctr_gate::surroundings::Fixed;
use perfctr_gate::text::grouped;
use serde::Serialize;

use super::metric::{self, Metric};
use super::{Count, Options, Run};
use crate::info::Here;
use crate::text::document;

/// One event over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Summary {
    event: String,
    mean: f64,
    min: u64,
    max: u64,
    /// The least share of the time for which it was counted in any run. If it is less than 1, the
    /// value is an estimate.
    share: f64,
    metric: Option<Metric>,
}

impl Summary {
    /// Sums up each event over all runs.
    fn all(events: &[Event], runs: &[Run]) -> Vec<Self> {
        let time = runs.iter().map(|run| run.time).sum::<Duration>() / runs.len().max(1) as u32;
        let values = |n: usize| runs.iter().map(move |run| run.counts[n].value);
        let mean = |n| values(n).map(|value| value as f64).sum::<f64>() / runs.len() as f64;
        let means: Vec<_> = events.iter().enumerate().map(|(n, &event)| (event, mean(n))).collect();
        let summary = |(n, &(event, mean)): (usize, &(Event, f64))| Self {
            event: event.to_string(),
            mean,
            min: values(n).min().unwrap_or(0),
            max: values(n).max().unwrap_or(0),
            share: runs.iter().map(|run| run.counts[n].share).fold(1.0, f64::min),
            metric: metric::of(n, &means, time),
        };
        means.iter().enumerate().map(summary).collect()
    }

    /// Does the same with the events of these options, by the names that they have there.
    fn named(options: &Options, runs: &[Run]) -> Vec<Self> {
        let mut all = Self::all(&options.event, runs);
        for (summary, event) in all.iter_mut().zip(&options.event) {
            summary.event = options.label(*event);
        }
        all
    }
}

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    command: Vec<String>,
    provider: String,
    /// What `--repeatable` has made the same in each run: the addresses and the environment. `None`
    /// without that option.
    repeatable: Option<&'a Fixed>,
    events: &'a [Summary],
    /// The metrics of the counts of `--metrics`.
    metrics: &'a [Metric],
    runs: Vec<RunDocument>,
}

#[derive(Debug, Serialize)]
struct RunDocument {
    status: u8,
    elapsed_ns: u64,
    time_ns: u64,
    counts: Vec<u64>,
    unobserved: u32,
    interrupts: u64,
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
            time_ns: run.time.as_nanos() as u64,
            counts: run.counts.iter().map(|count| count.value).collect(),
            unobserved: run.unobserved,
            interrupts: run.interrupts,
            threads: threads.collect(),
        }
    }
}

/// The output, to which everything is written.
pub struct Output<'a> {
    options: &'a Options,
    provider: String,
    fixed: Option<Fixed>,
    sink: Box<dyn Write>,
}

impl<'a> Output<'a> {
    pub fn open(options: &'a Options, here: &Here, fixed: Option<Fixed>) -> Result<Self> {
        let sink: Box<dyn Write> = match &options.output {
            Some(path) => {
                let file = File::create(path);
                Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
            }
            None => Box::new(io::stderr()),
        };
        Ok(Self { options, provider: here.description.provider.to_string(), fixed, sink })
    }

    /// Returns the printer of intervals' counts, if the user has asked for intervals.
    pub fn intervals(&mut self) -> Option<Intervals<'_>> {
        self.options.interval.map(|_| Intervals {
            options: self.options,
            sink: &mut *self.sink,
            start: Instant::now(),
            before: vec![0; self.options.event.len()],
        })
    }

    /// Writes the counts of the runs.
    pub fn summary(&mut self, runs: &[Run]) -> Result<()> {
        let options = self.options;
        let summaries = Summary::named(options, runs);
        let metrics = metrics(options, &summaries, runs);
        let text = if options.json {
            let words = options.command.iter().map(|word| word.display().to_string());
            let content = Document {
                command: words.collect(),
                provider: self.provider.clone(),
                repeatable: self.fixed.as_ref(),
                events: &summaries,
                metrics: &metrics,
                runs: runs.iter().map(|run| RunDocument::of(run, options.per_thread)).collect(),
            };
            document("perfctr stat", 1, &content)?
        } else if options.csv {
            csv(options, &summaries, &metrics, runs)
        } else {
            let fixed = self.fixed.as_ref().map(|fixed| format!("{:>20}  {}\n", "", fixed.words()));
            table(options, &self.provider, &summaries, &metrics, runs) + &fixed.unwrap_or_default()
        };
        Ok(self.sink.write_all(text.as_bytes())?)
    }
}

/// Returns the metrics that were chosen, computed from the counts.
fn metrics(options: &Options, summaries: &[Summary], runs: &[Run]) -> Vec<Metric> {
    let means = summaries.iter().map(|summary| summary.mean);
    let counted: Vec<_> = options.event.iter().copied().zip(means).collect();
    options.chosen.metrics(&counted, mean_seconds(runs, |run| run.elapsed))
}

/// Returns the mean of a time of several runs. Unit: s.
fn mean_seconds(runs: &[Run], of: fn(&Run) -> Duration) -> f64 {
    runs.iter().map(|run| of(run).as_secs_f64()).sum::<f64>() / runs.len() as f64
}

/// Prints the counts since it last printed.
pub struct Intervals<'a> {
    options: &'a Options,
    sink: &'a mut dyn Write,
    start: Instant,
    /// The count of each event when it last printed.
    before: Vec<u64>,
}

impl Intervals<'_> {
    pub fn print(&mut self, counts: &[Count]) -> Result<()> {
        let seconds = self.start.elapsed().as_secs_f64();
        let events = self.options.event.iter().zip(counts).zip(&mut self.before);
        let line = |((event, count), before): ((&Event, &Count), &mut u64)| {
            // Estimates may fall.
            let value = count.value.saturating_sub(*before);
            *before = (*before).max(count.value);
            let event = self.options.label(*event);
            if self.options.csv {
                format!("{seconds:.9},{value},,{event},,{:.2},,\n", count.share * 100.0)
            } else {
                format!("{seconds:>15.6} {:>20}  {event}\n", grouped(value))
            }
        };
        let text: String = events.map(line).collect();
        Ok(self.sink.write_all(text.as_bytes())?)
    }
}

/// Returns the same text as perf's `-x,`. Where perf has no field, there is none. A metric of a
/// group is a line without a value and without an event, as in perf.
fn csv(options: &Options, summaries: &[Summary], metrics: &[Metric], runs: &[Run]) -> String {
    let line = |of: &str, value: &str, summary: &Summary, spread: Option<f64>, ns: u128| {
        let Summary { event, share, metric, .. } = summary;
        let spread = spread.map_or_else(String::new, |spread| format!("{spread:.2}%,"));
        let metric = metric.as_ref();
        let metric =
            metric.map_or_else(|| ",".to_owned(), |m| format!("{:.2},{}", m.value, m.unit));
        format!("{of}{value},,{event},{spread}{ns},{:.2},{metric}\n", share * 100.0)
    };
    let ns = runs.iter().map(|run| run.time.as_nanos()).sum::<u128>() / runs.len().max(1) as u128;
    let mut text = String::new();
    for (n, summary) in summaries.iter().enumerate() {
        let spread = (runs.len() > 1).then(|| spread(n, summary.mean, runs));
        let value = summary.mean.round().to_string();
        text += &line("", &value, summary, spread, ns);
    }
    let no_spread = if runs.len() > 1 { "," } else { "" };
    for Metric { value, unit } in metrics {
        text += &format!(",,,{no_spread},,{value:.2},{unit}\n");
    }
    if options.per_thread {
        for thread in runs.last().into_iter().flat_map(|run| &run.threads) {
            let of = format!("{}-{},", thread.name.replace(',', ":"), thread.pid);
            for (count, summary) in thread.counts.iter().zip(summaries) {
                let summary = Summary { metric: None, ..summary.clone() };
                text += &line(&of, &count.to_string(), &summary, None, thread.time.as_nanos());
            }
        }
    }
    text
}

/// Returns the standard error of the mean of several runs. Unit: % of the mean.
fn spread(n: usize, mean: f64, runs: &[Run]) -> f64 {
    let squares = runs.iter().map(|run| (run.counts[n].value as f64 - mean).powi(2)).sum::<f64>();
    let times = runs.len() as f64;
    let error = (squares / (times - 1.0) / times).sqrt();
    if mean > 0.0 { 100.0 * error / mean } else { 0.0 }
}

fn table(
    options: &Options,
    provider: &str,
    summaries: &[Summary],
    metrics: &[Metric],
    runs: &[Run],
) -> String {
    let mut lines = vec![String::new()];
    for summary in summaries {
        let mut line =
            format!("{:>20}  {:<20}", grouped(summary.mean.round() as u64), summary.event);
        line += &match &summary.metric {
            Some(Metric { value, unit }) => format!(" # {value:>8.2} {unit:<20}"),
            None => " ".repeat(" # ".len() + 8 + " ".len() + 20),
        };
        if runs.len() > 1 {
            line += &format!(" {} to {}", grouped(summary.min), grouped(summary.max));
        }
        if summary.share < 1.0 {
            line += &format!(" estimated: counted {:.1} % of the time", summary.share * 100.0);
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.extend(metrics.iter().map(|Metric { value, unit }| format!("{value:>20.3}  {unit}")));
    let mean = |of| mean_seconds(runs, of);
    let times = if runs.len() > 1 { format!(", {} runs", runs.len()) } else { String::new() };
    let (elapsed, busy) = (mean(|run| run.elapsed), mean(|run| run.time));
    lines.push(format!("{elapsed:>20.6}  seconds elapsed{times}; provider {provider}"));
    lines.push(format!("{busy:>20.6}  seconds executed"));
    if options.per_thread {
        lines.extend(runs.last().into_iter().flat_map(per_thread));
    }
    let unobserved: u32 = runs.iter().map(|run| run.unobserved).sum();
    if unobserved > 0 {
        lines.push(format!("{unobserved:>20}  threads or programs that could not be counted"));
    }
    let interrupts: u64 = runs.iter().map(|run| run.interrupts).sum();
    if interrupts > 0 {
        let means = "interrupts that the CPU counted as instructions, subtracted";
        lines.push(format!("{:>20}  {means}", grouped(interrupts)));
    }
    lines.join("\n") + "\n"
}

/// Returns each thread's counts, in the order of events.
fn per_thread(run: &Run) -> impl Iterator<Item = String> {
    run.threads.iter().map(|thread| {
        let counts: Vec<_> = thread.counts.iter().map(|&count| grouped(count)).collect();
        format!("{:>20}  {:<16} {}", thread.pid, thread.name, counts.join("  "))
    })
}

#[cfg(test)]
mod tests {
    use super::super::Thread;
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        Command::parse_from(["stat"].iter().chain(words)).options.flattened().unwrap()
    }

    fn run(values: [u64; 2]) -> Run {
        let thread = |pid, counts: [u64; 2]| Thread {
            pid,
            name: "a,b".into(),
            counts: counts.to_vec(),
            time: Duration::from_micros(1),
        };
        Run {
            status: 0,
            elapsed: Duration::from_millis(5),
            time: Duration::from_micros(4),
            counts: values.map(|value| Count { value, share: 1.0 }).to_vec(),
            threads: vec![thread(7, [1, 2])],
            unobserved: 0,
            interrupts: 0,
        }
    }

    #[test]
    fn runs_are_summed_up() {
        let runs = [run([10, 4]), run([12, 4])];
        let events = [Event::INSTRUCTIONS.user(), Event::CYCLES.user()];
        let summaries = Summary::all(&events, &runs);
        assert_eq!((summaries[0].mean, summaries[0].min, summaries[0].max), (11.0, 10, 12));
        let metric = Metric::new(2.75, "insn per cycle");
        assert_eq!(summaries[0].metric, Some(metric));
        assert_eq!(Summary::all(&events[..1], &runs)[0].metric, None);
        let rate = Summary::all(&[Event::BRANCHES.user()], &runs)[0].metric.clone().unwrap();
        assert!((rate.value - 2.75).abs() < 1e-9 && rate.unit == "M/sec", "{rate:?}: 11 in 4 us");
    }

    #[test]
    fn runs_are_as_good_as_the_one_that_was_counted_least() {
        let mut runs = [run([10, 4]), run([12, 4]), run([11, 4])];
        for (run, share) in runs.iter_mut().zip([0.75, 0.25, 0.5]) {
            run.counts[0].share = share;
        }
        let summaries = Summary::all(&[Event::BRANCHES.user(), Event::CYCLES.user()], &runs);
        assert_eq!(summaries.iter().map(|summary| summary.share).collect::<Vec<_>>(), [0.25, 1.0]);
    }

    #[test]
    fn programs_that_read_perfs_csv_read_ours() {
        let options = options(&["--csv", "--per-thread", "-e", "instructions:u,cycles:u", "a"]);
        let text = |runs: &[Run]| csv(&options, &Summary::all(&options.event, runs), &[], runs);
        assert_eq!(
            text(&[run([10, 4])]),
            "10,,instructions:u,4000,100.00,2.50,insn per cycle\n\
             4,,cycles:u,4000,100.00,0.00,GHz\n\
             a:b-7,1,,instructions:u,1000,100.00,,\n\
             a:b-7,2,,cycles:u,1000,100.00,,\n"
        );
        let several = text(&[run([10, 4]), run([12, 4])]);
        assert!(several.starts_with("11,,instructions:u,9.09%,4000,100.00,2.75,insn per cycle\n"));
    }

    #[test]
    fn a_group_is_counted_and_what_it_means_is_printed_in_each_format() {
        let options = options(&["-M", "ipc", "a"]);
        assert_eq!(options.event, [Event::INSTRUCTIONS.user(), Event::CYCLES.user()]);
        let runs = [run([10, 4])];
        let summaries = Summary::all(&options.event, &runs);
        let metrics = metrics(&options, &summaries, &runs);
        let table = table(&options, "native", &summaries, &metrics, &runs);
        let line = format!("{:>20}  instructions per cycle\n", "2.500");
        assert!(table.contains(&line), "{table}");
        let text = csv(&options, &summaries, &metrics, &runs);
        assert!(
            text.ends_with(",,,,,2.50,instructions per cycle\n,,,,,0.40,cycles per instruction\n")
        );
        let several = [run([10, 4]), run([12, 4])];
        let summaries = Summary::all(&options.event, &several);
        let text = csv(&options, &summaries, &metrics, &several);
        let fields: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(fields, [8; 4], "{text}");
    }

    #[test]
    fn a_group_is_counted_beside_the_events_that_were_named() {
        let [a, b, c] = [Event::BRANCHES, Event::INSTRUCTIONS.user(), Event::CYCLES.user()];
        let options = options(&["-M", "ipc", "-e", "branches", "a"]);
        assert_eq!(options.groups, [vec![a], vec![b, c]]);
    }

    /// Returns the table of these runs.
    fn table_of(runs: &[Run]) -> String {
        let options = options(&["-e", "instructions:u,cycles:u", "a"]);
        table(&options, "native", &Summary::all(&options.event, runs), &[], runs)
    }

    #[test]
    fn what_could_not_be_counted_is_told_of_all_runs() {
        let note_of = |unobserved: [u32; 2]| {
            let text = table_of(&unobserved.map(|unobserved| Run { unobserved, ..run([10, 4]) }));
            let line = text.lines().find(|line| line.contains("could not be counted"));
            line.map(|line| line.trim().to_owned())
        };
        let expected =
            |number| Some(format!("{number}  threads or programs that could not be counted"));
        assert_eq!(note_of([0, 0]), None);
        assert_eq!([note_of([2, 0]), note_of([0, 3]), note_of([2, 3])], [2, 3, 5].map(expected));
    }

    #[test]
    fn what_was_subtracted_is_told_of_all_runs() {
        let last_line = |interrupts: [u64; 2]| {
            let text = table_of(&interrupts.map(|interrupts| Run { interrupts, ..run([10, 4]) }));
            text.lines().last().unwrap().trim().to_owned()
        };
        let told = "5  interrupts that the CPU counted as instructions, subtracted";
        assert_eq!(last_line([2, 3]), told);
        assert!(last_line([0, 0]).ends_with("seconds executed"));
        let document = RunDocument::of(&Run { interrupts: 7, ..run([10, 4]) }, false);
        assert_eq!(document.interrupts, 7);
    }

    #[test]
    fn intervals_are_apart_by_what_was_counted_between() {
        let options = options(&["--csv", "-I", "10", "-e", "branches:u", "a"]);
        let mut text = Vec::new();
        let (start, before) = (Instant::now(), vec![0]);
        let mut intervals = Intervals { options: &options, sink: &mut text, start, before };
        // The last but one is an estimate that is smaller than the one before.
        for (value, share) in [(7, 1.0), (7, 0.5), (19, 0.25), (12, 0.2), (20, 0.4)] {
            intervals.print(&[Count { value, share }]).unwrap();
        }
        let text = String::from_utf8(text).unwrap();
        let rest = |line: &str| line.split_once(',').map(|(_, rest)| rest.to_owned());
        let lines: Vec<_> = text.lines().filter_map(rest).collect();
        let expected = [(7, 100), (0, 50), (12, 25), (0, 20), (1, 40)];
        assert_eq!(lines, expected.map(|(n, share)| format!("{n},,branches:u,,{share}.00,,")));
    }

    #[test]
    fn what_excludes_each_other_is_refused() {
        let refused =
            |words: &[&str]| Command::try_parse_from(["stat"].iter().chain(words)).is_err();
        for words in [
            &["-p", "1", "-r", "2"][..],
            &["-I", "100", "--json", "a"],
            &["-I", "9", "a"],
            &["-p", "0"],
            &["-a", "-p", "1"],
            &["-a", "-t", "1"],
            &["-t", "1", "--per-thread"],
            &["-a", "-r", "2", "a"],
            &["--csv", "--json", "a"],
            &[],
        ] {
            assert!(refused(words), "{words:?}");
        }
        assert!(!refused(&["-p", "1", "-I", "10", "--", "sleep", "1"]));
        assert!(!refused(&["-a"]) && !refused(&["-t", "7"]));
    }
}
