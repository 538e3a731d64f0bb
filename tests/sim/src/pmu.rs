// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates the performance monitoring unit of one physical CPU.
//!
//! It knows registers by the manuals' numbers (`model`), and nothing of the driver.

use std::cell::Cell;

use crate::model::{GENERAL, Model, Register, SLOTS, Vendor};

/// The number of kinds of events that occur here.
pub const EVENTS: usize = 4;
/// The number of events of each kind.
pub type Events = [u64; EVENTS];

/// The event number and unit mask of each kind: instructions, branches, cycles, reference cycles.
/// They are the same on all CPUs here; that of branches is AMD's, because only AMD's VMRUN is one.
pub const EVENT_CODES: [u64; EVENTS] = [0x00c0, 0x00c2, 0x003c, 0x013c];
/// The kinds of events that fixed counters 0 to 2 count.
const FIXED_EVENTS: [usize; 3] = [0, 2, 3];

/// A bit of the event select: count outside ring 0.
pub const USR: u64 = 1 << 16;
/// A bit of the event select: count in ring 0.
pub const OS: u64 = 1 << 17;
/// A bit of the event select: interrupt on overflow.
pub const INT: u64 = 1 << 20;
/// A bit of the event select: enable.
pub const EN: u64 = 1 << 22;
/// A bit of AMD's event select: count only in guests, after VMRUN.
const GUEST_ONLY: u64 = 1 << 40;
/// A bit of AMD's event select: count only outside of guests. If both are set, both places count.
const HOST_ONLY: u64 = 1 << 41;
/// The bits of the event select that are event number and unit mask.
const EVENT: u64 = 0xffff;

/// A set of domains, and of owners that are not domains, whose events a counter holds.
pub type Owners = u128;
/// The owner that is the firmware, or whoever used the counters before.
pub const OWNER_UNKNOWN: Owners = 1 << 127;
/// The owner that is the hypervisor.
pub const OWNER_HOST: Owners = 1 << 126;

/// An event select that is set before the driver comes: instructions in all rings but ring 0.
const FIRMWARE: u64 = EVENT_CODES[0] | USR | EN;

/// The bits that are never in a guest's selector: pin control, any-thread and host-only. The bit of
/// ring 0 may be in it, if the hypervisor does not execute in that ring 0.
const BEYOND_GUEST: u64 = 1 << 19 | 1 << 21 | HOST_ONLY;

/// The event select that counts the hypervisor's own instructions.
pub const OWN_INSTRUCTIONS: u64 = EVENT_CODES[0] | OS | EN;

/// The ring that executes, before or after VMRUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Ring 0 of the hypervisor.
    Zero,
    /// Ring 3 of a 64-bit PV guest: kernel and user.
    Three,
    /// Ring 0 of a guest with rings of its own: its kernel.
    GuestsZero,
    /// Ring 3 of such a guest: its users.
    GuestsThree,
}

/// The number of rings.
const RINGS: usize = 4;

/// Returns the kind of event that general counters count with this select word, if it occurs here.
pub fn event_of(evntsel: u64) -> Option<usize> {
    // Edges, inversion and counter masks make other events, which do not occur here.
    let known = EVENT | USR | OS | EN | INT | GUEST_ONLY | HOST_ONLY;
    let code = evntsel & EVENT;
    EVENT_CODES.iter().position(|&c| c == code).filter(|_| evntsel & !known == 0)
}

/// Returns the kind of event that a counter counts when it is selected by `evntsel`.
pub fn event_of_counter(counter: usize, evntsel: u64) -> Option<usize> {
    match counter.checked_sub(GENERAL) {
        Some(n) => FIXED_EVENTS.get(n).copied(),
        None => event_of(evntsel),
    }
}

/// Returns the indices of the bits that are set.
pub fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        lowest
    })
}

/// The registers, and what is remembered about them for the checks.
#[derive(Debug)]
pub struct Pmu {
    model: Model,
    /// The counter of the driver's own instructions.
    cost: Option<usize>,
    select: [Cell<u64>; GENERAL],
    fixed_ctrl: Cell<u64>,
    global_ctrl: Cell<u64>,
    /// IA32_PERF_GLOBAL_STATUS, or AMD's.
    status: Cell<u64>,
    counter: [Cell<u64>; SLOTS],
    owners: [Cell<Owners>; SLOTS],
    /// The owners for whom each counter's selector was last written.
    selected_for: [Cell<Owners>; SLOTS],
    /// The counters that count in each ring, and what they count.
    in_ring: [Cell<u32>; RINGS],
    event: [Cell<usize>; SLOTS],
    /// The counters that interrupt when they overflow.
    interrupting: Cell<u32>,
    /// Whether the local APIC has an interrupt to deliver.
    interrupt: Cell<bool>,
    /// Whether the interrupt's entry is masked, as Intel's is from an interrupt until it is written
    /// again.
    masked: Cell<bool>,
}

