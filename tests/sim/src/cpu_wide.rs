// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates CPU-wide counting in a guest: descriptors that ask for it, interrupts of other vCPUs,
//! and the books with which the core's rules are compared.
//!
//! Each thread has one descriptor. Other vCPUs are interrupted to start and to stop. Until all have
//! done so the module's mutex is held, so nobody else starts, sets or stops anything.

use std::cell::{Cell, RefCell};

use guest_kmod::cpu_wide::Owner;
use guest_kmod::policy::Rights;
use guest_kmod::publish::published;
use guest_kmod::requests::{Descriptor, admit};
use guest_kmod::{Admission, LocalVcpu, ThreadPmu};
use shared_abi::ioctl::{
    Control, CpuState, IOC_CPU_CONTROL, IOC_CPU_READ, IOC_CPU_START, IOC_CPU_STOP, Sums,
};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::{THREAD_ACTIVE, THREAD_FAILED};
use shared_abi::{Errno, ThreadPage};

use crate::machine::{Machine, ROOT, Thread, without_steps};
use crate::rng::Rng;
use crate::search::Object;
use crate::shape::Kind;
use crate::truth::{Looks, Moment, Truth};
use crate::users::Here;

/// The reasons for which a vCPU is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To start CPU-wide counting there.
    Start,
    /// To stop.
    Stop,
}

/// The counters of CPU-wide counting on a vCPU.
pub struct CpuWide {
    pub page: ThreadPage,
    pmu: RefCell<Option<ThreadPmu>>,
    truth: RefCell<Truth>,
    control: Cell<Option<Control>>,
    /// Whether it counts.
    pub counts: Cell<bool>,
    /// The interrupt that is pending.
    pub asked: Cell<Option<Asked>>,
}

impl CpuWide {
    /// Makes counters that do not count.
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
        without_steps(|| self.page.state.load(Relaxed))
    }
}

/// A domain's admission, and the facts from which its right answers follow.
#[derive(Default)]
pub struct Books {
    admission: Admission,
    owner: Cell<Option<Owner>>,
    started: Cell<bool>,
    stopping: Cell<bool>,
    closing: Cell<bool>,
    /// How often whole CPUs have started to count.
    pub times: Cell<u64>,
}

impl Books {
    /// Returns how often whole CPUs have started and stopped again.
    pub fn times_before(&self) -> u64 {
        self.times.get() - u64::from(self.started.get())
    }

    /// Returns whether whole CPUs count.
    pub fn count(&self) -> bool {
        self.started.get()
    }

    fn is_others(&self, by: Owner) -> bool {
        self.owner.get().is_some_and(|owner| owner != by)
    }
}

/// Returns the ledgers of everything that executes on a vCPU.
fn of_vcpu(moment: &Moment) -> Moment {
    Moment { thread_user: moment.vcpu_user, ..*moment }
}

fn looks_of_vcpu(looks: &Looks) -> Looks {
    Looks { counter: looks.counter.map(|moment| of_vcpu(&moment)), tsc: looks.tsc }
}

const fn descriptor(thread: usize) -> Owner {
    thread as Owner + 1
}

/// Returns `answer`, unless the request has to be refused.
fn refusal<T>(answer: T, refused: bool) -> Result<T, Errno> {
    if refused { Err(Errno::BUSY) } else { Ok(answer) }
}

/// The kernel's answers about a thread, which is an administrator's or not.
struct Person {
    is_admin: bool,
}

impl Rights for Person {
    fn has_perfmon(&self) -> bool {
        self.is_admin
    }

    fn is_locked_down(&self) -> bool {
        false
    }

    fn has_ipc_lock(&self) -> bool {
        self.is_admin
    }

    fn has_ptrace(&self) -> bool {
        self.is_admin
    }

    fn perf_allows_kernel(&self) -> Result<(), Errno> {
        Ok(())
    }
}

