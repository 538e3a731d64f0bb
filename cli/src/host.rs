// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Collects the samples of a host. On a Xen host, in its control domain, the hypervisor writes
//! samples into rings, and this module takes them. What a KVM host adds is in `record/kvm`.

mod names;
mod taker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use anyhow::{Result, ensure};
use perfctr::host::{DomainClock, HostSample, HostSamples, IDLE_DOMAIN, Mode, Places, Xen};
use perfctr::rdpmc::Hardware;
use perfctr::{Error, Event};
use perfctr_gate::text::harmless;
use shared_abi::read::Counters;

pub use self::taker::{Taken, Taker};
use crate::domains::{Names, names_of_xl};
use crate::elf::Facts;
use crate::profile::{ClockOf, Frame, Layer, Module, Profile, SampleOrigin, Samples, Thread};

pub use self::names::{DomainFile, Hypervisor, Kernel, Kernels, functions_of_kernel};

/// The domain with the kernel whose functions this machine knows.
pub const CONTROL_DOMAIN: u32 = 0;

/// Collects the samples of a host.
pub trait Collects {
    /// Begins to sample all physical CPUs, or only these.
    fn begin(&mut self, event: Event, cpus: Option<&[u32]>, places: Places) -> Result<()>;

    /// Takes the samples that there are.
    ///
    /// # Errors
    ///
    /// [`Error::NotSampled`]: sampling has ended. The samples until then are kept.
    fn take(&mut self) -> Result<(), Error>;

    /// Ends sampling, so that later events are not sampled, and takes the remaining samples.
    ///
    /// # Errors
    ///
    /// Those of [`take`](Self::take).
    fn end(&mut self) -> Result<(), Error>;

    /// Returns the profile of the samples since the last one.
    fn profile(&mut self) -> Profile;

    /// Returns what the user has to know of the samples, one message in each line.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The name of a KVM host's memory in which code is executed that is in no file.
pub const ANONYMOUS: &str = "[anon]";

/// When sampling began.
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
        u64::try_from(u128::from(ticks) * NS_PER_SECOND / ns).unwrap_or(u64::MAX).max(1)
    }
}

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Returns the time of this many ticks. Unit: ns.
pub fn time(ticks: u64, per_second: u64) -> u64 {
    u64::try_from(u128::from(ticks) * NS_PER_SECOND / u128::from(per_second.max(1)))
        .unwrap_or(u64::MAX)
}

/// Collects the samples of a Xen host.
pub struct Collector {
    taker: Option<Taker<HostSamples>>,
    clock: Clock,
    modules: Modules,
    names: DomainNames,
    clocks: Clocks,
    /// The common part of all profiles, and the virtual CPUs that were sampled since the last one.
    profile: Profile,
    samples: Samples,
    /// How many samples were lost since the beginning.
    lost: u64,
}

impl Collector {
    /// Makes a collector that collects nothing yet. `profile` names the event, and has no samples.
    pub fn new(hypervisor: Hypervisor, mut profile: Profile) -> Self {
        profile.host = Some(hypervisor.host());
        Self {
            taker: None,
            clock: Clock::now(),
            modules: Modules::new(hypervisor),
            names: DomainNames::default(),
            clocks: Clocks::default(),
            profile,
            samples: Samples::default(),
            lost: 0,
        }
    }

    /// Names the functions of these kernels of domains.
    pub fn name_kernels(&mut self, kernels: Kernels) {
        self.modules.kernels = kernels;
    }

    fn add_all(&mut self, taken: Taken<HostSample>) {
        self.lost = taken.lost;
        taken.samples.iter().for_each(|sample| self.add(sample));
    }

    /// Adds one sample.
    pub fn add(&mut self, sample: &HostSample) {
        let ticks = sample.tsc.saturating_sub(self.clock.tsc);
        let module = Some(self.modules.index_of(sample));
        let frame = Frame { module, address: sample.ip };
        let Self { samples, profile, .. } = self;
        let thread = samples.thread(profile, sample.domain, sample.vcpu, String::new);
        let cpu = Some(sample.cpu);
        samples.add(SampleOrigin { cpu, ..SampleOrigin::new(thread, &[frame]) }, 1, Some(ticks));
    }
}

