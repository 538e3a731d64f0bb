// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that counts of kernel mode are what the emulator itself has executed.

use std::process::ExitCode;

use anyhow::Result;
use vm_tests::kernel;
use vm_tests::tally::Tally;

fn main() -> Result<ExitCode> {
    let mut tally = Tally::default();
    for (name, outcome) in kernel::judge()? {
        tally.check(&name, outcome);
    }
    Ok(tally.finish())
}
