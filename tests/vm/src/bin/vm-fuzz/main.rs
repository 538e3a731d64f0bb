// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Fuzzes the real module and the real driver by their real ioctls and hypercalls.
//!
//! An input is any sequence of bytes. A target reads them as a sequence of requests, and makes
//! these. Inputs that reach new code of the module or of the driver are kept, and later inputs are
//! mutations of those kept. A build for fuzzing reports which code is reached. The same seed gives
//! the same inputs as long as the same code is reached.
//!
//! While the inputs run, programs on each vCPU compare their own counts with the truth.

mod calls;
mod coverage;
mod guest;
mod neighbours;
mod reader;
mod tenant;
mod user;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser};
use vm_tests::module;
use vm_tests::stats::until_threads;
use vm_tests::tally::Tally;

use coverage::Coverage;
use neighbours::Neighbours;

/// Fuzzes the module and the driver.
#[derive(Debug, Parser)]
enum Role {
    /// Fuzzes as each hostile program: a user, the guest's kernel, another domain's kernel.
    Fuzz(Options),
    /// Fuzzes as the first program of that other domain.
    Inside {
        /// See [`Options::calls`].
        calls: u64,
        /// See [`Options::seed`].
        seed: u64,
    },
    /// Does nothing, as the program that a hostile user executes.
    Nothing,
}

/// How much is tried, and with which inputs.
#[derive(Debug, Args)]
struct Options {
    /// Make at least this many calls, for each hostile program.
    #[arg(long, default_value_t = 1000)]
    calls: u64,
    /// Go on for at least this many minutes, for each hostile program.
    #[arg(long, default_value_t = 0)]
    minutes: u64,
    /// Fuzz as a hostile user only.
    #[arg(long)]
    only_user: bool,
    /// The numbers of places in the code of the module and of the driver. If they are not 0, a
    /// share of them must be reached.
    #[arg(long, num_args = 2, default_values_t = [0, 0])]
    places: Vec<u32>,
    /// Seed of the mutations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory with one directory of inputs for each hostile program.
    #[arg(long, default_value = "/work/corpus")]
    corpus: PathBuf,
    /// Directory for inputs that reached something new.
    #[arg(long, default_value = "/out")]
    found: PathBuf,
}

/// Who is hostile.
struct Target {
    name: &'static str,
    fuzz: fn(&Options) -> Result<Tried>,
    /// Whose code the places belong to: see [`Options::places`].
    side: usize,
    /// The percentage of them that must be reached, or `None` if others have reached as much.
    least: Option<u32>,
}

const USER: &str = "user";

const TARGETS: [Target; 3] = [
    Target { name: USER, fuzz: user, side: 0, least: Some(30) },
    // Every option of the driver is on. 40 % were reached when this bound was set. Code for the
    // host's requests, such as lists of domains, cannot be reached by a guest, but counts all the
    // same.
    Target { name: "guest kernel", fuzz: guest, side: 1, least: Some(37) },
    Target { name: "domain", fuzz: tenant::fuzz_in_tenant, side: 1, least: None },
];

fn main() -> Result<ExitCode> {
    let options = match Role::parse() {
        Role::Fuzz(options) => options,
        Role::Inside { calls, seed } => return tenant::inside(calls, seed),
        Role::Nothing => return Ok(ExitCode::SUCCESS),
    };
    let mut tally = Tally::default();
    for target in TARGETS.iter().filter(|target| !options.only_user || target.name == USER) {
        judge(&mut tally, target, options.places[target.side], (target.fuzz)(&options));
    }
    Ok(tally.finish())
}

fn judge(tally: &mut Tally, target: &Target, places: u32, tried: Result<Tried>) {
    let name = target.name;
    let reached = tried.as_ref().map_or(0, |tried| tried.reached);
    if let Ok(Tried { calls, mutations, checks, .. }) = tried {
        println!(
            "note a hostile {name}: {calls} calls in {mutations} inputs, {reached} of {places} \
             places reached so far; its neighbours have counted exactly {checks} times"
        );
    }
    let harm = tried.map(drop).map_err(|error| format!("{error:#}"));
    tally.check(&format!("a hostile {name} does no harm"), harm);
    if let Some(least) = target.least.filter(|_| places > 0) {
        let outcome = (reached * 100 >= places * least)
            .then_some(())
            .ok_or_else(|| format!("{reached} of {places} places"));
        tally.check(&format!("a hostile {name} reaches {least} % of the code"), outcome);
    }
}

/// The calls and inputs that were tried, and the places that they have reached.
#[derive(Debug, Default)]
struct Tried {
    /// Requests or hypercalls that were made.
    calls: u64,
    /// Inputs that made them, beside the corpus.
    mutations: u64,
    /// How often neighbours have checked their counts.
    checks: u64,
    /// Places of the code that were reached since it was loaded.
    reached: u32,
}

fn user(options: &Options) -> Result<Tried> {
    user::admit()?;
    let neighbours = Neighbours::start()?;
    let coverage = Coverage::open(false);
    let mut tried = fuzz(options, "user", Vec::new(), &coverage, |input, _| user::run(input))?;
    tried.checks = neighbours.judge()?;
    until_threads(0)?;
    module::reload_unharmed()?;
    Ok(tried)
}

fn guest(options: &Options) -> Result<Tried> {
    let guest = guest::Guest::new()?;
    let (valid_inputs, coverage) = (guest::valid_inputs(), Coverage::open(true));
    let mut tried = fuzz(options, "guest", valid_inputs, &coverage, |input, number| {
        guest.repair_at_times(number)?;
        guest.run(input)
    })?;
    drop(guest);
    module::reload_unharmed()?;
    // Programs that count afterwards must do so exactly.
    tried.checks = Neighbours::start()?.judge()?;
    Ok(tried)
}

/// Tries the corpus, further inputs, and mutations of all that have reached something new.
fn fuzz(
    options: &Options,
    name: &str,
    further_inputs: Vec<Vec<u8>>,
    coverage: &Coverage,
    run: impl Fn(&[u8], u64) -> Result<()>,
) -> Result<Tried> {
    let before = calls::made();
    let mut corpus = [read_corpus(&options.corpus.join(name))?, further_inputs].concat();
    for (number, input) in corpus.iter().enumerate() {
        run(input, number as u64).with_context(|| hex(input))?;
    }
    let mut tried = Tried { reached: coverage.reached()?, ..Tried::default() };
    let found = options.found.join(name);
    fs::create_dir_all(&found)?;
    let mut rng = fastrand::Rng::with_seed(options.seed);
    let until = Instant::now() + Duration::from_secs(60 * options.minutes);
    while calls::made() < before + options.calls || Instant::now() < until {
        let input = mutate_from(&mut rng, &corpus);
        run(&input, tried.mutations).with_context(|| hex(&input))?;
        tried.mutations += 1;
        let now = coverage.reached()?;
        if now > tried.reached {
            tried.reached = now;
            fs::write(found.join(format!("{:06}", tried.mutations)), &input)?;
            corpus.push(input);
        }
    }
    tried.calls = calls::made() - before;
    Ok(tried)
}

fn mutate_from(rng: &mut fastrand::Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[rng.usize(..corpus.len())].clone();
    fuzz::mutate(rng, &mut input);
    input
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
