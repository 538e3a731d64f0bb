// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests samples of the host itself, and accounts of what its virtual CPUs execute.

use std::time::Duration;

use anyhow::Result;

use crate::artefacts::{guest, xen};
use crate::machine::Spec;
use crate::suites::report::{Report, Volume};
use crate::suites::tenants;

/// Boots machines that keep counters for samples of themselves and for accounts of virtual CPUs,
/// and compares both with the emulator's tally. On the first one, the command samples the host,
/// also while the control domain says which threads it executes, and then guests sample themselves
/// while the host is sampled. On the second one, an AMD machine, a PVH tenant is sampled, and in
/// the long tier also the host. The long tier has three more: one whose PVH and HVM tenants say
/// which threads they execute, one where there are only accounts, and one where a PVH tenant is
/// sampled and accounted.
pub fn run(report: &mut Report) -> Result<()> {
    let tests_beside = report.volume.pick("--records", "--records --ends");
    let beside = format!(
        "/work/system; system=$?; \
         for other in host-profile active; do /work/$other || system=1; done; \
         for tests in {tests_beside}; do \
         /work/system /work/overflow $tests || exit; done; exit $system"
    );
    let mut spec = spec("pv", "profile", &["sh", "-c", &beside])?;
    spec.add_program("vm-tests", "overflow")?;
    spec.add_program("vm-tests", "active")?;
    add_command(&mut spec)?;
    report.program(spec, "system")?;
    let both = "/work/system; system=$?; /work/system passive && exit $system";
    let sampled = report.volume.pick("exec /work/system passive", both);
    let mut spec = self::spec("pv-amd", "profile", &["sh", "-c", sampled])?;
    tenants::add_tenant(&mut spec, "system", &[])?;
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "system")?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    report.program(active_tenant()?, "active")?;
    let mut spec = self::spec("pv", "accounts", &["/work/accounts"])?;
    spec.add_program("perfctr", "perfctr")?;
    report.program(spec, "accounts")?;
    // Such a processor has six counters, of which three are the host's.
    let mut spec = self::spec("pv-amd", "profile,accounts", &["/work/accounts", "passive"])?;
    spec.topology.cpu.push_str(",+perfctr-core");
    tenants::add_tenant(&mut spec, "system", &[])?;
    report.program(spec, "accounts")
}

/// Describes a machine with a PVH tenant, and later an HVM one, that says which threads it
/// executes.
fn active_tenant() -> Result<Spec> {
    let mut spec = Spec::new("pv-amd", ["/work/active", "beside"])?.driver("profile,all")?;
    // The tenant keeps the names of all functions of its kernel and its programs.
    spec.topology.memory_mib += 512;
    spec.timeout = Duration::from_secs(1800);
    spec.add_program("vm-tests", "active")?;
    spec.add_program("perfctr", "perfctr")?;
    let mut further = tenants::add_network(&mut spec)?;
    let path = "work/perfctr".to_owned();
    further.push((path, guest::program("perfctr", "perfctr")?));
    tenants::add_tenant(&mut spec, "active", &further)?;
    tenants::add_device_model(&mut spec)?;
    Ok(spec)
}

fn spec(topology: &str, driver: &str, command: &[&str]) -> Result<Spec> {
    let mut spec = Spec::new(topology, command.iter().copied())?.driver(driver)?;
    spec.keep_tally();
    Ok(spec)
}

/// Adds the command with its tests, and the hypervisor's file.
pub fn add_command(spec: &mut Spec) -> Result<()> {
    spec.add_program("vm-tests", "host-profile")?;
    spec.add_program("perfctr", "perfctr")?;
    let hypervisor = xen::xen(spec.hypervisor()?.flavour, None)?.with_file_name("xen-syms");
    spec.files.push((hypervisor, "/work/xen-syms".to_owned()));
    Ok(())
}
