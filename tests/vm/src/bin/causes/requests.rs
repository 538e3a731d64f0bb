// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! How the control domain asks the tenant for a load, over the network.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use vm_tests::network::TENANT;

use crate::loads;

/// The loads' names.
pub const PACKETS: &str = "packets";
pub const DISK: &str = "disk";
pub const SWITCHES: &str = "switches";
pub const OWN_SWITCHES: &str = "own-switches";
pub const KERNEL: &str = "kernel";
/// The name of the request for what the tenant's own perf finds under the load `KERNEL`.
pub const OWN_PERF: &str = "own-perf";

/// The port at which the tenant takes requests.
const PORT: u16 = 82;

/// Causes a load for this many seconds. Runs in the control domain. Returns how often the work was
/// done.
pub fn load(name: &str, seconds: u64) -> Result<u64> {
    match name {
        PACKETS => loads::send_packets(seconds),
        OWN_SWITCHES => loads::switch(seconds),
        of_tenant => {
            let answer = ask(of_tenant, seconds)?;
            answer.as_u64().with_context(|| format!("{answer} is no number"))
        }
    }
}

/// Asks the tenant, and returns its answer.
pub fn ask(name: &str, seconds: u64) -> Result<Value> {
    let mut stream = TcpStream::connect((TENANT, PORT)).context("the tenant takes no requests")?;
    writeln!(stream, "{}", json!([name, seconds]))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let answer: Value = serde_json::from_str(&answer).with_context(|| answer.clone())?;
    if !answer["error"].is_null() {
        bail!("{name} in the tenant: {}", answer["error"]);
    }
    Ok(answer)
}

/// Returns the tenant's end of requests.
pub fn listen() -> Result<TcpListener> {
    Ok(TcpListener::bind((TENANT, PORT))?)
}

/// Does for ever what the control domain asks for, by `act`.
pub fn serve(listener: &TcpListener, act: impl Fn(&str, u64) -> Result<Value>) -> Result<()> {
    for stream in listener.incoming() {
        let mut stream = stream?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let (name, seconds): (String, u64) = serde_json::from_str(&line).context(line)?;
        let answer = act(&name, seconds);
        let answer = answer.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        write!(stream, "{answer}")?;
    }
    Ok(())
}
