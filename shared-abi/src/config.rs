// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The configuration of counters, and the rules for valid ones.
//!
//! An event select says what a counter counts, in bits that the architecture defines (`EVNTSEL_*`
//! in [`arch`](crate::arch)).
//!
//! The guest kernel validates a configuration before it stores it, and the hypervisor validates it
//! again before it programs it. Both call [`Config::new`], each on a private copy.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::arch::{
    EVNTSEL_AMD_EVENT_HIGH, EVNTSEL_EN, EVNTSEL_EVENT, EVNTSEL_GUEST, EVNTSEL_PRIVILEGED,
    EVNTSEL_RINGS, events,
};
use crate::caps::{CAPS_EVENT_12BIT, CAPS_SAMPLING, PmuCaps};
use crate::error::Errno;
use crate::layout::layout;
use crate::limits::{MAX_SLOTS, PERIOD_EVENTS_MAX};
use crate::slot::{PhysSlot, slots_of};

/// [`CounterConfig::mode`]: the counter accumulates (a-mode).
pub const MODE_COUNTING: u32 = 0;
/// [`CounterConfig::mode`]: the counter counts, and interrupts every `period` events (i-mode).
pub const MODE_SAMPLING: u32 = 1;
/// [`CounterConfig::mode`]: as [`MODE_SAMPLING`], and the processor itself notes the instruction at
/// which the period ends, see [`FEATURE_PRECISE`](crate::hypercall::FEATURE_PRECISE). Only general
/// counters have this mode, and only hypercalls.
pub const MODE_PRECISE: u32 = 2;

/// The form in which the configuration of one counter crosses a boundary between privilege levels.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CounterConfig {
    /// The physical counter, see [`PhysSlot`].
    pub slot: u32,
    /// `MODE_*`.
    pub mode: u32,
    /// The event select, which says what the counter counts.
    pub evntsel: u64,
    /// Unit: events. In an ioctl this is the period. In a hypercall it is the distance to the
    /// next overflow, which happens once. It must be 0 in [`MODE_COUNTING`].
    pub period: u64,
    /// Must be 0.
    pub reserved: u64,
}

layout!(CounterConfig, "perfctr_counter_config", 32, {
    0 slot: "__u32",
    4 mode: "__u32",
    8 evntsel: "__u64",
    16 period: "__u64",
    24 reserved: "__u64",
});

/// Why a configuration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// There are more counters than the interface or the PMU has.
    TooMany,
    /// The PMU has no such counter.
    BadSlot,
    /// A counter is listed twice.
    Duplicate,
    /// A counter's mode does not exist, or it is sampling and the PMU cannot sample.
    BadMode,
    /// A sampling counter's period is 0 or too long.
    BadPeriod,
    /// A reserved field or an undefined bit of an event select is not 0.
    Reserved,
    /// An event select has a bit set that a guest may not set.
    Privileged,
    /// An event select's enable bit is clear.
    Disabled,
    /// An event select asks for neither user mode nor kernel mode.
    NoRing,
    /// The host does not let guests count an event.
    Event,
    /// The event select of a fixed counter has an event, edge, inversion or counter mask.
    FixedEvent,
}

impl ConfigError {
    /// Returns the error number by which the refusal crosses a boundary.
    pub const fn errno(self) -> Errno {
        match self {
            Self::Privileged | Self::Event => Errno::PERM,
            Self::BadMode => Errno::OPNOTSUPP,
            Self::TooMany
            | Self::BadSlot
            | Self::BadPeriod
            | Self::Duplicate
            | Self::Reserved
            | Self::Disabled
            | Self::NoRing
            | Self::FixedEvent => Errno::INVAL,
        }
    }
}

/// A valid configuration in canonical form, with an event select for each physical counter.
///
/// Two threads that list the same counters in different orders have equal configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    slots: u32,
    sampling: u32,
    precise: u32,
    evntsel: [u64; MAX_SLOTS],
    period: [u32; MAX_SLOTS],
}

