// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The tenant's part: it says which threads it executes, and runs the two programs on request.

use std::fs;
use std::process::ExitCode;

use serde_json::json;
use vm_tests::toolstack::{live, receive, send};
use vm_tests::{module, network};

use crate::programs;
use crate::recorder::{NAMES, Recording};

/// What it says when it records.
pub const BEGAN: &str = "began";
/// The port at which it offers the file with what it has said.
pub const PORT: u16 = 82;

/// Runs as the tenant's first program.
pub fn run() -> anyhow::Result<ExitCode> {
    live(|| {
        fs::create_dir_all("/tmp")?;
        module::load()?;
        network::connect()?;
        let recording = Recording::of_names()?;
        send(&json!(BEGAN));
        receive()?;
        programs::both()?;
        print!("{}", recording.end()?);
        network::offer(PORT, fs::read(NAMES)?)?;
        send(&json!(programs::left_behind()?));
        // The control domain destroys this one.
        receive().map(drop)
    })
}
