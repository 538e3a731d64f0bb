// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates the differences on a host that is Linux with KVM. Overflows come by a non-maskable
//! interrupt, whose work waits until interrupts are next enabled. A guest may be saved, or
//! migrated, in the middle of anything
//! (`docs/adr/0023-restored-guests-of-kvm-go-on-from-their-pages.md`). The host's own perf may
//! want the counters, too (`docs/adr/0033-perf-has-the-counters-while-no-guest-counts.md`).

use guest_kmod::hal::Hypervisor;
use hv_driver::Left;
use shared_abi::hypercall::HvQuery;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_EXECUTING, VCPU_REGISTERED};
use shared_abi::{Errno, VcpuPage};

use crate::contention::{Contention, Kernel, STEP_NS};
use crate::machine::{Counts, Machine, Nmi, is_listening, set_listening, without_steps};
use crate::shape::{Kind, decision};

/// The hypervisor beneath a vCPU that was restored. Nothing happens while the vCPU's kernel looks
/// at the page, but anything may happen during a hypercall.
struct Beneath<'a> {
    machine: &'a Machine,
    /// Whether accesses to pages are steps.
    listening: bool,
}

impl Hypervisor for Beneath<'_> {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let before = is_listening();
        set_listening(self.listening);
        let answer = self.machine.hypercall(op, argument);
        set_listening(before);
        answer
    }
}

impl Machine {
    /// Handles an overflow that came while a vCPU's thread on the host left the guest, or was about
    /// to enter it. The vCPU's counters are not loaded now.
    pub fn take_late_overflow(&self, index: usize) {
        let cpu = &self.cpus[self.here.get()];
        // It may also be handled a little later, when the next vCPU executes.
        let is_due = self.shape.kvm && cpu.pmu.interrupts() && self.steps.get() & 1 == 0;
        if is_due && self.see_to_overflow(Some(index)) {
            self.fail(format!("vCPU {index} is told of an overflow while it does not execute"));
        }
    }

    /// Returns whether a domain can be moved to another process, on this host or the other one.
    /// None of its vCPUs may execute, whatever they are in the middle of. The simulator does not
    /// know whether a hostile domain has loaded anything that one of the hosts forbids, so it does
    /// not move such a domain.
    pub fn can_move(&self, index: usize) -> bool {
        let domain = &self.domains[index];
        let off = self.vcpus[domain.vcpus.clone()].iter().all(|vcpu| vcpu.on.get().is_none());
        let moves = match domain.kind {
            Kind::Good => true,
            Kind::Hostile => domain.allowed.get(),
            Kind::Stranger => false,
        };
        self.shape.kvm && moves && off
    }

    /// Moves a domain to another process. The content of its pages is moved with it, and nothing
    /// else that the driver has. If hosts forbid domains to count, the new one may forbid this
    /// domain.
    pub fn move_to_another(&self, index: usize) {
        let domain = &self.domains[index];
        let may_forbid = self.shape.weights.policy > 0 && domain.kind == Kind::Good;
        let allowed = !may_forbid || !self.steps.get().is_multiple_of(3);
        if domain.allowed.replace(allowed) != allowed {
            domain.policy.set(&self.driver, false, &decision(allowed));
            domain.forbidden.set(domain.forbidden.get() + u64::from(!allowed));
            let vcpus = &self.vcpus[domain.vcpus.clone()];
            vcpus.iter().for_each(|vcpu| vcpu.explain_nmi(Nmi::Changed));
        }
        for vcpu in domain.vcpus.clone() {
            let left = &self.vcpus[vcpu];
            if !left.restored.replace(true) {
                left.counted_when_left.set(left.counts.get());
                left.left_page.set(left.registered.borrow().as_ref().map(|(_, page)| *page));
            }
            self.destroy_vcpu(vcpu);
        }
        let other = 1 - domain.host.get();
        if self.cpus.iter().any(|cpu| cpu.host == other) {
            domain.host.set(other);
        }
        domain.serial.set(self.new_serial());
    }

    /// Returns whether a vCPU of the domain has not executed since the domain was moved.
    pub fn is_restored(&self, index: usize) -> bool {
        self.vcpus[self.domains[index].vcpus.clone()].iter().any(|vcpu| vcpu.restored.get())
    }

    /// Makes a restored vCPU take the interrupt that it gets before it executes anything else.
    pub fn take_restoration(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let first = self.domains[vcpu.domain].answer.get();
        // A kernel without the module has no use for the interrupt.
        if let Some(before) = first.filter(|_| vcpu.restored.get()) {
            self.interrupt_restored(index, &before);
        }
        vcpu.restored.set(false);
    }

