// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The suites of tests. A new suite is a function in a file here and a line in [`SUITES`].
//!
//! A VM suite boots as few machines as it can and reports any number of tests. If it runs a program
//! of `tests/vm`, both have the same name.

mod book;
pub mod browser;
mod causes;
pub mod changed;
mod domains;
mod driver;
mod emulated;
mod encodings;
mod export;
pub mod faults;
mod gate;
mod habits;
mod hostile;
pub mod kvm;
mod languages;
mod lbr;
mod model;
pub mod mutants;
mod newer;
pub mod noise;
mod overflow;
mod packages;
pub mod papi;
mod pcpus;
mod perf;
mod perf_data;
mod perf_test;
pub mod pictures;
mod pmu;
mod programs;
mod providers;
mod publish;
pub mod readme;
pub mod report;
mod rr;
pub mod scale;
mod screenshot;
pub mod shard;
mod shim;
mod stat;
mod system;
pub mod tenants;
mod terminal;
mod testbed;
mod versions;
mod vm_fuzz;
mod vmx;

pub use self::model::simulator_command as simulator;
use self::report::{Suite, Tier};

/// Every suite, in the order in which they run. Quick ones come first, and so do those whose
/// subject later ones rely on.
pub const SUITES: &[Suite] = &[
    Suite::model("check", model::check),
    Suite::model("unit", model::unit),
    Suite::model("encodings", encodings::run),
    Suite::model("perf-data", perf_data::run),
    Suite::model("python", languages::python),
    Suite::model("publish", publish::run),
    Suite::model("alerts", export::alerts),
    Suite::model("simulator", model::simulator),
    Suite::model("faults", faults::suite),
    Suite::model("mutants", mutants::suite),
    Suite::model("loom", model::loom),
    Suite::model("fuzz", model::fuzz),
    Suite::concurrent("vmx", vmx::brief),
    Suite::vm("testbed-native", testbed::native),
    Suite::vm("testbed-xen", testbed::xen),
    Suite::vm("pmu", pmu::run),
    Suite::vm("habits", habits::run),
    Suite::vm("providers", providers::run),
    Suite::concurrent("driver-absent", driver::absent),
    Suite::vm("pcpus", pcpus::run),
    Suite::vm("counting", driver::counting),
    Suite::concurrent("clock", driver::clock),
    Suite::vm("refusals", driver::refusals),
    Suite::vm("lifecycle", driver::lifecycle),
    Suite::vm("hostile", hostile::run),
    Suite::long("hostile-pvh", hostile::pvh),
    Suite::long("hostile-hvm", hostile::hvm),
    Suite::long("hostile-newest", hostile::newest),
    Suite::long("scale", scale::run),
    Suite::long("vm-fuzz", vm_fuzz::run),
    Suite::vm("overflow", overflow::run),
    Suite::vm("programs", programs::run),
    Suite::vm("tenants", tenants::run),
    Suite::vm("amd", tenants::amd),
    Suite::long("migrate", tenants::migrate),
    Suite::long("elsewhere", tenants::elsewhere),
    Suite::long("labels", tenants::labelled),
    Suite::long("clock-tenants", tenants::clock),
    Suite { tier: Tier::Vm, ..Suite::on("kvm", "kvm", kvm::run) },
    Suite::on("kvm", "migrate-kvm", kvm::moved),
    Suite::on("kvm", "kexec-kvm", kvm::successor),
    Suite::on("kvm", "counting-kvm", driver::counting),
    Suite::on("kvm", "clock-kvm", driver::clock),
    Suite::on("kvm", "refusals-kvm", driver::refusals),
    Suite::on("kvm", "lifecycle-kvm", driver::lifecycle),
    Suite::on("kvm", "hostile-kvm", hostile::run),
    Suite::on("kvm", "hostile-newest-kvm", hostile::newest),
    Suite::on("kvm", "overflow-kvm", overflow::run),
    Suite::on("kvm", "perf-kvm", perf::run),
    Suite::on("kvm", "shim-kvm", shim::run),
    Suite::on("kvm", "versions-kvm", versions::run),
    Suite::on("kvm", "real-time-kvm", versions::real_time),
    Suite::on("kvm", "rr-kvm", rr::run),
    Suite::on("debug-kvm", "counting-debug-kvm", driver::counting),
    Suite::on("debug-kvm", "refusals-debug-kvm", driver::refusals),
    Suite::on("debug-kvm", "lifecycle-debug-kvm", driver::lifecycle),
    Suite::on("debug-kvm", "hostile-debug-kvm", hostile::run),
    Suite::on("debug-kvm", "overflow-debug-kvm", overflow::run),
    Suite::on("debug-kvm", "perf-debug-kvm", perf::run),
    Suite::on("debug-kvm", "vm-fuzz-debug-kvm", vm_fuzz::user),
    Suite::on("kcsan-kvm", "lifecycle-kcsan-kvm", driver::lifecycle),
    Suite::on("kcsan-kvm", "hostile-kcsan-kvm", hostile::run),
    Suite::on("kcsan-kvm", "overflow-kcsan-kvm", overflow::run),
    Suite::on("kcsan-kvm", "perf-kcsan-kvm", perf::run),
    Suite::on("kcsan-kvm", "vm-fuzz-kcsan-kvm", vm_fuzz::user),
    Suite::on("vmx-native", "vmx-pmu", vmx::pmu),
    Suite::on("vmx-native", "emulators", vmx::emulators),
    Suite::on("vmx-kvm", "tenants-vmx-kvm", vmx::kvm),
    Suite::on("vmx-kvm", "counting-vmx-kvm", driver::counting),
    Suite::on("vmx-kvm", "refusals-vmx-kvm", driver::refusals),
    Suite::on("vmx-kvm", "overflow-vmx-kvm", overflow::run),
    Suite::on("vmx-kvm", "lifecycle-vmx-kvm", driver::lifecycle),
    Suite::on("vmx-kvm", "perf-vmx-kvm", perf::run),
    Suite::on("vmx-kvm", "clock-vmx-kvm", driver::clock),
    Suite::on("vmx-kvm", "migrate-vmx-kvm", kvm::moved),
    Suite::on("vmx-kvm", "kexec-vmx-kvm", kvm::successor),
    Suite::on("vmx-pv", "tenants-vmx-pv", vmx::xen),
    Suite::on("vmx-pv", "counting-vmx-pv", driver::counting),
    Suite::vm("system", system::run),
    Suite::long("causes", causes::run),
    Suite::long("pictures", pictures::run),
    Suite::long("domains", domains::run),
    Suite::long("emulated", emulated::run),
    Suite::vm("stat", stat::run),
    Suite::vm("gate", gate::run),
    Suite::vm("perf", perf::run),
    Suite::long("lbr", lbr::run),
    Suite::vm("rr", rr::run),
    Suite::long("rr-tests", rr::upstream),
    Suite::long("rr-pvh", rr::pvh),
    Suite::long("rr-hvm", rr::hvm),
    Suite::vm("book", book::run),
    Suite::concurrent("c-api", languages::c),
    Suite::concurrent("python-guest", languages::python_in_guest),
    Suite::concurrent("shim", shim::run),
    Suite::long("packages", packages::run),
    Suite::vm("versions", versions::run),
    Suite::long("real-time", versions::real_time),
    Suite::long("debian-13", newer::run),
    Suite::vm("papi", papi::suite),
    Suite::long("papi-events", papi::perf),
];

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tools::sh;

    #[test]
    fn the_readme_says_what_each_suite_shows() {
        let readme = fs::read_to_string(sh::project().join("xtask/README.md")).unwrap();
        let (_, rows) = readme.split_once("\n| suite | boots").unwrap();
        let rows: Vec<&str> = rows.lines().skip(2).take_while(|row| row.starts_with('|')).collect();
        let named: Vec<&str> = rows
            .iter()
            .flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2))
            .collect();
        for suite in SUITES {
            let count = named.iter().filter(|name| **name == suite.name).count();
            assert_eq!(count, 1, "{} is in {count} rows", suite.name);
        }
        assert_eq!(named.len(), SUITES.len(), "a row names a suite that is not there");
    }

    #[test]
    fn the_page_of_dangers_says_which_suites_are_in_the_long_tier() {
        let page = fs::read_to_string(sh::project().join("docs/soundness.md")).unwrap();
        let page = page.replace('\n', " ");
        let (_, list) = page.split_once("In the long tier are ").unwrap();
        let (named, others) = list.split_once(", and the suites on another machine").unwrap();
        let (kinds, _) = others.split_once("`. ").unwrap();
        let (begin, ends) = kinds.split_once(" or end in ").unwrap();
        let quoted = |text: &str| -> Vec<String> {
            text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let [named, begin, ends] = [named, begin, ends].map(quoted);
        for suite in SUITES {
            let is_named = named.iter().any(|name| name == suite.name)
                || begin.iter().any(|start| suite.name.starts_with(start))
                || ends.iter().any(|end| suite.name.ends_with(end));
            assert_eq!(is_named, suite.tier == Tier::Long, "{}", suite.name);
        }
    }
}
