// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates the perf of hosts with KVM, which has the counters while no guest needs them.
//!
//! The host's allocator and its hard-lockup watchdog are simulated. The driver's core decides who
//! has the counters, and `kvm` does the glue's part of it. Physical CPUs do not change when the
//! counters change hands: `host` simulates the driver's work on a CPU that comes up or goes down.
//! So domains of such hosts are not forbidden to count, because then CPUs would go down with a vCPU
//! on them.

use std::cell::{Cell, RefCell};

use hv_driver::Reservation;
use hv_driver::reserve::{Host, Notice};
use shared_abi::Errno;

/// The time that a step takes for the driver, which waits between two tries, unit: ns.
pub const STEP_NS: u64 = 2_000_000;

/// Who has the counters of a host, and who wants them.
#[derive(Debug, Default)]
pub struct Contention {
    pub reservation: RefCell<Reservation>,
    /// Whether the driver has reserved the counters.
    pub is_drivers: Cell<bool>,
    /// How often the driver has taken the counters.
    times: Cell<u64>,
    /// The same while it has them, and otherwise 0.
    taken: Cell<u64>,
    /// Whether an event of the host's perf is open.
    pub perf_counts: Cell<bool>,
    watchdog_is_on: Cell<bool>,
    /// Whether the watchdog has a counter.
    pub watchdog_runs: Cell<bool>,
    /// Whether the administrator wants the watchdog.
    pub watchdog_is_wanted: Cell<bool>,
    /// Whether the driver soon has to check whether any domain still needs the counters.
    pub is_due: Cell<bool>,
    /// The step at which perf last had the counters.
    pub perf_had_them: Cell<Option<u64>>,
}

impl Contention {
    /// Makes a host whose counters are free, or are the watchdog's if it has one.
    pub fn new(has_watchdog: bool) -> Self {
        let host = Self::default();
        host.watchdog_is_wanted.set(has_watchdog);
        host.watchdog_is_on.set(has_watchdog);
        host.watchdog_runs.set(has_watchdog);
        host
    }

    /// Returns how often the driver has taken the counters, or 0 if it does not have them.
    pub const fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Returns whether perf or the watchdog has the counters.
    pub const fn perf_has_them(&self) -> bool {
        self.perf_counts.get() || self.watchdog_runs.get()
    }
}

/// The host's kernel as the driver sees it.
pub struct Kernel<'a>(pub &'a Contention);

impl Host for Kernel<'_> {
    fn reserve(&mut self) -> bool {
        let is_free = !self.0.perf_has_them() && !self.0.is_drivers.get();
        if is_free {
            self.0.is_drivers.set(true);
        }
        is_free
    }

    fn release(&mut self) {
        self.0.is_drivers.set(false);
    }

    fn watchdog_is_on(&mut self) -> bool {
        self.0.watchdog_is_on.get()
    }

    fn switch_watchdog(&mut self, on: bool) {
        self.0.watchdog_is_on.set(on);
        self.0.watchdog_runs.set(on && !self.0.is_drivers.get());
    }

    fn take_cpus(&mut self) -> Result<(), Errno> {
        self.0.times.set(self.0.times.get() + 1);
        self.0.taken.set(self.0.times.get());
        Ok(())
    }

    fn give_cpus_back(&mut self) {
        self.0.taken.set(0);
    }

    fn notify(&mut self, _: Notice) {}
}
