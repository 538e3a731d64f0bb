// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs `perfctr record --host` while two guests execute known functions, and judges the profile.
//!
//! Before and after a window of time, a thread on each CPU reads how many instructions the CPU has
//! executed in each mode, and the time. The emulator's tally has the guests' kernels, and the user
//! mode of host and guests together; two counting events of perf's have the guests' user mode and
//! the host's kernel. Perf stops all events of a CPU for a while in its own code, so the tally of
//! the host's kernel would be larger than what any event can count. Between the two readings there
//! must be one sample for each period.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::Pid;
use perf_event_open_sys::bindings::{PERF_COUNT_HW_INSTRUCTIONS, perf_event_attr};
use perfctr::rdpmc::Hardware;
use shared_abi::read::Counters;
use vm_tests::emulated::{GUESTS_RING_0, OUTSIDE_RING_0, RING_0};
use vm_tests::host_profile::{HostProfile, Sample, unknown_at_most};
use vm_tests::kvm::Kept;
use vm_tests::perf::{Event, Whose, generic, keep_sample_rate};
use vm_tests::region::Region;
use vm_tests::tally::{Made, Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::workers::{self, Side, VCPUS, Worker};

use crate::domains::{NAME, PERFCTR};
use crate::qmp::Monitor;

/// The name of the second guest's machine.
pub const OTHER: &str = "other";
const PROFILE: &str = "/machine/host.data";
/// The number of events between two samples.
const PERIOD: u64 = 100_003;
/// How long the window is in which samples are counted.
const WINDOW: Duration = Duration::from_secs(3);
/// Each mode of each CPU executes more periods than this in the window.
const PERIODS_MIN: u64 = 20;
/// How often a CPU is read until nothing else executes meanwhile.
const ATTEMPTS: u32 = 200;
/// How long the second guest may take to boot.
const PATIENCE: Duration = Duration::from_secs(300);
/// The domain that is the host itself, and the module that is its kernel.
const HOST: u64 = 0;
const KERNEL: &str = "[kernel]";
/// With this begins the name of a guest's kernel.
const KERNEL_OF: &str = "[kernel of domain ";
/// The file that says whether the hard-lockup watchdog runs, which has a counter of each CPU.
const WATCHDOG: &str = "/proc/sys/kernel/nmi_watchdog";
/// The file that says after which time the kernel reports a handler of non-maskable interrupts that
/// has taken longer than ever before. Unit: ns.
///
/// The report is written before the interrupt ends, with many instructions, in which the
/// counters count and cannot interrupt. On the emulated machine a handler takes milliseconds
/// whenever the machine has to wait for a CPU.
const REPORTED: &str = "/sys/kernel/debug/x86/nmi_longest_ns";
/// No handler takes so long.
const NEVER: &str = "1000000000000000";
/// With this time, the kernel reports each handler that is slower than ever before.
const EACH_TIME: &str = "0";

/// The modes of a CPU.
const MODES: [&str; 4] =
    ["the host's kernel", "the host's user mode", "guests' kernels", "guests' user mode"];

/// What a CPU has executed in each mode, and the time before and after this was read.
#[derive(Clone, Copy, Debug)]
struct Moment {
    tsc: [u64; 2],
    executed: [u64; 4],
}

/// The events of a CPU that count beside the samples.
struct Oracle {
    host_kernel: Event,
    guest_user: Event,
}

impl Oracle {
    fn open(cpu: usize) -> Result<Self> {
        let attributes = || generic(PERF_COUNT_HW_INSTRUCTIONS);
        let open = |attributes: perf_event_attr| Event::open(attributes, Whose::Cpu(cpu), None);
        let mut of_host = attributes();
        of_host.set_exclude_kernel(0);
        of_host.set_exclude_user(1);
        of_host.set_exclude_guest(1);
        let mut of_guests = attributes();
        of_guests.set_exclude_host(1);
        Ok(Self { host_kernel: open(of_host)?, guest_user: open(of_guests)? })
    }

    /// Reads on this CPU. In the time that this takes, no mode ends more than one period.
    fn read(&self) -> Result<Moment> {
        for _ in 0..ATTEMPTS {
            let first = Hardware.clock();
            let before = tally();
            let host_kernel = self.host_kernel.count()?;
            let guest_user = self.guest_user.count()?;
            let [ring_0, outside, guests] = tally();
            let last = Hardware.clock();
            if ring_0 + outside - before[0] - before[1] < PERIOD / 2 {
                let host_user = outside - guest_user;
                let executed = [host_kernel, host_user, guests, guest_user];
                return Ok(Moment { tsc: [first, last], executed });
            }
        }
        bail!("something else has executed between two readings, {ATTEMPTS} times");
    }
}

/// Returns the emulator's numbers of this CPU: instructions in ring 0, in other rings, and those in
/// ring 0 that were a guest's.
fn tally() -> [u64; 3] {
    [RING_0, OUTSIDE_RING_0, GUESTS_RING_0].map(|index| Hardware.counter(index))
}

/// Executes a function of this program, and system calls.
fn work() {
    for _ in 0..500 {
        nix::unistd::getppid();
    }
    host_work();
}

#[inline(never)]
fn host_work() {
    Region { first: 100_000, second: 9 }.execute(&mut 0);
}

/// A machine whose guest is sampled.
pub struct Machine {
    process: u64,
    name: &'static str,
    workers: Vec<Worker>,
}

impl Machine {
    fn new(process: Pid, name: &'static str, workers: &str) -> Result<Self> {
        let process = u64::try_from(process.as_raw())?;
        Ok(Self { process, name, workers: Worker::parse(workers)? })
    }
}

/// Waits until the second guest, which this process runs, has printed to this file what it
/// executes.
pub fn wait(process: Pid, printed: &str) -> Result<Machine> {
    Machine::new(process, OTHER, &first_line(printed)?)
}

/// Samples the host while these two guests execute. The monitor is the first one's. Returns the
/// checks that were made.
pub fn run(own: Pid, other: Machine, monitor: &mut Monitor) -> Result<Vec<Made>> {
    let workers = fs::read_to_string(Kept::Workers.path())?;
    let machines = [Machine::new(own, NAME, &workers)?, other];
    keep_sample_rate()?;
    let watchdog = fs::read_to_string(WATCHDOG).context(WATCHDOG)?;
    fs::write(WATCHDOG, "0").context(WATCHDOG)?;
    let reported = fs::read_to_string(REPORTED).context(REPORTED)?;
    let mut tally = Tally::default();
    beside_reports(&mut tally, monitor)?;
    fs::write(REPORTED, NEVER)?;
    let (moments, messages) = record(monitor)?;
    fs::write(REPORTED, reported.trim())?;
    fs::write(WATCHDOG, watchdog.trim()).context(WATCHDOG)?;
    print!("{messages}");
    let is_whole = messages.contains("perfctr: lost 0 samples")
        && !["missing", "paused"].iter().any(|word| messages.contains(word));
    let outcome = if is_whole { Ok(()) } else { Err(messages) };
    tally.check("no sample of a KVM host is lost or missing", outcome);
    let profile = HostProfile::read(PROFILE)?;
    let samples = profile.samples()?;
    each_period(&mut tally, &profile, &samples, &moments, None)?;
    whose(&mut tally, &samples, &machines);
    live(&mut tally)?;
    Ok(tally.made().to_vec())
}

/// Samples while the kernel reports slow interrupts. The host's kernel then lacks samples, and the
/// command must say how many.
fn beside_reports(tally: &mut Tally, monitor: &mut Monitor) -> Result<()> {
    fs::write(REPORTED, EACH_TIME)?;
    let (moments, messages) = record(monitor)?;
    print!("the kernel reports slow interrupts: {messages}");
    let profile = HostProfile::read(PROFILE)?;
    let missing = profile.missing();
    let stated = format!("perfctr: {missing} samples more are missing: the kernel has held off");
    let says_so = messages.contains("more are missing");
    let is_stated = if missing == 0 { !says_so } else { messages.contains(&stated) };
    tally.check("the command says how many samples are missing", equal(is_stated, true));
    each_period(tally, &profile, &profile.samples()?, &moments, Some(missing))
}

/// Waits until the file has a line, and returns it.
fn first_line(path: &str) -> Result<String> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let text = fs::read_to_string(path)?;
        if let Some((line, _)) = text.split_once('\n') {
            return Ok(line.to_owned());
        }
        sleep(Duration::from_millis(100));
    }
    bail!("the second guest prints nothing")
}

