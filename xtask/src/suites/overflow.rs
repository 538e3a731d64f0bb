// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests sampling: every overflow reaches its thread, whatever ends or storms meanwhile.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::{Report, Volume};

/// Overflows that the driver allows per vCPU and ms in the storm. A machine whose clock counts its
/// instructions executes 125,000 of them in a ms, and a sample costs some 12,000.
const STORM_RATE: &str = "5";
/// The rate in a machine whose clock is real time.
const STORM_RATE_BUSY: &str = "0";

/// Boots a machine with the driver's usual rate. The long tier boots two more: with one vCPU, and
/// with a low rate, which a storm exceeds.
pub fn run(report: &mut Report) -> Result<()> {
    let all = "failed=0; for tests in --records --ends ''; do \
               /work/overflow $tests || failed=1; done; exit $failed";
    let topology = report.topology;
    let mut spec = spec(topology, "cost", ["sh", "-c", all])?;
    spec.timeout *= 2;
    report.program(spec, "overflow")?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    report.program(one_vcpu(topology)?, "overflow")?;
    report.program(storm(topology)?, "overflow")
}

fn spec<const N: usize>(topology: &str, options: &str, command: [&str; N]) -> Result<Spec> {
    let mut spec = Spec::new(topology, command)?.driver(options)?;
    spec.module_args = "cost=1".to_owned();
    Ok(spec)
}

/// Describes a run with more overflows than the driver allows, on all vCPUs.
fn storm(topology: &str) -> Result<Spec> {
    let rate = if is_nested(topology) { STORM_RATE_BUSY } else { STORM_RATE };
    let spec = spec(topology, &format!("cost,rate={rate}"), ["/work/overflow", "--storm", rate])?;
    Ok(if is_nested(topology) { spec } else { spec.deterministic() })
}

/// Describes a run with one vCPU, where the kernel never waits with interrupts disabled. On Intel
/// it has the narrowest counters of the oldest version that the project supports.
fn one_vcpu(topology: &str) -> Result<Spec> {
    let command = ["/work/overflow", "--pending", "--rounds", "20"];
    let mut spec = spec(topology, "on", command)?;
    spec.vcpus(1)?;
    if is_nested(topology) {
        return Ok(spec);
    }
    spec.topology.cpu.push_str(",pmu-version=2,pmu-width=32");
    Ok(spec.deterministic())
}

/// Returns whether the guest runs in the emulator's guest. Such a guest takes too long with one CPU
/// whose clock counts its instructions.
fn is_nested(topology: &str) -> bool {
    topology.ends_with("kvm")
}
