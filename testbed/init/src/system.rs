// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The first process's work on the system: it mounts file systems, loads modules and switches the
//! machine off.

use std::ffi::CString;
use std::fs::{self, File};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Mounts the kernel's file systems where programs expect them.
pub fn mount_all() -> Result<()> {
    let mounts = [
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("devtmpfs", "/dev", ""),
        ("tmpfs", "/dev/shm", "mode=1777"),
        ("devpts", "/dev/pts", ""),
        ("tmpfs", "/run", "mode=755"),
        ("tmpfs", "/tmp", "mode=1777"),
        ("debugfs", "/sys/kernel/debug", ""),
        ("tracefs", "/sys/kernel/tracing", ""),
    ];
    for (kind, target, options) in mounts {
        // Directories below /sys exist if the kernel has the feature.
        if !target.starts_with("/sys/") {
            fs::create_dir_all(target)?;
        }
        mount(Some(kind), target, Some(kind), MsFlags::empty(), Some(options))
            .with_context(|| format!("mounting {target}"))?;
    }
    for (link, target) in [("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")]
        .into_iter()
        .chain([("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")])
    {
        std::os::unix::fs::symlink(target, format!("/dev/{link}")).ok();
    }
    nix::unistd::sethostname("testbed").context("host name")
}

/// Switches on the loopback network, through which a debugger talks to the program that it debugs.
pub fn connect_to_itself() -> Result<()> {
    const FLAGS: &str = "/sys/class/net/lo/flags";
    let flags = fs::read_to_string(FLAGS).context(FLAGS)?;
    let digits = flags.trim().trim_start_matches("0x");
    let up = u32::from_str_radix(digits, 16).context(FLAGS)? | nix::libc::IFF_UP as u32;
    fs::write(FLAGS, format!("{up:#x}")).context(FLAGS)
}

/// Mounts the file system that Xen's tools use, on Xen, unless a whole system has mounted it. Its
/// module must be loaded.
pub fn mount_xenfs() -> Result<()> {
    if !fs::exists("/proc/xen")? || fs::exists("/proc/xen/capabilities")? {
        return Ok(());
    }
    mount(Some("xenfs"), "/proc/xen", Some("xenfs"), MsFlags::empty(), None::<&str>)
        .context("mounting /proc/xen")
}

/// Loads a module given as "PATH [PARAMETER...]", unless a system has loaded it for its device.
pub fn load_module(line: &str) -> Result<()> {
    let (path, parameters) = line.split_once(' ').unwrap_or((line, ""));
    let file = File::open(path).with_context(|| path.to_owned())?;
    finit_module(file, &CString::new(parameters)?, ModuleInitFlags::empty())
        .or_else(|errno| if errno == Errno::EEXIST { Ok(()) } else { Err(Refused(errno)) })
        .with_context(|| format!("loading {path}"))
}

/// The kernel has refused to load a module.
#[derive(Debug)]
pub struct Refused(pub Errno);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refused {}

/// Kills every process but this one.
pub fn kill_all() {
    // This fails only if there is no other process.
    kill(Pid::from_raw(-1), Signal::SIGKILL).ok();
}

/// Switches the machine off. Returns only if the kernel refuses.
pub fn power_off() {
    nix::unistd::sync();
    let Err(error) = reboot(RebootMode::RB_POWER_OFF);
    eprintln!("init: power off: {error}");
}
