// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what `perfctr record` and `perfctr report` say about programs whose functions have known
//! lengths.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vm_tests::tally::{Tally, equal};

use crate::command::{PERFCTR, counts, stat};
use crate::sampled::{CALLER, CHILD, FUNCTIONS, THREADS, region};
use crate::{compiled as program, subject};

/// The number of events between two samples.
pub const PERIOD: u64 = 100_003;
const EVENT: &str = "instructions:u";
/// The file with the profile.
pub const PROFILE: &str = "/tmp/perfctr.data";
/// Reports for tools on the machine outside: in these tools' formats, and as text.
const OUT: [(&str, &str); 5] = [
    ("text", "/out/report.txt"),
    ("folded", "/out/report.folded"),
    ("flame-graph", "/out/report.svg"),
    ("pprof", "/out/report.pprof"),
    ("firefox", FIREFOX),
];
const FIREFOX: &str = "/out/report.json";
/// Debian's program with threads, and what it compresses.
const XZ: [&str; 6] = ["/usr/bin/xz", "-0", "-kf", "-T2", "--block-size=100000", INPUT];
const INPUT: &str = "/tmp/input";
const INPUT_BYTES: u32 = 600_000;
/// The length of work that takes long enough for many samples by a frequency.
const LONG: &str = "50000000";

/// Tests functions of known lengths.
pub fn functions(tally: &mut Tally) -> Result<()> {
    let program = subject::words(&["sampled"])?;
    record(&["-g"], &program)?;
    let rows = rows("thread,symbol")?;
    for (thread, lengths) in THREADS.iter().chain([&CHILD]) {
        for (function, length) in FUNCTIONS.iter().zip(lengths) {
            let found = rows.iter().filter(|row| row.thread == *thread && row.name == *function);
            let samples: Vec<u64> = found.map(|row| row.samples).collect();
            let periods = region(*length).instructions() as f64 / PERIOD as f64;
            let is_right = |&samples: &u64| (samples as f64 - periods).abs() <= 1.0;
            tally.check(&format!("{thread} has a sample for every period in {function}"), {
                let is_right = samples.len() == 1 && samples.iter().all(is_right);
                is_right.then_some(()).ok_or(format!("{samples:?} found, {periods:.2} expected"))
            });
        }
    }
    callers(tally)?;
    for (format, path) in OUT {
        report(&["-f", format, "-s", "symbol", "-o", path])?;
    }
    let mut folded = BTreeMap::new();
    for line in report(&["-f", "folded"])?.lines() {
        let (stack, samples) = line.rsplit_once(' ').context("a line without samples")?;
        *folded.entry(stack.to_owned()).or_default() += samples.parse::<u64>()?;
    }
    tally.check("the Firefox Profiler's format has the same stacks, as often", {
        equal(firefox()?, folded)
    });
    Ok(())
}

/// Returns the number of samples by thread and functions, the outermost first, as the tables of
/// that format have them.
fn firefox() -> Result<BTreeMap<String, u64>> {
    let document: Value = serde_json::from_slice(&fs::read(FIREFOX).context(FIREFOX)?)?;
    let mut samples = BTreeMap::new();
    for thread in document["threads"].as_array().context("no threads")? {
        let cell =
            |table: &str, column: &str, row: u64| thread[table][column][row as usize].as_u64();
        let name = |stack| {
            let function = cell("frameTable", "func", cell("stackTable", "frame", stack)?)?;
            thread["stringArray"][cell("funcTable", "name", function)? as usize].as_str()
        };
        let word = |key: &str| thread[key].as_str().with_context(|| format!("no {key}"));
        for n in 0..thread["samples"]["length"].as_u64().context("no samples")? {
            let (mut words, mut next) = (Vec::new(), cell("samples", "stack", n));
            while let Some(stack) = next {
                words.push(name(stack).context("a frame without a name")?.replace(';', ":"));
                next = cell("stackTable", "prefix", stack);
            }
            words.push(format!("{} {}", word("tid")?, word("name")?));
            words.reverse();
            let weight = cell("samples", "weight", n).context("no weight")?;
            *samples.entry(words.join(";")).or_default() += weight;
        }
    }
    Ok(samples)
}

/// Tests one of Debian's programs, and requests that are refused.
pub fn others(tally: &mut Tally) -> Result<()> {
    third_party(tally)?;
    compiled(tally)?;
    refused(tally)
}

