// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates users of one guest: the pages that a vCPU's kernel has for them, and the rule that
//! each user sees only its own threads.

use guest_kmod::restore::prepare_next;
use guest_kmod::shown::{Identity, Observer, SUBJECT_KERNEL, SUBJECT_OPEN, Subject};
use guest_kmod::{LocalVcpu, ThisVcpu};
use shared_abi::{Config, Errno};

use crate::guest::Linux;
use crate::machine::{Level, Machine, PERFS, ROOT, without_steps};
use crate::rng::Rng;
use crate::shape::Kind;
use crate::trace::Step;

/// Returns the identity of a user's programs.
fn identity(uid: u32) -> Identity {
    Identity { container: 1, ids: uid.into(), ..Identity::default() }
}

pub fn observer(user: usize) -> Observer {
    let (identity, number) = (identity(user as u32), 1 + user as u32);
    Observer { identity, number, sees_kernel: user == ROOT }
}

/// A vCPU that executes its kernel, in the form in which the kernel passes it to the module's core.
pub struct Here<'a> {
    pub machine: &'a Machine,
    pub index: usize,
}

impl<'a> LocalVcpu for Here<'a> {
    type Kernel = Linux<'a>;
    type User = usize;

    fn with_cpu<R>(&mut self, run: impl FnOnce(&mut ThisVcpu<'_, Linux<'a>>) -> R) -> R {
        let result = self.machine.with_core(self.index, run);
        self.machine.note_disturbed(self.index);
        result
    }

    fn with_state<R>(&mut self, run: impl FnOnce(&mut guest_kmod::Vcpu) -> R) -> R {
        run(&mut self.machine.vcpus[self.index].module.borrow_mut())
    }

    fn executing(&self) -> Subject {
        self.machine.subject(self.machine.vcpus[self.index].current.get())
    }

    fn observer_of(user: usize) -> Observer {
        observer(user)
    }

    fn choose_page_of(&mut self, user: usize) {
        self.machine.vcpus[self.index].shows.set(user);
    }

    fn note_next_page(&mut self, user: usize) -> u64 {
        let vcpu = &self.machine.vcpus[self.index];
        vcpu.shows_next.set(user);
        without_steps(|| prepare_next(&vcpu.pages[user]));
        self.machine.gfn_of(self.index, &vcpu.pages[user])
    }

    fn choose_next_page(&mut self) {
        let vcpu = &self.machine.vcpus[self.index];
        vcpu.shows.set(vcpu.shows_next.get());
        vcpu.restoration.next_is_chosen();
    }

    fn choose_perfs_page(&mut self) {
        self.machine.vcpus[self.index].shows.set(PERFS);
    }

    fn new_number_of_perf(&mut self) -> u32 {
        self.machine.perf.new_observer()
    }

    /// Checks that the page is registered for the user who executes now or in a moment.
    fn note_number_of_perf(&mut self, _: u32) {
        let machine = self.machine;
        let vcpu = &machine.vcpus[self.index];
        let user = vcpu.shown.read().identity.uid();
        let threads = [vcpu.current.get(), vcpu.next.get()];
        if !threads.iter().any(|&thread| machine.subject(thread).identity.uid() == user)
            && !machine.is_gone()
        {
            machine.fail(format!("perf's page of vCPU {} is shown for {user}", self.index));
        }
        vcpu.perfs_for.set(user as usize);
    }

    fn stop_cpu_wide(&mut self) {
        self.machine.stop_counting_cpu_wide(self.index);
    }
}

impl Machine {
    /// Returns the subject of this thread, or the kernel's own if there is none.
    pub fn subject(&self, thread: Option<usize>) -> Subject {
        let uid = thread.map_or(0, |thread| self.threads[thread].owner.get() as u32);
        let kind = if thread.is_some() { SUBJECT_OPEN } else { SUBJECT_KERNEL };
        Subject { identity: identity(uid), kind }
    }

    pub fn counts(&self, thread: usize) -> bool {
        self.threads[thread].counts.get()
    }

    /// Notes that a thread, or its tracer, has set its counters.
    pub fn note_counts(&self, thread: usize, is_asleep: bool) {
        let own = &self.threads[thread];
        if let Some(pmu) = &*own.pmu.borrow() {
            own.counts.set(pmu.needs_page(is_asleep, own.counts.get()));
        }
    }

