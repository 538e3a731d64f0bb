// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr list`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use perfctr::{Error, Event, ParseEventError};
use serde::Serialize;
use serde_json::json;

use crate::info::Here;
use crate::tables::{Modes, Processor, Refusal, TableMetric, Tables};
use crate::text::{document, print};

/// The text below all events.
const HINT: &str = "
Any event can be given by its number: as r and a hexadecimal select word, or as
cpu/event=0xc4,umask=0x1/.  --unverified counts one that is not known to be right on this CPU.
:u and :k count one mode only.
";

/// The options of `perfctr list`.
#[derive(Debug, Args)]
pub struct Options {
    /// Lists these events only, and says of each name that is not an event why it is none.
    #[arg(value_name = "EVENT")]
    events: Vec<String>,
    /// Lists this CPU's own events as well, if libpfm4 is installed, which knows them.
    #[arg(short, long, conflicts_with = "events")]
    all: bool,
    /// Lists the metrics of the processor's vendor in place of events, and says of each that cannot
    /// be computed why that is. They come from the tables of Linux's perf, which are in any source
    /// of Linux below tools/perf/pmu-events: on Debian in the package linux-source.
    #[arg(short, long, conflicts_with_all = ["events", "all"])]
    metrics: bool,
    /// Reads the vendors' tables below this directory, which may be a source of Linux. Otherwise
    /// they are looked for in the directory that PERFCTR_TABLES names, or else in
    /// /usr/local/share/perfctr/pmu-events.
    #[arg(long, value_name = "DIR", requires = "metrics")]
    tables: Option<PathBuf>,
    /// Lists the metrics of this processor in place of this machine's: vendor, family, and model
    /// and stepping in hexadecimal digits, such as GenuineIntel-6-55-4.
    #[arg(long, value_name = "CPU", requires = "metrics")]
    cpu: Option<Processor>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// An event, or a name that is none.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    /// Event number, unit mask, edge, inversion and counter mask, as in an event select, or `None`
    /// for events that have others on other CPUs.
    select: Option<u64>,
    /// The event that is counted, if its name is another one.
    event: Option<String>,
    /// The reason for which it cannot be counted here, if it cannot.
    refused: Option<String>,
    description: Option<String>,
}

impl Listed {
    fn describe(here: &Here, name: String, description: Option<String>) -> Self {
        match name.parse::<Event>() {
            Ok(event) => Self {
                select: event.word(),
                event: Some(event.to_string()).filter(|event| *event != name),
                refused: here.refuses(event.user()).map(reason),
                name,
                description,
            },
            Err(error) => {
                Self { select: None, event: None, refused: Some(explain(error)), name, description }
            }
        }
    }

    fn line(&self) -> String {
        let can = match &self.refused {
            None => "yes".to_owned(),
            Some(reason) => format!("no: {reason}"),
        };
        let select = self.select.map_or_else(String::new, |select| format!("r{select:x}"));
        let description = self.description.as_ref();
        let description = description.map_or_else(String::new, |text| format!("    {text}\n"));
        format!("{:<40} {select:<12} {can}\n{description}", self.name)
    }
}

fn reason(error: Error) -> String {
    match error {
        Error::EventNotAvailable { reason, .. } => reason.to_owned(),
        Error::NoCounters { .. } => "nobody provides counters".to_owned(),
        error => error.to_string(),
    }
}

fn explain(error: ParseEventError) -> String {
    match error {
        ParseEventError::Encoding { reason, .. } => reason,
        error => error.to_string(),
    }
}

/// A metric of the tables.
#[derive(Debug, Serialize)]
struct ListedMetric {
    name: String,
    groups: Vec<String>,
    description: String,
    /// The events that it needs, by the tables' names, with perf's.
    events: Vec<(String, String)>,
    /// The reason for which it cannot be computed, if it cannot.
    refused: Option<Refusal>,
}

impl ListedMetric {
    fn from_metric(metric: TableMetric) -> Self {
        let TableMetric { name, groups, description, .. } = metric;
        let (events, refused) = match metric.formula {
            Ok(formula) => (formula.events, None),
            Err(refusal) => (Vec::new(), Some(refusal)),
        };
        let events = events.into_iter().map(|(event, name)| (name, event.to_string())).collect();
        Self { name, groups, description, events, refused }
    }

    fn line(&self) -> String {
        let can = self.refused.as_ref().map_or("yes".to_owned(), |why| format!("no: {why}"));
        let groups = self.groups.join(",");
        format!("{:<40} {can}\n    {}\n    groups: {groups}\n", self.name, self.description)
    }
}

/// Lists the metrics of the tables.
fn list_metrics(options: &Options) -> Result<()> {
    let processor = options.cpu.clone().unwrap_or_else(Processor::here);
    let tables = Tables::open(options.tables.as_deref(), processor.clone())?;
    let metrics = tables.metrics(Modes::AsDefined).into_iter().map(ListedMetric::from_metric);
    let metrics: Vec<ListedMetric> = metrics.collect();
    let directory = tables.directory.display().to_string();
    if options.json {
        let content = json!({
            "cpu": processor.to_string(), "directory": directory, "metrics": metrics
        });
        return Ok(print(&document("perfctr list metrics", 1, &content)?)?);
    }
    let mut text = format!("metrics of {processor}, from {directory}\n");
    text += &format!("{:<40} can be computed\n", "metric");
    text.extend(metrics.iter().map(ListedMetric::line));
    Ok(print(&text)?)
}

/// Runs `perfctr list`.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.metrics {
        list_metrics(options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let here = Here::find()?;
    let mut listed: Vec<Listed> = if options.events.is_empty() {
        Event::named().map(|event| Listed::describe(&here, event.to_string(), None)).collect()
    } else {
        options.events.iter().map(|name| Listed::describe(&here, name.clone(), None)).collect()
    };
    if options.all {
        listed.extend(own_events(&here)?);
    }
    if options.json {
        print(&document("perfctr list", 1, &json!({ "events": listed }))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let provider = here.description.provider;
    let mut text = format!("{:<40} {:<12} here ({provider})\n", "event", "select");
    text.extend(listed.iter().map(Listed::line));
    if options.events.is_empty() {
        text += HINT;
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns this CPU's own events, of which there may be a thousand.
#[cfg(feature = "pfm")]
fn own_events(here: &Here) -> Result<Vec<Listed>> {
    let all = perfctr::catalogue();
    anyhow::ensure!(!all.is_empty(), "libpfm4 is not installed, or does not know this CPU");
    let listed = |perfctr::Described { name, description, .. }| {
        Listed::describe(here, name, Some(description).filter(|text| !text.is_empty()))
    };
    Ok(all.into_iter().map(listed).collect())
}

#[cfg(not(feature = "pfm"))]
fn own_events(_: &Here) -> Result<Vec<Listed>> {
    anyhow::bail!("this perfctr was built without libpfm4 (feature pfm)")
}
