// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The rules: what everybody reads is the truth.

use guest_kmod::overflow::Signal;
use shared_abi::Errno;
use shared_abi::ioctl::Control;
use shared_abi::limits::{MAX_COUNTERS, MAX_SLOTS};
use shared_abi::read::{Counters, ReadError, read_thread};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::THREAD_FAILED;
use shared_abi::{Config, PhysSlot};

use crate::machine::{Claim, Level, Machine, unheard};
use crate::shape::Kind;
use crate::truth::Looks;

/// Counters as they are now, read without executing anything.
struct Now<'a>(&'a Machine);

impl Counters for Now<'_> {
    fn rdpmc(&self, index: u32) -> u64 {
        let pmu = &self.0.cpus[self.0.here.get()].pmu;
        PhysSlot::from_rdpmc(index).map_or(0, |slot| pmu.counter(slot))
    }

    fn rdtsc(&self) -> u64 {
        self.0.tsc()
    }
}

impl Machine {
    /// A thread that executes in user mode here would read the truth if it read now.
    pub fn audit_here(&self) {
        if self.level() != Some(Level::User) {
            return;
        }
        let vcpu = self.vcpu_here();
        let Some(thread) = self.vcpus[vcpu].current.get() else { return };
        let own = &self.threads[thread];
        let used = own.truth.borrow().used();
        if self.domains[own.domain].kind != Kind::Good || !own.truth.borrow().is_counting() {
            return;
        }
        let mut counts = [0; MAX_COUNTERS];
        let vcpus = |number| self.vcpu_page(own.domain, number);
        let result = unheard(|| read_thread(&own.page, vcpus, &Now(self), &mut counts[..used]));
        match result {
            Ok(snapshot) => {
                let moment = self.moment(Some(thread), vcpu);
                let looks = Looks { counter: [moment; MAX_SLOTS], tsc: self.vcpu_tsc(vcpu) };
                self.check_overflow(thread, vcpu, &looks);
                self.check_values(thread, snapshot.tsc, &counts, &looks, "a read now");
            }
            Err(error) => self.check_read_error(thread, error),
        }
    }

    /// An overflow that a thread has not been told of is on its way to it.
    fn check_overflow(&self, thread: usize, vcpu: usize, looks: &Looks) {
        let vcpu = &self.vcpus[vcpu];
        let truth = self.threads[thread].truth.borrow();
        let on_its_way = self.cpus[self.here.get()].pmu.interrupts() || vcpu.virq.get();
        // The host may put overflows off.
        let throttled = unheard(|| vcpu.page.throttled.load(Relaxed)) > 0;
        if truth.due(looks) != 0 && !truth.is_paused() && !on_its_way && !throttled {
            self.fail(format!("thread {thread}: an overflow is lost"));
        }
    }

    /// A thread is told of exactly those counters that have overflowed, once.
    pub fn check_signal(&self, thread: usize, signal: Option<Signal>) {
        let own = &self.threads[thread];
        let truth = own.truth.borrow();
        let failed = unheard(|| own.page.state.load(Relaxed)) & THREAD_FAILED != 0;
        if self.domains[own.domain].kind != Kind::Good || self.is_gone() || failed {
            return;
        }
        let told = signal.map_or(0, |signal| signal.counters);
        if told != truth.untold() {
            let untold = truth.untold();
            self.fail(format!("thread {thread} is told of overflows {told:#b}, not {untold:#b}"));
        }
    }

    /// What was read of a thread, by somebody who looked like this, is the truth.
    pub fn check_values(&self, thread: usize, tsc: u64, counts: &[u64], looks: &Looks, who: &str) {
        let own = &self.threads[thread];
        if self.domains[own.domain].kind != Kind::Good || self.is_gone() {
            return;
        }
        self.readings.set(self.readings.get() + 1);
        let truth = own.truth.borrow();
        if truth.has_tsc() && tsc != truth.tsc(looks) {
            let truth = truth.tsc(looks);
            self.fail(format!("thread {thread}: {who} gives time {tsc}, not {truth}"));
        }
        for (index, &count) in counts[..truth.used()].iter().enumerate() {
            let truth = truth.counter(index, looks);
            if count != truth {
                self.fail(format!(
                    "thread {thread}: {who} gives {count} for counter {index}, not {truth}: {:+}",
                    count.wrapping_sub(truth) as i64
                ));
            }
        }
    }

