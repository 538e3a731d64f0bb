// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! One virtual CPU: its configuration and its sums.
//!
//! While the vCPU executes, a counter of its configuration that counts in the guest's present mode
//! is *running*: `start` is what the hardware held when it began to run.  It is *folded*
//! (`sum += now - start`) when the vCPU is switched out, when the guest leaves the mode, and when
//! the configuration changes.  A counter that only accumulates (a-mode) is never written.
//!
//! A *sampling* counter (i-mode) is preset so that it overflows after its period, stopped while it
//! is not running, and kept across switches of the vCPU.  That it has overflowed is seen in its
//! value whenever it is folded, so an interrupt that comes late, when another vCPU executes
//! already, adds nothing: the virtual interrupt goes to the vCPU whose counter it was.

use shared_abi::config::{EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::count::{TSC_MASK, phys_star};
use shared_abi::hypercall::{
    HOOK_INTERRUPT, HOOK_LOAD, HOOK_SWITCH_FROM, HOOK_SWITCH_TO, HOOK_TOGGLE,
};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::read::Counters;
use shared_abi::slot::slots_of;
use shared_abi::{Config, VcpuPage, planted};

use crate::driver::Driver;
use crate::hal::Pmu;
use crate::msr::{self, Selectors};
use crate::pcpu::{DomainSerial, Pcpu};
use crate::publish;
use crate::stats::Stats;

/// One counter's share of the two-level formula.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) sum: u64,
    pub(crate) start: u64,
    /// The counter's width, as a mask.
    pub(crate) mask: u64,
    /// What a sampling counter held when the vCPU was switched out.
    held: u64,
}

impl Slot {
    /// Whether a counter that was preset to overflow has done so.
    const fn overflowed(&self, raw: u64) -> bool {
        let sign = self.mask & !(self.mask >> 1);
        raw & sign == 0
    }
}

/// How far the next overflow is put off when a vCPU has had too many, unit: events.
const PUT_OFF_EVENTS: u64 = 1 << 20;

/// Which of a PV guest's modes executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestMode {
    /// The guest's user mode.
    User,
    /// The guest's kernel.
    Kernel,
}

impl GuestMode {
    const fn ring_bit(self) -> u64 {
        match self {
            Self::User => EVNTSEL_USR,
            Self::Kernel => EVNTSEL_OS,
        }
    }
}

/// A vCPU with a registered page.
#[derive(Debug)]
pub struct Vcpu {
    pub(crate) id: u32,
    domain: DomainSerial,
    /// The host has forbidden this domain to count since the last load.
    pub(crate) revoked: bool,
    pub(crate) config: Config,
    selectors: Selectors,
    /// Slots of the configuration that count in user mode, and in kernel mode.
    counts_user: u32,
    counts_kernel: u32,
    /// Slots that count in one of the two only.
    gated: u32,
    /// Slots that count at this moment.
    pub(crate) running: u32,
    /// Sampling slots that have not overflowed since they were preset.
    armed: u32,
    /// An overflow was seen and the guest has not been told.
    notify: bool,
    /// Start of the window in which overflows are counted against the allowed rate.
    window_tsc: u64,
    window_overflows: u64,
    pub(crate) overflows: u64,
    pub(crate) throttled: u64,
    pub(crate) slots: [Slot; MAX_SLOTS],
    pub(crate) tsc_sum: u64,
    pub(crate) tsc_start: u64,
    pub(crate) generation: u64,
    pub(crate) switches: u64,
    pub(crate) migrations: u64,
    /// Writes to the page so far; see [`Seq::write`](shared_abi::seq::Seq::write).
    pub(crate) page_writes: u64,
    /// The physical CPU that it was last switched in on.
    last_cpu: u32,
    executing: bool,
}

impl Vcpu {
    /// The calling vCPU registers `page`; it executes on physical CPU `cpu`, in its kernel.
    pub fn register(
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
        id: u32,
        domain: DomainSerial,
        cpu: u32,
    ) -> Self {
        let mut slots = [Slot::default(); MAX_SLOTS];
        for slot in slots_of(driver.caps.slots()) {
            if let Some(own) = slots.get_mut(slot.index()) {
                own.mask = driver.caps.width(slot).mask();
            }
        }
        let mut vcpu = Self {
            id,
            domain,
            revoked: false,
            config: Config::default(),
            selectors: Selectors::NONE,
            counts_user: 0,
            counts_kernel: 0,
            gated: 0,
            running: 0,
            armed: 0,
            notify: false,
            window_tsc: 0,
            window_overflows: 0,
            overflows: 0,
            throttled: 0,
            slots,
            tsc_sum: 0,
            tsc_start: pmu.rdtsc(),
            generation: 0,
            switches: 0,
            migrations: 0,
            page_writes: 0,
            last_cpu: cpu,
            executing: true,
        };
        pcpu.admit(pmu, driver, domain);
        publish::register(page, &mut vcpu);
        vcpu
    }

