// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The samples in the file that `perfctr record --host` writes.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// A host's profile.
#[derive(Debug)]
pub struct HostProfile {
    /// The document.
    pub document: Value,
    start: u64,
    ticks_per_second: u64,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The layer's name.
    pub layer: String,
    /// The path of the file, or the name of a place that is none.
    pub module: String,
    /// The address, as the module states it.
    pub address: u64,
    /// The domain's number.
    pub domain: u64,
    /// The virtual CPU, or `None` if the sample is of another thread of the host.
    pub vcpu: Option<u64>,
    /// The physical CPU.
    pub cpu: u64,
    /// The time since the recording began. Unit: ns.
    pub ns: u64,
}

impl HostProfile {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// It is not there, or is no host's profile.
    pub fn read(path: &str) -> Result<Self> {
        let document: Value = serde_json::from_slice(&fs::read(path).context(path.to_owned())?)?;
        let host = &document["host"];
        let (start, ticks_per_second) = (number(&host["tsc"]), number(&host["tsc_per_second"]));
        ensure!(ticks_per_second > 0, "{host}");
        Ok(Self { document, start, ticks_per_second })
    }

    /// Returns the time since the recording began at which the host's time-stamp counter was this
    /// number. Unit: ns.
    ///
    /// # Errors
    ///
    /// The recording began later.
    pub fn ns(&self, tsc: u64) -> Result<u64> {
        let ticks = tsc.checked_sub(self.start).context("the recording began later")?;
        Ok(u64::try_from(u128::from(ticks) * NS_PER_SECOND / u128::from(self.ticks_per_second))?)
    }

    /// Returns the host's time-stamp counter at a time since the recording began. Unit of the time:
    /// ns.
    pub fn tsc(&self, ns: u64) -> u64 {
        let ticks = u128::from(ns) * u128::from(self.ticks_per_second) / NS_PER_SECOND;
        self.start.wrapping_add(ticks as u64)
    }

    /// Returns by how much times may be wrong. Unit: ns. On a Xen host, the samples have the
    /// time-stamp counter itself.
    pub fn clock_error(&self) -> u64 {
        number(&self.document["host"]["kvm"]["clock_error"])
    }

    /// Returns how many samples of a KVM host are missing, as the recording command has found out.
    pub fn missing(&self) -> u64 {
        number(&self.document["host"]["kvm"]["missing"])
    }

    /// Returns all samples.
    ///
    /// # Errors
    ///
    /// The document lacks something.
    pub fn samples(&self) -> Result<Vec<Sample>> {
        let mut all = Vec::new();
        let item = |list: &str, n: &Value| &self.document[list][number(n) as usize];
        for stack in self.document["stacks"].as_array().context("no stacks")? {
            let frame = item("frames", &stack["frames"][0]);
            let (module, thread) =
                (item("modules", &frame["module"]), item("threads", &stack["thread"]));
            let text = |key: &str| {
                Ok::<_, anyhow::Error>(module[key].as_str().context(key.to_owned())?.to_owned())
            };
            let (layer, path) = (text("layer")?, text("path")?);
            let vcpu = thread["task"].is_null().then(|| number(&thread["tid"]));
            for time in stack["times"].as_array().context("no times")? {
                all.push(Sample {
                    layer: layer.clone(),
                    module: path.clone(),
                    address: number(&frame["address"]),
                    domain: number(&thread["pid"]),
                    vcpu,
                    cpu: number(&stack["cpu"]),
                    ns: number(time),
                });
            }
        }
        Ok(all)
    }
}

/// Returns how many samples at the programs' functions may lack a name, by what the report says.
///
/// A sample lacks a name if the guest says that its CPU was idle then, or that nothing was at the
/// sample's address. This may only happen near a switch of threads, where the clocks do not tell on
/// which side of the switch the sample is. The report has the number of those samples as well.
///
/// # Errors
///
/// The report is malformed.
pub fn unknown_at_most(report: &str) -> Result<u64> {
    let number = |kind: &str| -> Result<u64> {
        let Some((before, _)) = report.split_once(kind) else { return Ok(0) };
        Ok(before.rsplit(' ').next().context("no number")?.parse()?)
    };
    let idle = number(" samples in user mode while")?;
    let unmapped = number(" samples in memory of which")?;
    Ok((idle + unmapped).min(number(" of these are within")?))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
