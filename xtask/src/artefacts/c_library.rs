// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Installs the project's libraries for C.
//!
//! PAPI unpacks an archive and puts its members into its own library. So each archive has one
//! member, whose name no other library's member has, and in which only the interface's symbols are
//! global.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::artefacts::guest;
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, cache};

/// A library for C that is made of a Rust crate.
pub struct Library {
    /// The crate.
    pub package: &'static str,
    /// The name of its library in the build tree.
    pub built: &'static str,
    /// The crate's folder in the project, with the folder `include` and the reviewed list
    /// `exports.txt`.
    pub folder: &'static str,
    /// The name that programs are linked with: `-lNAME`.
    pub name: &'static str,
    /// The name that programs ask the dynamic linker for.
    pub soname: &'static str,
    /// The version that ends the name of the library's own file, and that pkg-config tells.
    pub version: &'static str,
    /// The name and description of the pkg-config file.
    pub pkg_config: (&'static str, &'static str),
}

impl Library {
    /// Builds the library, and installs headers, libraries and pkg-config file below `prefix`,
    /// which is created if it does not exist. Returns the directory with everything that the crate
    /// has built.
    pub fn install(&self, prefix: &Path) -> Result<PathBuf> {
        fs::create_dir_all(prefix)?;
        // The pkg-config file contains the whole path.
        let prefix = prefix.canonicalize()?;
        let (shared, built) = self.stage(&prefix, &prefix, "lib")?;
        sh::output(cmd("strip", ["--strip-unneeded"]).arg(shared))?;
        Ok(built)
    }

    /// Returns the shared library that is installed below `prefix`, and where a guest's programs
    /// find it.
    pub fn in_guest(&self, prefix: &Path) -> (PathBuf, String) {
        (prefix.join("lib").join(self.soname), format!("/usr/lib/{}", self.soname))
    }

    /// Puts files below `tree` that will be used below `prefix`, with libraries in its directory
    /// `lib` and nothing stripped. Returns the shared library, and the directory with everything
    /// that the crate has built.
    pub fn stage(&self, tree: &Path, prefix: &Path, lib: &str) -> Result<(PathBuf, PathBuf)> {
        apt::install(&["gcc", "libc6-dev", "binutils"], "linking the C library")?;
        let _lock = cache::lock(self.package)?;
        let built = guest::dynamic(self.package, "")?;
        let libraries = tree.join(lib);
        fs::create_dir_all(libraries.join("pkgconfig"))?;
        for (name, path) in cache::files(&self.folder().join("include"))? {
            let place = tree.join("include").join(name);
            fs::create_dir_all(place.parent().unwrap_or(tree))?;
            fs::copy(path, place)?;
        }
        let shared = format!("{}.{}", self.soname, self.version);
        link(&shared, &libraries.join(self.soname))?;
        link(self.soname, &libraries.join(format!("lib{}.so", self.name)))?;
        let shared = libraries.join(shared);
        replace(&built.join(format!("lib{}.so", self.built)), &shared)?;
        self.check_exports(cmd("nm", ["-D", "--defined-only", "-j"]).arg(&shared))?;
        self.archive(&built.join(format!("lib{}.a", self.built)), &libraries)?;
        let (name, _) = self.pkg_config;
        let text = self.pkg_config_file(prefix, lib);
        fs::write(libraries.join(format!("pkgconfig/{name}.pc")), text)?;
        Ok((shared, built))
    }

    fn folder(&self) -> PathBuf {
        sh::project().join(self.folder)
    }

    /// Reads the reviewed list of the symbols that the library gives to programs.
    pub fn exports(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(self.folder().join("exports.txt"))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Compares what `nm` lists with the reviewed list.
    fn check_exports(&self, nm: &mut Command) -> Result<()> {
        let mut found: Vec<String> = sh::output(nm)?.lines().map(str::to_owned).collect();
        found.retain(|symbol| !symbol.is_empty() && !symbol.ends_with(':'));
        found.sort_unstable();
        let expected = self.exports()?;
        ensure!(
            found == expected,
            "the library's symbols are not those of {}/exports.txt: {:?}",
            self.folder,
            found
                .iter()
                .filter(|symbol| !expected.contains(symbol))
                .chain(expected.iter().filter(|symbol| !found.contains(symbol)))
                .collect::<Vec<_>>()
        );
        Ok(())
    }

    /// Links all parts of the built archive that the interface needs into one object, and makes an
    /// archive of it.
    fn archive(&self, built: &Path, libraries: &Path) -> Result<()> {
        let archive = libraries.join(format!("lib{}.a", self.name));
        let object = libraries.join(format!("lib{}_all.o", self.name));
        let mut ld = cmd("ld", ["-r", "--gc-sections", "-o"]);
        ld.arg(&object);
        let mut objcopy = cmd("objcopy", ["--strip-debug", "-R", ".llvmbc", "-R", ".llvmcmd"]);
        for symbol in self.exports()? {
            ld.args(["-u", &symbol]);
            objcopy.arg(format!("--keep-global-symbol={symbol}"));
        }
        sh::output(ld.arg(built))?;
        sh::output(objcopy.arg(&object))?;
        if archive.exists() {
            fs::remove_file(&archive)?;
        }
        sh::output(cmd("ar", ["rcs"]).arg(&archive).arg(&object))?;
        fs::remove_file(object)?;
        self.check_exports(cmd("nm", ["--defined-only", "-g", "-j"]).arg(archive))
    }

    fn pkg_config_file(&self, prefix: &Path, lib: &str) -> String {
        let (name, description) = self.pkg_config;
        format!(
            "prefix={}\n\
             libdir=${{prefix}}/{lib}\n\
             includedir=${{prefix}}/include\n\n\
             Name: {name}\n\
             Description: {description}\n\
             Version: {}\n\
             Libs: -L${{libdir}} -l{}\n\
             Libs.private: -lpthread -lm -ldl\n\
             Cflags: -I${{includedir}}\n",
            prefix.display(),
            self.version,
            self.name,
        )
    }
}

/// Copies a file in place of an old version that may be in use.
pub fn replace(from: &Path, to: &Path) -> Result<()> {
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