    /// The calling vCPU takes its page back.
    pub fn unregister(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
    ) {
        self.stop(driver, pcpu, pmu, page);
        publish::unregister(page, self);
    }

    /// The calling vCPU, in its kernel, wants `config` programmed in place of the present one.
    ///
    /// The caller has checked that the host allows its domain to count.
    pub fn load(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
        config: &Config,
    ) {
        self.revoked = false;
        self.replace(driver, pcpu, pmu, page, config);
    }

    /// The calling vCPU, in its kernel, wants nothing counted.  Sums stay.
    pub fn stop(&mut self, driver: &Driver, pcpu: &mut Pcpu, pmu: &impl Pmu, page: &VcpuPage) {
        self.replace(driver, pcpu, pmu, page, &Config::default());
    }

    fn replace(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
        config: &Config,
    ) {
        Stats::measure(pcpu, pmu, driver.cost_rdpmc(), HOOK_LOAD, |pcpu, pmu| {
            let _writing = publish::begin(page, self);
            self.fold(pmu, page, self.running);
            self.configure(config);
            planted!(SumsResetAtLoad, (), self.slots.iter_mut().for_each(|own| own.sum = 0));
            self.arm(driver, pmu);
            pcpu.program(pmu, &driver.caps, &self.selectors);
            self.restore(driver, pmu);
            self.run(pmu, page, GuestMode::Kernel);
            pcpu.enable_except(pmu, driver, self.stopped());
            self.generation += 1;
            publish::state(page, self);
        });
    }

    /// It stops executing on this physical CPU.
    ///
    /// An overflow that is seen here is told when it is switched in again.
    pub fn switch_from(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
    ) {
        Stats::measure(pcpu, pmu, driver.cost_rdpmc(), HOOK_SWITCH_FROM, |pcpu, pmu| {
            let _writing = publish::begin(page, self);
            let running = planted!(
                StateReadFromPage,
                self.running,
                page.loaded.load(shared_abi::sync::Ordering::Relaxed)
            );
            self.fold(pmu, page, running);
            if self.config.sampling() != 0 {
                pcpu.enable_except(pmu, driver, self.stopped());
                self.hold(pmu);
            }
            self.tsc_sum = phys_star(self.tsc_sum, self.tsc_start, TSC_MASK, pmu.rdtsc());
            self.executing = false;
            publish::state(page, self);
        });
    }

    /// It starts to execute on physical CPU `cpu`, in `mode`; the host does or does not allow its
    /// domain to count.  Gives whether to send the guest the virtual interrupt.
    #[expect(clippy::too_many_arguments, reason = "the hypervisor's state comes in pieces")]
    pub fn switch_to(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
        cpu: u32,
        mode: GuestMode,
        allowed: bool,
    ) -> bool {
        Stats::measure(pcpu, pmu, driver.cost_rdpmc(), HOOK_SWITCH_TO, |pcpu, pmu| {
            let _writing = publish::begin(page, self);
            pcpu.admit(pmu, driver, self.domain);
            if !allowed {
                // Readers find direct reading invalid until the guest loads again.
                self.revoked = true;
                self.configure(&Config::default());
            }
            let moved = planted!(SelectorsWrittenOnceOnly, true, cpu != self.last_cpu);
            if self.config.slots() != 0 && moved {
                pcpu.program(pmu, &driver.caps, &self.selectors);
                self.restore(driver, pmu);
            }
            self.switches += 1;
            self.migrations += u64::from(cpu != self.last_cpu);
            self.last_cpu = cpu;
            self.executing = true;
            self.tsc_start = planted!(ClockNotRestarted, pmu.rdtsc(), self.tsc_start);
            self.run(pmu, page, mode);
            if self.config.slots() != 0 {
                pcpu.enable_except(pmu, driver, self.stopped());
            }
            publish::state(page, self);
        });
        self.take_notify()
    }

    /// The guest enters `mode` from the other one.  Gives whether to send it the virtual interrupt.
    pub fn toggle(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
        mode: GuestMode,
    ) -> bool {
        // Before the switch is complete the hypervisor may change the mode of the incoming vCPU;
        // `switch_to` learns the final one.
        if self.gated == 0 || !self.executing {
            return false;
        }
        Stats::measure(pcpu, pmu, driver.cost_rdpmc(), HOOK_TOGGLE, |pcpu, pmu| {
            let _writing = publish::begin(page, self);
            planted!(
                ModeNotFolded,
                self.fold(pmu, page, self.running & self.gated),
                self.running &= !self.gated
            );
            self.run(pmu, page, mode);
            if self.config.sampling() & self.gated != 0 {
                pcpu.enable_except(pmu, driver, self.stopped());
            }
        });
        self.take_notify()
    }