impl Machine {
    /// Checks that the core decides as the books demand.
    fn check_admitted<T>(
        &self,
        thread: usize,
        what: &str,
        answer: Result<T, Errno>,
        truth: Result<T, Errno>,
    ) where
        T: PartialEq + std::fmt::Debug,
    {
        let good = self.domains[self.threads[thread].domain].kind == Kind::Good;
        if good && answer != truth && !self.is_gone() {
            self.fail(format!("thread {thread} {what}: {answer:?}, not {truth:?}"));
        }
    }

    /// Asks for counters for a thread, which it may not get while whole CPUs count.
    pub fn admit_thread(&self, thread: usize) -> Result<(), Errno> {
        let own = &self.threads[thread];
        let books = &self.domains[own.domain].books;
        let outcome = books.admission.thread_begins(own.admin.get());
        self.check_admitted(thread, "gets counters", outcome, refusal((), books.started.get()));
        own.admitted.set(outcome.is_ok());
        outcome
    }

    /// Takes the counters of a thread that ends, and closes its descriptor.
    pub fn dismiss_thread(&self, thread: usize, vcpu: usize) {
        let own = &self.threads[thread];
        if own.admitted.replace(false) {
            let admission = &self.domains[own.domain].books.admission;
            admission.thread_ends(own.admin.get());
        }
        self.close(thread, vcpu);
    }

    /// Returns whether threads of an administrator have counters.
    fn has_privileged(&self, domain: usize) -> bool {
        let privileged = |thread: &Thread| thread.admitted.get() && thread.admin.get();
        self.threads[self.domains[domain].threads.clone()].iter().any(privileged)
    }

    /// Makes a thread operate whole CPUs, or try to.
    pub fn operate_cpu_wide(&self, thread: usize, rng: &mut Rng) {
        let own = &self.threads[thread];
        self.in_kernel(|vcpu| {
            let operation = rng.below(8);
            let number = match operation {
                0..3 => IOC_CPU_CONTROL,
                3..6 => IOC_CPU_READ,
                6 => IOC_CPU_STOP,
                _ => IOC_CPU_START,
            };
            let descriptor = Descriptor { is_writable: true, ..Descriptor::default() };
            let person = Person { is_admin: own.admin.get() };
            let outcome = admit(number, descriptor, &person).map(|request| request.number);
            let truth = if own.admin.get() { Ok(number) } else { Err(Errno::PERM) };
            self.check_admitted(thread, "asks about CPUs", outcome, truth);
            if self.is_gone()
                || outcome.is_err()
                || self.is_locked(own.domain)
                || self.domains[own.domain].caps.get().is_none()
            {
                return;
            }
            match operation {
                0..3 => self.set_and_start(thread, vcpu, rng),
                3..6 => self.read_cpu_wide(vcpu),
                6 => self.stop_cpu_wide(thread, vcpu),
                _ => self.close(thread, vcpu),
            }
        });
    }

    /// Returns the vCPUs of a domain that have something to count.
    fn cpus_set(&self, domain: usize) -> u32 {
        let vcpus = &self.vcpus[self.domains[domain].vcpus.clone()];
        vcpus.iter().filter(|vcpu| vcpu.cpu_wide.control.get().is_some()).count() as u32
    }

    /// Returns whether somebody waits for other CPUs to start or stop.
    fn is_locked(&self, domain: usize) -> bool {
        let vcpus = &self.vcpus[self.domains[domain].vcpus.clone()];
        vcpus.iter().any(|vcpu| vcpu.cpu_wide.asked.get().is_some())
    }

