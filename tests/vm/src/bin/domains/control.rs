// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The control domain's part.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vm_tests::disturb;
use vm_tests::host::Host;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, Wanted};
use vm_tests::xen::Xen;

/// The number of the testbed's physical CPUs.
const PCPUS: u32 = 2;
/// The events that each domain counts in user mode, each with its counter. No two are the same.
const EVENTS: [(Kind, [(&str, u32); 2]); 3] = [
    (Kind::Pv, [("instructions:u", 0), ("branches:u", 1)]),
    (Kind::Pvh, [("cycles:u", 0), ("instructions:u", 1)]),
    (Kind::Hvm, [("branches:u", 0), ("cycles:u", 1)]),
];
/// An argument of the kernel. Programs execute the same in each run only if the kernel maps no code
/// of its own into them.
const LINUX: &str = "vdso=0";

/// The memory of a domain: enough for the programs' packages, twice while they are unpacked.
const MEMORY_MIB: u32 = 512;

/// A domain that counts, on one vCPU.
struct Domain {
    name: String,
    tenant: Tenant,
    events: [(&'static str, u32); 2],
    /// How often its programs were preempted by each other so far.
    preempted: u64,
}

/// Creates a domain of each kind, HVM only if that is wanted, and prints the counts of each scene.
pub fn run(commands: &Path, hvm: bool) -> Result<ExitCode> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    toolstack::start()?;
    let text = fs::read_to_string(commands)?;
    let commands: Vec<&str> = text.lines().collect();
    let mut domains = Vec::new();
    for (kind, events) in EVENTS.into_iter().filter(|(kind, _)| hvm || *kind != Kind::Hvm) {
        domains.push(Domain::create(kind, &format!("{kind:?}-1"), events)?);
    }
    for domain in &mut domains {
        domain.begin()?;
    }
    let mut tally = Tally::default();
    for domain in &mut domains {
        domain.count("a", false, &commands)?;
        let before = domain.preempted;
        domain.count("c", true, &commands)?;
        let name = format!("{}: programs on one vCPU preempt each other", domain.name);
        tally.check(&name, equal(domain.preempted > before, true));
    }
    for (scene, at_once) in [("b", false), ("d", true)] {
        let before = xen.switches()?;
        side_by_side(&xen, &mut domains, |domain| domain.count(scene, at_once, &commands))?;
        let name = format!("({scene}): domains preempt each other");
        tally.check(&name, equal(xen.switches()? > before, true));
    }
    for domain in domains {
        domain.tenant.destroy()?;
    }
    Ok(tally.finish())
}

/// Calls the function for all domains at the same time, while their vCPUs are moved between
/// physical CPUs.
fn side_by_side(
    xen: &Xen,
    domains: &mut [Domain],
    act: impl Fn(&mut Domain) -> Result<()> + Sync,
) -> Result<()> {
    let (act, stop) = (&act, &AtomicBool::new(false));
    thread::scope(|scope| {
        for domain in domains.iter().map(|domain| domain.tenant.domain) {
            scope.spawn(move || disturb::domain(xen, domain, &[0], PCPUS, 1, stop));
        }
        let threads: Vec<_> =
            domains.iter_mut().map(|domain| scope.spawn(move || act(domain))).collect();
        let ended: Vec<_> =
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().collect()
    })
}

impl Domain {
    /// Creates a domain, which boots.
    fn create(kind: Kind, name: &str, events: [(&'static str, u32); 2]) -> Result<Self> {
        let tenant = Tenant::create_wanted(&Wanted {
            memory_mib: MEMORY_MIB,
            linux: LINUX,
            ..Wanted::usual(kind, name, 1, Tsc::Native, "tenant")
        })?;
        tenant.unpause()?;
        Ok(Self { name: name.to_owned(), tenant, events, preempted: 0 })
    }

    /// Waits until the domain can count.
    fn begin(&mut self) -> Result<()> {
        let reply = self.tenant.receive()?;
        ensure!(reply == "ready", "{} says {reply}", self.name);
        Ok(())
    }

    /// Makes the domain count each of these commands, one after the other or at once.
    fn count(&mut self, scene: &str, at_once: bool, commands: &[&str]) -> Result<()> {
        let request = json!({ "at_once": at_once, "commands": commands, "events": self.events });
        self.tenant.send(&request)?;
        let reply = self.tenant.receive()?;
        let counts = reply["counts"].as_array().with_context(|| reply.to_string())?;
        ensure!(counts.len() == commands.len(), "{reply}");
        for (command, counts) in commands.iter().zip(counts) {
            for ((event, _), count) in
                self.events.iter().zip(counts.as_array().into_iter().flatten())
            {
                println!("count {scene} {} {event} {count} {command}", self.name);
            }
        }
        self.preempted = reply["preempted"].as_u64().context("it does not say how often")?;
        Ok(())
    }
}
