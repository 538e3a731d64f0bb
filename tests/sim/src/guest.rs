// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates a guest kernel around the module's core: Linux, and the functions that the glue
//! provides for the core.

use std::cell::RefMut;
use std::rc::Rc;

use guest_kmod::hal::{Hypervisor, Kernel};
use guest_kmod::handshake::{caps, handshake, handshake_again};
use guest_kmod::ioctl::check_create;
use guest_kmod::overflow::Signal;
use guest_kmod::ring::RingPlace;
use guest_kmod::thread::{Switch, switch_in, switch_in_measured, switch_out};
use guest_kmod::{LocalVcpu, Reporter, Ring, ThisVcpu, ThreadPmu};
use shared_abi::ioctl::{CONTROL_TSC, Control, Create, Sums};
use shared_abi::read::Counters;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::{THREAD_ACTIVE, THREAD_FAILED};
use shared_abi::version::ABI_MAJOR;
use shared_abi::{Errno, ThreadPage, VcpuPage};

use crate::choice::Action;
use crate::machine::{Counts, INTERRUPT, Level, Life, Machine, add, without_steps};
use crate::rng::Rng;
use crate::search::Object;
use crate::shape::Kind;
use crate::trace::Step;
use crate::truth::Moment;

/// The kernel of the vCPU that executes.
pub struct Linux<'a>(&'a Machine);

impl Counters for Linux<'_> {
    fn counter(&self, index: u32) -> u64 {
        let machine = self.0;
        machine.step(Step::Rdpmc(index));
        if machine.is_gone() {
            return 0;
        }
        let vcpu = &machine.vcpus[machine.vcpu_here()];
        let Some((counter, value)) = machine.cpus[machine.here.get()].pmu.rdpmc(index) else {
            machine.fail(format!("the module faults: RDPMC {index:#x}"));
            return 0;
        };
        let moment = machine.moment(vcpu.current.get(), machine.vcpu_here());
        vcpu.sampling.borrow_mut().counter(counter, moment);
        value
    }

    fn clock(&self) -> u64 {
        let machine = self.0;
        machine.step(Step::Rdtsc);
        if machine.is_gone() {
            return 0;
        }
        let vcpu = machine.vcpu_here();
        machine.vcpus[vcpu].sampling.borrow_mut().tsc(machine.vcpu_tsc(vcpu));
        machine.guest_tsc(vcpu)
    }
}

/// The hypervisor beneath the guest.
struct Host<'a>(&'a Machine);

impl Hypervisor for Host<'_> {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.0.hypercall(op, argument)
    }
}

impl Hypervisor for Linux<'_> {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let machine = self.0;
        if machine.is_gone() {
            return Err(Errno::NODEV);
        }
        machine.vcpus[machine.vcpu_here()].restoration.hypercall(&Host(machine), op, argument)
    }
}

impl Kernel for Linux<'_> {
    fn frame_of(&self, page: &VcpuPage) -> u64 {
        let machine = self.0;
        if machine.is_gone() { 0 } else { machine.gfn_of(machine.vcpu_here(), page) }
    }
}

/// A thread that is being switched on a vCPU.
struct Switching<'a> {
    machine: &'a Machine,
    index: usize,
    thread: usize,
    pmu: RefMut<'a, ThreadPmu>,
    kernel: Linux<'a>,
    /// The module's state of the vCPU, unless it is borrowed for something else.
    module: Option<RefMut<'a, guest_kmod::Vcpu>>,
}

impl<'a> Switch for Switching<'a> {
    type Kernel = Linux<'a>;
    type Notice = Option<Signal>;

    fn parts(&mut self) -> (&mut ThreadPmu, &ThreadPage, ThisVcpu<'_, Linux<'a>>) {
        let vcpu = &self.machine.vcpus[self.index];
        let module = self.module.get_or_insert_with(|| self.machine.enter_module(self.index));
        let cpu = ThisVcpu {
            number: vcpu.id,
            page: vcpu.page(),
            vcpu: module,
            shown: &vcpu.shown,
            stats: &vcpu.stats,
            kernel: &self.kernel,
        };
        (&mut self.pmu, &self.machine.threads[self.thread].page, cpu)
    }

