// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates the machine: it keeps track of who executes, and makes one step after another.
//!
//! Physical CPUs take turns. On each CPU one of these executes: the thread that is current on the
//! vCPU that is current there; or that vCPU's kernel, if it has interrupted the thread; or the
//! hypervisor, if it has interrupted both. Each of these *agents* has a stack of its own. Before
//! every access of a core to a page, a register or a counter, [`Machine::step`] decides what else
//! happens first.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use guest_kmod::overflow::Signal;
use guest_kmod::restore::Restoration;
use hv_driver::{Demand, Driver, Pcpu, Policy};
use shared_abi::hypercall::HvQuery;
use shared_abi::ioctl::Control;
use shared_abi::limits::{MAX_SLOTS, PAGE_BYTES};
use shared_abi::sync::simulated::{Access, set_hook};
use shared_abi::{PmuCaps, ThreadPage, VcpuPage};

use crate::choice::{Action, Ask, Chooser};
use crate::contention::Contention;
use crate::coverage::Coverage;
use crate::cpu_wide::{Books, CpuWide};
use crate::fiber::{Fiber, pause};
use crate::growth::Tally;
use crate::model::SLOTS;
use crate::perf::Perf;
use crate::pmu::{EVENTS, Events, OS, OWNER_HOST, Pmu, Ring, USR, bits};
use crate::rings::ThreadRing;
use crate::rng::Rng;
use crate::search::{Marks, Object};
use crate::shape::{Kind, Shape};
use crate::trace::Step;
use crate::truth::{Looks, Moment, Sampling, Truth};

/// The privilege of an agent's present code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A thread's own code.
    User,
    /// A guest kernel with interrupts disabled: only the hypervisor can interrupt it.
    Kernel,
    /// The hypervisor with interrupts disabled: nothing else happens on this physical CPU.
    Hypervisor,
}

/// A physical CPU.
pub struct Cpu {
    pub host: usize,
    pub core: RefCell<Pcpu>,
    pub pmu: Pmu,
    pub current: Cell<Option<usize>>,
    /// Whether the hypervisor has interrupted the code that executes here, to switch to another
    /// vCPU or because of an overflow.
    pub switching: Cell<bool>,
    /// A vCPU whose fold is overdue, which only a planted bug causes.
    pub lazy: Cell<Option<usize>>,
    /// Whether the host has forbidden a domain to count and interrupts this CPU because of that.
    pub revocation: Cell<bool>,
    pub tsc_offset: u64,
    /// The number of steps made here, idle ones too.
    pub time: Cell<u64>,
    /// All events in ring 0 so far: the hypervisor's, and those of guests with rings of their own,
    /// unless the driver's counter is stopped in them.
    pub ring_0_events: Cell<Events>,
    /// Whether the driver has written a register.
    pub taken: Cell<bool>,
    /// The value of the driver's own counter when it was last read, and how many instructions there
    /// had been.
    pub cost_seen: Cell<Option<(u64, u64)>>,
    /// The number of events since counters were last folded.
    pub slice: Cell<u64>,
    /// The last TSC value that the hypervisor has read.
    pub tsc_seen: Cell<Option<u64>>,
    /// Whether the hypervisor may program counters now.
    pub may_program: Cell<bool>,
    /// Whether the hypervisor executes for an interrupt that may have come while it executed.
    pub interrupted: Cell<bool>,
    /// The vCPU whose guest executes here, or `None` if the hypervisor executes.
    pub entered: Cell<Option<usize>>,
}

/// A guest's time-stamp counter: its ratio to the host's, as a fixed-point number with
/// [`RATIO_BITS`], and the offset that is added then (APM volume 2, 15.30.5 and appendix B).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    pub ratio: u64,
    pub offset: u64,
}

/// The number of bits after the point of a ratio.
pub const RATIO_BITS: u32 = 32;

impl Clock {
    /// The host's own clock.
    pub const NATIVE: Self = Self { ratio: 1 << RATIO_BITS, offset: 0 };
}

/// The number of users of a guest.
pub const USERS: usize = 2;
/// The user for whom whole CPUs count.
pub const ROOT: usize = 0;
/// The index of a vCPU's page for perf, after those of users.
pub const PERFS: usize = USERS;
/// The number of pages of a vCPU.
pub const PAGES: usize = USERS + 1;

/// Whether the configuration that a vCPU has loaded counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// It counts: its last load has succeeded, and nothing has ended that since.
    All,
    /// The host has refused a load, and has not yet stopped what counts. The module may use it.
    Unclear,
    /// Nothing counts.
    Nothing,
}

