// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Whole-CPU counting in a guest: what the module's glue does around the core's rules, and the
//! books that those rules are compared with.
//!
//! Each thread has one descriptor.  Other vCPUs are interrupted to start and to stop; until all
//! have done so the module's mutex is held, so nobody else starts, sets or stops anything.

use std::cell::{Cell, RefCell};

use guest_kmod::policy::{Caller, may_count_cpus};
use guest_kmod::publish::published;
use guest_kmod::whole::{Owner, check_cpu_control};
use guest_kmod::{Admission, ThreadPmu};
use shared_abi::ioctl::{Control, CpuState, Sums};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::{THREAD_ACTIVE, THREAD_FAILED};
use shared_abi::{Errno, ThreadPage};

use crate::machine::{Machine, Thread, unheard};
use crate::rng::Rng;
use crate::search::Object;
use crate::shape::Kind;
use crate::truth::{Looks, Moment, Truth};

/// What a vCPU is interrupted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To start to count as a whole.
    Start,
    /// To stop.
    Stop,
}

/// What counts for a vCPU as a whole.
pub struct Whole {
    pub page: ThreadPage,
    pmu: RefCell<Option<ThreadPmu>>,
    truth: RefCell<Truth>,
    control: Cell<Option<Control>>,
    /// It counts.
    pub counts: Cell<bool>,
    /// The interrupt that waits.
    pub asked: Cell<Option<Asked>>,
}

impl Whole {
    /// Nothing.
    pub fn new() -> Self {
        Self {
            page: ThreadPage::default(),
            pmu: RefCell::new(None),
            truth: RefCell::new(Truth::new()),
            control: Cell::new(None),
            counts: Cell::new(false),
            asked: Cell::new(None),
        }
    }

    fn state(&self) -> u32 {
        unheard(|| self.page.state.load(Relaxed))
    }
}

/// A domain's admission, and what it should say.
#[derive(Default)]
pub struct Books {
    admission: RefCell<Admission>,
    owner: Cell<Option<Owner>>,
    started: Cell<bool>,
    stopping: Cell<bool>,
    closing: Cell<bool>,
    /// How often CPUs have started.
    pub times: Cell<u64>,
}

impl Books {
    /// How often CPUs have started and stopped again.
    pub fn times_before(&self) -> u64 {
        self.times.get() - u64::from(self.started.get())
    }

    /// Whether CPUs count.
    pub fn count(&self) -> bool {
        self.started.get()
    }

    fn is_others(&self, by: Owner) -> bool {
        self.owner.get().is_some_and(|owner| owner != by)
    }
}

/// The ledgers of a vCPU, whoever executes there.
fn of_vcpu(moment: &Moment) -> Moment {
    Moment { thread_user: moment.vcpu_user, ..*moment }
}

fn looks_of_vcpu(looks: &Looks) -> Looks {
    Looks { counter: looks.counter.map(|moment| of_vcpu(&moment)), tsc: looks.tsc }
}

const fn descriptor(thread: usize) -> Owner {
    thread as Owner + 1
}

fn refusal(refused: bool) -> Result<(), Errno> {
    if refused { Err(Errno::BUSY) } else { Ok(()) }
}

impl Machine {
    /// The core decides what the books say.
    fn check_admitted(&self, thread: usize, what: &str, told: Result<(), Errno>, refused: bool) {
        let good = self.domains[self.threads[thread].domain].kind == Kind::Good;
        let truth = refusal(refused);
        if good && told != truth && !self.is_gone() {
            self.fail(format!("thread {thread} {what}: {told:?}, not {truth:?}"));
        }
    }

    /// A thread is to get counters: not while CPUs count.
    pub fn admit_thread(&self, thread: usize) -> Result<(), Errno> {
        let own = &self.threads[thread];
        let books = &self.domains[own.domain].books;
        let told = books.admission.borrow_mut().thread_begins(own.admin.get());
        self.check_admitted(thread, "gets counters", told, books.started.get());
        own.admitted.set(told.is_ok());
        told
    }