    /// Makes the request `IOC_CPU_CONTROL` for some vCPUs, and starts.
    fn set_and_start(&self, thread: usize, here: usize, rng: &mut Rng) {
        let domain = self.threads[thread].domain;
        let (books, by) = (&self.domains[domain].books, descriptor(thread));
        for vcpu in self.domains[domain].vcpus.clone() {
            if self.vcpus[vcpu].online.get() && !rng.one_in(4) {
                self.set_cpu_wide(thread, vcpu, rng);
            }
        }
        let set = self.cpus_set(domain);
        let refused =
            books.started.get() || set > 0 && (books.is_others(by) || self.has_privileged(domain));
        let outcome = books.admission.cpus_start(by);
        self.check_admitted(thread, "starts CPUs", outcome, refusal(set, refused));
        if outcome.is_err() || set == 0 {
            return;
        }
        books.owner.set(Some(by));
        books.started.set(true);
        books.times.set(books.times.get() + 1);
        for vcpu in self.domains[domain].vcpus.clone() {
            let own = &self.vcpus[vcpu];
            if own.cpu_wide.control.get().is_some() && own.online.get() {
                own.cpu_wide.asked.set(Some(Asked::Start));
            }
        }
        self.take_cpu_wide(here);
    }

    /// Makes the request `IOC_CPU_CONTROL`.
    fn set_cpu_wide(&self, thread: usize, vcpu: usize, rng: &mut Rng) {
        let domain = &self.domains[self.threads[thread].domain];
        let Some(caps) = domain.caps.get() else { return };
        let control = Control { preserve: 0, ..self.random_control(rng) };
        let state = CpuState { control, ..CpuState::default() };
        let samples = control.counter.iter().any(|counter| counter.mode != 0);
        let (books, by) = (&domain.books, descriptor(thread));
        let counted = self.vcpus[vcpu].cpu_wide.control.get().is_some();
        let set = self.cpus_set(self.threads[thread].domain) + u32::from(!counted);
        let refused = books.started.get() || books.is_others(by);
        let truth = if samples { Err(Errno::PERM) } else { refusal((true, set), refused) };
        let outcome = books.admission.cpu_set(by, &caps, &state, counted);
        self.check_admitted(thread, "sets a CPU", outcome, truth);
        if outcome.is_err() {
            return;
        }
        books.owner.set(Some(by));
        let wide = &self.vcpus[vcpu].cpu_wide;
        *wide.pmu.borrow_mut() = Some(without_steps(|| ThreadPmu::new(&wide.page, 0)));
        *wide.truth.borrow_mut() = Truth::new();
        wide.control.set(Some(control));
    }

    /// Makes a vCPU do the work for which it is interrupted.
    pub fn take_cpu_wide(&self, index: usize) {
        let domain = self.vcpus[index].domain;
        let asked = &self.vcpus[index].cpu_wide.asked;
        let work = asked.get();
        match work {
            Some(Asked::Start) => self.start_here(index),
            Some(Asked::Stop) => self.stop_here(index),
            None => (),
        }
        // If the vCPU is asked to stop while it starts, it is interrupted once more.
        if asked.get() == work {
            asked.set(None);
        }
        self.finish_stop(domain);
    }

    fn start_here(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let (wide, domain) = (&vcpu.cpu_wide, &self.domains[vcpu.domain]);
        let (Some(control), Some(caps)) = (wide.control.get(), domain.caps.get()) else { return };
        let suspend = |_: &mut Here<'_>, (): &mut ()| self.suspend_present(index);
        let result = self.here(index).start_cpu_wide(ROOT, &mut (), suspend, |here, ()| {
            let mut pmu = wide.pmu.borrow_mut();
            let Some(pmu) = pmu.as_mut() else { return Ok(()) };
            let current = vcpu.current.get();
            let mut thread = current.map(|thread| self.threads[thread].pmu.borrow_mut());
            let thread = thread.as_mut().and_then(|pmu| pmu.as_mut());
            let beside = thread.zip(current.map(|thread| &self.threads[thread].page));
            current.inspect(|&thread| self.disturb(thread, true));
            let started = here.with_cpu(|cpu| {
                let own = (pmu, &wide.page);
                cpu.start_cpu_wide(own, beside, &domain.counting, &caps, &control)
            });
            current.inspect(|&thread| self.disturb(thread, false));
            started
        });
        if let Err(errno) = result {
            self.check_cpu_wide_error(index, errno);
            return self.stop_all(vcpu.domain, index);
        }
        wide.counts.set(true);
        let now = of_vcpu(&self.moment(None, index));
        let truth = &mut wide.truth.borrow_mut();
        truth.control(&control, &now, false);
        if wide.state() & THREAD_ACTIVE != 0 {
            truth.resume(&looks_of_vcpu(vcpu.sampling.borrow().last()));
        }
    }

