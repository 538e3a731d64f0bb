// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Sampling: every overflow reaches its thread, whatever ends or storms meanwhile.

use std::fs;

use anyhow::{Result, ensure};

use crate::artefacts::guest;
use crate::machine::{self, Spec};
use crate::suites::report::{Report, all};
use crate::tools::{apt, cache, sh};

/// Overflows that the driver allows per vCPU and ms in the storm.  A ms of a machine whose time is
/// made of its instructions has 125,000 of them, and a sample costs some 12,000.
const STORM_RATE: &str = "5";
/// The same in a machine whose time is not.
const STORM_RATE_BUSY: &str = "0";

/// Four boots: with the driver's usual rate, with one vCPU, with a low rate, and to profile.
pub fn run(report: &mut Report) -> Result<()> {
    let both = "/work/overflow --ends; ended=$?; /work/overflow && exit $ended";
    let topology = report.topology;
    let mut spec = spec(topology, "cost", ["sh", "-c", both])?;
    spec.timeout *= 2;
    report.program(spec, "overflow")?;
    report.program(one_vcpu(topology)?, "overflow")?;
    report.program(storm(topology)?, "overflow")?;
    profiler(report)
}

fn spec<const N: usize>(topology: &str, options: &str, command: [&str; N]) -> Result<Spec> {
    let mut spec = Spec::new(topology, command)?.driver(options)?;
    spec.module_args = "cost=1".to_owned();
    Ok(spec)
}

/// More overflows than the driver allows, on all vCPUs.
fn storm(topology: &str) -> Result<Spec> {
    let rate = if is_nested(topology) { STORM_RATE_BUSY } else { STORM_RATE };
    let spec = spec(topology, &format!("cost,rate={rate}"), ["/work/overflow", "--storm", rate])?;
    Ok(if is_nested(topology) { spec } else { spec.deterministic() })
}

/// Without another vCPU, the kernel never waits with interrupts disabled; and on Intel's counters
/// as narrow and old as they may be.
fn one_vcpu(topology: &str) -> Result<Spec> {
    let command = ["/work/overflow", "--pending", "--rounds", "20"];
    let mut spec = spec(topology, "on", command)?;
    spec.vcpus(1)?;
    if is_nested(topology) {
        return Ok(spec);
    }
    spec.topology.cpu.push_str(",pmu-version=2,pmu-width=32");
    Ok(spec.deterministic())
}

/// A guest of a guest of the emulator's takes too long with one CPU whose time is made of its
/// instructions.
fn is_nested(topology: &str) -> bool {
    topology == "kvm"
}

/// The profiler finds the hot function of a program that knows nothing of it: Debian's bzip2.
fn profiler(report: &mut Report) -> Result<()> {
    apt::install(&["bzip2", "libbz2-1.0"], "a program to profile")?;
    let dir = cache::root()?.join("work/profiler");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("input"), words())?;
    sh::output(sh::cmd("bzip2", ["-kf"]).arg(dir.join("input")))?;
    let script = "LD_PRELOAD=/work/libprofiler.so bzip2 -dc input.bz2 > /dev/null";
    let mut spec = spec(report.topology, "on", ["sh", "-c", script])?;
    spec.copy.push(dir);
    let library = guest::library_example("libperfctr-rs", "profiler")?;
    spec.files.push((library, "/work/libprofiler.so".into()));
    for file in ["/usr/bin/bzip2", "/usr/lib/x86_64-linux-gnu/libbz2.so.1.0"] {
        spec.files.push((fs::canonicalize(file)?, file.into()));
    }
    let outcome = machine::run(&spec)?;
    report.test("the profiler finds the hot function of bzip2", || {
        // Two lines of heading, then the functions, most frequent first.
        let profile = String::from_utf8_lossy(&outcome.stderr);
        let hot = profile.lines().nth(2).is_some_and(|line| line.contains("BZ2_decompress"));
        ensure!(hot, "{}", all(&outcome));
        Ok(())
    });
    Ok(())
}

/// Something to compress: 400 KB of words that come again and again.
fn words() -> Vec<u8> {
    let word = |n: u32| format!("{:x} ", n.wrapping_mul(2_654_435_761) >> 12 & 0xfff_f0f);
    (0..70_000_u32).flat_map(|n| word(n % 3_001 * (n % 7 + 1)).into_bytes()).collect()
}
