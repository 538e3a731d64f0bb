// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Users and guest kernels who mean harm: known ways, and what a fuzzer finds.

use anyhow::Result;

use crate::artefacts::xen::Flavour;
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::tools::sh;

/// Inputs beside the corpora.
const INPUTS: u64 = 1_500;

/// Two boots: the module and the driver as they are used, and as they are fuzzed.
pub fn run(report: &mut Report) -> Result<()> {
    report.program(Spec::new("pv", ["/work/hostile"])?, "hostile")?;
    let inputs = report.volume.pick(INPUTS, 40 * INPUTS);
    let both = format!(
        "/work/vm-fuzz user --inputs {inputs}; user=$?; \
         /work/vm-fuzz guest --inputs {inputs} && exit $user"
    );
    let mut spec = Spec::new("pv", ["sh", "-c", &both])?;
    spec.hypervisor()?.flavour = Flavour::Fuzzing;
    spec.files.push((sh::project().join("tests/fuzz/corpus"), "/work/corpus".into()));
    report.program(spec, "vm-fuzz")
}