/// The reason for which a vCPU may get an NMI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nmi {
    /// Nothing has happened since the last NMI, so this one is somebody else's.
    Unexplained,
    /// Something has happened that may have changed the vCPU's page.
    Changed,
    /// A counter has overflowed.
    Overflow,
}

/// A virtual CPU.
pub struct Vcpu {
    pub domain: usize,
    /// Its number in the domain.
    pub id: u32,
    /// Its page for each user.
    pub pages: [VcpuPage; PAGES],
    /// The page that its kernel has registered, or had registered last.
    pub shows: Cell<usize>,
    /// The page that a hypercall registers in the place of that one.
    pub shows_next: Cell<usize>,
    /// The page that was registered when its domain was moved, until it executes again.
    pub left_page: Cell<Option<usize>>,
    /// The user for whom perf's page was registered last.
    pub perfs_for: Cell<usize>,
    /// The number of registrations of each of its pages that the hypervisor holds.
    pub pins: [Cell<u32>; PAGES],
    /// The hypervisor's state of it, and the vCPU whose page it has registered.
    pub registered: RefCell<Option<(hv_driver::Vcpu, usize)>>,
    pub on: Cell<Option<usize>>,
    /// How it sees its physical CPU's time-stamp counter.
    pub clock: Cell<Clock>,
    /// Whether RDPMC exits, and faults.
    pub rdpmc_exits: Cell<bool>,
    /// The state that its kernel keeps for `kvm`.
    pub restoration: Restoration,
    /// Whether its loaded configuration counted when its guest was given to another process.
    pub counted_when_left: Cell<Counts>,
    /// Whether it has not executed since its guest was moved to another process of a host.
    pub restored: Cell<bool>,
    /// The values that its VM entries and exits load into the register that enables counters, if
    /// they do (SDM volume 3, 27.4 and 28.6).
    pub at_switch: Cell<Option<(u64, u64)>>,
    pub kernel_mode: Cell<bool>,
    /// The guest module's state of it.
    pub module: RefCell<guest_kmod::Vcpu>,
    pub shown: guest_kmod::shown::ShownWords,
    pub stats: guest_kmod::Stats,
    pub current: Cell<Option<usize>>,
    /// The thread, if any, to which its kernel has switched last, or is about to.
    pub next: Cell<Option<usize>>,
    /// Whether its kernel has to report overflows before a thread continues there.
    pub report_due: Cell<bool>,
    /// Whether its kernel has interrupted the thread.
    pub busy: Cell<bool>,
    pub online: Cell<bool>,
    /// Whether its guest was saved and restored, and its kernel has not been told yet.
    pub lost_page: Cell<bool>,
    /// Whether it needs the host's counters, and since when it has them.
    pub demand: RefCell<hv_driver::VcpuDemand>,
    /// What the driver keeps of the vCPU when its page is unregistered.
    pub window: Cell<hv_driver::Window>,
    /// The number of overflows in the pages that the vCPU has given back.
    pub overflows_before: Cell<u64>,
    /// Whether the virtual interrupt of an overflow is pending.
    pub virq: Cell<bool>,
    /// The reason for its next NMI.
    pub nmi: Cell<Nmi>,
    /// The number of overflows in the registered page at the last NMI, if one has come since the
    /// registration.
    pub overflows_seen: Cell<Option<u64>>,
    /// Whether the pending interrupt is the work that an NMI has left behind.
    pub nmi_was_taken: Cell<bool>,
    /// The observer for whom its kernel has registered a page last.
    pub observer: Cell<u32>,
    /// Whether it is asked to stop its counters if nobody counts.
    pub stop_asked: Cell<bool>,
    pub user: Cell<Events>,
    pub kernel: Cell<Events>,
    /// The interrupts that its kernel has taken and its counters have counted as instructions of
    /// user mode.
    pub surplus: Cell<Events>,
    /// Whether its loaded configuration counts.
    pub counts: Cell<Counts>,
    /// Whether its module knows that nothing counts.
    pub knows: Cell<bool>,
    /// The events in user mode while its loaded configuration counted.
    pub counted: Cell<Events>,
    pub unclear: Cell<Events>,
    pub missed: Cell<Events>,
    /// The number of steps for which nothing counted, and the step since which nothing counts.
    pub still: Cell<u64>,
    pub still_since: Cell<u64>,
    /// The sums that its page had last.
    pub sums: Cell<[u64; MAX_SLOTS]>,
    pub tsc_sum: Cell<u64>,
    /// TSC value at which it began to run.
    pub tsc_start: Cell<Option<u64>>,
    pub sampling: RefCell<Sampling>,
    /// How often the hypervisor may have written its page.
    pub disturbances: Cell<u64>,
    /// The number of disturbances when the kernel was last entered.
    pub undisturbed: Cell<u64>,
    /// The rings in which each counter that its guest has loaded may interrupt it.
    pub sampled: Cell<[u64; SLOTS]>,
    /// The events that it had when its next overflow was put off.
    pub put_off: Cell<Option<Events>>,
    /// The events of user mode that it had counted when its counters were last loaded.
    pub armed: Cell<Events>,
    /// The counters of CPU-wide counting there.
    pub cpu_wide: CpuWide,
}

