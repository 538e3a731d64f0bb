// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask demo`: the main job, on the testbed.
//!
//! A real Xen with the driver, a Debian guest with the module, and a program whose threads measure
//! regions of known length while everything moves under them. The program itself compares every
//! reading with the truth; see `tests/vm/src/bin/first-light`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::vm::{self, Spec, Status};
use crate::{cache, guest};

/// The program in the guest.
const PROGRAM: &str = "first-light";
/// How long it may run: emulation on a busy machine is slow.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Boots Xen with the driver and a guest with the module, lets competing threads read their own
/// counters, and prints the table of truth against reading. Fails if any reading is off.
#[derive(clap::Args)]
pub struct Args {
    /// Write the results as JSON, too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Start of all random sequences.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    let out = cache::root()?.join("demo");
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    let mut spec = spec(args.seed)?;
    spec.out = Some(out.clone());
    spec.stream = true;
    let outcome = vm::run(&spec)?;
    if let Some(reason) = outcome.explain() {
        eprintln!("xtask demo: {reason}");
    }
    if let Some(report) = &args.report {
        let made = out.join("report.json");
        fs::copy(&made, report)
            .with_context(|| format!("cannot write the report {}", report.display()))?;
    }
    Ok(if outcome.status == Status::Exited(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The demo's run: driver and module count their own instructions as well.
fn spec(seed: u64) -> Result<Spec> {
    let seed = seed.to_string();
    let command = ["/work/first-light", "--report", "/out/report.json", "--seed", &seed];
    let mut spec = Spec::new("pv", command)?;
    if let Some(hypervisor) = &mut spec.topology.xen {
        hypervisor.args.push_str(" perfctr=cost");
    }
    spec.module_args = "cost=1".to_owned();
    spec.files.push((guest::programs("vm-tests")?.join(PROGRAM), format!("/work/{PROGRAM}")));
    spec.timeout = TIMEOUT;
    Ok(spec)
}
