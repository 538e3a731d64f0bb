// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds machines as they are before the first step.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use guest_kmod::restore::Restoration;
use hv_driver::{Demand, Pcpu, Policy};
use shared_abi::ThreadPage;

use crate::choice::Chooser;
use crate::contention::Contention;
use crate::coverage::Coverage;
use crate::cpu_wide::{Books, CpuWide};
use crate::fiber::Fiber;
use crate::machine::{Agent, Clock, Counts, Cpu, Domain, Level, Life, Machine, Nmi, Thread, Vcpu};
use crate::perf::Perf;
use crate::pmu::Pmu;
use crate::rings::ThreadRing;
use crate::rng::Rng;
use crate::search::Marks;
use crate::shape::{DomainShape, Kind, Shape, decision};
use crate::truth::Truth;

/// Builds a machine of this shape.
pub fn build(
    shape: &Shape,
    chooser: Chooser,
    steps_max: u64,
    trace: bool,
    fibers: &mut Vec<Fiber>,
) -> Machine {
    let mut rng = Rng::new(shape.seed ^ 0x5eed);
    let mut own = Rng::new(shape.seed ^ 0xc10c);
    let driver = shape.driver();
    let cpus = shape.cpus.iter().map(|&host| cpu(shape, host, &mut rng)).collect();
    let (mut vcpus, mut threads, mut domains) = (Vec::new(), Vec::new(), Vec::new());
    for (index, domain) in shape.domains.iter().enumerate() {
        let (first_vcpu, first_thread) = (vcpus.len(), threads.len());
        // A guest with rings of its own may have a clock that is slower, or faster.
        let ratio = if domain.hardware { own_ratio(&mut own) } else { Clock::NATIVE.ratio };
        vcpus.extend((0..domain.vcpus).map(|id| vcpu(index, id as u32, domain.hardware, ratio)));
        threads.extend((0..domain.threads).map(|id| thread(index, id as u32, rng.next())));
        let several = shape.users && domain.kind == Kind::Good;
        for thread in threads.iter().skip(first_thread).skip(1).step_by(2).filter(|_| several) {
            let thread: &Thread = thread;
            thread.owner.set(1);
        }
        let (vcpus, threads) = (first_vcpu..vcpus.len(), first_thread..threads.len());
        domains.push(self::domain(domain, vcpus, threads));
    }
    let objects = shape.cpus.len() + 2 * vcpus.len() + threads.len();
    let guided = matches!(chooser, Chooser::Guided { .. });
    let coverage = Coverage::new(guided, objects);
    let mut machine = Machine {
        shape: shape.clone(),
        driver,
        perf: Perf::new(threads.len(), vcpus.len()),
        contentions: contentions(shape),
        cpus,
        vcpus,
        threads,
        domains,
        agents: Vec::new(),
        marks: Marks::new(&chooser, objects, objects),
        chooser: RefCell::new(chooser),
        asked: Cell::default(),
        pending: Cell::new(None),
        here: Cell::new(0),
        agent: Cell::new(None),
        steps: Cell::new(0),
        steps_max,
        over: Cell::new(false),
        violation: RefCell::new(None),
        serials: Cell::new(0),
        readings: Cell::new(0),
        tally: Cell::default(),
        coverage,
        trace,
    };
    for domain in &machine.domains {
        domain.policy.set(&machine.driver, false, &decision(domain.allowed.get()));
    }
    machine.agents = agents(&machine, fibers);
    machine
}

/// Returns the hosts whose own perf wants the counters, too.
fn contentions(shape: &Shape) -> Vec<Contention> {
    let hosts =
        if shape.contended { shape.cpus.iter().max().map_or(0, |last| last + 1) } else { 0 };
    (0..hosts).map(|host| Contention::new(Rng::new(shape.seed ^ host as u64).one_in(2))).collect()
}

fn domain(domain: &DomainShape, vcpus: Range<usize>, threads: Range<usize>) -> Domain {
    Domain {
        kind: domain.kind,
        host: Cell::new(0),
        serial: Cell::new(0),
        vcpus,
        threads,
        hardware: domain.hardware,
        alive: Cell::new(false),
        allowed: Cell::new(domain.kind != Kind::Stranger),
        policy: Policy::default(),
        forbidden: Cell::new(0),
        counting: guest_kmod::Counting::new(),
        answer: Cell::new(None),
        caps: Cell::new(None),
        suspending: Cell::new(false),
        frames_moved: Cell::new(0),
        books: Books::default(),
        demand: Demand::default(),
    }
}

fn agents(machine: &Machine, fibers: &mut Vec<Fiber>) -> Vec<Agent> {
    let hypervisors = machine.cpus.iter().map(|_| (Level::Hypervisor, None));
    let kernels = machine.vcpus.iter().map(|vcpu| (Level::Kernel, Some(vcpu.domain)));
    let threads = machine.threads.iter().map(|thread| (Level::User, Some(thread.domain)));
    hypervisors
        .chain(kernels)
        .chain(threads)
        .map(|(level, domain)| Agent {
            fiber: RefCell::new(fibers.pop().unwrap_or_default()),
            level: Cell::new(level),
            domain,
        })
        .collect()
}

