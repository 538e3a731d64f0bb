// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates the work of threads in user mode.

use std::rc::Rc;

use guest_kmod::publish::published;
use shared_abi::hypercall::{HvLoad, HvShow, OP_GO_ON, OP_SHOW};
use shared_abi::ioctl::{
    CONTROL_KEEP_PERIOD, CONTROL_KEEP_TSC, CONTROL_RING, CONTROL_TSC, Control, Sums,
};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::read::{Counters, read_thread};
use shared_abi::seq::Stamp;
use shared_abi::{CounterConfig, VcpuPage};
use zerocopy::{FromBytes, IntoBytes};

use crate::frames::GFN_BASE;
use crate::machine::{Claim, Life, Machine};
use crate::model::{GENERAL, Model, PERIOD_MAX, PERIOD_TOLD};
use crate::perf::has_perf_only;
use crate::pmu::EVENTS;
use crate::rng::Rng;
use crate::shape::{Kind, Op, Program, evntsel, random_rings};
use crate::trace::Step;

/// RDPMC and RDTSC, executed by a thread.
struct User<'a> {
    machine: &'a Machine,
    thread: usize,
}

impl User<'_> {
    /// Executes RDPMC. Returns `None` if it faults.
    fn rdpmc(&self, index: u32) -> Option<u64> {
        let machine = self.machine;
        machine.step(Step::Rdpmc(index));
        if machine.is_gone() {
            return Some(0);
        }
        let vcpu = machine.vcpu_here();
        let allowed = machine.may_read(vcpu);
        let read = machine.cpus[machine.here.get()].pmu.rdpmc(index).filter(|_| allowed);
        let (counter, value) = read?;
        let looks = &mut *machine.threads[self.thread].looks.borrow_mut();
        looks.counter[counter] = machine.moment(Some(self.thread), vcpu);
        Some(value)
    }
}

impl Counters for User<'_> {
    fn counter(&self, index: u32) -> u64 {
        let value = self.rdpmc(index);
        let good =
            self.machine.domains[self.machine.threads[self.thread].domain].kind == Kind::Good;
        if good && value.is_none() {
            self.machine.fail(format!("thread {} faults: RDPMC {index:#x}", self.thread));
        }
        value.unwrap_or(0)
    }

    /// The page that lets a thread read may be unregistered between its loads and its RDPMC. The
    /// thread then repeats its read, as it does with the library's handler of faults. If the last
    /// attempt has faulted too, the read ends with an error, which is checked at its end.
    fn counter_under(&self, index: u32, stamp: &mut Stamp) -> u64 {
        self.rdpmc(index).unwrap_or_else(|| {
            stamp.not_read();
            0
        })
    }

    fn clock(&self) -> u64 {
        let machine = self.machine;
        machine.step(Step::Rdtsc);
        if machine.is_gone() {
            return 0;
        }
        let looks = &mut *machine.threads[self.thread].looks.borrow_mut();
        looks.tsc = machine.vcpu_tsc(machine.vcpu_here());
        machine.guest_tsc(machine.vcpu_here())
    }
}

impl Machine {
    /// Returns the page of a vCPU of the thread's domain, as the thread has mapped it: the page for
    /// its user.
    pub fn vcpu_page(&self, thread: usize, number: u32) -> Option<&VcpuPage> {
        let own = &self.threads[thread];
        let vcpus = self.domains[own.domain].vcpus.clone();
        self.vcpus[vcpus].get(number as usize).map(|vcpu| &vcpu.pages[own.owner.get()])
    }

    /// Runs a thread from its start to its end.
    pub fn live(self: Rc<Self>, thread: usize) {
        let domain = &self.domains[self.threads[thread].domain];
        self.begin_as_somebody(thread);
        if self.shape.cpu_wide && domain.kind == Kind::Good {
            self.begin_beside_cpu_wide(thread);
        } else if self.has_perf(self.threads[thread].domain) && has_perf_only(thread) {
            // The thread has events of perf, and nothing else.
        } else if domain.kind != Kind::Stranger {
            self.create_counters(thread);
        }
        match &self.shape.program {
            Program::Random => while !self.is_gone() && self.do_anything(thread) {},
            Program::Fixed(ops) => ops.iter().for_each(|&op| self.do_op(thread, op)),
        }
        self.exit(thread);
    }

