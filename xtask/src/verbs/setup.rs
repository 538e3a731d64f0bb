// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask setup` installs and builds everything that the other verbs would build when they
//! need it.

use anyhow::Result;

use crate::artefacts::rustobj::Purpose;
use crate::artefacts::{guest, kernel, qemu, rootfs, xen};
use crate::tools::cache;

/// Installs and builds everything, with `versions` for the other versions of Xen and Linux, too.
pub fn run(versions: bool) -> Result<()> {
    qemu::qemu()?;
    let kernel = kernel::kernel()?;
    rootfs::rootfs()?;
    guest::init()?;
    xen::xen(xen::Flavour::Stock, None)?;
    xen::xen(xen::Flavour::Perfctr, None)?;
    guest::module(&kernel, Purpose::Use)?;
    if versions {
        for release in xen::releases()? {
            xen::xen(xen::Flavour::Perfctr, Some(&release))?;
        }
        for version in kernel::versions()? {
            guest::module(&kernel::of(Some(&version))?, Purpose::Use)?;
        }
    }
    println!("ready; artefacts are in {}", cache::root()?.display());
    Ok(())
}
