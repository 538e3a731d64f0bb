// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Knows which suites a changed file can break, for `cargo xtask test --changed`.
//!
//! Of the rows whose beginning fits a file's name, the one with the longest beginning is used. A
//! file without a row can break everything.

use std::collections::BTreeSet;

use anyhow::Result;

use super::SUITES;
use crate::suites::report::Tier;
use crate::tools::sh::{self, cmd};

/// The suites that run whatever has changed: the rules, and the tests of each crate.
const ALWAYS: &[&str] = &["check", "unit"];
/// The suites that run the cores without a machine.
const CORES: &[&str] = &["encodings", "simulator", "faults", "mutants", "loom", "fuzz"];
/// The suites that run the driver in Xen and the module in its guests.
const XEN: &[&str] = &[
    "habits",
    "driver-absent",
    "pcpus",
    "counting",
    "clock",
    "refusals",
    "lifecycle",
    "hostile",
    "hostile-pvh",
    "hostile-hvm",
    "hostile-newest",
    "scale",
    "vm-fuzz",
    "overflow",
    "programs",
    "tenants",
    "amd",
    "migrate",
    "elsewhere",
    "labels",
    "clock-tenants",
    "domains",
    "system",
];
/// The suites that run the driver in KVM.
const KVM: &[&str] = &[
    "habits",
    "kvm",
    "migrate-kvm",
    "kexec-kvm",
    "counting-kvm",
    "clock-kvm",
    "refusals-kvm",
    "lifecycle-kvm",
    "hostile-kvm",
    "hostile-newest-kvm",
    "overflow-kvm",
    "perf-kvm",
    "shim-kvm",
    "versions-kvm",
    "rr-kvm",
    "vmx",
];
/// The suites that run the module in kernels that watch their own memory and locks, or what the
/// module reads and writes, in guests of KVM.
const DEBUG: &[&str] = &[
    "counting-debug-kvm",
    "refusals-debug-kvm",
    "lifecycle-debug-kvm",
    "hostile-debug-kvm",
    "overflow-debug-kvm",
    "perf-debug-kvm",
    "vm-fuzz-debug-kvm",
    "lifecycle-kcsan-kvm",
    "hostile-kcsan-kvm",
    "overflow-kcsan-kvm",
    "perf-kcsan-kvm",
    "vm-fuzz-kcsan-kvm",
];
/// The suites that run the driver on VT-x.
const VMX: &[&str] = &[
    "vmx",
    "tenants-vmx-kvm",
    "counting-vmx-kvm",
    "refusals-vmx-kvm",
    "overflow-vmx-kvm",
    "lifecycle-vmx-kvm",
    "perf-vmx-kvm",
    "clock-vmx-kvm",
    "migrate-vmx-kvm",
    "kexec-vmx-kvm",
    "tenants-vmx-pv",
    "counting-vmx-pv",
];
/// The suites of rr in guests of each kind.
const RR: &[&str] = &["rr", "rr-tests", "rr-pvh", "rr-hvm", "rr-kvm"];
/// Suites on KVM with SVM and with VT-x, for files that both hypervisors use.
const KVM_TOO: &[&str] = &["kvm", "vmx"];
/// The suites of programs that use the driver and the module, and count by them.
const ABOVE: &[&str] = &[
    "providers",
    "stat",
    "gate",
    "perf",
    "lbr",
    "rr",
    "c-api",
    "python",
    "python-guest",
    "shim",
    "packages",
    "papi",
    "papi-events",
    "publish",
];
/// The suites of the emulated machine by itself.
const TESTBED: &[&str] = &["testbed-native", "testbed-xen", "pmu", "habits"];
/// Further suites that a wrong model of a PMU breaks.
const MODEL: &[&str] = &["counting", "overflow", "amd"];

