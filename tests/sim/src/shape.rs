// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Describes the parts of a machine, and how often things happen to it.

use hv_driver::{Driver, Rate, Settings};
use shared_abi::CounterConfig;
use shared_abi::hypercall::HvDomain;

use crate::model::{Model, Vendor};
use crate::pmu::{EN, EVENT_CODES, OS, USR};
use crate::rng::Rng;

/// The kinds of domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has the module, and everything it reads must be true.
    Good,
    /// It has the module, too, and a kernel that writes garbage to its pages and asks for garbage.
    Hostile,
    /// It knows nothing of counters.
    Stranger,
}

/// A domain.
#[derive(Clone, Copy, Debug)]
pub struct DomainShape {
    /// Its kind.
    pub kind: Kind,
    /// Its virtual CPUs.
    pub vcpus: usize,
    /// Its threads, of which `idle` wait for another one's end.
    pub threads: usize,
    /// The number of threads that do not exist from the beginning.
    pub idle: usize,
    /// Whether it does not exist from the beginning.
    pub spare: bool,
    /// Whether the CPU virtualises it: it has rings and a time-stamp counter of its own.
    pub hardware: bool,
}

/// The work of a thread.
#[derive(Clone, Debug)]
pub enum Program {
    /// The thread's seed decides what it does.
    Random,
    /// It does these operations, and then ends.
    Fixed(Vec<Op>),
}

/// One operation of a thread.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Start this counter, and count time.
    Start(CounterConfig),
    /// Execute that many instructions.
    Execute(u64),
    /// Read the counters.
    Read,
    /// Let the counters continue if an overflow has paused them.
    GoOn,
}

/// The relative frequencies of the actions on the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weights {
    /// Another physical CPU executes.
    pub cpu: u64,
    /// The hypervisor switches to another vCPU.
    pub vcpu: u64,
    /// A guest switches to another thread.
    pub thread: u64,
    /// A guest takes an interrupt and returns.
    pub tick: u64,
    /// A guest takes a vCPU offline, or back.
    pub hotplug: u64,
    /// The host forbids a domain to count, or allows it again.
    pub policy: u64,
    /// A domain is saved and restored on another host.
    pub restore: u64,
    /// A guest of KVM is moved to another process, on the same host or another one.
    pub moves: u64,
    /// A domain is destroyed.
    pub destroy: u64,
    /// A vCPU is switched in whose segments cannot be loaded, so its kernel is called instead.
    pub failsafe: u64,
    /// A hostile kernel writes to its pages.
    pub garbage: u64,
    /// An idle physical CPU goes offline and comes back.
    pub replug: u64,
    /// The host's own perf begins or ceases to count.
    pub hosts_perf: u64,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The host to which each physical CPU belongs.
    pub cpus: Vec<usize>,
    /// Whether the hosts are Linux with KVM, and all domains have rings of their own.
    pub kvm: bool,
    /// Whether the hosts' own perf wants the counters, too.
    pub contended: bool,
    /// The domains, which all start on host 0.
    pub domains: Vec<DomainShape>,
    /// Its processors.
    pub model: Model,
    /// Whether its processors count the instruction that enters a guest as one of the guest's.
    pub counts_entries: bool,
    /// Whether the CPUs count an interrupt as an instruction of the code that it interrupts.
    pub counts_interrupts: bool,
    /// Whether the driver measures itself.
    pub cost: bool,
    /// The number of overflows that a vCPU may have in a thousand ticks.
    pub overflows_max: u64,
    /// How often things happen.
    pub weights: Weights,
    /// The number of steps between two actions on the machine, on average.
    pub period: u64,
    /// Whether threads now and then execute a billion instructions at once.
    pub leaps: bool,
    /// Whether every step is an instruction that counts. Otherwise only work counts.
    pub noisy: bool,
    /// Whether administrators count whole CPUs.
    pub cpu_wide: bool,
    /// Whether guests have several users.
    pub users: bool,
    /// Whether threads use perf.
    pub perf: bool,
    /// Whether threads have rings for their samples.
    pub rings: bool,
    /// Whether signals of overflows are lost now and then, as if threads had ignored them.
    pub loses_signals: bool,
    /// The work of threads.
    pub program: Program,
    /// A part of the seeds of its threads.
    pub seed: u64,
}

/// Returns a host's decision about a domain: whether it may count, without limits of its own.
pub fn decision(allowed: bool) -> HvDomain {
    HvDomain { enabled: allowed.into(), ..HvDomain::default() }
}