impl Vcpu {
    /// Returns the page that its kernel has registered, or had registered last.
    pub fn page(&self) -> &VcpuPage {
        &self.pages[self.shows.get()]
    }

    /// Notes the reason for the next NMI.
    pub fn explain_nmi(&self, by: Nmi) {
        if self.nmi.get() != Nmi::Overflow {
            self.nmi.set(by);
        }
    }

    /// Notes whether its loaded configuration counts from this step on.
    pub fn set_counts(&self, counts: Counts, now: u64) {
        self.still.set(self.still_for(now));
        self.still_since.set(now);
        if self.counts.replace(counts) != counts {
            self.knows.set(false);
        }
    }

    /// Returns the number of steps for which it has not been sure that anything counts.
    pub fn still_for(&self, now: u64) -> u64 {
        let counts = self.counts.get() == Counts::All;
        let since = if counts { now } else { self.still_since.get() };
        self.still.get() + (now - since)
    }

    /// Returns the value that RDTSC has on the vCPU when the host's time-stamp counter is `tsc`.
    pub fn reads(&self, tsc: u64) -> u64 {
        let Clock { ratio, offset } = self.clock.get();
        let scaled = (u128::from(tsc) * u128::from(ratio)) >> RATIO_BITS;
        (scaled as u64).wrapping_add(offset)
    }

    /// Returns its own ticks between two values of the physical CPU's.
    pub fn ticks(&self, start: u64, end: u64) -> u64 {
        self.reads(end).wrapping_sub(self.reads(start))
    }
}

/// The state of a thread's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Not created yet.
    Unborn,
    /// It wants to execute.
    Ready,
    /// It is current on a vCPU.
    Current,
    /// It wants to execute, and cannot while its tracer operates its counters.
    Held,
    /// It has ended.
    Ended,
}

/// A thread of a guest.
pub struct Thread {
    pub domain: usize,
    pub tid: u32,
    /// The user whose thread it is.
    pub owner: Cell<usize>,
    /// Whether anything of it is counted, or it may still be reading what was counted before.
    pub counts: Cell<bool>,
    pub page: ThreadPage,
    pub pmu: RefCell<Option<guest_kmod::ThreadPmu>>,
    pub life: Cell<Life>,
    pub on: Cell<Option<usize>>,
    pub rng: RefCell<Rng>,
    pub user: Cell<Events>,
    /// The events of this thread that vCPUs have counted.
    pub counted: Cell<Events>,
    pub unclear: Cell<Events>,
    pub missed: Cell<Events>,
    pub truth: RefCell<Truth>,
    pub looks: RefCell<Looks>,
    /// Whether the kernel is in the middle of changing its counters.
    pub changing: Cell<bool>,
    /// How often its domain had been forbidden to count when its counters were last started, or
    /// `None` if it was forbidden then.
    pub started: Cell<Option<u64>>,
    /// How often its page may have been written.
    pub changes: Cell<u64>,
    /// How often a tracer has operated its counters.
    pub traced: Cell<u64>,
    /// How often its counters have failed.
    pub failures: Cell<u64>,
    /// How often they had failed when they were last configured.
    pub failures_before: Cell<u64>,
    /// The control that it was last given, if any.
    pub asked: Cell<Option<Control>>,
    /// The overflows that were found, but not reported to it yet.
    pub found: Cell<Option<Signal>>,
    /// The overflow of which it has got a signal, if any.
    pub signal: Cell<Option<Signal>>,
    /// Whether it may observe the whole system.
    pub admin: Cell<bool>,
    /// Whether it has been given counters.
    pub admitted: Cell<bool>,
    /// How often whole CPUs had started when its counters were last started.
    pub cpu_wide: Cell<u64>,
    /// The values that were published while it was suspended.
    pub published: RefCell<Vec<Vec<u64>>>,
    /// What others have read meanwhile, which is checked when the thread's counters are next
    /// published.
    pub claims: RefCell<Vec<Claim>>,
    /// Its ring of samples.
    pub ring: ThreadRing,
}

