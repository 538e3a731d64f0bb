// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds the project's Debian packages.
//!
//! Their files are built and staged here. `packaging/debian` describes the rest, which debhelper
//! does: which package has which files, the dependencies, and the scripts that run at installation.

mod changelog;
pub mod kvm;
pub mod licences;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::artefacts::c_library::Library;
use crate::artefacts::rustobj::Purpose;
use crate::artefacts::xen::{self, Flavour};
use crate::artefacts::{command, counts, debian, guest, papi, python, shim};
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::chroot::Chroot;
use crate::tools::sh::{self, cmd};

/// The project's version, which is also its packages'.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The command that makes packages of a staged tree.
const MAKE: [&str; 4] = ["dpkg-buildpackage", "-b", "-us", "-uc"];

/// The command that checks them. It refuses to run as root unless it is told to.
const LOOK: [&str; 8] = [
    "lintian",
    "--display-info",
    "--pedantic",
    "--tag-display-limit",
    "0",
    "--fail-on",
    "none",
    "--allow-root",
];

/// Debian's directory of libraries for this machine, below `/usr`.
const LIB: &str = "lib/x86_64-linux-gnu";

/// Debian's directory of Python's modules, below `/usr`.
const PYTHON: &str = "lib/python3/dist-packages";

/// The directory of PAPI's libraries that count through perfctr's, below Debian's directory of
/// libraries. Debian's own PAPI lies beside it.
const PAPI: &str = "perfctr-papi";

/// The package's file of the hypervisor. The boot menu lists files with such a name.
pub const HYPERVISOR: &str = "boot/xen-4.17-perfctr.gz";

/// The other files of the hypervisor's package: (in `packaging/xen`, below `/`).
const HYPERVISORS_FILES: [(&str, &str); 3] = [
    ("perfctr.cfg", "etc/default/grub.d/xen-perfctr.cfg"),
    ("domains", "etc/perfctr/xen-domains"),
    ("perfctr-xen-domains.service", "lib/systemd/system/perfctr-xen-domains.service"),
];

/// The rules that give the module's device to the group.
const UDEV_RULES: &str = "guest-kmod/udev/60-perfctr.rules";

/// The file that has the module loaded at boot.
const MODULES_LOAD: &str = "guest-kmod/modules-load/perfctr.conf";

/// The packages that were built.
pub struct Built {
    /// The packages' files.
    pub debs: Vec<PathBuf>,
    /// Each tag of lintian's that no override explains.
    pub tags: Vec<String>,
}

/// Builds every package of this source tree, as `version`, for the testbed's release, with those of
/// KVM for kernels of these versions of Linux.
pub fn build(version: &str, linux: &[&str]) -> Result<Built> {
    let kernels = kvm::kernels(linux)?;
    let _lock = cache::lock("dist")?;
    let work = cache::scratch("dist")?;
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    let tree = work.join(format!("perfctr-{version}"));
    stage(&tree.join("stage"), version)?;
    kvm::stage(&kernels, &tree.join("stage"))?;
    control(&tree.join("debian"), version)?;
    kvm::describe(&kernels, &tree.join("debian"))?;
    let key = Key::new("packages 1").text(version).path(&tree)?;
    let dir = cache::artefact("packages", key, |dir| {
        if apt::is_testbeds()? {
            make(&tree, version, dir)
        } else {
            make_there(&tree, version, dir)
        }
    })?;
    let mut debs: Vec<PathBuf> = cache::files(&dir)?.into_iter().map(|(_, path)| path).collect();
    debs.retain(|path| path.extension().is_some_and(|kind| kind == "deb"));
    let printed = fs::read_to_string(dir.join("lintian"))?;
    let tags = printed.lines().filter(|line| !line.starts_with("N:") && !is_chance(line));
    Ok(Built { debs, tags: tags.map(str::to_owned).collect() })
}

/// Returns whether one of lintian's tags is about letters that machine code contains by chance. No
/// override covers it, since lintian also reports an override that it does not need this time.
fn is_chance(tag: &str) -> bool {
    tag.contains(" spelling-error-in-binary ") && tag.ends_with("/perfctr_core.o_shipped]")
}

/// Makes packages of a staged tree in `dir`, and collects what lintian says of them.
fn make(tree: &Path, version: &str, dir: &Path) -> Result<()> {
    apt::install(debian::PACKAGING, "building packages")?;
    let mut build = cmd(MAKE[0], &MAKE[1..]);
    sh::logged(build.current_dir(tree), &cache::log("packages")?)?;
    for entry in fs::read_dir(tree.parent().context("a tree has a parent")?)? {
        let from = entry?.path();
        if from.is_file() {
            fs::copy(&from, dir.join(from.file_name().context("a file has a name")?))?;
        }
    }
    apt::install(&["lintian"], "looking at packages")?;
    let mut lintian = cmd(LOOK[0], &LOOK[1..]);
    let out = lintian.arg(dir.join(changes(version))).output()?;
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(out.status.success() && errors.is_empty(), "lintian: {}\n{errors}", out.status);
    Ok(fs::write(dir.join("lintian"), out.stdout)?)
}

