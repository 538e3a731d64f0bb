// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Starts the emulator with its command line on one run's files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::disc;
use super::hardware::{PORTS, every};
use super::profile::{Emulator, Topology};
use super::software::Software;
use super::spec::Spec;
use crate::artefacts::{bochs, qemu};
use crate::tools::sh::cmd;

/// The emulator's monitor (QMP), a socket in the run's directory.
pub const MONITOR: &str = "monitor";
/// The serial line, which is another socket. What the machine says there is kept in the file
/// `console`.
pub const SERIAL: &str = "serial";

/// Builds or finds every part, writes the initramfs and starts the emulator.
pub fn start(spec: &Spec, dir: &Path) -> Result<Child> {
    match spec.topology.emulator {
        Emulator::Qemu => {
            let emulator = qemu::qemu()?;
            let software = Software::write(spec, dir)?;
            start_qemu(&emulator, spec, &software, dir)
        }
        Emulator::Bochs => {
            let emulator = bochs::bochs()?;
            let software = Software::write(spec, dir)?;
            disc::start_bochs(&emulator, spec, &software, dir)
        }
    }
}

fn start_qemu(emulator: &Path, spec: &Spec, software: &Software, dir: &Path) -> Result<Child> {
    // The machine ends together with this process, however that ends.
    let mut qemu = cmd("setpriv", ["--pdeathsig", "KILL"]);
    qemu.arg(emulator);
    machine(&mut qemu, &spec.topology, software.files_mib);
    symlink(&software.kernel.image, dir.join("vmlinux"))?;
    match &software.xen {
        Some((image, args)) => {
            symlink(image, dir.join("xen"))?;
            // A comma separates the boot modules unless it is doubled.
            let modules = format!("vmlinux {},initrd", software.linux.replace(',', ",,"));
            qemu.args(["-kernel", "xen", "-append", args, "-initrd", &modules]);
        }
        None => {
            let args = ["-kernel", "vmlinux", "-append", &software.linux, "-initrd", "initrd"];
            qemu.args(args);
        }
    }
    let log = File::create(dir.join("qemu.log"))?;
    qemu.current_dir(dir).stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
    qemu.spawn().context("cannot start QEMU")
}

/// Removes what only the running machine needs.
pub fn clean(dir: &Path) {
    for file in ["initrd", "vmlinux", "xen", "disc.iso", "control", MONITOR, SERIAL] {
        fs::remove_file(dir.join(file)).ok();
    }
    fs::remove_dir_all(dir.join("disc")).ok();
}

/// Adds the hardware, with room for files of this size.
fn machine(qemu: &mut Command, topology: &Topology, files_mib: u64) {
    let threads = if topology.deterministic {
        // An instruction takes 2^3 ns, so that timers fire no more often than on a real machine.
        ["-accel", "tcg,thread=single", "-icount", "shift=3,sleep=off"].as_slice()
    } else {
        &["-accel", "tcg,thread=multi"]
    };
    let guest_mib = topology.kvm.as_ref().map_or(0, |host| host.memory_mib);
    qemu.args(threads)
        .args(every(&topology.cpu, topology.memory_mib + guest_mib, files_mib, |n| PORTS[n].into()))
        .args(smp(topology))
        .args([
            "-chardev",
            &format!("socket,id=com1,path={SERIAL},server=on,wait=off,logfile=console"),
        ])
        .args(["-serial", "chardev:com1"])
        .args(["-qmp", &format!("unix:{MONITOR},server=on,wait=off")]);
}

/// Returns the arguments for the number of CPUs, and for the last one if it differs.
fn smp(topology: &Topology) -> Vec<String> {
    let cpus = topology.cpus;
    let Some(properties) = &topology.last_cpu else {
        return vec!["-smp".into(), cpus.to_string()];
    };
    let model = topology.cpu.split(',').next().unwrap_or_default();
    let place = format!("socket-id={},core-id=0,thread-id=0", cpus - 1);
    vec![
        "-smp".into(),
        format!("{},maxcpus={cpus},sockets={cpus},cores=1,threads=1", cpus - 1),
        "-device".into(),
        format!("{model}-x86_64-cpu,{place},{properties}"),
    ]
}
