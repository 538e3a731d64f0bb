// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A disk of the tenant, which Xen's split driver connects with memory of the control domain.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vm_tests::module::load_file;

/// The tenant's device.
pub const DEVICE: &str = "/dev/xvda";
/// The disk in the control domain's memory. Its size is in KiB.
const MEMORY_MODULE: &str = "/usr/lib/perfctr/brd.ko";
const MEMORY_DISK: &str = "/dev/ram0";
/// The number of that device, as the split driver takes it: major and minor, in hexadecimal.
const MEMORY_NUMBER: &str = "1:0";
/// The two halves of the split driver: the control domain's and the tenant's.
const BACKEND_MODULE: &str = "/usr/lib/perfctr/xen-blkback.ko";
const FRONTEND_MODULE: &str = "/usr/lib/perfctr/xen-blkfront.ko";
/// The script that Xen's tools run to connect the control domain's end.
const SCRIPT: &str = "/run/vbd";
/// How long the tenant's device may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prepares the control domain's end, before the tenant is created. Returns the line that gives the
/// tenant its disk, for its configuration.
///
/// # Errors
///
/// The kernel's, for its modules or a file.
pub fn prepare() -> Result<String> {
    load_file(MEMORY_MODULE, c"rd_nr=1 rd_size=65536")?;
    load_file(BACKEND_MODULE, c"")?;
    let script = format!(
        "#!/bin/sh\ntest \"$1\" = add || exit 0\n\
         xenstore-write \"$XENBUS_PATH/physical-device\" {MEMORY_NUMBER}\n\
         xenstore-write \"$XENBUS_PATH/hotplug-status\" connected\n"
    );
    fs::write(SCRIPT, script)?;
    fs::set_permissions(SCRIPT, fs::Permissions::from_mode(0o755))?;
    Ok(format!(
        "disk = [\"format=raw, vdev=xvda, access=rw, backendtype=phy, script={SCRIPT}, \
         target={MEMORY_DISK}\"]"
    ))
}

/// Connects the tenant, which runs this.
///
/// # Errors
///
/// The kernel's, for its module, or there is no device.
pub fn connect() -> Result<()> {
    load_file(FRONTEND_MODULE, c"")?;
    let start = Instant::now();
    while !Path::new(DEVICE).exists() {
        ensure!(start.elapsed() < PATIENCE, "there is no {DEVICE}");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}
