// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the pictures that users see: a flame graph of a program, a flame graph of a whole host,
//! and the screens of `perfctr top`.
//!
//! Two guests of the host are under load: the control domain, which is a PV guest, and a PVH
//! tenant. Each has a web server, and asks the other one's server for pages, so that packets go
//! through Xen's network in both directions.
//!
//! Both guests execute this program. In the control domain it makes the pictures. In the tenant it
//! is the first program.

mod control;
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
