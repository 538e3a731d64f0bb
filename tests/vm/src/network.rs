// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A network of two: the control domain, and a tenant whose packets Xen's split driver carries.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::module::load_file;

/// The control domain's address.
pub const CONTROL: &str = "10.0.0.1";
/// The tenant's address.
pub const TENANT: &str = "10.0.0.2";
/// How many bits of both addresses are the network's.
const BITS: u32 = 30;

/// Debian's Busybox, which both have.
pub const BUSYBOX: &str = "/usr/bin/busybox";
/// The two halves of the split driver: the control domain's and the tenant's.
const BACKEND_MODULE: &str = "/usr/lib/perfctr/xen-netback.ko";
const FRONTEND_MODULE: &str = "/usr/lib/perfctr/xen-netfront.ko";
/// The tenant's device.
const DEVICE: &str = "eth0";
/// The script that Xen's tools run when the control domain's end of the device exists. They pass it
/// the name of that end.
const SCRIPT: &str = "/run/vif";
/// The port at which the tenant sends the list of its kernel's functions.
const FUNCTIONS_PORT: u16 = 81;
/// How long the tenant's device, or the tenant's answer, may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prepares the control domain's end, before the tenant is created. Returns the line that gives the
/// tenant its device, for its configuration.
///
/// # Errors
///
/// The kernel's, for its module or a file.
pub fn prepare() -> Result<String> {
    load_file(BACKEND_MODULE, c"")?;
    let script = format!(
        "#!/bin/sh\ntest \"$1\" = online || exit 0\n\
         {BUSYBOX} ip addr add {CONTROL}/{BITS} dev \"$vif\"\n\
         {BUSYBOX} ip link set \"$vif\" up\n\
         xenstore-write \"$XENBUS_PATH/hotplug-status\" connected\n"
    );
    fs::write(SCRIPT, script)?;
    fs::set_permissions(SCRIPT, fs::Permissions::from_mode(0o755))?;
    // An HVM domain would also get an emulated card.
    Ok(format!("vif = [\"type=vif,script={SCRIPT}\"]"))
}

/// Connects the tenant, which runs this.
///
/// # Errors
///
/// The kernel's, for its module, or there is no device.
pub fn connect() -> Result<()> {
    load_file(FRONTEND_MODULE, c"")?;
    let start = Instant::now();
    while !Path::new("/sys/class/net").join(DEVICE).exists() {
        ensure!(start.elapsed() < PATIENCE, "there is no {DEVICE}");
        sleep(Duration::from_millis(50));
    }
    let address = format!("{TENANT}/{BITS}");
    for words in
        [&["ip", "addr", "add", &address, "dev", DEVICE][..], &["ip", "link", "set", DEVICE, "up"]]
    {
        let status = Command::new(BUSYBOX).args(words).status().context(BUSYBOX)?;
        ensure!(status.success(), "{words:?}: {status}");
    }
    // The kernel's modules are in the list by now.
    offer(FUNCTIONS_PORT, fs::read("/proc/kallsyms")?)
}

/// Sends these contents to whoever connects to this port of the tenant, which runs this.
///
/// # Errors
///
/// The kernel's.
pub fn offer(port: u16, contents: Vec<u8>) -> Result<()> {
    let listener = TcpListener::bind((TENANT, port))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // If something is missing, the receiver notices it.
            let _ = stream.write_all(&contents);
        }
    });
    Ok(())
}

/// Returns the contents that the tenant offers at this port.
///
/// # Errors
///
/// The tenant does not answer.
pub fn fetch(port: u16) -> Result<Vec<u8>> {
    let start = Instant::now();
    loop {
        match TcpStream::connect((TENANT, port)) {
            Ok(mut stream) => {
                let mut contents = Vec::new();
                stream.read_to_end(&mut contents)?;
                return Ok(contents);
            }
            Err(error) if start.elapsed() > PATIENCE => return Err(error).context(TENANT),
            Err(_) => sleep(Duration::from_millis(200)),
        }
    }
}

/// Returns the list of the functions of the tenant's kernel, as its `/proc/kallsyms`.
///
/// # Errors
///
/// The tenant does not answer.
pub fn functions_of_tenant() -> Result<Vec<u8>> {
    let functions = fetch(FUNCTIONS_PORT)?;
    ensure!(functions.ends_with(b"\n"), "the list does not end: {}", functions.len());
    Ok(functions)
}
