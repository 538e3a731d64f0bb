// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What all CPUs of the host share.

use shared_abi::{PhysSlot, PmuCaps};

use crate::caps::{Cpuid, Refusal};
use crate::msr;

/// The driver's settings, fixed at boot.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// The counters that guests may use.
    pub caps: PmuCaps,
    /// The general counter that counts the driver's own instructions, taken from the guests.
    pub cost: Option<PhysSlot>,
    /// How often a vCPU may be interrupted.
    pub rate: Rate,
    /// Slots that count if their selectors say so: the guests' and the driver's own.
    enabled: u32,
}

/// How often a vCPU may be interrupted by overflows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Rate {
    /// Length of a window, unit: TSC ticks.
    pub window_tsc: u64,
    /// Overflows per window, after which the next ones are put off.
    pub overflows_max: u64,
}

impl Driver {
    /// Decides at boot.
    ///
    /// With `measure_cost` the last general counter measures the driver itself; a guest with a
    /// page can then read how many instructions the hypervisor executes, so it is for tests.
    ///
    /// # Errors
    ///
    /// The PMU is not usable, or `measure_cost` would leave the guests no general counter.
    pub fn new(cpuid: &Cpuid, measure_cost: bool, rate: Rate) -> Result<Self, Refusal> {
        let mut caps = cpuid.pmu()?;
        let mut cost = None;
        if measure_cost {
            if caps.general < 2 {
                return Err(Refusal::NoCounters);
            }
            caps.general -= 1;
            cost = PhysSlot::general(caps.general);
        }
        let enabled = caps.slots() | cost.map_or(0, PhysSlot::bit);
        Ok(Self { caps, cost, rate, enabled })
    }

    /// IA32_PERF_GLOBAL_CTRL with every counter enabled but those in `stopped`.
    #[inline(always)]
    pub fn enable_except(&self, stopped: u32) -> u64 {
        msr::global_enable(self.enabled & !stopped)
    }

    /// RDPMC's index of the counter of the driver's own instructions.
    pub fn cost_rdpmc(&self) -> Option<u32> {
        self.cost.map(PhysSlot::rdpmc)
    }
}
