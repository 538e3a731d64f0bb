// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The vendors' metrics of this processor, from tables in the form that Linux's perf is built from
//! (`tools/perf/pmu-events` in the kernel's source): JSON files of events and metrics, and a list
//! that says which directory of them is a processor's.
//!
//! The tables are their vendors', under their licences, so none comes with perfctr.

mod events;
mod expression;
mod formula;
mod refusal;

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use perfctr::Event;
use regex_lite::Regex;
use serde::Deserialize;

pub use self::formula::Formula;
pub use self::refusal::Refusal;

use self::events::Events;
use self::expression::number_length;
use self::refusal::Kind;
use crate::machine::Cpu;

/// The variable that names the directory with tables.
const VARIABLE: &str = "PERFCTR_TABLES";
/// The directory that is used if nobody names one.
const STANDARD: &str = "/usr/local/share/perfctr/pmu-events";
/// The list of processors, as it is called in the directory of their architecture.
const LIST: &str = "mapfile.csv";
/// The places of that directory in directories that users may name: the directory itself,
/// `pmu-events`, and a source of Linux.
const BELOW: [&str; 3] = ["", "arch/x86", "tools/perf/pmu-events/arch/x86"];
/// Where the kernel says whether cores have several threads.
const SMT: &str = "/sys/devices/system/cpu/smt/active";

/// One entry of a table: an event, or a metric. The names are perf's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "EventName")]
    event_name: Option<String>,
    #[serde(rename = "EventCode")]
    event_code: Option<String>,
    #[serde(rename = "UMask")]
    umask: Option<String>,
    #[serde(rename = "UMaskExt")]
    umask_ext: Option<String>,
    #[serde(rename = "ExtSel")]
    ext_sel: Option<String>,
    #[serde(rename = "CounterMask")]
    counter_mask: Option<String>,
    #[serde(rename = "Invert")]
    invert: Option<String>,
    #[serde(rename = "EdgeDetect")]
    edge_detect: Option<String>,
    #[serde(rename = "AnyThread")]
    any_thread: Option<String>,
    #[serde(rename = "MSRIndex")]
    msr_index: Option<String>,
    #[serde(rename = "PEBS")]
    pebs: Option<String>,
    /// The counters that count it.
    #[serde(rename = "Counter")]
    counter: String,
    /// The part of the processor that counts it, if it is not the only kind of core.
    #[serde(rename = "Unit")]
    unit: Option<String>,
    #[serde(rename = "MetricName")]
    metric_name: Option<String>,
    #[serde(rename = "MetricExpr")]
    metric_expr: Option<String>,
    /// The groups of a metric, with semicolons between.
    #[serde(rename = "MetricGroup")]
    metric_group: String,
    #[serde(rename = "ScaleUnit")]
    scale_unit: String,
    #[serde(rename = "BriefDescription")]
    description: String,
    /// The event, if it is one that no table has.
    #[serde(skip)]
    known: Option<Event>,
}

/// A vendor of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vendor {
    Intel,
    Amd,
}

/// A processor as the list names it: `GenuineIntel-6-55-4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor(String);

impl Processor {
    /// Returns this machine's.
    pub fn here() -> Self {
        let Cpu { vendor, family, model, stepping, .. } = Cpu::here();
        Self(format!("{vendor}-{family}-{model:X}-{stepping:X}"))
    }

    /// Returns whether it is one of those that this expression means, with or without a stepping.
    fn is_of(&self, expression: &Regex) -> bool {
        let model = self.0.rsplit_once('-').map_or(&*self.0, |(model, _)| model);
        expression.is_match(&self.0) || expression.is_match(model)
    }

    fn vendor(&self) -> Vendor {
        if self.0.starts_with("GenuineIntel") { Vendor::Intel } else { Vendor::Amd }
    }
}

impl FromStr for Processor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split('-').count() {
            4 => Ok(Self(text.to_owned())),
            _ => Err(format!(
                "`{text}` found, vendor, family, model and stepping expected, such as \
                 GenuineIntel-6-55-4"
            )),
        }
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The modes in which the events of a metric are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Modes {
    /// Those that the metric says: both, if it says nothing.
    #[default]
    AsDefined,
    User,
    Kernel,
}