    /// Notes that the kernel begins to change the counters of the thread that executes where
    /// CPU-wide counting starts, or that it has changed them.
    fn disturb(&self, thread: usize, begins: bool) {
        let own = &self.threads[thread];
        if begins {
            self.check_claims(thread);
            own.changes.set(own.changes.get() + 1);
            self.touch(Object::Thread(thread), true);
        }
        own.changing.set(begins);
    }

    /// Makes the core end CPU-wide counting on a vCPU, if the vCPU counts CPU-wide.
    fn stop_here(&self, index: usize) {
        let own = self.own_observer(index);
        let ended = self.here(index).end_cpu_wide(own, |_| self.suspend_present(index));
        self.check_pages(index, ended);
    }

    /// Stops a vCPU's counters, if it counts CPU-wide.
    pub fn stop_counting_cpu_wide(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let (wide, counting) = (&vcpu.cpu_wide, &self.domains[vcpu.domain].counting);
        if !wide.counts.get() {
            return;
        }
        if let Some(pmu) = wide.pmu.borrow_mut().as_mut() {
            self.with_core(index, |cpu| cpu.stop_cpu_wide((pmu, &wide.page), counting));
        }
        wide.counts.set(false);
        self.close_books_of(index);
    }

    /// Makes the kernel of a vCPU trace an interrupt of user mode, if it counts CPU-wide.
    pub fn interrupt_cpu_wide(&self, index: usize) {
        let wide = &self.vcpus[index].cpu_wide;
        if let Some(pmu) = wide.pmu.borrow_mut().as_mut().filter(|_| wide.counts.get()) {
            self.with_core(index, |cpu| pmu.subtract_interrupt(&wide.page, cpu, true));
        }
    }

    /// Notes that a vCPU, which has stopped, is offline.
    pub fn cpu_wide_went_offline(&self, index: usize) {
        self.vcpus[index].cpu_wide.asked.set(None);
        self.finish_stop(self.vcpus[index].domain);
    }

    /// Checks that the values that a stopped vCPU leaves behind are the truth.
    fn close_books_of(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        {
            let truth = &mut vcpu.cpu_wide.truth.borrow_mut();
            truth.suspend(&looks_of_vcpu(vcpu.sampling.borrow().first()));
            truth.stop(&of_vcpu(&self.moment(None, index)));
        }
        self.check_left_behind(index);
        self.ask_to_stop(vcpu.domain);
    }

    fn check_left_behind(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        if vcpu.cpu_wide.state() & THREAD_FAILED != 0 || vcpu.cpu_wide.pmu.borrow().is_none() {
            return;
        }
        match without_steps(|| published(&vcpu.cpu_wide.page)) {
            Ok(Some(sums)) => {
                self.check_cpu_wide(index, &sums, &Looks::default(), "what is published");
            }
            Ok(None) => self.fail(format!("vCPU {index}'s sums are being written by nobody")),
            Err(errno) => self.check_cpu_wide_error(index, errno),
        }
    }

    /// Makes the request `IOC_CPU_READ` for this vCPU.
    fn read_cpu_wide(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        if !vcpu.cpu_wide.counts.get() {
            return self.check_left_behind(index);
        }
        let mut sums = Sums::default();
        let result = {
            let pmu = vcpu.cpu_wide.pmu.borrow();
            let Some(pmu) = pmu.as_ref() else { return };
            self.with_core(index, |cpu| pmu.read(cpu, &mut sums))
        };
        match result {
            Ok(()) => {
                let looks = looks_of_vcpu(vcpu.sampling.borrow().last());
                self.check_cpu_wide(index, &sums, &looks, "a read");
            }
            Err(errno) => self.check_cpu_wide_error(index, errno),
        }
    }