    /// A thread that ends loses its counters, and its descriptor is closed.
    pub fn dismiss_thread(&self, thread: usize, vcpu: usize) {
        let own = &self.threads[thread];
        if own.admitted.replace(false) {
            let admission = &self.domains[own.domain].books.admission;
            admission.borrow_mut().thread_ends(own.admin.get());
        }
        self.close(thread, vcpu);
    }

    /// Threads of an administrator that have counters.
    fn has_privileged(&self, domain: usize) -> bool {
        let privileged = |thread: &Thread| thread.admitted.get() && thread.admin.get();
        self.threads[self.domains[domain].threads.clone()].iter().any(privileged)
    }

    /// A thread operates whole CPUs, or tries to.
    pub fn operate_wholes(&self, thread: usize, rng: &mut Rng) {
        let own = &self.threads[thread];
        self.in_kernel(|vcpu| {
            let caller = Caller { perfmon: own.admin.get(), locked_down: false };
            if may_count_cpus(caller).is_ok() != own.admin.get() {
                self.fail(format!("thread {thread} may or may not count on whole CPUs"));
            }
            let locked = self.is_locked(own.domain);
            if self.is_gone()
                || !own.admin.get()
                || locked
                || self.domains[own.domain].caps.get().is_none()
            {
                return;
            }
            match rng.below(8) {
                0..3 => self.set_and_start(thread, vcpu, rng),
                3..6 => self.read_whole(vcpu),
                6 => self.stop_wholes(thread, vcpu),
                _ => self.close(thread, vcpu),
            }
        });
    }

    /// Somebody waits for other CPUs to start or stop.
    fn is_locked(&self, domain: usize) -> bool {
        let vcpus = &self.vcpus[self.domains[domain].vcpus.clone()];
        vcpus.iter().any(|vcpu| vcpu.whole.asked.get().is_some())
    }

    /// `IOC_CPU_CONTROL` of some vCPUs, and a start.
    fn set_and_start(&self, thread: usize, here: usize, rng: &mut Rng) {
        let domain = self.threads[thread].domain;
        let (books, by) = (&self.domains[domain].books, descriptor(thread));
        for vcpu in self.domains[domain].vcpus.clone() {
            if self.vcpus[vcpu].online.get() && !rng.one_in(4) {
                self.set_whole(thread, vcpu, rng);
            }
        }
        let vcpus = &self.vcpus[self.domains[domain].vcpus.clone()];
        if !books.started.get() && vcpus.iter().all(|vcpu| vcpu.whole.control.get().is_none()) {
            return;
        }
        let refused = books.started.get() || books.is_others(by) || self.has_privileged(domain);
        let told = books.admission.borrow_mut().cpus_start(by);
        self.check_admitted(thread, "starts CPUs", told, refused);
        if told.is_err() {
            return;
        }
        books.owner.set(Some(by));
        books.started.set(true);
        books.times.set(books.times.get() + 1);
        for vcpu in self.domains[domain].vcpus.clone() {
            let own = &self.vcpus[vcpu];
            if own.whole.control.get().is_some() && own.online.get() {
                own.whole.asked.set(Some(Asked::Start));
            }
        }
        self.take_whole(here);
    }

    /// `IOC_CPU_CONTROL`.
    fn set_whole(&self, thread: usize, vcpu: usize, rng: &mut Rng) {
        let domain = &self.domains[self.threads[thread].domain];
        let Some(caps) = domain.caps.get() else { return };
        let control = Control { preserve: 0, ..self.random_control(rng) };
        let state = CpuState { control, ..CpuState::default() };
        let samples = control.counter.iter().any(|counter| counter.mode != 0);
        match check_cpu_control(&caps, &state) {
            Ok(true) if !samples => (),
            Err(Errno::PERM) if samples => return,
            answer => return self.fail(format!("a CPU is to count: {answer:?}")),
        }
        let (books, by) = (&domain.books, descriptor(thread));
        let refused = books.started.get() || books.is_others(by);
        let told = books.admission.borrow_mut().cpus_set(by);
        self.check_admitted(thread, "sets a CPU", told, refused);
        if told.is_err() {
            return;
        }
        books.owner.set(Some(by));
        let whole = &self.vcpus[vcpu].whole;
        *whole.pmu.borrow_mut() = Some(unheard(|| ThreadPmu::new(&whole.page, 0)));
        *whole.truth.borrow_mut() = Truth::new();
        whole.control.set(Some(control));
    }