impl Modes {
    /// Returns the modifier of a name that stands for them.
    const fn suffix(self) -> &'static str {
        match self {
            Self::AsDefined => "",
            Self::User => ":u",
            Self::Kernel => ":k",
        }
    }

    /// Returns an event in these modes, or `None` if it is one in another mode.
    fn select(self, event: Event) -> Option<Event> {
        let chosen = match self {
            Self::AsDefined => return Some(event),
            Self::User => event.user(),
            Self::Kernel => event.kernel(),
        };
        let is_open = event != event.user() && event != event.kernel();
        (is_open || event == chosen).then_some(chosen)
    }

    /// Returns what an event of a metric is called.
    fn label(self, name: &str) -> String {
        let has_modifier = name.contains(':') || name.contains('@');
        if has_modifier { name.to_owned() } else { format!("{name}{}", self.suffix()) }
    }
}

/// A metric that the tables have.
#[derive(Clone, Debug)]
pub struct TableMetric {
    pub name: String,
    pub groups: Vec<String>,
    pub description: String,
    /// By what the value is multiplied, and its unit then.
    scale: f64,
    unit: String,
    /// How it is computed, or why it cannot be.
    pub formula: Result<Formula, Refusal>,
}

impl TableMetric {
    /// Computes it, in its unit.
    pub fn compute(&self, count: impl Fn(Event) -> Option<f64>, seconds: f64) -> Option<f64> {
        let value = self.formula.as_ref().ok()?.compute(count, seconds)?;
        Some(value * self.scale)
    }

    /// Returns its unit and its name.
    pub fn label(&self) -> String {
        format!("{} {}", self.unit, self.name).trim_start().to_owned()
    }
}

/// The tables of one processor.
#[derive(Debug)]
pub struct Tables {
    processor: Processor,
    /// The directory that has them.
    pub directory: PathBuf,
    events: Events,
    /// The metrics by their names in lower case.
    metrics: BTreeMap<String, Entry>,
    /// Whether cores have several threads.
    smt: bool,
}

impl Tables {
    /// Reads the tables of a processor: those below the directory that is named, or else those that
    /// `PERFCTR_TABLES` names, or else those that are at the usual place.
    pub fn open(named: Option<&Path>, processor: Processor) -> Result<Self> {
        let variable = env::var_os(VARIABLE).map(PathBuf::from);
        let directory = named.map(Path::to_owned).or(variable).unwrap_or_else(|| STANDARD.into());
        let smt = fs::read_to_string(SMT).is_ok_and(|text| text.trim() == "1");
        Self::read(&directory, processor, smt)
    }

    fn read(directory: &Path, processor: Processor, smt: bool) -> Result<Self> {
        let places = BELOW.map(|below| directory.join(below));
        let Some(place) = places.into_iter().find(|place| place.join(LIST).exists()) else {
            bail!(
                "no tables of vendors' metrics found in {}, a directory with {LIST} expected: \
                 `perfctr list --help` says where they come from",
                directory.display()
            );
        };
        let list = place.join(LIST);
        let text = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
        let folder = folder(&text, &processor).with_context(|| list.display().to_string())?;
        let directory = place.join(folder);
        let (events, metrics) = (Events::default(), BTreeMap::new());
        let mut tables = Self { processor, directory, events, metrics, smt };
        tables.fill()?;
        Ok(tables)
    }

    /// Reads all files of the processor's directory.
    fn fill(&mut self) -> Result<()> {
        let name = self.directory.display().to_string();
        let files = fs::read_dir(&self.directory).with_context(|| name.clone())?;
        let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        for file in files {
            let context = || file.display().to_string();
            let text = fs::read_to_string(&file).with_context(context)?;
            // Some releases have a file that describes groups, which is no list.
            if !text.trim_start().starts_with('{') {
                let entries: Vec<Entry> = serde_json::from_str(&text).with_context(context)?;
                entries.into_iter().for_each(|entry| self.add(entry));
            }
        }
        let (events, metrics) = (self.events.len(), self.metrics.len());
        ensure!(events + metrics > 0, "{name}: no events and no metrics found");
        Ok(())
    }

