// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests physical CPUs that differ from each other, and physical CPUs that are taken offline and
//! come back.

use anyhow::Result;

use super::driver::refuses;
use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::{Report, Volume, console_says};

/// What the console says if CPUID's leaf 0xA has counters of 40 bits instead of 48, and if AMD's
/// first event select does not exist.
const COUNTERS: &str =
    "perfctr: CPU 1 cannot count: expected the counters of CPU 0, found 0x7280403";
const REGISTERS: &str = "perfctr: CPU 1 cannot count: expected registers that keep what is written \
                         to them, found 0xc0010000";

/// What it says if CPUID's leaf 0x1A has another kind of core.
const KIND_OF_CORE: &str =
    "perfctr: CPU 1 cannot count: expected the kind of core of CPU 0, found 0x20000000";

/// Boots a machine whose last CPU comes up late and cannot count. Another CPU is taken offline and
/// comes back, and the machine is suspended to RAM. The long tier boots four more, whose last CPU
/// differs in what CPUID says, or in what its registers do. The option `cpus=some` is given to two
/// of them: there the first CPU counts.
pub fn run(report: &mut Report) -> Result<()> {
    if report.volume == Volume::Long {
        report.test("the driver refuses a machine with a CPU that has other counters", || {
            let mut spec = Spec::new("pv", ["true"])?;
            spec.topology.last_cpu = Some("pmu-width=40".into());
            refuses(&spec, "ENODEV", COUNTERS)
        });
        report.test("the driver refuses a machine with a CPU whose counters do not work", || {
            let mut spec = Spec::new("pv-amd", ["true"])?;
            spec.topology.last_cpu = Some("pmu=off".into());
            refuses(&spec, "ENODEV", REGISTERS)
        });
        for (properties, reason) in [("pmu-width=40", COUNTERS), ("pmu-core-type=32", KIND_OF_CORE)]
        {
            let mut spec = Spec::new("pv", ["/work/pcpus", "--some"])?.driver("on,cpus=some")?;
            spec.topology.last_cpu = Some(properties.into());
            let outcome = report.program_outcome(spec, "pcpus")?;
            report.test(&format!("the driver says that the CPU with {properties} differs"), || {
                console_says(&outcome, reason)
            });
        }
    }
    let both = "/work/pcpus; pcpus=$?; /work/overflow --hotplug && exit $pcpus";
    let mut spec = Spec::new("pv", ["sh", "-c", both])?;
    spec.wake = true;
    spec.topology.cpus = 3;
    spec.topology.last_cpu = Some("pmu=off".into());
    spec.hypervisor()?.add("maxcpus=2");
    spec.files.push((rootfs::toolstack()?, "/".into()));
    spec.add_program("vm-tests", "overflow")?;
    report.program(spec, "pcpus")
}
