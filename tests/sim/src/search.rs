// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tries every interleaving of a small machine with a bounded number of preemptions.
//!
//! Each thread executes one program, which is a few operations long, on a few CPUs. A preemption is
//! an interruption by the hypervisor, by the guest's scheduler or by the choice of the physical CPU
//! that executes next. The search covers each order of execution with at most as many preemptions
//! as a scope says. An overflow's interrupt, and the guest's virtual one, come as soon as they can,
//! or after a preemption that comes first. The search does not cover more preemptions, longer
//! programs, other configurations, or domains that are created, destroyed, moved or forbidden:
//! seeds (`run`) and the guided search (`guided`) only sample those. States are distinguished by a
//! 64-bit number: it is improbable, but not impossible, that two of some millions have the same.
//!
//! A machine cannot be copied in the middle of a core's function, so each branch is reached by
//! running from the start again. Two runs that order all accesses to the same object alike are in
//! the same state, whatever the order of other accesses. The state's [`Marks`] represent that
//! order. The search does not continue from a state that it has already reached with as many
//! preemptions left.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use shared_abi::CounterConfig;

use crate::choice::{Action, Chooser};
use crate::machine::{Life, Machine, Violation};
use crate::model::PERIOD_TOLD;
use crate::pmu::USR;
use crate::run::Runner;
use crate::shape::{DomainShape, Kind, Op, Program, Shape, evntsel, quiet};

/// States that need not be explored again, with the preemptions that were left.
type Visited = HashSet<(u64, u32)>;

/// The choices that were made, each as an index and the number of possibilities.
pub(crate) type Choices = Vec<(u32, u32)>;

/// One way through the tree of choices.
pub struct Path {
    choices: Choices,
    next: usize,
    preemptions_left: u32,
    visited: Rc<RefCell<Visited>>,
}

impl Path {
    /// Returns what happens before the next step.
    pub fn choose(&mut self, machine: &Machine, forced: bool) -> Option<Action> {
        let ready = machine.vcpus.iter().all(|vcpu| vcpu.online.get());
        let all = forced || self.preemptions_left > 0 && ready;
        if !all && !machine.has_interrupt() {
            return None;
        }
        let mut options: Vec<Action> =
            machine.options().into_iter().map(|option| option.1).collect();
        if !all {
            options.retain(|&action| comes_by_itself(action));
        }
        if forced {
            // Threads begin when all vCPUs are online.
            let early = |action| !ready && matches!(action, Action::Schedule(_));
            options.retain(|&action| machine.is_progress(action) && !early(action));
            // An idle vCPU that has something to do does it. Otherwise it could be switched for
            // ever.
            let begins = |action: &Action| matches!(action, Action::Schedule(_) | Action::Online);
            if options.iter().any(begins) {
                options.retain(begins);
            }
        }
        // There is one more choice than options: to continue, unless an interrupt has to be taken.
        let due = options.iter().any(|&action| comes_by_itself(action));
        if due && !forced {
            options.sort_by_key(|&action| !comes_by_itself(action));
        }
        let goes_on = !forced && !due;
        let branches = (options.len() + usize::from(goes_on)) as u32;
        let chosen = self.branch(machine, branches)?;
        let index = if goes_on { chosen.checked_sub(1) } else { Some(chosen) };
        let action = options.get(index? as usize).copied();
        let preempts = action.is_some_and(|action| !comes_by_itself(action));
        self.preemptions_left -= u32::from(!forced && preempts);
        action
    }

    fn branch(&mut self, machine: &Machine, branches: u32) -> Option<u32> {
        if branches <= 1 {
            return (branches == 1).then_some(0);
        }
        if let Some(&(chosen, _)) = self.choices.get(self.next) {
            self.next += 1;
            return Some(chosen);
        }
        if !self.visited.borrow_mut().insert((machine.fingerprint(), self.preemptions_left)) {
            machine.over.set(true);
            return None;
        }
        self.choices.push((0, branches));
        self.next += 1;
        Some(0)
    }

    /// Returns the choices on the way.
    pub(crate) fn take_choices(&mut self) -> Choices {
        std::mem::take(&mut self.choices)
    }

    /// Changes the choices to those of the next path. Returns false if there is none.
    fn advance(choices: &mut Choices) -> bool {
        while let Some((chosen, branches)) = choices.pop() {
            if chosen + 1 < branches {
                choices.push((chosen + 1, branches));
                return true;
            }
        }
        false
    }
}