/// A reading by somebody else of what is published of a thread.
pub struct Claim {
    /// The number of published values before the last one, when the reading began.
    pub since: usize,
    /// The time, and the counters.
    pub values: Vec<u64>,
}

/// A domain.
pub struct Domain {
    pub kind: Kind,
    pub host: Cell<usize>,
    pub serial: Cell<u64>,
    pub vcpus: std::ops::Range<usize>,
    pub threads: std::ops::Range<usize>,
    /// Whether the CPU virtualises it: it has rings and a time-stamp counter of its own.
    pub hardware: bool,
    pub alive: Cell<bool>,
    pub allowed: Cell<bool>,
    /// The policy for it that its host has set in the driver.
    pub policy: Policy,
    /// How often the host has forbidden it to count.
    pub forbidden: Cell<u64>,
    pub counting: guest_kmod::Counting,
    /// The answer to the module's handshake.
    pub answer: Cell<Option<HvQuery>>,
    /// The capabilities of the PMU that the guest knows.
    pub caps: Cell<Option<PmuCaps>>,
    /// Whether it is asked to suspend itself, to be saved.
    pub suspending: Cell<bool>,
    /// The number of places by which its pages' frames were moved when it was restored.
    pub frames_moved: Cell<usize>,
    /// The books about which descriptor may count whole CPUs.
    pub books: Books,
    /// How many of its vCPUs need the host's counters.
    pub demand: Demand,
}

/// An agent's place on the list of agents: physical CPUs' hypervisors first, then vCPUs' kernels,
/// then threads.
pub type AgentId = usize;

pub struct Agent {
    pub fiber: RefCell<Fiber>,
    pub level: Cell<Level>,
    /// The domain it belongs to.
    pub domain: Option<usize>,
}

/// A rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The step after which it was seen.
    pub step: u64,
    /// What was found.
    pub what: String,
}

/// The machine.
pub struct Machine {
    pub shape: Shape,
    pub driver: Driver,
    pub cpus: Vec<Cpu>,
    pub vcpus: Vec<Vcpu>,
    pub threads: Vec<Thread>,
    pub domains: Vec<Domain>,
    /// What perf counts in guests.
    pub perf: Perf,
    /// The hosts whose own perf wants the counters, too.
    pub contentions: Vec<Contention>,
    pub agents: Vec<Agent>,
    pub chooser: RefCell<Chooser>,
    /// When the chooser was asked last.
    pub asked: Cell<Ask>,
    /// The next action, as decided by the agent that pauses.
    pub pending: Cell<Option<Action>>,
    /// The physical CPU whose turn it is.
    pub here: Cell<usize>,
    pub agent: Cell<Option<AgentId>>,
    pub steps: Cell<u64>,
    pub steps_max: u64,
    /// Whether nothing is simulated any more, and jobs run to their end.
    pub over: Cell<bool>,
    pub violation: RefCell<Option<Violation>>,
    pub serials: Cell<u64>,
    pub readings: Cell<u64>,
    pub tally: Cell<Tally>,
    pub coverage: Coverage,
    pub marks: Marks,
    pub trace: bool,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Machine>>> = const { RefCell::new(None) };
    /// Whether accesses to pages are steps of an agent.
    static LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// The cores call this before every access to a page.
fn on_access(address: usize, access: Access) {
    if !LISTENING.get() {
        return;
    }
    CURRENT.with_borrow(|machine| {
        if let Some(machine) = machine {
            machine.access(address, access);
        }
    });
}

/// Accesses pages without making steps.
pub fn without_steps<R>(look: impl FnOnce() -> R) -> R {
    let listening = LISTENING.replace(false);
    let result = look();
    LISTENING.set(listening);
    result
}

/// Returns whether accesses to pages are steps of an agent.
pub fn is_listening() -> bool {
    LISTENING.get()
}

/// Sets whether accesses to pages are steps of an agent from now on.
pub fn set_listening(listening: bool) {
    LISTENING.set(listening);
}

/// The events of the instruction that enters a guest.
const VMRUN: Events = [1, 1, 0, 0];

/// The events of an interrupt, on CPUs that count it.
pub const INTERRUPT: Events = [1, 0, 0, 0];

/// The events of one instruction that does nothing special.
const ONE_STEP: Events = [1, 0, 1, 0];

impl Machine {
    /// Runs the machine until it has made `steps_max` steps, everything has ended, or a rule is
    /// broken. Its fibers are taken from `fibers` and put back there.
    pub fn run(
        shape: &Shape,
        chooser: Chooser,
        steps_max: u64,
        trace: bool,
        fibers: &mut Vec<Fiber>,
    ) -> Rc<Self> {
        set_hook(on_access);
        let machine = Rc::new(crate::build::build(shape, chooser, steps_max, trace, fibers));
        CURRENT.set(Some(Rc::clone(&machine)));
        crate::build::start(&machine);
        machine.schedule();
        machine.finish();
        machine.check_pins();
        CURRENT.set(None);
        for agent in &machine.agents {
            fibers.push(agent.fiber.take());
        }
        machine
    }

