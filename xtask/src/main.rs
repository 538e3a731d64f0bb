// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! One command line for building, checking and testing perfctr: `cargo xtask --help`.
//!
//! The floors of the sources, each of which uses only those below it, are: [`verbs`], [`suites`],
//! [`machine`] beside [`checks`], [`artefacts`], [`tools`].

mod artefacts;
mod checks;
mod machine;
mod suites;
mod tools;
mod verbs;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match verbs::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
