// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The performance monitoring unit of one simulated physical CPU.

use std::cell::Cell;

use hv_driver::{Driver, msr};
use shared_abi::caps::VENDOR_AMD;
use shared_abi::config::{
    EVNTSEL_ANY, EVNTSEL_EN, EVNTSEL_EVENT_MASK, EVNTSEL_INT, EVNTSEL_OS, EVNTSEL_PC,
    EVNTSEL_RINGS, EVNTSEL_USR,
};
use shared_abi::limits::{MAX_FIXED, MAX_GENERAL, MAX_SLOTS};
use shared_abi::slot::slots_of;
use shared_abi::{PhysSlot, PmuCaps};

/// Kinds of events that occur here.
pub const EVENTS: usize = 4;
/// How many of each kind.
pub type Events = [u64; EVENTS];

/// Event number and unit mask of each kind: instructions, branches, cycles, reference cycles.
pub const EVENT_CODES: [u64; EVENTS] = [0x00c0, 0x00c4, 0x003c, 0x013c];
/// What fixed counters 0 to 2 count.
const FIXED_EVENTS: [usize; 3] = [0, 2, 3];

/// A set of domains, and of what is none, whose events a counter holds.
pub type Owners = u64;
/// The firmware, or whoever used the counters before.
pub const OWNER_UNKNOWN: Owners = 1 << 63;
/// The hypervisor.
pub const OWNER_HOST: Owners = 1 << 62;

/// An event select that is set before the driver comes: instructions in all rings but ring 0.
const FIRMWARE: u64 = EVENT_CODES[0] | EVNTSEL_USR | EVNTSEL_EN;

/// Ring 0, pin control and any-thread: never in a guest's selector.
const BEYOND_GUEST: u64 = EVNTSEL_OS | EVNTSEL_PC | EVNTSEL_ANY;

/// The ring that executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The hypervisor's.
    Zero,
    /// A 64-bit PV guest's, kernel and user.
    Three,
}

/// The event of kind `code` counted by general counters, if there is such a kind.
pub fn event_of(evntsel: u64) -> Option<usize> {
    // Edges, inversion and counter masks make other events of these, which do not occur here.
    let known = EVNTSEL_EVENT_MASK | EVNTSEL_RINGS | EVNTSEL_EN | EVNTSEL_INT;
    let code = evntsel & EVNTSEL_EVENT_MASK;
    EVENT_CODES.iter().position(|&c| c == code).filter(|_| evntsel & !known == 0)
}

/// The event that `slot` counts when it is selected by `evntsel`.
pub fn event_of_slot(slot: PhysSlot, evntsel: u64) -> Option<usize> {
    match slot.fixed_number() {
        Some(n) => FIXED_EVENTS.get(n as usize).copied(),
        None => event_of(evntsel),
    }
}

/// Registers, and what is remembered about them for the checks.
#[derive(Debug)]
pub struct Pmu {
    caps: PmuCaps,
    /// The counter of the driver's own instructions.
    cost: Option<PhysSlot>,
    evntsel: [Cell<u64>; MAX_GENERAL],
    fixed_ctrl: Cell<u64>,
    global_ctrl: Cell<u64>,
    counter: [Cell<u64>; MAX_SLOTS],
    owners: [Cell<Owners>; MAX_SLOTS],
    /// Slots that count in each ring, and what.
    in_ring: [Cell<u32>; 2],
    event: [Cell<usize>; MAX_SLOTS],
    /// Slots that interrupt when they overflow.
    interrupting: Cell<u32>,
    /// Slots that have overflowed: IA32_PERF_GLOBAL_STATUS.
    overflowed: Cell<u32>,
    /// The local APIC has an interrupt to deliver.
    interrupt: Cell<bool>,
    /// Its entry is masked, as it is from the moment of an interrupt until it is written again.
    masked: Cell<bool>,
}

impl Pmu {
    /// A PMU whose counters hold `residue`.
    pub fn new(caps: PmuCaps, driver: &Driver, mut residue: impl FnMut() -> u64) -> Self {
        let pmu = Self {
            caps,
            cost: driver.cost,
            // The firmware left a counter running.
            evntsel: std::array::from_fn(|index| Cell::new(if index == 0 { FIRMWARE } else { 0 })),
            fixed_ctrl: Cell::new(0),
            global_ctrl: Cell::new(0),
            counter: std::array::from_fn(|index| {
                let slot = PhysSlot::new(index as u32).expect("an index below MAX_SLOTS");
                Cell::new(residue() & caps.width(slot).mask())
            }),
            owners: std::array::from_fn(|_| Cell::new(OWNER_UNKNOWN)),
            in_ring: Default::default(),
            event: Default::default(),
            interrupting: Cell::new(0),
            overflowed: Cell::new(0),
            interrupt: Cell::new(false),
            masked: Cell::new(false),
        };
        pmu.rewire();
        pmu
    }

    /// What the counter holds.
    pub fn counter(&self, slot: PhysSlot) -> u64 {
        self.counter[slot.index()].get()
    }

    /// Whose events it holds.
    pub fn owners(&self, slot: PhysSlot) -> Owners {
        self.owners[slot.index()].get()
    }

    /// Events occur in `ring` by the doing of `owner`.
    #[inline]
    pub fn retire(&self, ring: Ring, events: &Events, owner: Owners) {
        for slot in slots_of(self.in_ring[ring as usize].get()) {
            let index = slot.index();
            let counter = &self.counter[index];
            let (sum, carry) = counter.get().overflowing_add(events[self.event[index].get()]);
            let mask = self.caps.width(slot).mask();
            counter.set(sum & mask);
            if carry || sum & !mask != 0 {
                self.overflow(slot);
            }
            self.owners[index].set(self.owners[index].get() | owner);
        }
    }