    /// Makes a machine in which nothing happens by itself, and whose accesses are counted.
    pub fn at_rest(shape: &Shape) -> Rc<Self> {
        set_hook(on_access);
        let chooser = crate::growth::chooser();
        let machine =
            Rc::new(crate::build::build(shape, chooser, u64::MAX, false, &mut Vec::new()));
        CURRENT.set(Some(Rc::clone(&machine)));
        machine.come_up_all();
        LISTENING.set(true);
        machine
    }

    /// Ends counting accesses.
    pub fn finish_at_rest(&self) {
        LISTENING.set(false);
        CURRENT.set(None);
    }

    /// Brings all physical CPUs up, one after the other, while nobody else does anything.
    pub fn come_up_all(&self) {
        self.over.set(true);
        for cpu in 0..self.cpus.len() {
            self.here.set(cpu);
            self.come_up();
        }
        self.here.set(0);
        self.over.set(self.violation.borrow().is_some());
    }

    /// Lets agents take turns.
    fn schedule(self: &Rc<Self>) {
        while !self.over.get() {
            match self.runner() {
                Some(agent) => self.resume(agent),
                None => {
                    self.count_step();
                    self.pending.set(self.choose(true));
                    if self.pending.get().is_none() {
                        return;
                    }
                }
            }
            if let Some(action) = self.pending.take()
                && !self.over.get()
            {
                self.act(action);
            }
        }
    }

    /// Lets every job run to its end, without any action in between.
    fn finish(&self) {
        self.over.set(true);
        for agent in 0..self.agents.len() {
            self.retire_agent(agent);
        }
    }

    /// Ends an agent's job. Until the job's end, nothing that it does has an effect.
    pub fn retire_agent(&self, agent: AgentId) {
        if let Some(cpu) = self.cpu_of(agent) {
            self.here.set(cpu);
        }
        if self.agents[agent].fiber.borrow().is_busy() {
            self.resume(agent);
        }
    }

    /// Returns the agent that executes on the CPU whose turn it is.
    pub fn runner(&self) -> Option<AgentId> {
        let cpu = &self.cpus[self.here.get()];
        if cpu.switching.get() {
            return Some(self.here.get());
        }
        let vcpu = cpu.current.get()?;
        if self.vcpus[vcpu].busy.get() {
            return Some(self.kernel_agent(vcpu));
        }
        self.vcpus[vcpu].current.get().map(|thread| self.thread_agent(thread))
    }

    /// Returns the CPU on which an agent executes, if any.
    fn cpu_of(&self, agent: AgentId) -> Option<usize> {
        let Some(vcpu) = agent.checked_sub(self.cpus.len()) else { return Some(agent) };
        match vcpu.checked_sub(self.vcpus.len()) {
            None => self.vcpus[vcpu].on.get(),
            Some(thread) => self.threads[thread].on.get().and_then(|on| self.vcpus[on].on.get()),
        }
    }

    /// Returns the agent of a vCPU's kernel.
    pub fn kernel_agent(&self, vcpu: usize) -> AgentId {
        self.cpus.len() + vcpu
    }

    /// Returns the agent of a thread.
    pub fn thread_agent(&self, thread: usize) -> AgentId {
        self.cpus.len() + self.vcpus.len() + thread
    }

    fn resume(&self, agent: AgentId) {
        self.agent.set(Some(agent));
        LISTENING.set(true);
        self.agents[agent].fiber.borrow_mut().resume();
        LISTENING.set(false);
        self.agent.set(None);
    }

