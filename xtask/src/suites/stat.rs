// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the command `perfctr`, on a hypervisor with the driver, and where Linux counts alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::artefacts::{guest, pprof};
use crate::machine::Spec;
use crate::suites::report::{Report, Volume};
use crate::suites::{browser, export, readme};
use crate::tools::apt;
use crate::tools::cache;
use crate::tools::sh;

/// Boots two machines, and one more in the long tier.
pub fn run(report: &mut Report) -> Result<()> {
    for (topology, provider) in [("native", "native"), ("pv", "paravirt")] {
        let mut spec = spec(topology, provider)?;
        spec.module = provider == "paravirt";
        let out = cache::scratch("stat-out")?.join(provider);
        spec.keep_out(&out)?;
        if provider == "paravirt" {
            readme::prepare(&mut spec)?;
        }
        report.program(spec, "stat")?;
        if provider == "paravirt" {
            report.test("README begins with what the commands print", || readme::compare(&out));
        }
        report.test(&format!("pprof reads what was recorded with {provider}"), || {
            read_by_pprof(&out)
        });
        if report.volume == Volume::Long {
            report.test(&format!("Chromium draws what was recorded with {provider}"), || {
                browser::opens(&out.join("report.svg"), &format!("stat-{provider}")).map(drop)
            });
        }
    }
    if report.volume == Volume::Long { export::run(report) } else { Ok(()) }
}

fn spec(topology: &str, provider: &str) -> Result<Spec> {
    let mut spec = Spec::new(topology, ["/work/stat", provider])?;
    spec.timeout *= 2;
    spec.add_program("perfctr", "perfctr")?;
    spec.files.push((guest::beside_stat("alone.S", &[])?, "/work/alone".to_owned()));
    spec.files.push(guest::frames()?);
    apt::install(&["xz-utils", "liblzma5"], "a program with threads to record")?;
    for file in ["/usr/bin/xz", "/usr/lib/x86_64-linux-gnu/liblzma.so.5"] {
        spec.files.push((fs::canonicalize(file)?, file.into()));
    }
    Ok(spec)
}

/// Checks that Go's pprof finds the same functions with as many samples as our own text.
fn read_by_pprof(out: &Path) -> Result<()> {
    let mut pprof = Command::new(pprof::pprof()?);
    pprof
        .args(["-top", "-noinlines", "-nodecount=1000", "-sample_index=samples"])
        .arg(out.join("report.pprof"));
    let read = sh::output(&mut pprof)?;
    let (theirs, ours) = (flat(&read), flat(&fs::read_to_string(out.join("report.txt"))?));
    ensure!(!ours.is_empty() && theirs == ours, "{theirs:?} read, {ours:?} written\n{read}");
    Ok(())
}

/// Returns functions and their own samples from a table. Its first column is the samples, and its
/// last one is the function. Functions that only call others have no samples of their own.
fn flat(table: &str) -> BTreeMap<String, u64> {
    let heading = |line: &&str| line.ends_with("cum%") || line.ends_with("symbol");
    let mut functions = BTreeMap::new();
    for line in table.lines().skip_while(|line| !heading(line)).skip(1) {
        let mut words = line.split_whitespace();
        let samples = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        if let (Some(function), 1..) = (words.last(), samples) {
            *functions.entry(function.to_owned()).or_default() += samples;
        }
    }
    functions
}
