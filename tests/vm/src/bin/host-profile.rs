// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests `perfctr record --host`, the reports that `perfctr report` makes of its profiles, and
//! `perfctr top --host`.
//!
//! The emulator's tally says how many instructions physical CPU 0 has executed in ring 0, where
//! only Xen executes, and outside of it. The command runs a program, which reads the tally and the
//! time before and after its work. Between these times there must be one sample for each period.
//!
//! With `--work FILE` this is that program. With `--refused` it tests a host without the option.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Output, Stdio};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use object::{Object, ObjectSymbol};
use perfctr::rdpmc::Hardware;
use perfctr::{Event, Provider, Session};
use serde_json::Value;
use shared_abi::hypercall::PROFILE_LEASE_MS;
use shared_abi::read::Counters;
use vm_tests::emulated::{OUTSIDE_RING_0, RING_0};
use vm_tests::host_profile::HostProfile;
use vm_tests::region::{self, Region};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::xen::{CONTROL_DOMAIN, UNCOUNTED, Xen};

const PERFCTR: &str = "/work/perfctr";
const THIS: &str = "/work/host-profile";
/// The hypervisor's file.
const XEN_SYMS: &str = "/work/xen-syms";
const PROFILE: &str = "/tmp/host.data";
const WORKED: &str = "/tmp/worked";
/// The number of events between two samples, and a number so small that the command cannot take all
/// samples in time.
const PERIOD: u64 = 100_000;
const SHORT: u64 = 10_000;
/// The work, unit: rounds.
const ROUNDS: u64 = 1_000;
/// How long the command is stopped: less than the lease, and more.
const PAUSE: Duration = Duration::from_millis(PROFILE_LEASE_MS - 500);
const TOO_LONG: Duration = Duration::from_millis(PROFILE_LEASE_MS + 1_000);
/// After this time the command has certainly begun.
const BEGUN: Duration = Duration::from_secs(2);
/// Functions of Xen's that system calls of a PV guest execute.
const XENS: [&str; 3] = ["lstar_enter", "restore_all_guest", "create_bounce_frame"];

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut tally = Tally::default();
    match &*arguments {
        [] => {
            profile_of_host(&mut tally)?;
            Ok(tally.finish())
        }
        [flag, file] if flag == "--work" => work(file.as_ref()),
        [flag] if flag == "--refused" => {
            refused(&mut tally)?;
            Ok(tally.finish())
        }
        _ => bail!("unknown arguments {arguments:?}"),
    }
}

fn profile_of_host(tally: &mut Tally) -> Result<()> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    let cpus = cpus()?;
    for &cpu in &cpus {
        let on = if cpu == 0 { 1 } else { 2 };
        xen.set_affinity(CONTROL_DOMAIN, cpu as u32, on)?;
    }
    // The command itself executes on the other physical CPU.
    run_on(SELF, &cpus[1..])?;
    layers(tally)?;
    functions(tally)?;
    files(tally)?;
    own_names(tally)?;
    live(tally)?;
    loses(tally)?;
    nothing_is_left(tally)
}

/// Reads time and tally, works, and reads them again.
fn work(file: &Path) -> Result<ExitCode> {
    run_on(SELF, &[0])?;
    region::overhead()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS])?;
    let read = || {
        let executed = [RING_0, OUTSIDE_RING_0].map(|index| Hardware.counter(index));
        [Hardware.clock(), executed[0], executed[1]]
    };
    let before = read();
    for _ in 0..ROUNDS {
        for _ in 0..200 {
            nix::unistd::getppid();
        }
        Region { first: 4_000, second: 1 }.execute(&mut 0);
    }
    let after = read();
    fs::write(file, serde_json::to_vec(&[before, after])?)?;
    Ok(ExitCode::SUCCESS)
}

fn record<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(PERFCTR);
    command.args(["record", "--host", "-o", PROFILE]).args(arguments);
    command
}

/// Runs a command that succeeds. Returns its messages for people.
fn shown(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output()?;
    let shown = String::from_utf8([stdout, stderr].concat())?;
    ensure!(status.success(), "{command:?}: {status}: {shown}");
    Ok(shown)
}

/// Runs a command that fails. Returns its messages.
fn failed(command: &mut Command) -> Result<String> {
    let Output { status, stderr, .. } = command.output()?;
    let shown = String::from_utf8(stderr)?;
    ensure!(status.code() == Some(125), "{command:?}: {status}: {shown}");
    Ok(shown)
}

fn report(arguments: &[&str]) -> Result<String> {
    shown(Command::new(PERFCTR).args(["report", "-i", PROFILE]).args(arguments))
}