impl Config {
    /// The configuration that counts nothing.
    pub const NONE: Self =
        Self { slots: 0, sampling: 0, precise: 0, evntsel: [0; MAX_SLOTS], period: [0; MAX_SLOTS] };

    /// Validates `counters`, which may come from anybody, for this PMU.
    pub fn new(caps: &PmuCaps, counters: &[CounterConfig]) -> Result<Self, ConfigError> {
        if counters.len() > MAX_SLOTS {
            return Err(ConfigError::TooMany);
        }
        let mut config = Self::default();
        for counter in counters {
            let slot = PhysSlot::from_guest(counter.slot).ok_or(ConfigError::BadSlot)?;
            if !caps.has(slot) {
                return Err(ConfigError::BadSlot);
            }
            if config.slots & slot.bit() != 0 {
                return Err(ConfigError::Duplicate);
            }
            check(caps, slot, counter)?;
            config.slots |= slot.bit();
            if let Some(evntsel) = config.evntsel.get_mut(slot.index()) {
                *evntsel = counter.evntsel;
            }
            if counter.mode != MODE_COUNTING {
                config.sampling |= slot.bit();
                config.set_period(slot, counter.period);
            }
            if counter.mode == MODE_PRECISE {
                config.precise |= slot.bit();
            }
        }
        Ok(config)
    }

    /// Returns a mask with one bit for each slot in use.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns a mask with one bit for each slot that interrupts.
    pub const fn sampling(&self) -> u32 {
        self.sampling
    }

    /// Returns a mask with one bit for each slot that interrupts and whose place the processor is
    /// to note.
    pub const fn precise(&self) -> u32 {
        self.precise
    }

    /// Returns the same configuration, in which the processor notes the place of each slot that
    /// interrupts.
    #[must_use]
    pub const fn precisely(self) -> Self {
        Self { precise: self.sampling, ..self }
    }

    /// Returns how many events there are until the slot's next overflow, or 0 for a slot that does
    /// not interrupt.
    pub fn period(&self, slot: PhysSlot) -> u64 {
        self.period.get(slot.index()).copied().map_or(0, u64::from)
    }

    /// Sets the distance to the next overflow of a slot that interrupts.
    ///
    /// A distance outside 1 to [`PERIOD_EVENTS_MAX`] is moved to the nearer end.
    pub fn set_period(&mut self, slot: PhysSlot, events: u64) {
        if let Some(period) = self.period.get_mut(slot.index())
            && self.sampling & slot.bit() != 0
        {
            *period = events.clamp(1, PERIOD_EVENTS_MAX) as u32;
        }
    }

    /// Returns the slot's event select, or 0 for a slot that is not in use.
    pub fn evntsel(&self, slot: PhysSlot) -> u64 {
        self.evntsel.get(slot.index()).copied().unwrap_or(0)
    }

    /// Returns a mask of the slots that count in a mode. `ring` is the mode's bit of an event
    /// select. If it has both bits, the mask has the slots that count in either mode.
    pub fn slots_in_ring(&self, ring: u64) -> u32 {
        slots_of(self.slots)
            .filter(|&slot| self.evntsel(slot) & ring != 0)
            .fold(0, |mask, slot| mask | slot.bit())
    }

    /// Returns whether everything that `other` counts is counted here as well, by the same
    /// counters.
    ///
    /// Interrupts do not matter here: they do not change what a counter counts.
    pub fn includes(&self, other: &Config) -> bool {
        other.slots & !self.slots == 0
            && slots_of(other.slots).all(|slot| self.evntsel(slot) == other.evntsel(slot))
    }

    /// Returns whether both use the same counters for the same events, and the same counters
    /// interrupt. The distances to their next overflows may differ.
    pub fn differs_only_in_distances(&self, other: &Config) -> bool {
        (self.slots, self.sampling, self.precise) == (other.slots, other.sampling, other.precise)
            && self.includes(other)
    }

