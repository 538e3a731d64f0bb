// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests samples of the host itself: their number, their contents, and their end.
//!
//! The emulator's tally says how many instructions a physical CPU has executed in ring 0, where
//! only Xen executes, and outside of it. Meanwhile this program's vCPU is alone on physical CPU 0.
//!
//! With `passive`, this samples a PVH tenant, which runs this program with `tenant`, and does not
//! know of it. With another command as its arguments, it samples the host while that command runs.

use std::collections::{BTreeMap, HashSet};
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use perfctr::host::DomainClock;
use perfctr::rdpmc::Hardware;
use serde_json::{Value, json};
use shared_abi::hypercall::{
    HvSample, PLACE_KERNEL, PLACE_USER, PROFILE_LEASE_MS, SAMPLE_FOR_KERNEL, SAMPLE_FOR_USER,
    SAMPLE_HYPERVISOR,
};
use shared_abi::read::Counters;
use vm_tests::emulated::{GUESTS_RING_0, OUTSIDE_RING_0, RING_0};
use vm_tests::profile::{BOTH, OUTSIDE_ONLY, Profile, RING_0_ONLY};
use vm_tests::raw::Refusal;
use vm_tests::region::Region;
use vm_tests::tallied::{CPU, OTHER, move_to_cpu, start_passive_tenant};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::toolstack::{Tenant, live, send};
use vm_tests::witness::Witness;
use vm_tests::xen::{CONTROL_DOMAIN, UNCOUNTED, Xen};

/// A kernel executes at least this many instructions from an entry to its return to user mode. So
/// at most one in this number of its samples is of the instruction that returns.
const KERNEL_MIN: u64 = 100;
/// How many samples of a program may be of the last instruction before a VM exit. One in
/// [`PERIOD`] exits is right behind the end of a period, and there are fewer exits than that.
const BEFORE_EXITS_MAX: u64 = 1;
/// Events between two samples.
const PERIOD: u64 = 100_000;
const SHORT: u64 = 10_000;
/// The number of samples that a physical CPU keeps.
const RING: u64 = 4096;
/// Xen's code is in this part of the address space (its layout in `config.h`).
const XENS: std::ops::Range<u64> = 0xffff_82d0_4000_0000..0xffff_82d0_8000_0000;
/// The work of a measurement, unit: rounds. A round of [`work`] executes more instructions than
/// the second number.
const ROUNDS: u64 = 300;
const WORK_MIN: u64 = 8_000;
/// The instructions that beginning and ending may take, and the number of attempts.
const AROUND: u64 = 100_000;
const ATTEMPTS: u32 = 20;
/// At most this many instructions of the hypervisor follow a sample of a tenant until the tenant
/// continues. They are at the beginning of a period, so hardly any sample is taken there.
const FOLLOWING: u64 = 2_500;
/// How often samples of a tenant are taken, and the time between.
const LOOKS: u32 = 60;
const LOOK: Duration = Duration::from_millis(20);
/// How long a guest's counts are watched.
const BESIDE: Duration = Duration::from_secs(2);

/// What was found in a measurement.
struct Found {
    samples: Vec<HvSample>,
    lost: u64,
    /// The instructions that the emulator has executed: in ring 0, elsewhere, and in guests' own
    /// ring 0, which are also in the first number. One set covers the time in which the CPU was
    /// certainly sampled, the other one the time in which it may have been.
    certainly: Executed,
    perhaps: Executed,
}

type Executed = [u64; 3];

impl Found {
    /// Compares the number of samples with the instructions that this event counts.
    fn is_each_period(&self, evntsel: u64, period: u64) -> Result<(), String> {
        let taken = self.samples.len() as u64 + self.lost;
        let has_ring_0 = counted(evntsel, [1, 0, 0]);
        let least = counted(evntsel, self.certainly).saturating_sub(has_ring_0 * taken * UNCOUNTED);
        let [least, most] = [least, counted(evntsel, self.perhaps)].map(|events| events / period);
        let why = format!("{taken} samples, {} of them lost, {least} to {most} periods", self.lost);
        println!("{why}");
        let fits = (least.saturating_sub(1)..=most + 1).contains(&taken);
        if fits { Ok(()) } else { Err(why) }
    }
}

