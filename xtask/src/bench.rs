// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask bench`: what a read costs, beside its peers, on the same emulated PMU.

use anyhow::{Result, bail};

use crate::guest;
use crate::vm::{self, Spec, Status};

/// Where the program runs: under Xen with the module, and on plain Linux with perf events.
const MACHINES: [(&str, bool); 2] = [("pv", true), ("native", false)];

/// Runs the benchmark on both machines and prints one table.
pub fn run() -> Result<()> {
    let program = guest::programs("benches")?.join("read-cost");
    println!("{:<40}{:>10}", "one read", "instructions");
    for (topology, module) in MACHINES {
        let mut spec = Spec::new(topology, ["/work/read-cost"])?;
        spec.module = module;
        spec.files.push((program.clone(), "/work/read-cost".into()));
        let outcome = vm::run(&spec)?;
        print!("{}", String::from_utf8_lossy(&outcome.stdout));
        if outcome.status != Status::Exited(0) {
            let reason = outcome.explain().unwrap_or_default();
            bail!("{topology}: {}{reason}", String::from_utf8_lossy(&outcome.stderr));
        }
    }
    Ok(())
}
