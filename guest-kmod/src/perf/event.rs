// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Translates perf's attributes of an event, and knows which counters can count it.

use shared_abi::arch::{
    EVNTSEL_EN, EVNTSEL_EVENT_MASK, EVNTSEL_INT, EVNTSEL_OS, EVNTSEL_RINGS, EVNTSEL_USR, events,
};
use shared_abi::events::Generic;
use shared_abi::hypercall::{
    BRANCHES_MODES, BRANCHES_USER, FEATURE_BRANCHES, FEATURE_PRECISE, FEATURE_USER_BRANCHES,
};
use shared_abi::slot::slots_of;
use shared_abi::{Config, CounterConfig, Errno, PhysSlot, PmuCaps};

use crate::perf::branches;

/// `PERF_TYPE_HARDWARE` of `linux/perf_event.h`.
pub(crate) const TYPE_HARDWARE: u32 = 0;
/// `PERF_TYPE_RAW` of `linux/perf_event.h`.
pub(crate) const TYPE_RAW: u32 = 4;

/// [`EventAttr::flags`], by the names that `linux/perf_event.h` gives these bits.
pub(crate) mod flags {
    pub(crate) const EXCLUDE_USER: u64 = 1 << 4;
    pub(crate) const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub(crate) const EXCLUDE_IDLE: u64 = 1 << 7;
    pub(crate) const FREQ: u64 = 1 << 10;
    pub(crate) const PRECISE_IP_SHIFT: u32 = 15;
    pub(crate) const PRECISE_IP: u64 = 3 << PRECISE_IP_SHIFT;
    pub(crate) const EXCLUDE_HOST: u64 = 1 << 19;
    pub(crate) const SIGTRAP: u64 = 1 << 37;
}
/// `PERF_SAMPLE_BRANCH_STACK` of `linux/perf_event.h`.
pub(crate) const SAMPLE_BRANCH_STACK: u64 = 1 << 11;
/// `PERF_SAMPLE_REGS_INTR` of `linux/perf_event.h`.
pub(crate) const SAMPLE_REGS_INTR: u64 = 1 << 18;

/// Bits of a raw select word that Linux's own drivers set as perf asks for the event, whatever the
/// program has written there (`X86_RAW_EVENT_MASK` of `asm/perf_event.h` has none of them).
/// Programs such as rr write whole select words.
const DRIVERS_OWN: u64 = EVNTSEL_RINGS | EVNTSEL_INT | EVNTSEL_EN;

/// The most exact places that perf can ask for, see `precise_ip`.
pub const PRECISE_MAX: u64 = 2;

/// The number of events in a second that the module assumes until perf has measured it.
const EVENTS_EXPECTED: u64 = 1_000_000_000;

/// How an event was opened: the first fields of Linux's `struct perf_event_attr`.
///
/// These fields are part of its ABI.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct EventAttr {
    /// `PERF_TYPE_*`.
    pub kind: u32,
    /// The size of the whole structure in bytes.
    pub size: u32,
    /// The number of the event within its type.
    pub config: u64,
    /// Events between two samples, or samples a second, or 0.
    pub period: u64,
    /// `PERF_SAMPLE_*`.
    pub sample_type: u64,
    /// `PERF_FORMAT_*`.
    pub read_format: u64,
    /// The bit fields.
    pub flags: u64,
    /// The number of events or bytes after which a reader is woken.
    pub wakeup: u32,
    /// The type of a breakpoint, which no event here has.
    pub bp_type: u32,
    /// A further word of the configuration.
    pub config1: u64,
    /// Another further word of the configuration.
    pub config2: u64,
    /// `PERF_SAMPLE_BRANCH_*`.
    pub branch_sample_type: u64,
}

impl EventAttr {
    const fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether the event interrupts.
    const fn samples(&self) -> bool {
        self.period != 0
    }

    /// Returns the rings in which the event counts. perf's host is this Linux, which has no guests
    /// of its own whose code these counters could count.
    const fn rings(&self) -> u64 {
        if self.has(flags::EXCLUDE_HOST) {
            return 0;
        }
        let user = if self.has(flags::EXCLUDE_USER) { 0 } else { EVNTSEL_USR };
        let kernel = if self.has(flags::EXCLUDE_KERNEL) { 0 } else { EVNTSEL_OS };
        user | kernel
    }

