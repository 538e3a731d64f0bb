// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares what the command takes events' names for with libpfm4's own answers.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::report::Report;
use crate::artefacts::libpfm::{Libpfm, libpfm};
use crate::tools::{sh, toolchain};

/// The CPU models by libpfm4's names: old and new ones of both vendors.
const MODELS: [&str; 6] = ["nhm", "hsw", "skl", "spr", "amd64_fam17h_zen1", "amd64_fam17h_zen2"];
/// The bits of an event select that say how the event is counted, and not which event it is: rings,
/// pin control, interrupt and enable (SDM volume 3, figure 20-1).
const NOT_OF_EVENT: u64 = 0b11 << 16 | 1 << 19 | 1 << 20 | 1 << 22;
/// The word that libpfm4 writes for Intel's third fixed counter.
const REFERENCE_CYCLES: u64 = 0x0300;

/// Runs without a machine.
pub fn run(report: &mut Report) -> Result<()> {
    let libpfm = libpfm()?;
    let mut cargo = toolchain::cargo();
    cargo.args(["build", "--quiet", "--package", "cli", "--features", "pfm"]);
    sh::run(cargo.current_dir(sh::project()))?;
    for model in MODELS {
        let mut printed = String::new();
        report.test(&format!("every event of {model} has libpfm4's encoding"), || {
            printed = compare(&libpfm, model)?;
            Ok(())
        });
        report.note(printed);
    }
    report.test("a name that was mistyped gets the one of this CPU that was meant", || {
        let listed = ours(&libpfm, "skl", &["MEM_LOAD_RETIERD:L1_HIT".to_owned()])?;
        let refused = listed[0]["refused"].as_str().unwrap_or_default();
        ensure!(refused.contains("did you mean `MEM_LOAD_RETIRED`?"), "{refused}");
        Ok(())
    });
    report.test("every event in the list of this CPU's own can be parsed", || {
        let mut list = perfctr(&libpfm, "skl");
        let listed = events(list.args(["list", "--json", "--all"]))?;
        let parsed = listed.iter().filter(|event| event["select"].is_u64()).count();
        let truth = truth(&libpfm, "skl")?.len();
        ensure!(parsed > 300 && parsed <= truth, "{parsed} of {truth}");
        Ok(())
    });
    Ok(())
}

/// Compares every event of the model. Returns a text that says how many there were.
fn compare(libpfm: &Libpfm, model: &str) -> Result<String> {
    let truth = truth(libpfm, model)?;
    let names: Vec<String> = truth.keys().cloned().collect();
    let listed = ours(libpfm, model, &names)?;
    ensure!(listed.len() == truth.len() && truth.len() > 100, "{} listed", listed.len());
    let (mut equal, mut refused) = (0, 0);
    let has_fixed = !model.starts_with("amd64");
    for ((name, words), found) in truth.iter().zip(&listed) {
        let select = found["select"].as_u64();
        let fault = || format!("{name}: {words:x?} of libpfm4's, {found}");
        ensure!(found["name"] == **name, "{}", fault());
        match words[..] {
            [word] if has_fixed && word & !NOT_OF_EVENT == REFERENCE_CYCLES => {
                ensure!(found["event"] == "ref-cycles", "{}", fault());
                equal += 1;
            }
            // An event that only a fixed counter counts has no event select.
            [word] if has_fixed && word & 0xff == 0 && word >> 32 == 0 => {
                ensure!(select.is_none() && found["refused"].is_string(), "{}", fault());
                refused += 1;
            }
            [word] => {
                ensure!(select == Some(word & !NOT_OF_EVENT), "{}", fault());
                equal += 1;
            }
            _ => {
                let reason = found["refused"].as_str().unwrap_or_default();
                ensure!(reason.contains("registers beside the event select"), "{}", fault());
                refused += 1;
            }
        }
    }
    Ok(format!("{model}: {equal} encodings equal, {refused} events refused that are more"))
}

/// Returns the words of each event, as libpfm4's own program prints them.
fn truth(libpfm: &Libpfm, model: &str) -> Result<BTreeMap<String, Vec<u64>>> {
    let mut command = Command::new(&libpfm.showevtinfo);
    command.args(["-E", "-L", "-O", "none"]).env("LIBPFM_FORCE_PMU", model);
    let printed = sh::output(&mut command)?;
    let prefix = format!("{model}::");
    let parse = |line: &str| -> Option<Result<(String, Vec<u64>)>> {
        let (words, name) = line.rsplit_once('\t')?;
        let name = name.trim();
        let word = |word: &str| {
            let digits = word.trim().strip_prefix("0x").context("a word")?;
            Ok(u64::from_str_radix(digits, 16)?)
        };
        let words = words.split('\t').filter(|word| !word.is_empty()).map(word);
        name.starts_with(&prefix).then(|| Ok((name.to_owned(), words.collect::<Result<_>>()?)))
    };
    printed.lines().filter_map(parse).collect()
}

/// Returns what our command says of each event.
fn ours(libpfm: &Libpfm, model: &str, names: &[String]) -> Result<Vec<Value>> {
    let mut command = perfctr(libpfm, model);
    events(command.args(["list", "--json"]).args(names))
}

/// Returns the events that a `list --json` lists.
fn events(list: &mut Command) -> Result<Vec<Value>> {
    let output = sh::output(list)?;
    let listed: Value = serde_json::from_str(&output)?;
    listed["events"].as_array().cloned().ok_or_else(|| anyhow!("no list: {output}"))
}

/// Returns our command, which is to take this machine for such a model.
fn perfctr(libpfm: &Libpfm, model: &str) -> Command {
    let mut command = Command::new(sh::project().join("target/debug/perfctr"));
    command.env("LD_LIBRARY_PATH", &libpfm.libraries).env("LIBPFM_FORCE_PMU", model);
    command
}
