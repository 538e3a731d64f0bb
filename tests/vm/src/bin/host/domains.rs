// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the command `perfctr domains` on the host, as its administrator does.

use std::fs;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use serde_json::Value;

pub const PERFCTR: &str = "/machine/perfctr";
/// The name that QEMU gives to the machine.
pub const NAME: &str = "guest";
/// The file that says which machines may count.
const POLICY: &str = "/machine/policy";
/// The number of the first process, which runs no machine.
const NOBODY: &str = "1";

/// Returns the numbers of general and of fixed counters, and whether they sample.
pub fn limits() -> Result<Vec<u64>> {
    let limits = json(&["limits", "--json"])?;
    let number = |key: &str| limits[key].as_u64().with_context(|| format!("{key} in {limits}"));
    let samples = limits["samples"].as_bool().context("samples")?;
    Ok(vec![number("general")?, number("fixed")?, samples.into()])
}

/// Returns how much memory the process has locked. Unit: KiB.
pub fn locked_kib(process: Pid) -> Result<Vec<u64>> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(vec![kib.context("no VmLck")?.parse()?])
}

/// Returns how many pages of the host are pinned (`FOLL_PIN`), as its kernel counts them.
pub fn pinned() -> Result<Vec<u64>> {
    // This adds up what each CPU has counted by itself.
    fs::write("/proc/sys/vm/stat_refresh", "1").context("stat_refresh")?;
    let all = fs::read_to_string("/proc/vmstat")?;
    let of = |key: &str| -> Result<u64> {
        let value = all.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        Ok(value.with_context(|| key.to_owned())?.parse()?)
    };
    Ok(vec![of("nr_foll_pin_acquired")?.wrapping_sub(of("nr_foll_pin_released")?)])
}

/// Limits how much memory the process may lock. Unit: KiB.
pub fn limit_locked_kib(process: Pid, kib: u64) -> Result<Vec<u64>> {
    let limit = format!("--memlock={}", kib * 1024);
    let status = Command::new("prlimit").args(["--pid", &process.to_string(), &limit]).status()?;
    ensure!(status.success(), "prlimit: {status}");
    Ok(Vec::new())
}

/// Returns for each machine whether it is this process's, and whether it may count.
pub fn list(process: Pid) -> Result<Vec<u64>> {
    let domains = json(&["list", "--json"])?;
    let text = printed(&["list"])?;
    let mut all = Vec::new();
    ensure!(domains["format"] == "perfctr domains list" && domains["version"] == 1, "{domains}");
    for domain in domains["domains"].as_array().context("no list")? {
        let id = domain["id"].as_i64().with_context(|| domain.to_string())?;
        let allowed = domain["allowed"].as_bool().with_context(|| domain.to_string())?;
        ensure!(domain["name"] == NAME, "{domain}");
        let answer = if allowed { "yes" } else { "no" };
        ensure!(domain["verified"] == true, "{domain}");
        let row = [&id.to_string(), answer, "-", "-", NAME];
        let has = text.lines().any(|line| line.split_whitespace().eq(row));
        ensure!(has, "no line {row:?} in {text}");
        let own = id == i64::from(process.as_raw());
        all.extend([own, allowed].map(u64::from));
    }
    ensure!(text.lines().count() == 1 + all.len() / 2, "{text}");
    Ok(all)
}

/// Allows the machine to count, or forbids it, by its name, which no other machine has. If it is to
/// be allowed, this first tests that a policy file allows it, and forbids it again.
pub fn allow(allowed: bool) -> Result<Vec<u64>> {
    if allowed {
        fs::write(POLICY, format!("# The guest of this test.\n{NAME}\n"))?;
        printed(&["apply", POLICY])?;
        let domains = json(&["list", "--json"])?;
        let all = domains["domains"].as_array().context("no list")?;
        ensure!(all.iter().all(|domain| domain["allowed"] == true), "{domains}");
        printed(&["forbid", NAME])?;
    }
    printed(&[if allowed { "allow" } else { "forbid" }, NAME])?;
    Ok(Vec::new())
}

/// Tries to allow a process that runs no machine. Returns the exit status.
pub fn allow_nobody() -> Result<Vec<u64>> {
    let output = run(&["allow", NOBODY])?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(words.contains("domain 1") && words.contains("No such process"), "{words}");
    Ok(vec![output.status.code().context("a signal")? as u64])
}

fn json(arguments: &[&str]) -> Result<Value> {
    let text = printed(arguments)?;
    serde_json::from_str(&text).with_context(|| text)
}

fn printed(arguments: &[&str]) -> Result<String> {
    let output = run(arguments)?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {}, {words}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn run(arguments: &[&str]) -> Result<Output> {
    Command::new(PERFCTR).arg("domains").args(arguments).output().context(PERFCTR)
}
