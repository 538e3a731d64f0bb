// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Lists the actions that can happen next, and decides which of them happens.

use crate::machine::{Level, Life, Machine};
use crate::rng::Rng;
use crate::search::Path;
use crate::shape::Kind;

/// Something that happens to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Another physical CPU, with this number, executes.
    Cpu(usize),
    /// The hypervisor switches to this vCPU, or to none.
    Switch(Option<usize>),
    /// The hypervisor switches to this vCPU, whose segments cannot be loaded, so that its kernel is
    /// called.
    SwitchFailing(usize),
    /// The guest kernel is interrupted and switches to this thread, or to none.
    Schedule(Option<usize>),
    /// The guest kernel is interrupted, and returns.
    Tick,
    /// The PMU interrupts this physical CPU.
    Pmi,
    /// The host's inter-processor interrupt comes, because a domain was forbidden to count.
    Revoke,
    /// This physical CPU, which is idle, goes offline and comes back.
    Replug,
    /// The guest kernel takes the virtual interrupt of an overflow.
    Virq,
    /// The guest kernel takes an NMI that is not the driver's.
    Nmi,
    /// The guest kernel stops its counters if nobody counts.
    StopIdle,
    /// The guest kernel is interrupted to start or stop CPU-wide counting there.
    CpuWide,
    /// The guest kernel takes the vCPU offline.
    Offline,
    /// The guest kernel takes the vCPU online.
    Online,
    /// The host forbids the domain to count, or allows it again.
    Policy(usize),
    /// The host asks the domain to suspend itself.
    Suspend(usize),
    /// The suspended domain starts again on another host.
    Restore(usize),
    /// The domain is moved to another process of a host, whatever it is doing.
    Move(usize),
    /// The domain is destroyed.
    Destroy(usize),
    /// A new domain starts.
    Create(usize),
    /// A hostile kernel writes to a page of its domain. The number decides what.
    Garbage(usize),
    /// The host's own perf opens an event, or closes the one that it has.
    HostsPerf(usize),
    /// The driver looks whether any domain of the host still needs the counters.
    Settle(usize),
}

impl Action {
    /// Returns a number that stands for the kind of action and, for a switch of threads, the
    /// thread. Some of these numbers coincide.
    pub fn code(self) -> u64 {
        match self {
            Self::Schedule(next) => 16 + next.map_or(0, |next| 1 + next as u64),
            Self::Tick => 1,
            Self::Virq => 2,
            Self::StopIdle => 3,
            Self::Offline => 4,
            Self::Online => 5,
            Self::Cpu(_) => 6,
            Self::Switch(_) => 7,
            Self::SwitchFailing(_) => 8,
            Self::Pmi => 9,
            Self::Policy(_) => 10,
            Self::Suspend(_) => 11,
            Self::Restore(_) => 12,
            Self::Destroy(_) => 13,
            Self::Create(_) => 14,
            Self::Garbage(_) => 15,
            Self::Revoke => 16,
            Self::CpuWide => 17,
            Self::Replug => 18,
            Self::Move(_) => 19,
            Self::HostsPerf(_) => 20,
            Self::Settle(_) => 21,
            Self::Nmi => 22,
        }
    }
}

/// The moment at which a chooser is asked whether anything happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask {
    /// The step before which it is asked.
    pub step: u64,
    /// How often it was asked before the same step already.
    pub before: u32,
}

/// A decision: the moment when it was made, and the random number for it.
pub type Decision = (Ask, u64);

/// Decides what happens.
pub enum Chooser {
    /// It decides by a seed.
    Random {
        /// The source of decisions.
        rng: Rng,
        /// The steps until the next decision.
        left: u64,
        /// The steps between two decisions, on average.
        period: u64,
        /// The decisions that were made.
        log: Vec<Decision>,
    },
    /// It repeats earlier decisions.
    Replay {
        /// The earlier decisions, earliest first.
        log: Vec<Decision>,
        /// The index of the next one.
        next: usize,
    },
    /// It repeats earlier decisions, and then decides by a seed.
    Guided {
        /// The decisions to repeat, earliest first.
        log: Vec<Decision>,
        /// The index of the next one.
        next: usize,
        /// The source of later decisions.
        rng: Rng,
        /// The steps until the next decision.
        left: u64,
        /// The steps between two decisions, on average.
        period: u64,
        /// The decisions that were made.
        made: Vec<Decision>,
    },
    /// It decides as a search demands, which tries everything.
    Search(Path),
}

