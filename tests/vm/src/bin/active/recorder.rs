// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The command, as it is used in the control domain and in a tenant.

use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub const PERFCTR: &str = "/work/perfctr";
/// The file with what a domain says.
pub const NAMES: &str = "/tmp/active.names";
/// After this time a command has certainly begun.
const BEGUN: Duration = Duration::from_secs(4);

/// A command that records until it is interrupted.
pub struct Recording(Child);

impl Recording {
    /// Begins to record which threads this domain executes.
    pub fn of_names() -> Result<Self> {
        Self::begin(Command::new(PERFCTR).args(["record", "--names", "-o", NAMES]))
    }

    /// Starts the command, and waits until it certainly records.
    pub fn begin(command: &mut Command) -> Result<Self> {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = piped.spawn()?;
        sleep(BEGUN);
        Ok(Self(child))
    }

    /// Ends it, and returns what it has printed.
    pub fn end(self) -> Result<String> {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGINT)?;
        printed(self.0.wait_with_output()?)
    }
}

/// Runs a command that succeeds. Returns what it has printed.
pub fn run(command: &mut Command) -> Result<String> {
    printed(command.output()?)
}

fn printed(Output { status, stdout, stderr }: Output) -> Result<String> {
    let shown = String::from_utf8([stdout, stderr].concat())?;
    ensure!(status.success(), "perfctr: {status}: {shown}");
    Ok(shown)
}
