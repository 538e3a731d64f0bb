// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What is tested. A new suite is a function in a file here and a line in [`SUITES`].
//!
//! A VM suite boots as few machines as it can and reports any number of tests. Where it runs a
//! program of `tests/vm`, both have one name.

mod book;
mod browser;
mod domains;
mod driver;
mod encodings;
mod export;
mod hostile;
pub mod kvm;
mod model;
pub mod mutants;
mod overflow;
mod packages;
pub mod papi;
mod pcpus;
mod perf;
mod perf_test;
mod pmu;
mod programs;
mod providers;
pub mod readme;
pub mod report;
mod shim;
mod stat;
pub mod tenants;
mod testbed;
mod versions;
mod vm_fuzz;

pub use self::model::simulator_command as simulator;
use self::report::Suite;
use self::report::Tier::{Long, Model, Vm};

/// Every suite, in the order in which they run: what is quick, and what later ones rely on, comes
/// first.
pub const SUITES: &[Suite] = &[
    Suite { name: "check", tier: Model, run: model::check },
    Suite { name: "unit", tier: Model, run: model::unit },
    Suite { name: "encodings", tier: Model, run: encodings::run },
    Suite { name: "simulator", tier: Model, run: model::simulator },
    Suite { name: "mutants", tier: Model, run: mutants::suite },
    Suite { name: "loom", tier: Model, run: model::loom },
    Suite { name: "fuzz", tier: Model, run: model::fuzz },
    Suite { name: "testbed-native", tier: Vm, run: testbed::native },
    Suite { name: "testbed-xen", tier: Vm, run: testbed::xen },
    Suite { name: "pmu", tier: Vm, run: pmu::run },
    Suite { name: "providers", tier: Vm, run: providers::run },
    Suite { name: "driver-absent", tier: Vm, run: driver::absent },
    Suite { name: "pcpus", tier: Vm, run: pcpus::run },
    Suite { name: "counting", tier: Vm, run: driver::counting },
    Suite { name: "clock", tier: Vm, run: driver::clock },
    Suite { name: "refusals", tier: Vm, run: driver::refusals },
    Suite { name: "lifecycle", tier: Vm, run: driver::lifecycle },
    Suite { name: "hostile", tier: Vm, run: hostile::run },
    Suite { name: "vm-fuzz", tier: Vm, run: vm_fuzz::run },
    Suite { name: "overflow", tier: Vm, run: overflow::run },
    Suite { name: "programs", tier: Vm, run: programs::run },
    Suite { name: "tenants", tier: Vm, run: tenants::run },
    Suite { name: "amd", tier: Vm, run: tenants::amd },
    Suite { name: "migrate", tier: Long, run: tenants::migrate },
    Suite { name: "kvm", tier: Long, run: kvm::run },
    Suite { name: "domains", tier: Vm, run: domains::run },
    Suite { name: "stat", tier: Vm, run: stat::run },
    Suite { name: "perf", tier: Vm, run: perf::run },
    Suite { name: "book", tier: Vm, run: book::run },
    Suite { name: "shim", tier: Vm, run: shim::run },
    Suite { name: "packages", tier: Vm, run: packages::run },
    Suite { name: "versions", tier: Vm, run: versions::run },
    Suite { name: "papi", tier: Vm, run: papi::suite },
    Suite { name: "papi-events", tier: Vm, run: papi::perf },
];
