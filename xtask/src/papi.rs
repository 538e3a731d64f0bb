// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask papi`: PAPI's own tests, in the guest, on the project's counters.
//!
//! PAPI 7.0.0 is built from Debian's source package against the installed C library, with one line
//! inserted that its perfctr component needs to start. Its test programs are linked to shared
//! libraries, so a change in the C library needs no new PAPI.

mod cost;
mod verdict;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use self::verdict::{Verdict, verdict};
use crate::cache::{self, Key};
use crate::sh::{self, cmd};
use crate::vm::{self, Spec};
use crate::{apt, hooks, overlay, shim};

/// The version of Debian 12.
const UPSTREAM: &str = "7.0.0";
const PACKAGES: &[&str] = &["build-essential", "libc6-dev"];

/// How long one test may run: some compute for minutes, and emulation on a busy machine is slow.
/// In seconds.
const TEST_SECONDS: u64 = 3_000;
/// How long all tests of a group may run.
const GROUP_TIMEOUT: Duration = Duration::from_secs(7_200);

/// Programs that want the CPUs as much as the test does, in groups whose counts must be exact: host
/// and guest then preempt and migrate what is counted.
const LOAD: &str = "6";

/// PAPI's tests, by what they exercise. Each group is one boot.
const GROUPS: &[(&str, &str)] = &[
    (EXACT, "zero zero_pthreads zero_fork overflow_pthreads"),
    (
        "counting",
        "zero_named zero_flip zero_smp first second tenth branches calibrate case1 case2 derived \
         describe johnmay2 low-level memory mendes-alt remove_events reset all_events \
         all_native_events serial_hl",
    ),
    (
        "threads",
        "zero_omp kufrin thrspecific clockres_pthreads locks_pthreads pthread_hl omp_hl pthrtough \
         pthrtough2 omptough",
    ),
    ("fork and exec", "fork fork2 exec exec2 forkexec forkexec2 forkexec3 forkexec4"),
    ("attach", "zero_attach attach2 attach3 attach_validate multiattach multiattach2"),
    (
        "software multiplex",
        "multiplex1 multiplex2 multiplex1_pthreads multiplex3_pthreads sdsc-mpx sdsc2-mpx \
         sdsc2-mpx-noreset sdsc4-mpx reset_multiplex max_multiplex",
    ),
    (
        "overflow",
        "overflow overflow2 overflow_single_event overflow_one_and_read overflow_twoevents \
         overflow_index overflow_allcounters overflow_force_software overflow3_pthreads \
         krentel_pthreads profile profile_twoevents profile_pthreads sprofile byte_profile \
         child_overflow exec_overflow fork_overflow system_overflow system_child_overflow",
    ),
    (
        "not in the component",
        "attach_cpu attach_cpu_validate attach_cpu_sys_validate data_range earprofile inherit \
         p4_lst_ins zero_shmem timer_overflow",
    ),
];

/// The group whose counts must be exact under load.
const EXACT: &str = "exact under load";

/// Builds PAPI on the C library, runs its tests in the guest, and prints a table of them. Fails if
/// one does that can pass.
#[derive(clap::Args)]
pub struct Args {
    /// Write the results as JSON, too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Only groups whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    group: Option<String>,
    /// Only this test; may be given several times.
    #[arg(long, value_name = "NAME")]
    test: Vec<String>,
    /// Instead of the tests, print how many instructions a reading costs.
    #[arg(long)]
    cost: bool,
}