/// Records, and works meanwhile. Returns what each CPU had executed at the beginning and at the end
/// of the window, and the command's messages.
fn record(monitor: &mut Monitor) -> Result<(Vec<[Moment; 2]>, String)> {
    let cpus = cpus()?;
    let oracles = cpus.iter().map(|&cpu| Oracle::open(cpu)).collect::<Result<Vec<_>>>()?;
    let list = format!("{NAME}={}", Kept::Kernel.path());
    let mut command = Command::new(PERFCTR);
    command.args(["record", "--host", "-o", PROFILE, "-e", "instructions"]);
    command.args(["-c", &PERIOD.to_string(), "--guest-symbols", &list]);
    let recording = begin(&mut command)?;
    let moments = thread::scope(|scope| -> Result<Vec<[Moment; 2]>> {
        let window = |cpu: usize, oracle: Oracle| -> Result<[Moment; 2]> {
            run_on(SELF, &[cpu])?;
            let (first, start) = (oracle.read()?, Instant::now());
            while start.elapsed() < WINDOW {
                work();
                sleep(Duration::from_millis(1));
            }
            Ok([first, oracle.read()?])
        };
        let readers: Vec<_> = cpus
            .iter()
            .zip(oracles)
            .map(|(&cpu, oracle)| scope.spawn(move || window(cpu, oracle)))
            .collect();
        let start = Instant::now();
        while start.elapsed() < WINDOW {
            monitor.list_commands()?;
        }
        readers.into_iter().map(|reader| reader.join().expect("it does not panic")).collect()
    })?;
    Ok((moments, end(recording)?))
}