impl Shape {
    /// Returns the machine of a seed.
    pub fn random(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let restores = rng.one_in(3);
        let mut cpus = vec![0; 1 + rng.index(3)];
        if restores {
            cpus.extend(vec![1; 1 + rng.index(2)]);
        }
        let own = &mut Rng::new(seed ^ 0xa3d0);
        let model = if rng.one_in(4) { amd(own) } else { intel(rng) };
        let several = model.general > 1;
        let kvm = Rng::new(seed ^ 0x6b76).one_in(3);
        // A saved domain's CPUs would have to start anew.
        let cpu_wide = !restores && !kvm && Rng::new(seed ^ 0x0e11).one_in(3);
        let perf = !cpu_wide && Rng::new(seed ^ 0x9e4f).one_in(2);
        let contended = kvm && Rng::new(seed ^ 0x4057).one_in(3);
        Self {
            cpus,
            kvm,
            contended,
            domains: domains(rng, || {
                kvm || !own.one_in(if model.distinguishes_guests() { 3 } else { 2 })
            }),
            model,
            counts_entries: model.distinguishes_guests() && Rng::new(seed ^ 0x7646).one_in(2),
            counts_interrupts: Rng::new(seed ^ 0x1472).one_in(3),
            cost: several && rng.one_in(4),
            overflows_max: if rng.one_in(4) { 2 } else { u64::MAX },
            weights: Weights {
                cpu: 10,
                vcpu: rng.below(30),
                thread: rng.below(30),
                tick: rng.below(10),
                hotplug: if rng.one_in(2) { 1 + 3 * u64::from(cpu_wide) } else { 0 },
                policy: if rng.one_in(3) && !contended { 1 } else { 0 },
                restore: if restores { 4 } else { 0 },
                moves: if kvm { 4 } else { 0 },
                destroy: if rng.one_in(4) { 1 } else { 0 },
                failsafe: rng.below(3),
                garbage: 5,
                replug: if Rng::new(seed ^ 0x9106).one_in(3) { 1 } else { 0 },
                hosts_perf: u64::from(contended),
            },
            period: [2, 5, 10, 20, 50, 100, 200][rng.index(7)],
            leaps: rng.one_in(3),
            noisy: !rng.one_in(4),
            cpu_wide,
            users: Rng::new(seed ^ 0x05e2).one_in(2),
            perf,
            rings: model.samples() && Rng::new(seed ^ 0x7269).one_in(3),
            loses_signals: Rng::new(seed ^ 0x105e).one_in(4),
            program: Program::Random,
            seed,
        }
    }

    /// Returns the driver with its settings.
    pub fn driver(&self) -> Driver {
        let rate = Rate { window_tsc: 1000, overflows_max: self.overflows_max };
        let settings = Settings {
            measure_cost: self.cost,
            all_events: true,
            counts_entries: self.counts_entries,
            counts_interrupts: self.counts_interrupts,
            ..Settings::new(rate)
        };
        Driver::new(&self.model.cpuid(), &settings).expect("the machine's PMU is usable")
    }
}

fn domains(rng: &mut Rng, mut hardware: impl FnMut() -> bool) -> Vec<DomainShape> {
    let mut domains = Vec::new();
    let mut add = |kind, vcpus, threads, spare| {
        let (threads, hardware) = (threads + 3, hardware());
        domains.push(DomainShape { kind, vcpus, threads, idle: 3, spare, hardware });
    };
    for _ in 0..1 + rng.index(2) {
        add(Kind::Good, 1 + rng.index(3), 1 + rng.index(4), false);
    }
    if rng.one_in(2) {
        add(Kind::Stranger, 1 + rng.index(2), 1, false);
    }
    if rng.one_in(3) {
        add(Kind::Hostile, 1 + rng.index(2), 1 + rng.index(2), false);
    }
    for _ in 0..2 {
        add(Kind::Good, 1 + rng.index(2), 1 + rng.index(2), true);
    }
    domains
}

/// A processor with two general counters of 48 bits.
pub const PLAIN: Model = Model {
    vendor: Vendor::Intel,
    version: 3,
    general: 2,
    fixed: 0,
    general_width: 48,
    // There is no fixed counter, so nothing may depend on this.
    fixed_width: 40,
};

/// Returns a machine without domains, in which only work counts.
pub fn quiet(cpus: usize) -> Shape {
    Shape {
        cpus: vec![0; cpus],
        kvm: false,
        contended: false,
        domains: Vec::new(),
        model: PLAIN,
        counts_entries: false,
        counts_interrupts: false,
        cost: false,
        overflows_max: u64::MAX,
        weights: Weights { cpu: 1, vcpu: 1, thread: 1, ..Weights::default() },
        period: 1,
        leaps: false,
        noisy: false,
        cpu_wide: false,
        users: false,
        perf: false,
        rings: false,
        loses_signals: false,
        program: Program::Random,
        seed: 0,
    }
}

fn amd(rng: &mut Rng) -> Model {
    [Model::AMD, Model::AMD_CORE, Model::AMD_V2][rng.index(3)]
}

fn intel(rng: &mut Rng) -> Model {
    let widths = [32, 36, 40, 48, 64];
    Model {
        vendor: Vendor::Intel,
        version: 2 + rng.below(2) as u32,
        general: 1 + rng.below(4) as u32,
        fixed: rng.below(4) as u32,
        general_width: widths[rng.index(5)],
        fixed_width: widths[rng.index(5)],
    }
}

/// Returns an event select of a kind of event that occurs.
pub fn evntsel(event: usize, rings: u64) -> u64 {
    EVENT_CODES[event] | rings | EN
}

/// Returns rings, user mode most often.
pub fn random_rings(rng: &mut Rng) -> u64 {
    [USR, USR, OS, USR | OS][rng.index(4)]
}
