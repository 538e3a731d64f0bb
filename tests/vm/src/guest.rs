// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds out what this guest is, and who provides its PMU.

use std::fs;

use anyhow::{Context, Result, bail};
use perfctr::Description;
use serde_json::{Map, Value};
use shared_abi::caps::{VENDOR_AMD, VENDOR_INTEL};

/// The kernel's file that says how Xen virtualises this guest.
const KIND: &str = "/sys/hypervisor/guest_type";
/// The file with the guest's clocks, of which one is the hypervisor's.
const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Returns the part of a report that describes the guest: `guest_kind` (`PV`, `PVH`, `KVM`) and
/// `vendor` (`Intel`, `AMD`).
///
/// # Errors
///
/// The kernel or the provider does not say it.
pub fn describe(description: &Description) -> Result<Map<String, Value>> {
    let caps = description.caps.context("the provider does not say what there is")?;
    let vendor = match caps.vendor {
        VENDOR_INTEL => "Intel",
        VENDOR_AMD => "AMD",
        other => bail!("vendor {other}"),
    };
    let kind = kind()?;
    let pairs = [("guest_kind", kind.as_str()), ("vendor", vendor)];
    Ok(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect())
}

/// Returns whether the guest is paravirtualised, so that its kernel does not execute in ring 0.
///
/// # Errors
///
/// The kernel does not say it.
pub fn is_pv() -> Result<bool> {
    Ok(kind()? == "PV")
}

/// Returns whether the guest's hypervisor is KVM.
///
/// # Errors
///
/// The kernel does not say it.
pub fn is_kvm() -> Result<bool> {
    Ok(kind()? == "KVM")
}

fn kind() -> Result<String> {
    if fs::read_to_string(CLOCKS).context(CLOCKS)?.contains("kvm-clock") {
        return Ok("KVM".to_owned());
    }
    Ok(fs::read_to_string(KIND).context(KIND)?.trim().to_owned())
}
