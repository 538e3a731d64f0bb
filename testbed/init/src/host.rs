// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The host of a virtual machine, whose own first program does what is asked.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::ports::Ports;
use crate::{nul_separated, system};

/// Where programs expect the ports, by their names.
const PORTS: &str = "/dev/virtio-ports";

/// Loads KVM and runs the machine to its end; says so if it ended in an unexpected way.
pub fn serve(ports: &Ports, modules: &[&str]) -> Result<()> {
    let loaded = modules.iter().try_for_each(|module| system::load_module(module));
    if let Err(error) = loaded.and_then(|()| run(ports)) {
        let report = format!("error the host: {error:#}").replace('\n', " ");
        writeln!(ports.open("control")?, "{report}").context("control")?;
    }
    Ok(())
}

fn run(ports: &Ports) -> Result<()> {
    fs::create_dir_all(PORTS)?;
    for (name, device) in ports.all() {
        symlink(device, Path::new(PORTS).join(name)).with_context(|| name.clone())?;
    }
    // It ends with the host.
    command("beside")?.spawn().context("beside")?;
    let status = command("machine")?.status().context("machine")?;
    ensure!(status.success(), "the machine's program: {status}");
    Ok(())
}

/// One of the commands, which writes to the console.
fn command(name: &str) -> Result<Command> {
    let console = File::options().write(true).open("/dev/console")?;
    let argv = nul_separated(name)?;
    let (program, arguments) = argv.split_first().context(name.to_owned())?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(console.try_clone()?).stderr(console);
    Ok(command)
}