    fn show_page(&mut self) {
        self.module = None;
        self.machine.show_if_counting(self.index, self.thread, self.pmu.needs());
    }

    fn notice(signal: Option<Signal>) -> Option<Signal> {
        signal
    }
}

/// A thread that executes, to which overflows are reported.
struct Reporting<'a> {
    machine: &'a Machine,
    index: usize,
    thread: usize,
}

impl Reporter for Reporting<'_> {
    fn with_ring<R>(&mut self, run: impl FnOnce(&ThreadPmu, &ThreadPage, &Ring) -> R) -> R {
        let own = &self.machine.threads[self.thread];
        let pmu = own.pmu.borrow();
        run(
            pmu.as_ref().expect("a thread that is told of overflows has counters"),
            &own.page,
            &own.ring.ring,
        )
    }

    fn send(&mut self, signal: Signal) -> bool {
        let machine = self.machine;
        let is_sent = !machine.shape.loses_signals || !machine.steps.get().is_multiple_of(3);
        if is_sent {
            machine.threads[self.thread].signal.set(Some(signal));
        }
        is_sent
    }

    fn signal_lost(&mut self) {
        let (machine, index, thread) = (self.machine, self.index, self.thread);
        let page = &machine.threads[thread].page;
        machine.on_thread(index, thread, |pmu, cpu| pmu.signal_lost(page, cpu));
        machine.went_on(index, thread);
    }

    fn write(&mut self, place: &RingPlace) {
        self.machine.write_record(self.thread, place);
    }

    fn wake(&mut self) {
        self.machine.threads[self.thread].ring.is_woken.set(true);
    }
}

impl Machine {
    /// Executes an action.
    pub fn act(self: &Rc<Self>, action: Action) {
        if self.trace {
            crate::trace::print_action(self, action);
        }
        self.coverage.happens(action);
        match action {
            Action::Cpu(cpu) => self.here.set(cpu),
            Action::Switch(_) | Action::SwitchFailing(_) => {
                let failsafe = matches!(action, Action::SwitchFailing(_));
                let next = match action {
                    Action::Switch(next) => next,
                    Action::SwitchFailing(next) => Some(next),
                    _ => None,
                };
                let here = self.here.get();
                self.cpus[here].switching.set(true);
                if let Some(next) = next {
                    self.vcpus[next].on.set(Some(here));
                }
                self.begin(here, 1 + next.map_or(0, |next| 1 + next as u64));
                let machine = Rc::clone(self);
                let job = move || machine.switch_vcpu(next, failsafe);
                self.agents[here].fiber.borrow_mut().start(Box::new(job));
            }
            Action::Pmi => self.interrupt_host(Self::take_pmi),
            Action::Revoke => self.interrupt_host(Self::take_revocation),
            Action::Replug => self.interrupt_host(Self::replug),
            Action::Policy(domain) => self.change_policy(domain),
            Action::Suspend(domain) => self.domains[domain].suspending.set(true),
            Action::Restore(domain) => self.restore(domain),
            Action::Move(domain) => self.move_to_another(domain),
            Action::Destroy(domain) => self.destroy(domain),
            Action::Create(domain) => self.create(domain),
            Action::Garbage(domain) => self.write_garbage(domain),
            Action::HostsPerf(host) => self.change_hosts_perf(host),
            Action::Settle(host) => self.settle_counters(host),
            Action::Schedule(_)
            | Action::Tick
            | Action::Virq
            | Action::Nmi
            | Action::StopIdle
            | Action::CpuWide
            | Action::Offline
            | Action::Online => {
                let vcpu = self.vcpu_here();
                self.vcpus[vcpu].busy.set(true);
                if let Action::Schedule(Some(next)) = action {
                    self.threads[next].life.set(Life::Current);
                    self.threads[next].on.set(Some(vcpu));
                }
                self.begin(self.kernel_agent(vcpu), action.code());
                let machine = Rc::clone(self);
                let job = move || machine.interrupt(vcpu, action);
                let agent = &self.agents[self.kernel_agent(vcpu)];
                agent.fiber.borrow_mut().start(Box::new(job));
            }
        }
    }

