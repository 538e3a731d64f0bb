// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds the hypervisor: Debian's Xen source package with the driver inside. An unmodified one
//! comes from Debian's own package.
//!
//! The driver's C files are put into a directory of their own, the Rust part comes as one object
//! beside them, and the places that call them are inserted by anchors (see
//! [`crate::tools::hooks`]).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::artefacts::glue::Glue;
use crate::artefacts::rustobj::{self, Purpose};
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::overlay::{self, Files};
use crate::tools::sh::{self, cmd};

/// The version in Debian 12, which is the usual one.
pub const UPSTREAM: &str = "4.17";

/// The packages that build it.
pub const PACKAGES: &[&str] = &["build-essential", "bison", "flex", "python3", "bc"];

/// The packages that compile a security policy.
const POLICY_PACKAGES: &[&str] = &["checkpolicy", "m4"];

/// The file with Xen's options, which is empty in its sources, and those that switch FLASK on with
/// the policy of Xen's authors.
const OPTIONS: &str = "xen/arch/x86/configs/x86_64_defconfig";
const WITH_FLASK: &str = "CONFIG_XSM=y\nCONFIG_XSM_FLASK_POLICY=y\n";

/// The file of that policy that lets domains use the PMU, whom it lets do so, and whom our policy
/// does.
const POLICY: &str = "tools/flask/policy/modules/guest_features.te";
const ALL_DOMAINS: &str = "allow domain_type xen_t:xen2 pmu_use;";
const SOME_DOMAINS: &str = "allow { domain_type -isolated_domU_t } xen_t:xen2 pmu_use;";

const GLUE: Glue = Glue { host: "xen", dir: "xen/arch/x86/perfctr" };

/// The builds of Xen.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// Xen as Debian ships it.
    Stock,
    /// With the driver.
    Perfctr,
    /// With the driver built for fuzzing: driver and module report which of their code is executed.
    Fuzzing,
    /// With the driver, and with Xen's security module FLASK. Its policy denies the PMU to domains
    /// of the type `isolated_domU_t`.
    Flask,
}

impl Flavour {
    /// Returns what the project's code in it is built for.
    pub fn purpose(self) -> Purpose {
        if self == Self::Fuzzing { Purpose::Fuzzing } else { Purpose::Use }
    }
}

/// Returns the releases whose sources get lines inserted.
pub fn releases() -> Result<Vec<String>> {
    GLUE.releases()
}

/// Gets the source of a release, and returns its version and directory. For a later release this is
/// the source of Xen's authors in Debian's package, since Debian does not change the hypervisor.
fn source(release: Option<&str>) -> Result<(&str, PathBuf)> {
    Ok(match release {
        None | Some(UPSTREAM) => (UPSTREAM, apt::source("xen", UPSTREAM)?),
        Some(later) => (later, apt::unpatched("xen", &[later])?),
    })
}

/// Returns the files of Debian's source package of the usual release.
pub fn debian_source() -> Result<Vec<PathBuf>> {
    let (_, tree) = source(None)?;
    let dir = tree.parent().context("a source is unpacked beside its package")?;
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        files.push(entry?.path());
    }
    files.retain(|path| path.is_file());
    ensure!(!files.is_empty(), "{} has no source package", dir.display());
    Ok(files)
}

/// Returns the bootable hypervisor, of the usual release or of another one.
pub fn xen(flavour: Flavour, release: Option<&str>) -> Result<PathBuf> {
    let (version, source) = source(release)?;
    if flavour == Flavour::Stock && version == UPSTREAM {
        return packaged(&source);
    }
    let (name, files) = match flavour {
        Flavour::Stock => ("xen-stock", Files::new()),
        Flavour::Perfctr => ("xen-perfctr", driver(&source, version, Purpose::Use)?),
        Flavour::Fuzzing => ("xen-fuzzing", driver(&source, version, Purpose::Fuzzing)?),
        Flavour::Flask => ("xen-flask", guarded(&source, version)?),
    };
    let later = if version == UPSTREAM { String::new() } else { format!("-{version}") };
    let name = &format!("{name}{later}");
    let mut key = Key::new("xen 1").text(&source.to_string_lossy());
    for (path, content) in &files {
        key = key.text(path).bytes(content);
    }
    let dir = cache::artefact(name, key, |dir| {
        apt::install(PACKAGES, "building Xen")?;
        let is_guarded = flavour == Flavour::Flask;
        if is_guarded {
            apt::install(POLICY_PACKAGES, "building Xen's security policy")?;
        }
        // The other flavours share a tree, since they differ in few objects.
        let tree = format!("xen{}-{version}", if is_guarded { "-flask" } else { "" });
        let _lock = cache::lock(&tree)?;
        let work = cache::scratch(&tree)?;
        overlay::apply(&source, &work, &files)?;
        let mut make = cmd("make", ["-C", "xen", &sh::jobs(), "debug=n"]);
        sh::logged(make.current_dir(&work), &cache::log(name)?)?;
        for file in ["xen", "xen-syms"] {
            fs::copy(work.join("xen").join(file), dir.join(file)).with_context(|| file)?;
        }
        Ok(())
    })?;
    Ok(dir.join("xen"))
}

/// Takes Debian's own build of this source out of its package.
fn packaged(source: &Path) -> Result<PathBuf> {
    let key = Key::new("xen-debian 1").text(&source.to_string_lossy());
    let dir = cache::artefact("xen-debian", key, |dir| {
        apt::unpack(&apt::fetch(&[&format!("xen-hypervisor-{UPSTREAM}-amd64")], false, dir)?, dir)?;
        let image = dir.join(format!("boot/xen-{UPSTREAM}-amd64.gz"));
        let mut gzip = cmd("sh", ["-c", "gzip -dc \"$1\" > \"$2\"", "sh"]);
        sh::output(gzip.arg(image).arg(dir.join("xen"))).map(drop)
    })?;
    Ok(dir.join("xen"))
}

/// Returns the project's changes to the source of a release of Xen, the usual or another, as a
/// patch.
pub fn patch(release: Option<&str>) -> Result<String> {
    let (version, source) = source(release)?;
    GLUE.patch(&source, version)
}

/// Returns every file of Xen's tree that differs where FLASK guards the driver.
fn guarded(source: &Path, version: &str) -> Result<Files> {
    let mut files = driver(source, version, Purpose::Use)?;
    let policy = fs::read_to_string(source.join(POLICY)).context(POLICY)?;
    ensure!(policy.contains(ALL_DOMAINS), "{POLICY} lacks `{ALL_DOMAINS}`");
    let policy = policy.replace(ALL_DOMAINS, SOME_DOMAINS);
    files.insert(POLICY.to_owned(), policy.into_bytes());
    files.insert(OPTIONS.to_owned(), WITH_FLASK.as_bytes().to_vec());
    Ok(files)
}

/// Returns every file of Xen's tree that the driver adds or changes.
fn driver(source: &Path, version: &str, purpose: Purpose) -> Result<Files> {
    let (mut files, dir) = (GLUE.files()?, GLUE.dir);
    files.insert(format!("{dir}/perfctr_core.o"), fs::read(rustobj::hypervisor(purpose)?)?);
    files.extend(GLUE.insertions(source, version)?);
    if purpose == Purpose::Fuzzing {
        let fuzzing = sh::project().join("tests/fuzz/coverage");
        files.insert(format!("{dir}/coverage.c"), fs::read(fuzzing.join("xen.c"))?);
        let makefile = files.entry(format!("{dir}/Makefile")).or_default();
        makefile.extend(fs::read(fuzzing.join("xen.mk"))?);
    }
    Ok(files)
}