    /// Returns whether nothing that the present agent does has an effect any more.
    pub fn is_gone(&self) -> bool {
        let domain = self.agent.get().and_then(|agent| self.agents[agent].domain);
        self.over.get() || domain.is_some_and(|domain| !self.domains[domain].alive.get())
    }

    /// Returns the level at which the CPU whose turn it is executes, or `None` if it is idle.
    pub fn level(&self) -> Option<Level> {
        self.runner().map(|agent| self.agents[agent].level.get())
    }

    /// Makes the present agent execute `run` at `level`.
    pub fn at_level<R>(&self, level: Level, run: impl FnOnce() -> R) -> R {
        let Some(agent) = self.agent.get() else { return run() };
        let before = self.agents[agent].level.replace(level);
        let result = run();
        self.agents[agent].level.set(before);
        result
    }

    /// Returns the vCPU that executes the present agent.
    pub fn vcpu_here(&self) -> usize {
        self.cpus[self.here.get()].current.get().expect("a guest executes on a vCPU")
    }

    fn access(&self, address: usize, access: Access) {
        if self.is_gone() {
            return;
        }
        let level = self.level();
        if level == Some(Level::Hypervisor) && access == Access::Load {
            self.fail("the hypervisor reads a shared page".into());
        }
        if access == Access::Store && level != Some(Level::Hypervisor) {
            self.check_store(level, address);
        }
        self.step(Step::Page(address, access));
        if level == Some(Level::Kernel) && access == Access::Store && !self.is_gone() {
            self.note_publication(address);
        }
    }

    /// Checks a store of anybody but the hypervisor: only a guest's kernel may store, and only to
    /// pages and rings of threads, and to pages of CPU-wide counters. The crate's text about store
    /// buffers relies on that.
    fn check_store(&self, level: Option<Level>, address: usize) {
        let own = matches!(self.page_at(address), Some(Object::Thread(_) | Object::Module(_)));
        if level != Some(Level::Kernel) || !own {
            self.fail(format!("{level:?} stores to a page that it must only read"));
        }
    }

    /// Notes that the kernel here is about to store to a thread's page.
    fn note_publication(&self, address: usize) {
        if self.threads.iter().any(|thread| thread.ring.has(address)) {
            return;
        }
        let vcpu = &self.vcpus[self.vcpu_here()];
        vcpu.sampling.borrow_mut().publish();
        let Some(thread) = vcpu.current.get().map(|thread| &self.threads[thread]) else { return };
        if address == (&raw const thread.page.error).addr() {
            thread.failures.set(thread.failures.get() + 1);
        } else if address == (&raw const thread.page.counters).addr() {
            thread.failures_before.set(thread.failures.get());
        }
    }

    /// Returns the page that an address lies in.
    pub fn page_at(&self, address: usize) -> Option<Object> {
        let lies_in = |page: usize| (page..page + PAGE_BYTES).contains(&address);
        let vcpu = self
            .vcpus
            .iter()
            .position(|vcpu| vcpu.pages.iter().any(|page| lies_in((&raw const *page).addr())));
        let is_threads = |t: &Thread| lies_in((&raw const t.page).addr()) || t.ring.has(address);
        let thread = self.threads.iter().position(is_threads);
        let cpu_wide =
            || self.vcpus.iter().position(|v| lies_in((&raw const v.cpu_wide.page).addr()));
        let vcpu = vcpu.map(Object::VcpuPage);
        vcpu.or(thread.map(Object::Thread)).or_else(|| cpu_wide().map(Object::Module))
    }

    fn count_step(&self) {
        let cpu = &self.cpus[self.here.get()];
        cpu.time.set(cpu.time.get() + 1);
        let steps = self.steps.get() + 1;
        self.steps.set(steps);
        if steps >= self.steps_max {
            self.over.set(true);
        }
    }

    /// Notes the object that a step touches, and whether the step changes it.
    fn touch_by(&self, step: Step) {
        let cpu = Object::Cpu(self.here.get());
        match step {
            Step::Page(address, access) => {
                if let Some(page) = self.page_at(address) {
                    self.touch(page, access == Access::Store);
                }
            }
            Step::Rdpmc(_) | Step::Rdtsc | Step::Rdmsr(_) => self.touch(cpu, false),
            Step::Wrmsr(..) | Step::Hypercall(_) | Step::Note(_) => self.touch(cpu, true),
        }
    }