    /// Starts a thread, of an administrator or not. It has counters of its own, or only counts
    /// whole CPUs. While whole CPUs count it has to wait.
    fn begin_beside_cpu_wide(&self, thread: usize) {
        let own = &self.threads[thread];
        let rng = &mut Rng::new(own.rng.borrow_mut().next());
        own.admin.set(rng.one_in(3));
        if !own.admin.get() || rng.one_in(6) {
            while !self.create_counters(thread) && !self.is_gone() {
                self.work(rng);
            }
        }
    }

    fn do_op(&self, thread: usize, op: Op) {
        match op {
            Op::Start(counter) => {
                let mut control = Control { flags: CONTROL_TSC, counters: 1, ..Control::default() };
                control.counter[0] = counter;
                control.signal = if counter.mode == 1 { SIGNAL } else { 0 };
                self.control(thread, &control);
            }
            Op::Execute(instructions) => {
                self.step(Step::Note("work"));
                if !self.is_gone() {
                    self.retire(&[instructions, 0, 0, 0]);
                }
            }
            Op::Read => self.read(thread),
            Op::GoOn => {
                if self.threads[thread].signal.get().is_some() {
                    self.go_on(thread);
                }
            }
        }
    }

    /// Does something. Returns false if the thread is to end.
    fn do_anything(self: &Rc<Self>, thread: usize) -> bool {
        let rng = &mut Rng::new(self.threads[thread].rng.borrow_mut().next());
        let kind = self.domains[self.threads[thread].domain].kind;
        if self.shape.cpu_wide && kind == Kind::Good {
            let own = &self.threads[thread];
            if own.pmu.borrow().is_none() {
                match rng.below(32) {
                    0..16 => self.operate_cpu_wide(thread, rng),
                    16 => return false,
                    _ => self.work(rng),
                }
                return true;
            }
            if rng.one_in(16) {
                self.operate_cpu_wide(thread, rng);
                return true;
            }
        }
        if self.has_perf(self.threads[thread].domain) && rng.one_in(4) {
            self.operate_perf(thread, rng);
            return true;
        }
        if self.shape.rings && kind == Kind::Good && rng.one_in(8) {
            self.take_records(thread, rng);
            return true;
        }
        if self.threads[thread].signal.get().is_some() && rng.one_in(4) {
            self.go_on(thread);
            return true;
        }
        if self.halted_beside(thread).is_some() && rng.one_in(6) {
            self.trace(thread, rng);
            return true;
        }
        match rng.below(if kind == Kind::Stranger { 30 } else { 100 }) {
            0..30 => self.work(rng),
            30..70 => self.read(thread),
            70..80 => self.control(thread, &self.any_control(thread, rng)),
            80..82 => self.control(thread, &Control::default()),
            82..90 => self.read_by_kernel(thread),
            90..93 => self.read_other(thread, rng),
            93..95 => self.trace(thread, rng),
            95 => self.control(thread, &garbage_control(rng)),
            96 => self.control(thread, &self.nearly_valid_control(rng)),
            97..99 if kind == Kind::Hostile => self.attack(rng),
            99 => return !rng.one_in(4),
            _ => self.work(rng),
        }
        true
    }

    fn work(&self, rng: &mut Rng) {
        self.step(Step::Note("work"));
        if !self.is_gone() {
            // A slice is shorter than the narrowest counter's cycle.
            let most = 1 << rng.below(if self.shape.noisy { 16 } else { 8 });
            let events: [u64; EVENTS] = std::array::from_fn(|_| rng.below(most));
            self.retire(&events);
            self.leap(rng);
        }
    }

    /// Executes a billion instructions at once, if the narrowest counter neither wraps between two
    /// folds nor reaches its sign bit again after an overflow.
    fn leap(&self, rng: &mut Rng) {
        let events = [rng.below(1 << 30); EVENTS];
        let slice = self.cpus[self.here.get()].slice.get();
        if self.shape.leaps && rng.one_in(4) && slice + events[0] < 1 << 30 {
            self.retire(&events);
        }
    }