fn cpu(shape: &Shape, host: usize, rng: &mut Rng) -> Cpu {
    Cpu {
        host,
        core: RefCell::new(Pcpu::new()),
        // Counters hold any value, or are about to wrap or to change their sign.
        pmu: Pmu::new(shape.model, shape.cost, || match rng.below(4) {
            0 => rng.next(),
            1 => (1 << 63 | 1 << 47 | 1 << 39 | 1 << 35 | 1 << 31) - rng.below(2000),
            _ => rng.below(2000).wrapping_neg(),
        }),
        current: Cell::new(None),
        switching: Cell::new(false),
        lazy: Cell::new(None),
        revocation: Cell::new(false),
        tsc_offset: rng.next(),
        time: Cell::new(0),
        ring_0_events: Cell::default(),
        taken: Cell::new(false),
        cost_seen: Cell::new(None),
        slice: Cell::new(0),
        tsc_seen: Cell::new(None),
        may_program: Cell::new(false),
        interrupted: Cell::new(false),
        entered: Cell::new(None),
    }
}

fn own_ratio(rng: &mut Rng) -> u64 {
    const ONE: u64 = Clock::NATIVE.ratio;
    [ONE, ONE, ONE / 4 * 3, ONE / 2 * 3 + 1][rng.index(4)]
}

fn vcpu(domain: usize, id: u32, hardware: bool, ratio: u64) -> Vcpu {
    Vcpu {
        domain,
        id,
        pages: Default::default(),
        shows: Cell::new(0),
        shows_next: Cell::new(0),
        left_page: Cell::new(None),
        perfs_for: Cell::new(0),
        pins: Default::default(),
        registered: RefCell::default(),
        on: Cell::new(None),
        clock: Cell::new(Clock { ratio, offset: 0 }),
        rdpmc_exits: Cell::new(hardware),
        restoration: Restoration::new(),
        counted_when_left: Cell::new(Counts::Nothing),
        restored: Cell::new(false),
        at_switch: Cell::new(None),
        kernel_mode: Cell::new(true),
        module: RefCell::default(),
        shown: guest_kmod::shown::ShownWords::default(),
        stats: guest_kmod::Stats::default(),
        current: Cell::new(None),
        next: Cell::new(None),
        report_due: Cell::new(false),
        busy: Cell::new(false),
        online: Cell::new(false),
        lost_page: Cell::new(false),
        demand: RefCell::default(),
        window: Cell::default(),
        overflows_before: Cell::new(0),
        virq: Cell::new(false),
        nmi: Cell::new(Nmi::Changed),
        overflows_seen: Cell::new(None),
        nmi_was_taken: Cell::new(false),
        observer: Cell::new(0),
        stop_asked: Cell::new(false),
        user: Cell::default(),
        kernel: Cell::default(),
        surplus: Cell::default(),
        counts: Cell::new(Counts::Nothing),
        knows: Cell::new(false),
        counted: Cell::default(),
        unclear: Cell::default(),
        missed: Cell::default(),
        still: Cell::new(0),
        still_since: Cell::new(0),
        sums: Cell::default(),
        tsc_sum: Cell::new(0),
        tsc_start: Cell::new(None),
        sampling: RefCell::default(),
        disturbances: Cell::new(0),
        undisturbed: Cell::new(0),
        sampled: Cell::default(),
        put_off: Cell::new(None),
        armed: Cell::default(),
        cpu_wide: CpuWide::new(),
    }
}

fn thread(domain: usize, id: u32, seed: u64) -> Thread {
    Thread {
        domain,
        tid: 100 + id,
        owner: Cell::new(0),
        counts: Cell::new(false),
        page: ThreadPage::default(),
        pmu: RefCell::new(None),
        life: Cell::new(Life::Unborn),
        on: Cell::new(None),
        rng: RefCell::new(Rng::new(seed)),
        user: Cell::default(),
        counted: Cell::default(),
        unclear: Cell::default(),
        missed: Cell::default(),
        truth: RefCell::new(Truth::new()),
        looks: RefCell::default(),
        changing: Cell::new(false),
        started: Cell::new(None),
        changes: Cell::new(0),
        traced: Cell::new(0),
        failures: Cell::new(0),
        failures_before: Cell::new(0),
        asked: Cell::new(None),
        found: Cell::new(None),
        signal: Cell::new(None),
        admin: Cell::new(false),
        admitted: Cell::new(false),
        cpu_wide: Cell::new(0),
        published: RefCell::default(),
        claims: RefCell::default(),
        ring: ThreadRing::default(),
    }
}

/// Lets the driver take over all physical CPUs while nothing else happens, and starts the domains
/// that exist from the beginning.
pub fn start(machine: &Rc<Machine>) {
    machine.come_up_all();
    for (index, domain) in machine.shape.domains.iter().enumerate() {
        if !domain.spare {
            machine.create(index);
        }
    }
}
