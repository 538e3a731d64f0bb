// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples a Xen host itself, in its control domain: the hypervisor writes samples into rings, and
//! this takes them.

mod names;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use perfctr::Event;
use perfctr::host::{HostSample, HostSamples, IDLE_DOMAIN, Mode, Xen};
use perfctr::rdpmc::Hardware;
use shared_abi::read::Counters;

use self::names::Hypervisor;
use crate::domains::{Names, names_of_xl};
use crate::elf::Facts;
use crate::profile::{Frame, Layer, Module, Profile, Samples};
use crate::program::beside::{self, Beside};
use crate::program::{Signals, Target};
use crate::text::{harmless, tell};

/// The domain whose kernel's functions this machine knows.
const CONTROL_DOMAIN: u32 = 0;

/// A list of physical CPUs, like `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<u32>);

/// The most physical CPUs that can be named; those behind them are sampled with all others.
const NAMED_MAX: u32 = 64;

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse::<u32>(), last.parse::<u32>()) {
                (Ok(first), Ok(last)) if first <= last && last < NAMED_MAX => {
                    cpus.extend(first..=last);
                }
                _ => {
                    return Err(format!(
                        "`{part}` found, a CPU or a range like 0-3 below {NAMED_MAX} expected"
                    ));
                }
            }
        }
        Ok(Self(cpus.into_iter().collect()))
    }
}

/// Samples the host by this event. Returns the exit status of the command that is run meanwhile.
pub fn run(
    target: Target<'_>,
    event: Event,
    cpus: Option<&Cpus>,
    xen_syms: Option<&Path>,
    mut profile: Profile,
    signals: &Signals,
) -> Result<(Profile, u8)> {
    let hypervisor = Hypervisor::find(xen_syms)?;
    let (command, _) = target.parts();
    profile.host = Some(hypervisor.host());
    let mut recording = Recording {
        event,
        cpus,
        rings: None,
        ended: None,
        modules: Modules::new(hypervisor),
        profile,
        samples: Samples::default(),
        clock: None,
    };
    let (status, _) = beside::run(command, None, signals, &mut recording)?;
    Ok((recording.finish()?, status))
}

struct Recording<'a> {
    event: Event,
    cpus: Option<&'a Cpus>,
    rings: Option<HostSamples>,
    /// Why there are no more samples, if it has ended early.
    ended: Option<String>,
    modules: Modules,
    profile: Profile,
    samples: Samples,
    clock: Option<Clock>,
}

/// When the recording began.
struct Clock {
    tsc: u64,
    at: Instant,
}

impl Clock {
    fn now() -> Self {
        Self { tsc: Hardware.clock(), at: Instant::now() }
    }

    /// Returns the ticks in a second, of the time from then until now.
    fn ticks_per_second(&self) -> u64 {
        let ns = self.at.elapsed().as_nanos().max(1);
        let ticks = Hardware.clock().wrapping_sub(self.tsc);
        u64::try_from(u128::from(ticks) * NS / ns).unwrap_or(u64::MAX).max(1)
    }
}

/// Unit: ns.
const NS: u128 = 1_000_000_000;

/// Returns the time of so many ticks. Unit: ns.
fn time(ticks: u64, per_second: u64) -> u64 {
    u64::try_from(u128::from(ticks) * NS / u128::from(per_second.max(1))).unwrap_or(u64::MAX)
}

