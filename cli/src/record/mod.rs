// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr record`, which takes a sample whenever a number of events has occurred: a
//! sample says where a thread was executing.
//!
//! A program that the command starts in order to sample its user mode is traced, with all threads
//! and processes that it starts. Each thread has a counter of its own and gets a signal at each
//! overflow. Its tracer then finds it stopped, records its place, discards the signal, and lets
//! counter and thread continue. The program notices none of this, and nothing of it is counted.
//!
//! Running processes are not traced: the kernel writes their samples into rings. It also does that
//! for programs that are sampled in the kernel, where a tracer cannot stop them, or with a
//! frequency, for which the kernel changes the period all the time, or with branches, which the
//! processor keeps only until other code executes. The hypervisor samples a Xen host in the same
//! way, and the kernel a KVM host.

pub mod attached;
mod compiled;
mod counter;
mod host;
pub mod kvm;
mod names;
mod recorder;
mod space;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use perfctr::host::Places;
use perfctr::watch::samples_at_most;
use perfctr::{Event, Provider};

use self::counter::Source;
use self::recorder::Recorder;
use crate::events::{EventList, EventParser, every};
use crate::host::{Collector, DomainFile, Hypervisor, Kernels, only};
use crate::info::Here;
use crate::perf_data;
use crate::profile::{Machine, Place, Profile};
use crate::program::tracer::{self, Followed};
use crate::program::{LOOK, Signals, Target};
use crate::text::{counted, print_note};

