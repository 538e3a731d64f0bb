// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares the report of `perfctr info` with facts that the machine, the kernel's log and the test
//! itself know.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shared_abi::ioctl::DEVICE_PATH;
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::cpus;
use vm_tests::users::admit;
use vm_tests::{module, perf};

use crate::command::PERFCTR;

const PARANOID: &str = "/sys/module/perfctr/parameters/paranoid";
const SAMPLE_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";
/// The counters of the testbed's PMU, and their width.
const GENERAL: u32 = 4;
const FIXED: u32 = 3;
const BITS: u32 = 48;
/// A level of `perf_event_paranoid`, a value of the module's parameter, a number of samples in a
/// second, and the device's mode. Each differs from the value with which a machine begins.
const LEVEL: i32 = 1;
const MODULE_LEVEL: i32 = 0;
const RATE: u64 = 12_345;
const MODE: u32 = 0o640;

/// Checks facts that somebody else publishes as well.
pub fn published(tally: &mut Tally, provider: &str) -> Result<()> {
    let guest = provider == "paravirt";
    let info = printed()?;
    let log = module::log()?;
    let mut check = |what: &str, found: Value, expected: Value| {
        tally.check(&format!("perfctr info says {what}"), equal(found, expected));
    };
    check("who provides counters", info["provider"].clone(), json!(provider));
    check("its version", info["perfctr"].clone(), json!(env!("CARGO_PKG_VERSION")));
    let host = if guest {
        let version = info["hypervisor"]["version"].as_str().unwrap_or_default();
        ensure!(log.contains(&format!("Xen version: {version} ")), "Xen {version:?}\n{log}");
        json!({"name": "Xen", "version": version, "guest": "PV"})
    } else {
        json!({"name": "QEMU", "version": null, "guest": null})
    };
    check("who runs the machine", info["hypervisor"].clone(), host);
    let abi = format!("{ABI_MAJOR}.{ABI_MINOR}");
    let driver = json!({"abi": abi, "allows": true, "all_events": false});
    check(
        "what the driver allows",
        info["driver"].clone(),
        if guest { driver } else { json!(null) },
    );
    let module = json!({"version": env!("CARGO_PKG_VERSION"), "abi": abi});
    check("the module's version", info["module"].clone(), if guest { module } else { json!(null) });
    check("which CPU this is", info["cpu"].clone(), cpu()?);
    let counters = json!({
        "general": GENERAL, "general_bits": BITS, "fixed": FIXED, "fixed_bits": BITS,
    });
    check("its counters and their widths", info["counters"].clone(), counters);
    let limits =
        json!({"events_at_once": GENERAL + FIXED, "samples": true, "period_max": i32::MAX});
    check(
        "the provider's limits",
        info["limits"].clone(),
        if guest { limits } else { json!(null) },
    );
    let vcpus = if guest { json!(cpus()?.len()) } else { json!(null) };
    check("how many vCPUs have counters", info["vcpus"].clone(), vcpus);
    policy(tally, guest)?;
    text(tally, &info)
}

/// Returns the output of `perfctr info --json`.
fn printed() -> Result<Value> {
    Ok(serde_json::from_str(&output(&["info", "--json"])?)?)
}

fn output(words: &[&str]) -> Result<String> {
    let output = Command::new(PERFCTR).args(words).output().context(PERFCTR)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{words:?}: {} {complaint}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the CPU as Linux names it.
fn cpu() -> Result<Value> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let of = |key: &str| -> Result<&str> {
        let named = |line: &&str| line.split(':').next().is_some_and(|name| name.trim() == key);
        let line = cpuinfo.lines().find(named).with_context(|| format!("no {key}"))?;
        Ok(line.split_once(':').context("no value")?.1.trim())
    };
    let number = |key| -> Result<u32> { Ok(of(key)?.parse()?) };
    Ok(json!({
        "vendor": of("vendor_id")?, "family": number("cpu family")?, "model": number("model")?,
        "stepping": number("stepping")?, "brand": of("model name")?,
    }))
}

/// Checks values that an administrator has set. Each value is set to another one than before.
fn policy(tally: &mut Tally, guest: bool) -> Result<()> {
    let mut files = vec![(perf::PARANOID, LEVEL.to_string()), (SAMPLE_RATE, RATE.to_string())];
    if guest {
        files.push((PARANOID, MODULE_LEVEL.to_string()));
    }
    let mut before = Vec::new();
    for (file, value) in &files {
        before.push((*file, fs::read_to_string(file).context(*file)?));
        fs::write(file, value).context(*file)?;
    }
    let mut device = json!(null);
    if guest {
        admit(MODE)?;
        device = json!({
            "path": DEVICE_PATH, "mode": "0640", "uid": 0, "gid": 65534, "opens": true,
        });
    }
    let expected = json!({
        "perf_event_paranoid": LEVEL,
        "perf_event_max_sample_rate": RATE,
        "paranoid": if guest { json!(MODULE_LEVEL) } else { json!(null) },
        "device": device,
        "seccomp": false,
    });
    let found = printed()?["policy"].clone();
    for (file, value) in before {
        fs::write(file, value.trim()).context(file)?;
    }
    if guest {
        fs::set_permissions(DEVICE_PATH, Permissions::from_mode(0o600))?;
    }
    tally.check("perfctr info says what the administrator lets whom do", equal(found, expected));
    Ok(())
}

/// Checks that the text for people says the same as the JSON.
fn text(tally: &mut Tally, info: &Value) -> Result<()> {
    let text = output(&["info"])?;
    let mut missing = Vec::new();
    let mut expect = |line: String| {
        if !text.lines().any(|found| found.split_whitespace().eq(line.split_whitespace())) {
            missing.push(line);
        }
    };
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    expect(format!("provider {}", word(&info["provider"])));
    for refusal in info["refusals"].as_array().context("no refusals")? {
        let [provider, reason, remedy] =
            ["provider", "reason", "remedy"].map(|n| word(&refusal[n]));
        expect(format!("not {provider}: {reason}; {remedy}"));
    }
    let cpu = &info["cpu"];
    let [vendor, family, model, stepping, brand] =
        ["vendor", "family", "model", "stepping", "brand"].map(|name| word(&cpu[name]));
    expect(format!("CPU {vendor} family {family} model {model} stepping {stepping} ({brand})"));
    let counters = &info["counters"];
    expect(format!(
        "counters {} general of {} bits",
        counters["general"], counters["general_bits"]
    ));
    expect(format!("{} fixed of {} bits", counters["fixed"], counters["fixed_bits"]));
    if info["driver"].is_object() {
        let (host, module) = (&info["hypervisor"], &info["module"]);
        expect(format!("hypervisor Xen {}, PV guest", word(&host["version"])));
        expect(format!("module {}, ABI {}", word(&module["version"]), word(&module["abi"])));
        let abi = word(&info["driver"]["abi"]);
        expect(format!(
            "driver ABI {abi}, lets this domain count events that count nothing of others"
        ));
    } else {
        expect(format!("hypervisor {}", word(&info["hypervisor"]["name"])));
        expect("module not loaded".to_owned());
    }
    tally.check("perfctr info tells people the same", {
        missing.is_empty().then_some(()).ok_or(format!("{missing:?} not in\n{text}"))
    });
    Ok(())
}
