// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Prepares a machine that is the host of another one: KVM's modules, the program that runs the
//! guest, and the files from which the guest is booted.

use std::fs;
use std::io::BufWriter;

use anyhow::{Context, Result};

use super::hardware;
use super::initramfs::{self, nul_ended};
use super::profile::{Emulator, Host};
use super::spec::Spec;
use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::{guest, kvm, rootfs};
use crate::tools::cpio::Archive;

/// The kernel's modules that KVM's need.
const MODULES: [&str; 2] = ["virt/lib/irqbypass.ko", "drivers/crypto/ccp/ccp.ko"];
/// The directory of the kernel's own modules of KVM.
const KVM: &str = "arch/x86/kvm";
/// The firmware that boots the guest, as it is on this machine.
const FIRMWARE: [&str; 5] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
    "/usr/share/seabios/vgabios-stdvga.bin",
];
/// The program that moves the guest's vCPUs, and competes with them.
const DISTURBER: &str = "host";
/// The command that says who may count.
const COMMAND: &str = "perfctr";
/// The host's directory with the guest's kernel and files.
const GUEST: &str = "machine";
/// The socket by which the guest's tests ask the disturber for something.
const SOCKET: &str = "/machine/asked";
/// The socket of the monitor of the program that runs the guest.
const MONITOR: &str = "/machine/monitor";

/// Gets the host's kernel.
pub fn kernel(host: &Host) -> Result<Kernel> {
    kernel::of(host.release.as_deref())
}

/// Makes an archive to be unpacked over the host's root file system. It has the guest's kernel and
/// archive, of which `files_mib` MiB are copied files.
pub fn layer(
    host: &Host,
    spec: &Spec,
    guests: &Kernel,
    initrd: &[u8],
    files_mib: u64,
) -> Result<Vec<u8>> {
    let kernel = kernel(host)?;
    let mut archive = Archive::new(BufWriter::new(Vec::new()));
    archive.tree("", &rootfs::vmm()?)?;
    archive.file("init", 0o755, &fs::read(guest::init()?)?)?;
    let mut modules = initramfs::boot_modules(&mut archive, &kernel, &MODULES)?;
    let built = if host.stock { None } else { Some(kvm::modules(&kernel)?) };
    let vendors = match spec.topology.emulator {
        Emulator::Qemu => kvm::AMD,
        Emulator::Bochs => kvm::INTEL,
    };
    for (name, args) in [(kvm::COMMON, &host.args), (vendors, &host.vendor_args)] {
        let module = match &built {
            Some(built) => fs::read(built.join(name))?,
            None => kernel.module(&format!("{KVM}/{name}"))?.context(name)?,
        };
        archive.file(&format!("usr/lib/perfctr/{name}"), 0o644, &module)?;
        modules.push(format!("/lib/perfctr/{name} {args}"));
    }
    for path in FIRMWARE {
        let content = fs::read(path).with_context(|| path.to_owned())?;
        archive.file(path.trim_start_matches('/'), 0o644, &content)?;
    }
    for (package, program) in [("vm-tests", DISTURBER), ("perfctr", COMMAND)] {
        let content = fs::read(guest::program(package, program)?)?;
        archive.file(&format!("{GUEST}/{program}"), 0o755, &content)?;
    }
    archive.file(&format!("{GUEST}/kernel"), 0o644, &fs::read(guests.for_qemu())?)?;
    archive.file(&format!("{GUEST}/initrd"), 0o644, initrd)?;
    archive.file("etc/testbed/modules", 0o644, modules.join("\n").as_bytes())?;
    let mut beside = vec![
        format!("/{GUEST}/{DISTURBER}"),
        format!("--socket={SOCKET}"),
        format!("--monitor={MONITOR}"),
    ];
    let options = [("--allow", host.allow), ("--calm", host.calm), ("--nmis", spec.press_nmi)];
    beside.extend(options.into_iter().filter(|one| one.1).map(|one| one.0.to_owned()));
    archive.file("etc/testbed/beside", 0o644, &nul_ended(&beside))?;
    archive.file("etc/testbed/machine", 0o644, &nul_ended(&command(host, spec, files_mib)))?;
    Ok(archive.finish()?.into_inner()?)
}

/// Returns the command that runs the guest.
fn command(host: &Host, spec: &Spec, files_mib: u64) -> Vec<String> {
    let [kernel, initrd] = ["kernel", "initrd"].map(|file| format!("/{GUEST}/{file}"));
    // Limits of the memory that it locks hold for QEMU, as for a process that is not root's.
    let limited = ["setpriv", "--bounding-set=-ipc_lock", "qemu-system-x86_64"];
    let mut argv = limited.map(str::to_owned).to_vec();
    // This gives names to the vCPUs' threads, by which the disturber finds them.
    argv.extend(["-name", "guest,debug-threads=on"].map(str::to_owned));
    argv.extend(["-machine", "q35,accel=kvm", "-serial", "stdio"].map(str::to_owned));
    // QEMU cannot truncate such files.
    let port = |n| format!("/dev/fdset/{n},append=on");
    argv.extend(hardware::every(&host.cpu, host.memory_mib, files_mib, port));
    argv.extend(["-qmp".to_owned(), format!("unix:{MONITOR},server=on,wait=off")]);
    let asked = format!("socket,id=asked,path={SOCKET},server=on,wait=off");
    argv.extend(["-chardev".to_owned(), asked]);
    argv.extend(["-device", "virtserialport,chardev=asked,name=host"].map(str::to_owned));
    argv.extend(["-smp".to_owned(), host.vcpus.to_string()]);
    argv.extend(["-kernel".to_owned(), kernel, "-initrd".to_owned(), initrd]);
    argv.extend(["-append".to_owned(), hardware::linux_args(spec)]);
    argv
}
