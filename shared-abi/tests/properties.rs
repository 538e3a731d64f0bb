// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests configurations and counts of any shape against a model, which states the rules once more
//! in the manuals' numbers.
#![cfg(not(loom))]

use std::collections::BTreeMap;

use proptest::prelude::*;
use shared_abi::caps::{
    CAPS_ALL_EVENTS, CAPS_EVENT_12BIT, CAPS_SAMPLING, VENDOR_AMD, VENDOR_INTEL,
};
use shared_abi::count::{log_thread, phys_star};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::{Config, CounterConfig, CounterWidth, PhysSlot, PmuCaps};

/// The event that each slot counts, and its period if it interrupts.
type Model = BTreeMap<u32, (u64, Option<u64>)>;

/// Decides by the rules of `docs/ABI.md` and `docs/caveats.md`.
fn model_of(caps: &PmuCaps, counters: &[CounterConfig]) -> Option<Model> {
    let mut model = Model::new();
    for counter in counters {
        let CounterConfig { slot, mode, evntsel, period, reserved } = *counter;
        let fixed = slot.checked_sub(16);
        let exists = fixed.map_or(slot < caps.general, |n| n < caps.fixed);
        let period = match (mode, period) {
            (0, 0) => None,
            (1, 1..=0x7fff_ffff) if caps.can(CAPS_SAMPLING) => Some(period),
            (2, 1..=0x7fff_ffff) if caps.can(CAPS_SAMPLING) && fixed.is_none() => Some(period),
            _ => return None,
        };
        // An event select must have the enable bit and one of the rings, and only bits that a guest
        // may set.
        let high = if caps.can(CAPS_EVENT_12BIT) { 0xf_0000_0000 } else { 0 };
        let well_formed = evntsel & 0x40_0000 != 0
            && evntsel & 0x3_0000 != 0
            && evntsel & !(high | 0xffc7_ffff) == 0
            && reserved == 0;
        let all = caps.can(CAPS_ALL_EVENTS);
        let permitted = match fixed {
            Some(n) => evntsel & !0x43_0000 == 0 && (n < 3 || all),
            None => is_listed(caps.vendor, evntsel & 0xf_0000_ffff, all),
        };
        if !exists || !well_formed || !permitted {
            return None;
        }
        if model.insert(slot, (evntsel, period)).is_some() {
            return None;
        }
    }
    Some(model)
}

/// Returns whether a guest may count an event on a processor without known errata.
fn is_listed(vendor: u32, event: u64, all: bool) -> bool {
    if vendor == VENDOR_AMD {
        let listed = [0x76, 0xc0, 0xc2, 0xc3, 0xc4, 0xc5, 0xd1, 0x825].contains(&event);
        return listed || all && event & 0xe0 != 0xe0;
    }
    let listed = [0x3c, 0xc0, 0x13c, 0x4f2e, 0x412e, 0xc4, 0xc5, 0x1c4].contains(&event);
    listed || all && ![0xb7, 0xbb, 0x2a, 0x2b].contains(&(event & 0xff))
}

fn same(config: &Config, model: &Model) -> bool {
    let slots = (0..MAX_SLOTS as u32).filter_map(PhysSlot::new);
    let mask = |keep: fn(&Option<u64>) -> bool| {
        let kept = model.iter().filter(|(_, (_, period))| keep(period));
        kept.fold(0_u32, |mask, (slot, _)| mask | 1 << slot)
    };
    config.slots() == mask(|_| true)
        && config.sampling() == mask(Option::is_some)
        && slots.into_iter().all(|slot| {
            let expected = model.get(&(slot.index() as u32)).copied().unwrap_or_default();
            (config.evntsel(slot), config.period(slot)) == (expected.0, expected.1.unwrap_or(0))
        })
}

