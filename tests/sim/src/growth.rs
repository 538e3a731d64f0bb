// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks whether the cost of an operation depends on how large the machine is.
//!
//! Nothing is preempted here: each operation is done once, on a machine that is at rest, and every
//! access that it makes to a page, a counter or a register, and every hypercall, is counted.

use std::rc::Rc;

use shared_abi::CounterConfig;
use shared_abi::ioctl::{CONTROL_TSC, Control};

use crate::choice::{Action, Chooser};
use crate::machine::{AgentId, Life, Machine};
use crate::model::PERIOD_TOLD;
use crate::pmu::USR;
use crate::shape::{DomainShape, Kind, Shape, evntsel, quiet};
use crate::trace::Step;

/// The number of accesses of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Loads and stores of atomics in shared pages.
    pub accesses: u64,
    /// RDPMC.
    pub rdpmc: u64,
    /// RDTSC.
    pub rdtsc: u64,
    /// RDMSR and WRMSR.
    pub msr: u64,
    /// Hypercalls.
    pub hypercalls: u64,
}

impl Tally {
    /// Counts a step.
    pub fn count(mut self, step: Step) -> Self {
        match step {
            Step::Page(..) => self.accesses += 1,
            Step::Rdpmc(_) => self.rdpmc += 1,
            Step::Rdtsc => self.rdtsc += 1,
            Step::Rdmsr(_) | Step::Wrmsr(..) => self.msr += 1,
            Step::Hypercall(_) => self.hypercalls += 1,
            Step::Note(_) => (),
        }
        self
    }

    fn since(self, before: Self) -> Self {
        Self {
            accesses: self.accesses - before.accesses,
            rdpmc: self.rdpmc - before.rdpmc,
            rdtsc: self.rdtsc - before.rdtsc,
            msr: self.msr - before.msr,
            hypercalls: self.hypercalls - before.hypercalls,
        }
    }
}

/// The operations that are measured, each a line of the table.
pub const OPERATIONS: [&str; 5] =
    ["vCPU out, in", "thread switch", "thread moves", "read", "overflow"];

/// A machine's size.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Domains.
    pub domains: usize,
    /// Virtual CPUs of each domain.
    pub vcpus: usize,
    /// Threads of each domain.
    pub threads: usize,
}

/// The sizes that are compared. A thread moves only if there are two vCPUs.
pub const SIZES: [Size; 10] = [
    Size { domains: 1, vcpus: 2, threads: 10 },
    Size { domains: 1, vcpus: 16, threads: 10 },
    Size { domains: 1, vcpus: 128, threads: 10 },
    Size { domains: 1, vcpus: 512, threads: 10 },
    Size { domains: 8, vcpus: 2, threads: 10 },
    Size { domains: 64, vcpus: 2, threads: 10 },
    // A set of owners has room for 126 domains.
    Size { domains: 126, vcpus: 2, threads: 10 },
    Size { domains: 1, vcpus: 2, threads: 100 },
    Size { domains: 1, vcpus: 2, threads: 1_000 },
    Size { domains: 1, vcpus: 2, threads: 10_000 },
];

/// Measures what every operation costs on a machine of this size.
///
/// # Errors
///
/// The rule that was broken.
pub fn measure(size: Size) -> Result<[Tally; 5], String> {
    let domain = DomainShape {
        kind: Kind::Good,
        vcpus: size.vcpus,
        threads: size.threads,
        idle: 0,
        spare: false,
        hardware: false,
    };
    let machine = Machine::at_rest(&shape(vec![domain; size.domains]));
    let tallies = Bench(&machine).run();
    machine.finish_at_rest();
    let violation = machine.violation.borrow_mut().take();
    violation.map_or(Ok(tallies), |violation| Err(violation.what))
}

fn shape(domains: Vec<DomainShape>) -> Shape {
    Shape { domains, ..quiet(1) }
}

/// A machine on which the operations are executed in order.
struct Bench<'a>(&'a Rc<Machine>);

