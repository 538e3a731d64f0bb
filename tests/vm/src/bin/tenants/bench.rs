// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs a program that measures what something costs, in a tenant while the control domain sleeps.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vm_tests::module;
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, send};

/// The time between two checks whether the program has ended. A check costs something itself.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// How long the program may take by the control domain's clock. Most of that time passes while the
/// program sleeps, and takes the emulator no time.
const PATIENCE: Duration = Duration::from_secs(4 * 3600);

/// What to do.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How many vCPUs the tenant has.
    vcpus: usize,
    /// The program that it executes.
    program: PathBuf,
    /// Do not load the module.
    #[arg(long)]
    without_module: bool,
}

/// Runs in the control domain, and prints what the program in the tenant has printed.
pub fn control(options: &Options) -> Result<ExitCode> {
    toolstack::start()?;
    let module = if options.without_module { "--without-module" } else { "" };
    let role = format!("run {} {module}", options.program.display());
    let mut tenant = Tenant::create_kind(Kind::Pvh, "bench", options.vcpus, Tsc::Native, &role)?;
    tenant.unpause()?;
    let reply = tenant.receive_within(BETWEEN_LOOKS, PATIENCE)?;
    let printed = reply["printed"].as_str().with_context(|| reply.to_string())?;
    print!("{printed}");
    tenant.destroy()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs in the tenant.
pub fn tenant(program: &PathBuf, without_module: bool) -> Result<()> {
    if !without_module {
        module::load()?;
    }
    let ended = Command::new(program).output().with_context(|| program.display().to_string())?;
    let complains = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}: {}\n{complains}", program.display(), ended.status);
    send(&json!({ "printed": String::from_utf8(ended.stdout)? }));
    Ok(())
}
