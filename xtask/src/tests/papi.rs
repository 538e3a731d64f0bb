// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! PAPI on the C library, beside busy programs and on vCPUs that are moved. `cargo xtask papi` runs
//! more of its tests.

use anyhow::{Result, bail};

use crate::papi::{self, Verdict};
use crate::testing::Report;

/// Each of them counts exactly.
pub fn run(report: &mut Report) -> Result<()> {
    for (name, verdict) in papi::exact()? {
        report.test(name, || match verdict {
            Verdict::Passed => Ok(()),
            Verdict::Failed(reason) | Verdict::Skipped(reason) | Verdict::CannotPass(reason) => {
                bail!(reason)
            }
        });
    }
    Ok(())
}