/// Makes the packages in a system of the testbed's release, since a newer one's tools make packages
/// that need that newer release.
fn make_there(tree: &Path, version: &str, dir: &Path) -> Result<()> {
    let debian = Chroot::unpack(&debian::packager()?, &cache::scratch("packager")?)?;
    debian.put(&[tree], "build")?;
    debian.run(&format!("cd /build/perfctr-{version}; {}", MAKE.join(" ")))?;
    for file in debian.run("find /build -maxdepth 1 -type f")?.lines() {
        debian.get(file, &dir.join(Path::new(file).file_name().context("a file has a name")?))?;
    }
    let printed = debian.run(&format!("{} /build/{}", LOOK.join(" "), changes(version)))?;
    fs::write(dir.join("lintian"), printed)?;
    debian.remove()
}

/// Returns the name of the file that lists what was made.
fn changes(version: &str) -> String {
    format!("perfctr_{version}_amd64.changes")
}

/// Puts all files of the packages into `stage`, at the places that they will have below `/`.
fn stage(stage: &Path, version: &str) -> Result<()> {
    let usr = stage.join("usr");
    command::install(&usr)?;
    shim::stage(&usr, Path::new("/usr"), LIB)?;
    counts::LIBRARY.stage(&usr, Path::new("/usr"), LIB)?;
    papi::stage(&usr.join(LIB).join(PAPI))?;
    fs::write(stage.join("papi.patch"), papi::patch()?)?;
    python::unpack(&python::wheel(stage)?, &usr.join(PYTHON))?;
    let module = usr.join(format!("src/perfctr-{version}"));
    for (name, content) in guest::module_sources(Purpose::Use)? {
        write(&module.join(name), &content)?;
    }
    let at_boot = fs::read(sh::project().join(MODULES_LOAD))?;
    write(&usr.join("lib/modules-load.d/perfctr.conf"), &at_boot)?;
    fs::write(stage.join("crates.txt"), crates()?)?;
    hypervisor(stage)
}

/// Stages Xen, which is installed beside Debian's own, the option that switches the driver on, the
/// service that lets domains count, and the patch.
fn hypervisor(stage: &Path) -> Result<()> {
    let mut gzip = cmd("gzip", ["-9nc"]);
    let out = gzip.arg(xen::xen(Flavour::Perfctr, None)?).output()?;
    ensure!(out.status.success(), "gzip: {}", out.status);
    write(&stage.join(HYPERVISOR), &out.stdout)?;
    for (name, place) in HYPERVISORS_FILES {
        let content = fs::read(sh::project().join("packaging/xen").join(name))?;
        write(&stage.join(place), &content)?;
    }
    Ok(fs::write(stage.join("xen.patch"), xen::patch(None)?)?)
}

/// Makes the folder `debian` of the project's and of the files that are generated.
fn control(dir: &Path, version: &str) -> Result<()> {
    let project = sh::project();
    let ours = project.join("packaging/debian");
    for (name, from) in cache::files(&ours)? {
        let to = dir.join(name);
        fs::create_dir_all(to.parent().unwrap_or(dir))?;
        // The copy keeps the file's permissions, since one of them is executed.
        fs::copy(from, to)?;
    }
    fs::copy(project.join(UDEV_RULES), dir.join("perfctr.udev"))?;
    let changes = fs::read_to_string(project.join("CHANGELOG.md"))?;
    let packages = fs::read_to_string(ours.join("control"))?;
    let maintainer = packages.lines().find_map(|line| line.strip_prefix("Maintainer: "));
    let maintainer = maintainer.context("packaging/debian/control has no maintainer")?;
    let date = |day: &str| {
        sh::output(&mut cmd("date", ["-u", "-R", "-d", day])).map(|date| date.trim().to_owned())
    };
    let changelog = changelog::debian(&changes, version, maintainer, date)?;
    fs::write(dir.join("changelog"), changelog)?;
    symbols(dir, &shim::LIBRARY, "libperfctr6", "libperfctr-dev")?;
    symbols(dir, &counts::LIBRARY, "libperfctr-counts1", "libperfctr-counts-dev")?;
    Ok(())
}

/// Writes which version of a library's package has which symbols, for programs that are linked to
/// it.
fn symbols(dir: &Path, library: &Library, package: &str, development: &str) -> Result<()> {
    let mut text =
        format!("{} {package} #MINVER#\n* Build-Depends-Package: {development}\n", library.soname);
    for symbol in library.exports()? {
        text += &format!(" {symbol}@Base {VERSION}\n");
    }
    Ok(fs::write(dir.join(format!("{package}.symbols")), text)?)
}

/// Returns a text with the crates of others that are linked into programs, libraries and objects,
/// with their licences.
fn crates() -> Result<String> {
    let mut text = "Rust crates of others that are linked into these packages:\n\n".to_owned();
    for (name, licence) in licences::all()? {
        text += &format!("{name}: {licence}\n");
    }
    Ok(text)
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file lies in a directory")?)?;
    Ok(fs::write(path, content)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_letters_of_machine_code_are_chance() {
        let of =
            |file: &str| format!("I: perfctr-dkms: spelling-error-in-binary whE when [{file}]");
        assert!(is_chance(&of("usr/src/perfctr-0.1.0/perfctr_core.o_shipped")));
        assert!(!is_chance(&of("usr/bin/perfctr")));
        let other =
            "I: perfctr-dkms: no-manual-page [usr/src/perfctr-0.1.0/perfctr_core.o_shipped]";
        assert!(!is_chance(other));
    }
}
