// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests as how many instructions a guest counts CPUID. The CPU executes it in a PV guest. From
//! every other guest it exits, and the hypervisor does its work, so that it does not retire.

use anyhow::{Result, ensure};

use crate::machine::{self, Spec};
use crate::suites::report::{Report, all};
use crate::suites::{pmu, tenants};

/// How often the program executes CPUID.
const CPUIDS: u64 = 200;
/// The instructions that the program executes, by `cpuids.S`.
const INSTRUCTIONS: u64 = 2 * CPUIDS + 3;
/// The command that counts the program.
const STAT: &str = "/work/perfctr stat --csv -e instructions:u -- /work/cpuids";

/// Boots three machines.
pub fn run(report: &mut Report) -> Result<()> {
    let program = pmu::assembled("cpuids", &format!("CPUIDS={CPUIDS}"))?;
    let usual = |topology: &str| -> Result<Spec> {
        let mut spec = Spec::new(topology, ["sh", "-c", STAT])?.driver("on")?;
        spec.files.push((program.clone(), "/work/cpuids".into()));
        spec.add_program("perfctr", "perfctr")?;
        Ok(spec)
    };
    let inside = ("work/cpuids".to_owned(), program.clone());
    let tenant = tenants::script_in_tenant("pvh", &format!("exec 2>&1\n{STAT}\n"), inside)?;
    for (who, spec, expected) in [
        ("a PV guest counts each CPUID", usual("pv")?, INSTRUCTIONS),
        ("a guest of KVM counts no CPUID", usual("kvm")?, INSTRUCTIONS - CPUIDS),
        ("a PVH guest counts no CPUID", tenant, INSTRUCTIONS - CPUIDS),
    ] {
        let printed = all(&machine::run(&spec)?);
        report.test(who, || {
            let expected = format!("{expected},,instructions:u,");
            let is_there = printed.lines().any(|line| line.starts_with(&expected));
            ensure!(is_there, "no line {expected}: {printed}");
            Ok(())
        });
    }
    Ok(())
}
