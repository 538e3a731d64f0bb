// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows what the functions of a guest's kernel execute themselves, and what Xen executes for them,
//! under several loads: the guest receives packets, reads a disk, or switches between two
//! processes. It repeats the experiment of Du, Sehrawat and Zwaenepoel ("Performance Profiling in a
//! Virtualized Environment", 2010) on a host that samples itself (`docs/profile-host.md`).
//!
//! Beside that it compares the functions that a tenant's own perf finds with those that the host
//! finds from outside, and destroys the tenant while the host is sampled.
//!
//! Both guests execute this program: Xen's control domain, which is a PV guest, and a PVH tenant,
//! in which it is the first program.

mod control;
mod disk;
mod lists;
mod loads;
mod requests;
mod shares;
mod tenant;

use std::process::ExitCode;

use anyhow::{Result, bail};

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => return control::run(),
        ["tenant"] => return tenant::run(),
        ["load", name, seconds] => println!("{}", requests::load(name, seconds.parse()?)?),
        ["kernel", seconds] => println!("{}", loads::kernel(seconds.parse()?)?),
        ["echo"] => loads::echo()?,
        _ => bail!("unknown arguments {arguments:?}"),
    }
    Ok(ExitCode::SUCCESS)
}
