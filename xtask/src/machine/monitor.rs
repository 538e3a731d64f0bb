// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Talks to the emulator's monitor, a socket that speaks QMP.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::emulator::MONITOR;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to the monitor, which has only one at a time.
pub struct Monitor {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to the monitor of the running machine whose files are in `dir`.
    pub fn open(dir: &Path) -> Result<Self> {
        let stream = UnixStream::connect(dir.join(MONITOR))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let answers = BufReader::new(stream.try_clone()?);
        let mut monitor = Self { stream, answers };
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Makes the monitor execute a command, and returns the answer.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        writeln!(self.stream, "{}", json!({ "execute": command, "arguments": arguments }))?;
        loop {
            let mut line = String::new();
            ensure!(self.answers.read_line(&mut line)? > 0, "the monitor has closed");
            let answer: Value = serde_json::from_str(&line)?;
            // Greetings and events come in between.
            if let Some(result) = answer.get("return") {
                return Ok(result.clone());
            }
            if let Some(error) = answer.get("error") {
                bail!("{command}: {error}");
            }
        }
    }
}