    /// Makes the hypervisor interrupt the code that executes on this physical CPU, to do `work`.
    fn interrupt_host(self: &Rc<Self>, work: fn(&Self)) {
        let here = self.here.get();
        self.cpus[here].switching.set(true);
        self.begin(here, 0);
        let machine = Rc::clone(self);
        self.agents[here].fiber.borrow_mut().start(Box::new(move || work(&machine)));
    }

    /// Makes the kernel of a vCPU interrupt the code that executes there.
    pub fn interrupt(self: Rc<Self>, index: usize, work: Action) {
        let vcpu = &self.vcpus[index];
        if vcpu.current.get().is_some() && !vcpu.kernel_mode.get() {
            let is_counted = self.interrupt_own_guest(index);
            self.toggle(true);
            if is_counted {
                self.subtract_interrupt(index);
            }
        }
        match work {
            Action::Schedule(next) => self.switch_thread(index, next),
            Action::StopIdle => {
                vcpu.stop_asked.set(false);
                let counting = &self.domains[vcpu.domain].counting;
                self.with_core(index, |cpu| cpu.stop_if_idle(counting));
            }
            Action::Virq | Action::Nmi => {
                self.take_nmi(index);
                self.take_virq(index);
                self.perf_interrupt(index);
            }
            Action::CpuWide => self.take_cpu_wide(index),
            Action::Offline => self.take_offline(index),
            Action::Online => self.bring_online(index),
            _ => {
                self.step(Step::Note("tick"));
                self.perf_tick(index);
            }
        }
        if vcpu.current.get().is_some() {
            self.report_if_due(index);
            self.toggle(false);
        }
        vcpu.busy.set(false);
    }

    /// Makes the kernel of a vCPU trace an interrupt of user mode, twice, as Linux may do.
    fn subtract_interrupt(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        for _ in 0..2 {
            if let Some(thread) = vcpu.current.get() {
                let page = &self.threads[thread].page;
                self.on_thread(index, thread, |pmu, cpu| pmu.subtract_interrupt(page, cpu, true));
            }
            self.interrupt_cpu_wide(index);
            self.with_core(index, |cpu| cpu.subtract_interrupt_from_events(true));
        }
        // The host may have stopped the counters before they have counted the interrupt, or after
        // that and before the kernel has traced it. The module cannot tell these apart.
        if vcpu.counts.get() != Counts::All {
            let thread = vcpu.current.get().map(|thread| &self.threads[thread].unclear);
            for unclear in [Some(&vcpu.unclear), thread].into_iter().flatten() {
                unclear.set(add(unclear.get(), &INTERRUPT));
            }
        }
    }

    fn take_offline(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        self.switch_thread(index, None);
        vcpu.online.set(false);
        if let Err(errno) = self.here(index).go_offline() {
            self.check_refusal(vcpu.domain, "to take a page back", errno);
        }
        self.cpu_wide_went_offline(index);
        self.perf_offline(index);
    }

    fn bring_online(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        if domain.caps.get().is_none() {
            match handshake(&Linux(self)) {
                Ok(answer) => {
                    self.check_handshake(&answer);
                    domain.caps.set(caps(&answer));
                    domain.answer.set(Some(answer));
                }
                Err(errno) => return self.check_refusal(vcpu.domain, "the handshake", errno),
            }
        }
        let restored = vcpu.lost_page.take();
        if self.shape.kvm {
            vcpu.restoration.begin(&Host(self));
        }
        let online = match domain.answer.get() {
            Some(before) if restored => {
                self.here(index).restore(handshake_again(&Linux(self), &before).map(drop))
            }
            _ => self.here(index).come_online(Ok(())),
        };
        match online {
            Ok(()) => {
                vcpu.online.set(true);
                self.check_identity(index);
            }
            Err(errno) => self.check_refusal(vcpu.domain, "to register", errno),
        }
        if restored {
            self.page_changed(index);
            vcpu.restoration.looked();
        }
    }