    /// Sets the distances to the next overflows to those of `other`, which differs only in them.
    pub fn take_distances(&mut self, other: &Config) {
        for slot in slots_of(self.sampling) {
            if let Some((own, new)) =
                self.period.get_mut(slot.index()).zip(other.period.get(slot.index()))
            {
                *own = *new;
            }
        }
    }

    /// Does the same as [`joined`](Self::joined), but also returns `None` if one of the two
    /// interrupts.
    pub fn joined_unless_sampling(&self, other: &Config) -> Option<Config> {
        if self.sampling | other.sampling == 0 { self.joined(other) } else { None }
    }

    /// Returns whether a counter is not in use, or counts this event already.
    pub fn has_room_for(&self, slot: PhysSlot, evntsel: u64) -> bool {
        self.slots & slot.bit() == 0 || self.evntsel(slot) == evntsel
    }

    /// Returns the configuration that counts what both count, or `None` if they use the same
    /// counter for different events.
    ///
    /// A counter interrupts if it interrupts in one of them. If it interrupts in both, it does so
    /// after the shorter distance.
    pub fn joined(&self, other: &Config) -> Option<Config> {
        let mut both = *self;
        for slot in slots_of(other.slots) {
            if !self.has_room_for(slot, other.evntsel(slot)) {
                return None;
            }
            *both.evntsel.get_mut(slot.index())? = other.evntsel(slot);
        }
        both.slots |= other.slots;
        both.sampling |= other.sampling;
        both.precise |= other.precise;
        for slot in slots_of(other.sampling) {
            let (one, two) = (self.period(slot), other.period(slot));
            both.set_period(slot, if one == 0 { two } else { one.min(two) });
        }
        Some(both)
    }

    /// Returns the same configuration without the slots in the mask `slots`. No counter of the
    /// result interrupts.
    #[must_use]
    pub fn only_counting_without(&self, slots: u32) -> Config {
        let mut less = Self { slots: self.slots & !slots, ..Self::default() };
        for slot in slots_of(less.slots) {
            if let Some(evntsel) = less.evntsel.get_mut(slot.index()) {
                *evntsel = self.evntsel(slot);
            }
        }
        less
    }

    /// Returns the configuration of a single counter, which interrupts after `distance` events if
    /// there is a distance.
    ///
    /// The event select is not validated again: the caller takes it from a valid configuration.
    pub fn one(slot: PhysSlot, evntsel: u64, distance: Option<u64>) -> Config {
        let mut one = Self { slots: slot.bit(), ..Self::default() };
        if let Some(own) = one.evntsel.get_mut(slot.index()) {
            *own = evntsel;
        }
        if let Some(events) = distance {
            one.sampling = slot.bit();
            one.set_period(slot, events);
        }
        one
    }

    fn mode(&self, slot: PhysSlot) -> u32 {
        if self.precise & slot.bit() != 0 {
            MODE_PRECISE
        } else if self.sampling & slot.bit() != 0 {
            MODE_SAMPLING
        } else {
            MODE_COUNTING
        }
    }

    /// Writes the configuration in the form in which it crosses a boundary, and returns the number
    /// of counters.
    pub fn encode(&self, counters: &mut [CounterConfig; MAX_SLOTS]) -> u32 {
        let mut used = 0;
        for (counter, slot) in counters.iter_mut().zip(slots_of(self.slots)) {
            *counter = CounterConfig {
                slot: slot.index() as u32,
                mode: self.mode(slot),
                evntsel: self.evntsel(slot),
                period: self.period(slot),
                reserved: 0,
            };
            used += 1;
        }
        used
    }
}

