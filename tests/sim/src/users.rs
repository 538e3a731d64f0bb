// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates users of one guest: what the module's glue does so that each sees its own threads
//! only, around the core's rules, and the rule that they are compared with.

use guest_kmod::shown::{Leave, Observer, SUBJECT_KERNEL, SUBJECT_OPEN, Subject};
use shared_abi::Errno;

use crate::machine::{Level, Machine, PERFS, ROOT};
use crate::rng::Rng;
use crate::shape::Kind;
use crate::trace::Step;

/// The observer for whom a page is registered on trial.
pub const TRIAL: u32 = 100;

/// The container of all users here.
const CONTAINER: u64 = 1;

pub fn observer(user: usize) -> Observer {
    let number = 1 + user as u32;
    Observer { container: CONTAINER, uid: user as u32, number, sees_kernel: user == ROOT }
}

impl Machine {
    /// Returns the subject that executes if this thread does, or the kernel's own if there is none.
    pub fn subject(&self, thread: Option<usize>) -> Subject {
        let uid = thread.map_or(0, |thread| self.threads[thread].owner.get() as u32);
        let kind = if thread.is_some() { SUBJECT_OPEN } else { SUBJECT_KERNEL };
        Subject { container: CONTAINER, uid, kind }
    }

    pub fn counts(&self, thread: usize) -> bool {
        self.threads[thread].counts.get()
    }

    /// Notes that a thread, or its tracer, has set its counters. A thread whose counters another
    /// one has stopped may be in the middle of a read, which still finds a page.
    pub fn note_counts(&self, thread: usize, itself: bool) {
        let own = &self.threads[thread];
        let counts = own.pmu.borrow().as_ref().is_some_and(|pmu| pmu.counts());
        own.counts.set(counts || !itself && own.counts.get());
    }

    /// Has a user's page registered, unless it is already.
    pub fn show(&self, index: usize, user: usize) {
        let vcpu = &self.vcpus[index];
        let wanted = observer(user);
        if vcpu.module.borrow().shown().number == wanted.number {
            return;
        }
        match self.on(index, |cpu| cpu.make_room()) {
            Ok(()) => vcpu.shows.set(user),
            // The vCPU is offline, or CPU-wide counting has it.
            Err(Errno::NXIO | Errno::BUSY) => return,
            Err(errno) => return self.check_refusal(vcpu.domain, "to take a page back", errno),
        }
        if let Err(errno) = self.on(index, |cpu| cpu.show(&wanted)) {
            self.check_refusal(vcpu.domain, "to register", errno);
        }
    }

    /// Has perf's page registered for a subject.
    pub fn show_perfs(&self, index: usize, subject: &Subject) {
        let vcpu = &self.vcpus[index];
        match self.on(index, |cpu| cpu.make_room()) {
            Ok(()) => vcpu.shows.set(PERFS),
            // The vCPU is offline, or is counted as a whole.
            Err(Errno::NXIO | Errno::BUSY) => return,
            Err(errno) => return self.check_refusal(vcpu.domain, "to take a page back", errno),
        }
        vcpu.perfs_for.set(subject.uid as usize);
        let fresh = self.perf.new_observer();
        if let Err(errno) = self.on(index, |cpu| cpu.show_perfs(subject, || fresh)) {
            self.check_refusal(vcpu.domain, "to register", errno);
        }
    }

    /// Has the page of a thread's user registered when the thread is switched in, if anything of it
    /// is counted.
    pub fn show_if_counting(&self, index: usize, thread: usize) {
        if self.counts(thread) {
            self.show(index, self.threads[thread].owner.get());
        }
    }

    /// Has a vCPU's present thread leave it to another one, or to none. Returns whether that thread
    /// was suspended, since the page was unregistered.
    pub fn leave_to(&self, index: usize, next: Option<usize>) -> bool {
        let subject = self.subject(next);
        let counting = next.filter(|&next| self.counts(next));
        let own = counting.map(|next| observer(self.threads[next].owner.get()).number);
        let module = &self.vcpus[index].module;
        let leave = module.borrow().leave_to(&subject, own);
        module.borrow_mut().note_who_comes(&subject, leave);
        self.leave(index, leave, &subject)
    }

    /// Suspends the counters of the thread that is on the vCPU, and unregisters or replaces the
    /// page that is registered there, if `leave` says so. Returns whether it did.
    fn leave(&self, index: usize, leave: Leave, subject: &Subject) -> bool {
        let vcpu = &self.vcpus[index];
        if leave == Leave::Stay {
            return false;
        }
        if let Some(prev) = vcpu.current.get() {
            let page = &self.threads[prev].page;
            self.on_thread(index, prev, |pmu, cpu| pmu.switch_out(page, cpu));
            self.suspended(index, prev);
            self.published(index, prev);
        }
        if leave == Leave::ShowPerfs {
            self.show_perfs(index, subject);
        } else if let Err(errno) = self.on(index, |cpu| cpu.unregister()) {
            self.check_refusal(vcpu.domain, "to take a page back", errno);
        }
        true
    }

    /// Makes a new thread a user's. It may first execute a program of another one, as set-uid
    /// programs are, without a switch.
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

    /// Returns whether a thread may find no page registered where it continues to read: its host
    /// has forbidden the domain while another page was registered, or none, and lets no page be
    /// registered since.
    pub fn may_be_refused_pages(&self, thread: usize) -> bool {
        let domain = &self.domains[self.threads[thread].domain];
        let here = &self.vcpus[self.vcpu_here()];
        domain.forbidden.get() > 0 && here.registered.borrow().is_none()
    }

    fn execute_as(&self, thread: usize, user: usize) {
        self.in_kernel(|index| {
            self.threads[thread].owner.set(user);
            let subject = self.subject(Some(thread));
            let leave = self.vcpus[index]
                .module
                .borrow()
                .become_subject(&subject, self.own_observer(index));
            self.leave(index, leave, &subject);
        });
    }

    /// Checks that no user's page is registered while another user's thread executes, unless it
    /// counts as a whole.
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