    /// A vCPU does what it is interrupted for.
    pub fn take_whole(&self, index: usize) {
        let domain = self.vcpus[index].domain;
        let asked = &self.vcpus[index].whole.asked;
        let work = asked.get();
        match work {
            Some(Asked::Start) => self.start_here(index),
            Some(Asked::Stop) => self.stop_here(index),
            None => (),
        }
        // Asked to stop while it started, it is interrupted once more.
        if asked.get() == work {
            asked.set(None);
        }
        self.finish_stop(domain);
    }

    fn start_here(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let (whole, domain) = (&vcpu.whole, &self.domains[vcpu.domain]);
        let (Some(control), Some(caps)) = (whole.control.get(), domain.caps.get()) else { return };
        let current = vcpu.current.get();
        let result = {
            let mut thread = current.map(|thread| self.threads[thread].pmu.borrow_mut());
            let thread = thread.as_mut().and_then(|pmu| pmu.as_mut());
            let beside = current.map(|thread| &self.threads[thread].page);
            let (mut pmu, beside) = (whole.pmu.borrow_mut(), thread.zip(beside));
            let Some(pmu) = pmu.as_mut() else { return };
            if let (Some(thread), Some(_)) = (current, &beside) {
                self.disturb(thread, true);
            }
            self.on(index, |cpu| {
                let own = (pmu, &whole.page);
                cpu.start_whole(own, beside, &domain.counting, &caps, &control)
            })
        };
        if let Some(thread) = current {
            self.suspended(index, thread);
            self.published(index, thread);
            self.disturb(thread, false);
        }
        if let Err(errno) = result {
            self.check_whole_error(index, errno);
            return self.stop_all(vcpu.domain, index);
        }
        whole.counts.set(true);
        let now = of_vcpu(&self.moment(None, index));
        let truth = &mut whole.truth.borrow_mut();
        truth.control(&control, &now, false);
        if whole.state() & THREAD_ACTIVE != 0 {
            truth.resume(&looks_of_vcpu(vcpu.sampling.borrow().last()));
        }
    }

    /// The kernel begins, or ends, to change the counters of a thread that whole CPUs push aside.
    fn disturb(&self, thread: usize, begins: bool) {
        let own = &self.threads[thread];
        if begins {
            self.check_claims(thread);
            own.changes.set(own.changes.get() + 1);
            self.touch(Object::Thread(thread), true);
        }
        own.changing.set(begins);
    }

    /// A vCPU stops counting as a whole, if it does.
    pub fn stop_here(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let (whole, counting) = (&vcpu.whole, &self.domains[vcpu.domain].counting);
        if !whole.counts.get() {
            return;
        }
        if let Some(pmu) = whole.pmu.borrow_mut().as_mut() {
            self.on(index, |cpu| cpu.stop_whole((pmu, &whole.page), counting));
        }
        whole.counts.set(false);
        self.close_books_of(index);
    }

    /// A vCPU that goes offline has stopped.
    pub fn whole_goes_offline(&self, index: usize) {
        self.stop_here(index);
        self.vcpus[index].whole.asked.set(None);
        self.finish_stop(self.vcpus[index].domain);
    }

    /// What a vCPU that has stopped leaves behind is the truth.
    fn close_books_of(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        {
            let truth = &mut vcpu.whole.truth.borrow_mut();
            truth.suspend(&looks_of_vcpu(vcpu.sampling.borrow().first()));
            truth.stop(&of_vcpu(&self.moment(None, index)));
        }
        self.check_left_behind(index);
        self.ask_to_stop(vcpu.domain);
    }

    fn check_left_behind(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        if vcpu.whole.state() & THREAD_FAILED != 0 || vcpu.whole.pmu.borrow().is_none() {
            return;
        }
        match unheard(|| published(&vcpu.whole.page)) {
            Ok(sums) => self.check_whole(index, &sums, &Looks::default(), "what is published"),
            Err(errno) => self.check_whole_error(index, errno),
        }
    }

