// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests Debian's rr in guests of every kind, whose ticks the module counts.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::artefacts::{guest, rootfs, rr};
use crate::machine::{self, Spec, Status};
use crate::suites::report::{Report, Volume, all};
use crate::suites::shard::Shard;
use crate::suites::{programs, tenants};
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// The program that tests, in the guest.
const PROGRAM: &str = "/work/rr";

/// The program's text for one of rr's own tests that passes.
const PASSED: &str = "passes";

/// The number of parts that rr's own tests are divided into, each of which takes a quarter of an
/// hour. The long tier runs one of them, another one every day: all of them would take more than a
/// day.
const PARTS: usize = 104;

/// The tests among rr's own that are run outside the long tier. They take seconds each on the
/// emulated machine, and do not depend on its speed. (Some of rr's tests send a signal after a
/// fixed time, and fail if their program has not begun by then.)
const CHOSEN: &str = "\
alarm async_segv_ignored async_signal_syscalls barrier chaos_oom check_lost_interrupts clone \
clone_vfork desched_blocking_poll dup exec_from_main_thread exec_self execve_loop exit_group \
hello intr_read_restart intr_sleep join_threads many_yields mmap_shared multiple_pending_signals \
no_mask_timeslice overflow_branch_counter pause perf_event pthread_rwlocks restart_diversion \
reverse_finish reverse_step_breakpoint robust_futex sched_yield seekticks sem sigaltstack \
sigchld_interrupt_signal sighandler_mask signal_deferred signalfd sigqueueinfo sigrt sigsuspend \
simple syscallbuf_signal_blocking syscallbuf_signal_reset syscallbuf_timeslice \
syscallbuf_timeslice2 tgkill thread_yield tick0 timer two_signals_with_mask unjoined_thread \
vfork_shared wait";

/// Boots one machine, and tests in the guest that can ask its host to move its vCPUs.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new(report.topology, [PROGRAM, "test"])?;
    // They compete for two CPUs.
    spec.vcpus(6)?;
    spec.files.extend([rootfs::rr()?, rootfs::programs()?].map(|tree| (tree, "/".into())));
    spec.files.push((counters_test()?, "/work/counters".into()));
    spec.copy.push(programs::files(programs::COMMANDS)?);
    spec.timeout = Duration::from_secs(2_400);
    let topology = report.topology;
    report.program(spec, "rr")?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    report.test("the command of the book's page records and replays", || {
        command_of_the_book(topology)
    });
    // The bare machine has the same processor there.
    if topology == "pv" {
        for (from, to) in [(topology, "native"), ("native", topology)] {
            let name = format!("what was recorded on a machine {from} is replayed on one {to}");
            report.test(&name, || elsewhere(from, to));
        }
    }
    Ok(())
}

/// Records a program on one machine, and replays the recording on another one with the same
/// processor. The rr is that of [`rr::tests`], since Debian 12's rr does not start on the bare
/// machine: it sets a period of 1 on a processor of this model, which Linux refuses.
fn elsewhere(from: &str, to: &str) -> Result<()> {
    let out = cache::scratch("rr-elsewhere")?;
    let machine = |topology, script: &str| -> Result<Spec> {
        let script = format!("PATH={}/obj/bin:$PATH; {script}", rr::TESTS);
        let mut spec = Spec::new(topology, ["sh", "-ec", &script])?;
        spec.module = topology != "native";
        let trees = [rootfs::rr()?, rr::tests()?, rootfs::programs()?];
        spec.files.extend(trees.map(|tree| (tree, "/".into())));
        Ok(spec)
    };
    // The other machine may have fewer CPUs, and the program knows its CPU.
    let record = "rr record --bind-to-cpu=0 -o /out/recorded";
    let program = "sqlite3 -batch :memory: -init query.sql";
    let mut first = machine(from, &format!("{record} {program}; rr pack /out/recorded"))?;
    first.copy.push(programs::files(programs::COMMANDS)?);
    first.keep_out(&out)?;
    let first = machine::run(&first)?;
    ensure!(first.status == Status::Exited(0), "{}", all(&first));
    let mut second = machine(to, "rr replay -a /work/recorded")?;
    second.copy.push(out);
    let second = machine::run(&second)?;
    ensure!(second.status == Status::Exited(0), "{}", all(&second));
    ensure!(!first.stdout.is_empty(), "the program has written nothing");
    ensure!(second.stdout == first.stdout, "{}, recorded was {}", all(&second), all(&first));
    Ok(())
}

/// Runs the command that the book's page has for the testbed.
fn command_of_the_book(topology: &str) -> Result<()> {
    let page = fs::read_to_string(sh::project().join("docs/rr.md"))?;
    let line = page.lines().find(|line| line.starts_with("cargo xtask vm --with rr"));
    let (_, script) = line.and_then(|line| line.split_once("sh -c ")).context("no such line")?;
    let dir = cache::scratch("rr-verb")?;
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("program"), "#!/bin/sh\necho at $$\n")?;
    fs::set_permissions(dir.join("program"), Permissions::from_mode(0o755))?;
    let mut verb = Command::new(env::current_exe()?);
    verb.args(["vm", "--with", "rr", "--topology", topology, "--copy"]).arg(&dir);
    let ended = verb.args(["--", "sh", "-c", script.trim_matches('\'')]).output()?;
    let (printed, errors) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    ensure!(ended.status.success(), "{}\n{printed}{errors}", ended.status);
    let lines: Vec<&str> = printed.lines().filter(|line| line.starts_with("at ")).collect();
    ensure!(
        lines.len() == 2 && lines[0] == lines[1],
        "expected the same line twice, found {printed}"
    );
    Ok(())
}