    /// Returns a vCPU in the form in which its kernel passes it to the module's core.
    pub fn here(&self, index: usize) -> Here<'_> {
        Here { machine: self, index }
    }

    /// Checks that a kernel's request about its pages is refused only if the vCPU is offline, if
    /// CPU-wide counting has it, or if the host forbids the domain.
    pub fn check_pages(&self, index: usize, result: Result<(), Errno>) {
        let vcpu = &self.vcpus[index];
        match result {
            Ok(()) => (),
            Err(Errno::NXIO) if !vcpu.module.borrow().is_online() => (),
            Err(Errno::BUSY) if vcpu.cpu_wide.counts.get() => (),
            Err(errno) => self.check_refusal(vcpu.domain, "a page", errno),
        }
    }

    /// Registers the page of a thread's user when the thread is switched in, if anything of the
    /// thread is counted. `needs` is what the thread needs to be loaded.
    pub fn show_if_counting(&self, index: usize, thread: usize, needs: Option<&Config>) {
        if self.counts(thread) {
            let user = self.threads[thread].owner.get();
            let shown = self.here(index).show_page_for(user, needs);
            self.check_pages(index, shown);
        }
    }

    /// Makes the kernel suspend the counters of the thread that executes on a vCPU.
    pub fn suspend_present(&self, index: usize) {
        if let Some(thread) = self.vcpus[index].current.get() {
            let page = &self.threads[thread].page;
            self.on_thread(index, thread, |pmu, cpu| pmu.switch_out(page, cpu));
            self.suspended(index, thread);
            self.published(index, thread);
        }
    }

    /// Does what the module's probe of `sched_switch` does before a vCPU switches from its present
    /// thread to `next`, or to none. If the registered page must not show what executes next, this
    /// suspends the present thread's counters, and unregisters that page or registers perf's in its
    /// place. Returns whether it has suspended the counters.
    pub fn leave_to(&self, index: usize, next: Option<usize>) -> bool {
        let vcpu = &self.vcpus[index];
        vcpu.next.set(next);
        let subject = self.subject(next);
        let shown = vcpu.shown.read();
        let has_events = self.events_here(index) != [0; 2];
        if if shown.number == 0 { !has_events } else { shown.may_execute(&subject) } {
            return false;
        }
        let own = next.and_then(|next| self.observer_of_counting(next));
        let mut has_left = false;
        let left = self.here(index).leave_to(&subject, own, |_| {
            self.suspend_present(index);
            has_left = true;
        });
        self.check_pages(index, left);
        has_left
    }

    /// Makes some new threads become another user's before they create counters. This happens
    /// without a switch, as when a thread executes a set-uid program.
    pub fn begin_as_somebody(&self, thread: usize) {
        let own = &self.threads[thread];
        if !self.shape.users || self.domains[own.domain].kind != Kind::Good {
            return;
        }
        let rng = &mut Rng::new(own.rng.borrow_mut().next());
        if rng.one_in(2) {
            self.step(Step::Note("work"));
            self.execute_as(thread, 1 - own.owner.get());
            self.step(Step::Note("work"));
        }
    }

    /// Returns whether a thread may find no page registered where it continues to read. That is so
    /// if the host has forbidden the domain while another page was registered, or none, and has let
    /// no page be registered since.
    pub fn may_be_refused_pages(&self, thread: usize) -> bool {
        let domain = &self.domains[self.threads[thread].domain];
        let here = &self.vcpus[self.vcpu_here()];
        domain.forbidden.get() > 0 && here.registered.borrow().is_none()
    }

    fn execute_as(&self, thread: usize, user: usize) {
        self.in_kernel(|index| {
            self.threads[thread].owner.set(user);
            let own = self.own_observer(index);
            let became = self.here(index).become_subject(own, |_| self.suspend_present(index));
            self.check_pages(index, became);
        });
    }

    /// Checks that no user's page is registered while another user's thread executes, unless the
    /// vCPU is counted as a whole.
    pub fn check_isolation(&self, index: usize, thread: usize) {
        let vcpu = &self.vcpus[index];
        let own = &self.threads[thread];
        let good = self.domains[own.domain].kind == Kind::Good && self.level() == Some(Level::User);
        let registered = vcpu.registered.borrow();
        let Some((_, page)) = registered.as_ref().filter(|_| good) else { return };
        let user = match page / self.vcpus.len() {
            PERFS if self.counts_whoever_executes(index) => return,
            PERFS => vcpu.perfs_for.get(),
            user => user,
        };
        if user != own.owner.get() && !vcpu.cpu_wide.counts.get() {
            self.fail(format!("thread {thread} is seen by user {user} on vCPU {index}"));
        }
    }
}