impl Collects for Collector {
    fn begin(&mut self, event: Event, cpus: Option<&[u32]>, places: Places) -> Result<()> {
        self.names.begin(names_of_xl);
        self.clock = Clock::now();
        let rings = HostSamples::start(Xen::open()?, event, cpus, places)?;
        if let Some(host) = &mut self.profile.host {
            host.cpus = rings.cpus().collect();
            host.tsc = self.clock.tsc;
            host.at_guests = places == Places::Guest;
        }
        self.taker = Some(Taker::new(rings)?);
        Ok(())
    }

    fn take(&mut self) -> Result<(), Error> {
        while let Some(taken) = self.taker.as_ref().and_then(Taker::next) {
            self.add_all(taken?);
        }
        // A domain may be gone before the profile is made.
        self.names.look_up(&self.profile, names_of_xl);
        self.clocks.look_up(domains(&self.profile.threads), clock_of);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(taker) = self.taker.take() else { return Ok(()) };
        let (rest, _) = taker.end();
        rest.into_iter().try_for_each(|taken| {
            self.add_all(taken?);
            Ok(())
        })
    }

    fn profile(&mut self) -> Profile {
        let mut profile = self.samples.profile(&mut self.profile, self.lost);
        let per_second = self.clock.ticks_per_second();
        for ticks in profile.stacks.iter_mut().flat_map(|stack| &mut stack.times) {
            *ticks = time(*ticks, per_second);
        }
        if let Some(host) = &mut profile.host {
            host.tsc_per_second = per_second;
            host.clocks = self.clocks.of(domains(&profile.threads), clock_of);
        }
        self.names.name(&mut profile, names_of_xl);
        profile.modules = self.modules.named(&profile);
        profile
    }
}

/// The names of domains, which are looked up before sampling begins, and when a domain is new. They
/// are kept when a domain is gone.
#[derive(Default)]
struct DomainNames {
    known: Names,
    asked: BTreeSet<u32>,
}

impl DomainNames {
    /// Looks up the names of the domains that there are.
    fn begin(&mut self, ask: impl FnOnce() -> Names) {
        self.known.extend(ask());
        self.asked.extend(self.known.keys());
    }

    /// Looks up the names again if the profile has a domain that is new.
    fn look_up(&mut self, profile: &Profile, ask: impl FnOnce() -> Names) {
        let before = self.asked.len();
        let domains = profile.threads.iter().map(|thread| thread.pid);
        self.asked.extend(domains.filter(|&domain| domain != IDLE_DOMAIN));
        if self.asked.len() > before {
            self.known.extend(ask());
        }
    }

    /// Gives the domains their names.
    fn name(&mut self, profile: &mut Profile, ask: impl FnOnce() -> Names) {
        self.look_up(profile, ask);
        for thread in &mut profile.threads {
            thread.name = match thread.pid {
                IDLE_DOMAIN => "idle".to_owned(),
                domain => self.known.get(&domain).map_or_else(String::new, |name| harmless(name)),
            };
        }
    }
}

/// The time-stamp counters of domains, which are looked up when a domain is new. They are kept when
/// a domain is gone.
#[derive(Default)]
struct Clocks(BTreeMap<u32, Option<DomainClock>>);

impl Clocks {
    /// Looks up the counter of each of these domains that is new.
    pub fn look_up(&mut self, domains: BTreeSet<u32>, ask: impl Fn(u32) -> Option<DomainClock>) {
        for domain in domains {
            self.0.entry(domain).or_insert_with(|| ask(domain));
        }
    }

    /// Returns the counters of these domains. One that has changed meanwhile is left out: the
    /// domain has written to its counter, and it is not known when.
    pub fn of(
        &mut self,
        domains: BTreeSet<u32>,
        ask: impl Fn(u32) -> Option<DomainClock>,
    ) -> Vec<ClockOf> {
        let of = |domain| {
            let now = ask(domain);
            let known = *self.0.entry(domain).or_insert(now);
            let clock = known.filter(|known| now.is_none_or(|now| now == *known))?;
            Some(ClockOf::new(domain, clock))
        };
        domains.into_iter().filter_map(of).collect()
    }
}