/// Checks that every stack of a function leads through its callers to where its thread began.
fn callers(tally: &mut Tally) -> Result<()> {
    let folded = report(&["-f", "folded"])?;
    for function in FUNCTIONS {
        let inner = format!(";{CALLER};{function};");
        let of_function = |line: &&str| line.contains(&format!(";{function};"));
        let begins = |line: &str| line.contains(";clone3;") || line.contains(";main;");
        let stacks: Vec<&str> = folded.lines().filter(of_function).collect();
        let lost: Vec<_> =
            stacks.iter().filter(|line| !line.contains(&inner) || !begins(line)).collect();
        tally.check(&format!("every stack of {function} has all callers"), {
            let is_right = lost.is_empty() && stacks.len() > THREADS.len();
            is_right.then_some(()).ok_or(format!("of {} stacks these not: {lost:?}", stacks.len()))
        });
    }
    Ok(())
}

/// Tests a stripped program of Debian's, whose threads share its work in any way.
fn third_party(tally: &mut Tally) -> Result<()> {
    let words =
        (0..INPUT_BYTES / 8).map(|n| format!("{:07x} ", n.wrapping_mul(2_654_435_761) >> 5));
    fs::write(INPUT, words.collect::<String>())?;
    let program = XZ.map(str::to_owned);
    let counted = counts(&stat(&[], &program)?.document)?[0][0];
    record(&[], &program)?;
    let profile: Value = serde_json::from_slice(&fs::read(PROFILE)?)?;
    let threads = profile["threads"].as_array().context("no threads")?;
    let periods = threads.iter().map(|thread| Some(thread["count"].as_u64()? / PERIOD));
    let periods = periods.collect::<Option<Vec<u64>>>().context("a thread without a count")?;
    let rows = rows("thread")?;
    let mut samples: Vec<u64> = rows.iter().map(|row| row.samples).collect();
    samples.resize(threads.len(), 0);
    let sorted = |numbers: &[u64]| {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers
    };
    let (samples, expected) = (sorted(&samples), sorted(&periods));
    tally.check("each thread of xz has a sample for every period", {
        let is_right = samples.iter().zip(&expected).all(|(one, other)| one.abs_diff(*other) <= 1);
        is_right.then_some(()).ok_or(format!("{samples:?} found, {expected:?} expected"))
    });
    // Its threads wait for each other, an unknown number of times.
    let (all, counted) = (periods.iter().sum::<u64>() as f64, counted as f64 / PERIOD as f64);
    tally.check("xz has as many samples as perfctr stat counts periods", {
        let is_right = threads.len() >= 3 && (all / counted - 1.0).abs() < 0.05;
        is_right.then_some(()).ok_or(format!("{all} of {} found, {counted:.1}", threads.len()))
    });
    let rows = self::rows("module,symbol")?;
    tally.check("xz is in functions of its library, which have no names", {
        let hot = rows.first().map(|row| (&*row.thread, row.name.starts_with("liblzma.so")));
        equal(hot.map(|(_, library)| library), Some(true))
    });
    Ok(())
}

