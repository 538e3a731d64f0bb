// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures the cost of a reading: by PAPI on this project's counters, by PAPI on Linux's perf
//! events, and by the C library with perfctr's interface.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::artefacts::papi::{Papi, compile};
use crate::artefacts::shim;
use crate::machine::{self, Spec, Status};
use crate::tools::apt;
use crate::tools::cache::{self, Key};

/// Debian's PAPI, which counts through perf events.
const PACKAGES: &[&str] = &["libpapi7.0", "libpfm4"];

/// Prints a table of the instructions in user mode, and in user and kernel mode together.
pub fn print(papi: &Papi) -> Result<()> {
    let with_papi = papi.compile("cost")?;
    let with_perfctr = with_papi.with_file_name("cost-perfctr");
    let (include, lib) = (papi.prefix.join("include"), papi.prefix.join("lib"));
    let library = lib.join("libperfctr.so");
    compile("cost.c", &["-DPERFCTR"], &include, &library, &[], &with_perfctr)?;

    let ours = papi.built.join("lib");
    let soname = lib.join(shim::LIBRARY.soname);
    println!("instructions for one reading           user    user and kernel");
    measure("perfctr on Xen", "pv", &with_perfctr, &[&soname])?;
    measure("perfctr on Xen", "pv", &with_papi, &[&ours, &soname])?;
    measure("perf_event on Linux alone", "native", &with_papi, &[&debian()?])
}

/// Returns the directory with the libraries of Debian's PAPI.
fn debian() -> Result<PathBuf> {
    let key = Key::new("papi-debian 1").text(&PACKAGES.join(" "));
    let dir = cache::artefact("papi-debian", key, |dir| {
        let debs = apt::fetch(PACKAGES, false, dir)?;
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        apt::unpack(&debs, &tree)
    })?;
    Ok(dir.join("tree/usr/lib/x86_64-linux-gnu"))
}

/// Runs the program on a machine; `libraries` are files, or directories of files.
fn measure(what: &str, topology: &str, program: &Path, libraries: &[&Path]) -> Result<()> {
    // With Debian's setting (3) PAPI assumes that even root may not use perf events.
    let script =
        "echo -1 >/proc/sys/kernel/perf_event_paranoid; LD_LIBRARY_PATH=/work/lib /work/cost";
    let mut spec = Spec::new(topology, ["sh", "-c", script])?;
    spec.module = topology == "pv";
    if spec.module {
        spec = spec.driver("events=all")?;
    }
    spec.files.push((program.to_owned(), "/work/cost".into()));
    for library in libraries {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        let place = if library.is_dir() { "/work/lib".into() } else { format!("/work/lib/{name}") };
        spec.files.push(((*library).to_owned(), place));
    }
    let outcome = machine::run(&spec)?;
    let error = String::from_utf8_lossy(&outcome.stderr).into_owned();
    ensure!(outcome.status == Status::Exited(0), "{what}: {:?} {error}", outcome.status);
    print!("{what:<27}{}", String::from_utf8_lossy(&outcome.stdout));
    Ok(())
}