/// Returns the number of samples by layer between two times.
fn by_layer(from_tsc: u64, to_tsc: u64) -> Result<BTreeMap<String, u64>> {
    let profile = HostProfile::read(PROFILE)?;
    let during = profile.ns(from_tsc)?..profile.ns(to_tsc)?;
    let mut layers = BTreeMap::new();
    for sample in profile.samples()? {
        ensure!(sample.cpu == 0, "physical CPU 0 is sampled: {sample:?}");
        if during.contains(&sample.ns) {
            *layers.entry(sample.layer).or_default() += 1;
        }
    }
    Ok(layers)
}

/// Checks that each ring has a sample for each of its periods, of code that executes in that ring.
fn layers(tally: &mut Tally) -> Result<()> {
    for (event, modes, counts) in [
        ("instructions:k", &["hypervisor"][..], [1, 0]),
        ("instructions:u", &["kernel", "user"], [0, 1]),
        ("instructions", &["hypervisor", "kernel", "user"], [1, 1]),
    ] {
        let period = PERIOD.to_string();
        let printed = shown(
            record(["-e", event, "-c", &period, "-C", "0", "--", THIS, "--work", WORKED])
                .stdin(Stdio::null()),
        )?;
        print!("{printed}");
        let [before, after]: [[u64; 3]; 2] = serde_json::from_slice(&fs::read(WORKED)?)?;
        let executed = [1, 2].map(|n| after[n].wrapping_sub(before[n]));
        let found = by_layer(before[0], after[0])?;
        let samples: u64 = found.values().sum();
        let uncounted = counts[0] * samples * UNCOUNTED;
        let executed = executed[0] * counts[0] + executed[1] * counts[1];
        let [least, most] = [executed.saturating_sub(uncounted), executed].map(|n| n / PERIOD);
        println!("{event}: {found:?}, {least} to {most} periods");
        let each = (least.saturating_sub(1)..=most + 1).contains(&samples) && least > 20;
        let why = format!("{samples} samples found, {least} to {most} within one expected");
        tally.check(
            &format!("{event} of the host has a sample for each period"),
            if each { Ok(()) } else { Err(why) },
        );
        let layers: Vec<&str> = found.keys().map(String::as_str).collect();
        tally.check(&format!("{event} is of its layers"), equal(layers, modes.to_vec()));
        let none_lost = printed.contains("perfctr: lost 0 samples");
        tally.check(&format!("{event}: it is said that none was lost"), equal(none_lost, true));
    }
    Ok(())
}

/// Checks that functions of Xen and of the kernel have names: the profile covers all layers.
fn functions(tally: &mut Tally) -> Result<()> {
    let table = report(&[])?;
    println!("{table}");
    for function in XENS {
        let row = |line: &str| {
            let mut words = line.split_whitespace().skip(2);
            words.next() == Some("hypervisor") && line.ends_with(function)
        };
        let named = table.lines().any(row);
        tally.check(&format!("Xen's function {function} is named"), equal(named, true));
    }
    let of = |layer: &str, unnamed: &str| {
        let rows = table.lines().filter(|line| line.split_whitespace().nth(2) == Some(layer));
        let samples = |line: &str| line.split_whitespace().next()?.parse::<u64>().ok();
        let mut all = [0, 0];
        for line in rows {
            all[usize::from(line.ends_with(unnamed))] += samples(line).unwrap_or(0);
        }
        all
    };
    for (layer, unnamed) in [("hypervisor", "[xen]"), ("kernel", "[kernel]")] {
        let [named, nameless] = of(layer, unnamed);
        println!("{layer}: {named} samples in functions, {nameless} elsewhere");
        let few = named > 0 && nameless * 20 <= named;
        tally.check(&format!("samples of the layer {layer} are in functions"), equal(few, true));
    }
    let layers = report(&["-s", "layer"])?;
    println!("{layers}");
    let flames = report(&["-f", "flame-graph"])?;
    let drawn = ["lstar_enter", "hypervisor", "kernel", "user", "orange: hypervisor"];
    let drawn = drawn.map(|text| flames.contains(text));
    tally.check("the flame graph has each layer", equal(drawn, [true; 5]));
    Ok(())
}

/// Checks that the command accepts the running hypervisor's file, and refuses another file with a
/// message about the build-ids. Also checks that it refuses a physical CPU that does not exist.
fn files(tally: &mut Tally) -> Result<()> {
    let printed =
        shown(&mut record(["-c", "1000000", "--xen-syms", XEN_SYMS, "--", "sleep", "3"]))?;
    print!("{printed}");
    let table = report(&["-s", "layer,module,symbol"])?;
    println!("{table}");
    let from_file = |line: &str| line.contains("hypervisor") && line.contains("xen-syms");
    let named = table.lines().filter(|line| from_file(line) && !line.ends_with("[xen-syms]"));
    tally.check("functions are found in xen-syms", equal(named.count() > 0, true));
    let running = fs::read("/sys/hypervisor/properties/buildid")?;
    let running: String = running.iter().map(|byte| format!("{byte:02x}")).collect();
    let error = failed(&mut record(["--xen-syms", PERFCTR, "--", "sleep", "1"]))?;
    print!("{error}");
    let explains =
        running.len() == 40 && error.contains(&running) && error.contains("found, but the Xen");
    tally.check("another file is refused by both build-ids", equal(explains, true));
    let error = failed(&mut record(["-C", "7", "--", "sleep", "1"]))?;
    print!("{error}");
    let explains = error.contains("physical CPUs that were named does not exist");
    tally.check("a physical CPU that is not there is refused", equal(explains, true));
    Ok(())
}

