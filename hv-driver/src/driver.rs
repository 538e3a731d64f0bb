// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Defines the state that all CPUs of the host share.

use shared_abi::caps::{CAPS_ALL_EVENTS, VENDOR_AMD};
use shared_abi::hypercall::{BRANCHES_MODES, BRANCHES_USER};
use shared_abi::{Config, PhysSlot, PmuCaps};

use crate::account::Session;
use crate::arch::{self, Identity, Readable, Refusal, Registers};
use crate::guest::{Gate, Rings};
use crate::hal::Pmu;
use crate::lease::Lease;
use crate::serial::Serials;
use crate::settings::{Rate, Settings};

/// How much longer a physical CPU samples than the lease that the control domain was promised,
/// unit: milliseconds. Time-stamp counters of different CPUs may differ, and a CPU must not have
/// stopped already when the lease is renewed on another one.
pub(crate) const GRACE_MS: u64 = 100;

/// The counters with which the host accounts events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountSlots {
    /// Counts what guests execute.
    pub guest: PhysSlot,
    /// Counts what the hypervisor executes.
    pub hypervisor: PhysSlot,
}

/// The driver's settings, fixed at boot.
#[derive(Debug)]
pub struct Driver {
    /// The counters that guests may use.
    pub caps: PmuCaps,
    /// The numbers of the PMU's registers.
    pub registers: Registers,
    /// The general counter that counts the driver's own instructions, taken from the guests.
    pub cost: Option<PhysSlot>,
    /// The general counter with which the host samples itself, taken from the guests.
    pub profile: Option<PhysSlot>,
    /// The lease of the host's samples.
    pub(crate) lease: Lease,
    /// The general counters with which the host accounts events, taken from the guests.
    pub accounts: Option<AccountSlots>,
    /// The event that the host accounts, and the lease.
    pub(crate) session: Session,
    /// The limit on how often a vCPU is interrupted.
    pub rate: Rate,
    /// The boot CPU's identity, with which every other CPU's is compared.
    pub boot: Identity,
    /// Whether every domain may count unless the host has forbidden it.
    pub all_domains: bool,
    /// Whether the instruction that reads counters can also read counters that other software of
    /// the host may use. Guests must then not execute it: the host executes it for them.
    pub guest_reads_exit: bool,
    /// Whether the CPUs count the instruction that enters a guest as one of the guest's, in the
    /// mode that it enters.
    pub counts_entries: bool,
    /// Whether the CPUs count each interrupt and each exception as an instruction of the code that
    /// it interrupts.
    pub counts_interrupts: bool,
    /// Gives each domain its serial.
    pub serials: Serials,
    /// The slots that the driver uses: the guests' and those that are taken from them.
    enabled: u32,
}

impl AccountSlots {
    const fn both(self) -> [PhysSlot; 2] {
        [self.guest, self.hypervisor]
    }
}

impl Driver {
    /// Creates the driver at boot, or says why it stays off.
    ///
    /// # Errors
    ///
    /// Says that the PMU is not usable, or that the host's own counters would leave guests no
    /// general counter.
    pub fn new(identity: &Identity, settings: &Settings) -> Result<Self, Refusal> {
        let (mut caps, mut registers) = identity.pmu()?;
        if settings.all_events {
            caps.features |= CAPS_ALL_EVENTS;
        }
        registers.branches = registers.branches.filter(|_| settings.branches);
        if settings.branches && registers.branches.is_none() {
            return Err(Refusal::Branches(identity.branch_format()));
        }
        registers.precise = registers.precise.filter(|_| settings.precise);
        if settings.precise && registers.precise.is_none() {
            return Err(Refusal::Precise(identity.record_format()));
        }
        let is_shared = |readable: &Readable| readable.is_shared;
        let guest_reads_exit =
            !settings.owns_all && registers.readable.iter().flatten().any(is_shared);
        if guest_reads_exit {
            // The host's own software may use these counters, and guests cannot read them, so the
            // driver does not stop them.
            registers.readable = registers.readable.map(|these| these.filter(|r| !r.is_shared));
        }
        let mut take = |wanted| match wanted {
            false => Ok(None),
            true if caps.general < 2 => Err(Refusal::NoCounters),
            true => {
                caps.general -= 1;
                Ok(PhysSlot::general(caps.general))
            }
        };
        let (cost, profile) = (take(settings.measure_cost)?, take(settings.profile)?);
        let accounts = take(settings.accounts)?.zip(take(settings.accounts)?);
        let accounts = accounts.map(|(guest, hypervisor)| AccountSlots { guest, hypervisor });
        let own = cost.into_iter().chain(profile);
        let own = own.chain(accounts.into_iter().flat_map(AccountSlots::both));
        let own = own.fold(0, |mask, slot| mask | slot.bit());
        let enabled = caps.slots() | own;
        Ok(Self {
            caps,
            registers,
            cost,
            profile,
            lease: Lease::default(),
            accounts,
            session: Session::default(),
            rate: settings.rate,
            boot: *identity,
            all_domains: settings.all_domains,
            guest_reads_exit,
            counts_entries: settings.counts_entries && caps.vendor == VENDOR_AMD,
            counts_interrupts: settings.counts_interrupts,
            serials: Serials::new(),
            enabled,
        })
    }