    fn overflow(&self, slot: PhysSlot) {
        self.overflowed.set(self.overflowed.get() | slot.bit());
        if self.interrupting.get() & slot.bit() != 0 && !self.masked.replace(true) {
            self.interrupt.set(true);
        }
    }

    /// Whether an interrupt waits to be taken.
    pub fn interrupts(&self) -> bool {
        self.interrupt.get()
    }

    /// The interrupt is taken.
    pub fn take_interrupt(&self) {
        self.interrupt.set(false);
    }

    /// The local APIC's entry is written.
    pub fn unmask_interrupt(&self) {
        self.masked.set(false);
    }

    /// IA32_PERF_GLOBAL_STATUS.
    pub fn status(&self) -> u64 {
        msr::global_enable(self.overflowed.get())
    }

    /// Writes a register.
    ///
    /// # Errors
    ///
    /// What is wrong with this write: the driver writes only its own registers, selectors only if
    /// they change and never with bits that reach beyond the guest, counters only to clear them or
    /// if they interrupt.
    pub fn wrmsr(&self, register: u32, value: u64) -> Result<(), String> {
        let amd = self.caps.vendor == VENDOR_AMD;
        let evntsel = if amd { msr::AMD_PERFEVTSEL0 } else { msr::IA32_PERFEVTSEL0 };
        let index = register.wrapping_sub(evntsel) as usize;
        let held = match register {
            msr::IA32_PERF_GLOBAL_OVF_CTRL if !amd => {
                let cleared = |slot: &PhysSlot| msr::global_enable(slot.bit()) & value != 0;
                let bits = slots_of(self.caps.slots()).filter(cleared).map(PhysSlot::bit);
                self.overflowed.set(bits.fold(self.overflowed.get(), |all, bit| all & !bit));
                return Ok(());
            }
            msr::IA32_FIXED_CTR_CTRL if !amd => &self.fixed_ctrl,
            msr::IA32_PERF_GLOBAL_CTRL if !amd => &self.global_ctrl,
            _ if index < self.caps.general as usize => {
                let own = self.cost.is_some_and(|slot| slot.index() == index);
                if value & BEYOND_GUEST != 0 && !(own && value == msr::EVNTSEL_OWN_INSTRUCTIONS) {
                    return Err(format!("selector {value:#x} counts beyond the guest"));
                }
                &self.evntsel[index]
            }
            _ => return self.write_counter(register, value),
        };
        // The first owner clears every selector, not knowing what it held.
        if held.replace(value) == value && value != 0 {
            return Err(format!("MSR {register:#x} is written with what it holds"));
        }
        self.rewire();
        Ok(())
    }

    fn write_counter(&self, register: u32, value: u64) -> Result<(), String> {
        let slot = slots_of(self.caps.slots())
            .find(|&slot| msr::counter(&self.caps, slot) == register)
            .ok_or_else(|| format!("MSR {register:#x} is not the driver's"))?;
        if value != 0 && self.interrupting.get() & slot.bit() == 0 {
            return Err(format!("counter {} is written with {value:#x}", slot.index()));
        }
        // SDM volume 3, 20.2.6: a general counter takes 32 bits and extends their sign.
        let general = slot.fixed_number().is_none();
        let value = if general { value as i32 as u64 } else { value };
        self.counter[slot.index()].set(value & self.caps.width(slot).mask());
        self.owners[slot.index()].set(0);
        Ok(())
    }

    fn rewire(&self) {
        let mut in_ring = [0; 2];
        let mut interrupting = 0;
        for slot in slots_of(self.caps.slots()) {
            let global = self.global_ctrl.get() & msr::global_enable(slot.bit()) != 0;
            let (evntsel, rings) = match slot.fixed_number() {
                None => {
                    let evntsel = self.evntsel[slot.index()].get();
                    let enabled = evntsel & EVNTSEL_EN != 0;
                    (evntsel, if enabled { evntsel & EVNTSEL_RINGS } else { 0 })
                }
                // SDM volume 3, 20.2.2: bit 0 of the nibble is ring 0, bit 1 the others.
                Some(n) => {
                    let bits = self.fixed_ctrl.get() >> (4 * n);
                    let ring_0 = if bits & 1 != 0 { EVNTSEL_OS } else { 0 };
                    (0, ring_0 | if bits & 2 != 0 { EVNTSEL_USR } else { 0 })
                }
            };
            let interrupts = match slot.fixed_number() {
                None => evntsel & EVNTSEL_INT != 0,
                Some(n) => self.fixed_ctrl.get() >> (4 * n + 3) & 1 != 0,
            };
            interrupting |= if interrupts { slot.bit() } else { 0 };
            let enabled = global || self.caps.vendor == VENDOR_AMD;
            let Some(event) = event_of_slot(slot, evntsel & !EVNTSEL_RINGS) else { continue };
            if !enabled {
                continue;
            }
            self.event[slot.index()].set(event);
            if rings & EVNTSEL_OS != 0 {
                in_ring[Ring::Zero as usize] |= slot.bit();
            }
            if rings & EVNTSEL_USR != 0 {
                in_ring[Ring::Three as usize] |= slot.bit();
            }
        }
        self.interrupting.set(interrupting);
        self.in_ring[0].set(in_ring[0]);
        self.in_ring[1].set(in_ring[1]);
    }
}

const _: () = assert!(FIXED_EVENTS.len() <= MAX_FIXED);