fn caps() -> impl Strategy<Value = PmuCaps> {
    let optional = |feature| prop_oneof![Just(0), Just(feature)];
    let features = (optional(CAPS_SAMPLING), optional(CAPS_ALL_EVENTS));
    (any::<bool>(), features, 1..=16_u32, 0..=8_u32, 32..=64_u32, 32..=64_u32).prop_map(
        |(is_amd, (sampling, all), general, fixed, wide, fixed_wide)| PmuCaps {
            vendor: if is_amd { VENDOR_AMD } else { VENDOR_INTEL },
            version: 2,
            features: sampling | all | if is_amd { CAPS_EVENT_12BIT } else { 0 },
            general,
            fixed,
            general_width: CounterWidth::new(wide).unwrap(),
            fixed_width: CounterWidth::new(fixed_wide).unwrap(),
        },
    )
}

/// Makes counters, most of which are valid. A purely random counter would rarely be.
fn counter() -> impl Strategy<Value = CounterConfig> {
    let slot = prop_oneof![8 => 0..4_u32, 6 => 16..20_u32, 1 => 0..26_u32, 1 => any::<u32>()];
    let event = prop_oneof![
        6 => prop::sample::select(vec![0xc0, 0xc4, 0xc5]),
        1 => prop::sample::select(vec![0x3c, 0x76, 0x4f2e, 0xb7, 0xe0, 0x1_0000_00c0]),
        1 => 0..0x10_0000_u64,
    ];
    let rings = prop_oneof![9 => 1..4_u64, 1 => Just(0)];
    let odd_bits = prop_oneof![20 => Just(0), 1 => (0..64_u32).prop_map(|bit| 1 << bit)];
    let mode = prop_oneof![
        6 => Just((0, 0)),
        6 => (1..40_u64).prop_map(|period| (1, period)),
        1 => (0..4_u32, prop_oneof![Just(0), 0x7fff_fff0..0x8000_0010_u64, any::<u64>()]),
    ];
    let reserved = prop_oneof![30 => Just(0), 1 => any::<u64>()];
    (slot, event, rings, odd_bits, mode, reserved).prop_map(
        |(slot, event, rings, odd_bits, (mode, period), reserved)| {
            let event = if (16..24).contains(&slot) && event < 0x100 { 0 } else { event };
            let evntsel = (event | rings << 16 | 1 << 22) ^ odd_bits;
            CounterConfig { slot, mode, evntsel, period, reserved }
        },
    )
}

fn counters() -> impl Strategy<Value = Vec<CounterConfig>> {
    prop::collection::vec(counter(), 0..4)
}

/// Makes a list of counters that are valid on a CPU that has all of them, at most one for each
/// slot. There are few slots, events and periods, so that two lists often have some in common.
fn valid_counters() -> impl Strategy<Value = Vec<CounterConfig>> {
    let event = prop_oneof![4 => Just(0xc0), 1 => Just(0xc4)];
    let mode = prop_oneof![Just((0, 0)), (1..6_u64).prop_map(|period| (1, period))];
    let rings = prop_oneof![4 => Just(1_u64), 1 => Just(3)];
    let one = (event, rings, mode, any::<bool>());
    prop::collection::vec(one, 4).prop_map(|all| {
        let counter = |((event, rings, (mode, period), _), slot)| {
            let event: u64 = if slot >= 16 { 0 } else { event };
            let evntsel = event | rings << 16 | 1_u64 << 22;
            CounterConfig { slot, mode, evntsel, period, reserved: 0 }
        };
        all.into_iter().zip([0, 1, 16, 17]).filter(|((.., used), _)| *used).map(counter).collect()
    })
}

/// Returns a CPU that has every counter and every feature.
fn able() -> PmuCaps {
    let [general_width, fixed_width] = [48, 40].map(|bits| CounterWidth::new(bits).unwrap());
    PmuCaps {
        vendor: VENDOR_INTEL,
        version: 2,
        features: CAPS_SAMPLING | CAPS_ALL_EVENTS,
        general: 16,
        fixed: 8,
        general_width,
        fixed_width,
    }
}