/// Returns whether an action is an interrupt. Interrupts are not preemptions, since they come
/// sooner or later.
const fn comes_by_itself(action: Action) -> bool {
    matches!(action, Action::Pmi | Action::Revoke | Action::Virq)
}

impl Machine {
    /// Returns whether an interrupt waits for the CPU whose turn it is, or for its vCPU.
    fn has_interrupt(&self) -> bool {
        let cpu = &self.cpus[self.here.get()];
        let virq = cpu.current.get().is_some_and(|vcpu| self.vcpus[vcpu].virq.get());
        virq || cpu.pmu.interrupts() || cpu.revocation.get()
    }

    /// Returns whether the action brings an idle physical CPU nearer to the end of the machine's
    /// work.
    fn is_progress(&self, action: Action) -> bool {
        match action {
            Action::Cpu(cpu) => {
                let here = self.here.replace(cpu);
                let busy = self.runner().is_some();
                self.here.set(here);
                busy
            }
            Action::Switch(Some(vcpu)) => {
                let vcpu = &self.vcpus[vcpu];
                let ready = |thread: usize| self.threads[thread].life.get() == Life::Ready;
                let waiting = self.domains[vcpu.domain].threads.clone().any(ready);
                vcpu.busy.get() || vcpu.current.get().is_some() || !vcpu.online.get() || waiting
            }
            Action::Schedule(Some(_))
            | Action::Online
            | Action::Pmi
            | Action::Revoke
            | Action::Virq => true,
            _ => false,
        }
    }

    /// Returns a number for the state that the machine is in.
    fn fingerprint(&self) -> u64 {
        let mut all = self
            .marks
            .objects
            .borrow()
            .iter()
            .chain(&*self.marks.agents.borrow())
            .fold(self.here.get() as u64, |all, &mark| mix(all, mark));
        for cpu in &self.cpus {
            all = mix(all, place(cpu.current.get()) << 1 | u64::from(cpu.switching.get()));
        }
        for vcpu in &self.vcpus {
            let flags = u64::from(vcpu.kernel_mode.get()) << 1 | u64::from(vcpu.busy.get());
            all = mix(all, place(vcpu.current.get()) << 2 | flags);
        }
        all
    }
}

fn place(index: Option<usize>) -> u64 {
    index.map_or(0, |index| index as u64 + 1)
}

fn mix(hash: u64, value: u64) -> u64 {
    let mixed = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ value >> 7
}

/// An object that an agent's step touches.
#[derive(Clone, Copy, Debug)]
pub enum Object {
    /// The registers and the driver's state of a physical CPU.
    Cpu(usize),
    /// A vCPU's page, and the driver's state of the vCPU, which changes only with the page.
    VcpuPage(usize),
    /// The module's state of a vCPU.
    Module(usize),
    /// A thread's page and counters.
    Thread(usize),
}

/// The order of accesses so far, as one number for each object and each agent.
#[derive(Default)]
pub struct Marks {
    objects: RefCell<Vec<u64>>,
    agents: RefCell<Vec<u64>>,
}

impl Marks {
    /// Makes marks, which are kept only for a search.
    pub fn new(chooser: &Chooser, objects: usize, agents: usize) -> Self {
        match chooser {
            Chooser::Search(_) => Self {
                objects: RefCell::new((0..objects as u64).collect()),
                agents: RefCell::new((0..agents as u64).collect()),
            },
            _ => Self::default(),
        }
    }
}

impl Machine {
    /// Notes that an agent begins a job. Its later states then differ from those of other jobs.
    pub fn begin(&self, agent: usize, job: u64) {
        if let Some(own) = self.marks.agents.borrow_mut().get_mut(agent) {
            *own = mix(*own, job);
        }
    }

    /// Notes that the present agent reads an object, or changes it.
    pub fn touch(&self, object: Object, changes: bool) {
        let mut agents = self.marks.agents.borrow_mut();
        let Some(own) = self.agent.get().and_then(|agent| agents.get_mut(agent)) else { return };
        let (cpus, vcpus) = (self.cpus.len(), self.vcpus.len());
        let index = match object {
            Object::Cpu(cpu) => cpu,
            Object::VcpuPage(vcpu) => cpus + vcpu,
            Object::Module(vcpu) => cpus + vcpus + vcpu,
            Object::Thread(thread) => cpus + 2 * vcpus + thread,
        };
        let mark = &mut self.marks.objects.borrow_mut()[index];
        *own = mix(*own, mix(*mark, index as u64));
        if changes {
            *mark = mix(*own, 1);
        }
    }
}