/// The beginnings of files' names, each with the suites that test these files beside [`ALWAYS`].
const TABLE: &[(&str, &[&[&str]])] = &[
    ("benches/", &[]),
    (
        "cli/",
        &[&["perf-data", "stat", "gate", "providers", "programs", "packages", "book", "publish"]],
    ),
    ("cli/src/accounts", &[&["book"]]),
    ("cli/src/host", &[&["system", "perf-data"]]),
    ("cli/src/record/host", &[&["system"]]),
    ("cli/src/report/caused.rs", &[&["causes"]]),
    ("cli/src/top/", &[&["system"]]),
    ("cli/tests/", &[]),
    ("cli/tests/command/calls.c", &[&["perf-data"]]),
    ("cli/tests/command/hypervisor.c", &[&["perf-data"]]),
    ("docs/", &[&["book", "versions"]]),
    ("docs/flame-graph.svg", &[&["stat"]]),
    ("docs/c.md", &[&["book", "c-api"]]),
    ("docs/python.md", &[&["book", "python", "python-guest"]]),
    ("docs/hosts.md", &[&["book", "packages"]]),
    ("docs/supported.md", &[&["book", "versions", "versions-kvm"]]),
    ("docs/tenant.md", &[&["book", "packages"]]),
    ("docs/bare.md", &[&["book", "packages"]]),
    ("guest-kmod/", &[CORES, XEN, ABOVE, KVM_TOO]),
    ("guest-kmod/glue/", &[XEN, ABOVE, KVM_TOO, DEBUG]),
    ("guest-kmod/glue/late_rt.", &[&["real-time", "real-time-kvm"]]),
    ("guest-kmod/glue/platform/kvm.c", &[KVM, DEBUG]),
    ("guest-kmod/glue/platform/xen.c", &[XEN]),
    ("hv-driver/", &[CORES, XEN, ABOVE, KVM_TOO]),
    ("hv-driver/glue/kvm/", &[KVM, DEBUG]),
    ("hv-driver/glue/xen/", &[XEN, ABOVE]),
    ("hv-driver/glue/xen/vmx.c", &[&["tenants-vmx-pv"]]),
    ("libperfctr-rs/", &[XEN, ABOVE, KVM_TOO]),
    ("libperfctr-rs/c/", &[&["c-api", "python", "python-guest"]]),
    ("libperfctr-rs/criterion/", &[&["providers", "publish"]]),
    ("libperfctr-rs/gate/", &[&["gate", "stat", "providers", "publish", "python", "python-guest"]]),
    ("libperfctr-rs/python/", &[&["python", "python-guest"]]),
    ("libperfctr-rs/tracing/", &[&["providers", "publish"]]),
    ("libperfctr-rs/src/provider/native.rs", &[&["providers", "stat"]]),
    ("packaging/", &[&["packages"]]),
    ("packaging/grafana/", &[]),
    ("packaging/prometheus/", &[&["alerts"]]),
    ("papi-shim/", &[&["shim", "papi", "packages"]]),
    ("README.md", &[&["stat", "book"]]),
    ("CONTRIBUTING.md", &[]),
    ("CHANGELOG.md", &[&["packages"]]),
    ("testbed/bochs/", &[&["vmx-pmu"], VMX]),
    ("testbed/init/", &[TESTBED, &["vmx-pmu"]]),
    ("testbed/qemu/", &[TESTBED, MODEL]),
    ("testbed/qemu/check/", &[TESTBED, MODEL, &["vmx-pmu"]]),
    ("tests/faults/", &[&["simulator", "faults"]]),
    ("tests/fuzz/", &[&["fuzz", "vm-fuzz", "programs"]]),
    ("tests/mutants.txt", &[&["mutants"]]),
    ("tests/sim/", &[&["simulator"]]),
    ("tests/vm/", &[TESTBED, XEN, ABOVE, KVM_TOO]),
    ("tests/vm/src/bin/accounts.rs", &[&["system"]]),
    ("tests/vm/src/bin/disturb.rs", &[&["papi", "papi-events"]]),
    ("tests/vm/src/bin/edges.rs", &[&["habits"]]),
    ("tests/vm/src/bin/export/", &[&["stat"]]),
    ("tests/vm/src/bin/host/", &[KVM, DEBUG]),
    ("tests/vm/src/bin/host-profile.rs", &[&["system"]]),
    ("tests/vm/src/bin/kernel.rs", &[&["driver-absent", "counting", "clock"]]),
    ("tests/vm/src/bin/overflow/", &[&["overflow", "pcpus", "versions"]]),
    ("tests/vm/src/bin/perf/bolted.rs", &[&["lbr"]]),
    ("tests/vm/src/bin/perf/branch", &[&["lbr"]]),
    ("tests/vm/src/bin/perf/layout.c", &[&["lbr"]]),
    ("tests/vm/src/bin/rr/", &[RR]),
    ("tests/vm/src/bin/pictures/", &[&["pictures"]]),
    ("tests/vm/src/bin/stat/", &[&["stat", "book"]]),
    ("tests/vm/src/bin/tenants/", &[&["tenants", "amd", "kvm", "vmx"]]),
    ("tests/vm/src/bin/wrap.rs", &[&["providers"]]),
    ("tests/vm/src/bpf.rs", &[&["lbr"]]),
    ("tests/vm/src/network.rs", &[&["causes", "pictures"]]),
    ("tests/vm/src/profile.rs", &[&["system"]]),
    ("tests/vm/src/xen.rs", &[XEN]),
    ("tests/vm/src/kvm.rs", &[KVM, DEBUG]),
    ("xtask/README.md", &[]),
    ("xtask/src/artefacts/bochs.rs", &[&["vmx-pmu"], VMX]),
    ("xtask/src/artefacts/emulators.rs", &[TESTBED, MODEL, &["vmx-pmu"]]),
    ("xtask/src/artefacts/kvm.rs", &[KVM_TOO, &["versions-kvm", "packages"]]),
    ("xtask/src/artefacts/packages/", &[&["packages"]]),
    ("xtask/src/artefacts/rr.rs", &[RR]),
    ("xtask/src/artefacts/viewers.rs", &[&["pictures", "stat"]]),
    ("xtask/src/checks/", &[]),
    ("xtask/src/machine/disc.rs", &[&["vmx-pmu"], VMX]),
    ("xtask/src/suites/browser.rs", &[&["pictures", "stat"]]),
    ("xtask/src/suites/changed.rs", &[]),
    ("xtask/src/suites/driver.rs", &[XEN]),
    ("xtask/src/suites/export.rs", &[&["stat"]]),
    ("xtask/src/suites/languages.rs", &[&["c-api", "python", "python-guest"]]),
    ("xtask/src/suites/model.rs", &[CORES]),
    ("xtask/src/suites/newer.rs", &[&["debian-13"]]),
    ("xtask/src/suites/noise.rs", &[&["scale"]]),
    ("xtask/src/suites/perf_test.rs", &[&["perf"]]),
    ("xtask/src/suites/pmu.rs", &[&["habits", "vmx-pmu"]]),
    ("xtask/src/suites/programs.rs", &[&["domains"], RR]),
    ("xtask/src/suites/readme.rs", &[&["stat", "book"]]),
    ("xtask/src/suites/tenants.rs", &[&["tenants", "amd", "domains", "kvm"]]),
    ("xtask/src/suites/rr.rs", &[RR]),
    ("xtask/src/suites/screenshot.rs", &[&["pictures", "stat"]]),
    ("xtask/src/suites/terminal.rs", &[&["pictures"]]),
    ("xtask/src/suites/testbed.rs", &[TESTBED]),
    (
        "xtask/src/suites/vmx.rs",
        &[&["vmx", "vmx-pmu", "emulators", "tenants-vmx-kvm", "tenants-vmx-pv"]],
    ),
    ("xtask/src/verbs/", &[]),
    ("xtask/tidy.toml", &[]),
];

