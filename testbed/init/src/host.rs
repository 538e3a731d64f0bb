// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The part of the first program on the host of a virtual machine; the machine's own first program
//! runs the command.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::ports::{NAMES, Ports};
use crate::{nul_separated, system};

/// Loads KVM and runs the machine to its end. Reports if it ended in an unexpected way.
pub fn serve(ports: &Ports, modules: &[&str]) -> Result<()> {
    let files = NAMES.iter().map(|name| ports.open(name)).collect::<Result<Vec<_>>>()?;
    let loaded = modules.iter().try_for_each(|module| system::load_module(module));
    if let Err(error) = loaded.and_then(|()| run(&files)) {
        let report = format!("error the host: {error:#}").replace('\n', " ");
        let control = files.iter().zip(NAMES).find(|(_, name)| *name == "control");
        writeln!(&mut control.context("control")?.0, "{report}").context("control")?;
    }
    Ok(())
}

/// Runs both programs. A port has one user at a time, but the program that runs the machine may
/// hand it over to another one: both inherit the ports, which are QEMU's `/dev/fdset/0` and so on.
fn run(ports: &[File]) -> Result<()> {
    let mut machine = command("machine")?;
    for (set, port) in ports.iter().enumerate() {
        fcntl(port, FcntlArg::F_SETFD(FdFlag::empty()))?;
        machine.args(["-add-fd", &format!("fd={},set={set}", port.as_raw_fd())]);
    }
    let mut beside = command("beside")?.spawn().context("beside")?;
    let status = machine.status().context("machine")?;
    ensure!(status.success(), "the machine's program: {status}");
    // `beside` ends with the last program that runs the machine.
    let status = beside.wait().context("beside")?;
    ensure!(status.success(), "the program beside the machine: {status}");
    Ok(())
}

/// Returns one of the commands; its output goes to the console.
fn command(name: &str) -> Result<Command> {
    let console = File::options().write(true).open("/dev/console")?;
    let argv = nul_separated(name)?;
    let (program, arguments) = argv.split_first().context(name.to_owned())?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(console.try_clone()?).stderr(console);
    Ok(command)
}
