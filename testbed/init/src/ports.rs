// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Opens the ports to the host: virtio ports, which the kernel numbers and the host names, or I/O
//! ports.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::relay::Relay;

/// The names of a machine's ports, in the order that the host expects.
pub const NAMES: [&str; 4] = ["control", "stdout", "stderr", "out"];

/// How long the host's device may take to announce its ports.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ports of one machine, which are of one of these kinds.
pub enum Ports {
    /// Device files by the names that the host gave.
    Virtio(HashMap<String, PathBuf>),
    /// Pipes into I/O ports.
    Relay(Relay),
}

impl Ports {
    /// Waits until every port exists.
    pub fn find(are_io_ports: bool) -> Result<Self> {
        if are_io_ports {
            return Ok(Self::Relay(Relay::start(&NAMES)?));
        }
        let start = Instant::now();
        loop {
            let ports = present();
            if NAMES.iter().all(|name| ports.contains_key(*name)) {
                return Ok(Self::Virtio(ports));
            }
            ensure!(start.elapsed() < PATIENCE, "virtio ports missing, found only {ports:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Opens a port for writing. The kernel allows one user of a virtio port at a time.
    pub fn open(&self, name: &str) -> Result<File> {
        match self {
            Self::Virtio(ports) => File::options()
                .write(true)
                .open(&ports[name])
                .with_context(|| format!("port {name}")),
            Self::Relay(relay) => relay.open(name),
        }
    }

    /// Waits until everything that was written has left the machine.
    pub fn finish(self) -> Result<()> {
        match self {
            Self::Virtio(_) => Ok(()),
            Self::Relay(relay) => relay.finish(),
        }
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
