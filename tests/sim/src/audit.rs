// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks the rules: every value that somebody reads must be the truth.

use guest_kmod::overflow::Signal;
use shared_abi::hypercall::HvQuery;
use shared_abi::ioctl::{CONTROL_RING, Control};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::read::{Counters, ReadError, read_thread};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::THREAD_FAILED;
use shared_abi::{CounterConfig, Errno};

use crate::machine::{Claim, Level, Machine, without_steps};
use crate::model::{ATTEMPTS, GENERAL, Model, PERIOD_MAX, SLOTS, Vendor};
use crate::pmu::{EN, OS, USR};
use crate::shape::Kind;
use crate::truth::Looks;

/// The counters as they are now, read without executing anything.
struct Now<'a>(&'a Machine);

impl Counters for Now<'_> {
    fn counter(&self, index: u32) -> u64 {
        self.0.cpus[self.0.here.get()].pmu.rdpmc(index).map_or(0, |(_, value)| value)
    }

    fn clock(&self) -> u64 {
        self.0.guest_tsc(self.0.vcpu_here())
    }
}

/// Returns whether one counter of a control is valid.
fn is_valid_counter(model: &Model, counter: &CounterConfig) -> bool {
    let select = counter.evntsel;
    let fixed = counter.slot as usize >= GENERAL;
    let period = match counter.mode {
        0 => counter.period == 0,
        1 => model.samples() && (1..=PERIOD_MAX).contains(&counter.period),
        _ => false,
    };
    // The allowed bits are event number, unit mask, rings, edge, enable, inversion and counter
    // mask.
    let allowed = match (fixed, model.vendor) {
        (true, _) => USR | OS | EN,
        (false, Vendor::Intel) => 0xffc7_ffff,
        (false, Vendor::Amd) => 0xf_ffc7_ffff,
    };
    // Some events count the work of all of a processor's cores.
    let elsewhere = match model.vendor {
        Vendor::Intel => matches!(select & 0xff, 0xb7 | 0xbb),
        Vendor::Amd => select & 0xe0 == 0xe0,
    };
    model.counters().any(|exists| exists == counter.slot as usize)
        && period
        && counter.reserved == 0
        && select & !allowed == 0
        && select & EN != 0
        && select & (USR | OS) != 0
        && (fixed || !elsewhere)
}

impl Machine {
    /// Checks that a thread which executes in user mode here would read the truth now.
    pub fn audit_here(&self) {
        if self.level() != Some(Level::User) || self.enters_here() {
            return;
        }
        let vcpu = self.vcpu_here();
        self.check_event_overflows(vcpu, self.is_told_soon(vcpu));
        self.check_page(vcpu);
        let Some(thread) = self.vcpus[vcpu].current.get() else { return };
        self.check_isolation(vcpu, thread);
        let own = &self.threads[thread];
        let used = own.truth.borrow().used();
        if self.domains[own.domain].kind != Kind::Good || !own.truth.borrow().is_counting() {
            return;
        }
        let mut counts = [0; MAX_COUNTERS];
        let vcpus = |number| self.vcpu_page(thread, number);
        let result =
            without_steps(|| read_thread(&own.page, vcpus, &Now(self), &mut counts[..used]));
        match result {
            Ok(_) if self.vcpus[vcpu].cpu_wide.counts.get() => {
                self.fail(format!(
                    "thread {thread} counts on vCPU {vcpu}, which counts as a whole"
                ));
            }
            Ok(snapshot) => {
                let moment = self.moment(Some(thread), vcpu);
                let looks = Looks { counter: [moment; SLOTS], tsc: self.vcpu_tsc(vcpu) };
                self.check_overflow(thread, vcpu, &looks);
                self.check_values(thread, snapshot.tsc, &counts, &looks, "a read now");
            }
            Err(error) => self.check_read_error(thread, error, 0),
        }
    }

    /// Checks that a thread which was not told of an overflow in time will be told of it soon.
    fn check_overflow(&self, thread: usize, index: usize, looks: &Looks) {
        let truth = self.threads[thread].truth.borrow();
        if truth.overdue(looks) != 0 && !truth.is_paused() && !self.is_told_soon(index) {
            self.fail(format!("thread {thread}: an overflow is lost"));
        }
    }

    /// Returns whether a vCPU will be told of overflows soon: an interrupt is on its way to it, or
    /// the host has put its overflows off for a while.
    fn is_told_soon(&self, index: usize) -> bool {
        let vcpu = &self.vcpus[index];
        let on_its_way = self.cpus[self.here.get()].pmu.interrupts() || vcpu.virq.get();
        // The host may put overflows off, but not further than a million events.
        let events = self.events_of(index);
        let put_off = vcpu.put_off.get().is_some_and(|since| {
            since.iter().zip(&events).any(|(since, now)| now - since < 1 << 20)
        });
        on_its_way || put_off
    }

