// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests `perfctr domains`.

use anyhow::Result;
use perfctr::{Provider, Session};
use serde_json::Value;
use vm_tests::tally::{Tally, equal};

use crate::command::{printed, run};

/// Tests who may count, and which counters there are.
pub fn policy(tally: &mut Tally) -> Result<()> {
    let limits: Value = serde_json::from_str(&printed(&["domains", "limits", "--json"])?)?;
    tally.check("the limits are what guests are told", {
        let keys = ["version", "general", "fixed", "samples", "all_events"];
        equal(
            keys.map(|key| limits[key].to_string()),
            ["1", "4", "3", "true", "false"].map(String::from),
        )
    });
    printed(&["domains", "forbid", "0"])?;
    let forbidden = Session::open_with(Provider::Paravirt).err().map(|error| error.to_string());
    printed(&["domains", "allow", "0"])?;
    let allowed = Session::open_with(Provider::Paravirt).is_ok();
    tally.check("a domain is forbidden to count, and allowed again", {
        let words = forbidden.unwrap_or_default();
        let is_right = words.contains("the host does not let this domain count") && allowed;
        is_right.then_some(()).ok_or(format!("{words}; then allowed: {allowed}"))
    });
    let absent = run(&["domains", "forbid", "4711"])?;
    let words = String::from_utf8_lossy(&absent.stderr).into_owned();
    tally.check("a domain that is not there is named", {
        let is_right = absent.status.code() == Some(125) && words.contains("domain 4711");
        is_right.then_some(()).ok_or(words)
    });
    Ok(())
}