    /// The present agent calls this before each of its acts. Everything else that has to happen
    /// before the act happens during this call.
    pub fn step(&self, step: Step) {
        if self.is_gone() {
            return;
        }
        self.count_step();
        self.tally.set(self.tally.get().count(step));
        let over = self.over.get();
        self.enter_or_exit();
        if !over && self.is_gone() {
            // The agent has ended in a step on the way into the guest, and has paused there.
            return;
        }
        if self.shape.noisy {
            self.retire(&ONE_STEP);
        }
        if self.trace {
            crate::trace::print(self, step);
        }
        match &*self.chooser.borrow() {
            Chooser::Search(_) => self.touch_by(step),
            Chooser::Guided { .. } => self.cover(step),
            _ => (),
        }
        self.audit_here();
        if self.over.get() {
            return pause();
        }
        let action = self.choose(false);
        if action.is_some() {
            self.pending.set(action);
            pause();
        }
    }

    /// Returns the vCPU whose guest executes on the CPU whose turn it is, or `None` if the
    /// hypervisor executes.
    fn guest_here(&self) -> Option<usize> {
        let guest = !matches!(self.level(), None | Some(Level::Hypervisor));
        self.cpus[self.here.get()].current.get().filter(|_| guest)
    }

    /// Makes the hardware load the register that enables counters, if a guest is entered or exited.
    fn enter_or_exit(&self) {
        let (cpu, guest) = (&self.cpus[self.here.get()], self.guest_here());
        let before = cpu.entered.get();
        if before == guest {
            return;
        }
        cpu.entered.set(None);
        let at_switch = |vcpu: Option<usize>| self.vcpus[vcpu?].at_switch.get();
        if let Some((_, outside)) = at_switch(before) {
            cpu.pmu.load_global(outside);
        }
        let Some(entered) = guest else { return };
        self.enter_by_vmrun(entered);
        cpu.entered.set(guest);
        if let Some((inside, _)) = at_switch(guest) {
            cpu.pmu.load_global(inside);
        }
    }

    /// Returns the ring that a guest is in.
    fn ring_of(&self, vcpu: &Vcpu, kernel: bool) -> Ring {
        match (self.domains[vcpu.domain].hardware, kernel) {
            (false, _) => Ring::Three,
            (true, true) => Ring::GuestsZero,
            (true, false) => Ring::GuestsThree,
        }
    }

    /// Enters a guest by an instruction that its own counters may count.
    fn enter_by_vmrun(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        if !self.enters_here() || self.is_gone() {
            return;
        }
        let kernel = self.level() == Some(Level::Kernel);
        self.take_entry_back(index, kernel);
        if self.is_gone() {
            return;
        }
        let cpu = &self.cpus[self.here.get()];
        if kernel {
            cpu.ring_0_events.set(add(cpu.ring_0_events.get(), &VMRUN));
        }
        cpu.pmu.retire(self.ring_of(vcpu, kernel), &VMRUN, 1 << vcpu.domain);
    }

    /// Interrupts the PV guest that executes here, if any, by an interrupt that its own counters
    /// may count. The present agent is the hypervisor's own.
    pub fn interrupt_pv_guest(&self) {
        let cpu = &self.cpus[self.here.get()];
        let counts = |index: &usize| {
            self.shape.counts_interrupts && !self.domains[self.vcpus[*index].domain].hardware
        };
        let Some(index) = cpu.entered.get().filter(counts) else { return };
        cpu.pmu.retire(Ring::Three, &INTERRUPT, 1 << self.vcpus[index].domain);
        self.take_interrupt_back(index);
    }

    /// Interrupts user mode of the guest that executes here, if its counters count interrupts that
    /// its own kernel takes. Returns whether they do. The present agent is the guest's kernel.
    pub fn interrupt_own_guest(&self, index: usize) -> bool {
        let vcpu = &self.vcpus[index];
        let counts = self.shape.counts_interrupts && self.domains[vcpu.domain].hardware;
        if counts {
            self.enter_or_exit();
            vcpu.surplus.set(add(vcpu.surplus.get(), &INTERRUPT));
            let ring = self.ring_of(vcpu, false);
            self.cpus[self.here.get()].pmu.retire(ring, &INTERRUPT, 1 << vcpu.domain);
        }
        counts
    }

    /// Returns whether a guest is being entered here whose counters count the entry. The driver
    /// takes the entry back before the counters count it.
    pub fn enters_here(&self) -> bool {
        let Some(guest) = self.guest_here() else { return false };
        let counts = self.shape.counts_entries && self.domains[self.vcpus[guest].domain].hardware;
        counts && self.cpus[self.here.get()].entered.get() != Some(guest)
    }

