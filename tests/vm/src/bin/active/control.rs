// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The control domain's part: it samples the host, and joins.

use std::env;
use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use perfctr::host::DomainClock;
use serde_json::{Value, json};
use vm_tests::host_profile::HostProfile;
use vm_tests::network;
use vm_tests::tallied::{CPU, OTHER};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, Wanted};
use vm_tests::xen::{CONTROL_DOMAIN, Xen};

use crate::judge::{Joined, PERIOD, judge};
use crate::programs::{self, PROGRAMS, Worked};
use crate::recorder::{NAMES, PERFCTR, Recording, run};
use crate::tenant;

const PROFILE: &str = "/tmp/active.data";
/// The tenant's name.
const TENANT: &str = "active";
/// The tenant's memory. Its files take most of it. Unit: MiB.
const MEMORY_MIB: u32 = 512;

/// Samples the host while the control domain itself is active.
pub fn itself() -> Result<ExitCode> {
    let mut tally = Tally::default();
    // The commands execute beside the two programs.
    run_on(SELF, &[1])?;
    let names = Recording::of_names()?;
    let this = env::current_exe()?.display().to_string();
    let printed = run(record_host().args(["--", &this, "--both"]))?;
    print!("{}", names.end()?);
    is_complete(&printed, &mut tally);
    let both = programs::left_behind()?;
    let whose = "the control domain";
    join(whose, CONTROL_DOMAIN.into(), DomainClock::native(), both, &mut tally)?;
    Ok(tally.finish())
}

/// Samples the host while a tenant is active, whose programs have a physical CPU for themselves:
/// first a PVH one, then an HVM one.
pub fn beside() -> Result<ExitCode> {
    let mut tally = Tally::default();
    let network = network::prepare()?;
    toolstack::start()?;
    for kind in [Kind::Pvh, Kind::Hvm] {
        beside_kind(kind, &network, &mut tally)?;
    }
    Ok(tally.finish())
}

fn beside_kind(kind: Kind, network: &str, tally: &mut Tally) -> Result<()> {
    let name = format!("{TENANT}-{kind:?}");
    let wanted = Wanted::usual(kind, &name, 2, Tsc::Native, "tenant");
    let wanted = Wanted { config: network, memory_mib: MEMORY_MIB, ..wanted };
    let mut tenant = Tenant::create_wanted(&wanted)?;
    let xen = Xen::open().context("this is not Xen's control domain")?;
    for vcpu in cpus()? {
        xen.set_affinity(CONTROL_DOMAIN, vcpu as u32, 1 << OTHER)?;
    }
    for (vcpu, cpu) in [(0, CPU), (1, OTHER)] {
        xen.set_affinity(tenant.domain, vcpu, 1 << cpu)?;
    }
    tenant.unpause()?;
    let said = tenant.receive()?;
    ensure!(said == tenant::BEGAN, "the tenant says {said}");
    let recording = Recording::begin(&mut record_host())?;
    tenant.send(&json!("work"))?;
    let both = serde_json::from_value(tenant.receive()?)?;
    is_complete(&recording.end()?, tally);
    fs::write(NAMES, network::fetch(tenant::PORT)?)?;
    let domain = tenant.domain.into();
    let clock = perfctr::host::Xen::open()?.clock(domain, 0)?;
    println!("{}: the time-stamp counter is {clock:?}", kind.described());
    join(kind.described(), domain, clock, both, tally)?;
    tenant.destroy()
}

fn record_host() -> Command {
    let (event, period) = ("instructions:u", PERIOD.to_string());
    let mut command = Command::new(PERFCTR);
    command.args(["record", "--host", "-o", PROFILE, "-e", event, "-c", &period]);
    command
}

/// Checks by what the command has printed that it has lost nothing.
fn is_complete(printed: &str, tally: &mut Tally) {
    print!("{printed}");
    let lost = printed.contains("perfctr: lost 0 samples");
    tally.check("no sample of an active domain is lost", equal(lost, true));
}

/// Joins the host's profile with what a domain says, and judges the samples of both programs.
/// `whose` is the domain in words.
fn join(
    whose: &str,
    domain: u32,
    clock: DomainClock,
    both: [Value; 2],
    tally: &mut Tally,
) -> Result<()> {
    let table = report(domain, &["-s", "layer,process,symbol"])?;
    println!("{table}");
    let groups = report(domain, &["-s", "layer,cgroup,symbol"])?;
    println!("{groups}");
    println!("{}", report(domain, &["-s", "thread,layer"])?);
    let profile = HostProfile::read(PROFILE)?;
    let joined = Joined { whose, domain, clock, profile: &profile, table: &table, groups: &groups };
    let [left, right] = both.map(Worked::of_json);
    judge(&joined, &[left?, right?], tally)?;
    formats(whose, domain, tally)
}

fn report(domain: u32, arguments: &[&str]) -> Result<String> {
    let guest = format!("{domain}={NAMES}");
    run(Command::new(PERFCTR).args(["report", "-i", PROFILE, "--guest", &guest]).args(arguments))
}

/// Checks that other formats have the programs, too.
fn formats(whose: &str, domain: u32, tally: &mut Tally) -> Result<()> {
    for format in ["folded", "flame-graph", "pprof", "firefox", "perf"] {
        let path = format!("/tmp/active.{format}");
        print!("{}", report(domain, &["-f", format, "-o", &path])?);
        let bytes = fs::read(path)?;
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        let both = PROGRAMS.map(|program| has(&format!(" {program}")));
        let name = format!("{whose}: the format {format} names both programs");
        tally.check(&name, equal(both, [true; 2]));
    }
    Ok(())
}
