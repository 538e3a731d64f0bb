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

use anyhow::{Context, Result, bail};
use serde::Serialize;

use self::verdict::{Verdict, verdict};
use crate::artefacts::{guest, shim};
use crate::machine::{self, Spec, Status};
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, hooks, overlay};

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
    (EXACT, "zero zero_pthreads zero_fork overflow_pthreads overflow_exact"),
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
        "general",
        "cmpinfo code2name destroy disable_component dmem_info eventname exeinfo failed_events \
         get_event_component hwinfo profile_force_software realtime serial_hl_ll_comb virttime",
    ),
    (
        "not in the component",
        "attach_cpu attach_cpu_validate attach_cpu_sys_validate data_range earprofile inherit \
         p4_lst_ins zero_shmem timer_overflow",
    ),
];

/// The group whose counts must be exact under load, and while vCPUs are moved.
const EXACT: &str = "exact under load";
/// The test in it that is not PAPI's: `papi-shim/papi/overflow_exact.c`.
const OVERFLOW_EXACT: &str = "overflow_exact";

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
    let papi = Papi::new()?;
    if args.cost {
        cost::print(&papi)?;
        return Ok(ExitCode::SUCCESS);
    }
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
        for (name, verdict) in papi.run(group, &tests)? {
            is_bad |= matches!(verdict, Verdict::Failed(_));
            record(&mut report, name, verdict);
        }
    }
    let (passed, failed, skipped) =
        (report.passed.len(), report.failed.len(), report.skipped.len());
    let out = out()?;
    for repeat in machine::boots().repeated {
        println!("{repeat}");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped; output: {}", out.display());
    if let Some(file) = &args.report {
        fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("cannot write the report {}", file.display()))?;
    }
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs the group that must be exact; gives what came of each of its tests.
fn exact() -> Result<Vec<(&'static str, Verdict)>> {
    let (group, tests) = GROUPS[0];
    Papi::new()?.run(group, &tests.split_whitespace().collect::<Vec<_>>())
}

/// Each of them counts exactly.
pub fn suite(report: &mut crate::suites::report::Report) -> Result<()> {
    for (name, verdict) in exact()? {
        report.test(name, || match verdict {
            Verdict::Passed => Ok(()),
            Verdict::Failed(reason) | Verdict::Skipped(reason) | Verdict::CannotPass(reason) => {
                bail!(reason)
            }
        });
    }
    Ok(())
}

/// Where the tests' outputs are kept.
fn out() -> Result<PathBuf> {
    Ok(cache::root()?.join("papi-out"))
}

/// PAPI, built on the C library.
struct Papi {
    /// Where the C library is installed.
    prefix: PathBuf,
    /// PAPI's libraries in `lib` and its tests in `ctests`.
    built: PathBuf,
}

impl Papi {
    fn new() -> Result<Self> {
        let prefix = cache::root()?.join("papi-shim");
        fs::create_dir_all(&prefix)?;
        shim::install(&prefix)?;
        let built = build(&prefix)?;
        Ok(Self { prefix, built })
    }

    /// Compiles a program of ours that uses PAPI.
    fn compile(&self, name: &str) -> Result<PathBuf> {
        let program = cache::root()?.join("papi-own").join(name);
        let library = self.built.join("lib/libpapi.so.7.0");
        let needed = [self.prefix.join("lib"), self.built.join("lib")];
        let include = apt::source("papi", UPSTREAM)?.join("src");
        compile(&format!("{name}.c"), &[], &include, &library, &needed, &program)?;
        Ok(program)
    }

    /// Runs tests in one boot: what came of each, and of the group if it failed as a whole.
    fn run<'a>(&self, group: &'a str, tests: &[&'a str]) -> Result<Vec<(&'a str, Verdict)>> {
        let out = out()?.join(group.replace(' ', "-"));
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        let outcome = machine::run(&self.spec(group == EXACT, tests, &out)?)?;
        for (name, log) in cache::files(&out)? {
            if let Some((test, _)) = name.rsplit_once(".log.") {
                machine::repeated(format!("PAPI's {test}"), log);
            }
        }
        let mut verdicts: Vec<_> = tests.iter().map(|test| (*test, verdict(test, &out))).collect();
        if outcome.status != Status::Exited(0) {
            let reason = outcome.explain().unwrap_or_else(|| format!("{:?}", outcome.status));
            verdicts.push((group, Verdict::Failed(reason)));
        }
        Ok(verdicts)
    }

    fn spec(&self, is_exact: bool, tests: &[&str], out: &Path) -> Result<Spec> {
        let seconds = TEST_SECONDS.to_string();
        let mut command = vec!["/work/run.sh", &seconds, if is_exact { LOAD } else { "0" }];
        command.extend(tests);
        if is_exact {
            command.insert(0, "/work/disturb");
        }
        // Of events that are not architectural, PAPI knows some.
        let mut spec = Spec::new("pv", command)?.driver("events=all")?;
        spec.files.push((sh::project().join("papi-shim/papi/run.sh"), "/work/run.sh".into()));
        spec.files.push((self.built.clone(), "/work/papi".into()));
        for library in [self.prefix.join("lib").join(shim::SONAME), system_library("libgomp.so.1")?]
        {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            spec.files.push((library, format!("/work/papi/lib/{name}")));
        }
        if is_exact {
            let disturb = guest::programs("vm-tests")?.join("disturb");
            spec.files.push((disturb, "/work/disturb".into()));
            let program = self.compile(OVERFLOW_EXACT)?;
            spec.files.push((program, format!("/work/papi/ctests/{OVERFLOW_EXACT}")));
        }
        spec.stream = true;
        spec.out = Some(out.to_owned());
        spec.timeout = GROUP_TIMEOUT;
        Ok(spec)
    }
}

/// Compiles a program of `papi-shim/papi`. `needed` are the directories of what its library needs.
fn compile(
    source: &str,
    flags: &[&str],
    include: &Path,
    library: &Path,
    needed: &[PathBuf],
    program: &Path,
) -> Result<()> {
    fs::create_dir_all(program.parent().unwrap_or(program))?;
    let mut gcc = cmd("gcc", ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    gcc.args(flags).arg("-I").arg(include).arg("-o").arg(program);
    gcc.arg(sh::project().join("papi-shim/papi").join(source)).arg(library);
    gcc.env("LD_LIBRARY_PATH", std::env::join_paths(needed)?);
    sh::output(&mut gcc).map(drop)
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