    /// Returns the modes (`BRANCHES_*`) of a guest with such rings whose branches can be recorded.
    ///
    /// The hypervisor and the kernel of a guest with rings of its own both execute in ring 0, so
    /// the processor's filter cannot tell their branches apart. Those of user mode are the guest's,
    /// since the hypervisor executes nothing in ring 3. But the processor has to keep recording
    /// when it enters and leaves the guest.
    pub(crate) fn modes_recorded(&self, rings: Rings) -> u32 {
        match (rings, &self.registers.branches) {
            (_, None) => 0,
            (Rings::Folded, Some(_)) => BRANCHES_MODES,
            (Rings::Hardware, Some(branches)) if branches.last_through_exits() => BRANCHES_USER,
            (Rings::Hardware, Some(_)) => 0,
        }
    }

    /// Returns the slots of a configuration whose places the processor can store, if it is of a
    /// guest with [`Rings::Folded`]. Where interrupts count as instructions, the driver sets
    /// counters back after some of them, and a record could be due already.
    pub(crate) fn precise_slots(&self, config: &Config) -> u32 {
        if self.has_precise() { arch::precise_slots(config) } else { 0 }
    }

    /// Returns whether the processor can store the places of overflows.
    pub(crate) const fn has_precise(&self) -> bool {
        self.registers.precise.is_some() && !self.counts_interrupts
    }

    /// Returns the global enable bits of all of the driver's counters except those in `stopped`.
    #[inline(always)]
    pub fn enable_except(&self, stopped: u32) -> u64 {
        arch::global_bits(self.enabled & !stopped)
    }

    /// Stops the guests' counters on the CPU that executes this, if other code has enabled them.
    ///
    /// It is for hosts whose guests all have [`Gate::Entry`], so that no guest's counter counts
    /// while the host executes, and on which other code may write to the register that enables
    /// counters. Elsewhere it does nothing. It may be called at any moment, even while the core
    /// executes: on such a host the core itself writes no other value there.
    pub fn close_gate(&self, pmu: &impl Pmu) {
        let Some(global) = &self.registers.global else { return };
        if Gate::new(&self.caps, Rings::Hardware) == Gate::Entry {
            let closed = self.enable_except(self.caps.slots());
            if pmu.read_register(global.ctrl) != closed {
                pmu.write_register(global.ctrl, closed);
            }
        }
    }

    /// Converts milliseconds to ticks of the time-stamp counter.
    pub(crate) fn ticks(&self, ms: u64) -> u64 {
        self.rate.window_tsc.wrapping_mul(ms)
    }

    /// Returns whether a physical CPU continues the work that this lease allows.
    pub(crate) fn lets_cpu_go_on(&self, lease: &Lease, now: u64) -> bool {
        lease.lasts(now.wrapping_sub(self.ticks(GRACE_MS)))
    }

    /// Returns the bits of the counters that belong to the host, and count in guests as well.
    pub(crate) fn host_bits(&self) -> u32 {
        self.profile.into_iter().chain(self.account_slots()).fold(0, |bits, slot| bits | slot.bit())
    }

    /// Iterates over the counters with which the host accounts events.
    pub(crate) fn account_slots(&self) -> impl Iterator<Item = PhysSlot> {
        self.accounts.into_iter().flat_map(AccountSlots::both)
    }

    /// Returns the index of the counter that counts the driver's own instructions.
    pub fn cost_index(&self) -> Option<u32> {
        self.cost.map(PhysSlot::counter_index)
    }
}
