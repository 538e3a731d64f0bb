// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Starts the emulator with its command line on one run's files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::hardware::{LINUX_ARGS, PORTS, every, linux_args};
use super::profile::Topology;
use super::spec::Spec;
use super::{host, initramfs};
use crate::artefacts::{kernel, qemu, rootfs, xen};
use crate::tools::sh::cmd;

/// The emulator's monitor (QMP), a socket in the run's directory.
pub const MONITOR: &str = "monitor";
/// The serial line, which is another socket. What the machine says there is kept in the file
/// `console`.
pub const SERIAL: &str = "serial";

/// Builds or finds every part, writes the initramfs and starts the emulator.
pub fn start(spec: &Spec, dir: &Path) -> Result<Child> {
    let emulator = qemu::qemu()?;
    let kernel = kernel::of(spec.linux.as_deref())?;
    let mut layer = initramfs::layer(spec, &kernel)?;
    let mut image = kernel.image.clone();
    if let Some(host) = &spec.topology.kvm {
        let mut guest = fs::read(rootfs::rootfs()?)?;
        guest.extend(&layer);
        layer = host::layer(host, spec, &kernel, &guest, layer.len() as u64 >> 20)?;
        image = host::kernel(host)?.image;
    }
    let mut initrd = File::create(dir.join("initrd"))?;
    let mut base = File::open(rootfs::rootfs()?)?;
    std::io::copy(&mut base, &mut initrd)?;
    let mut files = layer.len() as u64;
    if let Some(system) = &spec.system {
        files += std::io::copy(&mut File::open(system)?, &mut initrd)?;
    }
    initrd.write_all(&layer)?;
    symlink(image, dir.join("vmlinux"))?;

    // The machine ends with this process, however that ends.
    let mut qemu = cmd("setpriv", ["--pdeathsig", "KILL"]);
    qemu.arg(emulator);
    machine(&mut qemu, &spec.topology, files >> 20);
    software(&mut qemu, spec, dir)?;
    let log = File::create(dir.join("qemu.log"))?;
    qemu.current_dir(dir).stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
    qemu.spawn().context("cannot start QEMU")
}

/// Removes what only the running machine needs.
pub fn clean(dir: &Path) {
    for file in ["initrd", "vmlinux", "xen", "control", MONITOR, SERIAL] {
        fs::remove_file(dir.join(file)).ok();
    }
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

/// Adds the software that is booted.
fn software(qemu: &mut Command, spec: &Spec, dir: &Path) -> Result<()> {
    let topology = &spec.topology;
    let linux = match &topology.kvm {
        Some(host) => format!("{} {LINUX_ARGS}", host.linux),
        None => linux_args(spec),
    };
    match &topology.xen {
        Some(hypervisor) => {
            let image = match &hypervisor.image {
                Some(image) => image.clone(),
                None => xen::xen(hypervisor.flavour, hypervisor.release.as_deref())?,
            };
            symlink(image, dir.join("xen"))?;
            let args = format!("console=com1 com1=115200,8n1 noreboot {}", hypervisor.args);
            // A comma separates the boot modules unless it is doubled.
            let modules = format!("vmlinux {},initrd", linux.replace(',', ",,"));
            qemu.args(["-kernel", "xen", "-append", &args, "-initrd", &modules]);
        }
        None => {
            qemu.args(["-kernel", "vmlinux", "-append", &linux, "-initrd", "initrd"]);
        }
    }
    Ok(())
}