/// Returns the domains of these virtual CPUs.
fn domains(threads: &[Thread]) -> BTreeSet<u32> {
    let domains = threads.iter().map(|thread| thread.pid);
    domains.filter(|&domain| domain != IDLE_DOMAIN).collect()
}

/// Asks the driver for the counter of a domain, whose virtual CPUs all read the same one.
fn clock_of(domain: u32) -> Option<DomainClock> {
    Xen::open().and_then(|xen| xen.clock(domain, 0)).ok()
}

/// The places of samples, in the order in which they were found.
struct Modules {
    hypervisor: Hypervisor,
    /// The control domain's kernel.
    own: Kernel,
    /// Other domains' kernels.
    kernels: Kernels,
    found: Vec<(Mode, u32)>,
    indices: HashMap<(Mode, u32), u32>,
}

impl Modules {
    fn new(hypervisor: Hypervisor) -> Self {
        let (own, kernels) = (Kernel::default(), Kernels::default());
        Self { hypervisor, own, kernels, found: Vec::new(), indices: HashMap::new() }
    }

    /// Returns the index of a sample's module.
    fn index_of(&mut self, sample: &HostSample) -> u32 {
        let place = match sample.mode {
            // It is the same for all domains.
            Mode::Hypervisor => (Mode::Hypervisor, 0),
            of_domain => (of_domain, sample.domain),
        };
        *self.indices.entry(place).or_insert_with(|| {
            self.found.push(place);
            self.found.len() as u32 - 1
        })
    }

    /// Returns all modules so far, with the functions that contain the profile's frames.
    fn named(&self, profile: &Profile) -> Vec<Module> {
        let module = |(n, &(mode, domain)): (usize, &(Mode, u32))| {
            let addresses = profile.frames.iter().filter(|frame| frame.module == Some(n as u32));
            let addresses: BTreeSet<u64> = addresses.map(|frame| frame.address).collect();
            let place = |path: String| Module::new(path.as_ref(), Facts::default());
            let mut module = match mode {
                Mode::Hypervisor => self.hypervisor.module(&addresses),
                // What the hypervisor executes for code has the code's name, so that a table can
                // put it beside what the code executes itself. They differ in the layer.
                Mode::Kernel | Mode::ForKernel => place(kernel_of(domain)),
                Mode::User | Mode::ForUser => place(user_mode_of(domain)),
                other => place(format!("[{other:?} of domain {domain}]")),
            };
            let kernel = self.kernels.of(profile, domain);
            let kernel = kernel.or((domain == CONTROL_DOMAIN).then_some(&self.own));
            if let (Mode::Kernel | Mode::ForKernel, Some(kernel)) = (mode, kernel) {
                module.symbols = kernel.functions(&addresses);
            }
            module.layer = Some(layer_of(mode));
            module
        };
        self.found.iter().enumerate().map(module).collect()
    }
}

/// Returns the layer that executes in a mode.
fn layer_of(mode: Mode) -> Layer {
    match mode {
        Mode::Kernel => Layer::Kernel,
        Mode::User => Layer::User,
        _ => Layer::Hypervisor,
    }
}

/// Returns the name of a domain's user mode.
pub fn user_mode_of(domain: u32) -> String {
    format!("[user mode of domain {domain}]")
}

/// Returns the name of a domain's kernel.
pub fn kernel_of(domain: u32) -> String {
    match domain {
        CONTROL_DOMAIN => "[kernel]".to_owned(),
        _ => format!("[kernel of domain {domain}]"),
    }
}

/// Checks that the host can be sampled by these events, and returns the only one.
pub fn only(events: &[Event]) -> Result<Event> {
    ensure!(events.len() == 1, "{} events found: a host is sampled by one", events.len());
    Ok(events[0])
}

#[cfg(test)]
pub mod tests;
