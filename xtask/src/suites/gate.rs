// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests `perfctr gate` on a program of Debian's.

use std::fs;

use anyhow::Result;

use crate::artefacts::guest;
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::tools::cache;

/// The number of vCPUs, which compete for the machine's two CPUs.
const VCPUS: u32 = 6;
/// The number of words that gzip compresses: enough for ten million instructions.
const WORDS: u32 = 7_000;

/// Boots one machine.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/gate"])?;
    spec.vcpus(VCPUS)?;
    // The program gets a part of one CPU only.
    spec.timeout *= 3;
    spec.add_program("perfctr", "perfctr")?;
    spec.files.push(guest::frames()?);
    let dir = cache::scratch("gate")?;
    fs::create_dir_all(&dir)?;
    let words: String = (0..WORDS)
        .map(|n| format!("{:x} ", n.wrapping_mul(2_654_435_761) >> 12 & 0xff0f))
        .collect();
    fs::write(dir.join("words"), words)?;
    spec.copy.push(dir);
    report.program(spec, "gate")
}