/// Checks the configuration of one counter, which the PMU has in `slot`.
fn check(caps: &PmuCaps, slot: PhysSlot, counter: &CounterConfig) -> Result<(), ConfigError> {
    let evntsel = counter.evntsel;
    let event_12bit = caps.can(CAPS_EVENT_12BIT);
    let undefined = if event_12bit { 0 } else { EVNTSEL_AMD_EVENT_HIGH };
    let defined = EVNTSEL_GUEST & !undefined;
    let periods = match counter.mode {
        MODE_COUNTING => 0..=0,
        MODE_SAMPLING if caps.can(CAPS_SAMPLING) => 1..=PERIOD_EVENTS_MAX,
        MODE_PRECISE if caps.can(CAPS_SAMPLING) && slot.fixed_number().is_none() => {
            1..=PERIOD_EVENTS_MAX
        }
        _ => return Err(ConfigError::BadMode),
    };
    if !periods.contains(&counter.period) {
        Err(ConfigError::BadPeriod)
    } else if counter.reserved != 0 {
        Err(ConfigError::Reserved)
    } else if evntsel & EVNTSEL_PRIVILEGED != 0 {
        Err(ConfigError::Privileged)
    } else if evntsel & !defined != 0 {
        Err(ConfigError::Reserved)
    } else if evntsel & EVNTSEL_EN == 0 {
        Err(ConfigError::Disabled)
    } else if evntsel & EVNTSEL_RINGS == 0 {
        Err(ConfigError::NoRing)
    } else if let Some(number) = slot.fixed_number() {
        if evntsel & !(EVNTSEL_RINGS | EVNTSEL_EN) != 0 {
            Err(ConfigError::FixedEvent)
        } else if !events::is_fixed_allowed(caps, number) {
            Err(ConfigError::Event)
        } else {
            Ok(())
        }
    } else if !events::is_allowed(caps, evntsel & EVNTSEL_EVENT) {
        Err(ConfigError::Event)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{EVNTSEL_ANY, EVNTSEL_INT, EVNTSEL_OS, EVNTSEL_PC, EVNTSEL_USR};
    use crate::caps::{CAPS_ALL_EVENTS, CAPS_GLOBAL_INTEL, VENDOR_AMD, VENDOR_INTEL};
    use crate::count::CounterWidth;

    const INSTRUCTIONS_USER: u64 = 0xc0 | EVNTSEL_USR | EVNTSEL_EN;

    fn caps() -> PmuCaps {
        let [general_width, fixed_width] = [48, 40].map(|bits| CounterWidth::new(bits).unwrap());
        PmuCaps {
            vendor: VENDOR_INTEL,
            version: 3,
            features: CAPS_GLOBAL_INTEL | CAPS_SAMPLING,
            general: 4,
            fixed: 3,
            general_width,
            fixed_width,
        }
    }

    fn counter(slot: u32, evntsel: u64) -> CounterConfig {
        CounterConfig { slot, evntsel, ..CounterConfig::default() }
    }

    fn refusal(counters: &[CounterConfig]) -> ConfigError {
        Config::new(&caps(), counters).unwrap_err()
    }

    #[test]
    fn event_selects_have_the_manuals_bits() {
        // The SDM, volume 3, figure 20-1: the bits that a guest may set, and those that it may not.
        assert!(
            Config::new(&caps(), &[counter(0, 0xffc7_00c0)]).is_ok_and(|config| {
                config.evntsel(PhysSlot::general(0).unwrap()) == 0xffc7_00c0
            })
        );
        for privileged in [1 << 19, 1 << 20, 1 << 21] {
            assert_eq!(refusal(&[counter(0, 0x41_00c0 | privileged)]), ConfigError::Privileged);
        }
        for reserved in [1 << 32, 1 << 35, 1 << 36, 1 << 63] {
            assert_eq!(refusal(&[counter(0, 0x41_00c0 | reserved)]), ConfigError::Reserved);
        }
    }

    #[test]
    fn only_what_samples_has_a_period() {
        let sampling =
            CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(2, INSTRUCTIONS_USER) };
        let mut config = Config::new(&caps(), &[counter(0, INSTRUCTIONS_USER), sampling]).unwrap();
        assert_eq!(config.sampling(), 0b100);
        let slots = [0, 2].map(|n| PhysSlot::general(n).unwrap());
        slots.iter().for_each(|&slot| config.set_period(slot, 7));
        assert_eq!(slots.map(|slot| config.period(slot)), [0, 7]);
        assert_eq!(config.joined_unless_sampling(&config), None, "both sample");
    }

    #[test]
    fn only_configurations_of_other_distances_differ_only_in_them() {
        let one = |slot, evntsel, mode, period| {
            let mode = CounterConfig { mode, period, ..counter(slot, evntsel) };
            Config::new(&caps(), &[counter(3, 0xc4 | EVNTSEL_OS | EVNTSEL_EN), mode]).unwrap()
        };
        let config = one(1, INSTRUCTIONS_USER, MODE_SAMPLING, 1_000);
        let same = one(1, INSTRUCTIONS_USER, MODE_SAMPLING, 77);
        assert!(config != same && config.differs_only_in_distances(&same));
        assert!(config.differs_only_in_distances(&config));
        for other in [
            one(2, INSTRUCTIONS_USER, MODE_SAMPLING, 1_000),
            one(1, INSTRUCTIONS_USER | EVNTSEL_OS, MODE_SAMPLING, 1_000),
            one(1, INSTRUCTIONS_USER, MODE_COUNTING, 0),
            one(1, INSTRUCTIONS_USER, MODE_PRECISE, 1_000),
            Config::one(PhysSlot::general(1).unwrap(), INSTRUCTIONS_USER, Some(1_000)),
            Config::NONE,
        ] {
            assert!(!config.differs_only_in_distances(&other), "{other:?}");
            assert!(!other.differs_only_in_distances(&config), "{other:?}");
        }
    }

    #[test]
    fn what_is_precise_samples_on_a_general_counter() {
        let precise = |slot, evntsel| CounterConfig {
            mode: MODE_PRECISE,
            period: 1_000,
            ..counter(slot, evntsel)
        };
        let config = Config::new(&caps(), &[precise(2, INSTRUCTIONS_USER)]).unwrap();
        assert_eq!((config.sampling(), config.precise()), (0b100, 0b100));
        let slot = PhysSlot::general(2).unwrap();
        assert_eq!(Config::one(slot, INSTRUCTIONS_USER, Some(1_000)).precisely(), config);
        assert_eq!(Config::one(slot, INSTRUCTIONS_USER, None).precisely().precise(), 0);
        let sampling = Config::one(slot, INSTRUCTIONS_USER, Some(1_000));
        assert_eq!(sampling.joined(&config), Some(config));
        assert_eq!(refusal(&[precise(16, EVNTSEL_USR | EVNTSEL_EN)]), ConfigError::BadMode);
        let without_period = CounterConfig { period: 0, ..precise(2, INSTRUCTIONS_USER) };
        assert_eq!(refusal(&[without_period]), ConfigError::BadPeriod);
        let mut wire = [CounterConfig::default(); MAX_SLOTS];
        assert_eq!((config.encode(&mut wire), wire[0]), (1, precise(2, INSTRUCTIONS_USER)));
    }

    #[test]
    fn order_does_not_matter() {
        let one = counter(1, INSTRUCTIONS_USER);
        let two = counter(16, EVNTSEL_OS | EVNTSEL_EN);
        let config = Config::new(&caps(), &[one, two]).unwrap();
        assert_eq!(config, Config::new(&caps(), &[two, one]).unwrap());
        assert_eq!(config.slots(), 1 << 1 | 1 << 16);
        assert_eq!(config.slots_in_ring(EVNTSEL_USR), 1 << 1);
        assert_eq!(config.slots_in_ring(EVNTSEL_OS), 1 << 16);
    }

    #[test]
    fn inclusion_is_by_slot_and_event() {
        let both = Config::new(
            &caps(),
            &[counter(0, INSTRUCTIONS_USER), counter(2, 0xc4 | 3 << 16 | EVNTSEL_EN)],
        )
        .unwrap();
        let one = Config::new(&caps(), &[counter(0, INSTRUCTIONS_USER)]).unwrap();
        let elsewhere = Config::new(&caps(), &[counter(1, INSTRUCTIONS_USER)]).unwrap();
        let kernel = Config::new(&caps(), &[counter(0, INSTRUCTIONS_USER | EVNTSEL_OS)]).unwrap();
        assert!(both.includes(&one) && both.includes(&Config::default()));
        assert!(!one.includes(&both) && !both.includes(&elsewhere) && !both.includes(&kernel));
    }

    #[test]
    fn configurations_fit_beside_each_other_or_clash() {
        let of = |counters: &[CounterConfig]| Config::new(&caps(), counters).unwrap();
        let (a, b) = (counter(0, INSTRUCTIONS_USER), counter(17, EVNTSEL_USR | EVNTSEL_EN));
        let c = counter(2, 0xc4 | EVNTSEL_USR | EVNTSEL_EN);
        assert_eq!(of(&[a, b]).joined_unless_sampling(&of(&[c, b])), Some(of(&[a, b, c])));
        assert_eq!(Config::default().joined_unless_sampling(&of(&[a])), Some(of(&[a])));
        let clash = counter(0, INSTRUCTIONS_USER | EVNTSEL_OS);
        assert_eq!(of(&[a, b]).joined_unless_sampling(&of(&[c, clash])), None);
        let sampling = of(&[CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..c }]);
        assert_eq!(
            (
                of(&[a]).joined_unless_sampling(&sampling),
                sampling.joined_unless_sampling(&of(&[a]))
            ),
            (None, None)
        );
    }

    #[test]
    fn a_joined_counter_interrupts_after_the_shorter_distance() {
        let every = |period| {
            let mode = if period == 0 { MODE_COUNTING } else { MODE_SAMPLING };
            CounterConfig { mode, period, ..counter(2, INSTRUCTIONS_USER) }
        };
        let of = |period| Config::new(&caps(), &[every(period)]).unwrap();
        let other = Config::new(&caps(), &[counter(0, 0xc4 | EVNTSEL_USR | EVNTSEL_EN)]).unwrap();
        let slot = PhysSlot::general(2).unwrap();
        for (one, two, shorter) in [(900, 400, 400), (400, 900, 400), (700, 0, 700), (0, 500, 500)]
        {
            let both = of(one).joined(&of(two)).unwrap();
            assert_eq!((both.period(slot), both.sampling()), (shorter, 1 << 2), "{one}, {two}");
            let all = other.joined(&both).unwrap();
            assert_eq!((all.period(slot), all.slots()), (shorter, 0b101), "{one}, {two}");
        }
        let counting = of(0).joined(&of(0)).unwrap();
        assert_eq!((counting.period(slot), counting.sampling()), (0, 0));
    }

    #[test]
    fn a_counter_has_room_for_what_it_counts_already_and_for_all_if_it_is_free() {
        let branches = 0xc4 | EVNTSEL_USR | EVNTSEL_EN;
        let config = Config::new(&caps(), &[counter(1, INSTRUCTIONS_USER)]).unwrap();
        let slot = |index| PhysSlot::from_guest(index).unwrap();
        assert!(config.has_room_for(slot(1), INSTRUCTIONS_USER));
        assert!(!config.has_room_for(slot(1), branches));
        assert!(config.has_room_for(slot(2), branches));
    }

    #[test]
    fn what_stays_of_a_configuration_only_counts() {
        let sampling =
            CounterConfig { mode: MODE_SAMPLING, period: 900, ..counter(2, INSTRUCTIONS_USER) };
        let branches = counter(1, 0xc4 | EVNTSEL_USR | EVNTSEL_EN);
        let all = Config::new(&caps(), &[counter(0, INSTRUCTIONS_USER), branches, sampling]);
        let less = all.unwrap().only_counting_without(0b1);
        let expected = Config::new(&caps(), &[branches, counter(2, INSTRUCTIONS_USER)]);
        assert_eq!(Ok(less), expected);
    }

    #[test]
    fn encoding_round_trips() {
        let config = Config::new(
            &caps(),
            &[counter(16, EVNTSEL_USR | EVNTSEL_EN), counter(3, INSTRUCTIONS_USER)],
        )
        .unwrap();
        let mut wire = [CounterConfig::default(); MAX_SLOTS];
        let used = config.encode(&mut wire) as usize;
        assert_eq!(used, 2);
        assert_eq!(Config::new(&caps(), &wire[..used]), Ok(config));
    }

    #[test]
    fn each_bad_field_has_its_refusal() {
        let good = counter(0, INSTRUCTIONS_USER);
        assert!(Config::new(&caps(), &[good]).is_ok());
        for bit in [EVNTSEL_PC, EVNTSEL_INT, EVNTSEL_ANY] {
            assert_eq!(refusal(&[counter(0, INSTRUCTIONS_USER | bit)]), ConfigError::Privileged);
        }
        for bit in 32..64 {
            assert_eq!(refusal(&[counter(0, INSTRUCTIONS_USER | 1 << bit)]), ConfigError::Reserved);
        }
        assert_eq!(refusal(&[counter(0, INSTRUCTIONS_USER & !EVNTSEL_EN)]), ConfigError::Disabled);
        assert_eq!(refusal(&[counter(0, 0xc0 | EVNTSEL_EN)]), ConfigError::NoRing);
        assert_eq!(refusal(&[counter(16, INSTRUCTIONS_USER)]), ConfigError::FixedEvent);
        assert_eq!(refusal(&[counter(0, 0x1b7 | EVNTSEL_USR | EVNTSEL_EN)]), ConfigError::Event);
        assert_eq!(refusal(&[CounterConfig { mode: 3, ..good }]), ConfigError::BadMode);
        assert_eq!(refusal(&[CounterConfig { period: 1, ..good }]), ConfigError::BadPeriod);
        assert_eq!(refusal(&[CounterConfig { reserved: 1, ..good }]), ConfigError::Reserved);
        assert_eq!(refusal(&[good, good]), ConfigError::Duplicate);
        for slot in [4, 15, 19, 23, 24, u32::MAX] {
            assert_eq!(refusal(&[counter(slot, INSTRUCTIONS_USER)]), ConfigError::BadSlot);
        }
        assert_eq!(refusal(&[good; MAX_SLOTS + 1]), ConfigError::TooMany);
    }

    #[test]
    fn events_that_may_count_others_need_the_hosts_consent() {
        let user = EVNTSEL_USR | EVNTSEL_EN;
        // L2 requests, retired loads, bus transactions, and an event without a name.
        for event in [0x4f_24, 0x81_d0, 0x20_6f, 0xff_ff] {
            let asked = [counter(0, event | user)];
            assert_eq!(Config::new(&caps(), &asked).err(), Some(ConfigError::Event), "{event:#x}");
        }
        for event in [0x3c, 0x1_3c, 0xc0, 0x41_2e, 0x4f_2e, 0xc4, 0xc5] {
            assert!(Config::new(&caps(), &[counter(0, event | user)]).is_ok(), "{event:#x}");
        }
    }

    #[test]
    fn no_consent_reaches_registers_that_siblings_share() {
        for event in [0xb7, 0xbb, 0x1_2a, 0x1_2b] {
            let asked = [counter(0, event | EVNTSEL_USR | EVNTSEL_EN)];
            assert_eq!(Config::new(&caps(), &asked).err(), Some(ConfigError::Event), "{event:#x}");
        }
    }

    #[test]
    fn fixed_counters_of_the_whole_core_need_the_hosts_consent() {
        let user = EVNTSEL_USR | EVNTSEL_EN;
        let few = PmuCaps { fixed: 7, ..caps() };
        let all = PmuCaps { features: few.features | CAPS_ALL_EVENTS, ..few };
        for slot in 16..19 {
            assert!(Config::new(&few, &[counter(slot, user)]).is_ok(), "{slot}");
        }
        // 19 is TOPDOWN.SLOTS, 20 to 22 are its parts.
        for slot in 19..23 {
            let asked = [counter(16, user), counter(slot, user)];
            assert_eq!(Config::new(&few, &asked), Err(ConfigError::Event), "{slot}");
            assert!(Config::new(&all, &asked).is_ok(), "{slot}");
        }
        assert_eq!(Config::new(&all, &[counter(23, user)]), Err(ConfigError::BadSlot));
    }

    #[test]
    fn sampling_needs_a_period_that_fits() {
        let sampling = CounterConfig { mode: MODE_SAMPLING, ..counter(0, INSTRUCTIONS_USER) };
        let with = |period| CounterConfig { period, ..sampling };
        for period in [0, PERIOD_EVENTS_MAX + 1, u64::MAX] {
            assert_eq!(refusal(&[with(period)]), ConfigError::BadPeriod);
        }
        let mut config = Config::new(&caps(), &[with(PERIOD_EVENTS_MAX)]).unwrap();
        let slot = PhysSlot::general(0).unwrap();
        assert_eq!((config.sampling(), config.period(slot)), (1, PERIOD_EVENTS_MAX));
        let counting = Config::new(&caps(), &[counter(0, INSTRUCTIONS_USER)]).unwrap();
        assert!(config.includes(&counting) && counting.includes(&config));
        config.set_period(slot, 0);
        assert_eq!(config.period(slot), 1);
        let mut wire = [CounterConfig::default(); MAX_SLOTS];
        let used = config.encode(&mut wire) as usize;
        assert_eq!(Config::new(&caps(), &wire[..used]), Ok(config));
        let amd = PmuCaps { features: CAPS_EVENT_12BIT, ..caps() };
        assert_eq!(Config::new(&amd, &[with(1_000)]), Err(ConfigError::BadMode));
    }

    #[test]
    fn amd_has_wider_event_numbers_and_a_northbridge() {
        let caps =
            PmuCaps { vendor: VENDOR_AMD, features: CAPS_EVENT_12BIT | CAPS_ALL_EVENTS, ..caps() };
        let user = EVNTSEL_USR | EVNTSEL_EN;
        assert!(Config::new(&caps, &[counter(0, 0x1 << 32 | 0xc0 | user)]).is_ok());
        assert_eq!(
            Config::new(&caps, &[counter(0, 0x4 << 32 | 0xe0 | user)]),
            Err(ConfigError::Event)
        );
        assert_eq!(Config::new(&caps, &[counter(0, 1 << 36 | user)]), Err(ConfigError::Reserved));
    }

    /// The caller has the rights that a guest has unless the host gives it more.
    #[test]
    fn amds_list_is_of_whole_event_numbers() {
        let caps = PmuCaps { vendor: VENDOR_AMD, features: CAPS_EVENT_12BIT, ..caps() };
        let asked = |event| Config::new(&caps, &[counter(0, event | EVNTSEL_USR | EVNTSEL_EN)]);
        assert!(asked(0xc0).is_ok());
        for high in 1..16 {
            assert_eq!(asked(high << 32 | 0xc0), Err(ConfigError::Event), "{high:#x}c0");
        }
        assert_eq!(asked(0x1_c0), Err(ConfigError::Event), "a unit mask that is not listed");
    }
}
