// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Groups of processes (cgroup v2).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::unistd::Pid;

/// The folder of all groups, and the file that enables controllers for the groups below.
const ROOT: &str = "/sys/fs/cgroup";
const ENABLE: &str = "cgroup.subtree_control";

/// A group, which is removed when this is dropped.
#[derive(Debug)]
pub struct Cgroup {
    /// Its name below the folder of all groups.
    pub name: &'static str,
    dir: PathBuf,
}

impl Cgroup {
    /// Makes a group.
    ///
    /// # Errors
    ///
    /// There is one with this name, or the caller is not root.
    pub fn new(name: &'static str) -> Result<Self> {
        let root = Path::new(ROOT);
        if !root.join(ENABLE).exists() {
            mount(Some("none"), root, Some("cgroup2"), MsFlags::empty(), None::<&str>)?;
            // perf's controller has no name here: the kernel enables it with any other controller.
            fs::write(root.join(ENABLE), "+pids")?;
        }
        let dir = root.join(name);
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self { name, dir })
    }

    /// Returns the file that has the group's processes, and to which those are written that enter
    /// the group.
    pub fn processes(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Puts a process into the group, and with it everything that it starts.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn add(&self, process: Pid) -> Result<()> {
        Ok(fs::write(self.processes(), process.to_string())?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // An empty group stays if a process that has ended was not waited for.
        fs::remove_dir(&self.dir).ok();
    }
}
