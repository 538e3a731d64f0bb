// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures how costs grow with the number of vCPUs, threads, users and counters, and tests that
//! they grow as `docs/costs.md` says.

pub mod growth;
pub mod shapes;

use std::time::Duration;

use anyhow::{Result, ensure};

use self::growth::Growth;
use self::shapes::{DIMENSIONS, VCPUS, VCPUS_USUAL};
use crate::machine::{self, Spec, Status};
use crate::suites::report::{Report, Volume, all};

/// Memory for 10,000 threads, unit: MiB.
const MEMORY_MIB: u64 = 768;
/// How long a machine with many vCPUs may take.
const LIMIT: Duration = Duration::from_secs(3600);

/// Boots a machine for each number of vCPUs, and judges each cost.
pub fn run(report: &mut Report) -> Result<()> {
    let growth = measure(report.volume)?;
    for series in growth.all() {
        let name = format!("{}, by {}", series.operation, series.dimension);
        report.test(&name, || series.check());
    }
    report.test("something was measured of everything that grows", || {
        for dimension in DIMENSIONS {
            ensure!(growth.of(dimension).count() > 0, "nothing of {}", dimension.of);
        }
        Ok(())
    });
    Ok(())
}

/// Measures all costs. The first machine also measures what does not depend on vCPUs.
pub fn measure(volume: Volume) -> Result<Growth> {
    let mut growth = Growth::default();
    for (n, &vcpus) in VCPUS[..volume.pick(VCPUS_USUAL, VCPUS.len())].iter().enumerate() {
        let spec = spec(vcpus, if n == 0 { DIMENSIONS.len() } else { 1 })?;
        let outcome = machine::run(&spec)?;
        ensure!(outcome.status == Status::Exited(0), "{vcpus} vCPUs: {}", all(&outcome));
        let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
        print!("{printed}");
        growth.add(&printed)?;
    }
    Ok(growth)
}

/// Describes a run with this many vCPUs on one physical CPU, which measures the first ones of the
/// dimensions.
fn spec(vcpus: u32, dimensions: usize) -> Result<Spec> {
    let names = DIMENSIONS[..dimensions].iter().map(|dimension| dimension.name);
    let mut spec = Spec::new("pv", ["/work/scale"].into_iter().chain(names))?.deterministic();
    spec.vcpus(vcpus)?;
    spec.keep_tally();
    spec.topology.memory_mib += MEMORY_MIB;
    spec.timeout = LIMIT;
    spec.add_program("vm-tests", "scale")?;
    Ok(spec)
}
