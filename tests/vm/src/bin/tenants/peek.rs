// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a PVH tenant that may not count, whose kernel reads all counters while other domains
//! count.
//!
//! The hypervisor's CR4 does not keep such a kernel from RDPMC, as it does a PV one.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vm_tests::module;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{Kind, Tenant, Tsc, send};

use crate::control::{Host, Past, count_together, exact, refused, together};
use crate::counting::{CROSSED, Domain};
use crate::registers;
use crate::tenant::refusal;
use crate::{frames, inside};

/// The path, in a tenant, of the module that reads.
pub const MODULE: &str = "/lib/perfctr/peek.ko";
/// The folder of the module's files.
const PARAMETERS: &str = "/sys/module/peek/parameters";
/// The number of looks after which the tenant reports what it has seen, and the time between two.
const LOOKS: u64 = 200;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Runs in the control domain. Only tenants that it allows may count.
pub fn control() -> Result<ExitCode> {
    let host = Host::open(false)?;
    let mut tally = Tally::default();
    narrow(&mut tally, &host)?;
    inside::control(&mut tally, &host)?;
    frames::control(&mut tally, &host)?;
    let mut peeker = Tenant::create_kind(Kind::Pvh, "peeker", 1, Tsc::Native, "peek")?;
    peeker.unpause()?;
    refused(&mut tally, "a PVH tenant that nobody has allowed to count", &mut peeker, "EPERM")?;
    registers::check(&mut tally, "a PVH tenant");
    let clears = host.xen.stats()?.residue_clears;
    let (ours, theirs) = count_together(&host.xen, &Domain::new(CROSSED[0])?, &mut peeker)?;
    println!("control domain beside a PVH tenant: {ours:#}");
    exact(&mut tally, "control domain beside a PVH tenant", &ours);
    blind(&mut tally, "the control domain", &theirs);
    let clears = host.xen.stats()?.residue_clears - clears;
    println!("counters were cleared {clears} times");
    tally.check(
        "the PVH tenant's vCPU took turns with the control domain's",
        equal(clears > 0, true),
    );
    for (kind, whom) in [(Kind::Pv, "a PV tenant"), (Kind::Pvh, "another PVH tenant")] {
        together(&mut tally, &host, kind, Past::Unknown)?;
        // The tenant has looked all this time.
        loop {
            blind(&mut tally, &format!("the control domain and {whom}"), &peeker.receive()?);
            if peeker.is_silent() {
                break;
            }
        }
    }
    peeker.destroy()?;
    Ok(tally.finish())
}

/// Checks that a 32-bit kernel may ask the driver, and is refused like a 64-bit kernel that cannot
/// count.
fn narrow(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = Tenant::create_kind(Kind::Pvh32, "narrow", 1, Tsc::Native, "")?;
    host.invite(&tenant)?;
    let answers = json!({ "query": 0, "register": -libc::EOPNOTSUPP });
    tally.check("a 32-bit PVH tenant gets EOPNOTSUPP", equal(tenant.receive()?, answers));
    tenant.destroy()
}

/// Checks that the tenant beside `whom` has seen faults, and nothing that changes.
fn blind(tally: &mut Tally, whom: &str, seen: &Value) {
    println!("a PVH tenant beside {whom}: {seen:#}");
    let name = format!("a PVH tenant's kernel beside {whom}");
    let [reads, faults] = ["reads", "faults"].map(|key| seen["rdpmc"][key].as_u64());
    tally.check(&format!("{name}: each RDPMC faults"), equal(faults, reads));
    for how in ["rdpmc", "rdmsr"] {
        let unmoved = equal(&seen[how]["moved"], &json!({}));
        tally.check(&format!("{name}: no value of {how} moves"), unmoved);
    }
}

/// Runs in the tenant.
pub fn tenant() -> Result<()> {
    let refusal = refusal()?.context("this domain may count")?;
    send(&refusal);
    module::load_file(MODULE, c"")?;
    loop {
        let [mut rdpmc, mut rdmsr] = [Seen::default(), Seen::default()];
        for _ in 0..LOOKS {
            rdpmc.look("rdpmc")?;
            rdmsr.look("rdmsr")?;
            sleep(BETWEEN_LOOKS);
        }
        send(&json!({ "rdpmc": rdpmc.to_json(), "rdmsr": rdmsr.to_json() }));
    }
}

/// Returns whether RDPMC returns anything to the kernel.
pub fn reads_counters() -> Result<bool> {
    let mut rdpmc = Seen::default();
    rdpmc.look("rdpmc")?;
    Ok(rdpmc.faults < rdpmc.reads)
}

/// What one of the instructions has returned.
#[derive(Debug, Default)]
struct Seen {
    reads: u64,
    faults: u64,
    /// The last value, by the number of the counter or register.
    values: BTreeMap<String, u64>,
    /// How much each value has grown that was seen to change.
    moved: BTreeMap<String, u64>,
}

impl Seen {
    /// Makes the kernel execute the instruction for every counter or register.
    fn look(&mut self, how: &str) -> Result<()> {
        let text = fs::read_to_string(format!("{PARAMETERS}/{how}")).context("reading counters")?;
        for line in text.lines() {
            let (number, value) = line.split_once(' ').context("a line of two words")?;
            self.reads += 1;
            if value == "fault" {
                self.faults += 1;
            } else {
                self.note(number, value.parse()?);
            }
        }
        ensure!(self.reads > 0, "the module reads nothing");
        Ok(())
    }

    fn note(&mut self, number: &str, value: u64) {
        let last = self.values.insert(number.to_owned(), value).unwrap_or(value);
        if last != value {
            *self.moved.entry(number.to_owned()).or_default() += value.saturating_sub(last);
        }
    }

    fn to_json(&self) -> Value {
        json!({ "reads": self.reads, "faults": self.faults, "moved": self.moved })
    }
}
