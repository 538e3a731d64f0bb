// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the demo of a kind of tenant: it and the control domain count, while threads and vCPUs are
//! moved.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use perfctr::Session;
use perfctr::rdpmc::Hardware;
use serde_json::{Map, Value, json};
use shared_abi::read::Counters;
use vm_tests::emulated::EXITS;
use vm_tests::guest;
use vm_tests::module;
use vm_tests::perf::{Event, Record, Sampling, Whose, generic};
use vm_tests::region::Region;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::SELF;
use vm_tests::toolstack::{Kind, Tenant, Tsc};

use crate::control::{Host, VCPUS, begins, count_together, exact};
use crate::counting::{self, Domain};
use crate::peek;
use crate::samples;
use crate::tenant::SAMPLED;

/// How much is counted and sampled.
struct Amount {
    /// The number of regions that each thread measures, with each choice of counters.
    regions: u64,
    /// The number of regions in which each thread is sampled.
    sampled: u64,
    /// The least number of overflows of all threads.
    overflows_min: u64,
    /// The number of regions that perf counts, and of the periods of its samples.
    perf_regions: u64,
    perf_periods: u64,
}

const WHOLE: Amount = Amount {
    regions: 6_000,
    sampled: SAMPLED,
    overflows_min: 4_000,
    perf_regions: 2_000,
    perf_periods: 100,
};
/// The amount for a minute, where the whole takes half an hour.
const BRIEF: Amount =
    Amount { regions: 200, sampled: 2, overflows_min: 100, perf_regions: 100, perf_periods: 10 };
/// The number of reads that are measured together, and how often. Interrupts also cause exits, but
/// not in most of these short times.
const READS: u64 = 100;
const TIMES: usize = 101;

/// The file that says which PMU is perf's "cpu".
const PERF_PMU: &str = "/sys/bus/event_source/devices/cpu/caps/pmu_name";
/// The period of perf's samples. Unit: instructions.
const PERF_PERIOD: u64 = 100_003;

/// What to do.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where to write the results as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// Runs in the control domain: creates the tenant and judges.
pub fn control(hvm: bool, options: &Options) -> Result<ExitCode> {
    let host = Host::open(false)?;
    let mut tally = Tally::default();
    let role = format!("demo {}", WHOLE.regions);
    let (kind, name) = if hvm { (Kind::Hvm, "HVM") } else { (Kind::Pvh, "PVH") };
    let mut tenant = Tenant::create_kind(kind, "demo", VCPUS, Tsc::Native, &role)?;
    host.invite(&tenant)?;
    let report = about(&mut tally, name, tenant.receive()?)?;
    begins(&mut tenant)?;
    head();
    let mut sums = Map::new();
    for (how, places) in [("disjoint", counting::DISJOINT), ("crossed", counting::CROSSED)] {
        let control = Domain::new(places[0])?;
        let (ours, theirs) = count_together(&host.xen, &control, &mut tenant)?;
        for (whose, seen) in [("tenant", theirs), ("control domain", ours)] {
            row(&mut tally, &mut sums, whose, how, &seen);
        }
    }
    let control = Domain::new(counting::CROSSED[0])?;
    let (ours, sampled) = count_together(&host.xen, &control, &mut tenant)?;
    exact(&mut tally, "control domain beside a tenant that samples", &ours);
    tenant.destroy()?;
    occurred(&mut tally, &sums, &["retries", "vcpu_switches", "vcpu_migrations"]);
    finish(tally, options, report, sums, &sampled, &WHOLE)
}

/// Runs the demo in a guest whose host lets it count, and moves its vCPUs.
pub fn alone(options: &Options) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let (report, sums, sampled) = count(&mut tally, &WHOLE)?;
    occurred(&mut tally, &sums, &["retries", "vcpu_switches", "vcpu_migrations"]);
    finish(tally, options, report, sums, &sampled, &WHOLE)
}

/// Runs a small part of that in a guest with more vCPUs than its host has CPUs. Before the module
/// is loaded, the guest's kernel finds that it cannot read the counters.
pub fn brief(options: &Options) -> Result<ExitCode> {
    let mut tally = Tally::default();
    module::load_file(peek::MODULE, c"")?;
    let reads = peek::reads_counters()?;
    tally.check("a kernel without a page cannot execute RDPMC", equal(reads, false));
    module::load()?;
    let (report, sums, sampled) = count(&mut tally, &BRIEF)?;
    occurred(&mut tally, &sums, &["vcpu_switches"]);
    finish(tally, options, report, sums, &sampled, &BRIEF)
}