/// What came of each test.
#[derive(Default, Serialize)]
struct Report {
    passed: Vec<String>,
    failed: BTreeMap<String, String>,
    skipped: BTreeMap<String, String>,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    let prefix = cache::root()?.join("papi-shim");
    fs::create_dir_all(&prefix)?;
    shim::install(&prefix)?;
    let papi = build(&prefix)?;
    if args.cost {
        cost::print(&prefix, &papi)?;
        return Ok(ExitCode::SUCCESS);
    }
    let out = cache::root()?.join("papi-out");
    let mut report = Report::default();
    let mut is_bad = false;
    for (group, tests) in GROUPS {
        let tests: Vec<&str> = tests
            .split_whitespace()
            .filter(|test| args.test.is_empty() || args.test.iter().any(|name| name == *test))
            .collect();
        if tests.is_empty() || !group.contains(args.group.as_deref().unwrap_or_default()) {
            continue;
        }
        println!("{group}");
        let out = out.join(group.replace(' ', "-"));
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        run_group(&tests, *group == EXACT, &prefix, &papi, &out)?;
        for test in tests {
            let verdict = verdict(test, &out);
            is_bad |= matches!(verdict, Verdict::Failed(_));
            record(&mut report, test, verdict);
        }
    }
    let (passed, failed, skipped) =
        (report.passed.len(), report.failed.len(), report.skipped.len());
    println!("{passed} passed, {failed} failed, {skipped} skipped; output: {}", out.display());
    if let Some(file) = &args.report {
        fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write the report {}", file.display()))?;
    }
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The directory with PAPI's libraries in `lib` and its tests in `ctests`.
fn build(prefix: &Path) -> Result<PathBuf> {
    let source = apt::source("papi", UPSTREAM)?;
    let changes = sh::project().join("papi-shim/papi/hooks.toml");
    let key = Key::new("papi 1").text(&source.to_string_lossy()).path(&changes)?;
    let key = key.path(&prefix.join("include"))?;
    let key = key.path(&sh::project().join("papi-shim/exports.txt"))?;
    cache::artefact("papi", key, |dir| {
        apt::install(PACKAGES, "building PAPI")?;
        let work = cache::root()?.join("work/papi");
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        overlay::apply(&source, &work, &hooks::apply(&source, &changes)?)?;
        let src = work.join("src");
        let log = cache::log("papi")?;
        let mut configure = cmd("./configure", ["--with-perfctr", "--with-shlib-tools"]);
        configure.arg(format!("--with-perfctr-prefix={}", prefix.display()));
        sh::logged(configure.current_dir(&src), &log)?;
        // PAPI's own last step copies libraries with a command that no shell understands.
        let mut make = cmd("make", ["POST_BUILD=", &sh::jobs()]);
        // The linker looks there for what PAPI's own library needs.
        let libraries = [prefix.join("lib"), src.join("libpfm-3.y/lib")];
        make.env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
        sh::logged(make.current_dir(&src), &log)?;
        take(&src, dir)
    })
}

/// Copies what runs out of PAPI's build tree.
fn take(src: &Path, dir: &Path) -> Result<()> {
    for (from, to) in [("ctests", "ctests"), (".", "lib"), ("libpfm-3.y/lib", "lib")] {
        fs::create_dir_all(dir.join(to))?;
        for entry in fs::read_dir(src.join(from))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_program = !name.contains('.')
                && path.is_file()
                && path.metadata()?.permissions().mode() & 0o111 != 0;
            let is_library = name.contains(".so.");
            if if to == "lib" { is_library } else { is_program } {
                fs::copy(&path, dir.join(to).join(name))?;
            }
        }
    }
    Ok(())
}

fn run_group(tests: &[&str], loaded: bool, prefix: &Path, papi: &Path, out: &Path) -> Result<()> {
    let seconds = TEST_SECONDS.to_string();
    let mut command = vec!["/work/run.sh", &seconds, if loaded { LOAD } else { "0" }];
    command.extend(tests);
    let mut spec = Spec::new("pv", command)?;
    spec.files.push((sh::project().join("papi-shim/papi/run.sh"), "/work/run.sh".into()));
    spec.files.push((papi.to_owned(), "/work/papi".into()));
    for library in [prefix.join("lib").join(shim::SONAME), system_library("libgomp.so.1")?] {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        spec.files.push((library, format!("/work/papi/lib/{name}")));
    }
    spec.stream = true;
    spec.out = Some(out.to_owned());
    spec.timeout = GROUP_TIMEOUT;
    let outcome = vm::run(&spec)?;
    if let Some(reason) = outcome.explain() {
        eprintln!("xtask papi: {reason}");
    }
    Ok(())
}

/// A library that the compiler's run-time support consists of.
fn system_library(name: &str) -> Result<PathBuf> {
    let path = sh::output(&mut cmd("gcc", [&format!("-print-file-name={name}")]))?;
    Path::new(path.trim()).canonicalize().map(|path| path.with_file_name(name)).context("libgomp")
}

fn record(report: &mut Report, test: &str, verdict: Verdict) {
    let (word, reason) = match &verdict {
        Verdict::Passed => ("passed", ""),
        Verdict::Skipped(reason) => ("skipped", reason.as_str()),
        Verdict::CannotPass(reason) => ("cannot pass", reason.as_str()),
        Verdict::Failed(reason) => ("FAILED", reason.as_str()),
    };
    println!("  {word:<12}{test:<26}{reason}");
    match verdict {
        Verdict::Passed => report.passed.push(test.to_owned()),
        Verdict::Skipped(reason) => drop(report.skipped.insert(test.to_owned(), reason)),
        Verdict::CannotPass(reason) | Verdict::Failed(reason) => {
            drop(report.failed.insert(test.to_owned(), reason));
        }
    }
}