impl Bench<'_> {
    fn acting<R>(&self, agent: AgentId, run: impl FnOnce() -> R) -> R {
        self.0.agent.set(Some(agent));
        let result = run();
        self.0.agent.set(None);
        result
    }

    fn switch(&self, next: Option<usize>) {
        self.0.cpus[0].switching.set(true);
        if let Some(next) = next {
            self.0.vcpus[next].on.set(Some(0));
        }
        self.acting(0, || self.0.switch_vcpu(next, false));
    }

    fn interrupt(&self, vcpu: usize, action: Action) {
        self.0.vcpus[vcpu].busy.set(true);
        if let Action::Schedule(Some(next)) = action {
            self.0.threads[next].life.set(Life::Current);
            self.0.threads[next].on.set(Some(vcpu));
        }
        let machine = Rc::clone(self.0);
        self.acting(self.0.kernel_agent(vcpu), || machine.interrupt(vcpu, action));
    }

    fn user(&self, thread: usize, run: impl FnOnce(&Machine)) {
        self.acting(self.0.thread_agent(thread), || run(self.0));
    }

    fn costs(&self, operation: impl FnOnce()) -> Tally {
        let before = self.0.tally.get();
        operation();
        self.0.tally.get().since(before)
    }

    /// Makes every thread count on the first vCPU of its domain, and then measures the last ones.
    fn run(&self) -> [Tally; 5] {
        for domain in &self.0.domains {
            domain.alive.set(true);
            domain.serial.set(self.0.new_serial());
            for vcpu in domain.vcpus.clone() {
                self.switch(Some(vcpu));
                self.interrupt(vcpu, Action::Online);
            }
            self.switch(Some(domain.vcpus.start));
            for thread in domain.threads.clone() {
                self.0.threads[thread].life.set(Life::Ready);
                self.interrupt(domain.vcpus.start, Action::Schedule(Some(thread)));
                self.user(thread, |machine| _ = machine.create_counters(thread));
                self.user(thread, |machine| machine.control(thread, &counting(0)));
            }
        }
        let last = self.0.domains.last().expect("a machine has a domain");
        let (here, there) = (last.vcpus.start, last.vcpus.end - 1);
        let (one, other) = (last.threads.end - 1, last.threads.end - 2);
        let out_and_in = self.costs(|| {
            self.switch(None);
            self.switch(Some(here));
        });
        let switch = self.costs(|| self.interrupt(here, Action::Schedule(Some(other))));
        let read = self.costs(|| self.user(other, |machine| machine.read(other)));
        // The last vCPU has already loaded the configuration.
        self.interrupt(here, Action::Schedule(None));
        self.switch(Some(there));
        self.interrupt(there, Action::Schedule(Some(one)));
        self.interrupt(there, Action::Schedule(None));
        let migration = self.costs(|| self.interrupt(there, Action::Schedule(Some(other))));
        self.user(other, |machine| machine.control(other, &counting(PERIOD_TOLD)));
        let overflow = self.costs(|| {
            self.user(other, |machine| machine.retire(&[PERIOD_TOLD, 0, 0, 0]));
            self.0.cpus[0].switching.set(true);
            self.acting(0, || self.0.take_pmi());
            self.interrupt(there, Action::Virq);
            self.user(other, |machine| machine.go_on(other));
        });
        [out_and_in, switch, migration, read, overflow]
    }
}

/// Returns a control that counts user-mode instructions and time, and samples if there is a period.
fn counting(period: u64) -> Control {
    let samples = u32::from(period > 0);
    let mut control =
        Control { flags: CONTROL_TSC, counters: 1, signal: 29 * samples, ..Control::default() };
    control.counter[0] = CounterConfig {
        evntsel: evntsel(0, USR),
        mode: samples,
        period,
        ..CounterConfig::default()
    };
    control
}

/// Returns a chooser that decides nothing, for a machine at rest.
pub fn chooser() -> Chooser {
    Chooser::replay(Vec::new())
}