/// The options of `perfctr record`.
#[derive(Debug, Args)]
pub struct Options {
    /// Samples by these events, separated by commas: in user mode (`cycles:u`), in the kernel
    /// (`cycles:k`), or in both (`cycles`). Each has a profile of its own. A host is sampled by one
    /// event, in all modes, in kernels only (`cycles:k`, on a Xen host in Xen's ring 0) or in user
    /// mode (`cycles:u`, outside of it).
    #[arg(
        short = 'e',
        long = "event",
        value_name = "EVENT",
        value_parser = EventParser::Single,
        hide_possible_values = true,
        default_value = "cycles:u",
        default_value_if("host", "true", "cycles")
    )]
    lists: Vec<EventList>,
    /// Samples by an event that is not known to be right on this CPU, too.
    #[arg(long)]
    unverified: bool,
    /// Takes a sample after each period of this many events; an event's own `/period=N/` comes
    /// first.
    #[arg(short, long, default_value_t = 1_000_003, value_parser = period())]
    count: u64,
    /// Takes about this many samples in each second of execution, in place of periods. The kernel
    /// then sets the periods, by the event's recent rate. Callers are found by frame pointers.
    #[arg(
        short = 'F',
        long,
        value_name = "HZ",
        conflicts_with_all = ["count", "host"],
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    frequency: Option<u64>,
    /// Records the callers as well.
    #[arg(short = 'g', long)]
    call_graph: bool,
    /// Records the branches that the processor took last before each sample, in the modes of the
    /// event. Callers are found by frame pointers. A guest's host has to allow it.
    #[arg(short, long, conflicts_with = "host")]
    branches: bool,
    /// Writes the profile to this file, which is perf.data where perf's format is chosen, and
    /// perfctr.names with `--names`.
    #[arg(
        short,
        long,
        default_value = "perfctr.data",
        default_value_if("format", "perf", "perf.data"),
        default_value_if("names", "true", "perfctr.names"),
        hide_default_value = true
    )]
    output: PathBuf,
    /// Writes this format.
    #[arg(short, long, value_enum, default_value = "perfctr")]
    format: Format,
    /// Samples a process that runs already, and what it starts: until CMD ends, if there is one,
    /// until an interrupt, or to its own end. Callers are found by frame pointers.
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Samples a thread that runs already, and what it starts, as long as `--pid` would.
    #[arg(short, long, conflicts_with = "pid", value_parser = clap::value_parser!(i32).range(1..))]
    tid: Option<i32>,
    /// Samples everything that executes on all CPUs: until CMD ends, if there is one, or until an
    /// interrupt.
    #[arg(short, long, conflicts_with_all = ["pid", "tid", "cgroup"])]
    all_cpus: bool,
    /// Samples the group of processes of this directory in cgroup v2, as long as `--all-cpus`
    /// would.
    #[arg(short = 'G', long, value_name = "DIR", conflicts_with_all = ["pid", "tid"])]
    cgroup: Option<PathBuf>,
    /// Samples the host, as long as `--all-cpus` would. In the control domain of a Xen host, this
    /// is the hypervisor with all domains, and Xen's option `perfctr=profile` lets it. On a KVM
    /// host, this is the host with all virtual machines, and root may do it while no machine
    /// counts.
    #[arg(long, conflicts_with_all = ["pid", "tid", "cgroup", "all_cpus", "call_graph"])]
    host: bool,
    /// Samples only these physical CPUs of the host, such as 0-3,8.
    #[arg(short = 'C', long, value_name = "LIST", requires = "host")]
    cpus: Option<host::Cpus>,
    /// Finds the hypervisor's functions and their lines in this file, which must be that of the Xen
    /// that is running. Otherwise one is looked for in /usr/lib/debug and /boot, and if there is
    /// none, Xen is asked for the names.
    #[arg(long, value_name = "FILE", requires = "host")]
    xen_syms: Option<PathBuf>,
    /// Finds the functions of a domain's kernel in this copy of its /proc/kallsyms, as root reads
    /// it in that domain, which is given by its number or its name. May be given once for each
    /// domain.
    #[arg(long, value_name = "DOMAIN=FILE", requires = "host")]
    guest_symbols: Vec<DomainFile>,
    /// Shows what Xen executes for a domain at the domain's own instruction by which Xen was
    /// entered, in place of Xen's functions.
    #[arg(long, requires = "host")]
    at_guests: bool,
    /// Takes no samples, and records which threads execute when, with their programs and functions,
    /// as long as `--all-cpus` would. If this machine is a domain of a host that is sampled
    /// meanwhile, `perfctr report --guest` adds this to the host's profile.
    #[arg(
        long,
        conflicts_with_all = [
            "lists", "unverified", "count", "frequency", "call_graph", "branches", "format", "pid",
            "tid", "all_cpus", "cgroup", "host"
        ]
    )]
    names: bool,
    /// The program and its arguments.
    #[arg(
        value_name = "CMD",
        required_unless_present_any = ["pid", "tid", "all_cpus", "cgroup", "host", "names"],
        trailing_var_arg = true
    )]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A profile, as `perfctr report` and `perfctr diff` read it.
    Perfctr,
    /// A perf.data file, which Linux's perf and others read, and `perfctr report` as well.
    Perf,
}

/// The shortest period. Several shorter ones would pass between two signals.
const PERIOD_MIN: u64 = 1_000;

fn period() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(PERIOD_MIN..)
}

impl Options {
    /// Returns the events, each with its period.
    fn events(&self) -> Result<Vec<Event>> {
        let events = self.lists.iter().flat_map(|list| list.events(self.unverified));
        if let Some(frequency) = self.frequency {
            check_frequency(frequency)?;
            let events: Vec<Event> = events.collect();
            let with_period = events.iter().find(|event| event.period() != 0);
            if let Some(event) = with_period {
                bail!("{event} has the period {}, so --frequency cannot set one", event.period());
            }
            return Ok(events);
        }
        let events: Vec<Event> = events.map(|event| every(event, self.count)).collect();
        events.iter().try_for_each(check_event)?;
        Ok(events)
    }

