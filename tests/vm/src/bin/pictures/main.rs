// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the pictures that users see: flame graphs of a program, and of a host on which web servers
//! are under load in a PV guest, the control domain, and in a PVH tenant, and the screens of
//! `perfctr top`.
//!
//! Each of both guests asks the other one's server, so that packets go through Xen's network in
//! both directions. This program is both: in the control domain it makes the pictures, and it is
//! the first program of the tenant.

mod control;
mod network;
mod pty;
mod tenant;
mod web;

use std::process::ExitCode;

use anyhow::{Result, bail};

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => control::run(),
        ["load", server, seconds] => web::load(server, seconds.parse()?),
        ["tenant"] => tenant::run(),
        _ => bail!("unknown arguments {arguments:?}"),
    }
}
