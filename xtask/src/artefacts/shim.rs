// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds and installs the C library.
//!
//! PAPI takes the archive apart and puts its members into its own library, so the archive has one
//! member, with a name that no other library's member has, and only the interface's symbols are
//! global in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::artefacts::guest;
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, cache};

/// The version of perfctr's own library, which this one continues.
const VERSION: &str = "2.6.42";
/// The library's name that programs ask the dynamic linker for.
pub const SONAME: &str = "libperfctr.so.6";
/// The archive's only member.
const MEMBER: &str = "libperfctr_all.o";

/// Installs headers, libraries, pkg-config file and `perfex` below `prefix`.
pub fn install(prefix: &Path) -> Result<()> {
    let shared = stage(prefix, prefix, "lib")?;
    sh::output(cmd("strip", ["--strip-unneeded"]).arg(shared)).map(drop)
}

/// Puts files below `tree` that will be used below `prefix`, with libraries in its directory `lib`
/// and nothing stripped. Returns the shared library.
pub fn stage(tree: &Path, prefix: &Path, lib: &str) -> Result<PathBuf> {
    apt::install(&["gcc", "libc6-dev", "binutils"], "linking the C library")?;
    let _lock = cache::lock("papi-shim")?;
    let built = guest::dynamic("papi-shim", "")?;
    let libraries = tree.join(lib);
    for dir in [libraries.join("pkgconfig"), tree.join("bin")] {
        fs::create_dir_all(dir)?;
    }
    for (name, path) in cache::files(&sh::project().join("papi-shim/include"))? {
        let place = tree.join("include").join(name);
        fs::create_dir_all(place.parent().unwrap_or(tree))?;
        fs::copy(path, place)?;
    }
    let shared = format!("{SONAME}.{VERSION}");
    link(&shared, &libraries.join(SONAME))?;
    link(SONAME, &libraries.join("libperfctr.so"))?;
    let shared = libraries.join(shared);
    replace(&built.join("libperfctr_c.so"), &shared)?;
    check_exports(cmd("nm", ["-D", "--defined-only", "-j"]).arg(&shared))?;
    archive(&built.join("libperfctr_c.a"), &libraries.join("libperfctr.a"))?;
    replace(&built.join("perfex"), &tree.join("bin/perfex"))?;
    fs::write(libraries.join("pkgconfig/perfctr.pc"), pkg_config(prefix, lib))?;
    Ok(shared)
}

/// Copies a file in place of an old version that may be in use.
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

/// Reads the reviewed list of the symbols that the library gives to programs.
pub fn exports() -> Result<Vec<String>> {
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

/// Links all parts of the built archive that the interface needs into one object.
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

/// Returns the text of the pkg-config file. The version is perfctr's, since programs ask for that.
fn pkg_config(prefix: &Path, lib: &str) -> String {
    format!(
        "prefix={}\n\
         libdir=${{prefix}}/{lib}\n\
         includedir=${{prefix}}/include\n\n\
         Name: perfctr\n\
         Description: Hardware performance counters with perfctr's interface\n\
         Version: {VERSION}\n\
         Libs: -L${{libdir}} -lperfctr\n\
         Libs.private: -lpthread -lm -ldl\n\
         Cflags: -I${{includedir}}\n",
        prefix.display(),
    )
}