fn main() -> Result<ExitCode> {
    let command: Vec<String> = env::args().skip(1).collect();
    match command.first().map(String::as_str) {
        Some("tenant") => return live(tenant),
        Some("passive") => return passive(),
        Some(_) => return around(&command),
        None => {}
    }
    let xen = Xen::open().context("this is not Xen's control domain")?;
    let cpus = cpus()?;
    let session = move_to_cpu(&xen, &cpus)?;
    let (profile, mut tally) = (Profile::new(&xen), Tally::default());
    nobody(&profile, &mut tally);
    samples(&profile, &mut tally)?;
    samples_at_guests(&profile.at_guests(), &mut tally)?;
    full(&profile, &mut tally)?;
    drop(session);
    counts_stay_exact(&profile, &cpus[1..], &mut tally)?;
    sessions_end(&profile, &mut tally)?;
    Ok(tally.finish())
}

/// Checks that nothing can be taken or ended while nobody samples, and that wrong arguments fail.
fn nobody(profile: &Profile<'_>, tally: &mut Tally) {
    let outcome = (profile.some(CPU).map(drop), profile.stop());
    tally.check(
        "while nobody samples there is nothing to take or to end",
        equal(outcome, (Err(Refusal::ENXIO), Err(Refusal::ENXIO))),
    );
    let outcome = [
        profile.start(RING_0_ONLY, SHORT - 1, u64::MAX),
        profile.start(RING_0_ONLY, 1 << 40, u64::MAX),
        profile.start(RING_0_ONLY, PERIOD, 0),
        profile.start(RING_0_ONLY | 1 << 20, PERIOD, u64::MAX),
        profile.start(0x42_00c0 & !(3 << 16), PERIOD, u64::MAX),
    ];
    let expected = [Refusal::EINVAL, Refusal::EINVAL, Refusal::EINVAL, Refusal::EPERM];
    let mut expected: Vec<_> = expected.map(Err).into();
    expected.push(Err(Refusal::EINVAL));
    tally.check("a profile that is wrong is refused", equal(outcome.to_vec(), expected));
}

/// Samples physical CPU 0 while `work` executes there, once for each round.
///
/// Beginning and ending take long if the machine's other CPU is late. Then the measurement is
/// repeated.
fn measure(
    profile: &Profile<'_>,
    evntsel: u64,
    period: u64,
    work: impl Fn(&mut Found) -> Result<(), Refusal>,
) -> Result<Found> {
    for _ in 0..ATTEMPTS {
        let found = measure_once(profile, evntsel, period, &work)?;
        let sum = |executed: Executed| executed[0] + executed[1];
        if sum(found.perhaps) - sum(found.certainly) <= AROUND {
            return Ok(found);
        }
    }
    bail!("it takes more than {AROUND} instructions to begin and to end, {ATTEMPTS} times");
}

fn measure_once(
    profile: &Profile<'_>,
    evntsel: u64,
    period: u64,
    work: impl Fn(&mut Found) -> Result<(), Refusal>,
) -> Result<Found> {
    let read = || [RING_0, OUTSIDE_RING_0, GUESTS_RING_0].map(|index| Hardware.counter(index));
    let mut found = Found { samples: Vec::new(), lost: 0, certainly: [0; 3], perhaps: [0; 3] };
    let first = read();
    profile.start(evntsel, period, 1 << CPU)?;
    let before = read();
    work(&mut found)?;
    // Taking all samples of a ring takes longer than a period. The samples that remain then are
    // taken at once.
    for _ in 0..2 {
        profile.take(CPU, &mut found.samples)?;
    }
    let after = read();
    found.lost = profile.take(CPU, &mut found.samples)?;
    profile.stop()?;
    let last = read();
    found.certainly = [0, 1, 2].map(|n| after[n].wrapping_sub(before[n]));
    found.perhaps = [0, 1, 2].map(|n| last[n].wrapping_sub(first[n]));
    Ok(found)
}

/// Executes system calls, which enter Xen, and instructions of this program.
fn work() {
    for _ in 0..200 {
        nix::unistd::getppid();
    }
    Region { first: 4_000, second: 1 }.execute(&mut 0);
}

/// Samples physical CPU 0 while this program works there.
fn measure_work(profile: &Profile<'_>, evntsel: u64) -> Result<Found> {
    measure(profile, evntsel, PERIOD, |found| {
        for _ in 0..ROUNDS {
            work();
            profile.take(CPU, &mut found.samples)?;
        }
        Ok(())
    })
}

