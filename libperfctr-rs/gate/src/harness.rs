// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs benchmarks, and compares what each counts with the baseline.

use std::collections::BTreeMap;
use std::env;
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Parser;
use clap::builder::{OsStringValueParser, TypedValueParser};
use perfctr::{Event, Session};

use crate::baseline::{Baseline, Benchmark, Range};
use crate::error::Error;
use crate::surroundings::{self, Variable};
use crate::text::harmless;
use crate::verdict::{Compared, Verdict};

/// Number of runs of a benchmark whose counts are taken.  The first one also executes what a
/// program does only once.
const RUNS: usize = 5;
/// Number of runs of a benchmark, with those that something has disturbed.
const ATTEMPTS: u32 = 1_000;
/// The variable by which this program knows that its surroundings are fixed.
const MARK: &str = "PERFCTR_GATE";
/// The exit status if a benchmark executes more than before.
const WORSE: u8 = 1;
/// The exit status if something could not be counted or compared.
const FAILURE: u8 = 125;

/// Counts the instructions of benchmarks, and compares them with the baseline.
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
    /// Counts; `cargo bench` says this.  Otherwise each benchmark is called once.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Something that counts what a closure executes.
trait Counter {
    /// Calls `body`, and returns its count.  Returns `None` if something has disturbed the reading.
    fn measure(&self, body: &mut dyn FnMut()) -> Result<Option<u64>, Error>;
}

impl Counter for Session {
    fn measure(&self, body: &mut dyn FnMut()) -> Result<Option<u64>, Error> {
        let mut count = [0];
        let counts = Self::measure(self, [body, &mut || {}], &mut count)?;
        Ok((counts.retries == 0).then_some(count[0]))
    }
}

/// Counts what benchmarks execute.
pub struct Gate {
    options: Options,
    /// What counts, or `None` if each benchmark is only called.
    counter: Option<Box<dyn Counter>>,
    /// The name of what is counted.
    event: String,
    baseline: Baseline,
    measured: BTreeMap<String, Benchmark>,
    worse: bool,
    failed: bool,
}

impl Gate {
    fn new(options: Options) -> Result<Self, Error> {
        let event = Event::INSTRUCTIONS.user();
        let (mut counter, mut baseline): (Option<Box<dyn Counter>>, _) =
            (None, Baseline::default());
        if options.bench {
            baseline = Baseline::read(&options.baseline)?;
            let mut session = Session::open()?;
            session.start(&[event])?;
            counter = Some(Box::new(session));
        }
        Ok(Self::with_counter(options, counter, event.to_string(), baseline))
    }

    fn with_counter(
        options: Options,
        counter: Option<Box<dyn Counter>>,
        event: String,
        baseline: Baseline,
    ) -> Self {
        let measured = BTreeMap::new();
        Self { options, counter, event, baseline, measured, worse: false, failed: false }
    }

    /// Counts the instructions that a call of `body` executes in user mode, and compares them with
    /// the baseline's.
    ///
    /// `body` is called several times, and has to do the same each time.  What it returns is
    /// dropped after the counters are read.
    pub fn count<R>(&mut self, name: &str, mut body: impl FnMut() -> R) {
        if !name.contains(&self.options.filter) {
            return;
        }
        let Some(counter) = &self.counter else {
            black_box(body());
            println!("called {}", harmless(name));
            return;
        };
        let result = counts(&**counter, &mut body).and_then(|range| self.compare(name, range));
        if let Err(error) = result {
            println!("FAILED {}: {error}", harmless(name));
            self.failed = true;
        }
    }

    fn compare(&mut self, name: &str, range: Range) -> Result<(), Error> {
        if self.measured.contains_key(name) {
            return Err(Error::SameName);
        }
        let now = Benchmark::here([(self.event.clone(), range)].into());
        let before = self.baseline.benchmarks.get(name);
        for one in Compared::all(before, &now, self.options.threshold) {
            print!("{}", one.line(name));
            self.worse |= one.verdict == Verdict::Worse;
        }
        if let Some(warning) = before.and_then(|before| before.another_cpu(&now)) {
            eprintln!("{warning}");
        }
        self.measured.insert(name.to_owned(), now);
        Ok(())
    }

    /// Writes the baseline if that is asked for.  Returns the program's status.
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
    match try_to_run(Options::parse(), benchmarks) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("nothing is compared: {}", chain(&error));
            ExitCode::from(FAILURE)
        }
    }
}

fn try_to_run(options: Options, benchmarks: &[fn(&mut Gate)]) -> Result<u8, Error> {
    if options.bench && env::var_os(MARK).is_none() {
        return Err(start_again(&options.passed));
    }
    let mut gate = Gate::new(options)?;
    for benchmark in benchmarks {
        benchmark(&mut gate);
    }
    gate.finish()
}

