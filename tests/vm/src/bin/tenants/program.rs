// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs a program in a tenant while the control domain sleeps, such as one that measures what
//! something costs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vm_tests::module;
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, Wanted, send};

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
    /// How the tenant is virtualised.
    #[arg(long, default_value = "pvh")]
    kind: Kind,
    /// Its memory in MiB, if it needs more than other tenants.
    #[arg(long)]
    memory_mib: Option<u32>,
    /// Do not load the module.
    #[arg(long)]
    without_module: bool,
}

/// Runs in the control domain, and prints what the program in the tenant has printed.
pub fn control(options: &Options) -> Result<ExitCode> {
    toolstack::start()?;
    let module = if options.without_module { "--without-module" } else { "" };
    let role = format!("run {} {module}", options.program.display());
    let usual = Wanted::usual(options.kind, "program", options.vcpus, Tsc::Native, &role);
    let memory_mib = options.memory_mib.unwrap_or(usual.memory_mib);
    let mut tenant = Tenant::create_wanted(&Wanted { memory_mib, ..usual })?;
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
    // The program may need a place for its files.
    fs::create_dir_all("/tmp")?;
    let ended = Command::new(program).output().with_context(|| program.display().to_string())?;
    let complains = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}: {}\n{complains}", program.display(), ended.status);
    send(&json!({ "printed": String::from_utf8(ended.stdout)? }));
    Ok(())
}