fn samples(profile: &Profile<'_>, tally: &mut Tally) -> Result<()> {
    for (name, evntsel, modes) in [
        ("Xen", RING_0_ONLY, &[SAMPLE_HYPERVISOR][..]),
        ("guests", OUTSIDE_ONLY, &[PLACE_KERNEL, PLACE_USER]),
        ("Xen and guests", BOTH, &[SAMPLE_HYPERVISOR, PLACE_KERNEL, PLACE_USER]),
    ] {
        let found = measure_work(profile, evntsel)?;
        let each = found.is_each_period(evntsel, PERIOD);
        tally.check(&format!("there is a sample for each period of {name}"), each);
        let places = judge(&found.samples, modes);
        tally.check(&format!("samples of {name} say where they were"), places);
    }
    Ok(())
}

/// Checks that samples of the hypervisor say where its guest was left.
fn samples_at_guests(profile: &Profile<'_>, tally: &mut Tally) -> Result<()> {
    let found = measure_work(profile, BOTH)?;
    let each = found.is_each_period(BOTH, PERIOD);
    tally.check("there is a sample for each period if guests are shown in place of Xen", each);
    let modes = [SAMPLE_FOR_KERNEL, SAMPLE_FOR_USER, PLACE_KERNEL, PLACE_USER];
    tally.check("samples of Xen say where it was entered", judge(&found.samples, &modes));
    let by_calls = follow_system_calls(&found.samples)?;
    tally.check("what system calls have Xen execute is shown at system calls", by_calls);
    Ok(())
}

/// Checks samples of what Xen executes for user mode: most are behind a system call, of which
/// [`work`] makes many.
fn follow_system_calls(samples: &[HvSample]) -> Result<Result<(), String>> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let memory = File::open("/proc/self/mem")?;
    let follows = |sample: &&HvSample| {
        let mut before = [0; SYSCALL.len()];
        let start = sample.ip.wrapping_sub(before.len() as u64);
        // If nothing can be read, another process was interrupted.
        memory.read_exact_at(&mut before, start).is_ok() && before == SYSCALL
    };
    let of_user = samples.iter().filter(|sample| sample.mode == SAMPLE_FOR_USER);
    let (all, by_calls) = (of_user.clone().count(), of_user.filter(follows).count());
    let why = format!("{by_calls} of {all} samples are behind a system call");
    println!("{why}");
    Ok(if 2 * by_calls > all { Ok(()) } else { Err(why) })
}

/// Returns how many of these instructions the event counts.
fn counted(evntsel: u64, [ring_0, outside, _]: Executed) -> u64 {
    match evntsel {
        RING_0_ONLY => ring_0,
        OUTSIDE_ONLY => outside,
        _ => ring_0 + outside,
    }
}

/// Checks the contents of samples: the CPU, this domain's first vCPU, the modes, each mode's
/// addresses, and the order of their times.
fn judge(samples: &[HvSample], modes: &[u32]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for sample in samples {
        let is_xens = XENS.contains(&sample.ip);
        let fits = match sample.mode {
            SAMPLE_HYPERVISOR => is_xens,
            PLACE_KERNEL | SAMPLE_FOR_KERNEL => !is_xens && sample.ip >> 63 == 1,
            PLACE_USER | SAMPLE_FOR_USER => sample.ip >> 47 == 0,
            _ => false,
        };
        let who = (sample.cpu, sample.domain, sample.vcpu);
        if !fits || !modes.contains(&sample.mode) || who != (CPU, CONTROL_DOMAIN.into(), 0) {
            return Err(format!("{sample:x?}"));
        }
        seen.insert(sample.mode);
    }
    if !samples.is_sorted_by_key(|sample| sample.tsc) {
        return Err("their times are not in order".into());
    }
    // Guests are left at only few places.
    let executed =
        samples.iter().filter(|s| ![SAMPLE_FOR_KERNEL, SAMPLE_FOR_USER].contains(&s.mode));
    let places: HashSet<u64> = executed.clone().map(|sample| sample.ip).collect();
    let counts = modes.iter().map(|mode| samples.iter().filter(|s| s.mode == *mode).count());
    println!("modes {modes:?}: {:?} samples, {} places", counts.collect::<Vec<_>>(), places.len());
    // Samples that had to wait until interrupts are enabled would be at few places.
    match (seen.len() == modes.len(), places.len() * 8 > executed.count().min(800)) {
        (false, _) => Err(format!("only the modes {seen:?}, expected {modes:?}")),
        (_, false) => Err(format!("{} samples at {} places", samples.len(), places.len())),
        _ => Ok(()),
    }
}

