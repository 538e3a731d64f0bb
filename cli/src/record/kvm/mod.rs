// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Collects the samples of a KVM host: of its kernel and its programs, and of the kernels and the
//! programs of its virtual machines.
//!
//! A virtual machine is a domain whose number is that of its process. What the host's kernel and
//! the machine's process execute for it is the layer of the hypervisor. The rest of the host is
//! domain 0.

mod machines;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::utsname::uname;
use perfctr::host::{Places as Wanted, Xen};
use perfctr::watch::{Counted, CpuMode, MachineSample, MachineSamples};
use perfctr::{Error, Event};

use self::machines::Machines;
use super::attached::Memory;
use crate::elf::Facts;
use crate::guest::clock::{Clock, Moments};
use crate::host::{
    ANONYMOUS, CONTROL_DOMAIN, Collects, Kernel, Kernels, Taken, Taker, kernel_of, time,
    user_mode_of,
};
use crate::profile::{
    ClockOf, Frame, Host, KvmHost, Layer, Module, Profile, SampleOrigin, Samples, Symbol, Task,
    Thread,
};
use crate::program::{cgroup, name};
use crate::text::counted;

const DEVICE: &str = "/dev/kvm";
const ROOT: u32 = 0;
/// The provider of the samples, as profiles name it.
pub const PROVIDER: &str = "kvm";
/// The name of the host itself among the domains.
const HOST: &str = "host";
/// Addresses of samples in a kernel and in user mode whose place is not known.
const NOWHERE_IN_KERNEL: u64 = u64::MAX;
const NOWHERE_IN_USER: u64 = 0;
/// Addresses that stand for the last instructions of the host's kernel before it enters a guest or
/// returns to user mode, and what is shown there. On AMD's processors, KVM holds interrupts of any
/// kind off before it enters a guest, so they come there. An overflow while another such interrupt
/// is handled interrupts behind the handler's return.
const BEFORE_GUEST: u64 = u64::MAX - 2;
const BEFORE_USER: u64 = u64::MAX - 1;
const BEFORE: [(u64, &str); 2] =
    [(BEFORE_GUEST, "[before entry to a guest]"), (BEFORE_USER, "[before return to user mode]")];
/// How often machines are looked for.
const LOOK_EACH: Duration = Duration::from_secs(1);

/// Returns whether this is a KVM host. A domain of Xen is none, even if it has KVM.
pub fn is_here() -> bool {
    !Xen::is_here() && Path::new(DEVICE).exists()
}

/// Returns the host's name and version of its hypervisor.
fn hypervisor() -> String {
    let release = uname().map(|names| names.release().to_string_lossy().into_owned());
    format!("KVM of Linux {}", release.unwrap_or_default()).trim_end().to_owned()
}

/// What a sample is in. Each is a module of the profile, in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// The host's kernel.
    Kernel,
    /// A file, by its index.
    File(u32),
    Anonymous,
    GuestKernel(u32),
    GuestUser(u32),
}

/// The modules of the samples, in the order in which they were found.
#[derive(Default)]
struct Places {
    found: Vec<(Place, Layer)>,
    indices: HashMap<(Place, Layer), u32>,
}

impl Places {
    fn index_of(&mut self, place: Place, layer: Layer) -> u32 {
        *self.indices.entry((place, layer)).or_insert_with(|| {
            self.found.push((place, layer));
            self.found.len() as u32 - 1
        })
    }
}

/// Collects the samples of a KVM host.
pub struct Collector {
    taker: Option<Taker<MachineSamples>>,
    machines: Machines,
    looked: Instant,
    /// The domain of each process that was sampled since machines were looked for.
    domains: HashMap<u32, u32>,
    /// Both clocks since sampling began.
    moments: Option<Moments>,
    memory: Memory,
    places: Places,
    own: Kernel,
    kernels: Kernels,
    /// The common part of all profiles, and the threads that were sampled since the last one.
    profile: Profile,
    samples: Samples,
    /// How many samples were lost since the beginning.
    lost: u64,
    /// The samples whose place is not known, since the beginning: by the mode, and by that in which
    /// the interrupt came.
    misplaced: BTreeMap<(CpuMode, Option<CpuMode>), u64>,
    /// What the events have counted, once sampling has ended.
    ended: Ended,
}

