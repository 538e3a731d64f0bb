// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds PAPI: it knows which version, and what that counts with.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::artefacts::{shim, sysroot};
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, hooks, overlay};

const PACKAGES: &[&str] = &["build-essential", "libc6-dev"];

/// The version of Debian 12, which is the last of Debian's that has a component for perfctr.
const PERFCTR: &str = "7.0.0";
/// The versions without that component. The newest that a later Debian has is taken.
const PERF_EVENT: &[&str] = &["7.2.", "7.1."];

/// The library that is preloaded for these versions.
const BY_NAME: &str = "by_name";

/// What PAPI counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Component {
    /// The C library with perfctr's interface.
    Perfctr,
    /// Linux's perf.
    #[value(name = "perf_event")]
    PerfEvent,
}

impl Component {
    /// Returns PAPI's name of the component.
    pub fn name(self) -> &'static str {
        match self {
            Self::Perfctr => "perfctr",
            Self::PerfEvent => "perf_event",
        }
    }

    fn source(self) -> Result<PathBuf> {
        match self {
            Self::Perfctr => apt::source("papi", PERFCTR),
            Self::PerfEvent => apt::unpatched("papi", PERF_EVENT),
        }
    }

    fn artefact(self) -> &'static str {
        match self {
            Self::Perfctr => "papi",
            Self::PerfEvent => "papi-perf",
        }
    }

    /// Returns the file that says what is inserted into its source.
    fn changes(self) -> Option<PathBuf> {
        (self == Self::Perfctr).then(|| sh::project().join("papi-shim/papi/hooks.toml"))
    }

    /// Returns the folder of the library with the CPUs' events.
    fn events(self) -> &'static str {
        match self {
            Self::Perfctr => "libpfm-3.y/lib",
            Self::PerfEvent => "libpfm4/lib",
        }
    }

    /// Returns the folders of its tests.
    fn tests(self) -> &'static [&'static str] {
        match self {
            Self::Perfctr => &["ctests"],
            Self::PerfEvent => &["ctests", "components/perf_event/tests"],
        }
    }

    fn configuration(self, prefix: &Path) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Perfctr => &["--with-perfctr"],
            Self::PerfEvent => &["--with-static-lib=no", "--with-libsde=no"],
        };
        let mut options = vec!["--with-shlib-tools".to_owned()];
        options.extend(words.iter().copied().map(str::to_owned));
        if self == Self::Perfctr {
            options.push(format!("--with-perfctr-prefix={}", prefix.display()));
        }
        options
    }

    /// Returns the targets that are made, one after the other.
    fn targets(self) -> &'static [&'static [&'static str]] {
        match self {
            // PAPI's own last step copies libraries with a command that no shell understands.
            Self::Perfctr => &[&["POST_BUILD="]],
            // PAPI's makefile does not say that it needs the library with the events first.
            Self::PerfEvent => {
                &[&["-C", "libpfm4", "lib"], &["ctests"], &["-C", "components/perf_event/tests"]]
            }
        }
    }
}

/// A PAPI that is built.
pub struct Papi {
    pub component: Component,
    /// Where the C library is installed.
    pub prefix: PathBuf,
    /// PAPI's libraries in `lib`, its headers in `include` and its tests in `ctests`.
    pub built: PathBuf,
}

impl Papi {
    /// Builds a PAPI with this component.
    pub fn new(component: Component) -> Result<Self> {
        let prefix = cache::root()?.join("papi-shim");
        if component == Component::Perfctr {
            fs::create_dir_all(&prefix)?;
            shim::install(&prefix)?;
        }
        let built = build(component, &prefix)?;
        Ok(Self { component, prefix, built })
    }

    /// Returns the libraries that its programs need, as directories or files.
    pub fn libraries(&self) -> Result<Vec<PathBuf>> {
        let mut libraries = vec![self.built.join("lib"), system_library("libgomp.so.1")?];
        if self.component == Component::Perfctr {
            libraries.push(self.prefix.join("lib").join(shim::LIBRARY.soname));
        }
        Ok(libraries)
    }

    /// Compiles a program of ours that uses PAPI.
    pub fn compile(&self, name: &str) -> Result<PathBuf> {
        self.own(name, name, &[])
    }

    /// Compiles the library that makes this PAPI's threads look up events one at a time, if they
    /// must.
    pub fn preloaded(&self) -> Result<Option<PathBuf>> {
        let compile = || self.own(BY_NAME, &format!("{BY_NAME}.so"), &["-shared", "-fPIC"]);
        (self.component == Component::PerfEvent).then(compile).transpose()
    }

    fn own(&self, source: &str, name: &str, flags: &[&str]) -> Result<PathBuf> {
        let program = cache::root()?.join("papi-own").join(self.component.name()).join(name);
        let libraries = cache::files(&self.built.join("lib"))?;
        let library = libraries.into_iter().find(|(name, _)| name.starts_with("libpapi.so."));
        let (_, library) = library.context("PAPI's build left no library")?;
        let needed = [self.prefix.join("lib"), self.built.join("lib")];
        let include = self.built.join("include");
        compile(&format!("{source}.c"), flags, &include, &library, &needed, &program)?;
        Ok(program)
    }
}