    /// Checks that a thread is told, once, of exactly those counters that have overflowed.
    pub fn check_signal(&self, thread: usize, signal: Option<Signal>) {
        let own = &self.threads[thread];
        let truth = own.truth.borrow();
        let failed = without_steps(|| own.page.state.load(Relaxed)) & THREAD_FAILED != 0;
        if self.domains[own.domain].kind != Kind::Good || self.is_gone() || failed {
            return;
        }
        let reported = signal.map_or(0, |signal| signal.counters);
        // A tracer may stop the counters of a thread after their overflows were noticed. Their
        // records are written at the end of the thread's next request, where
        // `check_all_recorded` looks, and not where it is switched in.
        let waits = reported == 0 && truth.is_recorded() && !truth.is_counting();
        if reported != truth.untold() && !waits {
            let untold = truth.untold();
            self.fail(format!(
                "thread {thread} is told of overflows {reported:#b}, not {untold:#b}"
            ));
        }
    }

    /// Checks that the values that somebody has read of a thread are the truth. `looks` are the
    /// moments at which counters and clock were read.
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

    /// Checks that a direct read fails only for a reason. The pages that it read were written
    /// `disturbances` times during the read.
    pub fn check_read_error(&self, thread: usize, error: ReadError, disturbances: u64) {
        match error {
            ReadError::NotDirect => self.check_failure(thread, Errno::PERM),
            ReadError::NotLoaded(errno) => self.check_failure(thread, Errno(-errno)),
            ReadError::Faulted if self.may_be_refused_pages(thread) => (),
            ReadError::Malformed | ReadError::Faulted => self.check_failure(thread, Errno::INVAL),
            // A reader that is interrupted all the time gets this error.
            ReadError::Disturbed => {
                let good = self.domains[self.threads[thread].domain].kind == Kind::Good;
                if good && disturbances < ATTEMPTS && !self.is_gone() {
                    self.fail(format!("thread {thread} gives up after {disturbances}"));
                }
            }
        }
    }

    /// Checks that numbers are missing only while the host forbids them, or has forbidden them
    /// since the start, or if a kernel's sample was disturbed too often.
    pub fn check_failure(&self, thread: usize, errno: Errno) {
        let own = &self.threads[thread];
        let domain = &self.domains[own.domain];
        if domain.kind != Kind::Good || self.is_gone() {
            return;
        }
        // While an overflow pauses the counters, numbers come only from the kernel.
        if errno == Errno::PERM && own.truth.borrow().is_paused() {
            return;
        }
        let disturbed = errno == Errno::NODEV && (self.has_failed(thread) || self.was_disturbed());
        // If a vCPU may not continue after its domain was moved, it reads the same as in a
        // forbidden domain.
        let turned_away = self.host_was_busy(own.domain);
        let forbidden = errno == Errno::PERM
            && (turned_away || own.started.get() != Some(domain.forbidden.get()));
        if !disturbed && !forbidden && !self.gave_way(thread, errno) {
            self.fail(format!("thread {thread} has no numbers: {errno:?}"));
        }
    }

    /// Checks a kernel that has published that there are no numbers. It may give a disturbed sample
    /// as the reason only if the sample was disturbed.
    pub fn check_published_failure(&self, vcpu: usize, thread: usize) {
        let own = &self.threads[thread];
        let errno = without_steps(|| own.page.error.load(Relaxed));
        let good = self.domains[own.domain].kind == Kind::Good && !self.is_gone();
        if good && errno == Errno::NODEV.to_return() && !self.was_disturbed() {
            self.fail(format!("vCPU {vcpu} gives thread {thread} up without a reason"));
        }
    }

    /// Returns whether the sample of the kernel that executes here was disturbed in every attempt.
    pub fn was_disturbed(&self) -> bool {
        let vcpu = &self.vcpus[self.vcpu_here()];
        vcpu.disturbances.get() - vcpu.undisturbed.get() >= ATTEMPTS
    }

    /// Returns whether whole CPUs count, or have counted since the thread started its counters.
    fn gave_way(&self, thread: usize, errno: Errno) -> bool {
        let own = &self.threads[thread];
        let books = &self.domains[own.domain].books;
        // perf's events may have the counters that a thread asks for.
        let host = self.host_was_busy(own.domain);
        let busy = host || self.has_perf(own.domain) || books.count();
        errno == Errno::BUSY && (busy || own.cpu_wide.get() != books.times.get())
    }

    pub fn has_failed(&self, thread: usize) -> bool {
        without_steps(|| self.threads[thread].page.state.load(Relaxed)) & THREAD_FAILED != 0
    }

