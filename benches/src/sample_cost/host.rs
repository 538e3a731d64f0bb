// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures what samples of a whole host cost: by `OP_PROFILE_*` on Xen, and on plain Linux by a
//! perf event of the CPU, as `perf record -a` opens it. It also measures what the option `profile`
//! costs a switch of vCPUs.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use memmap2::MmapMut;
use serde_json::json;
use shared_abi::hypercall::{PLACE_USER, SAMPLES_MAX};
use shared_abi::limits::PAGE_BYTES;
use vm_tests::profile::{OUTSIDE_ONLY, Profile, RING_0_ONLY};
use vm_tests::region::Region;
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, live, receive, send};
use vm_tests::work::Work;
use vm_tests::xen::Xen;

use super::stack::{self, Modes, Stack};
use super::{
    ATTEMPTS, PERIOD, SAMPLES, median, median_switch, median_with_and_without, print, sample,
    samples_of_user_mode, take_idle_turns, take_turns,
};

/// The operations, as the tables call them.
const SAMPLE: &str = "a sample of the host";
const READING: &str = "reading out a sample of the host";
/// A switch as a whole, and not its difference from another one. `xtask/src/verbs/bench.rs` has the
/// same name.
const WHOLE_SWITCH: &str = "a whole switch of vCPUs";

/// The machine's only CPU, and the mask of it.
const CPU: u32 = 0;
const CPUS: u64 = 1 << CPU;
/// Too many events to end a period, and few enough for a CPU's counter.
const NEVER: u64 = super::NEVER;
/// The number of parts of a work. Samples are taken after each, since sampling would end if nobody
/// took them for two seconds.
const PARTS: u64 = 4;
/// The number of hypercalls that take as many samples as one can.
const FULL_CALLS: u64 = SAMPLES / SAMPLES_MAX as u64;

/// The least number of samples that are the tenant's. A few periods end in the control domain.
const OF_TENANT_MIN: u64 = SAMPLES - SAMPLES / 20;

/// What the tenant says when it has booted.
const READY: &str = "ready";
/// The time between two looks for a tenant's answer, and how long it may take. The driver ends
/// sampling if the answer takes longer than its lease.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures in Xen's control domain, which is sampled itself, or on plain Linux.
pub fn measure() -> Result<()> {
    match Xen::open() {
        Ok(xen) => on_xen(&Profile::new(&xen)),
        Err(_) => on_linux(),
    }
}

fn on_xen(profile: &Profile<'_>) -> Result<()> {
    let times = times_for_samples()?.div_ceil(PARTS);
    let work = || map_memory(times);
    let at_guests = profile.at_guests();
    for (what, profile) in
        [("of the hypervisor", profile), ("of the hypervisor, at its guest", &at_guests)]
    {
        let name = format!("{SAMPLE}: perfctr, {what}");
        sample(&name, SAMPLES, |period| sampled(profile, RING_0_ONLY, period, work))?;
    }
    let Region { first, second } = samples_of_user_mode();
    let part = Region { first: first.div_ceil(PARTS), second: second.div_ceil(PARTS) };
    let work = || {
        part.execute(&mut 0);
        Ok(())
    };
    let name = format!("{SAMPLE}: perfctr, of user mode");
    sample(&name, SAMPLES, |period| sampled(profile, OUTSIDE_ONLY, period, work))?;
    let cost = median(|| {
        profile.start(OUTSIDE_ONLY, PERIOD, CPUS)?;
        (0..PARTS).try_for_each(|_| work())?;
        let before = Work::read();
        for _ in 0..FULL_CALLS {
            let count = profile.some(CPU)?.count as usize;
            ensure!(count == SAMPLES_MAX, "{count} samples found, {SAMPLES_MAX} expected");
        }
        let grown = Work::read() - before;
        profile.stop()?;
        Ok(grown.per(FULL_CALLS * SAMPLES_MAX as u64))
    })?;
    print(&format!("{READING}: perfctr, by hypercall"), "", &cost);
    Ok(())
}

/// Samples the host while this program works in [`PARTS`]. Returns what the machine did during the
/// work, and the number of samples.
fn sampled(
    profile: &Profile<'_>,
    evntsel: u64,
    period: u64,
    work: impl Fn() -> Result<()>,
) -> Result<(Work, u64)> {
    profile.start(evntsel, period, CPUS)?;
    let (mut grown, mut samples) = (Work::default(), 0);
    for _ in 0..PARTS {
        let before = Work::read();
        work()?;
        grown = grown + (Work::read() - before);
        samples += taken(profile, |_, _| true)?;
    }
    profile.stop()?;
    Ok((grown, samples))
}

/// Takes all samples. Returns how many have a domain and a mode that `is_wanted` accepts.
fn taken(profile: &Profile<'_>, is_wanted: impl Fn(u32, u32) -> bool) -> Result<u64> {
    let mut samples = Vec::new();
    let lost = profile.take(CPU, &mut samples)?;
    ensure!(lost == 0, "{lost} samples were lost");
    Ok(samples.iter().filter(|sample| is_wanted(sample.domain, sample.mode)).count() as u64)
}

