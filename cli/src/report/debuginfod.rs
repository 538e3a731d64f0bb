// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds debugging information by its build-id in the cache of the system's client of debuginfod,
//! or makes that client fetch it from the servers that the user has named (`debuginfod-find(1)`).

use std::env;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The variable with the servers' addresses, which the client reads, too.
const SERVERS: &str = "DEBUGINFOD_URLS";
const CLIENT: &str = "debuginfod-find";
/// How long one file may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// The time between two looks whether the client has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Returns the file in the client's cache, if there is one. An empty file says that no server had
/// it.
pub fn kept(build_id: &str) -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let below = |name, path: &str| Some(set(name)?.join(path));
    let directory = set("DEBUGINFOD_CACHE_PATH")
        .or_else(|| below("XDG_CACHE_HOME", "debuginfod_client"))
        .or_else(|| below("HOME", ".cache/debuginfod_client"))?;
    let path = directory.join(build_id).join("debuginfo");
    path.metadata().is_ok_and(|facts| facts.is_file() && facts.len() > 0).then_some(path)
}

/// Asks servers for files, through the client.
#[derive(Debug, Default)]
pub struct Servers {
    /// Whether it is useless to ask again.
    given_up: bool,
}

impl Servers {
    /// Makes the client fetch the debugging information of a file, if the user has named servers.
    /// Tells `warn` what is done, and why there is nothing.
    pub fn fetch(&mut self, build_id: &str, file: &str, warn: impl Fn(&str)) -> Option<PathBuf> {
        if self.given_up || env::var_os(SERVERS).is_none_or(|servers| servers.is_empty()) {
            return None;
        }
        warn(&format!("asking the servers of {SERVERS} for the debugging information of {file}"));
        match run(build_id) {
            Ok(path) => path,
            Err(why) => {
                self.given_up = true;
                let why = match why.kind() {
                    io::ErrorKind::NotFound => {
                        format!("{CLIENT} is not installed (Debian's package debuginfod)")
                    }
                    io::ErrorKind::TimedOut => {
                        format!("{CLIENT} has not answered in {} s", PATIENCE.as_secs())
                    }
                    _ => format!("{CLIENT}: {why}"),
                };
                warn(&format!("{why}; nothing more is asked for"));
                None
            }
        }
    }
}

/// Runs the client, which prints the path of the file that it keeps. Returns `None` if no server
/// has it.
fn run(build_id: &str) -> io::Result<Option<PathBuf>> {
    let mut command = Command::new(CLIENT);
    command.args([OsStr::new("debuginfo"), build_id.as_ref()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    if !ends(&mut child)? {
        child.kill()?;
        child.wait()?;
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut printed = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_end(&mut printed)?;
    }
    let path = PathBuf::from(std::ffi::OsString::from_vec(printed.trim_ascii().to_vec()));
    Ok(Some(path).filter(|path| path.is_file()))
}

/// Waits for the client, but not for ever. Returns whether it has ended.
fn ends(child: &mut Child) -> io::Result<bool> {
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > PATIENCE {
            return Ok(false);
        }
        sleep(LOOK);
    }
    Ok(true)
}
