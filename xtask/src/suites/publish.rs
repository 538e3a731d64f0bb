// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Packages the crates that are published, and uses them as those who get them from crates.io do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::suites::report::{Report, Volume};
use crate::tools::sh::{self, cmd};
use crate::tools::{cache, toolchain};

/// The crates that are published, each after those that it needs.
const CRATES: [&str; 6] = [
    "shared-abi",
    "libperfctr-rs",
    "perfctr-tracing",
    "perfctr-criterion",
    "perfctr-gate",
    "perfctr",
];
/// Those of them that are libraries, which state an earlier compiler than the workspace does.
const LIBRARIES: [&str; 5] =
    ["shared-abi", "libperfctr-rs", "perfctr-tracing", "perfctr-criterion", "perfctr-gate"];
/// The command's crate.
const COMMAND: &str = "perfctr";

/// The files that each package has, with a piece of their text.
const FILES: [(&str, &str); 4] = [
    ("README.md", "# "),
    ("LICENSE-MIT", "Permission is hereby granted"),
    ("LICENSE-GPL-2.0", "GNU GENERAL PUBLIC LICENSE"),
    ("Cargo.toml", "license = \"MIT OR GPL-2.0-only\""),
];

/// Boots nothing. The long tier also installs the command, builds the documentation, and builds the
/// libraries by the oldest compiler that they state.
pub fn run(report: &mut Report) -> Result<()> {
    let dir = cache::scratch("publish")?;
    cache::empty(&dir)?;
    let version = env!("CARGO_PKG_VERSION");
    let mut packages = Vec::new();
    report.test("each crate that is published can be packaged", || {
        packages = package(&dir, version)?;
        Ok(())
    });
    for package in &packages {
        let name = format!("{} has its licences and says what crates.io shows", package.name);
        report.test(&name, || package.complete());
    }
    if packages.len() != CRATES.len() || report.volume == Volume::Usual {
        return Ok(());
    }
    report.test("`cargo install` installs the command from its package", || {
        let command = packages.iter().find(|package| package.name == COMMAND);
        let command = command.context("the command is packaged")?;
        let prefix = dir.join("prefix");
        let mut install = cargo(&dir, &packages);
        install.args(["install", "--quiet", "--debug", "--path"]).arg(&command.dir);
        sh::run(install.arg("--root").arg(&prefix))?;
        let printed = sh::output(Command::new(prefix.join("bin/perfctr")).arg("--version"))?;
        ensure!(printed.trim() == format!("perfctr {version}"), "{printed}");
        let listed = sh::output(Command::new(prefix.join("bin/perfctr")).arg("list"))?;
        ensure!(listed.contains("instructions"), "{listed}");
        Ok(())
    });
    for package in packages.iter().filter(|package| LIBRARIES.contains(&package.name)) {
        report.test(
            &format!("{}'s documentation is built as docs.rs builds it", package.name),
            || {
                let mut doc = cargo(&dir, &packages);
                doc.args(["rustdoc", "--quiet", "--lib", "--all-features"]);
                doc.args(["--target", "x86_64-unknown-linux-gnu"]);
                doc.env("RUSTDOCFLAGS", "-D warnings").current_dir(&package.dir);
                sh::run(&mut doc)
            },
        );
    }
    report.test("the libraries are built by the compiler that they state", || {
        oldest(&dir, &packages)
    });
    Ok(())
}

/// A crate's package, unpacked.
struct Package {
    name: &'static str,
    dir: PathBuf,
}

/// Packages all crates together, and unpacks what crates.io would get.
fn package(dir: &Path, version: &str) -> Result<Vec<Package>> {
    let target = dir.join("packages");
    let mut package = toolchain::cargo();
    package.args(["package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir"]);
    package.arg(&target).args(CRATES.iter().flat_map(|name| ["--package", name]));
    sh::run(package.current_dir(sh::project()))?;
    CRATES
        .iter()
        .map(|name| {
            let archive = target.join(format!("package/{name}-{version}.crate"));
            sh::run(cmd("tar", ["-xzf"]).arg(archive).arg("-C").arg(dir))?;
            Ok(Package { name, dir: dir.join(format!("{name}-{version}")) })
        })
        .collect()
}

impl Package {
    fn complete(&self) -> Result<()> {
        for (file, text) in FILES {
            let found = fs::read_to_string(self.dir.join(file)).with_context(|| file.to_owned())?;
            ensure!(found.contains(text), "{file} does not have `{text}`");
        }
        let manifest = fs::read_to_string(self.dir.join("Cargo.toml"))?;
        let manifest: toml::Table = manifest.parse()?;
        let package = manifest.get("package").context("a package")?;
        for field in ["description", "keywords", "categories", "rust-version"] {
            ensure!(package.get(field).is_some(), "Cargo.toml has no {field}");
        }
        Ok(())
    }
}

/// Returns a cargo for which the packages are what crates.io has.
fn cargo(dir: &Path, packages: &[Package]) -> Command {
    let mut cargo = toolchain::cargo();
    for Package { name, dir } in packages.iter().filter(|package| package.name != COMMAND) {
        let path = toml::Value::from(dir.to_string_lossy().into_owned());
        cargo.arg("--config").arg(format!("patch.crates-io.{name}.path={path}"));
    }
    cargo.env("CARGO_TARGET_DIR", dir.join("target"));
    // This directory is not in this project's workspace, wherever the cache is.
    cargo.current_dir(dir);
    cargo
}

/// Builds the libraries with the earliest compiler that they promise.
fn oldest(dir: &Path, packages: &[Package]) -> Result<()> {
    for package in packages.iter().filter(|package| LIBRARIES.contains(&package.name)) {
        let manifest: toml::Table = fs::read_to_string(package.dir.join("Cargo.toml"))?.parse()?;
        let version = manifest.get("package").and_then(|package| package.get("rust-version"));
        let version = version.and_then(toml::Value::as_str).context("it states a compiler")?;
        sh::run(&mut cmd("rustup", ["toolchain", "install", version, "--profile", "minimal"]))?;
        let mut check = cargo(dir, packages);
        check.env("RUSTUP_TOOLCHAIN", version).env_remove("RUSTC");
        check.args(["check", "--quiet", "--lib", "--all-features"]).current_dir(&package.dir);
        sh::run(&mut check).with_context(|| format!("{} with Rust {version}", package.name))?;
    }
    Ok(())
}
