// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What all CPUs of the host share.

use shared_abi::caps::CAPS_ALL_EVENTS;
use shared_abi::{PhysSlot, PmuCaps};

use crate::arch::{self, Identity, Readable, Refusal, Registers};
use crate::guest::{Gate, Rings};
use crate::hal::Pmu;
use crate::serial::Serials;
use crate::settings::{Rate, Settings};

/// The driver's settings, fixed at boot.
#[derive(Debug)]
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
    /// Every domain may count of which the host says nothing else.
    pub all_domains: bool,
    /// The instruction that reads counters reads those, too, that others of the host may use.
    /// Guests must not execute it themselves, and what they may read is read for them.
    pub guest_reads_exit: bool,
    /// Numbers that domains have been given.
    pub serials: Serials,
    /// Slots that count if their selectors say so: the guests' and the driver's own.
    enabled: u32,
}

impl Driver {
    /// Decides at boot.
    ///
    /// # Errors
    ///
    /// The PMU is not usable, or measuring the cost would leave the guests no general counter.
    pub fn new(identity: &Identity, settings: &Settings) -> Result<Self, Refusal> {
        let (mut caps, mut registers) = identity.pmu()?;
        if settings.all_events {
            caps.features |= CAPS_ALL_EVENTS;
        }
        let is_shared = |readable: &Readable| readable.is_shared;
        let guest_reads_exit =
            !settings.owns_all && registers.readable.iter().flatten().any(is_shared);
        if guest_reads_exit {
            // Neither are they stopped.
            registers.readable = registers.readable.map(|these| these.filter(|r| !r.is_shared));
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
        Ok(Self {
            caps,
            registers,
            cost,
            rate: settings.rate,
            boot: *identity,
            all_domains: settings.all_domains,
            guest_reads_exit,
            serials: Serials::new(),
            enabled,
        })
    }

    /// The global enable bits of every counter but those in `stopped`.
    #[inline(always)]
    pub fn enable_except(&self, stopped: u32) -> u64 {
        arch::global_bits(self.enabled & !stopped)
    }

    /// Stops the guests' counters on the CPU that executes this, whoever has let them count.
    ///
    /// For hosts whose guests all have [`Gate::Entry`], and with it no counter that counts while
    /// the host executes; elsewhere this does nothing.  Other code of such a host may write to the
    /// register that enables counters.  May be called at any moment, also while the core is at
    /// work: what this writes is what the core wants there on such a host.
    pub fn close_gate(&self, pmu: &impl Pmu) {
        let Some(global) = &self.registers.global else { return };
        if Gate::new(&self.caps, Rings::Hardware) == Gate::Entry {
            let closed = self.enable_except(self.caps.slots());
            if pmu.read_register(global.ctrl) != closed {
                pmu.write_register(global.ctrl, closed);
            }
        }
    }

    /// The index of the counter that counts the driver's own instructions.
    pub fn cost_index(&self) -> Option<u32> {
        self.cost.map(PhysSlot::counter_index)
    }
}