/// Checks that a ring that nobody takes from keeps the oldest samples and counts the lost ones.
fn full(profile: &Profile<'_>, tally: &mut Tally) -> Result<()> {
    let found = measure(profile, OUTSIDE_ONLY, SHORT, |_| {
        for _ in 0..250 {
            Region { first: 100_000, second: 1 }.execute(&mut 0);
            // This CPU is not sampled, but the request says that somebody still wants samples.
            match profile.some(OTHER) {
                Err(Refusal::ENOENT) => (),
                other => _ = other?,
            }
        }
        Ok(())
    })?;
    tally.check(
        "a physical CPU that is not named is not sampled",
        equal(profile.some(OTHER).map(drop), Err(Refusal::ENXIO)),
    );
    let each = found.is_each_period(OUTSIDE_ONLY, SHORT);
    tally.check("a ring that is full says how many samples it has lost", each);
    let kept = found.samples.len() as u64;
    // The ring has room again when the first samples are taken.
    let is_full = found.lost > 0 && (RING..RING + 200).contains(&kept);
    let why = format!("{kept} kept, {} lost", found.lost);
    tally.check("a ring that is full keeps what it has", if is_full { Ok(()) } else { Err(why) });
    Ok(())
}

/// Samples every physical CPU while `work` runs, and takes the samples on the vCPUs `on`. Returns
/// what `work` returned, and the number of samples of each physical CPU.
fn sampled<T>(
    profile: &Profile<'_>,
    on: &[usize],
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, [usize; 2])> {
    profile.start(BOTH, SHORT, u64::MAX)?;
    let stop = AtomicBool::new(false);
    let (outcome, taken) = thread::scope(|scope| {
        let taker = scope.spawn(|| -> Result<[usize; 2]> {
            run_on(SELF, on)?;
            let mut number = [0; 2];
            while !stop.load(Ordering::Relaxed) || number.contains(&0) {
                for (cpu, number) in [CPU, OTHER].into_iter().zip(&mut number) {
                    let mut samples = Vec::new();
                    profile.take(cpu, &mut samples)?;
                    *number += samples.len();
                }
                sleep(Duration::from_millis(5));
            }
            Ok(number)
        });
        let outcome = work();
        stop.store(true, Ordering::Relaxed);
        (outcome, taker.join().expect("it does not panic"))
    });
    profile.stop()?;
    Ok((outcome?, taken?))
}