/// A file of these folders is tested by the suite of its name, and by that suite on other machines.
const NAMED: [&str; 2] = ["tests/vm/src/bin/", "xtask/src/suites/"];

/// Returns the names of the suites that can be broken by the difference between the commit `base`
/// and the tree as it is now.
pub fn since(base: &str) -> Result<BTreeSet<&'static str>> {
    let git = |args: &[&str]| sh::output(cmd("git", args).current_dir(sh::project()));
    let changed = git(&["diff", "--name-only", base])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    let files: BTreeSet<&str> = changed.lines().chain(new.lines()).collect();
    Ok(files.iter().flat_map(|file| broken_by(file)).collect())
}

/// Returns the names of the suites that a change of this file can break.
fn broken_by(file: &str) -> BTreeSet<&'static str> {
    let mut suites: BTreeSet<&str> = ALWAYS.iter().copied().collect();
    let row = TABLE.iter().filter(|(start, _)| file.starts_with(start));
    let row = row.max_by_key(|(start, _)| start.len());
    let named = named(file);
    let is_of_folder = |start: &str| NAMED.iter().all(|folder| !start.starts_with(folder));
    match row {
        // A suite with the file's name tests it, and no row names more suites.
        _ if !named.is_empty() && row.is_none_or(|(start, _)| is_of_folder(start)) => {}
        Some((_, groups)) => suites.extend(groups.iter().copied().flatten()),
        None => {
            let usual = SUITES.iter().filter(|suite| suite.tier != Tier::Long);
            suites.extend(usual.map(|suite| suite.name));
        }
    }
    suites.extend(named);
    suites
}