    fn target(&self) -> Target<'_> {
        let cgroup = self.cgroup.as_deref();
        let all_cpus = self.all_cpus || self.host || self.names;
        Target::of(self.pid, self.tid, cgroup, all_cpus, &self.command)
    }

    /// Returns whether the kernel writes the samples of these events into rings, also those of a
    /// program that is started.
    fn has_rings(&self, events: &[Event]) -> bool {
        is_kernels(events) || self.frequency.is_some() || self.branches
    }

    /// Returns the profile of an event before there are any samples.
    fn profile(&self, provider: String, event: &Event) -> Profile {
        let words = self.command.iter().map(|word| word.display().to_string()).collect();
        // With a frequency, the period is known when there are samples.
        let period = event.period().max(1);
        let mut profile = Profile::new(words, provider, event.to_string(), period);
        (profile.call_graph, profile.machine) = (self.call_graph, Machine::this());
        profile.frequency = self.frequency;
        profile.branches = self.branches.then(Vec::new);
        profile
    }
}

/// Fails unless there can be samples by this event.
pub fn check_event(event: &Event) -> Result<()> {
    let period = event.period();
    ensure!(period >= PERIOD_MIN, "{period} is no period: {PERIOD_MIN} events at least");
    Ok(())
}

/// Fails if the kernel does not allow this frequency.
fn check_frequency(frequency: u64) -> Result<()> {
    let most = samples_at_most().unwrap_or(u64::MAX);
    ensure!(
        frequency <= most,
        "{frequency} samples in a second: the kernel allows {most} \
         (kernel.perf_event_max_sample_rate)"
    );
    Ok(())
}

/// Returns whether one of these events occurs in the kernel as well.
fn is_kernels(events: &[Event]) -> bool {
    events.iter().any(|event| *event != event.user())
}

/// Runs `perfctr record`.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.names {
        return record_names(options);
    }
    let events = options.events()?;
    let target = options.target();
    // Rings have to be read again and again.
    let signals = Signals::handle(target, options.has_rings(&events).then_some(LOOK))?;
    // The file is opened before the program runs, since the samples would be lost if it could not
    // be written.
    let open = if options.host || is_kernels(&events) { Place::open_private } else { Place::open };
    let place = open(&options.output)?;
    let recorded = match options.host {
        true => of_host(options, target, &events, &signals),
        false => of_programs(options, target, events, &signals),
    };
    let (profiles, status) = recorded.inspect_err(|_| place.give_up())?;
    write(options, &place, &profiles)?;
    for profile in &profiles {
        let event = if profiles.len() > 1 { format!(": {}", profile.event) } else { String::new() };
        for line in lines(profile, &event, &options.output) {
            print_note(line);
        }
    }
    Ok(ExitCode::from(status))
}

/// Runs `perfctr record --names`.
fn record_names(options: &Options) -> Result<ExitCode> {
    let target = options.target();
    let signals = Signals::handle(target, Some(LOOK))?;
    // It says where the kernel has its code.
    let place = Place::open_private(&options.output)?;
    let status = names::run(target, &place, &signals).inspect_err(|_| place.give_up())?;
    print_note(format_args!("which threads executed is in {}", options.output.display()));
    Ok(ExitCode::from(status))
}

/// Writes the profiles in the format that was chosen.
fn write(options: &Options, place: &Place, profiles: &[Profile]) -> Result<()> {
    if options.format == Format::Perfctr {
        return place.write(profiles);
    }
    match perf_data::encode(profiles) {
        Ok(bytes) => place.write_bytes(&bytes),
        Err(why) => {
            // In perfctr's own format at least the samples are saved.
            place.write(profiles)?;
            bail!("{} has perfctr's own format: {why:#}", options.output.display())
        }
    }
}