    /// The PMU has interrupted while this vCPU executes.  Gives whether to send the guest the
    /// virtual interrupt: not if the overflow was another vCPU's, or has been seen already.
    pub fn interrupt(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
    ) -> bool {
        Stats::measure(pcpu, pmu, driver.cost_rdpmc(), HOOK_INTERRUPT, |pcpu, pmu| {
            let _writing = publish::begin(page, self);
            pcpu.acknowledge(pmu, &driver.caps);
            let sampling = self.running & self.config.sampling();
            self.fold(pmu, page, sampling);
            self.start(pmu, page, sampling);
            publish::state(page, self);
        });
        self.take_notify()
    }

    fn configure(&mut self, config: &Config) {
        self.config = *config;
        self.selectors = Selectors::of_pv(config);
        self.counts_user = config.slots_in_ring(GuestMode::User.ring_bit());
        self.counts_kernel = config.slots_in_ring(GuestMode::Kernel.ring_bit());
        self.gated = self.counts_user ^ self.counts_kernel;
        self.armed &= config.sampling();
    }

    /// Folds, stops and publishes the slots in `mask`, which are running.
    #[inline(always)]
    fn fold(&mut self, pmu: &impl Pmu, page: &VcpuPage, mask: u32) {
        for slot in slots_of(mask) {
            if let Some(own) = self.slots.get_mut(slot.index()) {
                let raw = pmu.rdpmc(slot.rdpmc());
                own.sum = phys_star(own.sum, own.start, own.mask, raw);
                publish::slot(page, slot, own, false);
                if self.armed & slot.bit() != 0 && own.overflowed(raw) {
                    self.armed &= !slot.bit();
                    self.notify = planted!(OverflowNotSeen, true, self.notify);
                    self.overflows = self.overflows.wrapping_add(1);
                    self.window_overflows += 1;
                }
            }
        }
        self.running &= planted!(FoldedTwice, !mask, u32::MAX);
    }

    /// Starts every slot that counts in `mode` and is not running.
    #[inline(always)]
    fn run(&mut self, pmu: &impl Pmu, page: &VcpuPage, mode: GuestMode) {
        let wanted = match mode {
            GuestMode::User => self.counts_user,
            GuestMode::Kernel => self.counts_kernel,
        };
        self.start(pmu, page, wanted & !self.running);
    }

    /// Starts and publishes the slots in `mask`, which are not running.
    #[inline(always)]
    fn start(&mut self, pmu: &impl Pmu, page: &VcpuPage, mask: u32) {
        for slot in slots_of(mask) {
            if let Some(own) = self.slots.get_mut(slot.index()) {
                own.start = pmu.rdpmc(slot.rdpmc());
                publish::slot(page, slot, own, true);
            }
        }
        self.running |= mask;
    }

    /// Sampling slots that must not count now, or they would overflow in somebody else's time.
    #[inline(always)]
    const fn stopped(&self) -> u32 {
        self.config.sampling() & !self.running
    }

    /// Decides where the sampling counters are to start, so that they overflow after their period.
    fn arm(&mut self, driver: &Driver, pmu: &impl Pmu) {
        self.armed = self.config.sampling();
        if self.armed == 0 {
            return;
        }
        let now = pmu.rdtsc();
        if now.wrapping_sub(self.window_tsc) >= driver.rate.window_tsc {
            self.window_tsc = now;
            self.window_overflows = 0;
        }
        let too_many = self.window_overflows >= driver.rate.overflows_max;
        self.throttled = self.throttled.wrapping_add(u64::from(too_many));
        for slot in slots_of(self.armed) {
            let period = self.config.period(slot);
            let distance = if too_many { period.max(PUT_OFF_EVENTS) } else { period };
            if let Some(own) = self.slots.get_mut(slot.index()) {
                own.held = distance.wrapping_neg() & own.mask;
            }
        }
    }

    /// Remembers what the sampling counters hold.
    fn hold(&mut self, pmu: &impl Pmu) {
        for slot in slots_of(self.config.sampling()) {
            if let Some(own) = self.slots.get_mut(slot.index()) {
                own.held = planted!(HeldAtLoadOnly, pmu.rdpmc(slot.rdpmc()), own.held);
            }
        }
    }

    /// Lets the sampling counters hold that again.
    fn restore(&mut self, driver: &Driver, pmu: &impl Pmu) {
        for slot in slots_of(self.config.sampling()) {
            if let Some(own) = self.slots.get(slot.index()) {
                pmu.wrmsr(msr::counter(&driver.caps, slot), own.held);
            }
        }
    }

    fn take_notify(&mut self) -> bool {
        core::mem::take(&mut self.notify)
    }
}
