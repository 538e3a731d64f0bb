// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Bochs, which boots from a disc: the image that GRUB starts from it, and Bochs' configuration.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use super::software::Software;
use super::spec::Spec;
use crate::tools::apt;
use crate::tools::sh::{self, cmd};

/// The packages that make the image.
const PACKAGES: &[&str] = &["grub-common", "grub-pc-bin", "mtools", "xorriso"];

/// Instructions to a second of the machine's time, of each CPU.
const SPEED: u32 = 50_000_000;
/// The same for a machine whose costs are counted. It is the value of QEMU for such machines, so
/// that in both emulators equally many instructions are between two interrupts of a timer.
const SPEED_COUNTED: u32 = 125_000_000;

/// MiB of the guest's memory that Bochs keeps in its own memory, at most. The rest is in a file.
const HOST_MIB: u64 = 2048;

/// The place of Linux's archive in memory. It is there from the start, which costs nothing, while
/// the firmware reads a disc at two megabytes a second. GRUB and the kernel's first steps use other
/// memory.
const INITRD: u64 = 512 << 20;
const PAGE: u64 = 4096;

/// Starts Bochs on the files of this run's directory.
pub fn start_bochs(emulator: &Path, spec: &Spec, software: &Software, dir: &Path) -> Result<Child> {
    image(software, dir)?;
    let mut configuration = configuration(spec, software);
    if software.xen.is_none() {
        configuration += &format!("optramimage1: file=initrd, address={INITRD:#x}\n");
    }
    fs::write(dir.join("bochsrc"), configuration)?;
    // This ends the machine together with this process, however that ends.
    let mut bochs = cmd("setpriv", ["--pdeathsig", "KILL"]);
    bochs.arg(emulator).args(["-q", "-f", "bochsrc"]);
    let log = File::create(dir.join("emulator.log"))?;
    bochs.current_dir(dir).stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
    bochs.spawn().context("cannot start Bochs")
}

/// Writes the image of a disc that boots this software.
fn image(software: &Software, dir: &Path) -> Result<()> {
    apt::install(PACKAGES, "discs that Bochs boots from")?;
    let grub = dir.join("disc/boot/grub");
    fs::create_dir_all(&grub)?;
    let initrd = dir.join("initrd");
    fs::write(grub.join("grub.cfg"), menu(software, fs::metadata(&initrd)?.len()))?;
    let file = |name: &str| dir.join("disc").join(name);
    fs::copy(&software.kernel.boot_image, file("vmlinuz"))?;
    if let Some((xen, _)) = &software.xen {
        fs::copy(xen, file("xen"))?;
        fs::hard_link(initrd, file("initrd"))?;
    }
    let mut mkrescue = cmd("grub-mkrescue", ["-o", "disc.iso", "disc"]);
    sh::output(mkrescue.current_dir(dir)).map(drop)
}

/// Returns GRUB's configuration. Xen takes the archive from GRUB. Linux gets the archive's place by
/// its command line, and must not use that memory for anything else before it has copied the
/// archive.
fn menu(software: &Software, initrd: u64) -> String {
    let linux = &software.linux;
    match &software.xen {
        Some((_, args)) => format!(
            "multiboot2 /xen {args}\nmodule2 /vmlinuz {linux}\nmodule2 --nounzip /initrd\nboot\n"
        ),
        None => {
            let reserved = initrd.next_multiple_of(PAGE);
            let place = format!("memmap={reserved}\\${INITRD:#x} initrdmem={INITRD:#x},{initrd}");
            format!("linux /vmlinuz {linux} {place}\nboot\n")
        }
    }
}

/// Returns the description of the machine in Bochs' configuration language.
fn configuration(spec: &Spec, software: &Software) -> String {
    let topology = &spec.topology;
    let guest_mib = topology.kvm.as_ref().map_or(0, |host| host.memory_mib);
    // The copied files are in memory twice while they are unpacked, and a third time where they
    // were at first.
    let memory = topology.memory_mib + guest_mib + 3 * software.files_mib;
    let speed = if topology.deterministic { SPEED_COUNTED } else { SPEED };
    format!(
        "cpu: model={}, count={}, ips={speed}, ignore_bad_msrs=1\n\
         memory: guest={memory}, host={}\n\
         romimage: file=/usr/share/bochs/BIOS-bochs-latest\n\
         vgaromimage: file=/usr/share/vgabios/vgabios.bin\n\
         ata0-master: type=cdrom, path=disc.iso, status=inserted\n\
         boot: cdrom\n\
         com1: enabled=1, mode=file, dev=console\n\
         display_library: nogui\n\
         clock: sync=none\n\
         log: bochs.log\n\
         debug: action=ignore\ninfo: action=ignore\nerror: action=report\npanic: action=fatal\n",
        topology.cpu,
        topology.cpus,
        memory.min(HOST_MIB)
    )
}
