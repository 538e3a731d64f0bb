// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares the command's encodings of events' names with libpfm4's own answers, and reads the
//! vendors' tables of metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::report::Report;
use crate::artefacts::libpfm::{Libpfm, libpfm};
use crate::artefacts::tables::tables;
use crate::tools::{sh, toolchain};

/// The CPU models by libpfm4's names: old and new ones of both vendors.
const MODELS: [&str; 6] = ["nhm", "hsw", "skl", "spr", "amd64_fam17h_zen1", "amd64_fam17h_zen2"];
/// The bits of an event select that say how the event is counted, and not which event is counted:
/// rings, pin control, interrupt and enable (SDM volume 3, figure 20-1).
const NOT_OF_EVENT: u64 = 0b11 << 16 | 1 << 19 | 1 << 20 | 1 << 22;
/// The word that libpfm4 writes for Intel's third fixed counter.
const REFERENCE_CYCLES: u64 = 0x0300;

/// A processor of each model that Linux 6.1 has tables of.
const PROCESSORS: [&str; 33] = [
    "GenuineIntel-6-97-2",
    "GenuineIntel-6-1C-2",
    "GenuineIntel-6-3D-4",
    "GenuineIntel-6-56-3",
    "GenuineIntel-6-4F-1",
    "GenuineIntel-6-55-7",
    "GenuineIntel-6-96-1",
    "GenuineIntel-6-5C-9",
    "GenuineIntel-6-7A-1",
    "GenuineIntel-6-3C-3",
    "GenuineIntel-6-3F-2",
    "GenuineIntel-6-7E-5",
    "GenuineIntel-6-6A-6",
    "GenuineIntel-6-3A-9",
    "GenuineIntel-6-3E-4",
    "GenuineIntel-6-2D-7",
    "GenuineIntel-6-57-1",
    "GenuineIntel-6-AA-4",
    "GenuineIntel-6-1A-5",
    "GenuineIntel-6-2E-6",
    "GenuineIntel-6-2A-7",
    "GenuineIntel-6-8F-8",
    "GenuineIntel-6-37-8",
    "GenuineIntel-6-5E-3",
    "GenuineIntel-6-55-4",
    "GenuineIntel-6-86-5",
    "GenuineIntel-6-8C-1",
    "GenuineIntel-6-2C-2",
    "GenuineIntel-6-25-2",
    "GenuineIntel-6-2F-2",
    "AuthenticAMD-23-1-1",
    "AuthenticAMD-23-31-0",
    "AuthenticAMD-25-21-0",
];
/// Processors with libpfm4's names of their models, which call most events as the tables do.
const NAMED_ALIKE: [(&str, &str); 3] = [
    ("GenuineIntel-6-5E-3", "skl"),
    ("GenuineIntel-6-55-4", "skx"),
    ("GenuineIntel-6-8F-8", "spr"),
];

/// Runs without a machine.
pub fn run(report: &mut Report) -> Result<()> {
    let libpfm = libpfm()?;
    let mut cargo = toolchain::cargo();
    cargo.args(["build", "--quiet", "--package", "perfctr", "--features", "pfm"]);
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
    let tables = tables()?;
    let mut printed = String::new();
    let name = "every metric of Linux's tables is computed, or refused with a reason";
    report.test(name, || {
        printed = metrics_of_all(&libpfm, &tables)?;
        Ok(())
    });
    report.note(printed);
    for (processor, model) in NAMED_ALIKE {
        let name = format!("the events of {model}'s metrics have libpfm4's encodings");
        let mut printed = String::new();
        report.test(&name, || {
            printed = compare_tables(&libpfm, &tables, processor, model)?;
            Ok(())
        });
        report.note(printed);
    }
    Ok(())
}

/// Asks for the metrics of each processor. Returns a text that says how many there are of which
/// kind.
fn metrics_of_all(libpfm: &Libpfm, tables: &Path) -> Result<String> {
    let list = fs::read_to_string(tables.join("mapfile.csv"))?;
    let models = list.lines().skip(1).filter_map(|line| line.split(',').nth(2));
    let models: BTreeSet<String> = models.map(str::to_owned).collect();
    let (mut seen, mut kinds) = (BTreeSet::new(), BTreeMap::<String, u32>::new());
    for processor in PROCESSORS {
        let listed = metrics(libpfm, tables, processor)?;
        let directory = listed["directory"].as_str().unwrap_or_default();
        let model = Path::new(directory).file_name().context("a directory")?;
        seen.insert(model.to_string_lossy().into_owned());
        for metric in listed["metrics"].as_array().context("metrics")? {
            let kind = match &metric["refused"] {
                Value::Null => "computed",
                refused => {
                    let what = refused["what"].as_str().unwrap_or_default();
                    ensure!(!what.is_empty(), "{processor}: no reason: {metric}");
                    refused["kind"].as_str().unwrap_or_default()
                }
            };
            // The language and the names are Linux's own, so the command has to know them.
            let is_ours = matches!(kind, "expression" | "circle" | "encoding" | "mode" | "");
            ensure!(!is_ours, "{processor}: {metric}");
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
    }
    ensure!(seen == models, "{seen:?} read of {models:?}");
    ensure!(kinds.get("computed").is_some_and(|&number| number > 1_500), "{kinds:?}");
    let counts: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    Ok(format!("metrics of {} models: {}", models.len(), counts.join(", ")))
}

/// Compares the events of a processor's metrics with libpfm4's of the same names. Returns a text
/// that says how many there are.
fn compare_tables(libpfm: &Libpfm, tables: &Path, cpu: &str, model: &str) -> Result<String> {
    let truth = truth(libpfm, model)?;
    let listed = metrics(libpfm, tables, cpu)?;
    let mut compared = BTreeSet::new();
    for metric in listed["metrics"].as_array().context("metrics")? {
        for event in metric["events"].as_array().context("events")? {
            let (name, found) = (event[0].as_str(), event[1].as_str());
            let (name, found) = name.zip(found).context("an event")?;
            let Some(select) = found.strip_prefix('r') else { continue };
            let Ok(select) = u64::from_str_radix(select, 16) else { continue };
            let theirs = name.replacen('.', ":", 1).replace('.', "_");
            if let Some([word]) = truth.get(&format!("{model}::{theirs}")).map(Vec::as_slice) {
                let word = word & !NOT_OF_EVENT;
                ensure!(select == word, "{name}: {found} of the tables, r{word:x} of libpfm4's");
                compared.insert(name.to_owned());
            }
        }
    }
    ensure!(compared.len() > 30, "only {compared:?}");
    Ok(format!("{model}: {} events of metrics compared with libpfm4", compared.len()))
}

/// Returns what the command says of a processor's metrics.
fn metrics(libpfm: &Libpfm, tables: &Path, processor: &str) -> Result<Value> {
    let mut list = perfctr(libpfm, "skl");
    list.args(["list", "--metrics", "--json", "--cpu", processor, "--tables"]).arg(tables);
    Ok(serde_json::from_str(&sh::output(&mut list)?)?)
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

/// Returns our command, which treats this machine as such a model.
fn perfctr(libpfm: &Libpfm, model: &str) -> Command {
    let mut command = Command::new(sh::project().join("target/debug/perfctr"));
    command.env("LD_LIBRARY_PATH", &libpfm.libraries).env("LIBPFM_FORCE_PMU", model);
    command
}
