// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The costs that `cargo xtask bench` measures: the rows of the tables of `docs/costs.md`.

mod growth;
pub mod page;
pub mod places;
mod reasons;
mod summary;

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::suites::noise::NOISE_INSTRUCTIONS;

/// The table of reads, whose rows have one number each.
pub const READS: &str = "one read";
/// The names of the columns of that table, and of all others.
const READ_COLUMNS: [&str; 1] = ["instructions"];
const COLUMNS: [&str; 4] =
    ["hypervisor", "guest", "entries into ring 0, or exits", "PMU registers accessed"];
/// At most so many of a row's first columns are instructions. The others are events.
const INSTRUCTIONS: usize = 2;

/// The least band for numbers of entries and accesses, of which most samples and switches have only
/// a few.
const NOISE_EVENTS: f64 = 1.0;

/// The subject of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The operation that is measured, after which its table is named.
    pub operation: String,
    /// The software that does it, and how.
    pub how: String,
    /// The machine.
    pub machine: String,
}

/// The cost of an operation: instructions, and then entries and registers. The second number is
/// `None` on a machine without a hypervisor.
pub type Cost = Vec<Option<f64>>;

/// The tables' rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    rows: BTreeMap<Subject, Cost>,
    /// The subjects, in the order of the tables and of their rows.
    order: Vec<Subject>,
}

/// Returns the instructions of a cost, as exact as the tables show them.
fn total(cost: &Cost) -> f64 {
    cost.iter().take(INSTRUCTIONS).flatten().map(|number| number.round()).sum()
}

/// Returns by how much measurements of a number may differ that is in this one of so many columns.
/// The larger of the bands applies, except to reads, which have only the one in percent.
pub fn noise(number: f64, column: usize, columns: usize, percent: f64) -> f64 {
    let least = match column {
        // A read is exact to the instruction except for its loop.
        _ if columns == READ_COLUMNS.len() => 0.0,
        0..INSTRUCTIONS => NOISE_INSTRUCTIONS,
        _ => NOISE_EVENTS,
    };
    (number.abs() * percent / 100.0).max(least)
}

impl Costs {
    /// Reads the rows of a page's tables.
    fn of(tables: &str) -> Result<Self> {
        let mut costs = Self::default();
        let mut operation = String::new();
        for line in tables.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                operation = uncapitalised(heading);
            }
            let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else {
                continue;
            };
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [how, machine, numbers @ ..] = &cells[..] else { continue };
            if *machine == "on" {
                continue;
            }
            let numbers = numbers.iter().map(|cell| number(cell)).collect::<Result<_>>();
            let numbers = numbers.with_context(|| line.to_owned())?;
            let subject = Subject {
                operation: operation.clone(),
                how: (*how).to_owned(),
                machine: (*machine).to_owned(),
            };
            costs.insert(subject, numbers);
        }
        Ok(costs)
    }

    /// Adds a row, or replaces the cost of one that is there.
    pub fn insert(&mut self, subject: Subject, cost: Cost) {
        if self.rows.insert(subject.clone(), cost).is_none() {
            self.order.push(subject);
        }
    }

    /// Returns every row, in order.
    pub fn rows(&self) -> impl Iterator<Item = (&Subject, &Cost)> {
        self.order.iter().map(|subject| (subject, &self.rows[subject]))
    }

    /// Returns the cost of a row's subject.
    pub fn get(&self, subject: &Subject) -> Option<&Cost> {
        self.rows.get(subject)
    }

    /// Returns the tables as the page has them.
    fn tables(&self) -> String {
        let mut operations: Vec<&str> = Vec::new();
        for subject in &self.order {
            if !operations.contains(&subject.operation.as_str()) {
                operations.push(&subject.operation);
            }
        }
        let mut text = String::new();
        for operation in operations {
            let columns = if operation == READS { &READ_COLUMNS[..] } else { &COLUMNS };
            text += &format!("## {}\n\n", capitalised(operation));
            text += &format!("| how | on | {} |\n", columns.join(" | "));
            text += &format!("|---|---|{}\n", "---:|".repeat(columns.len()));
            for (subject, cost) in self.rows().filter(|(one, _)| one.operation == operation) {
                let cells: Vec<String> = cost.iter().map(|&cell| written(cell)).collect();
                text +=
                    &format!("| {} | {} | {} |\n", subject.how, subject.machine, cells.join(" | "));
            }
            text.push('\n');
        }
        text
    }
}