/// Checks that each function has the same name in Xen's own table, from which Xen prints and hands
/// out names, as in its file. There, `FILE#` is in front of the name of a local function.
fn own_names(tally: &mut Tally) -> Result<()> {
    let file = fs::read(XEN_SYMS)?;
    let file = object::File::parse(&*file)?;
    let named = |symbol: object::Symbol<'_, '_>| {
        Some((symbol.address(), symbol.name().ok().filter(|name| !name.is_empty())?.to_owned()))
    };
    let in_file: BTreeSet<(u64, String)> = file.symbols().filter_map(named).collect();
    let known = perfctr::host::Xen::open()?.symbols()?;
    let is_wrong = |symbol: &&perfctr::host::Symbol| {
        let name = symbol.name.rsplit('#').next().unwrap_or_default();
        !in_file.contains(&(symbol.address, name.to_owned()))
    };
    let wrong: Vec<_> = known.iter().filter(is_wrong).take(3).collect();
    println!("{} names", known.len());
    let has_many = known.len() > in_file.len() / 4;
    tally.check("Xen's own names are those of its file", equal((has_many, wrong), (true, vec![])));
    Ok(())
}

/// What `perfctr top --host` prints, update by update.
struct Live {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// The line behind the last update, with which the next update begins.
    head: String,
}

impl Live {
    fn begin() -> Result<Self> {
        let mut command = Command::new(PERFCTR);
        command.args(["top", "--host", "--plain", "-d", "500", "-e", "instructions"]);
        command.args(["-c", &PERIOD.to_string(), "-s", "cpu,layer,symbol"]);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("no output")?;
        let mut lines = BufReader::new(output).lines();
        let head = lines.next().context("nothing is printed")??;
        Ok(Self { child, lines, head })
    }

    /// Returns the next update: physical CPU, layer, function and samples of each row.
    fn update(&mut self) -> Result<Vec<(u32, String, String, u64)>> {
        let mut rows = Vec::new();
        loop {
            let line = self.lines.next().context("it has ended")??;
            let words: Vec<&str> = line.split_whitespace().collect();
            match *words {
                ["samples", "%", ..] => {}
                [samples, _, cpu, layer, ref function @ ..] if cpu.parse::<u32>().is_ok() => {
                    let function = function.join(" ");
                    rows.push((cpu.parse()?, layer.to_owned(), function, samples.parse()?));
                }
                _ if line.contains(" of ") && line.ends_with("from xen") => {
                    self.head = line;
                    return Ok(rows);
                }
                _ => bail!("{line:?} behind {:?}", self.head),
            }
        }
    }
}

/// Checks that the view shows each sample once, with the domain's and Xen's functions.
///
/// Physical CPU 0 has little to do except the work. Updates are also taken before and after the
/// work.
fn live(tally: &mut Tally) -> Result<()> {
    let executed = || -> Result<u64> {
        let read = || -> Result<u64> {
            run_on(SELF, &[0])?;
            Ok(Hardware.counter(RING_0).wrapping_add(Hardware.counter(OUTSIDE_RING_0)))
        };
        thread::scope(|scope| scope.spawn(read).join().expect("it does not panic"))
    };
    let before = executed()?;
    let mut top = Live::begin()?;
    let (mut functions, mut samples) = (BTreeSet::new(), 0);
    let mut add = |rows: Vec<(u32, String, String, u64)>| {
        for (_, layer, function, number) in rows.into_iter().filter(|row| row.0 == 0) {
            samples += number;
            functions.insert((layer, function));
        }
    };
    top.update()?;
    let from = executed()?;
    let mut worker = Command::new(THIS).args(["--work", WORKED]).spawn()?;
    while worker.try_wait()?.is_none() {
        add(top.update()?);
    }
    let to = executed()?;
    // Some updates may have been printed already.
    for _ in 0..4 {
        add(top.update()?);
    }
    let after = executed()?;
    send(&top.child, Signal::SIGTERM)?;
    ensure!(top.child.wait()?.success(), "it ends well");
    let [least, most] = [to.wrapping_sub(from), after.wrapping_sub(before)];
    let least = least.saturating_sub(UNCOUNTED * samples) / PERIOD;
    let most = most / PERIOD;
    println!("top: {samples} samples, {least} to {most} periods");
    let each = (least.saturating_sub(1)..=most + 1).contains(&samples) && least > 20;
    let why = format!("{samples} samples found, {least} to {most} within one expected");
    tally.check("the view has a sample for each period", if each { Ok(()) } else { Err(why) });
    for function in XENS {
        // A name may be preceded by the name of its file.
        let mut xens = functions.iter().filter(|(layer, _)| layer == "hypervisor");
        let named = xens.any(|(_, name)| name.ends_with(function));
        tally.check(&format!("the view names Xen's function {function}"), equal(named, true));
    }
    let layers: BTreeSet<&str> = functions.iter().map(|(layer, _)| &**layer).collect();
    tally.check(
        "the view has all layers",
        equal(layers, BTreeSet::from(["hypervisor", "kernel", "user"])),
    );
    let after = shown(&mut record(["-c", "1000000", "--", "sleep", "1"]))?;
    tally.check("nothing is left of a view", equal(after.contains("lost 0 "), true));
    Ok(())
}

