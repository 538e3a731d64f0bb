// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs benchmarks, and compares what each counts with the baseline.
//!
//! A process of its own runs the benchmarks, and does nothing else: what an allocation executes
//! depends on the allocations before it, and so on the options and the baseline that a process has
//! read.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Parser;
use clap::builder::{OsStringValueParser, TypedValueParser};
use perfctr::{Event, Session};

use crate::baseline::{Baseline, Benchmark, Range};
use crate::error::Error;
use crate::surroundings::{self, Variable};
use crate::text::harmless;
use crate::verdict::{Compared, Verdict, WORSE};

/// What is counted.
const EVENT: Event = Event::INSTRUCTIONS.user();
/// Number of runs of a benchmark whose counts are taken. The first one also executes what a
/// program does only once.
const RUNS: usize = 5;
/// Number of runs of a benchmark, with those that something has disturbed.
const ATTEMPTS: u32 = 1_000;
/// The variable that is set only for the process that runs the benchmarks. Its value is the text
/// that a benchmark's name has to contain.
const FILTER: &str = "PERFCTR_GATE_FILTER";
/// The file to which that process writes the counts. It is a pipe in place of the standard input,
/// since benchmarks may print to the standard output.
const COUNTS: &str = "/proc/self/fd/0";
/// The exit status if something could not be counted or compared.
const FAILURE: u8 = 125;

/// Counts the instructions of benchmarks, and compares the counts with the baseline.
#[derive(Debug, Parser)]
#[command(name = "cargo bench --")]
struct Options {
    /// Counts only benchmarks whose name contains this.
    #[arg(value_name = "NAME", default_value = "")]
    filter: String,
    /// Compares with this file of earlier counts.
    #[arg(short, long, value_name = "FILE", default_value = "perfctr-baseline.json")]
    baseline: PathBuf,
    /// Lets the count grow by this number of instructions without failing.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threshold: u64,
    /// Passes this variable on to the benchmarks, or sets it.
    #[arg(
        long = "env",
        value_name = "NAME[=VALUE]",
        value_parser = OsStringValueParser::new().try_map(surroundings::variable)
    )]
    passed: Vec<Variable>,
    /// Writes the counts to the baseline in place of those that it has, and never fails because of
    /// them.
    #[arg(short, long)]
    update: bool,
    /// Counts; `cargo bench` says this. Otherwise each benchmark is called once.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Something that counts what a closure executes.
trait Counter {
    /// Calls `body`, and returns its count. Returns `None` if something has disturbed the reading.
    fn measure(&self, body: &mut dyn FnMut()) -> Result<Option<u64>, Error>;
}

impl Counter for Session {
    fn measure(&self, body: &mut dyn FnMut()) -> Result<Option<u64>, Error> {
        let mut count = [0];
        let counts = Self::measure(self, [body, &mut || {}], &mut count)?;
        Ok((counts.retries == 0).then_some(count[0]))
    }
}

/// The name of each benchmark, and its counts or why there are none.
type Measured = Vec<(String, Result<Range, String>)>;

/// Counts what benchmarks execute.
pub struct Gate {
    /// Benchmarks are left out whose name does not contain this.
    filter: String,
    /// What counts, or `None` if each benchmark is only called.
    counter: Option<Box<dyn Counter>>,
    measured: Measured,
}

impl Gate {
    /// Counts the instructions that a call of `body` executes in user mode.
    ///
    /// `body` is called several times, and has to do the same each time. What it returns is
    /// dropped after the counters are read.
    pub fn count<R>(&mut self, name: &str, mut body: impl FnMut() -> R) {
        if !name.contains(&self.filter) {
            return;
        }
        let Some(counter) = &self.counter else {
            black_box(body());
            println!("called {}", harmless(name));
            return;
        };
        let counted = counts(&**counter, &mut body).map_err(|error| with_causes(&error));
        self.measured.push((name.to_owned(), counted));
    }
}

/// The counts of benchmarks, and the baseline that they are compared with.
struct Comparison {
    options: Options,
    baseline: Baseline,
    measured: BTreeMap<String, Benchmark>,
    worse: bool,
    failed: bool,
}

impl Comparison {
    fn new(options: Options) -> Result<Self, Error> {
        let baseline = Baseline::read(&options.baseline)?;
        Ok(Self { options, baseline, measured: BTreeMap::new(), worse: false, failed: false })
    }

