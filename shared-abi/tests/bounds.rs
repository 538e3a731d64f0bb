// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the bounds of a configuration, in the manual's numbers.
#![cfg(not(loom))]

use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_USR};
use shared_abi::caps::{CAPS_GLOBAL_INTEL, CAPS_SAMPLING, VENDOR_INTEL};
use shared_abi::config::{ConfigError, MODE_SAMPLING};
use shared_abi::{Config, CounterConfig, CounterWidth, PhysSlot, PmuCaps};

fn sampling(period: u64) -> Result<Config, ConfigError> {
    let [general_width, fixed_width] = [48, 40].map(|bits| CounterWidth::new(bits).unwrap());
    let caps = PmuCaps {
        vendor: VENDOR_INTEL,
        version: 3,
        features: CAPS_GLOBAL_INTEL | CAPS_SAMPLING,
        general: 4,
        fixed: 3,
        general_width,
        fixed_width,
    };
    let counter = CounterConfig {
        slot: 1,
        evntsel: 0xc0 | EVNTSEL_USR | EVNTSEL_EN,
        mode: MODE_SAMPLING,
        period,
        ..CounterConfig::default()
    };
    Config::new(&caps, &[counter])
}

/// A preset is a negative number of 32 bits (SDM volume 3, 20.2.6).
#[test]
fn a_period_fits_into_31_bits() {
    assert_eq!(
        sampling(0x7fff_ffff).map(|c| c.period(PhysSlot::general(1).unwrap())),
        Ok(0x7fff_ffff)
    );
    for period in [0, 0x8000_0000, 0xffff_ffff, 0x1_0000_0000] {
        assert_eq!(sampling(period), Err(ConfigError::BadPeriod), "{period:#x}");
    }
    let mut config = sampling(1_000).unwrap();
    config.set_period(PhysSlot::general(1).unwrap(), u64::MAX);
    assert_eq!(config.period(PhysSlot::general(1).unwrap()), 0x7fff_ffff);
}
