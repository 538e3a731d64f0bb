// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr gate`, which fails if a program executes more than it did before.
//!
//! Counts of user mode are exact, so that a single additional instruction is noticed. They repeat
//! if the program does the same each time. It gets the same addresses and the same environment;
//! anything else that differs (files, random numbers, the threads' timing) makes the runs differ.

mod calls;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use perfctr::Event;
use perfctr_gate::surroundings::Variable;
use perfctr_gate::text::harmless;
use perfctr_gate::{Baseline, Benchmark, Compared, Range, Verdict, WORSE, junit, markdown};

use self::calls::FUNCTIONS_MAX;
use crate::events::{EventList, EventParser};
use crate::info::Here;
use crate::program::{Signals, Target, repeatable};
use crate::stat::observe;
use crate::text::{print, print_note};

/// The options of `perfctr gate`.
#[derive(Debug, Args)]
pub struct Options {
    /// Events, separated by commas. `perfctr list` shows their names.
    #[arg(
        short,
        long,
        value_parser = EventParser::Single,
        hide_possible_values = true,
        default_value = "instructions:u"
    )]
    event: EventList,
    /// Counts events that are not known to be right on this CPU, too.
    #[arg(long)]
    unverified: bool,
    /// Compares with this file of earlier counts.
    #[arg(short, long, default_value = "perfctr-baseline.json")]
    baseline: PathBuf,
    /// Finds the program in the baseline by this name; without it, by its command line.
    #[arg(short, long)]
    name: Option<String>,
    /// Runs the program this many times, and compares the least count.
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Lets the count grow by this number of events without failing.
    #[arg(short, long, default_value_t = 0)]
    threshold: u64,
    /// Also compares what this function executes, with all that it calls, summed over its calls in
    /// all threads. May be given twice.
    #[arg(short, long = "function", value_name = "NAME")]
    functions: Vec<String>,
    /// Lets the count of each function grow by this number of events without failing.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "functions")]
    function_threshold: u64,
    /// Passes this variable on to the program, or sets it. The program's environment has only
    /// LC_ALL=C, PATH, PERL_HASH_SEED=0 and PYTHONHASHSEED=0, so that it executes the same.
    #[arg(long = "env", value_name = "NAME[=VALUE]", value_parser = repeatable::parser())]
    passed: Vec<Variable>,
    /// Writes the counts to the baseline in place of those that it has, and never fails.
    #[arg(short, long)]
    update: bool,
    /// Writes a table in Markdown to this file, for a pull request.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Writes the outcome to this file as JUnit's XML, for continuous integration.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl Options {
    fn name(&self) -> String {
        let words = || self.command.iter().map(|word| word.to_string_lossy());
        self.name.clone().unwrap_or_else(|| words().collect::<Vec<_>>().join(" "))
    }
}

/// Runs `perfctr gate`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut baseline = Baseline::read(&options.baseline)?;
    ensure!(
        options.functions.len() <= FUNCTIONS_MAX,
        "{} functions: at most {FUNCTIONS_MAX} can be counted in one run",
        options.functions.len()
    );
    repeatable::fix(&options.passed)?;
    let signals = Signals::handle(Target::Program(&options.command), None)?;
    let (name, mut now) = (options.name(), measure(options, &signals)?);
    let mut all = Compared::all(baseline.benchmarks.get(&name), &now, options.threshold);
    if !options.functions.is_empty() {
        let functions = measure_functions(options, &signals)?;
        let before = baseline.benchmarks.get(&name);
        all.extend(Compared::all(before, &functions, options.function_threshold));
        now.events.extend(functions.events);
    }
    print(&all.iter().map(|one| one.line(&name)).collect::<String>())?;
    if let Some(path) = &options.markdown {
        write(path, &markdown(&name, &all))?;
    }
    if let Some(path) = &options.junit {
        write(path, &junit(&name, &all))?;
    }
    if options.update {
        baseline.update(name, now);
        baseline.write(&options.baseline)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(warning) = baseline.benchmarks.get(&name).and_then(|old| old.another_cpu(&now)) {
        print_note(warning);
    }
    if all.iter().any(|one| one.verdict == Verdict::New) {
        print_note("what is new is not compared; --update writes it to the baseline");
    }
    let worse = all.iter().any(|one| one.verdict == Verdict::Worse);
    Ok(if worse { ExitCode::from(WORSE) } else { ExitCode::SUCCESS })
}