    fn check_cpu_wide(&self, index: usize, sums: &Sums, looks: &Looks, who: &str) {
        let vcpu = &self.vcpus[index];
        if self.domains[vcpu.domain].kind != Kind::Good || self.is_gone() {
            return;
        }
        self.readings.set(self.readings.get() + 1);
        let truth = vcpu.cpu_wide.truth.borrow();
        let mut pairs = vec![];
        if truth.has_tsc() {
            pairs.push((sums.tsc, truth.tsc(looks)));
        }
        pairs.extend((0..truth.used()).map(|n| (sums.counter[n], truth.counter(n, looks))));
        if let Some((answer, truth)) = pairs.iter().find(|(answer, truth)| answer != truth) {
            self.fail(format!("vCPU {index} CPU-wide: {who} gives {answer}, not {truth}"));
        }
    }

    /// Checks that a CPU which counts lacks numbers only if the host forbids them, or a sample was
    /// disturbed.
    fn check_cpu_wide_error(&self, index: usize, errno: Errno) {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        if domain.kind != Kind::Good || self.is_gone() {
            return;
        }
        let forbidden = errno == Errno::PERM && domain.forbidden.get() > 0;
        let failed = vcpu.cpu_wide.state() & THREAD_FAILED != 0;
        let disturbed = errno == Errno::NODEV && (failed || self.was_disturbed());
        if !forbidden && !disturbed {
            self.fail(format!("vCPU {index} CPU-wide has no numbers: {errno:?}"));
        }
    }

    /// Makes a descriptor stop whole CPUs.
    fn stop_cpu_wide(&self, thread: usize, here: usize) {
        let domain = self.threads[thread].domain;
        let (books, by) = (&self.domains[domain].books, descriptor(thread));
        let outcome = books.admission.cpus_stop(by);
        let truth = refusal(books.started.get(), books.is_others(by));
        self.check_admitted(thread, "stops CPUs", outcome, truth);
        if outcome == Ok(true) {
            self.stop_all(domain, here);
        }
    }

    /// Makes every vCPU stop: this one now, the others soon.
    fn stop_all(&self, domain: usize, here: usize) {
        self.domains[domain].books.stopping.set(true);
        for vcpu in self.domains[domain].vcpus.clone() {
            let wide = &self.vcpus[vcpu].cpu_wide;
            if wide.counts.get() || wide.asked.get().is_some() {
                wide.asked.set(Some(Asked::Stop));
            }
        }
        self.take_cpu_wide(here);
    }

    /// Notes that whole CPUs have stopped, if no vCPU counts or is about to.
    fn finish_stop(&self, domain: usize) {
        let vcpus = &self.vcpus[self.domains[domain].vcpus.clone()];
        let books = &self.domains[domain].books;
        let counts = vcpus.iter().any(|vcpu| vcpu.cpu_wide.counts.get());
        // Counting does not end if its CPUs have gone offline.
        if counts || self.is_locked(domain) || !books.stopping.get() {
            return;
        }
        books.stopping.set(false);
        books.admission.cpus_stopped();
        books.started.set(false);
        if books.closing.take()
            && let Some(owner) = books.owner.take()
        {
            let forgotten = books.admission.closed(owner);
            if !forgotten && self.domains[domain].kind == Kind::Good && !self.is_gone() {
                self.fail(format!("descriptor {owner} is closed, but its CPUs stay set"));
            }
        }
    }

    /// Closes a descriptor: what it has set and started ends with it.
    fn close(&self, thread: usize, here: usize) {
        let domain = self.threads[thread].domain;
        let (books, by) = (&self.domains[domain].books, descriptor(thread));
        if books.owner.get() != Some(by) {
            let outcome = Ok(books.admission.closed(by));
            return self.check_admitted(thread, "owned CPUs", outcome, Ok(false));
        }
        books.closing.set(true);
        self.stop_all(domain, here);
        for vcpu in self.domains[domain].vcpus.clone() {
            self.vcpus[vcpu].cpu_wide.control.set(None);
        }
    }
}