/// What is known when sampling has ended.
#[derive(Default)]
struct Ended {
    counted: Vec<Counted>,
    throttled: u64,
}

impl Collector {
    /// Makes a collector that collects nothing yet. `profile` names the event, and has no samples.
    pub fn new(mut profile: Profile) -> Result<Self> {
        ensure!(
            fs::metadata("/proc/self")?.uid() == ROOT,
            "only root can find out which machines a KVM host has"
        );
        profile.host = Some(host());
        Ok(Self::of(profile, Machines::new()))
    }

    fn of(profile: Profile, machines: Machines) -> Self {
        Self {
            taker: None,
            machines,
            looked: Instant::now(),
            domains: HashMap::new(),
            moments: None,
            memory: Memory::default(),
            places: Places::default(),
            own: Kernel::default(),
            kernels: Kernels::default(),
            profile,
            samples: Samples::default(),
            lost: 0,
            misplaced: BTreeMap::new(),
            ended: Ended::default(),
        }
    }

    /// Names the functions of these kernels of machines.
    pub fn name_kernels(&mut self, kernels: Kernels) {
        self.kernels = kernels;
    }

    fn look_for_machines(&mut self) {
        self.machines.look();
        self.looked = Instant::now();
        self.domains.clear();
    }

    fn add_all(&mut self, taken: &Taken<MachineSample>) {
        self.lost = taken.lost;
        taken.samples.iter().for_each(|sample| self.add(sample));
    }

    /// Adds one sample.
    fn add(&mut self, sample: &MachineSample) {
        let is_guests = sample.mode.is_guests();
        if is_guests && self.machines.of(sample.pid).is_none_or(|of| of.vcpu(sample.tid).is_none())
        {
            self.look_for_machines();
            if self.machines.of(sample.pid).is_none() {
                self.machines.add_unlisted(sample.pid);
            }
        }
        if sample.ip.is_none() {
            *self.misplaced.entry((sample.mode, sample.arrived)).or_default() += 1;
        }
        let thread = self.thread(sample);
        let domain = self.profile.threads[thread as usize].pid;
        let frame = self.frame(sample, domain);
        let periods = sample.periods(self.profile.period);
        let frames = [frame];
        let origin = SampleOrigin { cpu: Some(sample.cpu), ..SampleOrigin::new(thread, &frames) };
        self.samples.add(origin, periods, Some(sample.time));
    }

    /// Returns the index of a sample's thread: a virtual CPU, or a thread of the host that is known
    /// by its own number.
    fn thread(&mut self, sample: &MachineSample) -> u32 {
        let &MachineSample { pid, tid, .. } = sample;
        let domain = self.domain(pid);
        let Self { machines, samples, profile, .. } = self;
        let vcpu = machines.of(pid).and_then(|machine| machine.vcpu(tid));
        let called = || machines.of(domain).map_or(HOST.to_owned(), |of| of.name.clone());
        let before = profile.threads.len();
        let index = samples.thread(profile, domain, vcpu.unwrap_or(tid), called);
        if profile.threads.len() > before && vcpu.is_none() {
            profile.threads[index as usize].task = Some(match tid {
                0 => Task::idle(),
                _ => {
                    let [name, process] = [tid, pid].map(|number| name(number.cast_signed()));
                    let cgroup = cgroup(pid.cast_signed()).into();
                    Task { pid, tid, name, process, cgroup }
                }
            });
        }
        index
    }

    /// Returns the domain for which a process executes: its own machine, the machine that this
    /// thread of the kernel serves, or the host.
    fn domain(&mut self, pid: u32) -> u32 {
        let Self { domains, machines, .. } = self;
        *domains.entry(pid).or_insert_with(|| match pid {
            0 => CONTROL_DOMAIN,
            _ if machines.of(pid).is_some() => pid,
            _ => machines.served(pid, &name(pid.cast_signed())).unwrap_or(CONTROL_DOMAIN),
        })
    }

