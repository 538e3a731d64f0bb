// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests how much of a physical CPU remains for the control domain while a tenant on the same CPU
//! causes a storm of overflows.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use perfctr::rdpmc::Hardware;
use perfctr::{Event, Provider, Session};
use shared_abi::PhysSlot;
use shared_abi::hypercall::HOOK_INTERRUPT;
use shared_abi::read::Counters;
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::histogram::{Histogram, Prediction};
use vm_tests::region::{self, Region, measure};
use vm_tests::tally::Tally;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::toolstack::{Tenant, Tsc};
use vm_tests::xen::{CONTROL_DOMAIN, Xen};

use crate::control::{Host, gone};

/// vCPUs of the storming tenant.
const VCPUS: u32 = 2;
/// The physical CPU that both domains share, and the CPU of the control domain's other vCPUs, as
/// masks.
const SHARED_PCPU: u64 = 1 << 1;
const OTHER_PCPU: u64 = 1 << 0;

/// How long the control domain's progress is measured beside a quiet tenant, and beside a storm.
const MEASURED: Duration = Duration::from_secs(4);
/// The tenant is quiet for longer, since measuring starts late.
const QUIET: Duration = Duration::from_secs(8);

/// A measured region: short enough that most are not preempted.
const REGION: Region = Region { first: 50_000, second: 50_000 };

/// The most that the driver may execute for one interrupt. Unit: instructions.
const INTERRUPT_INSTRUCTIONS_MAX: u64 = 400;
/// The factor by which Xen may execute more in this domain's time. Its timers depend on time and
/// not on the thread's instructions. So Xen executes more if the emulator is slow for a while.
const XEN_GROWTH_MAX: u64 = 3;
/// The least share of the CPU: half of what one of three vCPUs gets on average, since a scheduler
/// gives only few turns in some seconds. Unit: percent.
const SHARE_MIN: u64 = 16;

/// The driver's statistics of a storm.
#[derive(Clone, Copy, Debug)]
struct Weather {
    milliseconds: u64,
    interrupts: u64,
    /// The instructions of all interrupts.
    instructions: u64,
}

/// The progress of a thread on the shared CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The time that the vCPU executed, by Xen's account.
    running_ns: u64,
    waiting_ns: u64,
    error_count: u64,
    /// The number of regions in which the vCPU was not switched, and Xen's own instructions in the
    /// middle of them.
    undisturbed: u64,
    xen_instructions: u64,
}

impl Progress {
    /// Returns the share of the time in which the vCPU had something to do. Unit: percent.
    fn share(&self) -> u64 {
        self.running_ns * 100 / (self.running_ns + self.waiting_ns).max(1)
    }

    /// Returns what Xen executed in the middle of the thread's regions. Unit: instructions per
    /// million of the thread's own.
    fn xen_per_million(&self) -> u64 {
        self.xen_instructions * 1_000_000 / (self.undisturbed * REGION.instructions()).max(1)
    }
}

/// Runs a storm beside this domain, and destroys the tenant in the middle of it. The driver allows
/// `rate` overflows per vCPU and ms.
pub fn run(tally: &mut Tally, host: &Host, rate: u64) -> Result<()> {
    let xen = &host.xen;
    let cpus = cpus()?;
    let (&victim, others) = cpus.split_last().context("there is no CPU")?;
    xen.set_affinity(CONTROL_DOMAIN, victim as u32, SHARED_PCPU)?;
    for &cpu in others {
        xen.set_affinity(CONTROL_DOMAIN, cpu as u32, OTHER_PCPU)?;
    }
    let role = format!("storm {}", QUIET.as_millis());
    let mut tenant = Tenant::create("storm", VCPUS as usize, Tsc::Native, &role)?;
    for vcpu in 0..VCPUS {
        xen.set_affinity(tenant.domain, vcpu, SHARED_PCPU)?;
    }
    host.invite(&tenant)?;
    let reply = tenant.receive()?;
    ensure!(reply == "quiet", "the tenant says {reply}");
    let quiet = progress(xen, victim)?;
    let reply = tenant.receive()?;
    ensure!(reply == "storm", "the tenant says {reply}");
    let (before, start) = (xen.stats()?.hook[HOOK_INTERRUPT], Instant::now());
    let storm = progress(xen, victim)?;
    let after = xen.stats()?.hook[HOOK_INTERRUPT];
    let weather = Weather {
        milliseconds: start.elapsed().as_millis() as u64,
        interrupts: after.calls - before.calls,
        instructions: after.instructions - before.instructions,
    };
    let domain = tenant.domain;
    tenant.destroy()?;
    tally.check("a tenant that ends in its storm leaves nothing", gone(xen, domain));
    judge(tally, &quiet, &storm, &weather, rate);
    for &cpu in &cpus {
        xen.set_affinity(CONTROL_DOMAIN, cpu as u32, SHARED_PCPU | OTHER_PCPU)?;
    }
    run_on(SELF, &cpus)?;
    Ok(())
}

