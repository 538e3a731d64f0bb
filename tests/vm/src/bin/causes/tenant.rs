// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The tenant's part: it does what the control domain asks for, and samples its own kernel by
//! Debian's perf, which counts on the module's counters.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use vm_tests::toolstack::{live, send};
use vm_tests::{module, network};

use crate::requests::{self, DISK, KERNEL, OWN_PERF, SWITCHES};
use crate::{disk, loads};

/// The directory of perf, and perf's file of samples.
const PROGRAMS: &str = "/usr/bin";
const DATA: &str = "/tmp/own.data";
/// Instructions of the kernel between two samples, as in the host's own profile.
pub const PERIOD: &str = "100003";

/// Runs as the tenant's first program.
pub fn run() -> Result<ExitCode> {
    live(|| {
        fs::create_dir_all("/tmp")?;
        module::load()?;
        disk::connect()?;
        // The list of functions that it offers has the modules that are loaded by now.
        network::connect()?;
        let (asked, packets) = (requests::listen()?, loads::listen()?);
        thread::spawn(move || loads::receive_packets(&packets));
        send(&json!("ready"));
        requests::serve(&asked, answer)
    })
}

fn answer(name: &str, seconds: u64) -> Result<Value> {
    Ok(match name {
        DISK => json!(loads::read_disk(seconds)?),
        SWITCHES => json!(loads::switch(seconds)?),
        KERNEL => json!(loads::kernel(seconds)?),
        OWN_PERF => json!(own_perf(seconds)?),
        _ => bail!("unknown request {name}"),
    })
}

/// Samples the kernel under load by perf. Returns the number of samples of each function, as perf
/// names it.
fn own_perf(seconds: u64) -> Result<BTreeMap<String, u64>> {
    let this = env::current_exe()?.display().to_string();
    let seconds = seconds.to_string();
    let record = ["record", "-a", "-e", "instructions:k", "-c", PERIOD, "-o", DATA, "--"];
    perf(&[&record[..], &[this.as_str(), KERNEL, &seconds]].concat())?;
    let lost = perf(&["script", "-i", DATA, "--show-lost-events", "-F", "comm"])?;
    ensure!(!lost.contains("LOST"), "perf has lost samples");
    let mut functions = BTreeMap::new();
    for line in perf(&["script", "-i", DATA, "-F", "ip,sym"])?.lines() {
        let Some((_, function)) = line.trim().split_once(' ') else { continue };
        *functions.entry(function.trim().to_owned()).or_insert(0) += 1;
    }
    Ok(functions)
}

fn perf(arguments: &[&str]) -> Result<String> {
    let mut perf = Command::new("perf");
    let out = perf.args(arguments).env("PATH", PROGRAMS).output().context("there is no perf")?;
    let printed = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "perf {}: {printed}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
