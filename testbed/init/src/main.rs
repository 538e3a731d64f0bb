// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The first program in the testbed's guest.
//!
//! In a whole system, whose own init is the first program, this program is a service that does the
//! same, but mounts nothing.
//!
//! The program mounts the kernel's file systems, loads modules, runs one command in `/work`, sends
//! the command's output to the host, reports how the command ended, and switches the machine off.
//!
//! The host prepares `/etc/testbed` in the initramfs:
//! - `modules`: kernel modules to load, one per line, a path and optionally parameters;
//! - `argv`: the command and its arguments, each ended by a NUL byte;
//! - `environment`: variables for the command, `NAME=value`, each ended by a NUL byte.
//!
//! With two more commands, `machine` and `beside`, this program runs on the host of a virtual
//! machine: it loads the modules, and runs `machine`, which starts the virtual machine with another
//! copy of this program in it, and `beside` at the same time. The copy writes to this program's
//! ports.
//!
//! The program writes to virtio ports, which it finds by name, or, with the file `io-ports`, to I/O
//! ports: `stdout` and `stderr` of the command, `out` with a tar archive of `/out`, and `control`
//! with one message per line: `ready` before the command starts, then one of `exit STATUS`, `signal
//! NUMBER`, `refused ERRNO` (a module under test was not loaded) or `error REASON`. The program
//! sends that message last, so that everything else has arrived before it.

mod host;
mod ports;
mod relay;
mod system;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};

use ports::Ports;
use system::Refused;

/// The folder that the host prepared.
const CONFIG: &str = "/etc/testbed";

fn main() {
    let is_first = std::process::id() == 1;
    let prepared = if is_first { prepare() } else { Ok(()) };
    if let Err(error) = prepared.and_then(|()| serve()) {
        eprintln!("init: {error:#}");
    }
    system::power_off();
}

/// Prepares the system as its first program has to before any other begins.
fn prepare() -> Result<()> {
    system::mount_all()?;
    system::connect_to_itself()
}

/// Runs the command and reports how it ended. An error here is one that cannot be reported through
/// a port.
fn serve() -> Result<()> {
    let modules = fs::read_to_string(format!("{CONFIG}/modules")).unwrap_or_default();
    let (transport, tested): (Vec<&str>, Vec<&str>) =
        modules.lines().partition(|line| line.starts_with("/lib/modules/"));
    for module in transport {
        system::load_module(module)?;
    }
    system::mount_xenfs()?;
    let ports = Ports::find(fs::exists(format!("{CONFIG}/io-ports"))?)?;
    if fs::exists(format!("{CONFIG}/machine"))? {
        host::serve(&ports, &tested)?;
    } else {
        report(&ports, &tested)?;
    }
    ports.finish()
}

/// Runs the command, and returns how it has ended.
fn report(ports: &Ports, tested: &[&str]) -> Result<()> {
    let mut control = ports.open("control")?;
    let report = match run(ports, tested, &mut control) {
        Ok(WaitStatus::Exited(_, status)) => format!("exit {status}"),
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("signal {}", signal as i32),
        Ok(other) => format!("error unexpected wait status {other:?}"),
        Err(error) => match error.downcast_ref::<Refused>() {
            Some(Refused(errno)) => format!("refused {errno:?}"),
            None => format!("error {error:#}").replace('\n', " "),
        },
    };
    writeln!(control, "{report}").context("control")
}

/// Loads the modules under test, runs the command to its end, and sends its output and files.
fn run(ports: &Ports, modules: &[&str], control: &mut impl Write) -> Result<WaitStatus> {
    writeln!(control, "ready")?;
    for module in modules {
        system::load_module(module)?;
    }
    let mut child = start()?;
    let mut stdout = ports.open("stdout")?;
    let mut stderr = ports.open("stderr")?;
    let (mut from_out, mut from_err) =
        (child.stdout.take().context("stdout")?, child.stderr.take().context("stderr")?);
    let copy_out = thread::spawn(move || pump(&mut from_out, &mut stdout));
    let copy_err = thread::spawn(move || pump(&mut from_err, &mut stderr));
    let status = wait_for(&child)?;
    // Processes that the command left running would keep its pipes open.
    system::kill_all();
    copy_out.join().ok().context("the thread for stdout panicked")??;
    copy_err.join().ok().context("the thread for stderr panicked")??;
    send_out(ports)?;
    Ok(status)
}

fn start() -> Result<Child> {
    let mut argv = nul_separated("argv")?.into_iter();
    let program = argv.next().context("no command")?;
    let mut command = Command::new(&program);
    for variable in nul_separated("environment")? {
        if let Some((name, value)) = variable.to_string_lossy().split_once('=') {
            command.env(name, value);
        }
    }
    let child = command
        .args(argv)
        .current_dir("/work")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", program.to_string_lossy()))?;
    // As a service, the command stays in the service's session. If it had a session of its own, the
    // kernel would hang up its whole process group when an orphan in it ends while another of its
    // processes is stopped.
    if std::process::id() == 1 {
        setsid()?;
    }
    Ok(child)
}

/// Waits for the command. Other children are orphans that the first process has inherited.
fn wait_for(child: &Child) -> Result<WaitStatus> {
    let wanted = Pid::from_raw(i32::try_from(child.id())?);
    loop {
        let status = waitpid(None, None)?;
        if status.pid() == Some(wanted) {
            return Ok(status);
        }
    }
}

/// Sends `/out` as a tar archive if there is anything in it.
fn send_out(ports: &Ports) -> Result<()> {
    if fs::read_dir("/out")?.next().is_none() {
        return Ok(());
    }
    let mut tar = Command::new("tar")
        .args(["-C", "/out", "-cf", "-", "."])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("tar")?;
    let mut archive: ChildStdout = tar.stdout.take().context("tar")?;
    pump(&mut archive, &mut ports.open("out")?)?;
    anyhow::ensure!(tar.wait()?.success(), "tar of /out failed");
    Ok(())
}

/// Copies to the end, through memory. `std::io::copy` would splice, which a virtio port answers
/// with "0 bytes", as if it were the end.
fn pump(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            size => to.write_all(&buffer[..size])?,
        }
    }
}

fn nul_separated(name: &str) -> Result<Vec<std::ffi::OsString>> {
    let bytes = fs::read(format!("{CONFIG}/{name}")).with_context(|| name.to_owned())?;
    let mut words: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
    words.pop();
    Ok(words.into_iter().map(|word| std::ffi::OsString::from_vec(word.to_vec())).collect())
}
