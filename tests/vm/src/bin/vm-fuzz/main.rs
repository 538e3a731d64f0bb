// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Fuzzes the real module and the real driver, by their real ioctls and hypercalls.
//!
//! An input is any bytes. A target takes them for a sequence of requests and makes these. Inputs
//! that reach a place of the module or of the driver that none before has reached are kept, and
//! later ones are mutations of those kept: what is reached is what a build for fuzzing says of
//! itself. The same seed gives the same inputs as long as the same places are reached.
//!
//! While the inputs run, a thread on each vCPU compares its own counts with the truth.

mod coverage;
mod guest;
mod neighbours;
mod reader;
mod user;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use vm_tests::stats::until_threads;
use vm_tests::tally::Tally;

use coverage::Coverage;
use neighbours::Neighbours;

/// Fuzzes the module or the driver.
#[derive(Debug, Parser)]
struct Options {
    /// Who is hostile.
    #[arg(value_enum)]
    target: Target,
    /// Inputs to try beside the corpus.
    #[arg(long, default_value_t = 1000)]
    inputs: u64,
    /// What the mutations are decided by.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory with one directory of inputs for each target.
    #[arg(long, default_value = "/work/corpus")]
    corpus: PathBuf,
    /// Where inputs are left that reached something new.
    #[arg(long, default_value = "/out")]
    found: PathBuf,
}

/// Who is hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// An unprivileged user of the guest.
    User,
    /// The guest's kernel.
    Guest,
    /// What a hostile user executes: nothing.
    Nothing,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let outcome = match options.target {
        Target::User => user(&options),
        Target::Guest => guest(&options),
        Target::Nothing => return Ok(ExitCode::SUCCESS),
    };
    if let Ok(tried) = &outcome {
        tried.print();
    }
    let mut tally = Tally::default();
    let name = format!("a hostile {:?} does no harm", options.target).to_lowercase();
    tally.check(&name, outcome.map(drop).map_err(|error| format!("{error:#}")));
    Ok(tally.finish())
}

/// Inputs after which what they have broken of their own is mended.
const REPAIR_EVERY: u64 = 16;

/// What was tried, and what that reached.
#[derive(Default)]
struct Tried {
    given: usize,
    mutations: u64,
    kept: u64,
    reached_by_corpus: u32,
    reached: u32,
}

impl Tried {
    fn print(&self) {
        let Self { given, mutations, kept, reached_by_corpus, reached } = self;
        println!("{given} inputs of the corpus reach {reached_by_corpus} places");
        println!("{mutations} mutations reach {reached}; {kept} have reached something new");
    }
}

fn user(options: &Options) -> Result<Tried> {
    user::admit()?;
    let neighbours = Neighbours::start()?;
    let tried = fuzz(options, "user", |input, _| user::run(input))?;
    neighbours.judge()?;
    until_threads(0)?;
    guest::reload()?;
    Ok(tried)
}

fn guest(options: &Options) -> Result<Tried> {
    let tried = fuzz(options, "guest", |input, number| {
        if number.is_multiple_of(REPAIR_EVERY) {
            guest::repair()?;
        }
        guest::run(input)
    })?;
    guest::reload()?;
    // Whoever counts afterwards does so exactly.
    let neighbours = Neighbours::start()?;
    sleep(Duration::from_millis(500));
    neighbours.judge()?;
    Ok(tried)
}

/// Tries the corpus, and mutations of all that has reached something new.
fn fuzz(options: &Options, name: &str, run: impl Fn(&[u8], u64) -> Result<()>) -> Result<Tried> {
    let coverage = Coverage::open(options.target == Target::Guest);
    let mut corpus = read_corpus(&options.corpus.join(name))?;
    let mut tried = Tried { given: corpus.len(), mutations: options.inputs, ..Tried::default() };
    for (number, input) in corpus.iter().enumerate() {
        run(input, number as u64).with_context(|| hex(input))?;
    }
    tried.reached_by_corpus = coverage.reached()?;
    tried.reached = tried.reached_by_corpus;
    let found = options.found.join(name);
    fs::create_dir_all(&found)?;
    let mut rng = fastrand::Rng::with_seed(options.seed);
    for number in 0..options.inputs {
        let mut input = corpus[rng.usize(..corpus.len())].clone();
        fuzz::mutate(&mut rng, &mut input);
        run(&input, number).with_context(|| hex(&input))?;
        let now = coverage.reached()?;
        if now > tried.reached {
            tried.reached = now;
            tried.kept += 1;
            fs::write(found.join(format!("{number:06}")), &input)?;
            corpus.push(input);
        }
    }
    Ok(tried)
}

fn read_corpus(folder: &Path) -> Result<Vec<Vec<u8>>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    ensure!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| Ok(fs::read(path)?)).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
