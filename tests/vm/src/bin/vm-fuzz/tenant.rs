// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Fuzzes from a hostile guest kernel in a domain of its own, beside the control domain, whose
//! programs count.
//!
//! The tenant cannot see what it reaches of the driver, so its inputs are mutations of the corpus
//! only.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shared_abi::hypercall::OP_DOMAIN;
use vm_tests::module;
use vm_tests::raw::{Argument, Refusal};
use vm_tests::toolstack::{self, Tenant, Tsc, live, send};
use vm_tests::xen::{CONTROL_DOMAIN, Xen};

use crate::coverage::Coverage;
use crate::guest::Guest;
use crate::neighbours::Neighbours;
use crate::{Options, Tried, calls, mutate_from, read_corpus};

const VCPUS: usize = 2;
/// The folder of the corpus in the tenant's first contents.
const CORPUS: &str = "/corpus/guest";
/// The number of inputs after which it reports its progress, so that a slow machine is not taken
/// for a silent one.
const NEWS_EVERY: u64 = 16;
const PRIVCMD: &str = "/lib/perfctr/xen-privcmd.ko";

/// Fuzzes in a tenant. This function runs in the control domain.
pub fn fuzz_in_tenant(options: &Options) -> Result<Tried> {
    toolstack::start()?;
    let xen = Xen::open()?;
    let neighbours = Neighbours::start()?;
    // It makes fewer calls, since it shares the CPUs with the neighbours.
    let role = format!("inside {} {}", options.calls / 2, options.seed);
    let mut tenant = Tenant::create("hostile", VCPUS, Tsc::Native, &role)?;
    xen.allow(tenant.domain, true)?;
    tenant.unpause()?;
    let reply = loop {
        let reply = tenant.receive()?;
        if reply.get("made").is_none() {
            break reply;
        }
    };
    let number =
        |key: &str| reply[key].as_u64().with_context(|| format!("the tenant says {reply}"));
    let (calls, mutations) = (number("calls")?, number("mutations")?);
    let checks = neighbours.judge()?;
    tenant.destroy()?;
    module::reload_unharmed()?;
    let reached = Coverage::open(true).reached()?;
    Ok(Tried { calls, mutations, checks, reached })
}

/// Runs in the tenant, and ends with it.
pub fn inside(calls: u64, seed: u64) -> Result<ExitCode> {
    live(|| {
        send(&fuzz(calls, seed)?);
        Ok(())
    })
}

/// Checks that this domain may not decide who counts. It is refused before the hypervisor looks at
/// its argument.
fn may_not_decide(xen: &Xen) -> Result<()> {
    let forbid = xen.allow(CONTROL_DOMAIN, false);
    let nowhere = xen.perfctr_op(OP_DOMAIN, Argument::NonCanonical, 0);
    ensure!([forbid, nowhere] == [Err(Refusal::EPERM); 2], "{forbid:?}, {nowhere:?}");
    Ok(())
}

fn fuzz(calls: u64, seed: u64) -> Result<Value> {
    // Without this parameter the module lets nobody make hypercalls in a domain that is not the
    // control domain.
    module::load_file(PRIVCMD, c"unrestricted=1")?;
    module::load()?;
    let corpus = read_corpus(Path::new(CORPUS))?;
    let guest = Guest::new()?;
    may_not_decide(&Xen::open()?)?;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut mutations = 0_u64;
    while calls::made() < calls {
        guest.repair_at_times(mutations)?;
        if mutations.is_multiple_of(NEWS_EVERY) {
            send(&json!({ "made": calls::made() }));
        }
        guest.run(&mutate_from(&mut rng, &corpus))?;
        mutations += 1;
    }
    drop(guest);
    // This makes the loaded configuration and the module's view of it equal again, so that the
    // module can be unloaded.
    module::unload_when_idle()?;
    module::load()?;
    Ok(json!({ "calls": calls::made(), "mutations": mutations }))
}
