// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr stat`, which counts events of a program and of all threads and processes
//! that it starts.
//!
//! Counting begins with the program's first instruction. The counts contain nothing of this
//! program, and nothing that happens between `fork` and `exec`.

mod chosen;
mod group;
mod metric;
mod native;
mod output;
mod traced;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::ArgPredicate;
use perfctr::{Event, Provider};
use perfctr_gate::surroundings::Variable;

pub use self::native::estimate;

use self::chosen::{Chosen, Name, NameParser};
use self::output::{Intervals, Output};
use crate::events::{EventList, EventParser};
use crate::info::Here;
use crate::program::{Signals, Target, repeatable};

/// The options of `perfctr stat`.
#[derive(Debug, Args)]
pub struct Options {
    /// Events, separated by commas. `perfctr list` shows their names. Those between braces are
    /// counted at the same time or not at all.
    #[arg(
        short = 'e',
        long = "event",
        value_name = "EVENT",
        value_parser = EventParser::Grouped,
        hide_possible_values = true,
        default_value = "instructions:u,branches:u,cycles:u",
        default_value_if("metrics", ArgPredicate::IsPresent, None::<&str>)
    )]
    lists: Vec<EventList>,
    /// Counts what these metrics need, beside the events of `--event` if there are any, and prints
    /// the metrics: ipc, branches or caches, or metrics and groups of them from the tables of the
    /// processor's vendor (`perfctr list --metrics`). Those are counted in the modes that the
    /// vendor means, which is user mode and the kernel as a rule: NAME:u restricts them to user
    /// mode, NAME:k to the kernel.
    #[arg(
        short = 'M',
        long,
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = NameParser,
        hide_possible_values = true
    )]
    metrics: Vec<Name>,
    /// Reads the vendors' metrics below this directory; `perfctr list --help` says where they come
    /// from.
    #[arg(long, value_name = "DIR", requires = "metrics")]
    tables: Option<std::path::PathBuf>,
    /// Counts events that are not known to be right on this CPU, too.
    #[arg(long)]
    unverified: bool,
    /// The metrics that `metrics` names.
    #[arg(skip)]
    chosen: Chosen,
    /// All events of all options.
    #[arg(skip)]
    event: Vec<Event>,
    /// The same in their groups.
    #[arg(skip)]
    groups: Vec<Vec<Event>>,
    /// Runs the program this many times, and prints by how much the counts differed.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Gives the program the same addresses and the same environment in each run, and says so.
    #[arg(long, conflicts_with = "pid")]
    repeatable: bool,
    /// Passes this variable on to the program, or sets it: the environment that is the same in each
    /// run has only LC_ALL=C, PATH, PERL_HASH_SEED=0 and PYTHONHASHSEED=0.
    #[arg(
        long = "env",
        value_name = "NAME[=VALUE]",
        value_parser = repeatable::parser(),
        requires = "repeatable"
    )]
    passed: Vec<Variable>,
    /// Prints the counts of each thread, too.
    #[arg(long)]
    per_thread: bool,
    /// Counts a process that runs already: until CMD ends, if there is one, until an interrupt,
    /// or to its own end.
    #[arg(
        short,
        long,
        conflicts_with = "repeat",
        value_parser = clap::value_parser!(i32).range(1..)
    )]
    pid: Option<i32>,
    /// Counts a thread that runs already, and what it starts, as long as `--pid` would.
    #[arg(
        short,
        long,
        conflicts_with_all = ["pid", "repeat", "per_thread", "repeatable"],
        value_parser = clap::value_parser!(i32).range(1..)
    )]
    tid: Option<i32>,
    /// Counts everything that executes on all CPUs: until CMD ends, if there is one, or until an
    /// interrupt.
    #[arg(
        short,
        long,
        conflicts_with_all = ["pid", "tid", "cgroup", "repeat", "per_thread", "repeatable"]
    )]
    all_cpus: bool,
    /// Counts the group of processes of this directory in cgroup v2, as long as `--all-cpus` would.
    #[arg(
        short = 'G',
        long,
        value_name = "DIR",
        conflicts_with_all = ["pid", "tid", "repeat", "per_thread", "repeatable"]
    )]
    cgroup: Option<std::path::PathBuf>,
    /// Also prints the counts of each interval of this length.
    #[arg(
        short = 'I',
        long,
        value_name = "MS",
        conflicts_with_all = ["repeat", "json"],
        value_parser = clap::value_parser!(u64).range(10..)
    )]
    interval: Option<u64>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Prints what `perf stat -x,` does: value, unit, event, spread in percent if there are several
    /// runs, ns that it was counted, percent of the time, metric and its unit.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Writes the counts to this file in place of the standard error.
    #[arg(short, long)]
    output: Option<std::path::PathBuf>,
    /// The program and its arguments.
    #[arg(
        value_name = "CMD",
        required_unless_present_any = ["pid", "tid", "all_cpus", "cgroup"],
        trailing_var_arg = true
    )]
    command: Vec<OsString>,
}