    /// `IOC_CPU_READ` of this vCPU.
    fn read_whole(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        if !vcpu.whole.counts.get() {
            return self.check_left_behind(index);
        }
        let result = {
            let pmu = vcpu.whole.pmu.borrow();
            let Some(pmu) = pmu.as_ref() else { return };
            self.on(index, |cpu| pmu.read(cpu))
        };
        match result {
            Ok(sums) => {
                let looks = looks_of_vcpu(vcpu.sampling.borrow().last());
                self.check_whole(index, &sums, &looks, "a read");
            }
            Err(errno) => self.check_whole_error(index, errno),
        }
    }

    fn check_whole(&self, index: usize, sums: &Sums, looks: &Looks, who: &str) {
        let vcpu = &self.vcpus[index];
        if self.domains[vcpu.domain].kind != Kind::Good || self.is_gone() {
            return;
        }
        self.readings.set(self.readings.get() + 1);
        let truth = vcpu.whole.truth.borrow();
        let mut pairs = vec![];
        if truth.has_tsc() {
            pairs.push((sums.tsc, truth.tsc(looks)));
        }
        pairs.extend((0..truth.used()).map(|n| (sums.counter[n], truth.counter(n, looks))));
        if let Some((told, truth)) = pairs.iter().find(|(told, truth)| told != truth) {
            self.fail(format!("vCPU {index} as a whole: {who} gives {told}, not {truth}"));
        }
    }

    /// A whole CPU has no numbers only if the host forbids them, or a sample was disturbed.
    fn check_whole_error(&self, index: usize, errno: Errno) {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        if domain.kind != Kind::Good || self.is_gone() {
            return;
        }
        let forbidden = errno == Errno::PERM && domain.forbidden.get() > 0;
        let failed = vcpu.whole.state() & THREAD_FAILED != 0;
        let disturbed = errno == Errno::NODEV && (failed || self.was_disturbed());
        if !forbidden && !disturbed {
            self.fail(format!("vCPU {index} as a whole has no numbers: {errno:?}"));
        }
    }

    /// A descriptor stops CPUs.
    fn stop_wholes(&self, thread: usize, here: usize) {
        let domain = self.threads[thread].domain;
        let (books, by) = (&self.domains[domain].books, descriptor(thread));
        let told = books.admission.borrow().cpus_may_stop(by);
        self.check_admitted(thread, "stops CPUs", told, books.is_others(by));
        if told.is_ok() {
            self.stop_all(domain, here);
        }
    }

    /// Every vCPU stops: this one now, others soon.
    fn stop_all(&self, domain: usize, here: usize) {
        self.domains[domain].books.stopping.set(true);
        for vcpu in self.domains[domain].vcpus.clone() {
            let whole = &self.vcpus[vcpu].whole;
            if whole.counts.get() || whole.asked.get().is_some() {
                whole.asked.set(Some(Asked::Stop));
            }
        }
        self.take_whole(here);
    }

    /// When no vCPU counts, or is about to, CPUs have stopped.
    fn finish_stop(&self, domain: usize) {
        let vcpus = &self.vcpus[self.domains[domain].vcpus.clone()];
        let books = &self.domains[domain].books;
        let counts = vcpus.iter().any(|vcpu| vcpu.whole.counts.get());
        // CPUs that went offline do not end what their owner has started.
        if counts || self.is_locked(domain) || !books.stopping.get() {
            return;
        }
        books.stopping.set(false);
        books.admission.borrow_mut().cpus_stopped();
        books.started.set(false);
        if books.closing.take()
            && let Some(owner) = books.owner.take()
        {
            books.admission.borrow_mut().closed(owner);
        }
    }

    /// A descriptor is closed: what it has set and started ends with it.
    fn close(&self, thread: usize, here: usize) {
        let domain = self.threads[thread].domain;
        let (books, by) = (&self.domains[domain].books, descriptor(thread));
        let owns = books.owner.get() == Some(by);
        let told = books.admission.borrow().owns(by);
        self.check_admitted(thread, "owns CPUs", refusal(told), owns);
        if !owns {
            return;
        }
        books.closing.set(true);
        self.stop_all(domain, here);
        for vcpu in self.domains[domain].vcpus.clone() {
            self.vcpus[vcpu].whole.control.set(None);
        }
    }
}
