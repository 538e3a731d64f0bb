// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What perf asks for, and which counters can count it.

use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_RINGS, EVNTSEL_USR};
use shared_abi::events::Generic;
use shared_abi::slot::slots_of;
use shared_abi::{Config, CounterConfig, Errno, PhysSlot, PmuCaps};

/// `PERF_TYPE_HARDWARE` of `linux/perf_event.h`.
pub(crate) const TYPE_HARDWARE: u32 = 0;
/// `PERF_TYPE_RAW` of `linux/perf_event.h`.
pub(crate) const TYPE_RAW: u32 = 4;

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
    pub samples: u32,
}

impl EventConfig {
    /// What perf asks for: one of its generic events or an event's select word, in the rings
    /// `EVNTSEL_USR` and `EVNTSEL_OS`. One in neither ring counts nothing, as on perf's own PMUs.
    ///
    /// # Errors
    ///
    /// `NOENT` no such event, and those of a configuration, see [`shared_abi::ConfigError`].
    pub fn new(
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
            TYPE_RAW if config & (EVNTSEL_RINGS | EVNTSEL_EN) == 0 => (Some(config), None),
            TYPE_RAW => return Err(Errno::INVAL),
            _ => return Err(Errno::NOENT),
        };
        let rings = rings & EVNTSEL_RINGS | EVNTSEL_EN;
        let general = select.map_or(0, |select| select | rings);
        let mut event = Self { general, fixed: rings, slots: 0, samples: samples.into() };
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

    /// Whether it counts in any ring.
    pub(crate) const fn counts(&self) -> bool {
        self.fixed & EVNTSEL_RINGS != 0
    }

    /// The select word that its counter is loaded with.  An event that counts in no ring gets a
    /// valid word all the same, and is never started.
    pub(crate) const fn evntsel(&self, slot: PhysSlot) -> u64 {
        let evntsel = if slot.fixed_number().is_some() { self.fixed } else { self.general };
        if self.counts() { evntsel } else { evntsel | EVNTSEL_USR }
    }
}

/// A counter's mode, for the check of an event.  Any valid period does for that.
fn sampling(samples: bool) -> CounterConfig {
    let mode = u32::from(samples);
    CounterConfig { mode, period: mode.into(), ..CounterConfig::default() }
}