impl Options {
    /// Finds the metrics, and collects the events of all lists.
    fn flattened(mut self) -> Result<Self> {
        self.chosen = Chosen::find(&self.metrics, self.tables.as_deref())?;
        self.groups = self.lists.iter().flat_map(|list| list.groups(self.unverified)).collect();
        self.groups.extend(self.chosen.events(&self.groups.concat()));
        self.event = self.groups.concat();
        Ok(self)
    }

    /// Returns the name of an event: the one in the vendor's tables, if the user has not asked for
    /// the event itself.
    fn label(&self, event: Event) -> String {
        let mut named = self.lists.iter().flat_map(|list| list.events(self.unverified));
        let is_named = named.any(|named| named == event);
        let of_table = self.chosen.label(event).filter(|_| !is_named);
        of_table.unwrap_or_else(|| event.to_string())
    }

    fn target(&self) -> Target<'_> {
        let cgroup = self.cgroup.as_deref();
        Target::of(self.pid, self.tid, cgroup, self.all_cpus, &self.command)
    }
}

/// How often an event occurred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    pub value: u64,
    /// The share of the time for which it was counted. If it is less than 1 there were not enough
    /// counters, and the value is an estimate.
    pub share: f64,
}

/// The counts of one thread.
#[derive(Clone, Debug)]
struct Thread {
    pid: u32,
    name: String,
    counts: Vec<u64>,
    /// How long it executed.
    time: Duration,
}

/// The results of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The program's exit status, 128 and the signal if one ended it.
    pub status: u8,
    /// The time from the program's start on.
    elapsed: Duration,
    /// The time that all threads together have executed.
    time: Duration,
    pub counts: Vec<Count>,
    /// The counts of each thread, if the provider tells them.
    threads: Vec<Thread>,
    /// The number of programs that could not be counted, because they have rights that the caller
    /// lacks.
    unobserved: u32,
    /// The number of interrupts and exceptions that the CPU has counted as instructions, and that
    /// the guest's kernel has subtracted from the counts of user mode.
    interrupts: u64,
}

/// Runs `perfctr stat`.
pub fn run(options: Options) -> Result<ExitCode> {
    let options = &options.flattened()?;
    let fixed = options.repeatable.then(|| repeatable::fix(&options.passed)).transpose()?;
    let here = Here::find()?;
    let interval = options.interval.map(Duration::from_millis);
    let signals = Signals::handle(options.target(), interval)?;
    let mut output = Output::open(options, &here, fixed)?;
    let mut runs = Vec::new();
    for _ in 0..options.repeat {
        runs.push(once(options, &here, &signals, &mut output)?);
    }
    output.summary(&runs)?;
    Ok(ExitCode::from(runs.last().map_or(0, |run| run.status)))
}

/// Counts these groups of events of the target to its end. The counts are in the order of events.
pub fn observe(
    here: &Here,
    target: Target<'_>,
    groups: &[Vec<Event>],
    signals: &Signals,
    intervals: Option<&mut Intervals<'_>>,
) -> Result<Run> {
    // A tracer follows programs and processes; the module counts perf events of the others.
    let is_traced = matches!(target, Target::Program(_) | Target::Process(..));
    let events = groups.concat();
    let hardware: Vec<Event> =
        events.iter().copied().filter(|event| !event.is_software()).collect();
    match (here.description.provider, here.description.caps) {
        _ if hardware.is_empty() => native::run(target, groups, signals, intervals),
        (Provider::Paravirt, Some(caps)) if is_traced => {
            // All events are counted at the same time.
            let control = perfctr::raw::counting(&caps, &hardware, 0)?;
            let tsc_khz = here.description.tsc_khz;
            traced::run(target, &events, &control, tsc_khz, signals, intervals)
        }
        (Provider::Tsc, _) => Err(here.no_provider_error(hardware[0]).into()),
        _ => native::run(target, groups, signals, intervals),
    }
}

fn once(options: &Options, here: &Here, signals: &Signals, output: &mut Output<'_>) -> Result<Run> {
    let mut intervals = output.intervals();
    let provider = here.description.provider;
    ensure!(
        !options.per_thread || provider != Provider::Native,
        "--per-thread needs provider paravirt, this is {provider}"
    );
    let run = observe(here, options.target(), &options.groups, signals, intervals.as_mut())?;
    if let Some(intervals) = &mut intervals {
        intervals.print(&run.counts)?;
    }
    Ok(run)
}
