// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What all CPUs of the host share.

use shared_abi::caps::CAPS_ALL_EVENTS;
use shared_abi::{PhysSlot, PmuCaps};

use crate::arch::{self, Identity, Refusal, Registers};

/// The driver's settings, fixed at boot.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// The counters that guests may use.
    pub caps: PmuCaps,
    /// Where the registers are.
    pub registers: Registers,
    /// The general counter that counts the driver's own instructions, taken from the guests.
    pub cost: Option<PhysSlot>,
    /// How often a vCPU may be interrupted.
    pub rate: Rate,
    /// The boot CPU's, to which every CPU is compared.
    pub boot: Identity,
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

/// What the host's administrator has asked for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Settings {
    /// How often a vCPU may be interrupted.
    pub rate: Rate,
    /// The last general counter measures the driver itself.
    ///
    /// A guest with a page can then read how many instructions the hypervisor executes, so it is
    /// for tests.
    pub measure_cost: bool,
    /// Guests may count every event that is not known to harm others.
    pub all_events: bool,
}

impl Driver {
    /// Decides at boot.
    ///
    /// # Errors
    ///
    /// The PMU is not usable, or measuring the cost would leave the guests no general counter.
    pub fn new(identity: &Identity, settings: &Settings) -> Result<Self, Refusal> {
        let (mut caps, registers) = identity.pmu()?;
        if settings.all_events {
            caps.features |= CAPS_ALL_EVENTS;
        }
        let mut cost = None;
        if settings.measure_cost {
            if caps.general < 2 {
                return Err(Refusal::NoCounters);
            }
            caps.general -= 1;
            cost = PhysSlot::general(caps.general);
        }
        let enabled = caps.slots() | cost.map_or(0, PhysSlot::bit);
        Ok(Self { caps, registers, cost, rate: settings.rate, boot: *identity, enabled })
    }

    /// The global enable bits of every counter but those in `stopped`.
    #[inline(always)]
    pub fn enable_except(&self, stopped: u32) -> u64 {
        arch::global_bits(self.enabled & !stopped)
    }

    /// The index of the counter that counts the driver's own instructions.
    pub fn cost_index(&self) -> Option<u32> {
        self.cost.map(PhysSlot::counter_index)
    }
}