/// Boots one machine, and tests in a PVH tenant.
pub fn pvh(report: &mut Report) -> Result<()> {
    report.program(beside_control("pvh")?, "rr")
}

/// Boots one machine, and tests in an HVM tenant.
pub fn hvm(report: &mut Report) -> Result<()> {
    let mut spec = beside_control("hvm")?;
    tenants::add_device_model(&mut spec)?;
    spec.timeout *= 2;
    report.program(spec, "rr")
}

/// Runs some of rr's own tests on the bare machine, where Linux' perf counts, and in a guest. Every
/// test that passes there has to pass here.
pub fn upstream(report: &mut Report) -> Result<()> {
    let long = report.volume == Volume::Long;
    let wanted = if long { part_of_today(report)? } else { CHOSEN.to_owned() };
    let on_bare_machine = results(own_tests("native", &wanted)?)?;
    let in_guest = results(own_tests(report.topology, &wanted)?)?;
    let chosen = wanted.split_whitespace().count();
    ensure!(
        on_bare_machine.len() == chosen,
        "{} of rr's own tests were run on the bare machine, expected {chosen}",
        on_bare_machine.len()
    );
    for (name, expected) in &on_bare_machine {
        if expected != PASSED {
            report.note(format!("{name} is no test: on the bare machine it {expected}"));
            ensure!(long, "{name} was chosen, and does not pass there");
            continue;
        }
        report.test(&format!("rr's own {name} passes"), || {
            let found = in_guest.get(name).map_or("was not run", String::as_str);
            ensure!(found == PASSED, "it {found}");
            Ok(())
        });
    }
    Ok(())
}

/// Returns the names of today's part of rr's own tests.
fn part_of_today(report: &mut Report) -> Result<String> {
    let part = Shard::of_today(PARTS);
    let list = fs::read_to_string(rr::list()?)?;
    let names = part.pick(list.lines().filter_map(|line| line.split(' ').next()));
    report.note(format!("part {part} of rr's own {} tests", list.lines().count()));
    Ok(names.join(" "))
}

/// Describes a machine that runs those of rr's tests that this names.
fn own_tests(topology: &str, wanted: &str) -> Result<Spec> {
    let mut spec = Spec::new(topology, [PROGRAM, "upstream", rr::TESTS, wanted])?;
    spec.module = topology != "native";
    // Debian's rr brings libraries that rr needs.
    let trees = [rootfs::rr()?, rootfs::python()?, rootfs::debugger()?, rr::tests()?];
    spec.files.extend(trees.map(|tree| (tree, "/".into())));
    spec.add_program("vm-tests", "rr")?;
    spec.topology.memory_mib += 1024;
    spec.timeout = Duration::from_secs(3 * 3600);
    Ok(spec)
}

/// Runs the machine, and returns the result of each test.
fn results(spec: Spec) -> Result<BTreeMap<String, String>> {
    let outcome = machine::run(&spec)?;
    ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
    let printed = String::from_utf8_lossy(&outcome.stdout);
    let of =
        |line: &str| line.split_once(' ').map(|(name, what)| (name.to_owned(), what.to_owned()));
    Ok(printed.lines().filter_map(of).collect())
}

/// Describes a machine with a tenant of this kind, which has all that the tests need.
fn beside_control(kind: &str) -> Result<Spec> {
    let mut spec = Spec::new("pvh", [PROGRAM, "control", kind])?.driver("all")?;
    let mut files: Vec<(String, PathBuf)> = [rootfs::tenant()?, rootfs::programs()?, rootfs::rr()?]
        .map(|tree| (String::new(), tree))
        .into();
    files.push(("work".to_owned(), programs::files(programs::COMMANDS)?));
    files.push(("work/counters".to_owned(), counters_test()?));
    files.push(("work/rr".to_owned(), guest::program("vm-tests", "rr")?));
    tenants::add_tenant(&mut spec, "rr", &files)?;
    // The control domain also holds the tenant that it saves as a file, in half of its memory. A
    // tenant that is being migrated is in memory twice.
    spec.hypervisor()?.add("dom0_mem=2560M,max:2560M");
    spec.topology.memory_mib += 2 * 768 + 1536;
    spec.timeout = Duration::from_secs(3_000);
    Ok(spec)
}

/// Builds the test of counters in rr's sources, which its authors compile without optimisation. It
/// makes fewer rounds here, because each round is a conversation between two processes and takes a
/// while on the emulated machine.
fn counters_test() -> Result<PathBuf> {
    let source = rr::source()?.join("src/counters-test/counters.cc");
    let mut text = fs::read_to_string(source)?;
    for rounds in ["NUM_ITERATIONS_BASIC", "NUM_ITERATIONS_SYSCALLS"] {
        let (many, few) = (format!("{rounds} 100000\n"), format!("{rounds} 2000\n"));
        ensure!(text.contains(&many), "rr's test of counters has no {many}");
        text = text.replace(&many, &few);
    }
    let dir = cache::artefact("rr-counters", Key::new("rr-counters 2").text(&text), |dir| {
        apt::install(&["g++"], "the test of counters of rr")?;
        let source = dir.join("counters.cc");
        fs::write(&source, &text)?;
        let mut gcc = cmd("g++", ["-O0", "-static", "-o"]);
        sh::output(gcc.arg(dir.join("counters")).arg(&source)).map(drop)
    })?;
    Ok(dir.join("counters"))
}
