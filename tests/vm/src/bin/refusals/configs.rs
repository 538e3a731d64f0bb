// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Configurations that nobody may load. They are the same for the device and for the hypervisor.

use perfctr::{PhysSlot, PmuCaps};
use shared_abi::CounterConfig;
use shared_abi::arch::{
    EVNTSEL_ANY, EVNTSEL_EDGE, EVNTSEL_EN, EVNTSEL_INT, EVNTSEL_PC, EVNTSEL_USR,
};
use shared_abi::caps::CAPS_EVENT_12BIT;
use shared_abi::config::{MODE_PRECISE, MODE_SAMPLING};
use shared_abi::limits::PERIOD_EVENTS_MAX;
use vm_tests::raw::Refusal;

/// Counts instructions in user mode on general counter 0.
pub const VALID: CounterConfig = CounterConfig {
    slot: 0,
    mode: 0,
    evntsel: 0xc0 | EVNTSEL_USR | EVNTSEL_EN,
    period: 0,
    reserved: 0,
};

/// The bits of a select word that is enabled in user mode.
const USER: u64 = EVNTSEL_USR | EVNTSEL_EN;

/// A configuration that is refused, and the error.
pub struct BadConfig {
    pub name: &'static str,
    pub errno: Refusal,
    pub counters: Vec<CounterConfig>,
}

/// Returns all such configurations, for a PMU like this.
pub fn all(caps: &PmuCaps) -> Vec<BadConfig> {
    let select = |evntsel| CounterConfig { evntsel, ..VALID };
    let sampling = |period| CounterConfig { mode: MODE_SAMPLING, period, ..VALID };
    let slot = |slot| CounterConfig { slot, ..VALID };
    let fixed = |evntsel| CounterConfig {
        slot: PhysSlot::fixed(0).map_or(u32::MAX, |slot| slot.index() as u32),
        evntsel,
        ..VALID
    };
    // Bits above 32 are a part of the event's number on AMD.
    let lowest = if caps.can(CAPS_EVENT_12BIT) { 36 } else { 32 };
    let counters = |name, errno, counters| BadConfig { name, errno, counters };
    let one = |name, errno, counter| BadConfig { name, errno, counters: vec![counter] };
    let mut all = vec![
        one("a general counter that the PMU lacks", Refusal::EINVAL, slot(caps.general)),
        one("a slot that no page has", Refusal::EINVAL, slot(24)),
        one("the largest slot number", Refusal::EINVAL, slot(u32::MAX)),
        counters("a counter listed twice", Refusal::EINVAL, vec![VALID, VALID]),
        counters("a bad counter behind a good one", Refusal::EINVAL, vec![VALID, slot(24)]),
        one("a sampling counter without a period", Refusal::EINVAL, sampling(0)),
        one("a period that is too long", Refusal::EINVAL, sampling(PERIOD_EVENTS_MAX + 1)),
        one("the longest period", Refusal::EINVAL, sampling(u64::MAX)),
        one("an unknown mode", Refusal::EOPNOTSUPP, CounterConfig { mode: 3, ..VALID }),
        one(
            "precise places where nobody offers them",
            Refusal::EOPNOTSUPP,
            CounterConfig { mode: MODE_PRECISE, ..sampling(1_000) },
        ),
        one("a period without sampling", Refusal::EINVAL, CounterConfig { period: 1, ..VALID }),
        one("a counter's reserved field", Refusal::EINVAL, CounterConfig { reserved: 1, ..VALID }),
        one("the pin control bit", Refusal::EPERM, select(VALID.evntsel | EVNTSEL_PC)),
        one("the interrupt bit", Refusal::EPERM, select(VALID.evntsel | EVNTSEL_INT)),
        one("the any-thread bit", Refusal::EPERM, select(VALID.evntsel | EVNTSEL_ANY)),
        one("the lowest reserved bit", Refusal::EINVAL, select(VALID.evntsel | 1 << lowest)),
        one("reserved bit 63", Refusal::EINVAL, select(VALID.evntsel | 1 << 63)),
        one("the enable bit clear", Refusal::EINVAL, select(VALID.evntsel & !EVNTSEL_EN)),
        one("no ring", Refusal::EINVAL, select(VALID.evntsel & !EVNTSEL_USR)),
        one("an event outside the core", Refusal::EPERM, select(VALID.evntsel & !0xff | 0xb7)),
        one("an event that not every host allows", Refusal::EPERM, select(0x4f24 | USER)),
        one("an event that no host allows", Refusal::EPERM, select(0x12a | USER)),
        one("an event on a fixed counter", Refusal::EINVAL, fixed(VALID.evntsel)),
        one(
            "an edge on a fixed counter",
            Refusal::EINVAL,
            fixed(EVNTSEL_USR | EVNTSEL_EN | EVNTSEL_EDGE),
        ),
    ];
    if caps.can(CAPS_EVENT_12BIT) {
        // Its low eight bits are those of instructions, which everybody may count.
        let longer = select(VALID.evntsel | 1 << 32);
        all.push(one("an allowed event's number with bit 32 set", Refusal::EPERM, longer));
    }
    all
}
