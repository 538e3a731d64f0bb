// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Executes known functions in two guests of KVM while their host is sampled. The host's program
//! judges the samples; this program only gives it what it cannot know.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use vm_tests::kvm::{Kept, Kvm, SAMPLED};
use vm_tests::tally::{Made, Tally};
use vm_tests::threads::{cpus, or_exit};
use vm_tests::volume;
use vm_tests::workers::{self, Side, VCPUS, Worker};

const NAMES: &str = "/tmp/guest.names";
/// The kernel's functions, and their kinds.
const KALLSYMS: &str = "/proc/kallsyms";
const CODE: [&str; 4] = ["t", "T", "w", "W"];

/// A program, which is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs in either guest, if nothing else is tested.
pub fn alone() -> Result<ExitCode> {
    if fs::read_to_string("/proc/cmdline")?.split_whitespace().any(|role| role == SAMPLED) {
        passive()?;
    }
    let mut tally = Tally::default();
    run(&mut tally, &Kvm::open()?)?;
    Ok(tally.finish())
}

/// Has the host sample this guest beside another one, and takes over its checks.
pub fn run(tally: &mut Tally, kvm: &Kvm) -> Result<()> {
    ensure!(cpus()?.len() == VCPUS, "{VCPUS} virtual CPUs are expected");
    kvm.keep(Kept::Kernel, functions()?.as_bytes())?;
    kvm.start_sampled()?;
    let mut names = begin_names()?;
    let started = (0..VCPUS).map(start).collect::<Result<Vec<_>>>()?;
    let (programs, all): (Vec<Running>, Vec<Worker>) = started.into_iter().unzip();
    kvm.keep(Kept::Workers, Worker::line(&all).as_bytes())?;
    take_over(tally, kvm.sample_host()?);
    drop(programs);
    // The command ends with its own program.
    drop(names.stdin.take());
    let status = names.wait()?;
    ensure!(status.success(), "{status}");
    kvm.keep(Kept::Names, &fs::read(NAMES)?)?;
    take_over(tally, kvm.report_sampled(volume::pick(false, true))?);
    Ok(())
}

fn take_over(tally: &mut Tally, made: Vec<Made>) {
    for (name, failure) in made {
        tally.check(&name, failure.map_or(Ok(()), Err));
    }
}

/// Returns the lines of the kernel's list that are of functions.
fn functions() -> Result<String> {
    let all = fs::read_to_string(KALLSYMS).context(KALLSYMS)?;
    let is_function = |line: &&str| line.split(' ').nth(1).is_some_and(|kind| CODE.contains(&kind));
    Ok(all.lines().filter(is_function).map(|line| format!("{line}\n")).collect())
}

/// Begins to record names. Its program executes once the recording has begun.
fn begin_names() -> Result<Child> {
    let mut names = Command::new("perfctr")
        .args(["record", "--names", "-o", NAMES, "--", "sh", "-c", "echo begun; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    line_of(&mut names)?;
    Ok(names)
}

/// Starts the program of a virtual CPU. Returns it as it describes itself.
fn start(vcpu: usize) -> Result<(Running, Worker)> {
    let path = format!("/tmp/{}", workers::name(Side::Left, vcpu));
    symlink(std::env::current_exe()?, &path)?;
    let mut child =
        Command::new(path).args(["kvm-work", &vcpu.to_string()]).stdout(Stdio::piped()).spawn()?;
    let line = line_of(&mut child)?;
    let worker = Worker::parse(&line)?.pop().context("no worker")?;
    Ok((Running(child), worker))
}

/// Returns the first line that a program prints.
fn line_of(child: &mut Child) -> Result<String> {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().context("no output")?).read_line(&mut line)?;
    Ok(line)
}

/// Is the program of a virtual CPU.
pub fn work(vcpu: usize) -> Result<()> {
    println!("{}", Worker::line(&[Worker::here(Side::Left, vcpu)]));
    workers::execute(Side::Left, vcpu)
}

/// Runs in the second guest until the host ends it.
pub fn passive() -> Result<()> {
    let all: Vec<Worker> = (0..VCPUS).map(|vcpu| Worker::here(Side::Right, vcpu)).collect();
    println!("{}", Worker::line(&all));
    for vcpu in 1..VCPUS {
        thread::spawn(move || or_exit(vcpu, workers::execute(Side::Right, vcpu)));
    }
    workers::execute(Side::Right, 0)
}