fn number(cell: &str) -> Result<Option<f64>> {
    if cell.is_empty() {
        return Ok(None);
    }
    Ok(Some(cell.replace(',', "").parse()?))
}

/// Writes a whole number, with commas between thousands if it has five digits or more.
fn written(number: Option<f64>) -> String {
    let Some(number) = number else { return String::new() };
    // A sum with 0.0 is never printed as -0.
    let mut text = format!("{:.0}", number.round() + 0.0);
    let digits = text.trim_start_matches('-').len();
    if digits > 4 {
        for place in (3..digits).step_by(3) {
            text.insert(text.len() - place - (place - 1) / 3, ',');
        }
    }
    text
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Turns a heading into an operation's name, whose first word may be an abbreviation.
fn uncapitalised(text: &str) -> String {
    let mut letters = text.chars();
    let is_abbreviation = text.chars().nth(1).is_some_and(char::is_uppercase);
    match letters.next() {
        Some(first) if !is_abbreviation => first.to_lowercase().chain(letters).collect(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(operation: &str, how: &str, machine: &str) -> Subject {
        let [operation, how, machine] = [operation, how, machine].map(str::to_owned);
        Subject { operation, how, machine }
    }

    fn costs() -> Costs {
        let mut costs = Costs::default();
        costs.insert(subject(READS, "libperfctr, 1 counter", "Xen"), vec![Some(56.0)]);
        let bare = vec![None, Some(8881.0), Some(4.0), Some(27.0)];
        costs.insert(subject("a sample", "perf_event", "no hypervisor"), bare);
        let rdpmc = vec![Some(1_234_567.0), Some(-99_999.0), Some(0.0), Some(12_345.0)];
        costs.insert(subject("RDPMC", "perf_event", "KVM"), rdpmc);
        costs
    }

    #[test]
    fn tables_are_read_as_they_are_written() {
        let text = costs().tables();
        assert_eq!(Costs::of(&text).unwrap(), costs());
        assert!(text.contains("| perf_event | no hypervisor |  | 8881 | 4 | 27 |\n"), "{text}");
        assert!(
            text.contains("| perf_event | KVM | 1,234,567 | -99,999 | 0 | 12,345 |\n"),
            "{text}"
        );
        assert!(text.starts_with("## One read\n") && text.contains("\n## RDPMC\n"), "{text}");
        Costs::of("## A\n| one | two | x |\n").unwrap_err();
    }

    #[test]
    fn a_total_is_what_the_table_shows() {
        assert_eq!(total(&vec![Some(1.6), Some(-2.6), Some(7.0), Some(9.0)]), -1.0);
        assert_eq!(total(&vec![None, Some(8881.0), Some(4.0), Some(27.0)]), 8881.0);
        assert_eq!(total(&vec![Some(56.4)]), 56.0);
    }

    #[test]
    fn noise_is_that_of_the_column() {
        assert_eq!([noise(100.0, 0, 1, 5.0), noise(100.0, 0, 1, 3.0)], [5.0, 3.0]);
        assert_eq!(noise(100.0, 1, 4, 5.0), NOISE_INSTRUCTIONS);
        assert_eq!([noise(-10_000.0, 0, 4, 5.0), noise(10_000.0, 1, 4, 3.0)], [500.0, 300.0]);
        assert_eq!([noise(3.0, 2, 4, 5.0), noise(100.0, 3, 4, 5.0)], [NOISE_EVENTS, 5.0]);
    }
}
