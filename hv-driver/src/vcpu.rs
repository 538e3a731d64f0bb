// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! One virtual CPU: its configuration and its sums.
//!
//! While the vCPU executes, a counter of its configuration that counts in the guest's present mode
//! is *running*: `start` is what the hardware held when it began to run.  It is *folded*
//! (`sum += now - start`) when the vCPU is switched out, when the guest leaves the mode, and when
//! the configuration changes.  No counter is ever written.

use shared_abi::config::{EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::count::{TSC_MASK, phys_star};
use shared_abi::hypercall::{HOOK_LOAD, HOOK_SWITCH_FROM, HOOK_SWITCH_TO, HOOK_TOGGLE};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::read::Counters;
use shared_abi::slot::slots_of;
use shared_abi::{Config, VcpuPage};

use crate::driver::Driver;
use crate::hal::Pmu;
use crate::msr::Selectors;
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
}

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
            let changed = self.config.slots() | config.slots();
            self.fold(pmu, self.running);
            self.configure(config);
            pcpu.program(pmu, &driver.caps, &self.selectors);
            self.run(pmu, GuestMode::Kernel);
            self.generation += 1;
            publish::state(page, self, changed);
        });
    }

    /// It stops executing on this physical CPU.
    pub fn switch_from(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
    ) {
        Stats::measure(pcpu, pmu, driver.cost_rdpmc(), HOOK_SWITCH_FROM, |_, pmu| {
            let changed = self.running;
            self.fold(pmu, changed);
            self.tsc_sum = phys_star(self.tsc_sum, self.tsc_start, TSC_MASK, pmu.rdtsc());
            self.executing = false;
            publish::state(page, self, changed);
        });
    }

    /// It starts to execute on physical CPU `cpu`, in `mode`; the host does or does not allow its
    /// domain to count.
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
    ) {
        Stats::measure(pcpu, pmu, driver.cost_rdpmc(), HOOK_SWITCH_TO, |pcpu, pmu| {
            pcpu.admit(pmu, driver, self.domain);
            if !allowed {
                // Readers find direct reading invalid until the guest loads again.
                self.revoked = true;
                self.configure(&Config::default());
            }
            if self.config.slots() != 0 {
                pcpu.program(pmu, &driver.caps, &self.selectors);
            }
            self.switches += 1;
            self.migrations += u64::from(cpu != self.last_cpu);
            self.last_cpu = cpu;
            self.executing = true;
            self.tsc_start = pmu.rdtsc();
            self.run(pmu, mode);
            publish::state(page, self, self.running);
        });
    }

    /// The guest enters `mode` from the other one.
    pub fn toggle(
        &mut self,
        driver: &Driver,
        pcpu: &mut Pcpu,
        pmu: &impl Pmu,
        page: &VcpuPage,
        mode: GuestMode,
    ) {
        // Before the switch is complete the hypervisor may change the mode of the incoming vCPU;
        // `switch_to` learns the final one.
        if self.gated == 0 || !self.executing {
            return;
        }
        Stats::measure(pcpu, pmu, driver.cost_rdpmc(), HOOK_TOGGLE, |_, pmu| {
            self.fold(pmu, self.running & self.gated);
            self.run(pmu, mode);
            publish::counters(page, self, self.gated);
        });
    }

    fn configure(&mut self, config: &Config) {
        self.config = *config;
        self.selectors = Selectors::of_pv(config);
        self.counts_user = config.slots_in_ring(GuestMode::User.ring_bit());
        self.counts_kernel = config.slots_in_ring(GuestMode::Kernel.ring_bit());
        self.gated = self.counts_user ^ self.counts_kernel;
    }

    /// Folds and stops the slots in `mask`, which are running.
    #[inline(always)]
    fn fold(&mut self, pmu: &impl Pmu, mask: u32) {
        for slot in slots_of(mask) {
            if let Some(own) = self.slots.get_mut(slot.index()) {
                own.sum = phys_star(own.sum, own.start, own.mask, pmu.rdpmc(slot.rdpmc()));
            }
        }
        self.running &= !mask;
    }

    /// Starts every slot that counts in `mode` and is not running.
    #[inline(always)]
    fn run(&mut self, pmu: &impl Pmu, mode: GuestMode) {
        let wanted = match mode {
            GuestMode::User => self.counts_user,
            GuestMode::Kernel => self.counts_kernel,
        };
        for slot in slots_of(wanted & !self.running) {
            if let Some(own) = self.slots.get_mut(slot.index()) {
                own.start = pmu.rdpmc(slot.rdpmc());
            }
        }
        self.running |= wanted;
    }
}