    /// Reads the thread's counters without a system call.
    pub fn read(&self, thread: usize) {
        let own = &self.threads[thread];
        let used = own.truth.borrow().used();
        let traced = own.traced.get();
        let mut counts = [0; MAX_COUNTERS];
        let vcpus = |number| self.vcpu_page(thread, number);
        let hw = User { machine: self, thread };
        let before = self.disturbances(thread);
        let result = read_thread(&own.page, vcpus, &hw, &mut counts[..used]);
        match result {
            // The read was of the counters that the thread had before.
            _ if own.traced.get() != traced => (),
            Ok(snapshot) => {
                let looks = own.looks.borrow().clone();
                self.check_values(thread, snapshot.tsc, &counts, &looks, "its own read");
            }
            Err(error) => {
                let disturbances = self.disturbances(thread) - before;
                self.check_read_error(thread, error, disturbances);
            }
        }
    }

    /// Returns how often a page that the thread reads may have been written.
    fn disturbances(&self, thread: usize) -> u64 {
        let own = &self.threads[thread];
        let vcpus = &self.vcpus[self.domains[own.domain].vcpus.clone()];
        own.changes.get() + vcpus.iter().map(|vcpu| vcpu.disturbances.get()).sum::<u64>()
    }

    /// Reads the published values of any thread of its domain.
    fn read_other(&self, thread: usize, rng: &mut Rng) {
        let threads = self.domains[self.threads[thread].domain].threads.clone();
        let other = threads.start + rng.index(threads.len());
        if matches!(self.threads[other].life.get(), Life::Unborn) {
            return;
        }
        let since = self.threads[other].published.borrow().len().saturating_sub(1);
        if let Ok(Some(Sums { tsc, counter })) = published(&self.threads[other].page) {
            let mut values = vec![tsc];
            values.extend(counter);
            let claim = Claim { since, values };
            // The values that are being published at this moment are not in the list yet.
            if self.threads[other].changing.get() {
                self.threads[other].claims.borrow_mut().push(claim);
            } else {
                self.check_claim(other, &claim);
            }
        }
    }

    /// Returns another thread of its domain that is asleep, and whose counters an overflow has
    /// paused or that failed.
    fn halted_beside(&self, thread: usize) -> Option<usize> {
        let mut others = self.domains[self.threads[thread].domain].threads.clone();
        others.find(|&other| {
            let own = &self.threads[other];
            other != thread
                && own.life.get() == Life::Ready
                && (own.truth.borrow().is_paused() || self.has_failed(other))
        })
    }

    /// Operates the counters of another thread of its domain, which is asleep and stays asleep.
    fn trace(&self, thread: usize, rng: &mut Rng) {
        let threads = self.domains[self.threads[thread].domain].threads.clone();
        let any = threads.start + rng.index(threads.len());
        let halted = self.halted_beside(thread);
        let other = halted.filter(|_| !rng.one_in(4)).unwrap_or(any);
        let control = match rng.below(8) {
            0 => Control::default(),
            1 => self.nearly_valid_control(rng),
            _ => self.any_control(other, rng),
        };
        if other != thread {
            let goes_on = rng.one_in(if halted.is_some() { 2 } else { 8 });
            self.operate_asleep(other, (!goes_on).then_some(control));
        }
    }

    /// Returns the control that the thread has asked for last, to continue with the rest of its
    /// periods, or any control.
    fn any_control(&self, thread: usize, rng: &mut Rng) -> Control {
        let last = self.threads[thread].asked.get().filter(|_| rng.one_in(3));
        let Some(mut control) = last else {
            let mut control = self.random_control(rng);
            if self.threads[thread].ring.exists() && control.signal != 0 && !rng.one_in(3) {
                control.flags |= CONTROL_RING;
                control.signal = 0;
            }
            return control;
        };
        control.flags |= CONTROL_KEEP_PERIOD;
        control.preserve = rng.below(1 << control.counters) as u32;
        if rng.one_in(4) && control.counters > 1 {
            control.counter.swap(0, 1);
        } else if rng.one_in(4) {
            let counter = &mut control.counter[rng.index(control.counters as usize)];
            counter.period += u64::from(counter.mode == 1 && counter.period < PERIOD_MAX);
        }
        control
    }