/// A machine to search, and how much of it.
pub struct Scope {
    /// A description of the machine.
    pub name: &'static str,
    shape: Shape,
    /// The number of preemptions in each interleaving.
    pub preemptions: u32,
}

/// The results of a search.
#[derive(Debug, Default)]
pub struct Search {
    /// States in which there was something to decide.
    pub states: usize,
    /// Runs from the start.
    pub runs: u64,
    /// Steps made in all runs.
    pub steps: u64,
    /// The first rule that was broken.
    pub violation: Option<Violation>,
}

/// Tries every interleaving of a small machine. The number of preemptions is at most the scope's,
/// or `preemptions` if that is given.
pub fn search(scope: &Scope, preemptions: Option<u32>) -> Search {
    let mut runner = Runner::default();
    let mut result = Search::default();
    let visited = Rc::new(RefCell::new(Visited::new()));
    let mut choices = Vec::new();
    loop {
        let path = Path {
            choices,
            next: 0,
            preemptions_left: preemptions.unwrap_or(scope.preemptions),
            visited: Rc::clone(&visited),
        };
        let (outcome, made) = runner.explore(&scope.shape, path);
        choices = made;
        result.runs += 1;
        result.steps += outcome.steps;
        result.violation = outcome.violation;
        if result.violation.is_some() || !Path::advance(&mut choices) {
            result.states = visited.borrow().len();
            return result;
        }
    }
}

/// Makes a machine whose threads run a program, which counts its instructions and time.
fn small(cpus: usize, domains: &[(usize, usize)], program: Vec<Op>) -> Shape {
    Shape {
        domains: domains
            .iter()
            .map(|&(vcpus, threads)| DomainShape {
                kind: Kind::Good,
                vcpus,
                threads,
                idle: 0,
                spare: false,
                hardware: false,
            })
            .collect(),
        program: Program::Fixed(program),
        ..quiet(cpus)
    }
}

/// Returns a program that starts a counter, executes and reads it once.
fn counts() -> Vec<Op> {
    let counter = CounterConfig { evntsel: evntsel(0, USR), ..CounterConfig::default() };
    vec![Op::Start(counter), Op::Execute(100), Op::Read]
}

/// Returns a program that starts a counter which overflows when the program reads it, lets the
/// counter continue, and reads it again.
fn samples() -> Vec<Op> {
    let counter = CounterConfig {
        evntsel: evntsel(0, USR),
        mode: 1,
        period: PERIOD_TOLD,
        ..CounterConfig::default()
    };
    vec![Op::Start(counter), Op::Execute(PERIOD_TOLD), Op::Read, Op::GoOn, Op::Read]
}

/// Returns the machines that are searched. If `far`, they take more time than an ordinary test has.
pub fn scopes(far: bool) -> Vec<Scope> {
    let scope = |name, cpus, domains: &[_], program: fn() -> _, near, further| Scope {
        name,
        shape: small(cpus, domains, program()),
        preemptions: if far { further } else { near },
    };
    vec![
        scope("2 threads on 1 vCPU on 1 CPU", 1, &[(1, 2)], counts, 2, 2),
        scope("2 domains of 1 thread on 1 CPU", 1, &[(1, 1), (1, 1)], counts, 1, 2),
        scope("2 threads on 2 vCPUs on 2 CPUs", 2, &[(2, 2)], counts, 1, 2),
        scope("2 domains of 1 thread on 2 CPUs", 2, &[(1, 1), (1, 1)], counts, 1, 2),
        scope("2 sampling threads on 1 vCPU on 1 CPU", 1, &[(1, 2)], samples, 2, 2),
        scope("2 domains of 1 sampling thread on 1 CPU", 1, &[(1, 1), (1, 1)], samples, 1, 2),
        scope("1 sampling thread on 2 vCPUs on 2 CPUs", 2, &[(2, 1)], samples, 1, 2),
    ]
}