    /// Compares what a benchmark has counted with the baseline's counts.
    fn add(&mut self, name: &str, counted: Result<Range, String>) {
        let same_name = self.measured.contains_key(name).then(|| Error::SameName.to_string());
        match same_name.map_or(counted, Err) {
            Ok(range) => self.compare(name, range),
            Err(error) => {
                println!("FAILED {}: {error}", harmless(name));
                self.failed = true;
            }
        }
    }

    fn compare(&mut self, name: &str, range: Range) {
        let now = Benchmark::here([(EVENT.to_string(), range)].into());
        let before = self.baseline.benchmarks.get(name);
        for one in Compared::all(before, &now, self.options.threshold) {
            print!("{}", one.line(name));
            self.worse |= one.verdict == Verdict::Worse;
        }
        if let Some(warning) = before.and_then(|before| before.another_cpu(&now)) {
            eprintln!("{warning}");
        }
        self.measured.insert(name.to_owned(), now);
    }

    /// Writes the baseline if that is asked for. Returns the program's status.
    fn finish(mut self) -> Result<u8, Error> {
        if self.failed {
            return Ok(FAILURE);
        }
        if self.options.update {
            for (name, now) in self.measured {
                self.baseline.update(name, now);
            }
            self.baseline.write(&self.options.baseline)?;
            return Ok(0);
        }
        Ok(if self.worse { WORSE } else { 0 })
    }
}

/// Returns the counts of several undisturbed calls.
fn counts<R>(counter: &dyn Counter, body: &mut impl FnMut() -> R) -> Result<Range, Error> {
    let mut found = Vec::new();
    for _ in 0..ATTEMPTS {
        let mut result = None;
        found.extend(counter.measure(&mut || result = Some(black_box(body())))?);
        if found.len() == RUNS {
            break;
        }
    }
    let enough = found.len() == RUNS;
    let range = Range::of(found.into_iter()).filter(|_| enough);
    range.ok_or(Error::Disturbed { attempts: ATTEMPTS })
}

/// Runs these benchmarks as the program's options say, and returns its status.
/// [`main!`](crate::main) calls it.
pub fn run(benchmarks: &[fn(&mut Gate)]) -> ExitCode {
    let status = match env::var_os(FILTER) {
        Some(filter) => write_counts(&filter, benchmarks).map(|()| 0),
        None => compare(Options::parse(), benchmarks),
    };
    status.map_or_else(
        |error| {
            eprintln!("nothing is compared: {}", with_causes(&error));
            ExitCode::from(FAILURE)
        },
        ExitCode::from,
    )
}

/// Runs the benchmarks in a process that does nothing else, and writes the counts to the process
/// that compares them.
fn write_counts(filter: &OsStr, benchmarks: &[fn(&mut Gate)]) -> Result<(), Error> {
    let mut session = Session::open()?;
    session.start(&[EVENT])?;
    let filter = filter.to_string_lossy().into_owned();
    let measured = measure(filter, Some(Box::new(session)), benchmarks);
    let file = File::options().write(true).open(COUNTS).map_err(Error::Process)?;
    serde_json::to_writer(file, &measured).map_err(|error| Error::Process(error.into()))
}

/// Calls the benchmarks whose name contains `filter`, and counts them if there is a counter.
fn measure(
    filter: String,
    counter: Option<Box<dyn Counter>>,
    benchmarks: &[fn(&mut Gate)],
) -> Measured {
    let mut gate = Gate { filter, counter, measured: Vec::new() };
    for benchmark in benchmarks {
        benchmark(&mut gate);
    }
    gate.measured
}

/// Compares what the benchmarks count with the baseline. Returns the program's status.
fn compare(options: Options, benchmarks: &[fn(&mut Gate)]) -> Result<u8, Error> {
    if !options.bench {
        measure(options.filter, None, benchmarks);
        return Ok(0);
    }
    let mut comparison = Comparison::new(options)?;
    let Some(measured) = measure_in_a_process_of_its_own(&comparison.options)? else {
        return Ok(FAILURE);
    };
    for (name, counted) in measured {
        comparison.add(&name, counted);
    }
    comparison.finish()
}