    fn add(&mut self, entry: Entry) {
        if let Some(name) = entry.event_name.clone() {
            self.events.add(&name, entry);
        } else if let (Some(name), Some(_)) = (&entry.metric_name, &entry.metric_expr) {
            // Where a processor has two kinds of cores, the counters are the larger ones'.
            let key = name.to_lowercase();
            if entry.unit.as_deref() != Some("cpu_atom") || !self.metrics.contains_key(&key) {
                self.metrics.insert(key, entry);
            }
        }
    }

    /// Returns all metrics, in the order of their names.
    pub fn metrics(&self, modes: Modes) -> Vec<TableMetric> {
        self.metrics.values().map(|entry| self.metric(entry, modes)).collect()
    }

    /// Returns the metric of this name, or those of the group of this name. Neither depends on
    /// upper and lower case.
    pub fn named(&self, name: &str, modes: Modes) -> Result<Vec<TableMetric>> {
        if let Some(entry) = self.entry(name) {
            return Ok(vec![self.metric(entry, modes)]);
        }
        let is_of = |entry: &&Entry| groups(entry).any(|group| group.eq_ignore_ascii_case(name));
        let group: Vec<&Entry> = self.metrics.values().filter(is_of).collect();
        ensure!(
            !group.is_empty(),
            "no metric and no group {name} found in {}: `perfctr list --metrics` lists them",
            self.directory.display()
        );
        Ok(group.into_iter().map(|entry| self.metric(entry, modes)).collect())
    }

    fn metric(&self, entry: &Entry, modes: Modes) -> TableMetric {
        let name = entry.metric_name.clone().unwrap_or_default();
        let text = entry.metric_expr.as_deref().unwrap_or_default();
        let formula = match entry.unit.as_deref() {
            None | Some("cpu_core") => Formula::parse(self, &name, text, modes),
            Some(unit) => Err(Kind::OtherUnit.refusal(format!("{name} ({unit})"))),
        };
        let (scale, unit) = scale(&entry.scale_unit);
        TableMetric {
            groups: groups(entry).map(str::to_owned).collect(),
            description: entry.description.clone(),
            unit: unit.to_owned(),
            name,
            scale,
            formula,
        }
    }

    /// Returns the entry of a metric.
    fn entry(&self, name: &str) -> Option<&Entry> {
        self.metrics.get(&name.to_lowercase())
    }

    /// Returns the event that an expression names.
    fn event(&self, written: &str, modes: Modes) -> Result<Event, Refusal> {
        let event = self.events.find(self.processor.vendor(), written)?;
        modes.select(event).ok_or_else(|| Kind::Mode.refusal(written))
    }

    /// Returns a constant of the machine.
    fn constant(&self, name: &str) -> Result<f64, Refusal> {
        match &*name.to_lowercase() {
            "smt_on" => Ok(f64::from(self.smt)),
            // Each thread is counted by itself.
            "core_wide" => Ok(0.0),
            _ => Err(Kind::Constant.refusal(name)),
        }
    }
}

fn groups(entry: &Entry) -> impl Iterator<Item = &str> {
    entry.metric_group.split(';').map(str::trim).filter(|group| !group.is_empty())
}

/// Splits `100%` into the number and the unit.
fn scale(text: &str) -> (f64, &str) {
    let (number, unit) = text.split_at(number_length(text));
    (number.parse().unwrap_or(1.0), unit.trim())
}

/// Returns the directory of a processor, from a list with a line for each of them: an expression
/// that the processor's name matches, the tables' version, the directory, and whose events it has.
fn folder<'a>(list: &'a str, processor: &Processor) -> Result<&'a str> {
    for line in
        list.lines().skip(1).filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let &[expression, _, folder, kind] = &*fields else {
            bail!("`{line}` found, expression, version, directory and kind expected");
        };
        let whole = Regex::new(&format!("^(?:{expression})$"));
        let whole = whole.with_context(|| format!("`{expression}`"))?;
        if kind == "core" && processor.is_of(&whole) {
            return Ok(folder);
        }
    }
    bail!("this processor, {processor}, is not in the list")
}

#[cfg(test)]
mod tests;