/// Returns a counter's bit in the global registers.
fn global_bit(counter: usize) -> u64 {
    if counter < GENERAL { 1 << counter } else { 1 << (counter - GENERAL + 32) }
}

impl Pmu {
    /// Resets the PMU of a CPU that was without power: registers have their values after a reset,
    /// and hold nobody's events.
    pub fn reset(&self) {
        for register in self.select.iter().chain([&self.fixed_ctrl, &self.global_ctrl]) {
            register.set(0);
        }
        self.status.set(0);
        for (counter, owners) in self.counter.iter().zip(&self.owners) {
            counter.set(0);
            owners.set(0);
        }
        self.interrupt.set(false);
        self.masked.set(true);
        self.rewire();
    }

    /// Makes a PMU whose counters and status bits hold `residue`. If `measures_cost`, its last
    /// general counter is the driver's own.
    pub fn new(model: Model, measures_cost: bool, mut residue: impl FnMut() -> u64) -> Self {
        let pmu = Self {
            model,
            cost: measures_cost.then(|| model.general as usize - 1),
            // The firmware left a counter running.
            select: std::array::from_fn(|index| Cell::new(if index == 0 { FIRMWARE } else { 0 })),
            fixed_ctrl: Cell::new(0),
            global_ctrl: Cell::new(0),
            status: Cell::new(residue() & model.global_bits()),
            counter: std::array::from_fn(|index| Cell::new(residue() & model.mask(index))),
            owners: std::array::from_fn(|_| Cell::new(OWNER_UNKNOWN)),
            selected_for: std::array::from_fn(|_| Cell::new(OWNER_UNKNOWN)),
            in_ring: Default::default(),
            event: Default::default(),
            interrupting: Cell::new(0),
            interrupt: Cell::new(false),
            masked: Cell::new(false),
        };
        pmu.rewire();
        pmu
    }

    /// Executes RDPMC. Returns the counter and its value, or `None` if it faults.
    pub fn rdpmc(&self, index: u32) -> Option<(usize, u64)> {
        let counter = self.model.rdpmc(index)?;
        Some((counter, self.counter[counter].get()))
    }

    /// Returns the counter of the driver's own instructions.
    pub fn cost(&self) -> Option<usize> {
        self.cost
    }

    /// Returns the owners whose events a counter holds.
    pub fn owners(&self, counter: usize) -> Owners {
        self.owners[counter].get()
    }

    /// Notes that a register was written for `owner`. This is remembered for selectors.
    pub fn written_for(&self, number: u32, owner: Owners) {
        let counters = match self.model.register(number) {
            Some(Register::Select(counter)) => counter..counter + 1,
            Some(Register::FixedCtrl) => GENERAL..SLOTS,
            _ => return,
        };
        self.selected_for[counters].iter().for_each(|of| of.set(owner));
    }

    /// Notes that these counters' selectors, for whomever they were written, are as `owner` wants
    /// them.
    pub fn selected_alike(&self, counters: u32, owner: Owners) {
        bits(counters).for_each(|counter| self.selected_for[counter].set(owner));
    }

    /// Returns the counters that count in `ring` and were selected for somebody else than `owner`.
    pub fn selected_for_others(&self, ring: Ring, owner: Owners) -> u32 {
        bits(self.in_ring[ring as usize].get())
            .filter(|&counter| self.selected_for[counter].get() != owner)
            .fold(0, |mask, counter| mask | 1 << counter)
    }

    /// Returns the counters that could interrupt the code that executes in `ring`: they count
    /// there, and interrupt.
    pub fn sampling(&self, ring: Ring) -> u32 {
        self.interrupting.get() & self.in_ring[ring as usize].get()
    }

    /// Makes events occur in `ring`, caused by `owner`.
    #[inline]
    pub fn retire(&self, ring: Ring, events: &Events, owner: Owners) {
        for index in bits(self.in_ring[ring as usize].get()) {
            let counter = &self.counter[index];
            let (sum, carry) = counter.get().overflowing_add(events[self.event[index].get()]);
            let mask = self.model.mask(index);
            counter.set(sum & mask);
            if carry || sum & !mask != 0 {
                self.overflow(index);
            }
            self.owners[index].set(self.owners[index].get() | owner);
        }
    }

