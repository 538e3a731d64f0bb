// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Drives a vCPU's sampling counters (i-mode).
//!
//! The driver presets them so that they overflow after their period, stops them while they are not
//! running, and keeps their values across switches of the vCPU. Whenever a counter is folded, its
//! value shows whether it has overflowed, and the driver sends the virtual interrupt to the vCPU
//! that has the counter. So an interrupt that comes late, when another vCPU executes already, adds
//! nothing.

use shared_abi::hypercall::{HvPlace, PLACE_PRECISE, PLACE_USER};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::slot::slots_of;
use shared_abi::{Config, PhysSlot};

use crate::arch;
use crate::hal::Pmu;
use crate::pcpu::ThisCpu;
use crate::settings::Rate;
use crate::shares::Shares;

/// The distance to the next overflow when a vCPU has had too many, unit: events.
const PUT_OFF_EVENTS: u64 = 1 << 20;

/// When a counter counts an event that is not the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surplus {
    /// The counter is about to count it.
    Coming,
    /// The counter has just counted it.
    Counted,
}

/// The window in which a vCPU's overflows are counted against the allowed rate.
///
/// It outlives the vCPU's page. So a guest cannot begin a new window by registering another page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    start_tsc: u64,
    overflows: u64,
}

/// The sampling counters of a vCPU.
#[derive(Debug)]
pub(crate) struct Sampling {
    slots: u32,
    /// Slots that have not overflowed since they were preset.
    armed: u32,
    /// Whether the driver has seen an overflow of which the guest was not notified yet.
    notify: bool,
    pub(crate) window: Window,
    /// What the counters held when the vCPU was switched out.
    held: [u64; MAX_SLOTS],
    /// Slots whose places the processor stores.
    precise: u32,
    /// Slots that have overflowed and whose place is not known yet.
    unplaced: u32,
    /// Slots in `unplaced` for which the processor has written a record; its place is in `places`.
    recorded: u32,
    /// Slots in `unplaced` that had counted nothing since their overflow.
    at_once: u32,
    /// Slots that have overflowed and whose place is known.
    placed: u32,
    places: [HvPlace; MAX_SLOTS],
}

impl Sampling {
    /// Makes the state of a vCPU that samples nothing, in the window of its page before.
    pub(crate) const fn new(window: Window) -> Self {
        Self {
            slots: 0,
            armed: 0,
            notify: false,
            window,
            held: [0; MAX_SLOTS],
            precise: 0,
            unplaced: 0,
            recorded: 0,
            at_once: 0,
            placed: 0,
            places: [HvPlace { slot: 0, mode: 0, ip: 0, sp: 0, flags: 0 }; MAX_SLOTS],
        }
    }

    /// Returns one bit for each sampling slot.
    #[inline(always)]
    pub(crate) const fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the slots that have not overflowed since they were preset.
    pub(crate) const fn armed(&self) -> u32 {
        self.armed
    }

    /// Sets the slots that sample from now on. The processor stores the places of those in
    /// `precise`.
    pub(crate) fn configure(&mut self, slots: u32, precise: u32) {
        self.slots = slots;
        self.armed &= slots;
        self.precise = precise;
    }

    /// Forgets which counters have overflowed, since they are loaded anew.
    pub(crate) fn forget_overflows(&mut self) {
        (self.unplaced, self.placed) = (0, 0);
        (self.recorded, self.at_once) = (0, 0);
    }

    /// Returns the slots whose places the processor stores.
    #[inline(always)]
    pub(crate) const fn precise(&self) -> u32 {
        self.precise
    }

    /// Computes the values from which the counters start, so that they overflow after their
    /// periods. Returns whether the overflows were put off.
    pub(crate) fn arm(&mut self, now: u64, rate: &Rate, config: &Config, shares: &Shares) -> bool {
        self.armed = self.slots;
        if now.wrapping_sub(self.window.start_tsc) >= rate.window_tsc {
            self.window = Window { start_tsc: now, overflows: 0 };
        }
        let too_many = self.window.overflows >= rate.overflows_max;
        for slot in slots_of(self.armed) {
            let period = config.period(slot);
            let distance = if too_many { period.max(PUT_OFF_EVENTS) } else { period };
            let mask = shares.mask(slot);
            if let Some(held) = self.held.get_mut(slot.index()) {
                *held = distance.wrapping_neg() & mask;
            }
        }
        too_many
    }

    /// Examines a counter of this width that holds `raw`. Returns whether it has overflowed since
    /// it was preset, and this was not seen before.
    #[inline(always)]
    pub(crate) fn notice(&mut self, slot: PhysSlot, mask: u64, raw: u64) -> bool {
        let sign = mask & !(mask >> 1);
        if self.armed & slot.bit() == 0 || raw & sign != 0 {
            return false;
        }
        self.armed &= !slot.bit();
        self.unplaced |= slot.bit();
        if raw == 0 {
            self.at_once |= slot.bit();
        }
        self.notify = true;
        self.window.overflows += 1;
        true
    }