/// Starts to record for ever.
fn begin(period: u64) -> Result<Child> {
    let period = period.to_string();
    let child = record(["-e", "instructions", "-c", &period]).stderr(Stdio::piped()).spawn()?;
    sleep(BEGUN);
    Ok(child)
}

fn send(child: &Child, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(child.id().cast_signed()), signal)?)
}

/// Stops the command for some time while there is work, and then ends it. Returns what it says.
fn paused(pause: Duration) -> Result<String> {
    let child = begin(SHORT)?;
    send(&child, Signal::SIGSTOP)?;
    let mut worker = Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?;
    sleep(pause);
    send(&child, Signal::SIGCONT)?;
    worker.kill()?;
    worker.wait()?;
    sleep(Duration::from_millis(500));
    send(&child, Signal::SIGTERM)?;
    let Output { status, stderr, .. } = child.wait_with_output()?;
    let shown = String::from_utf8(stderr)?;
    print!("{shown}");
    ensure!(status.success(), "{status}: {shown}");
    Ok(shown)
}

/// Checks that samples which are not taken in time are counted, and that the command reports their
/// number.
fn loses(tally: &mut Tally) -> Result<()> {
    let shown = paused(PAUSE)?;
    let lost = shown.lines().find_map(|line| {
        let (number, rest) = line.strip_prefix("perfctr: lost ")?.split_once(' ')?;
        rest.starts_with("sample").then(|| number.parse::<u64>().ok())?
    });
    println!("{lost:?} lost");
    tally.check("lost samples are counted", equal(lost.is_some_and(|lost| lost > 0), true));
    let profile: Value = serde_json::from_slice(&fs::read(PROFILE)?)?;
    let same = equal(profile["lost"].as_u64(), lost);
    tally.check("the profile has the number of lost samples", same);
    let head = report(&["-s", "layer"])?;
    let missed = format!("{} more were missed", lost.unwrap_or(0));
    tally.check("the report has it, too", equal(head.contains(&missed), true));
    let early = paused(TOO_LONG)?.contains("sampling has ended early");
    tally.check("a command that was stopped for too long says so", equal(early, true));
    Ok(())
}

/// Checks that a command leaves nothing behind, in whatever way it ends.
fn nothing_is_left(tally: &mut Tally) -> Result<()> {
    let mut killed = begin(PERIOD)?;
    let busy = failed(&mut record(["--", "true"]))?;
    tally.check(
        "there is one recording at a time",
        equal(busy.contains("somebody does so already"), true),
    );
    send(&killed, Signal::SIGKILL)?;
    killed.wait()?;
    sleep(TOO_LONG);
    let after = shown(&mut record(["-c", "1000000", "--", "sleep", "1"]))?;
    tally.check("nothing is left of one that was killed", equal(after.contains("lost 0 "), true));
    let ended = begin(PERIOD)?;
    send(&ended, Signal::SIGTERM)?;
    ensure!(ended.wait_with_output()?.status.success(), "it ends well");
    let after = shown(&mut record(["-c", "1000000", "--", "sleep", "1"]))?;
    let again = equal(after.contains("lost 0 "), true);
    tally.check("another one can begin at once after one that has ended", again);
    Ok(())
}

/// Checks that the error says what to do if the option is missing.
fn refused(tally: &mut Tally) -> Result<()> {
    let error = failed(&mut record(["--", "true"]))?;
    print!("{error}");
    let explains = error.contains("Xen's option `perfctr=profile`");
    tally.check("a host without the option is refused with what to do", equal(explains, true));
    tally.check("no profile is left", equal(Path::new(PROFILE).exists(), false));
    Ok(())
}