fn on_linux() -> Result<()> {
    let times = times_for_samples()?;
    let map = || map_memory(times);
    let region = || {
        samples_of_user_mode().execute(&mut 0);
        Ok(())
    };
    for (what, modes, work) in [
        ("of the kernel", Modes::Kernel, &map as &dyn Fn() -> Result<()>),
        ("of user mode", Modes::User, &region),
    ] {
        sample(&format!("{SAMPLE}: perf_event, {what}"), SAMPLES, |period| {
            let mut grown = Ok(Work::default());
            let records = stack::perf_of_cpu(modes, period, &mut || {
                let before = Work::read();
                grown = work().map(|()| Work::read() - before);
            })?;
            Ok((grown?, records.count()?))
        })?;
    }
    let cost = median(|| {
        let mut outcome = Ok(());
        let records = stack::perf_of_cpu(Modes::User, PERIOD, &mut || outcome = region())?;
        outcome?;
        let before = Work::read();
        let number = records.count()?;
        Ok((Work::read() - before).per(number))
    })?;
    print(&format!("{READING}: perf_event, from its memory"), "", &cost);
    Ok(())
}

/// Maps a page, uses it, and removes it again, so many times. In a PV guest of Xen, Xen changes the
/// page table.
fn map_memory(times: u64) -> Result<()> {
    for _ in 0..times {
        let mut page = MmapMut::map_anon(PAGE_BYTES)?;
        page[0] = black_box(1);
    }
    Ok(())
}

/// Returns how often this has to be done until ring 0 has executed enough instructions for all
/// samples, and half a period more.
fn times_for_samples() -> Result<u64> {
    const TIMES: u64 = 2_000;
    let before = Work::read();
    map_memory(TIMES)?;
    let spent = (Work::read() - before).ring0();
    Ok(((2 * SAMPLES + 1) * PERIOD / 2 * TIMES).div_ceil(spent))
}

/// Measures what a sample of a PVH tenant costs, which works whenever this program asks it to. The
/// control domain, in which this runs, sleeps meanwhile.
pub fn beside_tenant() -> Result<()> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    toolstack::start()?;
    let mut tenant = Tenant::create_kind(Kind::Pvh, "sampled", 1, Tsc::Native, TENANT)?;
    tenant.unpause()?;
    let printed = tenant.receive()?;
    ensure!(printed == READY, "the tenant says {printed}");
    let (profile, domain) = (Profile::new(&xen), u32::from(tenant.domain));
    sample(&format!("{SAMPLE}: perfctr, of user mode"), OF_TENANT_MIN, |period| {
        profile.start(OUTSIDE_ONLY, period, CPUS)?;
        tenant.send(&json!(period))?;
        let answer = tenant.receive_within(BETWEEN_LOOKS, PATIENCE)?;
        let numbers = serde_json::from_value(answer.clone()).with_context(|| answer.to_string())?;
        let samples = taken(&profile, |of, mode| of == domain && mode == PLACE_USER)?;
        profile.stop()?;
        Ok((Work::of(numbers), samples))
    })?;
    tenant.destroy()
}

/// The tenant's role.
pub const TENANT: &str = "tenant";

/// Runs as the tenant's first program. Whenever the control domain asks, it works, and says what
/// the machine did meanwhile.
pub fn tenant() -> Result<()> {
    live(|| {
        send(&json!(READY));
        loop {
            receive()?;
            let before = Work::read();
            samples_of_user_mode().execute(&mut 0);
            send(&json!((Work::read() - before).numbers()));
        }
    })
    .map(drop)
}

/// Prints what a switch of two vCPUs of one CPU costs as a whole. `cargo xtask bench` compares it
/// with the cost on a machine that has other options. If the host can be sampled, this also
/// measures what sampling adds.
pub fn switches() -> Result<()> {
    for (what, stack) in
        [("nobody samples", stack::nothing as Stack), ("libperfctr counting", stack::perfctr)]
    {
        let mut turns = Vec::new();
        for _ in 0..ATTEMPTS {
            turns.extend(take_idle_turns([stack; 2])?);
        }
        print(&format!("{WHOLE_SWITCH}: {what}"), "", &median_switch(&turns));
    }
    let xen = Xen::open().context("this is not Xen's control domain")?;
    let profile = Profile::new(&xen);
    if profile.start(RING_0_ONLY, NEVER, CPUS).is_err() {
        return Ok(());
    }
    profile.stop()?;
    let idle = || take_idle_turns([stack::nothing; 2]);
    let cost = median_with_and_without(
        || {
            std::thread::sleep(vm_tests::module::UNWATCHED_AFTER);
            profile.start(RING_0_ONLY, NEVER, CPUS)?;
            let turns = take_turns([stack::nothing; 2], 0);
            profile.stop()?;
            turns
        },
        idle,
    )?;
    print("a switch of vCPUs: somebody samples the host", "", &cost);
    Ok(())
}
