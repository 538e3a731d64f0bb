// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts Debian's programs in several domains of different kinds, each of which counts events of
//! its own. The programs run alone, side by side, several on one vCPU, and in all of these ways at
//! once.
//!
//! This program has two roles. In the control domain it creates the other domains and prints what
//! they count. In each of the others it is the first program.

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
