// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Loads and unloads the guest's module.

use std::ffi::CStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libc::O_NONBLOCK;
use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module};
use perfctr::{Event, Provider, Session};

use crate::threads::{SELF, cpus, run_on};

/// The path of the module in the test VM.
pub const PATH: &str = "/lib/perfctr/perfctr.ko";

/// The time without counters after which the module stops watching switches: its
/// `PERFCTR_UNWATCH_DELAY_MS` (`guest-kmod/glue/watch.c`), and a little more.
pub const UNWATCHED_AFTER: Duration = Duration::from_secs(11);

/// Loads the module.
///
/// # Errors
///
/// There is no such file, or the module's refusal.
pub fn load() -> Result<()> {
    load_file(PATH, c"")
}

/// Loads any module, with these parameters.
///
/// # Errors
///
/// There is no such file, or the module's refusal.
pub fn load_file(path: &str, parameters: &CStr) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
    finit_module(&file, parameters, ModuleInitFlags::empty()).context("cannot load the module")
}

/// Makes the module register the page of every vCPU, until the result is dropped. This is for
/// programs that make hypercalls of their own.
///
/// # Errors
///
/// Those of the session, and of moving the calling thread.
pub fn register_pages() -> Result<Session> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    let cpus = cpus()?;
    for &cpu in &cpus {
        run_on(SELF, &[cpu])?;
    }
    // A session that has stopped is not loaded, and keeps its pages.
    session.stop()?;
    run_on(SELF, &cpus)?;
    Ok(session)
}

/// Unloads the module, unless it is in use.
///
/// # Errors
///
/// `EAGAIN` if it is in use, `ENOENT` if it is not loaded.
pub fn unload() -> Result<(), Errno> {
    delete_module(c"perfctr", DeleteModuleFlags::O_NONBLOCK)
}

/// Unloads the module as soon as nobody uses it, within ten seconds.
///
/// # Errors
///
/// The errors of [`unload`].
pub fn unload_when_idle() -> Result<(), Errno> {
    for _ in 0..10_000 {
        match unload() {
            Err(Errno::EAGAIN) => sleep(Duration::from_millis(1)),
            result => return result,
        }
    }
    unload()
}

/// Returns the kernel's messages since boot, a line for each.
///
/// # Errors
///
/// The caller may not read them.
pub fn log() -> Result<String> {
    const FILE: &str = "/dev/kmsg";
    // Each reading gives one message: its number and time, a semicolon and the text.
    const MESSAGE_BYTES_MAX: usize = 8192;
    let mut open = File::options();
    let mut messages = open.read(true).custom_flags(O_NONBLOCK).open(FILE).context(FILE)?;
    let (mut log, mut message) = (String::new(), [0; MESSAGE_BYTES_MAX]);
    loop {
        match messages.read(&mut message) {
            Ok(bytes) => log += &String::from_utf8_lossy(&message[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(log),
            // The oldest message was overwritten by a new one.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => return Err(error).context(FILE),
        }
    }
}

/// Checks that the kernel has complained of nothing since boot.
///
/// # Errors
///
/// The error has what the kernel complains of.
pub fn complains_of_nothing() -> Result<()> {
    const COMPLAINTS: [&str; 4] = ["BUG:", "WARNING:", "Oops", "NMI received for unknown reason"];
    let log = log()?;
    // The kernel's messages about the CPU at boot do not concern the module.
    let mut lines = log.lines().filter(|line| !line.contains("/admin-guide/hw-vuln/"));
    let complaint = lines.find(|line| COMPLAINTS.iter().any(|bad| line.contains(bad)));
    ensure!(complaint.is_none(), "the kernel complains: {complaint:?}");
    Ok(())
}

/// Checks that the kernel has complained of nothing, and that the module can be loaded anew.
///
/// # Errors
///
/// The error has the kernel's complaint, or is one of [`unload`] and [`load`].
pub fn reload_unharmed() -> Result<()> {
    complains_of_nothing()?;
    unload_when_idle().context("cannot unload the module")?;
    load()
}