/// A guest's description of itself, the sums of its counts, and its samples.
type Counted = (Map<String, Value>, Map<String, Value>, Value);

/// Counts and samples in a guest of KVM.
fn count(tally: &mut Tally, amount: &Amount) -> Result<Counted> {
    let constants = samples::prepare()?;
    let domain = Domain::new(counting::DISJOINT[1])?;
    let report = about(tally, "KVM", describe_by(&domain, amount)?)?;
    drop(domain);
    head();
    let mut sums = Map::new();
    for (how, places) in [("disjoint", counting::DISJOINT), ("crossed", counting::CROSSED)] {
        let seen = Domain::new(places[1])?.count(2, |measured| measured < amount.regions)?;
        row(tally, &mut sums, "guest", how, &seen);
    }
    let sampled = samples::take(&constants, |measured| measured < amount.sampled)?;
    Ok((report, sums, sampled))
}

fn head() {
    println!(
        "{:<32}{:>9}{:>9}{:>15}{:>8}{:>9}",
        "counts in user mode", "regions", "retries", "instructions", "errors", "largest"
    );
}

/// Prints what a domain has counted, judges it, and adds it to the sums.
fn row(tally: &mut Tally, sums: &mut Map<String, Value>, whose: &str, how: &str, seen: &Value) {
    let name = format!("{whose}, counters {how}");
    let keys = ["regions", "retries", "instr_total", "error_count", "error_max"];
    let [regions, retries, total, count, max] = keys.map(|key| seen[key].to_string());
    println!("{name:<32}{regions:>9}{retries:>9}{total:>15}{count:>8}{max:>9}");
    exact(tally, &name, seen);
    add(sums, whose, seen);
}

