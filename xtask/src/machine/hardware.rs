// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Describes what every emulated machine has and is told: the one that runs here, and the guest
//! that it runs if it is a host itself.

use super::spec::Spec;

/// Every topology's kernel arguments: a crash ends the machine, and a busy build machine, on which
/// an emulated CPU may stop for long, is not taken for a lockup.
pub const LINUX_ARGS: &str = "panic=-1 oops=panic quiet watchdog_thresh=60";

/// The arguments that have a whole system start without asking anybody anything.
const SYSTEM_ARGS: &str =
    "rdinit=/usr/lib/systemd/systemd systemd.firstboot=off systemd.show_status=1";

/// The guest's virtio ports, each of which becomes a file of the run's directory.
pub const PORTS: [&str; 4] = ["control", "stdout", "stderr", "out"];

/// Returns the arguments for what every machine has, the one that runs here as well as its guest: a
/// CPU of this kind, `memory_mib` in addition to the room for files of this size, and the ports,
/// the nth of which writes to `file(n)`.
pub fn every(
    cpu: &str,
    memory_mib: u64,
    files_mib: u64,
    file: impl Fn(usize) -> String,
) -> Vec<String> {
    // The copied files are in memory twice while they are unpacked, and Xen moves the archive.
    let memory = format!("{}M", memory_mib + 3 * files_mib);
    let mut all: Vec<String> = ["-nodefaults", "-display", "none", "-no-reboot", "-nic", "none"]
        .into_iter()
        .chain(["-L", "/usr/share/seabios", "-L", "/usr/share/qemu"])
        .chain(["-cpu", cpu, "-m", &memory])
        // A PV guest's memory is not contiguous for a device: its driver has to ask the kernel for
        // DMA addresses, which it does only for a device behind an IOMMU.
        .chain(["-device", "virtio-serial-pci,iommu_platform=on,disable-legacy=on"])
        .map(str::to_owned)
        .collect();
    for (n, port) in PORTS.into_iter().enumerate() {
        all.extend(["-chardev".to_owned(), format!("file,id={port},path={}", file(n))]);
        let device = format!("virtserialport,chardev={port},name={port}");
        all.extend(["-device".to_owned(), device]);
    }
    all
}

/// Returns the kernel's arguments. Those of the topology are the last ones, which count if an
/// argument is given twice.
pub fn linux_args(spec: &Spec) -> String {
    let system = if spec.system.is_some() { SYSTEM_ARGS } else { "" };
    format!("{LINUX_ARGS} {system} {}", spec.topology.linux)
}