impl Chooser {
    /// Decides by `seed` about once in `period` steps.
    pub fn random(seed: u64, period: u64) -> Self {
        Self::Random { rng: Rng::new(seed), left: 1, period, log: Vec::new() }
    }

    /// Repeats decisions.
    pub fn replay(log: Vec<Decision>) -> Self {
        Self::Replay { log, next: 0 }
    }

    /// Returns a number to decide with, if anything happens before this step. If `forced`,
    /// something always happens.
    fn ask(&mut self, now: Ask, forced: bool) -> Option<u64> {
        match self {
            Self::Random { rng, left, period, log } => {
                *left -= 1;
                if *left > 0 && !forced {
                    return None;
                }
                *left = 1 + rng.below(2 * *period);
                let number = rng.next();
                log.push((now, number));
                Some(number)
            }
            Self::Replay { log, next } => {
                while log.get(*next).is_some_and(|decision| decision.0 < now) {
                    *next += 1;
                }
                match log.get(*next) {
                    Some(&(when, number)) if when == now => {
                        *next += 1;
                        Some(number)
                    }
                    _ => forced.then_some(0),
                }
            }
            Self::Guided { log, next, rng, left, period, made } => {
                let number = match log.get(*next) {
                    Some(&(when, number)) if when <= now => {
                        *next += 1;
                        number
                    }
                    Some(_) if !forced => return None,
                    Some(_) => rng.next(),
                    None => {
                        *left -= 1;
                        if *left > 0 && !forced {
                            return None;
                        }
                        *left = 1 + rng.below(2 * *period);
                        rng.next()
                    }
                };
                made.push((now, number));
                Some(number)
            }
            Self::Search(_) => None,
        }
    }
}

/// The actions that can happen, each with its weight.
type Options = Vec<(u64, Action)>;

impl Machine {
    fn next_ask(&self) -> Ask {
        let (step, last) = (self.steps.get(), self.asked.get());
        let before = if last.step == step { last.before + 1 } else { 0 };
        self.asked.set(Ask { step, before });
        self.asked.get()
    }

    /// Decides what happens before the next step. If `forced`, the result is `None` only if nothing
    /// can happen.
    pub fn choose(&self, forced: bool) -> Option<Action> {
        let mut chooser = self.chooser.borrow_mut();
        if let Chooser::Search(path) = &mut *chooser {
            return path.choose(self, forced);
        }
        let number = chooser.ask(self.next_ask(), forced)?;
        let options = self.options();
        let total: u64 = options.iter().map(|option| option.0).sum();
        if total == 0 {
            return None;
        }
        let mut rest = number % total;
        options.iter().find_map(|&(weight, action)| {
            if rest < weight {
                return Some(action);
            }
            rest -= weight;
            None
        })
    }

    /// Returns everything that can happen now.
    pub fn options(&self) -> Options {
        let mut options = Options::new();
        let level = self.level();
        if level != Some(Level::Hypervisor) {
            self.vcpu_options(&mut options);
            if level != Some(Level::Kernel) {
                self.guest_options(&mut options);
            }
        }
        let weights = &self.shape.weights;
        for cpu in (0..self.cpus.len()).filter(|&cpu| cpu != self.here.get()) {
            options.push((weights.cpu, Action::Cpu(cpu)));
        }
        self.host_options(&mut options);
        options.retain(|option| option.0 > 0);
        options
    }