    /// Checks that the host refuses a module's request only if the domain is or was forbidden.
    pub fn check_refusal(&self, domain: usize, what: &str, errno: Errno) {
        let domain = &self.domains[domain];
        let forbidden = domain.forbidden.get() > 0 && errno == Errno::PERM;
        if !forbidden && domain.kind == Kind::Good && !self.is_gone() {
            self.fail(format!("refused {what}: {errno:?}"));
        }
    }

    /// Runs the module's core on a vCPU.
    pub fn with_core<'a, R>(
        &'a self,
        index: usize,
        run: impl FnOnce(&mut ThisVcpu<'_, Linux<'a>>) -> R,
    ) -> R {
        let vcpu = &self.vcpus[index];
        run(&mut ThisVcpu {
            number: vcpu.id,
            page: vcpu.page(),
            vcpu: &mut self.enter_module(index),
            shown: &vcpu.shown,
            stats: &vcpu.stats,
            kernel: &Linux(self),
        })
    }

    /// Begins to run the module's core on a vCPU.
    fn enter_module(&self, index: usize) -> RefMut<'_, guest_kmod::Vcpu> {
        let vcpu = &self.vcpus[index];
        vcpu.sampling.borrow_mut().restart();
        vcpu.undisturbed.set(vcpu.disturbances.get());
        self.touch(Object::Module(index), true);
        vcpu.module.borrow_mut()
    }

    /// Runs the module's core on the counters of a thread that executes on a vCPU.
    pub fn on_thread<R>(
        &self,
        vcpu: usize,
        thread: usize,
        run: impl FnOnce(&mut ThreadPmu, &mut ThisVcpu<'_, Linux<'_>>) -> R,
    ) -> Option<R> {
        self.with_pmu(vcpu, thread, |mut pmu| self.with_core(vcpu, |cpu| run(&mut pmu, cpu)))
    }

    /// Runs the module's core on the counters of a thread that executes on a vCPU.
    fn with_pmu<'a, R>(
        &'a self,
        vcpu: usize,
        thread: usize,
        run: impl FnOnce(RefMut<'a, ThreadPmu>) -> R,
    ) -> Option<R> {
        let pmu = self.threads[thread].pmu.borrow_mut();
        let pmu = RefMut::filter_map(pmu, Option::as_mut).ok()?;
        self.check_claims(thread);
        self.threads[thread].changing.set(true);
        self.threads[thread].changes.set(self.threads[thread].changes.get() + 1);
        self.touch(Object::Thread(thread), true);
        let failures = self.threads[thread].failures.get();
        let result = run(pmu);
        if self.threads[thread].failures.get() != failures {
            self.check_published_failure(vcpu, thread);
        }
        self.threads[thread].changing.set(false);
        Some(result)
    }

    fn state(&self, thread: usize) -> u32 {
        without_steps(|| self.threads[thread].page.state.load(Relaxed))
    }

    fn switch_thread(&self, index: usize, next: Option<usize>) {
        let vcpu = &self.vcpus[index];
        let kernel = self.shape.seed & 1 != 0;
        let has_left = self.leave_to(index, next);
        let swapped = self.perf_out(index, next);
        if let Some(prev) = vcpu.current.get() {
            if kernel {
                let page = &self.threads[prev].page;
                self.on_thread(index, prev, |pmu, cpu| pmu.switch_out_measured(page, cpu));
            } else {
                self.switch(index, prev, switch_out);
            }
            if !has_left {
                self.suspended(index, prev);
                self.published(index, prev);
            }
            self.threads[prev].life.set(Life::Ready);
            self.threads[prev].on.set(None);
        }
        vcpu.current.set(next);
        let Some(next) = next else { return };
        self.perf_in(index, next, swapped);
        let found = self.switch(index, next, if kernel { switch_in_measured } else { switch_in });
        self.note_signal(index, next, found.flatten());
        self.resumed(index, next);
        self.report(index, next);
    }

    /// Makes the core switch a thread, if the thread has counters.
    fn switch<'a, R>(
        &'a self,
        index: usize,
        thread: usize,
        switch: impl FnOnce(Switching<'a>) -> R,
    ) -> Option<R> {
        self.with_pmu(index, thread, |pmu| {
            let (machine, kernel) = (self, Linux(self));
            switch(Switching { machine, index, thread, pmu, kernel, module: None })
        })
    }

    /// Makes the kernel of a vCPU take the virtual interrupt of an overflow.
    fn take_virq(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        vcpu.virq.set(false);
        let thread = vcpu.current.get();
        let signal = thread.and_then(|thread| {
            let page = &self.threads[thread].page;
            self.on_thread(index, thread, |pmu, cpu| pmu.interrupt(page, cpu)).flatten()
        });
        if let Some(thread) = thread {
            self.interrupted(index, thread, signal);
            self.report(index, thread);
        }
        self.with_core(index, |cpu| cpu.count_interrupt(signal.is_some()));
    }

    /// Updates the truth about a thread after an interrupt that may have told it of an overflow.
    pub fn interrupted(&self, index: usize, thread: usize, signal: Option<Signal>) {
        let interrupted = self.vcpus[index].sampling.borrow().has_published();
        if interrupted {
            self.suspended(index, thread);
            self.published(index, thread);
        }
        self.note_signal(index, thread, signal);
        if interrupted {
            self.resumed(index, thread);
        }
    }

    /// Notes that a thread is told of an overflow, or that it is not told although it could have
    /// been.
    fn note_signal(&self, vcpu: usize, thread: usize, signal: Option<Signal>) {
        self.check_signal(thread, signal);
        let own = &self.threads[thread];
        match signal {
            Some(Signal { number: 0, .. }) => own.truth.borrow_mut().record(),
            Some(_) => own.truth.borrow_mut().pause(&self.moment(Some(thread), vcpu)),
            None => return,
        }
        own.found.set(signal);
    }

    /// Makes the kernel report to a thread the overflows that were found.
    pub fn report(&self, index: usize, thread: usize) {
        if let Some(found) = self.threads[thread].found.take() {
            if found.number == 0 {
                self.note_recorded(thread, found.counters);
            }
            Reporting { machine: self, index, thread }.report(found);
            self.check_woken(thread, found);
        }
        self.check_ring(thread);
    }

    /// Makes the request `IOC_RESUME`.
    pub fn go_on(&self, thread: usize) {
        let own = &self.threads[thread];
        self.in_kernel(|vcpu| {
            let result = self.here(vcpu).operate(own.owner.get(), |_| {
                self.on_thread(vcpu, thread, |pmu, cpu| pmu.go_on(&own.page, cpu))
            });
            own.signal.set(None);
            if result == Some(Ok(())) && !own.truth.borrow().is_paused() {
                self.fail(format!("thread {thread} goes on though nothing has paused it"));
            } else if result == Some(Ok(())) {
                self.went_on(vcpu, thread);
            } else if own.truth.borrow().is_paused() && !self.is_gone() {
                self.fail(format!("thread {thread} may not go on"));
            }
        });
    }

    /// Updates the truth about a thread whose paused counters continue.
    fn went_on(&self, vcpu: usize, thread: usize) {
        self.suspended(vcpu, thread);
        self.published(vcpu, thread);
        let now = self.moment(Some(thread), vcpu);
        self.threads[thread].truth.borrow_mut().go_on(&now);
        self.resumed(vcpu, thread);
    }

    /// Updates the truth about a thread after its suspension on a vCPU.
    pub fn suspended(&self, vcpu: usize, thread: usize) {
        let truth = &mut self.threads[thread].truth.borrow_mut();
        truth.suspend(self.vcpus[vcpu].sampling.borrow().first());
    }

    /// Publishes the truth about a thread that is suspended.
    pub fn published(&self, vcpu: usize, thread: usize) {
        let own = &self.threads[thread];
        let now = self.moment(Some(thread), vcpu);
        own.published.borrow_mut().push(own.truth.borrow().published(&now));
    }

    /// Updates the truth about a thread after its resumption on a vCPU.
    pub fn resumed(&self, vcpu: usize, thread: usize) {
        if self.state(thread) & THREAD_ACTIVE != 0 {
            let truth = &mut self.threads[thread].truth.borrow_mut();
            truth.resume(self.vcpus[vcpu].sampling.borrow().last());
        }
    }

    /// Starts a thread of a guest.
    pub fn spawn(self: &Rc<Self>, thread: usize) {
        self.threads[thread].life.set(Life::Ready);
        let machine = Rc::clone(self);
        let job = move || machine.live(thread);
        self.agents[self.thread_agent(thread)].fiber.borrow_mut().start(Box::new(job));
    }

    /// Makes a thread execute `entry` in its kernel, with interrupts disabled, on the vCPU that
    /// `entry` gets.
    pub fn in_kernel<R>(&self, entry: impl FnOnce(usize) -> R) -> Option<R> {
        self.step(Step::Note("system call"));
        if self.is_gone() {
            return None;
        }
        let vcpu = self.vcpu_here();
        let result = self.at_level(Level::Kernel, || {
            self.toggle(true);
            let result = entry(vcpu);
            self.report_if_due(vcpu);
            self.toggle(false);
            result
        });
        Some(result)
    }

    /// Makes the request `IOC_CREATE`. Returns whether it succeeded.
    pub fn create_counters(&self, thread: usize) -> bool {
        let own = &self.threads[thread];
        let create = Create { abi_major: u32::from(ABI_MAJOR), ..Create::default() };
        self.in_kernel(|vcpu| {
            if let Err(errno) = check_create(&create) {
                self.fail(format!("refused to create counters: {errno:?}"));
            }
            if self.admit_thread(thread).is_err() {
                return false;
            }
            own.changing.set(true);
            let mut pmu = ThreadPmu::new(&own.page, own.tid);
            self.begin_ring(thread, &mut pmu);
            *own.pmu.borrow_mut() = Some(pmu);
            self.published(vcpu, thread);
            own.changing.set(false);
            true
        })
        .unwrap_or(false)
    }

    /// Makes the request `IOC_CONTROL`.
    pub fn control(&self, thread: usize, control: &Control) {
        let own = &self.threads[thread];
        let domain = &self.domains[own.domain];
        let Some(caps) = domain.caps.get() else { return };
        self.in_kernel(|vcpu| {
            let forbidden = domain.forbidden.get();
            let allowed = domain.allowed.get();
            let failed = self.state(thread) & THREAD_FAILED != 0;
            let failures = own.failures.get();
            let result = self.here(vcpu).operate(own.owner.get(), |_| {
                self.on_thread(vcpu, thread, |pmu, cpu| {
                    pmu.control(&own.page, cpu, &domain.counting, &caps, control)
                })
            });
            self.note_counts(thread, false);
            // An invalid control is refused before anything is suspended.
            let done = result == Some(Ok(())) || self.vcpus[vcpu].sampling.borrow().has_published();
            if done {
                self.suspended(vcpu, thread);
                self.published(vcpu, thread);
            }
            if result == Some(Ok(())) {
                let now = self.moment(Some(thread), vcpu);
                if control.counters == 0 && control.flags & CONTROL_TSC == 0 {
                    own.truth.borrow_mut().stop(&now);
                } else {
                    let failed = failed || own.failures_before.get() != failures;
                    own.truth.borrow_mut().control(control, &now, failed);
                    own.asked.set(Some(*control).filter(|control| control.counters > 0));
                    let undisturbed = allowed && domain.forbidden.get() == forbidden;
                    own.started.set(undisturbed.then_some(forbidden));
                    own.cpu_wide.set(domain.books.times_before());
                }
                self.published(vcpu, thread);
            }
            if done {
                self.resumed(vcpu, thread);
            }
            self.ask_to_stop(own.domain);
            match result {
                Some(Err(errno)) => self.check_control_error(thread, control, errno),
                Some(Ok(())) => self.check_control(thread, control),
                None => (),
            }
            let signal = self.on_thread(vcpu, thread, |pmu, cpu| pmu.report(&own.page, cpu));
            self.interrupted(vcpu, thread, signal.flatten());
            self.report(vcpu, thread);
            self.check_all_recorded(thread);
        });
    }

    /// Makes the request `IOC_CONTROL` as the tracer of a thread that is asleep, or `IOC_RESUME`
    /// without a control.
    pub fn operate_asleep(&self, thread: usize, control: Option<Control>) {
        let own = &self.threads[thread];
        let domain = &self.domains[own.domain];
        let Some(caps) = domain.caps.get() else { return };
        self.in_kernel(|vcpu| {
            if own.life.get() != Life::Ready || own.pmu.borrow().is_none() {
                return;
            }
            own.life.set(Life::Held);
            own.traced.set(own.traced.get() + 1);
            self.check_claims(thread);
            own.changing.set(true);
            let failed = self.state(thread) & THREAD_FAILED != 0;
            match control {
                Some(control) => {
                    let result = own.pmu.borrow_mut().as_mut().map(|pmu| {
                        pmu.control_asleep(&own.page, &domain.counting, &caps, &control)
                    });
                    self.note_counts(thread, true);
                    let now = self.moment(Some(thread), vcpu);
                    self.controlled_asleep(thread, &control, result, &now, failed);
                    self.published(vcpu, thread);
                }
                None => self.go_on_asleep(thread, vcpu),
            }
            own.changing.set(false);
            own.life.set(Life::Ready);
            self.ask_to_stop(own.domain);
        });
    }

    /// Updates the truth about a thread after its tracer's request.
    fn controlled_asleep(
        &self,
        thread: usize,
        control: &Control,
        result: Option<Result<(), Errno>>,
        now: &Moment,
        failed: bool,
    ) {
        let own = &self.threads[thread];
        let domain = &self.domains[own.domain];
        match result {
            Some(Ok(())) if control.counters == 0 && control.flags & CONTROL_TSC == 0 => {
                own.truth.borrow_mut().stop(now);
            }
            Some(Ok(())) => {
                own.truth.borrow_mut().control(control, now, failed);
                own.asked.set(Some(*control).filter(|control| control.counters > 0));
                own.started.set(domain.allowed.get().then_some(domain.forbidden.get()));
                own.cpu_wide.set(domain.books.times_before());
                self.check_control(thread, control);
            }
            Some(Err(errno)) => self.check_control_error(thread, control, errno),
            None => (),
        }
    }

    fn go_on_asleep(&self, thread: usize, vcpu: usize) {
        let own = &self.threads[thread];
        let result = own.pmu.borrow_mut().as_mut().map(|pmu| pmu.go_on_asleep());
        let paused = own.truth.borrow().is_paused();
        let good = self.domains[own.domain].kind == Kind::Good && !self.is_gone();
        if good && result.is_some_and(|result| result.is_ok() != paused) {
            self.fail(format!("thread {thread}, paused: {paused}, goes on by {result:?}"));
        }
        if paused {
            own.truth.borrow_mut().go_on(&self.moment(Some(thread), vcpu));
        }
    }

    /// Asks every vCPU to stop its counters soon, if nobody counts any more.
    pub fn ask_to_stop(&self, domain: usize) {
        let domain = &self.domains[domain];
        if domain.counting.is_idle() {
            for vcpu in domain.vcpus.clone() {
                self.vcpus[vcpu].stop_asked.set(true);
            }
        }
    }

    /// Makes the request `IOC_READ` for a thread's own counters.
    pub fn read_by_kernel(&self, thread: usize) {
        self.in_kernel(|vcpu| {
            let mut sums = Sums::default();
            let result = self.on_thread(vcpu, thread, |pmu, cpu| pmu.read(cpu, &mut sums));
            let sampling = self.vcpus[vcpu].sampling.borrow();
            match result {
                Some(Ok(())) => {
                    let Sums { tsc, counter } = sums;
                    self.check_values(thread, tsc, &counter, sampling.last(), "the kernel's read");
                }
                Some(Err(errno)) => self.check_failure(thread, errno),
                None => (),
            }
        });
    }

    /// Ends the thread. Another one may begin.
    pub fn exit(self: &Rc<Self>, thread: usize) {
        let own = &self.threads[thread];
        let domain = &self.domains[own.domain];
        self.step(Step::Note("exit"));
        if self.is_gone() {
            return;
        }
        let vcpu = self.vcpu_here();
        self.at_level(Level::Kernel, || {
            self.toggle(true);
            self.on_thread(vcpu, thread, |pmu, cpu| pmu.stop(&own.page, cpu, &domain.counting));
            own.counts.set(false);
            self.suspended(vcpu, thread);
            own.truth.borrow_mut().stop(&self.moment(Some(thread), vcpu));
            self.published(vcpu, thread);
            self.dismiss_thread(thread, vcpu);
            self.perf_exit(vcpu, thread);
            self.ask_to_stop(own.domain);
            own.on.set(None);
            own.life.set(Life::Ended);
            self.check_published(thread);
            if let Some(next) =
                domain.threads.clone().find(|&next| self.threads[next].life.get() == Life::Unborn)
            {
                self.spawn(next);
            }
            self.vcpus[vcpu].current.set(None);
        });
    }

    /// Makes a hostile kernel write anything anywhere in its pages.
    fn write_garbage(&self, domain: usize) {
        let domain = &self.domains[domain];
        let rng = &mut Rng::new(self.steps.get() ^ self.shape.seed);
        let vcpu = self.vcpus[domain.vcpus.start + rng.index(domain.vcpus.len())].page();
        let thread = &self.threads[domain.threads.start + rng.index(domain.threads.len())].page;
        let garbage = |rng: &mut Rng| {
            if rng.one_in(2) { rng.next() } else { [0, 1, 3, u64::MAX, 1 << 63][rng.index(5)] }
        };
        without_steps(|| match rng.below(4) {
            0 => drop(vcpu.seq.write(&mut garbage(rng))),
            1 => drop(thread.seq.write(&mut garbage(rng))),
            2 => {
                let slot = &vcpu.slots[rng.index(vcpu.slots.len())];
                slot.sum.store(garbage(rng), Relaxed);
                slot.start.store(garbage(rng), Relaxed);
                slot.mask.store(garbage(rng), Relaxed);
                vcpu.flags.store(garbage(rng) as u32, Relaxed);
                vcpu.tsc_sum.store(garbage(rng), Relaxed);
                vcpu.generation.store(garbage(rng), Relaxed);
                vcpu.loaded.store(garbage(rng) as u32, Relaxed);
            }
            _ => {
                let slot = &thread.slots[rng.index(thread.slots.len())];
                slot.slot.store(garbage(rng) as u32, Relaxed);
                slot.counter_index.store(garbage(rng) as u32, Relaxed);
                slot.start.store(garbage(rng), Relaxed);
                thread.vcpu.store(garbage(rng) as u32, Relaxed);
                thread.state.store(garbage(rng) as u32, Relaxed);
                thread.counters.store(garbage(rng) as u32, Relaxed);
            }
        });
    }
}