    /// Handles a counter's overflow. If there is a status register, an overflow interrupts only if
    /// it changes its bit from 0 to 1: an overflow that was not acknowledged prevents the next
    /// interrupt.
    fn overflow(&self, counter: usize) {
        let is_intel = self.model.vendor == Vendor::Intel;
        let has_status = self.model.has_global();
        let status = if has_status { global_bit(counter) } else { 0 };
        let before = self.status.replace(self.status.get() | status);
        let rises = !has_status || before & status == 0;
        let interrupts = self.interrupting.get() & 1 << counter != 0;
        if rises && interrupts && !self.masked.get() {
            self.interrupt.set(true);
            // AMD does not mask its entry.
            self.masked.set(is_intel);
        }
    }

    /// Returns whether any counter counts in any ring.
    pub fn counts(&self) -> bool {
        self.in_ring.iter().any(|ring| ring.get() != 0)
    }

    /// Returns whether an interrupt waits to be taken.
    pub fn interrupts(&self) -> bool {
        self.interrupt.get()
    }

    /// Takes the interrupt.
    pub fn take_interrupt(&self) {
        self.interrupt.set(false);
    }

    /// Writes the local APIC's entry, which unmasks it.
    pub fn unmask_interrupt(&self) {
        self.masked.set(false);
    }

    /// Returns the register with this number, if accesses to it do not fault.
    fn held(&self, number: u32) -> Option<&Cell<u64>> {
        Some(match self.model.register(number)? {
            Register::GlobalStatus | Register::GlobalOvfCtrl => &self.status,
            Register::Counter(counter) => &self.counter[counter],
            Register::FixedCtrl => &self.fixed_ctrl,
            Register::GlobalCtrl => &self.global_ctrl,
            Register::Select(index) => &self.select[index],
        })
    }

    /// Executes RDMSR of any register. Returns `None` if it faults.
    pub fn try_rdmsr(&self, number: u32) -> Option<u64> {
        self.held(number).map(Cell::get)
    }

    /// Executes WRMSR of any register, with any value. Returns whether there was no fault.
    pub fn try_wrmsr(&self, number: u32, value: u64) -> bool {
        let Some((register, held)) = self.model.register(number).zip(self.held(number)) else {
            return false;
        };
        let good = value & self.model.reserved(register) == 0;
        match register {
            _ if !good => return false,
            Register::GlobalOvfCtrl => held.set(held.get() & !value),
            Register::Counter(counter) => self.set_counter(counter, value),
            _ => held.set(value),
        }
        self.rewire();
        true
    }

    /// Returns whether a write only acknowledges overflows, writes the global enable register, or
    /// starts or stops one counter that interrupts.
    pub fn starts_or_stops(&self, number: u32, value: u64) -> bool {
        match self.model.register(number) {
            Some(Register::GlobalCtrl | Register::GlobalOvfCtrl) => true,
            Some(Register::Select(index)) => {
                self.select[index].get() ^ value == EN && value & INT != 0
            }
            _ => false,
        }
    }

    /// Executes RDMSR for the driver.
    ///
    /// # Errors
    ///
    /// The reason why this read is wrong: the driver reads only one register.
    pub fn rdmsr(&self, number: u32) -> Result<u64, String> {
        match self.model.register(number) {
            Some(Register::GlobalStatus) => Ok(self.status.get()),
            Some(_) => Err(format!("MSR {number:#x} is read")),
            None => Err(format!("RDMSR {number:#x} faults: there is no such register")),
        }
    }