    /// Returns the place of a sample, which is of this domain.
    fn frame(&mut self, sample: &MachineSample, domain: u32) -> Frame {
        let of_host = |layer| if domain == CONTROL_DOMAIN { layer } else { Layer::Hypervisor };
        let (place, layer, address) = match sample.mode {
            CpuMode::GuestKernel => {
                let ip = sample.ip.unwrap_or(NOWHERE_IN_KERNEL);
                (Place::GuestKernel(domain), Layer::Kernel, ip)
            }
            CpuMode::GuestUser => {
                let ip = sample.ip.unwrap_or(NOWHERE_IN_USER);
                (Place::GuestUser(domain), Layer::User, ip)
            }
            CpuMode::HostKernel => {
                let ip = sample.ip.unwrap_or(match sample.arrived {
                    Some(CpuMode::GuestKernel | CpuMode::GuestUser) => BEFORE_GUEST,
                    Some(CpuMode::HostUser) => BEFORE_USER,
                    _ => NOWHERE_IN_KERNEL,
                });
                (Place::Kernel, of_host(Layer::Kernel), ip)
            }
            CpuMode::HostUser => {
                let (place, address) = self.of_process(sample.pid, sample.ip);
                (place, of_host(Layer::User), address)
            }
        };
        Frame { module: Some(self.places.index_of(place, layer)), address }
    }

    /// Returns the file that a process of the host has mapped at this address, and the address as
    /// the file states it.
    fn of_process(&mut self, pid: u32, ip: Option<u64>) -> (Place, u64) {
        let Some(ip) = ip else { return (Place::Anonymous, NOWHERE_IN_USER) };
        match self.memory.frames(pid, &[ip])[..] {
            [Frame { module: Some(file), address }] => (Place::File(file), address),
            _ => (Place::Anonymous, ip),
        }
    }

    /// Returns all modules so far, with the functions that contain the profile's frames.
    fn modules(&mut self, profile: &Profile) -> Vec<Module> {
        let files = self.memory.modules();
        let module = |(n, &(place, layer)): (usize, &(Place, Layer))| {
            let at = |path: String| Module::new(path.as_ref(), Facts::default());
            let mut module = match place {
                Place::Kernel => at(kernel_of(CONTROL_DOMAIN)),
                Place::File(file) => files[file as usize].clone(),
                Place::Anonymous => at(ANONYMOUS.to_owned()),
                Place::GuestKernel(domain) => at(kernel_of(domain)),
                Place::GuestUser(domain) => at(user_mode_of(domain)),
            };
            let kernel = match place {
                Place::Kernel => Some(&self.own),
                Place::GuestKernel(domain) => self.kernels.of(profile, domain),
                _ => None,
            };
            if let Some(kernel) = kernel {
                let frames = profile.frames.iter();
                let own = frames.filter(|frame| frame.module == Some(n as u32));
                let own: BTreeSet<u64> = own.map(|frame| frame.address).collect();
                module.symbols = kernel.functions(&own);
                let before =
                    BEFORE.iter().filter(|(at, _)| place == Place::Kernel && own.contains(at));
                module.symbols.extend(before.map(|&(start, name)| Symbol {
                    start,
                    end: start + 1,
                    name: name.to_owned(),
                }));
            }
            module.layer = Some(layer);
            module
        };
        self.places.found.iter().enumerate().map(module).collect()
    }

    /// Returns where the interrupts came of the samples whose place is not known.
    fn places_of_interrupts(&self) -> String {
        let part = |(&(mode, arrived), samples): (&(CpuMode, Option<CpuMode>), &u64)| {
            let arrived = arrived.map_or("an unknown mode", words_for);
            format!("{samples} of {} in {arrived}", words_for(mode))
        };
        self.misplaced.iter().map(part).collect::<Vec<_>>().join(", ")
    }

    /// Returns how many samples there should be beside those that are there or were lost: where the
    /// counters were others' for a part of the time, this is an estimate.
    fn missing(&self) -> u64 {
        let each = self.ended.counted.iter().map(|one| one.missing(self.profile.period));
        // The interrupt of an event's last period may not have come before sampling ended.
        let (all, certain) = each.fold((0, 0), |(all, certain), missing| {
            (all + missing, certain + missing.saturating_sub(1))
        });
        if certain > self.lost { all - self.lost } else { 0 }
    }

    /// Returns why samples are missing.
    fn why_missing(&self) -> &'static str {
        let mut all = self.ended.counted.iter();
        if all.all(|counted| counted.total.running >= counted.total.enabled) {
            "more are missing: the kernel has held off the counters' interrupts for longer than a \
             period, as it does while it reports that a handler of interrupts was slow"
        } else {
            "more are missing, of times at which others used the counters or the kernel has \
             stopped them (an estimate)"
        }
    }
}