/// Runs the program, and returns the counts of each event.
fn measure(options: &Options, signals: &Signals) -> Result<Benchmark> {
    let groups = options.event.groups(options.unverified);
    let (here, target) = (Here::find()?, Target::Program(&options.command));
    let run = || {
        let run = observe(&here, target, &groups, signals, None)?;
        succeeded(run.status, signals)?;
        always_counted(run.counts.iter().map(|count| count.share))?;
        Ok(run.counts.iter().map(|count| count.value).collect())
    };
    benchmark(options, groups.concat().iter().map(Event::to_string), run)
}

/// Runs the program as often again, and returns the counts of each event in each function.
fn measure_functions(options: &Options, signals: &Signals) -> Result<Benchmark> {
    let events = options.event.events(options.unverified);
    let target = Target::Program(&options.command);
    let run = || {
        let (status, counts) = calls::run(target, &events, &options.functions, signals)?;
        succeeded(status, signals)?;
        Ok(counts.concat())
    };
    let names = options.functions.iter().flat_map(|function| {
        events.iter().map(move |event| format!("{event} in {}", harmless(function)))
    });
    benchmark(options, names, run)
}

/// Calls `run` as often as the options say. It returns a count for each of the names.
fn benchmark(
    options: &Options,
    names: impl Iterator<Item = String>,
    run: impl Fn() -> Result<Vec<u64>>,
) -> Result<Benchmark> {
    let runs = (0..options.repeat).map(|_| run()).collect::<Result<Vec<_>>>()?;
    let range = |(n, name)| Some((name, Range::of(runs.iter().map(|counts| counts[n]))?));
    let events: Option<BTreeMap<_, _>> = names.enumerate().map(range).collect();
    Ok(Benchmark::here(events.context("no run")?))
}

/// Fails if a run says nothing about the program.
fn succeeded(status: u8, signals: &Signals) -> Result<()> {
    ensure!(status == 0, "the program has failed with status {status}: nothing is compared");
    ensure!(!signals.interrupted(), "interrupted");
    Ok(())
}

/// Fails if an event was not counted all the time. Each share is the part of the time in which one
/// was.
fn always_counted(mut shares: impl Iterator<Item = f64>) -> Result<()> {
    let all = shares.all(|share| share == 1.0);
    ensure!(all, "there are not enough counters for all events, and estimates prove nothing");
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    /// Test cases that also hold for the package for Python, which reads and writes the same files.
    #[derive(Deserialize)]
    struct Cases {
        lines: Vec<Line>,
        warnings: Vec<Warning>,
        /// Files that are no baselines.
        refused: Vec<Value>,
        updates: Vec<Update>,
    }

    /// An event's counts, and the text about them.
    #[derive(Deserialize)]
    struct Line {
        name: String,
        event: String,
        before: Option<Range>,
        now: Range,
        threshold: u64,
        line: String,
    }

    /// The CPUs of the baseline and of this machine, and the warning about them.
    #[derive(Deserialize)]
    struct Warning {
        before: Option<String>,
        now: Option<String>,
        warning: Option<String>,
    }

    /// A baseline, the counts that `--update` puts into it, and the lines of the file after that.
    #[derive(Deserialize)]
    struct Update {
        file: Value,
        name: String,
        now: Benchmark,
        written: Vec<String>,
    }

    fn cases() -> Cases {
        serde_json::from_str(include_str!("../../../libperfctr-rs/gate/cases.json")).unwrap()
    }

    #[test]
    fn counts_are_compared_as_the_package_for_python_does() {
        for Line { name, event, before, now, threshold, line } in cases().lines {
            let of = |range| Benchmark { cpu: None, events: [(event.clone(), range)].into() };
            let all = Compared::all(before.map(of).as_ref(), &of(now), threshold);
            let printed: Vec<String> = all.iter().map(|one| one.line(&name)).collect();
            assert_eq!(printed, [line + "\n"]);
        }
        for Warning { before, now, warning } in cases().warnings {
            let of = |cpu| Benchmark { cpu, ..Benchmark::default() };
            assert_eq!(of(before).another_cpu(&of(now)), warning);
        }
    }

    #[test]
    fn files_are_those_of_the_package_for_python() {
        for file in cases().refused {
            assert!(Baseline::parse(file.to_string().as_bytes()).is_err(), "{file}");
        }
        for Update { file, name, now, written } in cases().updates {
            let mut baseline = Baseline::parse(file.to_string().as_bytes()).unwrap();
            baseline.update(name, now);
            assert_eq!(baseline.text(), written.join("\n") + "\n");
        }
    }

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_benchmark_is_called_by_all_its_words_unless_it_has_a_name() {
        let name =
            |words: &[&str]| Command::parse_from(["gate"].iter().chain(words)).options.name();
        assert_eq!(name(&["sort", "-r", "a b"]), "sort -r a b");
        assert_eq!(name(&["-n", "backwards", "sort", "-r"]), "backwards");
    }
}
