// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts programs of Debian's in several domains of different kinds, each of which counts events
//! of its own: alone, side by side, several on one vCPU, and all of this at once.
//!
//! This program has both roles: in the control domain it creates the others and prints what they
//! count, and it is the first program of each of them.

mod control;
mod tenant;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Counts programs in several domains.
#[derive(Debug, Parser)]
enum Role {
    /// Creates domains and has them count.
    Control {
        /// A command on each line: a program and its arguments, with blanks in between.
        commands: PathBuf,
        /// Also count in an HVM domain.
        #[arg(long)]
        hvm: bool,
    },
    /// Counts what the control domain asks for.
    Tenant,
}

fn main() -> Result<ExitCode> {
    match Role::parse() {
        Role::Control { commands, hvm } => control::run(&commands, hvm),
        Role::Tenant => tenant::run(),
    }
}