/// Returns the description of this host before anything is sampled.
fn host() -> Host {
    Host {
        hypervisor: hypervisor(),
        build_id: None,
        cpus: Vec::new(),
        tsc: 0,
        tsc_per_second: 0,
        at_guests: false,
        clocks: Vec::new(),
        kvm: Some(KvmHost::default()),
    }
}

impl Collects for Collector {
    fn begin(&mut self, event: Event, cpus: Option<&[u32]>, wanted: Wanted) -> Result<()> {
        ensure!(
            wanted == Wanted::default(),
            "a KVM host's samples do not say at which instruction of a guest the host was entered"
        );
        self.look_for_machines();
        self.moments = Some(Moments::begin()?);
        let rings = MachineSamples::start(event, cpus)?;
        if let Some(host) = &mut self.profile.host {
            host.cpus = rings.cpus().collect();
        }
        self.taker = Some(Taker::new(rings)?);
        Ok(())
    }

    fn take(&mut self) -> Result<(), Error> {
        self.memory.next_tick();
        if self.looked.elapsed() >= LOOK_EACH {
            self.look_for_machines();
        }
        // Without a further moment the times are less exact.
        self.moments.as_mut().map(Moments::tick);
        while let Some(taken) = self.taker.as_ref().and_then(Taker::next) {
            self.add_all(&taken?);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(taker) = self.taker.take() else { return Ok(()) };
        let (rest, rings) = taker.end();
        for taken in rest {
            self.add_all(&taken?);
        }
        if let Some(rings) = rings {
            self.ended = Ended { counted: rings.counted()?, throttled: rings.throttled() };
        }
        self.look_for_machines();
        Ok(())
    }

    fn profile(&mut self) -> Profile {
        let mut profile = self.samples.profile(&mut self.profile, self.lost);
        let moments = self.moments.as_ref().and_then(|moments| moments.until_now().ok());
        let clock = moments.and_then(|moments| Clock::new(moments).ok());
        // Machines that have ended are still known.
        let of = |machine| Some(ClockOf::new(machine, self.machines.clock(machine)?));
        let clocks = machines_in(&profile.threads).into_iter().filter_map(of).collect();
        let missing = self.missing();
        if let (Some(host), Some(clock)) = (&mut profile.host, clock) {
            let [first, _] = clock.span();
            (host.tsc, host.tsc_per_second) = (first, clock.ticks_per_second());
            host.clocks = clocks;
            host.kvm = Some(KvmHost { clock_error: clock.error(), missing });
            let times = profile.stacks.iter_mut().flat_map(|stack| &mut stack.times);
            for ns in times {
                *ns = time(clock.tsc(*ns) - first, host.tsc_per_second);
            }
        }
        profile.modules = self.modules(&profile);
        profile
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |number: u64, what: &str| {
            if number > 0 {
                notes.push(format!("{} {what}", counted(number, "sample")));
            }
        };
        note(self.missing(), self.why_missing());
        note(
            self.misplaced.values().sum(),
            &format!(
                "have no address: the processor had left the mode when the interrupt came ({})",
                self.places_of_interrupts()
            ),
        );
        if self.ended.throttled > 0 {
            let times = counted(self.ended.throttled, "time");
            notes.push(format!("the kernel has paused sampling {times}: too many samples"));
        }
        for Counted { cpu, mode, total, .. } in &self.ended.counted {
            if total.running.is_zero() && !total.enabled.is_zero() {
                notes.push(format!(
                    "CPU {cpu} has no samples of {}: others have used all counters",
                    words_for(*mode)
                ));
            }
        }
        notes
    }
}

/// Returns what a message to the user calls a mode.
const fn words_for(mode: CpuMode) -> &'static str {
    match mode {
        CpuMode::HostKernel => "the host's kernel",
        CpuMode::HostUser => "the host's user mode",
        CpuMode::GuestKernel => "guests' kernels",
        CpuMode::GuestUser => "guests' user mode",
    }
}

/// Returns the machines that have any of these threads.
fn machines_in(threads: &[Thread]) -> BTreeSet<u32> {
    threads.iter().map(|thread| thread.pid).filter(|&domain| domain != CONTROL_DOMAIN).collect()
}

#[cfg(test)]
mod tests;
