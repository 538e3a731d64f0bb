// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Boots the testbed, runs one command in the guest and returns how it ended.
//!
//! The guest's init (`testbed/init`) writes to virtio ports which the emulator stores as files in
//! the run's directory; this side follows those files. The console is kept as a log, watched for
//! crashes, and the whole machine is ended at the first of: the command's end, a crash, a timeout.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cpio::Archive;
use crate::kernel::{self, Kernel};
use crate::rootfs::{self, BOOT_MODULES, XEN_MODULES};
use crate::sh::{self, cmd};
use crate::xen::Flavour;
use crate::{cache, guest, qemu, xen};

/// From power-on until the guest's init reports; generous for busy build machines.
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);
/// From the report of the command's end until the emulator has ended by itself.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the console may go on after a crash, so that its trace is complete.
const CRASH_TRACE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(10);
/// Directories of past runs that are kept for their logs.
const RUNS_KEPT: usize = 40;

/// Every topology's kernel arguments: a crash ends the machine, and a busy build machine, on which
/// an emulated CPU may stand still for long, is not taken for a lockup.
const LINUX_ARGS: &str = "panic=-1 oops=panic quiet watchdog_thresh=60";

/// What the console says when the guest or the hypervisor is beyond help.
const CRASHES: &[&str] = &[
    "Kernel panic",
    "Oops:",
    "BUG:",
    "Panic on CPU",
    "Xen BUG at",
    "Domain 0 crashed",
    "Initial PV mapping failed",
];

/// A machine, described by a file in `xtask/profiles`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Number of physical CPUs.
    pub cpus: u32,
    /// The CPU model with its properties, in QEMU's words.
    pub cpu: String,
    /// Memory in MiB, to which room for the copied files is added.
    pub memory_mib: u64,
    /// The guest kernel's arguments.
    pub linux: String,
    /// Whether time advances by instructions, 1 ns each, with one host thread for all CPUs; so
    /// that costs repeat themselves, however busy the build machine is.
    #[serde(default)]
    pub deterministic: bool,
    /// The hypervisor, if there is one.
    pub xen: Option<Hypervisor>,
}

/// The hypervisor of a topology.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hypervisor {
    /// Which build of it.
    pub flavour: Flavour,
    /// Its arguments beside those of the console.
    pub args: String,
}