    /// Refuses attributes that the driver cannot honour:
    ///
    /// - to count another kind of event, or one that needs further registers;
    /// - to leave out the idle thread, because only the guest's two modes are distinguished;
    /// - to send a signal at the overflow itself, because a thread cannot get a signal there;
    /// - to have the kernel's registers, because only some of them are known.
    fn check(&self) -> Result<(), Errno> {
        if !matches!(self.kind, TYPE_HARDWARE | TYPE_RAW) {
            return Err(Errno::NOENT);
        }
        if self.has(flags::EXCLUDE_IDLE) {
            return Err(Errno::INVAL);
        }
        // If the sample is of the kernel, only some registers are known.
        let kernel_registers =
            self.sample_type & SAMPLE_REGS_INTR != 0 && !self.has(flags::EXCLUDE_KERNEL);
        let unknown_config = self.config1 != 0 || self.config2 != 0;
        if kernel_registers || unknown_config || self.has(flags::SIGTRAP) {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    /// Returns perf's number of how exact the places of samples have to be: 0 for any place, 1 for
    /// a constant skid, 2 for none if possible, 3 for none.
    const fn precise_ip(&self) -> u64 {
        (self.flags & flags::PRECISE_IP) >> flags::PRECISE_IP_SHIFT
    }

    /// Returns whether the processor itself has to store where the samples of this event are.
    /// `features` are those of the hypervisor. An event that asks for a constant skid gets places
    /// without skid, since none is also constant.
    ///
    /// # Errors
    ///
    /// - `OPNOTSUPP` if the hypervisor does not offer such places, if the event demands the place
    ///   where the period itself ends (the processor stores that of the event after it), or if its
    ///   samples are to have registers, of which the module gets none.
    /// - `INVAL` if the event does not sample.
    fn precise(&self, features: u32) -> Result<bool, Errno> {
        if self.precise_ip() == 0 {
            return Ok(false);
        }
        if features & FEATURE_PRECISE == 0 || self.precise_ip() > PRECISE_MAX {
            return Err(Errno::OPNOTSUPP);
        }
        if self.sample_type & SAMPLE_REGS_INTR != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if self.samples() { Ok(true) } else { Err(Errno::INVAL) }
    }

    /// Returns which branches the event's samples are to have, in the hypervisor's words. perf has
    /// checked whether the caller may see the kernel's.
    ///
    /// # Errors
    ///
    /// `OPNOTSUPP` if the hypervisor, whose features (`FEATURE_*`) these are, does not record them,
    /// or if the event does not sample.
    fn branches(&self, features: u32) -> Result<u16, Errno> {
        if self.sample_type & SAMPLE_BRANCH_STACK == 0 {
            return Ok(0);
        }
        let recorded = if features & FEATURE_BRANCHES != 0 {
            BRANCHES_MODES
        } else if features & FEATURE_USER_BRANCHES != 0 {
            BRANCHES_USER
        } else {
            0
        };
        let filter = branches::filter(self.branch_sample_type)?;
        if u32::from(filter) & BRANCHES_MODES & !recorded != 0 || !self.samples() {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(filter)
    }

    /// Returns the period to begin with if a number of samples in a second is asked for, or else 0.
    /// perf itself would begin with a period of one event, and so with a storm of interrupts.
    pub const fn first_period(&self) -> u64 {
        if !self.has(flags::FREQ) {
            return 0;
        }
        match EVENTS_EXPECTED.checked_div(self.period) {
            Some(0) => 1,
            Some(period) => period,
            None => 0,
        }
    }
}

/// An event that can be counted, and by which counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EventConfig {
    /// Event select for a general counter.
    pub general: u64,
    /// Event select for a fixed counter.
    pub fixed: u64,
    /// One bit per counter that can count it.
    pub slots: u32,
    /// 1 if it interrupts after a period, else 0.
    pub samples: u8,
    /// 1 if the processor notes the places of its samples, else 0.
    pub precise: u8,
    /// The branches that its samples have, [`HvRecord::filter`], or 0.
    ///
    /// [`HvRecord::filter`]: shared_abi::hypercall::HvRecord::filter
    pub branches: u16,
}

impl EventConfig {
    /// Returns the event that was opened with these attributes. `features` are those of the
    /// hypervisor (`FEATURE_*`).
    ///
    /// # Errors
    ///
    /// `INVAL` or `OPNOTSUPP` if the module cannot count or sample the event as requested;
    /// otherwise the errors of `new`.
    pub fn open(caps: &PmuCaps, attr: &EventAttr, features: u32) -> Result<Self, Errno> {
        attr.check()?;
        let branches = attr.branches(features)?;
        let precise = attr.precise(features)?;
        let event = Self::new(caps, attr.kind, attr.config, attr.rings(), attr.samples())?;
        let event = Self { branches, ..event };
        if precise { event.precisely() } else { Ok(event) }
    }

    /// Returns the same event, of whose samples the processor notes the places. Only general
    /// counters can do that.
    fn precisely(self) -> Result<Self, Errno> {
        let general = slots_of(self.slots).filter(|slot| slot.fixed_number().is_none());
        let slots = general.fold(0, |slots, slot| slots | slot.bit());
        if slots == 0 || !events::has_precise_records(self.general) {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Self { slots, precise: 1, ..self })
    }

    /// Returns one of perf's generic events, in user mode.
    ///
    /// # Errors
    ///
    /// Those of `new`.
    pub fn generic(caps: &PmuCaps, id: u64) -> Result<Self, Errno> {
        Self::new(caps, TYPE_HARDWARE, id, EVNTSEL_USR, false)
    }

    /// Returns the event and the unit mask.
    pub const fn event_and_umask(&self) -> u16 {
        (self.general & EVNTSEL_EVENT_MASK) as u16
    }

    /// Makes one of perf's generic events, or the event of a select word, in the rings
    /// `EVNTSEL_USR` and `EVNTSEL_OS`. An event in neither ring counts nothing, as on perf's own
    /// PMUs. The bits [`DRIVERS_OWN`] of a select word are ignored.
    ///
    /// # Errors
    ///
    /// `NOENT` if there is no such event; those of [`ConfigError`](shared_abi::ConfigError).
    pub(crate) fn new(
        caps: &PmuCaps,
        kind: u32,
        config: u64,
        rings: u64,
        samples: bool,
    ) -> Result<Self, Errno> {
        let (select, fixed) = match kind {
            TYPE_HARDWARE => {
                let event = Generic::from_perf(config).ok_or(Errno::NOENT)?;
                (event.select(caps.vendor), event.fixed())
            }
            TYPE_RAW => (Some(config & !DRIVERS_OWN), None),
            _ => return Err(Errno::NOENT),
        };
        let rings = rings & EVNTSEL_RINGS | EVNTSEL_EN;
        let general = select.map_or(0, |select| select | rings);
        let mut event = Self { general, fixed: rings, samples: samples.into(), ..Self::default() };
        let by_fixed = fixed.filter(|&slot| caps.has(slot));
        let general = slots_of(caps.slots()).filter(|slot| slot.fixed_number().is_none());
        let mut refusal = Errno::NOENT;
        for slot in by_fixed.into_iter().chain(general.filter(|_| select.is_some())) {
            let evntsel = event.evntsel(slot);
            let counter = CounterConfig { slot: slot.index() as u32, evntsel, ..sampling(samples) };
            match Config::new(caps, &[counter]) {
                Ok(_) => event.slots |= slot.bit(),
                Err(error) => refusal = error.errno(),
            }
        }
        if event.slots == 0 { Err(refusal) } else { Ok(event) }
    }

    /// Returns whether the event counts the kernel.
    pub(crate) const fn counts_kernel(&self) -> bool {
        self.fixed & EVNTSEL_OS != 0
    }

    /// Returns whether the processor notes the places of its samples.
    pub(crate) const fn is_precise(&self) -> bool {
        self.precise != 0
    }

    /// Returns whether the hypervisor knows the places of its samples better than the interrupt.
    pub(crate) const fn asks_for_place(&self) -> bool {
        self.counts_kernel() || self.is_precise()
    }

    /// Returns whether the event counts in any ring.
    pub(crate) const fn counts(&self) -> bool {
        self.fixed & EVNTSEL_RINGS != 0
    }

    /// Returns the select word that is loaded for the event. An event that counts in no ring gets a
    /// valid word, too, and is never started.
    pub(crate) const fn evntsel(&self, slot: PhysSlot) -> u64 {
        let evntsel = if slot.fixed_number().is_some() { self.fixed } else { self.general };
        if self.counts() { evntsel } else { evntsel | EVNTSEL_USR }
    }
}

/// Returns a counter's mode, for the check of an event, for which any valid period will do.
fn sampling(samples: bool) -> CounterConfig {
    let mode = u32::from(samples);
    CounterConfig { mode, period: mode.into(), ..CounterConfig::default() }
}
