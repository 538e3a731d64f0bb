// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The metrics that `--metrics` names: our own groups, and the vendors' metrics.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error, ValueEnum};
use perfctr::Event;

use super::group::Group;
use super::metric::Metric;
use crate::tables::{Modes, Processor, TableMetric, Tables};
use crate::text::print_note;

/// What a user has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Group(Group),
    /// A metric of the vendor's tables, or a group of them.
    OfTables(String, Modes),
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        if let Ok(group) = Group::from_str(text, false) {
            return Self::Group(group);
        }
        let (name, modes) = match text.rsplit_once(':') {
            Some((name, "u")) => (name, Modes::User),
            Some((name, "k")) => (name, Modes::Kernel),
            _ => (text, Modes::AsDefined),
        };
        Self::OfTables(name.to_owned(), modes)
    }
}

/// Parses a [`Name`], and offers our own groups when the option is completed.
#[derive(Clone, Copy, Debug)]
pub struct NameParser;

impl TypedValueParser for NameParser {
    type Value = Name;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Name, Error> {
        let name = |text: String| Name::from(&*text);
        StringValueParser::new().map(name).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Group::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// The metrics that are to be printed.
#[derive(Debug, Default)]
pub struct Chosen {
    groups: Vec<Group>,
    of_tables: Vec<TableMetric>,
}

impl Chosen {
    /// Finds the metrics. Those of the vendor come from the tables below `directory` or at the
    /// usual place.
    ///
    /// # Errors
    ///
    /// The reason why a metric cannot be computed. From a group, the metrics that can be computed
    /// are chosen.
    pub fn find(names: &[Name], directory: Option<&Path>) -> Result<Self> {
        let (mut chosen, mut tables) = (Self::default(), None);
        for name in names {
            match name {
                Name::Group(group) => chosen.groups.push(*group),
                Name::OfTables(name, modes) => {
                    let tables = match &mut tables {
                        Some(tables) => tables,
                        none => none.insert(open(name, directory)?),
                    };
                    chosen.of_tables.extend(of_tables(tables, name, *modes)?);
                }
            }
        }
        Ok(chosen)
    }

    /// Returns the further events to count beside these. The events of our groups are counted
    /// together. Those of the vendor's metrics may take turns, since some metrics need more
    /// counters than there are.
    pub fn events(&self, counted: &[Event]) -> Vec<Vec<Event>> {
        let mut groups: Vec<Vec<Event>> = self.groups.iter().map(|group| group.events()).collect();
        for (event, _) in self.of_vendor() {
            let mut others = groups.iter().flatten().chain(counted);
            if !others.any(|other| other == event) {
                groups.push(vec![*event]);
            }
        }
        groups
    }

    fn of_vendor(&self) -> impl Iterator<Item = &(Event, String)> {
        self.of_tables.iter().flat_map(|metric| &metric.formula).flat_map(|formula| &formula.events)
    }

    /// Returns the vendor's name of an event that a metric needs.
    pub fn label(&self, event: Event) -> Option<String> {
        let found = self.of_vendor().find(|(other, _)| *other == event);
        found.map(|(_, name)| name.clone())
    }

    /// Returns the metrics of these counts. A metric that would be divided by 0 is left out.
    pub fn metrics(&self, counted: &[(Event, f64)], seconds: f64) -> Vec<Metric> {
        let count = |event: Event| {
            counted.iter().find(|(other, _)| *other == event).map(|(_, count)| *count)
        };
        let of_table = |metric: &TableMetric| {
            Some(Metric::new(metric.compute(count, seconds)?, metric.label()))
        };
        let of_groups = self.groups.iter().flat_map(|group| group.metrics(counted));
        of_groups.chain(self.of_tables.iter().filter_map(of_table)).collect()
    }
}

fn open(name: &str, directory: Option<&Path>) -> Result<Tables> {
    let ours: Vec<_> =
        Group::value_variants().iter().filter_map(|g| g.to_possible_value()).collect();
    let ours: Vec<&str> = ours.iter().map(PossibleValue::get_name).collect();
    Tables::open(directory, Processor::here())
        .with_context(|| format!("the metric {name} is none of {}", ours.join(", ")))
}

/// Returns the metrics of this name that can be computed.
fn of_tables(tables: &Tables, name: &str, modes: Modes) -> Result<Vec<TableMetric>> {
    let mut found = tables.named(name, modes)?;
    if let [TableMetric { name, formula: Err(why), .. }] = &*found {
        bail!("the metric {name} cannot be computed: {why}");
    }
    found.retain(|metric| match &metric.formula {
        Ok(_) => true,
        Err(why) => {
            print_note(format_args!("{} is left out: {why}", metric.name));
            false
        }
    });
    if found.is_empty() {
        bail!("no metric of the group {name} can be computed");
    }
    Ok(found)
}
