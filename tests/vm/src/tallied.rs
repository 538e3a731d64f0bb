// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A physical CPU on which one virtual CPU of the control domain is alone. So the emulator's
//! numbers of this CPU can be compared with the host's ([`crate::emulated`]).

use anyhow::{Result, ensure};
use perfctr::rdpmc::Hardware;
use perfctr::{Event, Provider, Session};
use serde_json::Value;
use shared_abi::read::Counters;

use crate::emulated::OUTSIDE_RING_0;
use crate::region;
use crate::threads::{SELF, run_on};
use crate::toolstack::{self, Kind, Tenant, Tsc};
use crate::xen::{CONTROL_DOMAIN, Xen};

/// The physical CPU that is compared.
pub const CPU: u32 = 0;
/// The machine's other physical CPU.
pub const OTHER: u32 = 1;

/// Moves all virtual CPUs of the control domain but the first one away from [`CPU`], and this
/// thread to the first one. As long as the session exists, the thread can read what the emulator
/// has executed there.
pub fn move_to_cpu(xen: &Xen, cpus: &[usize]) -> Result<Session> {
    region::overhead()?;
    for &cpu in cpus {
        let on = if cpu == 0 { 1 << CPU } else { 1 << OTHER };
        xen.set_affinity(CONTROL_DOMAIN, cpu as u32, on)?;
    }
    run_on(SELF, &cpus[..1])?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS])?;
    ensure!(Hardware.counter(OUTSIDE_RING_0) > 0, "the emulator keeps no tally");
    Ok(session)
}

/// Starts a PVH tenant on [`CPU`], which executes there and does not know that the host observes
/// it. Returns the tenant, and its description of its code.
pub fn start_passive_tenant(xen: &Xen) -> Result<(Tenant, Value)> {
    toolstack::start()?;
    let mut tenant = Tenant::create_kind(Kind::Pvh, "passive", 1, Tsc::Native, "tenant")?;
    xen.set_affinity(tenant.domain, 0, 1 << CPU)?;
    tenant.unpause()?;
    let code = tenant.receive()?;
    ensure!(code["error"].is_null(), "{code}");
    Ok((tenant, code))
}