/// Runs the benchmarks in another process of this program, whose addresses and environment are the
/// same each time, and returns its counts. Returns `None` if that process has failed, and has
/// printed why.
fn measure_in_a_process_of_its_own(options: &Options) -> Result<Option<Measured>, Error> {
    let fixed = surroundings::make_repeatable(&options.passed)?;
    let variables = fixed.variables().iter().map(|(name, value)| (name, value));
    let run = || -> io::Result<Option<Measured>> {
        let (mut counts, end) = io::pipe()?;
        let mut process = Command::new("/proc/self/exe")
            .env_clear()
            .envs(variables)
            .env(FILTER, &options.filter)
            .stdin(end)
            .spawn()?;
        let mut text = Vec::new();
        counts.read_to_end(&mut text)?;
        let status = process.wait()?;
        if status.code() == Some(FAILURE.into()) {
            return Ok(None);
        }
        if !status.success() {
            return Err(io::Error::other(status.to_string()));
        }
        Ok(Some(serde_json::from_slice(&text)?))
    };
    run().map_err(Error::Process)
}

/// Returns the texts of an error and of its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::rc::Rc;

    use super::*;

    /// Counts what benchmarks say that they execute.
    #[derive(Clone, Default)]
    struct Fake {
        executed: Rc<Cell<u64>>,
        /// Number of measurements that are disturbed before the next one that is not.
        disturbed: Rc<Cell<u32>>,
    }

    impl Fake {
        fn work(&self, instructions: u64) {
            self.executed.set(self.executed.get() + instructions);
        }

        /// Returns what a benchmark of this name and body has counted.
        fn counted<R>(&self, name: &str, body: impl FnMut() -> R) -> Measured {
            let (filter, counter) = (String::new(), Some(Box::new(self.clone()) as Box<_>));
            let mut gate = Gate { filter, counter, measured: Vec::new() };
            gate.count(name, body);
            gate.measured
        }
    }

    impl Counter for Fake {
        fn measure(&self, body: &mut dyn FnMut()) -> Result<Option<u64>, Error> {
            let before = self.executed.get();
            body();
            if let Some(left) = self.disturbed.get().checked_sub(1) {
                self.disturbed.set(left);
                return Ok(None);
            }
            Ok(Some(self.executed.get() - before))
        }
    }

    fn options(words: &[&str]) -> Options {
        Options::parse_from(["bench"].iter().chain(words))
    }

    /// A baseline that is removed in the end.
    struct Baselines(PathBuf);

    impl Baselines {
        fn new(name: &str) -> Self {
            let name = format!("perfctr-gate-{name}-{}.json", std::process::id());
            Self(env::temp_dir().join(name))
        }

        fn option(&self) -> String {
            format!("--baseline={}", self.0.display())
        }

        /// Returns the least count that the file has of a benchmark.
        fn least(&self, name: &str) -> Option<u64> {
            let baseline = Baseline::read(&self.0).unwrap();
            Some(baseline.benchmarks.get(name)?.events["instructions:u"].min)
        }
    }

    impl Drop for Baselines {
        fn drop(&mut self) {
            fs::remove_file(&self.0).ok();
        }
    }

    /// Compares these counts. Returns the program's status.
    fn status_of(file: &Baselines, words: &[&str], measured: Measured) -> u8 {
        let options = options(&[&[&*file.option()], words].concat());
        let mut comparison = Comparison::new(options).unwrap();
        for (name, counted) in measured {
            comparison.add(&name, counted);
        }
        comparison.finish().unwrap()
    }

    /// Runs a benchmark whose calls execute so many instructions. Returns the program's status.
    fn status(file: &Baselines, words: &[&str], calls: [u64; RUNS]) -> u8 {
        let (fake, mut calls) = (Fake::default(), calls.into_iter());
        let measured = fake.counted("sort", || fake.work(calls.next().unwrap()));
        assert_eq!(calls.next(), None, "each call is counted once");
        status_of(file, words, measured)
    }

    #[test]
    fn one_instruction_more_in_each_call_fails() {
        let file = Baselines::new("one-more");
        assert_eq!(status(&file, &[], [70; RUNS]), 0, "it is new");
        assert!(!file.0.exists(), "only --update writes");
        assert_eq!(status(&file, &["--update"], [99, 70, 71, 72, 73]), 0);
        assert_eq!(file.least("sort"), Some(70));
        for (least, threshold, expected) in
            [(70, "0", 0), (71, "0", WORSE), (69, "0", 0), (73, "3", 0), (74, "3", WORSE)]
        {
            let calls = [least + 9, least + 1, least, least + 5, least + 2];
            let found = status(&file, &["--threshold", threshold], calls);
            assert_eq!(found, expected, "{least} with {threshold}");
        }
        assert_eq!(file.least("sort"), Some(70), "what was only compared is not written");
        assert_eq!(status(&file, &["--update"], [80; RUNS]), 0, "what is written never fails");
        assert_eq!(file.least("sort"), Some(80));
    }

    #[test]
    fn one_benchmark_that_has_become_worse_is_enough() {
        let file = Baselines::new("one-worse");
        let of = |counts: [u64; 3]| {
            let one = |(name, count): (&str, u64)| {
                (name.to_owned(), Ok(Range { min: count, max: count }))
            };
            ["first", "second", "third"].into_iter().zip(counts).map(one).collect::<Measured>()
        };
        assert_eq!(status_of(&file, &["--update"], of([70, 50, 30])), 0);
        for (counts, expected) in
            [([71, 50, 30], WORSE), ([70, 51, 29], WORSE), ([70, 50, 31], WORSE), ([69, 50, 29], 0)]
        {
            assert_eq!(status_of(&file, &["--threshold", "0"], of(counts)), expected, "{counts:?}");
        }
    }

    #[test]
    fn disturbed_calls_are_repeated_until_there_are_too_many() {
        let file = Baselines::new("disturbed");
        for (disturbed, expected) in [(ATTEMPTS - RUNS as u32, 0), (ATTEMPTS, FAILURE)] {
            let (fake, calls) = (Fake::default(), Cell::new(0));
            fake.disturbed.set(disturbed);
            let measured = fake.counted("sort", || calls.set(calls.get() + 1));
            assert_eq!(calls.get(), ATTEMPTS);
            let found = status_of(&file, &[], measured);
            assert_eq!(found, expected, "{disturbed} of {ATTEMPTS}");
        }
    }

    #[test]
    fn results_are_dropped_when_the_counters_are_read() {
        struct Dropped(Fake);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.work(1_000);
            }
        }
        let fake = Fake::default();
        let measured = fake.counted("sort", || {
            fake.work(7);
            Dropped(fake.clone())
        });
        assert_eq!(measured, [("sort".to_owned(), Ok(Range { min: 7, max: 7 }))]);
    }

    fn three(gate: &mut Gate) {
        for name in ["sort", "sort backwards", "find"] {
            gate.count(name, || {});
        }
    }

    #[test]
    fn only_benchmarks_of_a_name_are_counted() {
        for (filter, expected) in [
            ("", &["sort", "sort backwards", "find"][..]),
            ("sort", &["sort", "sort backwards"]),
            ("nothing", &[]),
        ] {
            let measured = measure(filter.to_owned(), Some(Box::new(Fake::default())), &[three]);
            let names: Vec<&str> = measured.iter().map(|(name, _)| &**name).collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn of_two_benchmarks_with_one_name_the_second_fails_and_nothing_is_written() {
        let file = Baselines::new("same-name");
        let of = |count| ("sort".to_owned(), Ok(Range { min: count, max: count }));
        assert_eq!(status_of(&file, &["--update"], vec![of(7), of(8)]), FAILURE);
        assert!(!file.0.exists());
    }

    #[test]
    fn benchmarks_are_called_once_where_nothing_is_to_be_counted() {
        thread_local! { static CALLS: Cell<u32> = const { Cell::new(0) }; }
        let file = Baselines::new("tests");
        fs::write(&file.0, "no baseline").unwrap();
        let called = |gate: &mut Gate| gate.count("sort", || CALLS.set(CALLS.get() + 1));
        assert_eq!(compare(options(&[&*file.option()]), &[called]).unwrap(), 0);
        assert_eq!(CALLS.get(), 1);
    }

    #[test]
    fn a_file_that_is_no_baseline_ends_the_program_and_stays() {
        let file = Baselines::new("no-baseline");
        fs::write(&file.0, "no baseline").unwrap();
        let error = compare(options(&["--bench", "--update", &file.option()]), &[]).unwrap_err();
        let text = with_causes(&error);
        let expected = format!("cannot read {}, which `--update` writes: ", file.0.display());
        assert!(text.starts_with(&expected) && text.contains("expected"), "{text}");
        assert_eq!(fs::read_to_string(&file.0).unwrap(), "no baseline");
    }

    #[test]
    fn a_baseline_that_cannot_be_written_is_named() {
        let baseline = "/proc/self/perfctr-baseline.json";
        let comparison = Comparison::new(options(&["--update", "--baseline", baseline])).unwrap();
        let text = with_causes(&comparison.finish().unwrap_err());
        assert!(text.starts_with("cannot write /proc/self/perfctr-baseline.json: "), "{text}");
    }
}