    /// A direct read fails only for a reason.
    pub fn check_read_error(&self, thread: usize, error: ReadError) {
        match error {
            ReadError::NotDirect => self.check_failure(thread, Errno::PERM),
            ReadError::NotLoaded(errno) => self.check_failure(thread, Errno(-errno)),
            ReadError::Malformed => self.check_failure(thread, Errno::INVAL),
            // Somebody who is interrupted all the time is told so.
            ReadError::Disturbed => (),
        }
    }

    /// There are no numbers only while the host forbids them, or has forbidden them since the
    /// start; or if a kernel's sample was disturbed too often.
    pub fn check_failure(&self, thread: usize, errno: Errno) {
        let own = &self.threads[thread];
        let domain = &self.domains[own.domain];
        if domain.kind != Kind::Good || self.is_gone() || errno == Errno::NODEV {
            return;
        }
        // While an overflow pauses the counters, only the kernel gives numbers.
        if errno == Errno::PERM && own.truth.borrow().is_paused() {
            return;
        }
        if errno != Errno::PERM || own.started.get() == Some(domain.forbidden.get()) {
            self.fail(format!("thread {thread} has no numbers: {errno:?}"));
        }
    }

    /// A control is refused for what it asks, or because the host forbids it.
    pub fn check_control_error(&self, thread: usize, control: &Control, errno: Errno) {
        let own = &self.threads[thread];
        let domain = &self.domains[own.domain];
        let counters = control.counter.get(..control.counters as usize);
        let caps = self.driver.caps;
        let valid = counters.is_some_and(|counters| Config::new(&caps, counters).is_ok());
        let host = domain.forbidden.get() > 0 && errno == Errno::PERM;
        let garbage = control.preserve >> control.counters.min(31) != 0
            || control.flags >> 3 != 0
            || control.signal != 0;
        let failed = unheard(|| own.page.state.load(Relaxed)) & THREAD_FAILED != 0;
        if valid && !garbage && !host && !failed && domain.kind == Kind::Good && !self.is_gone() {
            self.fail(format!("thread {thread}: a valid control is refused: {errno:?}"));
        }
    }

    /// What a thread leaves behind is the truth.
    pub fn check_published(&self, thread: usize) {
        let own = &self.threads[thread];
        let failed = unheard(|| own.page.state.load(Relaxed)) & THREAD_FAILED != 0;
        if failed || own.pmu.borrow().is_none() {
            return;
        }
        let sums = unheard(|| guest_kmod::publish::published(&own.page));
        match sums {
            Ok(sums) => {
                let looks = Looks::default();
                self.check_values(thread, sums.tsc, &sums.counter, &looks, "what is published");
            }
            Err(errno) => self.check_failure(thread, errno),
        }
    }

    /// What somebody else has read of a thread was published since they began.
    pub fn check_claim(&self, thread: usize, claim: &Claim) {
        let own = &self.threads[thread];
        if self.domains[own.domain].kind != Kind::Good || self.is_gone() {
            return;
        }
        let published = own.published.borrow();
        let candidates = published.get(claim.since..).unwrap_or_default();
        if !candidates.is_empty() && !candidates.contains(&claim.values) {
            let values = &claim.values;
            self.fail(format!("thread {thread} is read as {values:?}, not one of {candidates:?}"));
        }
    }

    /// Nothing is under way with a thread's counters: what was read meanwhile can be checked.
    pub fn check_claims(&self, thread: usize) {
        for claim in self.threads[thread].claims.take() {
            self.check_claim(thread, &claim);
        }
    }

    /// A vCPU's published sums never go backwards while its page is registered.
    pub fn check_sums(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        if self.domains[vcpu.domain].kind != Kind::Good || vcpu.registered.borrow().is_none() {
            return;
        }
        let before = vcpu.sums.get();
        let now = unheard(|| std::array::from_fn(|n| vcpu.page.slots[n].sum.load(Relaxed)));
        if before.iter().zip(&now).any(|(before, now)| now.wrapping_sub(*before) as i64 <= -1) {
            self.fail(format!("sums of vCPU {index} go backwards"));
        }
        vcpu.sums.set(now);
    }
}