/// Tests a function that a program has compiled at run time. Its name must be the one in the
/// program's list.
fn compiled(tally: &mut Tally) -> Result<()> {
    record(&[], &subject::words(&["compiled"])?)?;
    // An iteration is two instructions.
    let periods = (2 * program::ITERATIONS) as f64 / PERIOD as f64;
    let table = report(&["-s", "symbol"])?;
    let samples = table.lines().find_map(|line| {
        let line = line.contains(program::NAME).then_some(line)?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    tally.check(
        "a function that was compiled at run time has its name and a sample for every period",
        {
            let is_right = samples.is_some_and(|samples| (samples as f64 - periods).abs() <= 1.0);
            is_right
                .then_some(())
                .ok_or(format!("{samples:?} found, {periods:.2} expected: {table}"))
        },
    );
    Ok(())
}

/// Checks samples by a frequency, for which the kernel sets the periods. Each sample names its
/// period. All the periods together are at most what the program has executed; they may be less,
/// since the kernel may drop what was counted of a period when it sets another one. In a guest the
/// first period is 1,000,000,000 divided by the frequency. A program of which no thread executes
/// that much has no sample.
///
/// Where Linux counts by its own driver, each sample names the period that begins with it
/// (`x86_perf_event_set_period`). The last period that is named may not have passed in the end, so
/// the sum may be more by the last period. The profile has only the mean. It is assumed that the
/// last period is less than twice the mean: Linux moves it by an eighth of what it should be at a
/// time (`perf_adjust_period`), and the program's speed changes only as the machine's does.
pub fn frequency(tally: &mut Tally, provider: &str) -> Result<()> {
    // This program executes the same in each run.
    let program = subject::words(&["subject", LONG])?;
    let counted = counts(&stat(&[], &program)?.document)?[0][0];
    let mut found = Vec::new();
    for frequency in ["200", "1000"] {
        let mut command = Command::new(PERFCTR);
        command.args(["record", "-e", EVENT, "-F", frequency, "-o", PROFILE]);
        succeeded(command.arg("--").args(&program))?;
        let profile: Value = serde_json::from_slice(&fs::read(PROFILE)?)?;
        let samples: u64 = rows("symbol")?.iter().map(|row| row.samples).sum();
        let period = profile["period"].as_u64().context("no period")?;
        let says = report(&["-s", "symbol"])?.contains(&format!(", {frequency} in a second, "));
        found.push((samples, period, says));
    }
    tally.check("a frequency gives samples, whose periods are parts of the count", {
        let fits = |&(samples, period, says): &(u64, u64, bool)| {
            let surplus = if provider == "paravirt" { 0 } else { 2 * period };
            says && samples > 2 && samples * period <= counted + surplus
        };
        let is_right = found.iter().all(fits);
        is_right.then_some(()).ok_or(format!("{found:?} found, {counted} counted"))
    });
    tally.check("a higher frequency gives more samples, with shorter periods", {
        let [few, many] = [found[0], found[1]];
        let is_right = few.0 < many.0 && few.1 > many.1;
        is_right.then_some(()).ok_or(format!("{found:?}"))
    });
    Ok(())
}

/// Checks that an impossible request is refused with a reason, and that nothing is written.
fn refused(tally: &mut Tally) -> Result<()> {
    fs::write("/tmp/nonsense", "{\"format\":\"perfctr profile\",\"version\":7}")?;
    for (name, options, printed) in [
        ("a short period", ["record", "-c", "999", "true"], "1000.."),
        ("a high frequency", ["record", "-F", "1000000000", "true"], "the kernel allows"),
        ("an unknown event", ["record", "-e", "cycels:u", "true"], "did you mean `cycles`"),
        ("an absent program", ["record", "-o", "/tmp/none", "/nowhere"], "/nowhere: No such file"),
        (
            "another version",
            ["report", "-i", "/tmp/nonsense", "-g"],
            "version 7 of the format found, 1",
        ),
        ("an absent profile", ["report", "-i", "/tmp/none", "-g"], "/tmp/none"),
        ("no callers", ["report", "-i", PROFILE, "-g"], "`perfctr record -g` notes them"),
    ] {
        let output = Command::new(PERFCTR).args(options).output().context(PERFCTR)?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        tally.check(&format!("{name} is refused"), {
            let is_right = !output.status.success() && words.contains(printed);
            is_right.then_some(()).ok_or(format!("{:?}: {words}", output.status))
        });
    }
    Ok(())
}

fn record(options: &[&str], program: &[String]) -> Result<()> {
    let period = PERIOD.to_string();
    let mut command = Command::new(PERFCTR);
    command.args(["record", "-e", EVENT, "-c", &period, "-o", PROFILE]).args(options);
    succeeded(command.arg("--").args(program)).map(drop)
}

fn report(options: &[&str]) -> Result<String> {
    let mut command = Command::new(PERFCTR);
    let output = succeeded(command.args(["report", "-i", PROFILE]).args(options))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn succeeded(command: &mut Command) -> Result<Output> {
    let output = command.output().context(PERFCTR)?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{printed}", output.status);
    Ok(output)
}

/// A line of the table.
pub struct Row {
    pub samples: u64,
    /// The first column: the thread's name, or another key.
    pub thread: String,
    /// The last column: a name.
    pub name: String,
}

/// Returns the rows of the table that is sorted by these keys.
pub fn rows(keys: &str) -> Result<Vec<Row>> {
    let table = report(&["-s", keys])?;
    let mut lines = table.lines().skip_while(|line| !line.trim_start().starts_with("samples "));
    ensure!(lines.next().is_some(), "no table: {table}");
    let row = |line: &str| -> Option<Row> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let thread = words.get(3).or(words.get(2))?.to_string();
        Some(Row { samples: words[0].parse().ok()?, thread, name: words.last()?.to_string() })
    };
    lines.map(|line| row(line).with_context(|| line.to_owned())).collect()
}
