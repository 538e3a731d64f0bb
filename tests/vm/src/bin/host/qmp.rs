// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Talks to the monitor (QMP) of the program that runs a guest.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// The time between looks at how far a migration is.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// How long the guest may be stopped at the end of its migration (unit: ms), and how fast its
/// memory is copied (unit: bytes/s). Emulation is slow.
const DOWNTIME_MS: u64 = 2000;
const BANDWIDTH: u64 = 1 << 30;

pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    pub fn connect(path: &str) -> Result<Self> {
        let mut monitor = Self(BufReader::new(UnixStream::connect(path).context("monitor")?));
        monitor.message()?;
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Migrates the guest to this address, and ends the program that runs it.
    pub fn migrate(mut self, uri: &str) -> Result<()> {
        let limits = json!({ "max-bandwidth": BANDWIDTH, "downtime-limit": DOWNTIME_MS });
        self.execute("migrate-set-parameters", limits)?;
        self.execute("migrate", json!({ "uri": uri }))?;
        loop {
            let state = self.execute("query-migrate", json!({}))?;
            match state["status"].as_str() {
                Some("completed") => break,
                Some("failed" | "cancelled") => bail!("the migration: {state}"),
                _ => sleep(BETWEEN_LOOKS),
            }
        }
        self.execute("quit", json!({})).map(drop)
    }

    /// Stops the guest. No vCPU executes when this returns.
    pub fn stop(&mut self) -> Result<()> {
        self.execute("stop", json!({})).map(drop)
    }

    /// Lets the guest go on.
    pub fn go_on(&mut self) -> Result<()> {
        self.execute("cont", json!({})).map(drop)
    }

    /// Has the emulator ask KVM for the registers of all vCPUs.
    pub fn read_registers(&mut self) -> Result<()> {
        let line = json!({ "command-line": "info registers -a" });
        self.execute("human-monitor-command", line).map(drop)
    }

    /// Keeps the emulator busy for a moment: asks for the names of all of its commands. Meanwhile
    /// the emulator holds a lock that a virtual CPU needs for each access to an emulated device.
    /// So this must not take long, as the description of all commands does, which takes seconds.
    pub fn list_commands(&mut self) -> Result<()> {
        self.execute("query-commands", json!({})).map(drop)
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.0.get_mut(), "{request}")?;
        loop {
            let message = self.message()?;
            if let Some(error) = message.get("error") {
                bail!("{command}: {error}");
            }
            if let Some(answer) = message.get("return") {
                return Ok(answer.clone());
            }
            // These are events that have happened meanwhile.
        }
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("the monitor says {line:?}"))
    }
}