/// Starts this program again where it finds the same each time.  Returns only if it cannot.
fn start_again(passed: &[Variable]) -> Error {
    let fixed = match surroundings::fix(passed) {
        Ok(fixed) => fixed,
        Err(error) => return error,
    };
    let variables = fixed.variables().iter().map(|(name, value)| (name, value));
    let mut again = Command::new("/proc/self/exe");
    again.args(env::args_os().skip(1)).env_clear().envs(variables).env(MARK, "1");
    Error::Again(again.exec())
}

/// Returns an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
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
    use std::cell::{Cell, RefCell};
    use std::fs;
    use std::path::Path;
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

        fn gate(&self, words: &[&str]) -> Gate {
            let options = options(words);
            let baseline = Baseline::read(&options.baseline).unwrap();
            Gate::with_counter(options, Some(Box::new(self.clone())), "branches:u".into(), baseline)
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
    struct File(PathBuf);

    impl File {
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
            Some(baseline.benchmarks.get(name)?.events["branches:u"].min)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            fs::remove_file(&self.0).ok();
        }
    }

    /// Runs a benchmark whose calls execute so many instructions.  Returns the program's status.
    fn status(file: &File, words: &[&str], calls: [u64; RUNS]) -> u8 {
        let fake = Fake::default();
        let mut gate = fake.gate(&[&[&*file.option()], words].concat());
        let mut calls = calls.into_iter();
        gate.count("sort", || fake.work(calls.next().unwrap()));
        assert_eq!(calls.next(), None, "each call is counted once");
        gate.finish().unwrap()
    }

    #[test]
    fn one_instruction_more_in_each_call_fails() {
        let file = File::new("one-more");
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
    fn disturbed_calls_are_repeated_until_there_are_too_many() {
        let file = File::new("disturbed");
        for (disturbed, expected) in [(ATTEMPTS - RUNS as u32, 0), (ATTEMPTS, FAILURE)] {
            let (fake, calls) = (Fake::default(), Cell::new(0));
            fake.disturbed.set(disturbed);
            let mut gate = fake.gate(&[&*file.option()]);
            gate.count("sort", || calls.set(calls.get() + 1));
            assert_eq!(calls.get(), ATTEMPTS);
            assert_eq!(gate.finish().unwrap(), expected, "{disturbed} of {ATTEMPTS}");
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
        let (file, fake) = (File::new("dropped"), Fake::default());
        let mut gate = fake.gate(&[&*file.option(), "--update"]);
        gate.count("sort", || {
            fake.work(7);
            Dropped(fake.clone())
        });
        assert_eq!(gate.finish().unwrap(), 0);
        assert_eq!(file.least("sort"), Some(7));
    }

    #[test]
    fn only_benchmarks_of_a_name_are_called_and_counted() {
        let (file, called) = (File::new("name"), RefCell::new(Vec::new()));
        for (words, expected) in [
            (&["--bench"][..], &["sort", "sort backwards", "find"][..]),
            (&["--bench", "sort"], &["sort", "sort backwards"]),
            (&["--bench", "nothing"], &[]),
        ] {
            let mut gate = Fake::default().gate(&[&[&*file.option()], words].concat());
            for name in ["sort", "sort backwards", "find"] {
                gate.count(name, || called.borrow_mut().push(name));
            }
            let mut found = called.take();
            found.dedup();
            assert_eq!(found, expected);
            assert_eq!(gate.finish().unwrap(), 0);
        }
    }

    #[test]
    fn of_two_benchmarks_with_one_name_the_second_fails_and_nothing_is_written() {
        let file = File::new("same-name");
        let mut gate = Fake::default().gate(&[&*file.option(), "--update"]);
        for _ in 0..2 {
            gate.count("sort", || {});
        }
        assert_eq!(gate.finish().unwrap(), FAILURE);
        assert!(!file.0.exists());
    }

    #[test]
    fn benchmarks_are_called_once_where_nothing_is_to_be_counted() {
        let calls = Cell::new(0);
        let file = File::new("tests");
        fs::write(&file.0, "no baseline").unwrap();
        let mut gate = Gate::new(options(&[&*file.option()])).unwrap();
        gate.count("sort", || calls.set(calls.get() + 1));
        assert_eq!((calls.get(), gate.finish().unwrap()), (1, 0));
    }

    #[test]
    fn a_file_that_is_no_baseline_ends_the_program_and_stays() {
        let file = File::new("no-baseline");
        fs::write(&file.0, "no baseline").unwrap();
        let error = Gate::new(options(&["--bench", "--update", &file.option()])).err().unwrap();
        let text = chain(&error);
        let expected = format!("cannot read {}, which `--update` writes: ", file.0.display());
        assert!(text.starts_with(&expected) && text.contains("expected"), "{text}");
        assert_eq!(fs::read_to_string(&file.0).unwrap(), "no baseline");
    }

    #[test]
    fn a_baseline_that_cannot_be_written_is_named() {
        let mut gate = Fake::default().gate(&["--update"]);
        gate.options.baseline = Path::new("/proc/self/perfctr-baseline.json").to_owned();
        gate.count("sort", || {});
        let text = chain(&gate.finish().unwrap_err());
        assert!(text.starts_with("cannot write /proc/self/perfctr-baseline.json: "), "{text}");
    }
}