/// Measures regions on one vCPU for a while.
fn progress(xen: &Xen, cpu: usize) -> Result<Progress> {
    let overhead = region::overhead()?;
    run_on(SELF, &[cpu])?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
    let caps = session.description().caps.context("the provider does not say what there is")?;
    // The driver has taken the last general counter for its own instructions.
    let xen_counter = PhysSlot::general(caps.general).context("there is no such counter")?;
    let xen_instructions = || Hardware.counter(xen_counter.counter_index());
    let page = session.vcpu_page(cpu as u32).context("the vCPU has no page")?;
    let (mut progress, mut histogram) = (Progress::default(), Histogram::default());
    let mut store = 0;
    let (runstate, start) = (xen.runstate(cpu as u32)?, Instant::now());
    while start.elapsed() < MEASURED {
        let (switches, before) = (page.switches.load(Relaxed), xen_instructions());
        let reading = measure::<2>(&session, REGION, &mut store)?;
        let (after, switches_now) = (xen_instructions(), page.switches.load(Relaxed));
        histogram.add(reading.retries, reading.counts[0], REGION.instructions());
        if switches == switches_now {
            progress.undisturbed += 1;
            progress.xen_instructions += after.wrapping_sub(before);
        }
    }
    let now = xen.runstate(cpu as u32)?;
    progress.running_ns = now.running_ns - runstate.running_ns;
    progress.waiting_ns = now.runnable_ns - runstate.runnable_ns;
    let verdict = histogram.judge(Prediction::instructions(&overhead));
    progress.error_count = verdict.context("there is no reading")?.error_count;
    Ok(progress)
}

/// Judges the storm's interrupts, their cost, and the share that remains for this domain.
fn judge(tally: &mut Tally, quiet: &Progress, storm: &Progress, weather: &Weather, rate: u64) {
    let &Weather { milliseconds, interrupts, instructions } = weather;
    println!("beside a quiet tenant: {quiet:?}");
    println!("beside a storm: {storm:?}");
    println!("the storm: {weather:?}");
    // A window of a ms may end with an overflow that was allowed in the window before.
    let bound = u64::from(VCPUS) * (rate + 1) * (milliseconds + 1);
    let why = format!("{interrupts} interrupts, {bound} allowed");
    let within = 0 < interrupts && interrupts <= bound;
    tally.check("a tenant's storm keeps to the allowed rate", demand(within, why));
    let each = instructions / interrupts.max(1);
    let why = format!("{each} instructions, {INTERRUPT_INSTRUCTIONS_MAX} allowed");
    let within = each <= INTERRUPT_INSTRUCTIONS_MAX;
    tally.check("an interrupt costs the hypervisor little", demand(within, why));
    let errors = quiet.error_count + storm.error_count;
    let why = format!("{errors} counts are off");
    tally.check("counts beside a tenant's storm are exact", demand(errors == 0, why));
    let (before, during) = (quiet.xen_per_million(), storm.xen_per_million());
    let why = format!("{during} instructions of Xen in a million of the thread's, {before} before");
    let within = during <= XEN_GROWTH_MAX * before;
    tally.check("a tenant's storm does not work in this domain's time", demand(within, why));
    let why = format!("{} %, {} % beside a quiet tenant", storm.share(), quiet.share());
    let within = storm.share() >= SHARE_MIN;
    tally.check("a tenant's storm leaves this domain its share of the CPU", demand(within, why));
}

fn demand(holds: bool, otherwise: String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise) }
}
