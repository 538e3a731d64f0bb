// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The tests that need the testbed. A new suite is a function here and a line in [`SUITES`].

mod driver;
mod overflow;
mod papi;
mod pmu;
mod shim;
mod tenants;
mod testbed;

use crate::testing::Suite;

/// Every VM suite, in the order in which they run: what later ones rely on comes first.
pub const SUITES: &[Suite] = &[
    Suite { name: "testbed-native", run: testbed::native },
    Suite { name: "testbed-xen", run: testbed::xen },
    Suite { name: "pmu", run: pmu::run },
    Suite { name: "driver-absent", run: driver::absent },
    Suite { name: "counting", run: driver::counting },
    Suite { name: "clock", run: driver::clock },
    Suite { name: "refusals", run: driver::refusals },
    Suite { name: "lifecycle", run: driver::lifecycle },
    Suite { name: "overflow", run: overflow::run },
    Suite { name: "tenants", run: tenants::run },
    Suite { name: "shim", run: shim::run },
    Suite { name: "papi", run: papi::run },
];