    /// Executes WRMSR for the driver.
    ///
    /// # Errors
    ///
    /// The reason why this write is wrong: the processor faults, or the driver must not do this. It
    /// must not write to a selector or to a control register what that already holds, unless it is
    /// 0. It must not select events beyond the guest, except with its own counter. It must not
    /// write any value but 0 to a counter that does not interrupt. It must not write
    /// `GLOBAL_STATUS`. On Intel, it must not acknowledge the overflow of a counter that interrupts
    /// while that counter is 0.
    pub fn wrmsr(&self, number: u32, value: u64) -> Result<(), String> {
        let register = self
            .model
            .register(number)
            .ok_or_else(|| format!("WRMSR {number:#x} faults: there is no such register"))?;
        let reserved = value & self.model.reserved(register);
        if reserved != 0 {
            return Err(format!("WRMSR {number:#x} faults: reserved bits {reserved:#x}"));
        }
        let held = match register {
            Register::GlobalStatus => return Err("GLOBAL_STATUS is written".into()),
            Register::GlobalOvfCtrl => {
                // Some family 6 CPUs would then interrupt again at once, without end.
                let loops = |&counter: &usize| {
                    self.model.vendor == Vendor::Intel
                        && value & self.status.get() & global_bit(counter) != 0
                        && self.interrupting.get() & 1 << counter != 0
                        && self.counter[counter].get() == 0
                };
                if let Some(counter) = self.model.counters().find(loops) {
                    return Err(format!("counter {counter} is acknowledged at 0"));
                }
                self.status.set(self.status.get() & !value);
                return Ok(());
            }
            Register::Counter(counter) => return self.write_counter(counter, value),
            Register::FixedCtrl => &self.fixed_ctrl,
            Register::GlobalCtrl => &self.global_ctrl,
            Register::Select(index) => {
                let own = self.cost == Some(index) && value == OWN_INSTRUCTIONS;
                if value & BEYOND_GUEST != 0 && !own {
                    return Err(format!("selector {value:#x} counts beyond the guest"));
                }
                &self.select[index]
            }
        };
        // The first owner clears every selector, since the driver does not know its former value.
        if held.replace(value) == value && value != 0 {
            return Err(format!("MSR {number:#x} is written with what it holds"));
        }
        self.rewire();
        let beyond = self.in_ring[Ring::Zero as usize].get() & !self.cost.map_or(0, |own| 1 << own);
        match bits(beyond).next() {
            Some(counter) => Err(format!("counter {counter} counts the hypervisor")),
            None => Ok(()),
        }
    }

    /// Loads the register that enables counters, as the CPU does when it enters or leaves a guest.
    pub fn load_global(&self, value: u64) {
        self.global_ctrl.set(value);
        self.rewire();
    }

    fn write_counter(&self, counter: usize, value: u64) -> Result<(), String> {
        if value != 0 && self.interrupting.get() & 1 << counter == 0 {
            return Err(format!("counter {counter} is written with {value:#x}"));
        }
        self.set_counter(counter, value);
        Ok(())
    }

    fn set_counter(&self, counter: usize, value: u64) {
        // SDM volume 3, 20.2.6: a general counter takes 32 bits and extends their sign.
        let short = counter < GENERAL && self.model.vendor == Vendor::Intel;
        let value = if short { value as i32 as u64 } else { value };
        self.counter[counter].set(value & self.model.mask(counter));
        self.owners[counter].set(0);
    }

    /// Returns whether a counter counts in guests with rings of their own, and whether elsewhere.
    fn places(&self, counter: usize) -> (bool, bool) {
        let select = self.select.get(counter).map_or(0, Cell::get);
        match (select & GUEST_ONLY != 0, select & HOST_ONLY != 0) {
            (true, false) => (true, false),
            (false, true) => (false, true),
            _ => (true, true),
        }
    }

    /// Returns what a counter's selector says: event select word, rings and whether it interrupts.
    fn selected(&self, counter: usize) -> (u64, u64, bool) {
        match counter.checked_sub(GENERAL) {
            None => {
                let select = self.select[counter].get();
                let rings = if select & EN != 0 { select & (USR | OS) } else { 0 };
                (select & !(USR | OS), rings, select & INT != 0)
            }
            // SDM volume 3, 20.2.2: bit 0 of the nibble is ring 0, bit 1 the others.
            Some(n) => {
                let nibble = self.fixed_ctrl.get() >> (4 * n);
                let in_rings = |bit: u64, ring: u64| if nibble & bit != 0 { ring } else { 0 };
                let rings = in_rings(1, OS) | in_rings(2, USR);
                (0, rings, nibble >> 3 & 1 != 0)
            }
        }
    }

    fn rewire(&self) {
        let mut in_ring = [0; RINGS];
        let mut interrupting = 0;
        for counter in self.model.counters() {
            let (select, rings, interrupts) = self.selected(counter);
            interrupting |= u32::from(interrupts) << counter;
            let enabled = self.global_ctrl.get() & global_bit(counter) != 0;
            let Some(event) = event_of_counter(counter, select) else { continue };
            if !enabled && self.model.has_global() {
                continue;
            }
            self.event[counter].set(event);
            let (in_guests, elsewhere) = self.places(counter);
            for (ring, counts) in [
                (Ring::Zero, elsewhere && rings & OS != 0),
                (Ring::Three, elsewhere && rings & USR != 0),
                (Ring::GuestsZero, in_guests && rings & OS != 0),
                (Ring::GuestsThree, in_guests && rings & USR != 0),
            ] {
                in_ring[ring as usize] |= u32::from(counts) << counter;
            }
        }
        self.interrupting.set(interrupting);
        for (held, counters) in self.in_ring.iter().zip(in_ring) {
            held.set(counters);
        }
    }
}