    /// Returns whether the interface's documentation allows what a control asks for.
    fn is_valid(&self, thread: usize, control: &Control) -> bool {
        let model = self.guests_model();
        let used = control.counters as usize;
        let Some(counters) = control.counter.get(..used) else { return false };
        let twice = |n: usize| counters[..n].iter().any(|c| c.slot == counters[n].slot);
        let samples = counters.iter().any(|counter| counter.mode == 1);
        let recorded = control.flags & CONTROL_RING != 0;
        let signals = if samples && !recorded { 1..=64 } else { 0..=0 };
        counters.iter().all(|counter| is_valid_counter(&model, counter))
            && !(0..used).any(twice)
            && signals.contains(&control.signal)
            && control.flags & !0b11111 == 0
            && (!recorded || samples && self.threads[thread].ring.exists())
            && control.preserve >> used == 0
            && control.reserved == [0; 2]
    }

    /// Checks that a control which was accepted is valid.
    pub fn check_control(&self, thread: usize, control: &Control) {
        let good = self.domains[self.threads[thread].domain].kind == Kind::Good;
        if good && !self.is_valid(thread, control) && !self.is_gone() {
            self.fail(format!("thread {thread}: an invalid control is accepted"));
        }
    }

    /// Checks that a control is refused because of its content, or because the host forbids it.
    pub fn check_control_error(&self, thread: usize, control: &Control, errno: Errno) {
        let domain = &self.domains[self.threads[thread].domain];
        let host = domain.forbidden.get() > 0 && errno == Errno::PERM;
        let busy = self.gave_way(thread, errno);
        let reason = host || busy || self.has_failed(thread) || !self.is_valid(thread, control);
        if !reason && domain.kind == Kind::Good && !self.is_gone() {
            self.fail(format!("thread {thread}: a valid control is refused: {errno:?}"));
        }
    }

    /// Checks that the handshake describes the PMU as the model has it.
    pub fn check_handshake(&self, answer: &HvQuery) {
        let model = self.guests_model();
        let fixed_width = if model.fixed > 0 { model.fixed_width } else { 0 };
        let caps = &answer.caps;
        let reported = [caps.general, caps.fixed, caps.general_width, caps.fixed_width];
        let truth = [model.general, model.fixed, model.general_width, fixed_width];
        if reported != truth {
            self.fail(format!("the handshake says {reported:?}, not {truth:?}"));
        }
        if answer.features & 2 != u32::from(self.shape.cost) << 1 {
            self.fail(format!("the handshake's features are {:#x}", answer.features));
        }
    }

    /// Checks that a page names its vCPU.
    pub fn check_identity(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let id = without_steps(|| vcpu.page().vcpu_id.load(Relaxed));
        if id != vcpu.id && self.domains[vcpu.domain].kind == Kind::Good && !self.is_gone() {
            self.fail(format!("the page of vCPU {} is called {id}'s", vcpu.id));
        }
    }

    /// Checks that the values that a thread leaves behind are the truth.
    pub fn check_published(&self, thread: usize) {
        let own = &self.threads[thread];
        let failed = without_steps(|| own.page.state.load(Relaxed)) & THREAD_FAILED != 0;
        if failed || own.pmu.borrow().is_none() {
            return;
        }
        let sums = without_steps(|| guest_kmod::publish::published(&own.page));
        match sums {
            Ok(Some(sums)) => {
                let looks = Looks::default();
                self.check_values(thread, sums.tsc, &sums.counter, &looks, "what is published");
            }
            Ok(None) => self.fail(format!("thread {thread}'s sums are being written by nobody")),
            Err(errno) => self.check_failure(thread, errno),
        }
    }

    /// Checks that values which somebody else has read of a thread were published since the read
    /// began.
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

    /// Checks the values that others read of a thread while its counters were being changed. By now
    /// the change has ended.
    pub fn check_claims(&self, thread: usize) {
        for claim in self.threads[thread].claims.take() {
            self.check_claim(thread, &claim);
        }
    }

    /// Checks that a vCPU's published sums never go backwards while its page is registered. They
    /// may do so if entries are counted, or interrupts of PV guests.
    pub fn check_sums(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        if domain.kind != Kind::Good {
            return;
        }
        let Some(page) = self.registered_page(index) else { return };
        // The driver subtracts from the sums what counters count of these.
        let subtracts = match domain.hardware {
            true => self.shape.counts_entries,
            false => self.shape.counts_interrupts,
        };
        if subtracts {
            return;
        }
        let before = vcpu.sums.get();
        let now = without_steps(|| std::array::from_fn(|n| page.slots[n].sum.load(Relaxed)));
        if before.iter().zip(&now).any(|(before, now)| now.wrapping_sub(*before) as i64 <= -1) {
            self.fail(format!("sums of vCPU {index} go backwards"));
        }
        vcpu.sums.set(now);
    }
}
