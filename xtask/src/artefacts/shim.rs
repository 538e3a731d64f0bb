// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The C library as it is installed.
//!
//! PAPI takes the archive apart and puts its members into its own library, so the archive has one
//! member, with a name that is nobody else's, and only the interface's symbols are global in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::artefacts::guest;
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, cache};

/// The name of perfctr's own library, of which this one is the continuation.
const SHARED: &str = "libperfctr.so.6.2.6.42";
/// The name that programs ask for.
pub const SONAME: &str = "libperfctr.so.6";
/// The archive's only member.
const MEMBER: &str = "libperfctr_all.o";

/// Installs headers, libraries, pkg-config file and `perfex` below `prefix`.
pub fn install(prefix: &Path) -> Result<()> {
    apt::install(&["gcc", "libc6-dev", "binutils"], "linking the C library")?;
    let _lock = cache::lock("papi-shim")?;
    let built = guest::dynamic("papi-shim")?;
    let lib = prefix.join("lib");
    for dir in ["include", "lib/pkgconfig", "bin"] {
        fs::create_dir_all(prefix.join(dir))?;
    }
    for (name, path) in cache::files(&sh::project().join("papi-shim/include"))? {
        let place = prefix.join("include").join(name);
        fs::create_dir_all(place.parent().unwrap_or(prefix))?;
        fs::copy(path, place)?;
    }
    let shared = lib.join(SHARED);
    replace(&built.join("libperfctr_c.so"), &shared)?;
    sh::output(cmd("strip", ["--strip-unneeded"]).arg(&shared))?;
    check_exports(cmd("nm", ["-D", "--defined-only", "-j"]).arg(&shared))?;
    link(SHARED, &lib.join(SONAME))?;
    link(SONAME, &lib.join("libperfctr.so"))?;
    archive(&built.join("libperfctr_c.a"), &lib.join("libperfctr.a"))?;
    replace(&built.join("perfex"), &prefix.join("bin/perfex"))?;
    fs::write(lib.join("pkgconfig/perfctr.pc"), pkg_config(prefix))?;
    Ok(())
}

/// Copies a file, whose old version may be in use.
fn replace(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_file(to)?;
    }
    fs::copy(from, to)?;
    Ok(())
}

fn link(target: &str, name: &Path) -> Result<()> {
    if fs::symlink_metadata(name).is_ok() {
        fs::remove_file(name)?;
    }
    Ok(symlink(target, name)?)
}

/// The reviewed list of what the library gives to programs.
fn exports() -> Result<Vec<String>> {
    let text = fs::read_to_string(sh::project().join("papi-shim/exports.txt"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Compares what `nm` lists with the reviewed list.
fn check_exports(nm: &mut std::process::Command) -> Result<()> {
    let mut found: Vec<String> = sh::output(nm)?.lines().map(str::to_owned).collect();
    found.retain(|symbol| !symbol.is_empty() && !symbol.ends_with(':'));
    found.sort_unstable();
    let expected = exports()?;
    ensure!(
        found == expected,
        "the library's symbols are not those of papi-shim/exports.txt: {:?}",
        found
            .iter()
            .filter(|symbol| !expected.contains(symbol))
            .chain(expected.iter().filter(|symbol| !found.contains(symbol)))
            .collect::<Vec<_>>()
    );
    Ok(())
}

/// Links all that the interface needs of the built archive to one object.
fn archive(built: &Path, archive: &Path) -> Result<()> {
    let object = archive.with_file_name(MEMBER);
    let mut ld = cmd("ld", ["-r", "--gc-sections", "-o"]);
    ld.arg(&object);
    let mut objcopy = cmd("objcopy", ["--strip-debug", "-R", ".llvmbc", "-R", ".llvmcmd"]);
    for symbol in exports()? {
        ld.args(["-u", &symbol]);
        objcopy.arg(format!("--keep-global-symbol={symbol}"));
    }
    sh::output(ld.arg(built))?;
    sh::output(objcopy.arg(&object))?;
    if archive.exists() {
        fs::remove_file(archive)?;
    }
    sh::output(cmd("ar", ["rcs"]).arg(archive).arg(&object))?;
    fs::remove_file(object)?;
    check_exports(cmd("nm", ["--defined-only", "-g", "-j"]).arg(archive))
}

fn pkg_config(prefix: &Path) -> String {
    format!(
        "prefix={}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\n\
         Name: perfctr\n\
         Description: Hardware performance counters with perfctr's interface\n\
         Version: {}\n\
         Libs: -L${{libdir}} -lperfctr\n\
         Cflags: -I${{includedir}}\n",
        prefix.display(),
        env!("CARGO_PKG_VERSION"),
    )
}