/// Returns the suites that are named like this file, or like its folder.
fn named(file: &str) -> Vec<&'static str> {
    let inside = NAMED.iter().find_map(|folder| file.strip_prefix(folder)).unwrap_or_default();
    let name = inside.split(['/', '.']).next().unwrap_or_default().replace('_', "-");
    let is_its = |suite: &&str| **suite == name || **suite == format!("{name}-kvm");
    SUITES.iter().map(|suite| suite.name).filter(is_its).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<String> {
        let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
        let files = sh::output(cmd("git", list).current_dir(sh::project())).unwrap();
        files.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_row_is_of_files_that_there_are_and_names_suites_that_there_are() {
        let files = files();
        for (start, groups) in TABLE {
            assert!(
                files.iter().any(|file| file.starts_with(start)),
                "no file begins with {start}"
            );
            for name in groups.iter().copied().flatten() {
                assert!(SUITES.iter().any(|suite| suite.name == *name), "{start}: no suite {name}");
            }
        }
    }

    #[test]
    fn each_suite_is_run_for_some_file() {
        let all: BTreeSet<&str> = files().iter().flat_map(|file| broken_by(file)).collect();
        let never = SUITES.iter().map(|suite| suite.name).filter(|name| !all.contains(name));
        assert_eq!(never.collect::<Vec<_>>(), [""; 0], "these are never run");
    }

    #[test]
    fn the_longest_row_is_a_files_own() {
        let only = |file, expected: &[&str]| {
            let expected: BTreeSet<&str> = ALWAYS.iter().chain(expected).copied().collect();
            assert_eq!(broken_by(file), expected, "{file}");
        };
        only("docs/how.md", &["book", "versions"]);
        only("docs/supported.md", &["book", "versions", "versions-kvm"]);
        only("docs/flame-graph.svg", &["stat"]);
        only("hv-driver/glue/kvm/cpu.c", &[KVM, DEBUG].concat());
        only("testbed/bochs/hooks.patch", &[&["vmx-pmu"], VMX].concat());
        only("tests/vm/src/bin/perf/main.rs", &["perf", "perf-kvm"]);
        only("tests/vm/src/bin/rr/tenant.rs", RR);
        only("tests/vm/src/bin/vm-fuzz/user.rs", &["vm-fuzz"]);
        only("xtask/src/suites/pmu.rs", &["pmu", "habits", "vmx-pmu"]);
        only("xtask/src/suites/vm_fuzz.rs", &["vm-fuzz"]);
        only("xtask/src/suites/scale/shapes.rs", &["scale"]);
        // Nobody knows what this breaks.
        let all = SUITES.iter().filter(|suite| suite.tier != Tier::Long).count();
        assert_eq!(broken_by("Cargo.toml").len(), all);
        assert_eq!(broken_by("xtask/src/suites/report.rs").len(), all);
        assert_eq!(broken_by("xtask/src/machine/watch.rs").len(), all);
    }
}