    /// Returns some counters in any order. They are of few kinds, so that threads often have the
    /// same ones.
    pub fn random_control(&self, rng: &mut Rng) -> Control {
        let model = self.guests_model();
        let mut slots: Vec<usize> = model.counters().collect();
        let mut control = Control {
            flags: [0, CONTROL_TSC, CONTROL_TSC, CONTROL_TSC | CONTROL_KEEP_TSC][rng.index(4)],
            preserve: 0,
            ..Control::default()
        };
        for index in 0..1 + rng.index(slots.len().min(3)) {
            let slot = slots.swap_remove(rng.index(slots.len()));
            let rings = random_rings(rng);
            let fixed = slot >= GENERAL;
            let event = if rng.one_in(4) { rng.index(EVENTS) } else { slot % EVENTS };
            let selector =
                if fixed { rings | evntsel(0, 0) & !0xffff } else { evntsel(event, rings) };
            let samples = model.samples() && rng.one_in(4);
            control.counter[index] = CounterConfig {
                slot: slot as u32,
                evntsel: selector,
                mode: u32::from(samples),
                period: if samples { self.random_period(rng) } else { 0 },
                ..CounterConfig::default()
            };
            if samples {
                control.signal = SIGNAL;
            }
            control.counters += 1;
        }
        if rng.one_in(2) {
            control.preserve = rng.below(1 << control.counters) as u32;
        }
        control
    }

    /// Returns the model of the counters that are left for guests.
    pub fn guests_model(&self) -> Model {
        let model = self.shape.model;
        Model { general: model.general - u32::from(self.shape.cost), ..model }
    }

    /// Returns a random period. Most periods are short. If threads leap, long ones are more
    /// frequent.
    pub fn random_period(&self, rng: &mut Rng) -> u64 {
        match rng.below(if self.shape.leaps { 5 } else { 16 }) {
            0 => PERIOD_MAX - rng.below(2),
            1 => PERIOD_TOLD + rng.below(PERIOD_MAX - PERIOD_TOLD),
            2 => PERIOD_TOLD,
            3 => [1, 25, PERIOD_TOLD - 1][rng.index(3)],
            _ => PERIOD_TOLD + rng.below(20_000),
        }
    }

    /// Returns a valid control after one change, which may make it invalid.
    fn nearly_valid_control(&self, rng: &mut Rng) -> Control {
        let mut control = self.random_control(rng);
        let counter = &mut control.counter[0];
        match rng.below(8) {
            0 => counter.period = [0, PERIOD_TOLD - 1, PERIOD_MAX + 1, (1 << 32) - 1][rng.index(4)],
            1 => counter.slot = [3, 4, 15, 16, 19, 23, 24][rng.index(7)],
            2 => counter.evntsel ^= 1 << rng.below(64),
            3 => counter.mode ^= 1,
            4 => counter.reserved = 1,
            5 => control.signal = [0, 1, 64, 65][rng.index(4)],
            6 => control.preserve |= 1 << control.counters,
            _ => control.flags |= 1 << rng.below(6),
        }
        control
    }

    /// Makes a hostile kernel's hypercalls.
    fn attack(&self, rng: &mut Rng) {
        let mut bytes = [0; size_of::<HvShow>()];
        for word in bytes.chunks_mut(8) {
            let value = if rng.one_in(3) { rng.next() } else { rng.below(4) };
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
        let op = match rng.below(u64::from(OP_GO_ON) + 3) as u32 {
            op if op > OP_GO_ON + 1 => OP_SHOW,
            op => op,
        };
        if rng.one_in(2) {
            // This may be a frame of its own.
            let gfn = GFN_BASE + rng.below(self.vcpus.len() as u64);
            bytes[..8].copy_from_slice(&gfn.to_le_bytes());
        }
        let lengths = [0, 8, 16, 40, 40 + 32, 176, HvLoad::bytes(1), HvLoad::bytes(2), bytes.len()];
        let length = lengths[rng.index(lengths.len())];
        // The answer does not matter, since the hypervisor's state is checked.
        self.in_kernel(|_| self.hypercall(op, &mut bytes[..length]).is_ok());
    }
}

/// The signal that threads ask for.
const SIGNAL: u32 = 29;

/// Returns a control block of random bits, most of them 0.
fn garbage_control(rng: &mut Rng) -> Control {
    let mut control = Control::default();
    for word in control.as_mut_bytes().chunks_mut(8) {
        if rng.one_in(8) {
            let value = if rng.one_in(2) { rng.next() } else { rng.below(20) };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    Control::read_from_bytes(control.as_bytes()).unwrap_or_default()
}