/// Judges the rest, and writes the report.
fn finish(
    mut tally: Tally,
    options: &Options,
    mut report: Map<String, Value>,
    sums: Map<String, Value>,
    sampled: &Value,
    amount: &Amount,
) -> Result<ExitCode> {
    overflows(&mut tally, &mut report, sampled, amount.overflows_min);
    report.extend(sums);
    let code = tally.finish();
    for (key, value) in &report {
        println!("{key:<32}{:>16}", value.to_string());
    }
    report.insert("ok".into(), (code == ExitCode::SUCCESS).into());
    if let Some(path) = &options.report {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(code)
}

/// Returns the tenant's description of itself, as part of the report.
fn about(tally: &mut Tally, kind: &str, reply: Value) -> Result<Map<String, Value>> {
    let Value::Object(report) = reply else { anyhow::bail!("the tenant says {reply}") };
    tally.check("the tenant is what was wanted", equal(&report["guest_kind"], &json!(kind)));
    tally
        .check("a read does not leave the guest", equal(&report["hv_exits_per_read"], &json!(0.0)));
    tally.check("perf's PMU is perfctr's", equal(&report["perf_pmu"], &json!("perfctr")));
    tally.check("perf counts exactly", equal(&report["perf_error_max"], &json!(0)));
    tally.check("perf gets every period", equal(&report["perf_periods_lost"], &json!(0)));
    Ok(report)
}

/// Adds what a domain has seen to the report.
fn add(sums: &mut Map<String, Value>, whose: &str, seen: &Value) {
    let prefix = if whose == "control domain" { "control_" } else { "" };
    for key in ["regions", "retries", "instr_total", "vcpu_switches", "vcpu_migrations"] {
        let sum = sums.entry(format!("{prefix}{key}")).or_insert(json!(0));
        *sum = (sum.as_u64().unwrap_or(0) + seen[key].as_u64().unwrap_or(0)).into();
    }
    let errors = sums.entry("errors").or_insert(json!(0));
    *errors = (errors.as_u64().unwrap_or(0) + seen["error_count"].as_u64().unwrap_or(0)).into();
}

/// Judges the reports that the tenant's threads got about their periods.
fn overflows(tally: &mut Tally, report: &mut Map<String, Value>, sampled: &Value, least: u64) {
    for key in [
        "imode_regions",
        "imode_overflows",
        "imode_lost",
        "imode_extra",
        "imode_error_max",
        "imode_elsewhere",
    ] {
        report.insert(key.to_owned(), sampled[key].clone());
    }
    let many = sampled["imode_overflows"].as_u64().is_some_and(|overflows| overflows >= least);
    tally.check(&format!("{least} overflows and more were delivered"), equal(many, true));
    tally.check("samples go on", equal(&sampled["refusal"], &Value::Null));
    for key in ["imode_lost", "imode_extra", "imode_error_max", "imode_elsewhere"] {
        tally.check(&format!("{key} is 0"), equal(&sampled[key], &json!(0)));
    }
}

/// Checks that the disturbances have happened.
fn occurred(tally: &mut Tally, sums: &Map<String, Value>, disturbances: &[&str]) {
    for &key in disturbances {
        let some = sums[key].as_u64().is_some_and(|times| times > 0);
        tally.check(&format!("{key} occurred"), equal(some, true));
    }
}

/// Returns, in the tenant, its description and the cost of its reads.
pub fn describe(domain: &Domain) -> Result<Value> {
    describe_by(domain, &WHOLE)
}

fn describe_by(domain: &Domain, amount: &Amount) -> Result<Value> {
    let session = domain.session();
    let mut report = guest::describe(session.description())?;
    for (key, value) in [
        ("vcpus", json!(session.description().vcpus)),
        ("hv_exits_per_read", exits_per_read(session)?.into()),
        ("perf_pmu", fs::read_to_string(PERF_PMU)?.trim().into()),
        ("perf_error_max", perf_error_max(amount.perf_regions)?.into()),
        ("perf_periods_lost", perf_periods_lost(amount.perf_periods)?.into()),
    ] {
        report.insert(key.to_owned(), value);
    }
    Ok(report.into())
}

/// Returns the largest difference between perf's counts of regions and the number of instructions
/// that these regions execute more than the shortest one.
fn perf_error_max(regions: u64) -> Result<u64> {
    let event = Event::open(generic(PERF_COUNT_HW_INSTRUCTIONS), Whose::Thread(SELF), None)?;
    let of = |iterations| -> Result<(u64, u64)> {
        let region = Region { first: iterations, second: 1 };
        Ok((counted(&event, region)?, region.instructions()))
    };
    let (shortest, instructions) = [of(1)?, of(1)?][1];
    let mut largest = 0;
    for n in 1..=regions {
        let (counted, executed) = of(10 * n)?;
        largest = (counted - shortest).abs_diff(executed - instructions).max(largest);
    }
    Ok(largest)
}

#[inline(never)]
fn counted(event: &Event, region: Region) -> Result<u64> {
    let before = event.count()?;
    region.execute(&mut 0);
    Ok(event.count()? - before)
}

/// Returns how many of the periods that have passed are in no sample of perf's.
fn perf_periods_lost(periods_passed: u64) -> Result<u64> {
    let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    let mut sampling = Sampling::open(instructions, PERF_PERIOD, Whose::Thread(SELF))?;
    Region { first: periods_passed * PERF_PERIOD, second: 1 }.execute(&mut 0);
    sampling.event.disable()?;
    let taken: u64 = sampling.records().iter().map(periods).sum();
    Ok((sampling.event.count()? / PERF_PERIOD).abs_diff(taken))
}

fn periods(record: &Record) -> u64 {
    let Record::Sample { period, .. } = record else { return 0 };
    period / PERF_PERIOD
}

/// Returns the exits per read: the median over times that are short enough to be mostly
/// undisturbed.
fn exits_per_read(session: &Session) -> Result<f64> {
    let mut seen = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let before = Hardware.counter(EXITS);
        for _ in 0..READS {
            session.read::<2>()?;
        }
        // The number is the physical CPU's, and the thread may have moved to another one.
        seen.push(Hardware.counter(EXITS).wrapping_sub(before) as i64);
    }
    seen.sort_unstable();
    let median = seen.get(TIMES / 2).copied().context("nothing was read")?;
    ensure!(Hardware.counter(EXITS) > 0, "the emulator does not count exits");
    Ok(median as f64 / READS as f64)
}
