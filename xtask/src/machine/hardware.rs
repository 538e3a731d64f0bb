// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Describes the hardware and the arguments of every emulated machine: of the one that runs here,
//! and of the guest that it runs if it is a host itself.

use super::spec::Spec;

/// Every topology's kernel arguments. A crash ends the machine. On a busy build machine an emulated
/// CPU may stop for long, which must not be reported as a lockup.
pub const LINUX_ARGS: &str = "panic=-1 oops=panic quiet watchdog_thresh=60";

/// The arguments by which a whole system starts without questions.
const SYSTEM_ARGS: &str =
    "rdinit=/usr/lib/systemd/systemd systemd.firstboot=off systemd.show_status=1";

/// The guest's virtio ports, each of which becomes a file of the run's directory.
pub const PORTS: [&str; 4] = ["control", "stdout", "stderr", "out"];

/// Returns the arguments for the devices of every machine, of the one that runs here as well as of
/// its guest: a CPU of this kind, `memory_mib` in addition to the room for files of this size, and
/// the ports, the nth of which writes to `file(n)`.
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
        // A PV guest's memory is not contiguous for a device. So the device's driver has to ask the
        // kernel for DMA addresses, which it does only for a device behind an IOMMU.
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

/// Returns the kernel's arguments. Those of the topology come last, since the last one counts if an
/// argument is given twice.
pub fn linux_args(spec: &Spec) -> String {
    let system = if spec.system.is_some() { SYSTEM_ARGS } else { "" };
    format!("{LINUX_ARGS} {system} {}", spec.topology.linux)
}
