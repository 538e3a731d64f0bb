// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the tests of a PVH tenant that it makes by itself: its kernel's counts against the
//! emulator's, and its module, which is unloaded and loaded again.

use anyhow::Result;
use serde_json::{Value, json};
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{Kind, Tenant, Tsc, mount_statistics, send};
use vm_tests::volume::pick;
use vm_tests::{kernel, module, region, reload};

use crate::control::{Host, VCPUS};

/// Runs in the control domain.
pub fn control(tally: &mut Tally, host: &Host) -> Result<()> {
    let role = format!("inside {}", pick(3, 20));
    let mut tenant = Tenant::create_kind(Kind::Pvh, "inside", VCPUS, Tsc::Native, &role)?;
    host.invite(&tenant)?;
    loop {
        let reply = tenant.receive()?;
        let Some(name) = reply["name"].as_str() else {
            tally.check("a PVH tenant has made its tests", equal(reply, json!("done")));
            return tenant.destroy();
        };
        tally.check(&format!("in a PVH tenant {name}"), equal(&reply["wrong"], &Value::Null));
    }
}

/// Runs in the tenant, and ends with the domain. Its module is unloaded this many times.
pub fn tenant(reloads: u32) -> Result<()> {
    mount_statistics()?;
    module::load()?;
    // The overhead is found before there are other threads.
    region::overhead()?;
    for (name, outcome) in kernel::judge()? {
        send_outcome(&name, outcome);
    }
    for (name, outcome) in [
        ("the module stays while a thread counts", reload::in_use()),
        ("the module comes and goes while threads count", reload::comes_and_goes(reloads, None)),
    ] {
        send_outcome(name, outcome.map_err(|error| format!("{error:#}")));
    }
    for (name, outcome) in kernel::judge()? {
        send_outcome(&format!("whose module was loaded anew {name}"), outcome);
    }
    send(&json!("done"));
    Ok(())
}

fn send_outcome(name: &str, outcome: Result<(), String>) {
    send(&json!({ "name": name, "wrong": outcome.err() }));
}