/// Puts the libraries of the PAPI that counts by perfctr's interface into `dir`.
pub fn stage(dir: &Path) -> Result<()> {
    let papi = Papi::new(Component::Perfctr)?;
    apt::install(&["patchelf"], "packaging PAPI")?;
    fs::create_dir_all(dir)?;
    for (name, library) in cache::files(&papi.built.join("lib"))? {
        let staged = dir.join(name);
        fs::copy(library, &staged)?;
        // PAPI makes its library look for other libraries where they were built.
        sh::output(cmd("patchelf", ["--set-rpath", "$ORIGIN"]).arg(&staged))?;
    }
    Ok(())
}

/// Returns what the project changes in the source of the PAPI that [`stage`] takes, as a patch.
pub fn patch() -> Result<String> {
    let component = Component::Perfctr;
    let (source, changes) = (component.source()?, component.changes().context("it has hooks")?);
    overlay::diff(&source, &hooks::apply(&source, &changes, PERFCTR)?)
}

/// Compiles a program of `papi-shim/papi`. `needed` are the directories of what its library needs.
pub fn compile(
    source: &str,
    flags: &[&str],
    include: &Path,
    library: &Path,
    needed: &[PathBuf],
    program: &Path,
) -> Result<()> {
    fs::create_dir_all(program.parent().unwrap_or(program))?;
    let mut gcc = cmd("gcc", ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    gcc.args(sysroot::options()?).args(flags).arg("-I").arg(include).arg("-o").arg(program);
    gcc.arg(sh::project().join("papi-shim/papi").join(source)).arg(library);
    gcc.env("LD_LIBRARY_PATH", std::env::join_paths(needed)?);
    sh::output(&mut gcc).map(drop)
}

/// Builds PAPI. Returns the directory with its programs, libraries and headers.
fn build(component: Component, prefix: &Path) -> Result<PathBuf> {
    let source = component.source()?;
    let (name, changes) = (component.artefact(), component.changes());
    let mut key = Key::new("papi 2").text(&source.to_string_lossy());
    if let Some(changes) = &changes {
        key = key.path(changes)?.path(&prefix.join("include"))?;
        key = key.path(&sh::project().join("papi-shim/exports.txt"))?;
    }
    cache::artefact(name, key, |dir| {
        apt::install(PACKAGES, "building PAPI")?;
        let work = cache::scratch(name)?;
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        let files = match &changes {
            Some(changes) => hooks::apply(&source, changes, PERFCTR)?,
            None => overlay::Files::new(),
        };
        overlay::apply(&source, &work, &files)?;
        let src = work.join("src");
        let log = cache::log(name)?;
        let compiler = compiler(&work)?;
        let mut configure = cmd("./configure", component.configuration(prefix));
        configure.args(&compiler);
        sh::logged(configure.current_dir(&src), &log)?;
        for words in component.targets() {
            let mut make = cmd("make", [&sh::jobs()]);
            // The linker looks in these directories for the libraries that PAPI's own library
            // needs.
            let libraries = [prefix.join("lib"), src.join(component.events())];
            make.args(*words)
                .args(&compiler)
                .env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
            sh::logged(make.current_dir(&src), &log)?;
        }
        take(component, &src, dir)
    })
}

/// Returns the compiler to use if this machine's is newer than that of PAPI's release. A newer
/// compiler reports errors for code about which an older one only warned. PAPI wants the compiler's
/// name to be one word.
fn compiler(work: &Path) -> Result<Option<String>> {
    let options = sysroot::options()?;
    if options.is_empty() {
        return Ok(None);
    }
    let script = work.join("cc");
    fs::write(&script, format!("#!/bin/sh\nexec gcc {} -fpermissive \"$@\"\n", options.join(" ")))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(Some(format!("CC={}", script.display())))
}

/// Copies programs, libraries and headers out of PAPI's build tree.
fn take(component: Component, src: &Path, dir: &Path) -> Result<()> {
    // A library is found by the name of its interface, which is a link.
    let is_library = |path: &Path, name: &str| path.is_symlink() && name.contains(".so.");
    let is_program = |path: &Path, name: &str| {
        let mode = path.metadata().map_or(0, |data| data.permissions().mode());
        path.is_file() && !name.contains('.') && mode & 0o111 != 0
    };
    let is_header = |_: &Path, name: &str| name.starts_with("papi") && name.ends_with(".h");
    copy(src, &dir.join("include"), is_header)?;
    for folder in [".", component.events()] {
        copy(&src.join(folder), &dir.join("lib"), is_library)?;
    }
    for folder in component.tests() {
        copy(&src.join(folder), &dir.join("ctests"), is_program)?;
    }
    Ok(())
}

/// Copies the files of a directory that `is_wanted` chooses by path and name.
fn copy(from: &Path, to: &Path, is_wanted: impl Fn(&Path, &str) -> bool) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_wanted(&path, &name) {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

/// Returns the path of a library of the compiler's run-time support.
fn system_library(name: &str) -> Result<PathBuf> {
    let mut gcc = cmd("gcc", sysroot::options()?);
    let path = sh::output(gcc.arg(format!("-print-file-name={name}")))?;
    Path::new(path.trim()).canonicalize().map(|path| path.with_file_name(name)).context("libgomp")
}
