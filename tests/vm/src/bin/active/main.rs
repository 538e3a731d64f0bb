// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a host's profile of a domain that says which threads it executes: the control domain
//! itself, which is a PV guest, or with `beside` a PVH tenant and then an HVM one.
//!
//! Two programs compete for one virtual CPU of that domain. Each executes a function of its own
//! almost all the time, so the address of a sample says which program it is of. `perfctr record
//! --names` knows nothing of the samples, and yet `perfctr report --guest` must find the same
//! program and the same function. Each program also counts its own instructions, by which there
//! must be one sample for each period.
//!
//! With `--both` this runs the two programs, with `--enter` each in a control group of its own.
//! With `--left FILE` and `--right FILE` it is one of them. With `tenant` it is the first program
//! of a tenant.

mod control;
mod judge;
mod programs;
mod recorder;
mod tenant;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => control::itself(),
        ["beside"] => control::beside(),
        ["tenant"] => tenant::run(),
        ["--both"] => programs::both(),
        ["--enter", processes, ref program @ ..] => programs::enter(processes, program),
        ["--left", file] => programs::left(file.as_ref()),
        ["--right", file] => programs::right(file.as_ref()),
        _ => bail!("unknown arguments {arguments:?}"),
    }
}