/// Samples the host itself.
fn of_host(
    options: &Options,
    target: Target<'_>,
    events: &[Event],
    signals: &Signals,
) -> Result<(Vec<Profile>, u8)> {
    let event = only(events)?;
    let cpus = options.cpus.as_ref();
    let places = if options.at_guests { Places::Guest } else { Places::Hypervisor };
    let lists = &options.guest_symbols;
    let (profile, status) = if !kvm::is_here() {
        let hypervisor = Hypervisor::with_file(options.xen_syms.as_deref())?;
        let profile = options.profile("xen".to_owned(), &event);
        let mut collector = Collector::new(hypervisor, profile);
        collector.name_kernels(Kernels::of_lists(lists)?);
        host::run(target, event, cpus, places, collector, signals)?
    } else {
        ensure!(options.xen_syms.is_none(), "--xen-syms is for Xen hosts, and this is a KVM host");
        let profile = options.profile(kvm::PROVIDER.to_owned(), &event);
        let mut collector = kvm::Collector::new(profile)?;
        collector.name_kernels(Kernels::of_lists(lists)?);
        host::run(target, event, cpus, places, collector, signals)?
    };
    Ok((vec![profile], status))
}

/// Samples programs of this machine.
fn of_programs(
    options: &Options,
    target: Target<'_>,
    events: Vec<Event>,
    signals: &Signals,
) -> Result<(Vec<Profile>, u8)> {
    let here = Here::find()?;
    let provider = || here.description.provider.to_string();
    let profiles: Vec<Profile> =
        events.iter().map(|event| options.profile(provider(), event)).collect();
    match target {
        Target::Program(_) if !options.has_rings(&events) => {
            traced(&here, target, events, profiles, signals)
        }
        _ if here.description.provider == Provider::Tsc => {
            Err(here.no_provider_error(events[0]).into())
        }
        _ => attached::run(target, &events, profiles, signals),
    }
}

/// Samples a program, whose threads are stopped at each overflow.
fn traced(
    here: &Here,
    target: Target<'_>,
    events: Vec<Event>,
    profiles: Vec<Profile>,
    signals: &Signals,
) -> Result<(Vec<Profile>, u8)> {
    let mut recorder = Recorder::new(Source::new(here, events)?, profiles);
    let Followed { status, unobserved, .. } = tracer::run(target, &mut recorder, signals)?;
    Ok((recorder.finish(unobserved), status))
}

/// Returns the messages about a profile, one in each line.
fn lines(profile: &Profile, event: &str, output: &Path) -> Vec<String> {
    let samples = counted(profile.samples(), "sample");
    let threads = counted(profile.number_of_threads(), profile.thread_noun());
    let mut lines = vec![format!("{samples} of {threads} in {}{event}", output.display())];
    // The messages about a host always say how many samples were lost, even if none were.
    if profile.lost > 0 || profile.host.is_some() {
        let lost = counted(profile.lost, "sample");
        let why = if profile.lost > 0 { ": they came faster than they were read" } else { "" };
        lines.push(format!("lost {lost}{why}"));
    }
    // What a KVM host's profile lacks has been said already.
    if let missed @ 1.. = profile.missed().saturating_sub(profile.lost)
        && !profile.is_of_kvm_host()
    {
        let missed = counted(missed, "sample");
        lines.push(format!("missed {missed}, of threads that ended or were killed before"));
    }
    if let unobserved @ 1.. = profile.unobserved {
        lines.push(format!("threads or programs that could not be observed: {unobserved}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Stack, Thread};

    #[test]
    fn samples_that_are_missing_are_told_of_with_the_reason() {
        let mut profile = Profile::new(Vec::new(), String::new(), String::new(), 10);
        profile.threads.push(Thread { tid: 1, pid: 1, name: String::new(), count: 59, task: None });
        profile.stacks.push(Stack { samples: 5, frames: vec![0], ..Stack::default() });
        let lines_of = |profile: &Profile| lines(profile, ": a", Path::new("b")).join("\n");
        assert_eq!(lines_of(&profile), "5 samples of 1 thread in b: a");
        profile.lost = 2;
        let lost = "lost 2 samples: they came faster than they were read";
        assert_eq!(lines_of(&profile), format!("5 samples of 1 thread in b: a\n{lost}"));
        profile.threads[0].count = 60;
        let missed = "missed 1 sample, of threads that ended or were killed before";
        assert_eq!(lines_of(&profile), format!("5 samples of 1 thread in b: a\n{lost}\n{missed}"));
    }
}
