// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask setup`: everything that the other verbs would build when they need it.

use anyhow::Result;

use crate::artefacts::rustobj::Purpose;
use crate::artefacts::{guest, kernel, qemu, rootfs, xen};
use crate::tools::cache;

/// Installs and builds.
pub fn run() -> Result<()> {
    qemu::qemu()?;
    let kernel = kernel::kernel()?;
    rootfs::rootfs(&kernel)?;
    guest::init()?;
    xen::xen(xen::Flavour::Stock)?;
    xen::xen(xen::Flavour::Perfctr)?;
    guest::module(&kernel, Purpose::Use)?;
    println!("ready; artefacts are in {}", cache::root()?.display());
    Ok(())
}