/// Returns what both count, or `None` if both use a slot for different events.
fn joined(one: &Model, two: &Model) -> Option<Model> {
    let mut both = one.clone();
    for (&slot, &(evntsel, period)) in two {
        let entry = both.entry(slot).or_insert((evntsel, period));
        if entry.0 != evntsel {
            return None;
        }
        entry.1 = [entry.1, period].into_iter().flatten().min();
    }
    Some(both)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn a_configuration_is_valid_by_the_rules_and_by_no_others(
        (caps, listed) in (caps(), counters()),
    ) {
        let (config, model) = (Config::new(&caps, &listed), model_of(&caps, &listed));
        prop_assert_eq!(config.is_ok(), model.is_some(), "{:?}", config);
        if let (Ok(config), Some(model)) = (config, model) {
            prop_assert!(same(&config, &model), "{:?}", config);
            let mut backwards = listed;
            backwards.reverse();
            prop_assert_eq!(Config::new(&caps, &backwards), Ok(config));
            let mut wire = [CounterConfig::default(); MAX_SLOTS];
            let used = config.encode(&mut wire) as usize;
            prop_assert_eq!(used, backwards.len());
            prop_assert_eq!(Config::new(&caps, &wire[..used]), Ok(config));
        }
    }

    #[test]
    fn what_is_joined_is_what_both_count(
        (first, second) in (valid_counters(), valid_counters()),
    ) {
        let caps = able();
        let [a, b] = [&first, &second].map(|listed| model_of(&caps, listed).unwrap());
        let [one, two] = [first, second].map(|listed| Config::new(&caps, &listed).unwrap());
        let (both, expected) = (one.joined(&two), joined(&a, &b));
        prop_assert_eq!(both.is_some(), expected.is_some());
        prop_assert_eq!(both, two.joined(&one));
        let samples = one.sampling() | two.sampling() != 0;
        prop_assert_eq!(one.joined_unless_sampling(&two), both.filter(|_| !samples));
        if let (Some(both), Some(expected)) = (both, expected) {
            prop_assert!(same(&both, &expected), "{:?}", both);
            prop_assert!(both.includes(&one) && both.includes(&two));
        }
        let counts = |slot, event| a.get(slot).is_some_and(|(own, _)| own == event);
        let included = b.iter().all(|(slot, (event, _))| counts(slot, event));
        prop_assert_eq!(one.includes(&two), included);
    }

    #[test]
    fn a_configuration_can_lose_slots_and_interrupts(
        (caps, listed, lost) in (caps(), counters(), any::<u32>()),
    ) {
        let Some(mut model) = model_of(&caps, &listed) else { return Ok(()) };
        let less = Config::new(&caps, &listed).unwrap().only_counting_without(lost);
        model.retain(|slot, (_, period)| {
            *period = None;
            lost & 1 << slot == 0
        });
        prop_assert!(same(&less, &model), "{:?}", less);
    }

    #[test]
    fn counts_are_exact_at_every_width(
        (bits, start, events) in (32..=64_u32, any::<u64>(), any::<u64>()),
        (sum, thread_sum, thread_start) in any::<(u64, u64, u64)>(),
    ) {
        // This counts as a counter of this width does: one by one, and from 0 again behind its last
        // number.
        let modulus = 1_u128 << bits;
        let (start, events) = (u128::from(start) % modulus, u128::from(events) % modulus);
        let raw = (start + events) % modulus;
        let mask = CounterWidth::new(bits).unwrap().mask();
        let star = phys_star(sum, start as u64, mask, raw as u64);
        prop_assert_eq!(u128::from(star), (u128::from(sum) + events) % (1 << 64));
        let log = log_thread(thread_sum, thread_start, star);
        let gained = (u128::from(star) + (1 << 64) - u128::from(thread_start)) % (1 << 64);
        prop_assert_eq!(u128::from(log), (u128::from(thread_sum) + gained) % (1 << 64));
        prop_assert_eq!(phys_star(sum, start as u64, 0, raw as u64), sum);
    }
}