    fn interrupt_restored(&self, index: usize, before: &HvQuery) {
        let vcpu = &self.vcpus[index];
        let ours = self.explains_nmi(index, before);
        self.check_left_page(index);
        // Threads check which of their counters have overflowed, because only the former driver
        // knew.
        vcpu.virq.set(vcpu.virq.get() || ours);
        vcpu.nmi_was_taken.set(ours);
        // The module may have seen an overflow just now.
        let page = self.registered_page(index).unwrap_or(vcpu.page());
        let seen = without_steps(|| page.overflows.load(Relaxed));
        vcpu.overflows_seen.set(Some(seen));
        if vcpu.restoration.wants_look() {
            self.look_again(index, before);
        }
    }

    /// Returns whether the module explains an NMI of this vCPU.
    fn explains_nmi(&self, index: usize, before: &HvQuery) -> bool {
        let vcpu = &self.vcpus[index];
        let host = Beneath { machine: self, listening: is_listening() };
        let restoration = &vcpu.restoration;
        let next = restoration.has_next().then(|| &vcpu.pages[vcpu.shows_next.get()]);
        without_steps(|| restoration.interrupted(&host, before, vcpu.page(), next) != 0)
    }

    /// Checks that a vCPU that was restored goes on from the page that was registered, or gives it
    /// up.
    fn check_left_page(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let good = self.domains[vcpu.domain].kind == Kind::Good && !self.is_gone();
        let Some(page) = vcpu.left_page.take().filter(|_| good) else { return };
        let flags = without_steps(|| self.page(page).flags.load(Relaxed));
        if flags & (VCPU_REGISTERED | VCPU_EXECUTING) == VCPU_REGISTERED {
            self.fail(format!("vCPU {index} does not go on from the page that was registered"));
        }
    }

    /// Makes a vCPU take an NMI in user mode, or before a hypercall of its kernel. The NMI is the
    /// driver's if an interrupt is pending, and somebody else's otherwise. Checks that the module
    /// distinguishes the two.
    pub fn take_nmi(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let before = self.domains[vcpu.domain].answer.get().filter(|_| self.shape.kvm);
        let Some(before) = before.filter(|_| !vcpu.nmi_was_taken.take()) else { return };
        let explained = vcpu.nmi.replace(Nmi::Unexplained);
        let page = self.registered_page(index).unwrap_or(vcpu.page());
        let overflows = without_steps(|| page.overflows.load(Relaxed));
        let has_page = vcpu.registered.borrow().is_some();
        let is_new = vcpu.overflows_seen.replace(Some(overflows)) != Some(overflows);
        let ours = self.explains_nmi(index, &before);
        let good = self.domains[vcpu.domain].kind == Kind::Good && !self.is_gone();
        if good && explained == Nmi::Overflow && has_page && is_new && !ours {
            self.fail(format!("vCPU {index} leaves the NMI of an overflow to others"));
        }
        if good && explained == Nmi::Unexplained && (ours || vcpu.restoration.wants_look()) {
            self.fail(format!("vCPU {index} takes somebody else's NMI for the driver's"));
        }
        if vcpu.restoration.wants_look() {
            self.look_again(index, &before);
        }
    }

    /// Checks that the hypervisor has the page that a vCPU's module has registered, and no other.
    pub fn check_page(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let shown = vcpu.shown.number();
        let good = self.domains[vcpu.domain].kind == Kind::Good && vcpu.online.get();
        let registered = vcpu.registered.borrow().as_ref().map(|_| vcpu.observer.get());
        if good && registered.unwrap_or(0) != shown {
            self.fail(format!("vCPU {index} has registered for {shown}, not {registered:?}"));
        }
    }

    /// Makes the vCPU's kernel check whether it may still count. If not, it registers its page anew
    /// later.
    fn look_again(&self, index: usize, before: &HvQuery) {
        let vcpu = &self.vcpus[index];
        let host = Beneath { machine: self, listening: is_listening() };
        let refused = vcpu.restoration.looks(&host, before, vcpu.online.get());
        let good = self.domains[vcpu.domain].kind == Kind::Good && !self.is_gone();
        let forbidden = self.domains[vcpu.domain].forbidden.get() > 0;
        if refused && good && vcpu.online.get() && !forbidden && !self.host_was_busy(vcpu.domain) {
            self.fail(format!("vCPU {index} cannot go on"));
        }
        if refused {
            vcpu.online.set(false);
            vcpu.lost_page.set(true);
        } else {
            vcpu.restoration.looked();
        }
    }

    /// Returns the state in a vCPU's page to continue from. Only a hostile kernel writes there.
    pub fn left_in(&self, page: &VcpuPage) -> Result<Left, Errno> {
        let left = without_steps(|| Left::of(page, &self.driver.caps))?;
        let counts = self.cpus[self.here.get()].core.borrow().counts();
        if counts { Ok(left) } else { Err(Errno::NODEV) }
    }
}