impl Topology {
    /// Reads the profile called `name`.
    pub fn named(name: &str) -> Result<Self> {
        let dir = sh::project().join("xtask/profiles");
        let path = dir.join(format!("{name}.toml"));
        if !path.exists() {
            let known = cache::files(&dir)?;
            let known: Vec<_> =
                known.iter().map(|(file, _)| file.trim_end_matches(".toml")).collect();
            bail!("no topology {name}; there are: {}", known.join(", "));
        }
        toml::from_str(&fs::read_to_string(&path)?).with_context(|| path.display().to_string())
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The machine.
    pub topology: Topology,
    /// Whether to load our kernel module before the command.
    pub module: bool,
    /// Parameters for our kernel module.
    pub module_args: String,
    /// Directories whose contents are put into `/work`, later ones over earlier ones.
    pub copy: Vec<PathBuf>,
    /// Further files or directories: (path here, path in the guest).
    pub files: Vec<(PathBuf, String)>,
    /// Where to unpack what the command leaves in the guest's `/out`.
    pub out: Option<PathBuf>,
    /// How long the command may run.
    pub timeout: Duration,
    /// Whether to show the command's output while it runs.
    pub stream: bool,
    /// The program, found through PATH or relative to `/work`, and its arguments.
    pub command: Vec<OsString>,
}

impl Spec {
    /// A run of `command` on the topology called `name`, with the module, output not shown.
    pub fn new<S: Into<OsString>>(
        name: &str,
        command: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
        Ok(Self {
            topology: Topology::named(name)?,
            module: true,
            module_args: String::new(),
            copy: Vec::new(),
            files: Vec::new(),
            out: None,
            timeout: Duration::from_secs(300),
            stream: false,
            command: command.into_iter().map(Into::into).collect(),
        })
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The command returned this status.
    Exited(i32),
    /// The command was ended by this signal.
    Signaled(i32),
    /// The command was still running after this time.
    TimedOut(Duration),
    /// The machine, the module or the start of the command failed.
    Failed(String),
}

impl Status {
    /// The status as a shell gives it; 124 for a timeout as `timeout(1)` does, 125 for a failure.
    pub fn code(&self) -> i32 {
        match self {
            Self::Exited(status) => *status,
            Self::Signaled(signal) => 128 + signal,
            Self::TimedOut(_) => 124,
            Self::Failed(_) => 125,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// What the command wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What the command wrote to its standard error.
    pub stderr: Vec<u8>,
    /// The console's log.
    pub console: PathBuf,
    /// From power-on until the guest was ready, if it ever was.
    pub boot_time: Option<Duration>,
}

impl Outcome {
    /// For people: why the run failed, with the console's end where that explains it.
    pub fn explain(&self) -> Option<String> {
        let log = self.console.display();
        match &self.status {
            Status::Exited(_) => None,
            Status::Signaled(signal) => Some(format!("the command was ended by signal {signal}")),
            Status::TimedOut(limit) => Some(format!(
                "the command still ran after {} s and was ended; console log: {log}",
                limit.as_secs()
            )),
            Status::Failed(reason) => Some(format!(
                "{reason}\nthe console's end:\n{}\nconsole log: {log}",
                sh::tail(&self.console)
            )),
        }
    }
}

/// Boots, runs and ends. An error means that the run could not be prepared.
///
/// Of some hundred boots one stands still before the guest has come to its first program; that is
/// said, and tried once more.
pub fn run(spec: &Spec) -> Result<Outcome> {
    let outcome = attempt(spec)?;
    if outcome.status != never_up() {
        return Ok(outcome);
    }
    let log = outcome.console.display();
    eprintln!("  the guest was not up after {BOOT_TIMEOUT:?}; once more; console log: {log}");
    attempt(spec)
}

fn never_up() -> Status {
    Status::Failed(format!("the guest was not up after {BOOT_TIMEOUT:?}"))
}

fn attempt(spec: &Spec) -> Result<Outcome> {
    let dir = run_dir()?;
    let machine = prepare(spec, &dir)?;
    let mut watch = Watch::new(spec, &dir)?;
    let status = watch.until_end(machine)?;
    for file in ["initrd", "vmlinux", "xen", "control"] {
        fs::remove_file(dir.join(file)).ok();
    }
    if let Some(out) = &spec.out {
        unpack_out(&dir.join("out"), out)?;
    }
    Ok(Outcome {
        status,
        stdout: watch.stdout.all,
        stderr: watch.stderr.all,
        console: dir.join("console"),
        boot_time: watch.boot_time,
    })
}

/// Builds or finds every part, writes the initramfs and starts the emulator.
fn prepare(spec: &Spec, dir: &Path) -> Result<Child> {
    let emulator = qemu::qemu()?;
    let kernel = kernel::kernel()?;
    let layer = write_layer(spec, &kernel)?;
    let mut initrd = File::create(dir.join("initrd"))?;
    let mut base = File::open(rootfs::rootfs(&kernel)?)?;
    std::io::copy(&mut base, &mut initrd)?;
    initrd.write_all(&layer)?;
    symlink(&kernel.image, dir.join("vmlinux"))?;

    // The copied files are in memory twice while they are unpacked, and Xen moves the archive.
    let memory_mib = spec.topology.memory_mib + 3 * (layer.len() as u64 >> 20);
    // However this process ends, the machine does not outlive it.
    let mut qemu = cmd("setpriv", ["--pdeathsig", "KILL"]);
    let threads = if spec.topology.deterministic {
        // An instruction takes 2^3 ns, so that timers come no more often than on a real machine.
        ["-accel", "tcg,thread=single", "-icount", "shift=3,sleep=off"].as_slice()
    } else {
        &["-accel", "tcg,thread=multi"]
    };
    qemu.arg(emulator).args(threads).arg("-nodefaults");
    qemu.args(["-display", "none", "-no-reboot", "-nic", "none"])
        .args(["-L", "/usr/share/seabios", "-L", "/usr/share/qemu"])
        .args(["-cpu", &spec.topology.cpu])
        .args(["-smp", &spec.topology.cpus.to_string()])
        .args(["-m", &format!("{memory_mib}M")])
        .args(["-serial", "file:console"])
        // A PV guest's memory is not contiguous for a device: its driver has to ask the kernel for
        // DMA addresses, which it does only for a device behind an IOMMU.
        .args(["-device", "virtio-serial-pci,iommu_platform=on,disable-legacy=on"]);
    for port in ["control", "stdout", "stderr", "out"] {
        qemu.args(["-chardev", &format!("file,id={port},path={port}")])
            .args(["-device", &format!("virtserialport,chardev={port},name={port}")]);
    }
    let linux = format!("{} {LINUX_ARGS}", spec.topology.linux);
    match &spec.topology.xen {
        Some(hypervisor) => {
            symlink(xen::xen(hypervisor.flavour)?, dir.join("xen"))?;
            let args = format!("console=com1 com1=115200,8n1 noreboot {}", hypervisor.args);
            // A comma separates the boot modules unless it is doubled.
            let modules = format!("vmlinux {},initrd", linux.replace(',', ",,"));
            qemu.args(["-kernel", "xen", "-append", &args, "-initrd", &modules]);
        }
        None => {
            qemu.args(["-kernel", "vmlinux", "-append", &linux, "-initrd", "initrd"]);
        }
    }
    let log = File::create(dir.join("qemu.log"))?;
    qemu.current_dir(dir).stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
    qemu.spawn().context("cannot start QEMU")
}

/// The part of the initramfs that belongs to one run.
fn write_layer(spec: &Spec, kernel: &Kernel) -> Result<Vec<u8>> {
    let mut archive = Archive::new(BufWriter::new(Vec::new()));
    archive.file("init", 0o755, &fs::read(guest::init()?)?)?;
    let xen_modules = if spec.topology.xen.is_some() { XEN_MODULES } else { &[] };
    let mut modules: Vec<String> = BOOT_MODULES
        .iter()
        .chain(xen_modules)
        .map(|module| format!("/lib/modules/{}/kernel/{module}", kernel.release))
        .collect();
    if spec.module {
        let module = guest::module(kernel)?;
        archive.file("usr/lib/perfctr/perfctr.ko", 0o644, &fs::read(module)?)?;
        modules.push(format!("/lib/perfctr/perfctr.ko {}", spec.module_args));
    }
    for dir in &spec.copy {
        archive.tree("work", dir)?;
    }
    for (path, name) in &spec.files {
        let name = name.trim_start_matches('/');
        if path.is_dir() {
            archive.tree(name, path)?;
        } else {
            let content = fs::read(path).with_context(|| path.display().to_string())?;
            archive.file(name, 0o755, &content)?;
        }
    }
    let nul_ended = |words: &[OsString]| {
        words.iter().flat_map(|w| w.as_bytes().iter().copied().chain([0])).collect::<Vec<u8>>()
    };
    let environment = [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:.",
        "HOME=/root",
        "TERM=dumb",
        "LANG=C.UTF-8",
    ]
    .map(OsString::from);
    archive.file("etc/testbed/modules", 0o644, modules.join("\n").as_bytes())?;
    archive.file("etc/testbed/argv", 0o644, &nul_ended(&spec.command))?;
    archive.file("etc/testbed/environment", 0o644, &nul_ended(&environment))?;
    Ok(archive.finish()?.into_inner()?)
}

/// Follows a running machine.
struct Watch {
    console: Follow,
    control: Follow,
    stdout: Follow,
    stderr: Follow,
    timeout: Duration,
    stream: bool,
    start: Instant,
    boot_time: Option<Duration>,
}

impl Watch {
    fn new(spec: &Spec, dir: &Path) -> Result<Self> {
        let follow = |name: &str| Follow::new(&dir.join(name));
        Ok(Self {
            console: follow("console")?,
            control: follow("control")?,
            stdout: follow("stdout")?,
            stderr: follow("stderr")?,
            timeout: spec.timeout,
            stream: spec.stream,
            start: Instant::now(),
            boot_time: None,
        })
    }

    /// Waits for the machine's end and makes sure of it.
    fn until_end(&mut self, mut machine: Child) -> Result<Status> {
        let status = loop {
            let ended = machine.try_wait()?;
            if let Some(status) = self.poll()? {
                break status;
            }
            if let Some(code) = ended {
                break Status::Failed(format!("the emulator ended before the command ({code})"));
            }
            thread::sleep(POLL);
        };
        let reported = matches!(status, Status::Exited(_) | Status::Signaled(_));
        let patience = if reported { POWER_OFF_TIMEOUT } else { CRASH_TRACE };
        let end = Instant::now() + patience;
        while machine.try_wait()?.is_none() && Instant::now() < end {
            thread::sleep(POLL);
        }
        machine.kill().ok();
        machine.wait()?;
        self.collect()?;
        Ok(status)
    }

    /// Takes in what is new; returns a status if the run has ended.
    fn poll(&mut self) -> Result<Option<Status>> {
        let news = self.collect()?;
        let control = String::from_utf8_lossy(&self.control.all).into_owned();
        if self.boot_time.is_none() && control.contains("ready\n") {
            self.boot_time = Some(self.start.elapsed());
        }
        let messages = control.rsplit_once('\n').map_or("", |(complete, _)| complete);
        for message in messages.lines() {
            match message.split_once(' ') {
                Some(("exit", status)) => return Ok(Some(Status::Exited(status.parse()?))),
                Some(("signal", signal)) => return Ok(Some(Status::Signaled(signal.parse()?))),
                Some(("error", reason)) => return Ok(Some(Status::Failed(reason.to_owned()))),
                _ => {}
            }
        }
        if news && let Some(crash) = self.crash() {
            return Ok(Some(Status::Failed(format!("the machine crashed: {crash}"))));
        }
        let running = self.start.elapsed().saturating_sub(self.boot_time.unwrap_or_default());
        Ok(match self.boot_time {
            Some(_) if running > self.timeout => Some(Status::TimedOut(self.timeout)),
            None if running > BOOT_TIMEOUT => Some(never_up()),
            _ => None,
        })
    }

    /// Reads what the machine has written; true if the console has news.
    fn collect(&mut self) -> Result<bool> {
        self.control.news()?;
        let stdout = self.stdout.news()?;
        if self.stream && !stdout.is_empty() {
            std::io::stdout().write_all(stdout)?;
            std::io::stdout().flush()?;
        }
        let stderr = self.stderr.news()?;
        if self.stream && !stderr.is_empty() {
            std::io::stderr().write_all(stderr)?;
        }
        Ok(!self.console.news()?.is_empty())
    }

    /// The first line of the console that tells of a crash.
    fn crash(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.console.all);
        let crash = text.lines().find(|line| CRASHES.iter().any(|pattern| line.contains(pattern)));
        crash.map(|line| line.trim().to_owned())
    }
}

/// A file that another program is writing.
struct Follow {
    file: File,
    all: Vec<u8>,
}

impl Follow {
    /// Follows `path`; creates it so that the order of the two programs does not matter.
    fn new(path: &Path) -> Result<Self> {
        File::options().create(true).append(true).open(path)?;
        Ok(Self { file: File::open(path)?, all: Vec::new() })
    }

    /// What was written since the last call.
    fn news(&mut self) -> Result<&[u8]> {
        let known = self.all.len();
        self.file.read_to_end(&mut self.all)?;
        Ok(&self.all[known..])
    }
}

/// A new directory for one run; old ones are removed.
fn run_dir() -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let runs = cache::root()?.join("runs");
    fs::create_dir_all(&runs)?;
    let mut old: Vec<PathBuf> =
        fs::read_dir(&runs)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    old.sort();
    for dir in old.iter().rev().skip(RUNS_KEPT) {
        fs::remove_dir_all(dir).ok();
    }
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = runs.join(format!("{seconds}-{}-{number}", std::process::id()));
    fs::create_dir(&dir)?;
    Ok(dir)
}

fn unpack_out(archive: &Path, out: &Path) -> Result<()> {
    fs::create_dir_all(out)?;
    if archive.metadata().is_ok_and(|m| m.len() > 0) {
        sh::output(cmd("tar", ["-x", "--no-same-owner", "-f"]).arg(archive).arg("-C").arg(out))?;
    }
    Ok(())
}