    /// Makes the present agent execute something that causes `events`.
    pub fn retire(&self, events: &Events) {
        self.enter_or_exit();
        let cpu = &self.cpus[self.here.get()];
        let level = self.level();
        let Some(vcpu) = self.guest_here().map(|vcpu| &self.vcpus[vcpu]) else {
            cpu.ring_0_events.set(add(cpu.ring_0_events.get(), events));
            return cpu.pmu.retire(Ring::Zero, events, OWNER_HOST);
        };
        match level {
            Some(Level::Kernel) => vcpu.kernel.set(add(vcpu.kernel.get(), events)),
            _ => {
                let thread = vcpu.current.get().map(|thread| &self.threads[thread]);
                vcpu.user.set(add(vcpu.user.get(), events));
                if let Some(thread) = thread {
                    thread.user.set(add(thread.user.get(), events));
                }
                let own = thread.map(|own| (&own.counted, &own.unclear, &own.missed));
                let ledgers = [Some((&vcpu.counted, &vcpu.unclear, &vcpu.missed)), own];
                for (counted, unclear, missed) in ledgers.into_iter().flatten() {
                    match vcpu.counts.get() {
                        Counts::All => counted.set(add(counted.get(), events)),
                        Counts::Unclear => unclear.set(add(unclear.get(), events)),
                        Counts::Nothing if vcpu.knows.get() => {
                            missed.set(add(missed.get(), events));
                        }
                        Counts::Nothing => (),
                    }
                }
            }
        }
        let kernel = level == Some(Level::Kernel);
        let ring = self.ring_of(vcpu, kernel);
        if ring == Ring::GuestsZero && vcpu.at_switch.get().is_none() {
            cpu.ring_0_events.set(add(cpu.ring_0_events.get(), events));
        }
        self.check_strangers(cpu, vcpu, ring, if kernel { OS } else { USR });
        cpu.slice.set(cpu.slice.get() + events.iter().max().unwrap_or(&0));
        cpu.pmu.retire(ring, events, 1 << vcpu.domain);
    }

    /// Checks that a counter which can interrupt counts only while a vCPU executes that has asked
    /// for it, and only in the modes that the vCPU has asked for.
    fn check_strangers(&self, cpu: &Cpu, vcpu: &Vcpu, ring: Ring, mode: u64) {
        let asked = vcpu.sampled.get();
        if let Some(counter) = bits(cpu.pmu.sampling(ring)).find(|&c| asked[c] & mode == 0) {
            let domain = vcpu.domain;
            self.fail(format!("counter {counter} can interrupt stranger domain {domain}"));
        }
    }

    /// Returns the time-stamp counter of the CPU whose turn it is.
    pub fn tsc(&self) -> u64 {
        let cpu = &self.cpus[self.here.get()];
        cpu.tsc_offset.wrapping_add(cpu.time.get())
    }

    /// Returns the time-stamp counter as a vCPU that executes here reads it.
    pub fn guest_tsc(&self, vcpu: usize) -> u64 {
        self.vcpus[vcpu].reads(self.tsc())
    }

    /// Returns for how many TSC ticks, of its own, a running vCPU has run.
    pub fn vcpu_tsc(&self, vcpu: usize) -> u64 {
        let vcpu = &self.vcpus[vcpu];
        let running = vcpu.tsc_start.get().map_or(0, |start| vcpu.ticks(start, self.tsc()));
        vcpu.tsc_sum.get().wrapping_add(running)
    }

    /// Returns the ledgers, as they are now, of a thread on a vCPU.
    pub fn moment(&self, thread: Option<usize>, vcpu: usize) -> Moment {
        Moment {
            thread_user: thread.map_or([0; EVENTS], |thread| self.threads[thread].user.get()),
            vcpu_user: self.vcpus[vcpu].user.get(),
            vcpu_kernel: self.vcpus[vcpu].kernel.get(),
            vcpu_surplus: self.vcpus[vcpu].surplus.get(),
        }
    }

    /// Notes that a rule is broken.
    pub fn fail(&self, what: String) {
        let mut violation = self.violation.borrow_mut();
        if violation.is_none() {
            *violation = Some(Violation { step: self.steps.get(), what });
        }
        self.over.set(true);
    }
}

pub fn add(mut sum: Events, events: &Events) -> Events {
    for (sum, event) in sum.iter_mut().zip(events) {
        *sum = sum.wrapping_add(*event);
    }
    sum
}