impl Beside for Recording<'_> {
    fn begin(&mut self) -> Result<()> {
        let cpus = self.cpus.map(|cpus| &*cpus.0);
        self.clock = Some(Clock::now());
        let rings = HostSamples::start(Xen::open()?, self.event, cpus)?;
        if let Some(host) = &mut self.profile.host {
            host.cpus = rings.cpus().collect();
        }
        self.rings = Some(rings);
        Ok(())
    }

    /// Takes what the hypervisor has written meanwhile.
    fn tick(&mut self) -> Result<()> {
        let (Some(rings), Some(clock), None) = (&mut self.rings, &self.clock, &self.ended) else {
            return Ok(());
        };
        match rings.take() {
            Ok(taken) => {
                for sample in &taken {
                    let ticks = sample.tsc.saturating_sub(clock.tsc);
                    add(&mut self.samples, &mut self.profile, &mut self.modules, sample, ticks);
                }
                self.profile.lost = rings.lost();
                Ok(())
            }
            // What there is until then is kept.
            Err(error @ perfctr::Error::NotSampled(_)) => {
                self.ended = Some(error.to_string());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Adds a sample whose time is in ticks since the beginning.
fn add(
    samples: &mut Samples,
    profile: &mut Profile,
    modules: &mut Modules,
    sample: &HostSample,
    ticks: u64,
) {
    let module = Some(modules.of(sample));
    let frame = Frame { module, address: sample.ip };
    let thread = samples.thread(profile, sample.domain, sample.vcpu, String::new);
    samples.add_on(Some(sample.cpu), thread, &[frame], 1, Some(ticks));
}

impl Recording<'_> {
    fn finish(mut self) -> Result<Profile> {
        self.tick()?;
        // Sampling ends here, so that nothing of what follows is sampled.
        self.rings = None;
        if let Some(why) = &self.ended {
            tell(format_args!("sampling has ended early: {why}"));
        }
        let Self { mut profile, samples, modules, clock, .. } = self;
        samples.fill(&mut profile);
        let clock = clock.context("nothing was begun")?;
        let per_second = clock.ticks_per_second();
        for ticks in profile.stacks.iter_mut().flat_map(|stack| &mut stack.times) {
            *ticks = time(*ticks, per_second);
        }
        if let Some(host) = &mut profile.host {
            (host.tsc, host.tsc_per_second) = (clock.tsc, per_second);
        }
        profile.modules = modules.named(&profile);
        name(&mut profile, &names_of_xl());
        // What a virtual CPU has counted after its last sample is not known.
        profile.count_by_samples();
        Ok(profile)
    }
}

/// Gives the domains their names.
fn name(profile: &mut Profile, names: &Names) {
    for thread in &mut profile.threads {
        thread.name = match thread.pid {
            IDLE_DOMAIN => "idle".to_owned(),
            domain => names.get(&domain).map_or_else(String::new, |name| harmless(name)),
        };
    }
}

/// The places of samples, in the order in which they were found.
struct Modules {
    hypervisor: Hypervisor,
    found: Vec<(Layer, u32)>,
    indices: HashMap<(Layer, u32), u32>,
}

impl Modules {
    fn new(hypervisor: Hypervisor) -> Self {
        Self { hypervisor, found: Vec::new(), indices: HashMap::new() }
    }

    /// Returns the index of a sample's module.
    fn of(&mut self, sample: &HostSample) -> u32 {
        let place = match sample.mode {
            // It is the same for all domains.
            Mode::Hypervisor => (Layer::Hypervisor, 0),
            Mode::Kernel => (Layer::Kernel, sample.domain),
            Mode::User => (Layer::User, sample.domain),
        };
        *self.indices.entry(place).or_insert_with(|| {
            self.found.push(place);
            self.found.len() as u32 - 1
        })
    }

    /// Returns all modules, with the functions that the profile's frames are in.
    fn named(self, profile: &Profile) -> Vec<Module> {
        let module = |(n, &(layer, domain)): (usize, &(Layer, u32))| {
            let addresses = profile.frames.iter().filter(|frame| frame.module == Some(n as u32));
            let addresses: BTreeSet<u64> = addresses.map(|frame| frame.address).collect();
            let place = |path: String| Module::new(path.as_ref(), Facts::default());
            let mut module = match layer {
                Layer::Hypervisor => self.hypervisor.module(&addresses),
                Layer::Kernel if domain == CONTROL_DOMAIN => {
                    let mut kernel = place("[kernel]".to_owned());
                    kernel.symbols = names::of_kernel(&addresses);
                    kernel
                }
                Layer::Kernel => place(format!("[kernel of domain {domain}]")),
                Layer::User => place(format!("[user mode of domain {domain}]")),
            };
            module.layer = Some(layer);
            module
        };
        self.found.iter().enumerate().map(module).collect()
    }
}

/// Checks that the host can be sampled by these events, and returns the only one.
pub fn only(events: &[Event]) -> Result<Event> {
    ensure!(events.len() == 1, "{} events found: a host is sampled by one", events.len());
    Ok(events[0])
}

#[cfg(test)]
mod tests;
