// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the files of a release beside the packages: sources from which anybody can build the
//! packages.

use std::fs;

use anyhow::{Result, ensure};

use crate::artefacts::packages::VERSION;
use crate::artefacts::rustobj::{self, Purpose};
use crate::artefacts::{debian, source, xen};
use crate::suites::report::Report;
use crate::tools::cache;
use crate::tools::chroot::Chroot;

/// The directory in the system that builds with Debian's sources of Xen, in the form of a mirror.
const MIRROR: &str = "/srv/mirror";

/// A script that makes a mirror of the files in its pool, and makes apt use only this one.
const MAKE_MIRROR: &str = "
cd /srv/mirror
mkdir -p dists/bookworm/main/source dists/bookworm/main/binary-amd64
dpkg-scansources pool > dists/bookworm/main/source/Sources 2> /dev/null
: > dists/bookworm/main/binary-amd64/Packages
rm -f /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/srv/mirror bookworm main' > /etc/apt/sources.list
";

/// Runs the tests, which are for the long tier.
pub fn run(report: &mut Report) -> Result<()> {
    report.test("a copy of the sources elsewhere gives the same Rust objects", same_objects);
    report.test("the archive of the sources is the same when it is made again", same_archive);
    report.test("it is built without a network, by Debian's packages alone", offline);
    Ok(())
}

/// Builds the objects in another directory, where nothing was built before. They must be the same,
/// byte by byte.
fn same_objects() -> Result<()> {
    let copy = cache::scratch("copy")?;
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    source::copy(&copy)?;
    let here = [rustobj::hypervisor(Purpose::Use)?, rustobj::module(Purpose::Use)?];
    let there =
        [rustobj::hypervisor_of(&copy, Purpose::Use)?, rustobj::module_of(&copy, Purpose::Use)?];
    for (here, there) in here.iter().zip(&there) {
        ensure!(fs::read(here)? == fs::read(there)?, "{} differs", there.display());
    }
    Ok(fs::remove_dir_all(copy)?)
}

/// Makes the archive twice. Both must be the same, byte by byte.
fn same_archive() -> Result<()> {
    let dir = cache::scratch("release")?;
    let made = [source::archive(&dir)?, source::archive(&dir.join("again"))?];
    ensure!(fs::read(&made[0])? == fs::read(&made[1])?, "{} differs", made[1].display());
    Ok(fs::remove_dir_all(dir)?)
}

/// Builds the packages from the archive, in a Debian that has their build dependencies and no
/// network.
fn offline() -> Result<()> {
    let work = cache::scratch("offline")?;
    let _lock = cache::lock("offline-test")?;
    let archive = source::archive(&cache::root()?.join("work"))?;
    let debian = Chroot::unpack(&debian::builder()?, &work)?;
    debian.put(&[&archive], "srv/source")?;
    debian.put(&xen::debian_source()?, &format!("{MIRROR}/pool"))?;
    debian.run(MAKE_MIRROR)?;
    let printed = debian.run(&format!(
        "export HOME=/root; ! command -v rustup; cd /srv/source; tar -xf *.tar.xz; \
         cd perfctr-{VERSION}; cargo xtask dist --kvm="
    ))?;
    for package in super::PACKAGES.iter().chain(&[super::kvm::HOSTS]) {
        let deb = format!("target/dist/{package}_{VERSION}_");
        ensure!(printed.lines().any(|line| line.contains(&deb)), "no {deb}*.deb\n{printed}");
    }
    ensure!(printed.contains("\nlintian: nothing that"), "{printed}");
    fs::remove_file(archive)?;
    debian.remove()
}