/// Checks that guests' counts stay exact while the host is sampled.
fn counts_stay_exact(profile: &Profile<'_>, others: &[usize], tally: &mut Tally) -> Result<()> {
    let witness = Witness::new()?;
    let (outcome, taken) = sampled(profile, others, || {
        let start = Instant::now();
        while start.elapsed() < BESIDE {
            if let Err(why) = witness.unchanged() {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    })?;
    println!("samples beside: {taken:?}");
    tally.check("a guest's counts are exact while the host is sampled", outcome);
    Ok(())
}

/// Samples the host while another program tests, and fails if that program fails.
fn around(command: &[String]) -> Result<ExitCode> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    let run = || Command::new(&command[0]).args(&command[1..]).status().context("no such program");
    let (status, taken) = sampled(&Profile::new(&xen), &cpus()?, run)?;
    println!("samples meanwhile: {taken:?}");
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs as the first program of a tenant: prints where its kernel and its own code are, and works.
fn tenant() -> Result<()> {
    let known = fs::read_to_string("/proc/kallsyms")?;
    let address = |name: &str| -> Result<u64> {
        let line = known.lines().find(|line| line.split_whitespace().nth(2) == Some(name));
        let word = line.and_then(|line| line.split_whitespace().next());
        Ok(u64::from_str_radix(word.with_context(|| format!("no symbol {name}"))?, 16)?)
    };
    let maps = fs::read_to_string("/proc/self/maps")?;
    let code = maps.lines().filter(|line| line.split_whitespace().nth(1) == Some("r-xp"));
    let ranges = code.map(|line| {
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-'))?;
        Some([u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?])
    });
    let program: Vec<[u64; 2]> = ranges.collect::<Option<_>>().context("malformed maps")?;
    let kernel = [[address("_stext")?, address("_etext")?]];
    send(&json!({"kernel": kernel, "program": program, "tsc": Hardware.clock()}));
    loop {
        work();
    }
}

/// Samples physical CPU 0, on which a PVH tenant executes that does not know of it.
fn passive() -> Result<ExitCode> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    let before = Hardware.clock();
    let (tenant, code) = start_passive_tenant(&xen)?;
    let (during, mut tally) = ([before, Hardware.clock()], Tally::default());
    clocks(&tenant, number(&code["tsc"]), during, &mut tally)?;
    let session = move_to_cpu(&xen, &cpus()?)?;
    let profile = Profile::new(&xen);
    let (own, at_guests) = (&profile, &profile.at_guests());
    for (name, evntsel, profile) in [
        ("ring 0", RING_0_ONLY, own),
        ("the other rings", OUTSIDE_ONLY, own),
        ("all rings", BOTH, own),
        ("all rings, those of Xen at guests,", BOTH, at_guests),
    ] {
        let found = measure(profile, evntsel, PERIOD, |found| {
            for _ in 0..LOOKS {
                sleep(LOOK);
                profile.take(CPU, &mut found.samples)?;
            }
            Ok(())
        })?;
        let each = found.is_each_period(evntsel, PERIOD);
        tally.check(&format!("there is a sample for each period of {name} beside a tenant"), each);
        let places = in_tenant(evntsel, profile, &found, tenant.domain.into(), &code);
        tally.check(&format!("samples of {name} say where a tenant was"), places);
        if evntsel == RING_0_ONLY {
            tally.check("the tenant's kernel has its share of ring 0", share(&found));
        }
    }
    drop(session);
    ends_while_sampled(&profile, tenant, &mut tally)?;
    Ok(tally.finish())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Checks which time-stamp counters domains read, by the driver. The tenant has read its own one,
/// which was this number, while the host's was between these two.
fn clocks(tenant: &Tenant, read: u64, during: [u64; 2], tally: &mut Tally) -> Result<()> {
    let xen = perfctr::host::Xen::open()?;
    let clock = xen.clock(tenant.domain.into(), 0)?;
    let [from, to] = during.map(|host| clock.at(host));
    println!("a tenant has read {read}, between {from} and {to} by {clock:?}, {during:?}");
    // Before the tenant was created, its counter would have been below 0.
    let fits = read.wrapping_sub(from) <= to.wrapping_sub(from) && read > 0;
    tally.check("the driver says which time-stamp counter a tenant reads", equal(fits, true));
    let own = xen.clock(CONTROL_DOMAIN.into(), 0).ok();
    let native = Some(DomainClock::native());
    tally.check("a PV domain reads the host's time-stamp counter", equal(own, native));
    let absent = xen.clock(tenant.domain.into(), 7).map_err(|error| error.to_string());
    let refused = absent.as_ref().is_err_and(|error| error.contains("No such process"));
    println!("{absent:?}");
    tally.check("a virtual CPU that is not there has no counter", equal(refused, true));
    Ok(())
}

/// Destroys a tenant while the host is sampled, and checks that sampling goes on without it.
fn ends_while_sampled(profile: &Profile<'_>, tenant: Tenant, tally: &mut Tally) -> Result<()> {
    let (domain, mut samples) = (u32::from(tenant.domain), Vec::new());
    profile.start(BOTH, PERIOD, 1 << CPU)?;
    for _ in 0..LOOKS {
        sleep(LOOK);
        profile.take(CPU, &mut samples)?;
    }
    // Sampling ends if nobody takes samples for two seconds, and the tool may need longer.
    thread::scope(|scope| -> Result<()> {
        let destroys = scope.spawn(|| tenant.destroy());
        while !destroys.is_finished() {
            sleep(LOOK);
            profile.take(CPU, &mut samples)?;
        }
        destroys.join().expect("it does not panic")
    })?;
    let gone = Hardware.clock();
    for _ in 0..ROUNDS {
        work();
        profile.take(CPU, &mut samples)?;
    }
    profile.stop()?;
    let number = |is_tenants: bool, is_later: bool| {
        let fits = |sample: &&HvSample| {
            (sample.domain == domain, sample.tsc > gone) == (is_tenants, is_later)
        };
        samples.iter().filter(fits).count()
    };
    let [before, after] = [false, true].map(|is_later| number(true, is_later));
    let others = number(false, true);
    println!("{before} samples of the tenant, {after} after its end, then {others} of others");
    tally.check("a tenant is sampled until it is destroyed", equal(before > 0, true));
    tally.check("a domain that is gone has no samples", equal(after, 0));
    let goes_on = others as u64 > ROUNDS * WORK_MIN / PERIOD;
    tally.check("sampling goes on when a domain is gone", equal(goes_on, true));
    Ok(())
}

/// Checks that samples of a tenant are in its own code, and that the tenant has some in each mode
/// that the event counts.
fn in_tenant(
    evntsel: u64,
    profile: &Profile<'_>,
    found: &Found,
    domain: u32,
    code: &Value,
) -> Result<(), String> {
    let is_in = |of: &str, ip: u64| {
        let mut ranges = code[of].as_array().into_iter().flatten();
        ranges.any(|range| (range[0].as_u64()..range[1].as_u64()).contains(&Some(ip)))
    };
    let mut modes = BTreeMap::new();
    for sample in found.samples.iter().filter(|sample| sample.domain == domain) {
        let fits = match sample.mode {
            SAMPLE_HYPERVISOR => XENS.contains(&sample.ip),
            PLACE_KERNEL | SAMPLE_FOR_KERNEL => is_in("kernel", sample.ip),
            PLACE_USER | SAMPLE_FOR_USER => is_in("program", sample.ip),
            _ => false,
        };
        if !fits {
            return Err(format!("{sample:x?} of {code}"));
        }
        *modes.entry(sample.mode).or_insert(0_u64) += 1;
    }
    println!("{modes:?} of {} samples are the tenant's", found.samples.len());
    let mut expected = match evntsel {
        RING_0_ONLY => vec![PLACE_KERNEL, SAMPLE_HYPERVISOR],
        OUTSIDE_ONLY => vec![PLACE_USER],
        _ if profile.is_at_guests() => {
            vec![PLACE_KERNEL, PLACE_USER, SAMPLE_FOR_KERNEL, SAMPLE_FOR_USER]
        }
        _ => vec![PLACE_KERNEL, PLACE_USER, SAMPLE_HYPERVISOR],
    };
    expected.sort_unstable();
    // A sample is at the next instruction. That is the program's if the kernel returns to it, and
    // the hypervisor's if the program is left by a VM exit.
    let next = match evntsel {
        RING_0_ONLY => {
            let kernels = modes.get(&PLACE_KERNEL).copied().unwrap_or(0);
            Some((PLACE_USER, kernels / KERNEL_MIN))
        }
        OUTSIDE_ONLY => Some((SAMPLE_HYPERVISOR, BEFORE_EXITS_MAX)),
        _ => None,
    };
    if let Some((next, most)) = next {
        modes.retain(|mode, found| *mode != next || *found > most);
    }
    equal(modes.into_keys().collect::<Vec<_>>(), expected)
}

/// Compares the number of samples in the kernels of PVH and HVM guests with the periods that these
/// kernels have executed, by the emulator.
///
/// The counter counts the hypervisor as well, so it is chance whether a period ends in a kernel or
/// in the hypervisor. The number may deviate by three standard deviations of as many independent
/// samples. No period ends in the first [`FOLLOWING`] instructions after a sample, which are the
/// hypervisor's. These periods end in a kernel instead, so there may be that many samples more.
fn share(found: &Found) -> Result<(), String> {
    let samples = found.samples.iter().filter(|sample| sample.mode == PLACE_KERNEL).count() as u64;
    let [least, most] = [found.certainly, found.perhaps].map(|executed| executed[2] / PERIOD);
    let off = 3 * most.isqrt();
    let [least, most] = [least.saturating_sub(off), most + off + samples * FOLLOWING / PERIOD];
    let why = format!("{samples} samples of the tenant's kernel, {least} to {most} expected");
    println!("{why}");
    if least > 0 && (least..=most).contains(&samples) { Ok(()) } else { Err(why) }
}

/// Checks that there is one session at a time, which ends by itself when nobody takes samples any
/// more.
fn sessions_end(profile: &Profile<'_>, tally: &mut Tally) -> Result<()> {
    profile.start(BOTH, PERIOD, u64::MAX)?;
    let busy = profile.start(BOTH, PERIOD, u64::MAX);
    tally.check("there is one session at a time", equal(busy, Err(Refusal::EBUSY)));
    sleep(Duration::from_millis(PROFILE_LEASE_MS + 1_000));
    tally.check(
        "a session ends when nobody takes its samples",
        equal(profile.some(CPU).map(drop), Err(Refusal::ENXIO)),
    );
    let again = profile.start(BOTH, PERIOD, u64::MAX);
    tally.check("there can be another session then", equal(again, Ok(())));
    tally.check("a session can be ended", equal(profile.stop(), Ok(())));
    Ok(())
}
