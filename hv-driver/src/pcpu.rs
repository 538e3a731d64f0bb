// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! One physical CPU: what its selectors hold, and whose events its counters.

use shared_abi::caps::CAPS_GLOBAL_INTEL;
use shared_abi::config::EVNTSEL_EN;
use shared_abi::slot::{ALL_SLOTS, slots_of};
use shared_abi::{PhysSlot, PmuCaps, planted};

use crate::driver::Driver;
use crate::hal::Pmu;
use crate::msr::{self, Selectors};
use crate::stats::Stats;

/// A domain, numbered by the driver and never reused; 0 stands for every domain without pages.
pub type DomainSerial = u64;

/// State of a physical CPU's PMU.
#[derive(Debug)]
pub struct Pcpu {
    /// What the selectors hold; `None` before the first use, when they may hold anything.
    selectors: Option<Selectors>,
    /// Slots that IA32_PERF_GLOBAL_CTRL stops.
    stopped: u32,
    /// Slots that may have counted since they were last cleared.
    dirty: u32,
    /// The only domain whose events the dirty counters hold.
    owner: DomainSerial,
    /// What was done here.
    pub stats: Stats,
}

impl Pcpu {
    /// A CPU that the driver has not touched.
    pub const fn new() -> Self {
        Self { selectors: None, stopped: 0, dirty: 0, owner: 0, stats: Stats::new() }
    }

    /// A vCPU without a page runs here now: whatever counts holds its events, too.
    pub fn run_stranger(&mut self) {
        self.owner = planted!(StrangerForgotten, 0, self.owner);
    }

    /// Makes the counters fit for `domain`: no event of another domain is left in them.
    ///
    /// A vCPU with a page can execute RDPMC for every counter, so this must precede its return to
    /// the guest.  It costs a register write per counter that was in use, and only after another
    /// domain has run here.
    pub fn admit(&mut self, pmu: &impl Pmu, driver: &Driver, domain: DomainSerial) {
        if self.selectors.is_none() {
            self.take_over(pmu, driver);
        }
        if self.owner == domain {
            return;
        }
        if planted!(ResidueNotCleared, self.dirty, 0) != 0 {
            for slot in slots_of(self.dirty) {
                pmu.wrmsr(msr::counter(&driver.caps, slot), 0);
            }
            self.stats.residue_cleared();
            self.dirty = self.counting();
        }
        self.owner = domain;
    }

    /// Puts every register of the PMU into a known state.
    fn take_over(&mut self, pmu: &impl Pmu, driver: &Driver) {
        let caps = &driver.caps;
        for slot in slots_of(caps.slots()) {
            if let Some(evntsel) = msr::evntsel(caps, slot) {
                pmu.wrmsr(evntsel, 0);
            }
        }
        if caps.fixed > 0 {
            pmu.wrmsr(msr::IA32_FIXED_CTR_CTRL, 0);
        }
        if let Some(evntsel) = driver.cost.and_then(|slot| msr::evntsel(caps, slot)) {
            pmu.wrmsr(evntsel, msr::EVNTSEL_OWN_INSTRUCTIONS);
        }
        if caps.can(CAPS_GLOBAL_INTEL) {
            pmu.wrmsr(msr::IA32_PERF_GLOBAL_CTRL, driver.enable_except(0));
        }
        self.stopped = 0;
        self.selectors = Some(Selectors::NONE);
        self.dirty = caps.slots();
        self.owner = 0;
    }

    /// Programs the selectors, writing those registers that hold something else.
    pub fn program(&mut self, pmu: &impl Pmu, caps: &PmuCaps, wanted: &Selectors) {
        let Some(held) = &mut self.selectors else { return };
        let mut changed = false;
        let general =
            held.evntsel.iter_mut().zip(&wanted.evntsel).zip((0..).map(PhysSlot::general));
        for ((held, &wanted), slot) in general.take(caps.general as usize) {
            let stale =
                planted!(ConfigTakenForEqual, *held != wanted, (*held == 0) != (wanted == 0));
            if planted!(SelectorsAlwaysWritten, stale, true)
                && let Some(register) = slot.and_then(|slot| msr::evntsel(caps, slot))
            {
                pmu.wrmsr(register, wanted);
                *held = wanted;
                changed = true;
            }
        }
        if held.fixed_ctrl != wanted.fixed_ctrl {
            pmu.wrmsr(msr::IA32_FIXED_CTR_CTRL, wanted.fixed_ctrl);
            held.fixed_ctrl = wanted.fixed_ctrl;
            changed = true;
        }
        if changed {
            self.dirty |= self.counting();
            Self::forget_overflows(pmu, caps, wanted.interrupting());
        }
    }

    /// Acknowledges what these slots did while they did not interrupt: a counter that wrapped left
    /// its status bit set, which would gate the interrupt of its next overflow.
    fn forget_overflows(pmu: &impl Pmu, caps: &PmuCaps, slots: u32) {
        if planted!(StaleOverflowGates, slots, 0) != 0 && caps.version >= 2 {
            pmu.wrmsr(msr::IA32_PERF_GLOBAL_OVF_CTRL, msr::global_enable(slots & caps.slots()));
        }
    }

    /// Stops the slots in `stopped` and lets all others count if their selectors say so.
    ///
    /// Only sampling slots are ever stopped like this, so that they keep their distance to the
    /// overflow; it costs one register write, if anything changes.  A PMU without the register
    /// cannot sample, see [`Config::new`](shared_abi::Config::new).
    #[inline(always)]
    pub fn enable_except(&mut self, pmu: &impl Pmu, driver: &Driver, stopped: u32) {
        if self.stopped != stopped {
            pmu.wrmsr(msr::IA32_PERF_GLOBAL_CTRL, driver.enable_except(stopped));
            self.stopped = stopped;
        }
    }

    /// Acknowledges every overflow, so that the next one interrupts again.
    pub fn acknowledge(&self, pmu: &impl Pmu, caps: &PmuCaps) {
        if caps.can(CAPS_GLOBAL_INTEL) {
            let status = pmu.rdmsr(msr::IA32_PERF_GLOBAL_STATUS);
            pmu.wrmsr(msr::IA32_PERF_GLOBAL_OVF_CTRL, status);
        }
    }

    /// Slots whose selectors let them count.
    fn counting(&self) -> u32 {
        let Some(held) = &self.selectors else { return 0 };
        slots_of(ALL_SLOTS)
            .filter(|slot| match slot.fixed_number() {
                Some(n) => msr::fixed_counts(held.fixed_ctrl, n),
                None => held.evntsel.get(slot.index()).is_some_and(|e| e & EVNTSEL_EN != 0),
            })
            .fold(0, |mask, slot| mask | slot.bit())
    }
}

impl Default for Pcpu {
    fn default() -> Self {
        Self::new()
    }
}
