// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds the virtio ports to the host, which the kernel numbers and the host names.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The names of a machine's ports, in the order that the host expects.
pub const NAMES: [&str; 4] = ["control", "stdout", "stderr", "out"];

/// How long the host's device may take to announce its ports.
const PATIENCE: Duration = Duration::from_secs(10);

/// The device files, by the names that the host gave them.
pub struct Ports(HashMap<String, PathBuf>);

impl Ports {
    /// Waits until every port exists.
    pub fn find() -> Result<Self> {
        let start = Instant::now();
        loop {
            let ports = Self(present());
            if NAMES.iter().all(|name| ports.0.contains_key(*name)) {
                return Ok(ports);
            }
            ensure!(start.elapsed() < PATIENCE, "virtio ports missing, found only {:?}", ports.0);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Opens a port for writing. The kernel allows one user at a time.
    pub fn open(&self, name: &str) -> Result<File> {
        let path = &self.0[name];
        File::options().write(true).open(path).with_context(|| format!("port {name}"))
    }
}

fn present() -> HashMap<String, PathBuf> {
    let entries = fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = fs::read_to_string(entry.path().join("name")).ok()?;
            let device = PathBuf::from("/dev").join(entry.file_name());
            device.exists().then(|| (name.trim().to_owned(), device))
        })
        .collect()
}