/// Begins to record: the command's own program executes once it records, and ends when it has no
/// input any more.
fn begin(command: &mut Command) -> Result<Child> {
    let mut child = command
        .args(["--", "sh", "-c", "echo begun; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context(PERFCTR)?;
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().context("no output")?).read_line(&mut line)?;
    if line != "begun\n" {
        bail!("the recording does not begin: {line}{}", end(child)?);
    }
    Ok(child)
}

/// Ends a recording. Returns its messages.
fn end(child: Child) -> Result<String> {
    // This also closes its input.
    let Output { status, stderr, .. } = child.wait_with_output()?;
    let messages = String::from_utf8(stderr)?;
    ensure!(status.success(), "{status}: {messages}");
    Ok(messages)
}

fn report(arguments: &[&str]) -> Result<String> {
    let start = Instant::now();
    let output = Command::new(PERFCTR).args(["report", "-i", PROFILE]).args(arguments).output()?;
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{arguments:?}: {}: {printed}", output.status);
    println!("report {arguments:?}: {} ms", start.elapsed().as_millis());
    Ok(printed)
}

/// Returns the mode of a sample.
fn mode(sample: &Sample) -> usize {
    match (&*sample.layer, sample.domain) {
        ("hypervisor", _) | ("kernel" | "user", HOST) => usize::from(sample.module != KERNEL),
        ("kernel", _) => 2,
        _ => 3,
    }
}

/// Checks that each mode of each CPU has a sample for each period that it has executed.
///
/// Between two readings with N events, either N / PERIOD periods end, or one more. A sample is
/// taken as soon as its period has ended. So the samples that were certainly taken between the
/// readings are not more than that, and those that may have been taken between them not fewer. The
/// host's kernel may lack as many as the command states, if it states a number. It does not count
/// one of each event, whose interrupt may have come too late.
fn each_period(
    tally: &mut Tally,
    profile: &HostProfile,
    samples: &[Sample],
    moments: &[[Moment; 2]],
    stated: Option<u64>,
) -> Result<()> {
    let error = profile.clock_error() + 1;
    for (cpu, [first, last]) in moments.iter().enumerate() {
        let [from, to] = [first, last].map(|moment| moment.tsc.map(|tsc| profile.ns(tsc)));
        let ([from_0, from_1], [to_0, to_1]) = (from, to);
        let certainly = from_1? + error..to_0? - error;
        let perhaps = from_0?.saturating_sub(error)..to_1? + error;
        for (n, name) in MODES.into_iter().enumerate() {
            let own = samples.iter().filter(|one| one.cpu == cpu as u64 && mode(one) == n);
            let times: Vec<u64> = own.map(|sample| sample.ns).collect();
            let [certain, possible] = [&certainly, &perhaps]
                .map(|range| times.iter().filter(|time| range.contains(time)).count() as u64);
            let periods = (last.executed[n] - first.executed[n]) / PERIOD;
            let why = format!("{certain} to {possible} samples, {periods} periods or one more");
            println!("CPU {cpu}, {name}: {why}; {} samples in all", times.len());
            let lacking = stated.filter(|_| n == 0).map_or(0, |stated| stated + 1);
            let fits =
                periods > PERIODS_MIN && certain <= periods + 1 && possible + lacking >= periods;
            let when = if stated.is_some() { ", beside reports of slow interrupts" } else { "" };
            tally.check(
                &format!("CPU {cpu} has a sample for each period of {name}{when}"),
                if fits { Ok(()) } else { Err(why) },
            );
        }
    }
    Ok(())
}

/// Checks that each sample at the address of a virtual CPU's function is of this virtual CPU of
/// this machine, and that each virtual CPU has such samples.
fn whose(tally: &mut Tally, samples: &[Sample], machines: &[Machine]) {
    let guests: Vec<&Sample> = samples.iter().filter(|sample| mode(sample) >= 2).collect();
    let others = guests.iter().filter(|sample| {
        machines.iter().all(|machine| machine.process != sample.domain) || sample.vcpu.is_none()
    });
    let others: Vec<_> = others.take(3).collect();
    let name = "each sample of a guest is of one of the two machines and of a virtual CPU";
    tally.check(name, equal(others, Vec::new()));
    for machine in machines {
        for worker in &machine.workers {
            let there = guests.iter().filter(|sample| {
                sample.layer == "user" && worker.function.contains(&sample.address)
            });
            let whose = (machine.process, Some(worker.vcpu));
            let (own, wrong): (Vec<&Sample>, Vec<&Sample>) =
                there.partition(|sample| (sample.domain, sample.vcpu) == whose);
            let (own, name) = (own.len() as u64, machine.name);
            let why = format!("{own} samples, and of others {:?}", wrong.first());
            println!("{name} vCPU {}: {why}", worker.vcpu);
            let fits = own >= PERIODS_MIN && wrong.is_empty();
            tally.check(
                &format!("samples in the program of {name} vCPU {} are its own", worker.vcpu),
                if fits { Ok(()) } else { Err(why) },
            );
        }
    }
}

/// Returns the samples and the columns of each row of a table. The last column may have spaces.
fn rows(table: &str, columns: usize) -> Vec<(u64, Vec<String>)> {
    let row = |line: &str| {
        let mut words = line.trim_start().splitn(2, ' ');
        let samples = words.next()?.parse().ok()?;
        let (percent, rest) = words.next()?.trim_start().split_once(' ')?;
        percent.trim_end_matches('%').parse::<f64>().ok()?;
        let mut parts: Vec<String> = rest
            .split("  ")
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();
        parts.truncate(columns);
        (parts.len() == columns).then_some((samples, parts))
    };
    table.lines().filter_map(row).collect()
}

/// Checks that the report has each virtual CPU, the threads of the machine's process, and the names
/// of functions.
fn named(tally: &mut Tally) -> Result<()> {
    let table = report(&["-s", "layer,domain,thread,module,symbol"])?;
    print_top(&table);
    let rows = rows(&table, 5);
    for domain in [NAME, OTHER] {
        let has = |layer: &str, thread: &str| {
            rows.iter().any(|(_, row)| row[..3] == [layer, domain, thread])
        };
        let lack: Vec<String> = (0..VCPUS)
            .flat_map(|vcpu| ["user", "kernel", "hypervisor"].map(|layer| (vcpu, layer)))
            .map(|(vcpu, layer)| (layer, format!("{domain} vCPU {vcpu}")))
            .filter(|(layer, thread)| !has(layer, thread))
            .map(|(layer, thread)| format!("{layer} {thread}"))
            .collect();
        let name = format!("the report has each layer of each virtual CPU of {domain}");
        tally.check(&name, equal(lack, Vec::new()));
    }
    for (what, layer, domain, thread, module, function) in [
        ("the first guest's kernel", "kernel", NAME, "vCPU", KERNEL_OF, "__do_sys_getppid"),
        (
            "the second guest's kernel, which is unknown",
            "kernel",
            OTHER,
            "vCPU",
            KERNEL_OF,
            KERNEL_OF,
        ),
        ("the host's kernel", "kernel", "host", " host", KERNEL, "__do_sys_getppid"),
        ("KVM", "hypervisor", NAME, "vCPU", KERNEL, "svm_"),
        ("the emulator's own threads", "hypervisor", NAME, "qemu", "qemu-system-x86_64", ""),
        ("the host's own program", "user", "host", " host", "host", "host_work"),
    ] {
        let is_there = |(_, row): &&(u64, Vec<String>)| {
            row[..2] == [layer, domain]
                && row[2].contains(thread)
                && row[3].contains(module)
                && row[4].contains(function)
        };
        let found: u64 = rows.iter().filter(is_there).map(|(samples, _)| samples).sum();
        println!("{what}: {found} samples");
        tally.check(&format!("the report names {what}"), equal(found > 0, true));
    }
    let foreign = |(_, row): &&(u64, Vec<String>)| {
        row[..2] == ["kernel", OTHER] && !row[4].starts_with(KERNEL_OF)
    };
    let foreign: Vec<_> = rows.iter().filter(foreign).take(3).collect();
    let name = "no function of one guest's kernel is in the other one's";
    tally.check(name, equal(foreign, Vec::new()));
    Ok(())
}

/// Prints the first rows of a table. The console is slow.
fn print_top(table: &str) {
    const ROWS: usize = 60;
    table.lines().take(ROWS).for_each(|line| println!("{line}"));
}

/// Checks that the live view shows both guests and the host in its first table.
fn live(tally: &mut Tally) -> Result<()> {
    let period = PERIOD.to_string();
    let view = ["top", "--host", "--plain", "-n", "1", "-e", "instructions", "-c", &period];
    let output = Command::new(PERFCTR).args(view).args(["-s", "layer,domain"]).output()?;
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    println!("{printed}");
    let rows = rows(&printed, 2);
    let layers = |domain: &str| -> BTreeSet<&str> {
        rows.iter().filter(|(_, row)| row[1] == domain).map(|(_, row)| &*row[0]).collect()
    };
    let found = [NAME, OTHER, "host"].map(layers);
    let of_guests = BTreeSet::from(["hypervisor", "kernel", "user"]);
    let expected = [of_guests.clone(), of_guests, BTreeSet::from(["kernel", "user"])];
    let name = "the live view of a KVM host has each layer of each guest and of the host";
    tally.check(name, equal((output.status.success(), found), (true, expected)));
    Ok(())
}

/// Judges the profile with what the first guest has recorded of its programs.
pub fn report_joined(long: bool) -> Result<Vec<Made>> {
    let mut tally = Tally::default();
    let workers = Worker::parse(&fs::read_to_string(Kept::Workers.path())?)?;
    let samples = HostProfile::read(PROFILE)?.samples()?;
    named(&mut tally)?;
    joined(&mut tally, &workers, &samples)?;
    if long {
        formats(&mut tally, samples.len() as u64)?;
    }
    Ok(tally.made().to_vec())
}

/// Adds what the first guest has recorded to a report.
fn report_of_guest(arguments: &[&str]) -> Result<String> {
    let guest = format!("{NAME}={}", Kept::Names.path());
    report(&[&["--guest", &guest], arguments].concat())
}

/// Checks that the samples in each worker's function have its process and the function, but for
/// those that may be unknown by what the report says, and that no others have.
fn joined(tally: &mut Tally, workers: &[Worker], samples: &[Sample]) -> Result<()> {
    let table = report_of_guest(&["-s", "layer,domain,process,symbol"])?;
    print_top(&table);
    let rows = rows(&table, 4);
    let unknown = unknown_at_most(&table)?;
    for worker in workers {
        let name = workers::name(Side::Left, worker.vcpu as usize);
        let here =
            |sample: &&Sample| sample.layer == "user" && worker.function.contains(&sample.address);
        let all = samples.iter().filter(here).count() as u64;
        let process = format!("{} {name}", worker.pid);
        let of_function = rows.iter().filter(|(_, row)| row[3].ends_with(name));
        let (own, others): (Vec<_>, Vec<_>) = of_function
            .partition(|(_, row)| (&*row[0], &*row[1], &*row[2]) == ("user", NAME, &*process));
        let own: u64 = own.iter().map(|(samples, _)| samples).sum();
        let why = format!("{own} of {all} samples, {unknown} may be unknown, {others:?} of others");
        println!("{name}: {why}");
        let fits = own > 0 && own <= all && own + unknown >= all && others.is_empty();
        tally.check(
            &format!("each sample of the program {name} in a guest is of its process and function"),
            if fits { Ok(()) } else { Err(why) },
        );
    }
    Ok(())
}

/// Checks that each format has both guests, the host's layers and the first guest's programs.
fn formats(tally: &mut Tally, samples: u64) -> Result<()> {
    let programs = (0..VCPUS).map(|vcpu| workers::name(Side::Left, vcpu).to_owned());
    let others = (0..VCPUS).map(|vcpu| format!("{OTHER} vCPU {vcpu}"));
    let texts: Vec<String> =
        programs.chain(others).chain(["__do_sys_getppid", "host_work"].map(Into::into)).collect();
    for format in ["folded", "flame-graph", "pprof", "firefox", "perf"] {
        let path = format!("/machine/host.{format}");
        report_of_guest(&["-f", format, "-o", &path])?;
        let bytes = fs::read(&path)?;
        let lacks = |text: &&String| !bytes.windows(text.len()).any(|at| at == text.as_bytes());
        // perf looks for the names of programs' functions in the files themselves.
        let wanted = texts.len() - usize::from(format == "perf");
        let lacking: Vec<&String> = texts[..wanted].iter().filter(lacks).collect();
        let name = format!("the format {format} has all guests, threads and functions");
        tally.check(&name, equal(lacking, Vec::new()));
    }
    let folded = fs::read_to_string("/machine/host.folded")?;
    let numbers =
        folded.lines().map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<u64>());
    let sum = numbers.sum::<Result<u64, _>>()?;
    tally.check("the folded stacks have each sample once", equal(sum, samples));
    let output = Command::new(PERFCTR).args(["report", "-i", "/machine/host.perf"]).output()?;
    let again = String::from_utf8(output.stdout)?;
    let sum: u64 = rows(&again, 1).iter().map(|(samples, _)| samples).sum();
    tally.check("the file for Linux's perf has each sample once", equal(sum, samples));
    Ok(())
}