    /// Adds the actions of the hypervisor's scheduler on this CPU.
    fn vcpu_options(&self, options: &mut Options) {
        let weight = self.shape.weights.vcpu.max(1);
        let cpu = &self.cpus[self.here.get()];
        // The interrupt may come late, but has to come.
        if cpu.pmu.interrupts() {
            options.push((60, Action::Pmi));
        }
        if cpu.revocation.get() {
            options.push((60, Action::Revoke));
        }
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            let domain = &self.domains[vcpu.domain];
            let here = domain.alive.get() && domain.host.get() == cpu.host;
            let late = self.cpus.iter().any(|cpu| cpu.lazy.get() == Some(index));
            if here && vcpu.on.get().is_none() && !late {
                options.push((weight, Action::Switch(Some(index))));
                let in_user = !vcpu.kernel_mode.get() && vcpu.current.get().is_some();
                if in_user && !vcpu.busy.get() {
                    options.push((self.shape.weights.failsafe, Action::SwitchFailing(index)));
                }
            }
        }
        if cpu.current.get().is_some() {
            options.push((weight, Action::Switch(None)));
        } else if cpu.lazy.get().is_none() {
            options.push((self.shape.weights.replug, Action::Replug));
        }
    }

    /// Adds the actions of the guest kernel that executes here.
    fn guest_options(&self, options: &mut Options) {
        let Some(index) = self.cpus[self.here.get()].current.get() else { return };
        let weights = &self.shape.weights;
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        let idle = vcpu.current.get().is_none();
        if !vcpu.online.get() && domain.kind != Kind::Stranger {
            // A kernel thread does this, so the thread that executed here has been switched out.
            if idle {
                options.push((weights.hotplug.max(10), Action::Online));
            }
        } else if !domain.suspending.get() {
            for thread in domain.threads.clone() {
                if self.threads[thread].life.get() == Life::Ready {
                    options.push((weights.thread.max(1), Action::Schedule(Some(thread))));
                }
            }
        }
        if !idle {
            options.push((weights.thread.max(1), Action::Schedule(None)));
            options.push((weights.tick, Action::Tick));
        }
        if vcpu.virq.get() {
            options.push((60, Action::Virq));
        } else if self.shape.kvm && !idle && vcpu.online.get() {
            options.push((1, Action::Nmi));
        }
        if vcpu.stop_asked.get() {
            options.push((20, Action::StopIdle));
        }
        let asked = vcpu.cpu_wide.asked.get().is_some();
        if asked {
            options.push((60, Action::CpuWide));
        }
        if vcpu.online.get() && !asked && domain.kind != Kind::Stranger {
            options.push((weights.hotplug, Action::Offline));
        }
    }

    /// Adds the host's actions on domains.
    fn host_options(&self, options: &mut Options) {
        let weights = &self.shape.weights;
        for host in 0..self.contentions.len() {
            options.push((weights.hosts_perf, Action::HostsPerf(host)));
        }
        options.extend(self.hosts_to_settle().map(|host| (10, Action::Settle(host))));
        for (index, domain) in self.domains.iter().enumerate() {
            if !domain.alive.get() {
                if domain.serial.get() == 0 {
                    options.push((weights.destroy, Action::Create(index)));
                }
                continue;
            }
            let vcpus = &self.vcpus[domain.vcpus.clone()];
            let off = vcpus.iter().all(|vcpu| vcpu.on.get().is_none());
            let quiet = off && vcpus.iter().all(|v| !v.busy.get() && v.current.get().is_none());
            if self.can_move(index) {
                options.push((weights.moves, Action::Move(index)));
            }
            // A domain that was forbidden meanwhile may not continue, and gets an error. The
            // simulator does not try that.
            if domain.kind != Kind::Stranger && !self.is_restored(index) {
                options.push((weights.policy, Action::Policy(index)));
                if self.shape.kvm {
                    // A domain of this kind is not asked to suspend itself.
                } else if quiet && domain.suspending.get() {
                    options.push((10 * weights.restore, Action::Restore(index)));
                } else if !domain.suspending.get() {
                    options.push((weights.restore.min(1), Action::Suspend(index)));
                }
            }
            if off {
                options.push((weights.destroy, Action::Destroy(index)));
            }
            if domain.kind == Kind::Hostile {
                options.push((weights.garbage, Action::Garbage(index)));
            }
        }
    }
}