    /// Subtracts an event that is not the guest's, so that a counter's overflow comes when the
    /// guest has reached its period. Returns whether the counter will still overflow.
    ///
    /// If the counter has counted the event already and holds 0, then this event has made it
    /// overflow, and it is set to overflow again. Its interrupt, which is on the way, finds no
    /// overflow then.
    pub(crate) fn take_back<P: Pmu>(
        &self,
        cpu: &ThisCpu<'_, P>,
        slot: PhysSlot,
        mask: u64,
        surplus: Surplus,
    ) -> bool {
        let sign = mask & !(mask >> 1);
        let raw = cpu.pmu.counter(slot.counter_index());
        let overflowed_by_it = surplus == Surplus::Counted && raw == 0;
        let not_yet = raw & sign != 0 || overflowed_by_it;
        let overflows = self.armed & slot.bit() != 0 && not_yet;
        if overflows {
            let less = raw.wrapping_sub(1) & mask;
            cpu.pmu.write_register(cpu.driver.registers.counter(slot), less);
        }
        overflows
    }

    /// Saves what the counters hold, and calls `each` with each value.
    pub(crate) fn hold(&mut self, pmu: &impl Pmu, each: impl Fn(PhysSlot, u64)) {
        for slot in slots_of(self.slots) {
            if let Some(held) = self.held.get_mut(slot.index()) {
                // Never 0, see `ThisCpu::acknowledge`; once it has overflowed it may hold anything.
                *held = pmu.counter(slot.counter_index()).max(1);
                each(slot, *held);
            }
        }
    }

    /// Writes the saved values back into the counters.
    pub(crate) fn restore<P: Pmu>(&self, cpu: &ThisCpu<'_, P>) {
        for slot in slots_of(self.slots) {
            if let Some(&held) = self.held.get(slot.index()) {
                cpu.pmu.write_register(cpu.driver.registers.counter(slot), held);
            }
        }
    }

    /// Returns whether to notify the guest of an overflow. It returns this once for each overflow.
    #[inline(always)]
    pub(crate) fn take_notify(&mut self) -> bool {
        core::mem::take(&mut self.notify)
    }

    /// Returns the counters that have overflowed and whose places are not known yet.
    #[inline(always)]
    pub(crate) const fn unplaced(&self) -> u32 {
        self.unplaced
    }

    /// Reads the records of the overflows that were just seen, and clears them. `user` and `kernel`
    /// are the slots that count in these modes.
    ///
    /// A record that is not from such a mode is left out. So is a record of an overflow that was
    /// seen before its record, and one that is older than the overflow.
    ///
    /// This function is not inlined, so that vCPUs without precise records do not save registers
    /// for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn read_records<P: Pmu>(&mut self, cpu: &ThisCpu<'_, P>, user: u32, kernel: u32) {
        let (places, unplaced) = (&mut self.places, self.unplaced & self.precise & !self.at_once);
        let mut recorded = 0;
        cpu.take_records(|record| {
            let (mode, counts) = match arch::mode_at(record.ip) {
                Some(PLACE_USER) => (PLACE_USER, user),
                Some(mode) => (mode, kernel),
                None => return,
            };
            for slot in slots_of(record.slots & unplaced & counts) {
                if let Some(place) = places.get_mut(slot.index()) {
                    (place.ip, place.mode) = (record.ip, mode);
                    recorded |= slot.bit();
                }
            }
        });
        self.recorded |= recorded;
    }

    /// Sets where the overflows that were just seen have happened: at `place`, where the guest was
    /// interrupted. `config` is what counts.
    pub(crate) fn place(&mut self, place: &HvPlace, config: &Config) {
        for slot in slots_of(self.unplaced & !self.recorded) {
            if let Some(known) = self.places.get_mut(slot.index()) {
                *known = HvPlace { slot: slot.index() as u32, ..*place };
            }
        }
        if self.precise != 0 {
            self.place_precisely(place, config);
        }
        self.placed |= core::mem::take(&mut self.unplaced);
        (self.recorded, self.at_once) = (0, 0);
    }

    /// Completes [`place`](Self::place) for the slots whose places the processor stores. If it has
    /// stored a record of an overflow, the instruction is the record's, and only the stack and the
    /// flags are those of `place`.
    ///
    /// A counter of instructions may have overflowed in user mode and have counted nothing since.
    /// Its record would be about the next instruction, which is the one at `place`, so this place
    /// is precise without a record. In the kernel it is not, because the kernel may return to user
    /// mode meanwhile, and the guest goes on elsewhere.
    ///
    /// This function is not inlined, so that vCPUs without precise records do not save registers
    /// for it.
    #[cold]
    #[inline(never)]
    fn place_precisely(&mut self, place: &HvPlace, config: &Config) {
        let recorded = self.unplaced & self.recorded;
        for slot in slots_of(recorded) {
            if let Some(known) = self.places.get_mut(slot.index()) {
                known.slot = slot.index() as u32;
                known.sp = if known.mode == place.mode { place.sp } else { 0 };
                known.flags = place.flags;
                known.mode |= PLACE_PRECISE;
            }
        }
        let at_once = self.precise & self.at_once & self.unplaced & !recorded;
        if place.mode == PLACE_USER && at_once != 0 {
            for slot in slots_of(at_once & arch::instruction_slots(config)) {
                if let Some(known) = self.places.get_mut(slot.index()) {
                    known.mode |= PLACE_PRECISE;
                }
            }
        }
    }

    /// Returns the place where the counter has overflowed, if it is known, and forgets it.
    pub(crate) fn take_place(&mut self, slot: PhysSlot) -> HvPlace {
        let nowhere = HvPlace { slot: slot.index() as u32, ..HvPlace::default() };
        if self.placed & slot.bit() == 0 {
            return nowhere;
        }
        self.placed &= !slot.bit();
        self.places.get(slot.index()).copied().unwrap_or(nowhere)
    }
}
