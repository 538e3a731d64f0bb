// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the same tests in a tenant of Xen, whose vCPUs the control domain moves.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use vm_tests::in_tenant::Moves;
use vm_tests::toolstack::{Kind, Tsc, Wanted, live};
use vm_tests::{module, programs};

use crate::{PCPUS, SEED, SWITCHES_MIN, TESTS};

const VCPUS: usize = 2;

/// The tenant's memory: enough for the packages, twice while they are unpacked, and recordings.
const MEMORY_MIB: u32 = 768;

/// How often, and how long, the control domain waits for the tenant. A test has many replays, each
/// of which may take minutes.
const POLL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(900);

/// Runs in the control domain.
pub fn control(kind: Kind) -> Result<ExitCode> {
    let wanted = Wanted {
        memory_mib: MEMORY_MIB,
        ..Wanted::usual(kind, "rr", VCPUS, Tsc::Native, "tenant")
    };
    let moves = Moves { pcpus: PCPUS, seed: SEED, switches_min: SWITCHES_MIN };
    TESTS.control(&wanted, moves, |tenant| tenant.receive_within(POLL, PATIENCE))
}

/// Runs in the tenant, and ends with the domain.
pub fn run() -> Result<ExitCode> {
    live(|| {
        // Recordings have random numbers in their names.
        programs::prepare()?;
        fs::create_dir_all("/tmp")?;
        module::load()?;
        TESTS.run_in_tenant(|test| test());
        Ok(())
    })
}