impl Machine {
    /// Returns the host's contention, if its perf also wants the counters.
    fn contention(&self, host: usize) -> Option<&Contention> {
        self.contentions.get(host)
    }

    const fn now_ns(&self) -> u64 {
        self.steps.get() * STEP_NS
    }

    /// Returns whether the host's perf has been the reason to refuse counters to a domain.
    pub fn host_was_busy(&self, domain: usize) -> bool {
        let had = |host: &Contention| host.perf_had_them.get().is_some();
        self.contentions.iter().any(had) && self.shape.domains[domain].hardware
    }

    /// Makes the driver take the counters for a vCPU that loads a configuration, as the glue does.
    pub fn take_counters(&self, index: usize) -> Result<(), Errno> {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        let Some(host) = self.contention(domain.host.get()) else { return Ok(()) };
        if vcpu.demand.borrow().has_counters(host.taken()) {
            return Ok(());
        }
        let mut result = self.need_counters(index, host);
        if host.reservation.borrow().may_try(self.now_ns()) {
            self.settle_counters(domain.host.get());
            result = self.need_counters(index, host);
        }
        if result.is_err() {
            self.put_counters(index);
        }
        self.check_taken(index, host, result);
        result
    }

    /// Notes that a vCPU needs the counters. Returns an error if it does not get them now.
    fn need_counters(&self, index: usize, host: &Contention) -> Result<(), Errno> {
        let vcpu = &self.vcpus[index];
        let demand = &self.domains[vcpu.domain].demand;
        vcpu.demand.borrow_mut().begin(demand, host.taken());
        host.reservation.borrow().state()
    }

    /// Checks that a vCPU is refused counters only if perf has had them a moment ago.
    fn check_taken(&self, index: usize, host: &Contention, result: Result<(), Errno>) {
        let patience = 1_000_000_000 / STEP_NS + 1;
        let recent = |step| self.steps.get() - step <= patience;
        let perf_had_them = host.perf_has_them() || host.perf_had_them.get().is_some_and(recent);
        match result {
            Ok(()) if host.is_drivers.get() => (),
            Err(Errno::BUSY) if perf_had_them => (),
            _ => self.fail(format!("vCPU {index} gets the counters of its host: {result:?}")),
        }
    }

    /// Notes that a vCPU, which loses its page, does not need the counters any more.
    pub fn put_counters(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        if vcpu.demand.borrow_mut().end(&domain.demand) {
            self.contention(domain.host.get()).inspect(|host| host.is_due.set(true));
        }
    }

    /// Makes the driver take the counters of a host or give them back.
    pub fn settle_counters(&self, host: usize) {
        let Some(contention) = self.contention(host) else { return };
        contention.is_due.set(false);
        if contention.perf_counts.get() {
            contention.perf_had_them.set(Some(self.steps.get()));
        }
        let here = self.domains.iter().filter(|domain| domain.host.get() == host);
        let needed = here.fold(false, |needed, domain| {
            let needs = self.driver.is_needed(&domain.demand, &domain.policy);
            needed || domain.alive.get() && needs
        });
        let reservation = &mut contention.reservation.borrow_mut();
        reservation.settle(needed, self.now_ns(), &mut Kernel(contention));
        let watchdog = contention.watchdog_runs.get() || !contention.watchdog_is_wanted.get();
        if !watchdog && !contention.is_drivers.get() {
            self.fail(format!("host {host} has lost its watchdog"));
        }
    }

    /// Returns the hosts whose driver has to check whether any domain still needs the counters.
    pub fn hosts_to_settle(&self) -> impl Iterator<Item = usize> {
        let due = |(_, host): &(usize, &Contention)| host.is_due.get();
        self.contentions.iter().enumerate().filter(due).map(|(index, _)| index)
    }

    /// Makes the host's perf open an event, or close the one that it has.
    pub fn change_hosts_perf(&self, host: usize) {
        let Some(contention) = self.contention(host) else { return };
        if contention.perf_counts.get() {
            contention.perf_counts.set(false);
            contention.perf_had_them.set(Some(self.steps.get()));
        } else if !contention.is_drivers.get() {
            contention.perf_counts.set(true);
            self.check_nobody_counts(host);
        }
    }

    /// Checks that no guest counts on a host whose perf has got the counters.
    fn check_nobody_counts(&self, host: usize) {
        for vcpu in &self.vcpus {
            let domain = &self.domains[vcpu.domain];
            let here = domain.alive.get() && domain.host.get() == host && domain.allowed.get();
            if here && vcpu.counts.get() == Counts::All {
                self.fail(format!("perf has the counters with which vCPU {} counts", vcpu.id));
            }
        }
    }
}
