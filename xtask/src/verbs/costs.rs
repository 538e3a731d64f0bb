// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads and writes the tables of `docs/costs.md`, which `cargo xtask bench` has measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::tools::sh;

/// The lines of the page between which the tables are.
const BEGIN: &str = "<!-- cargo xtask bench writes from here -->";
const END: &str = "<!-- to here -->";

/// The table of reads, whose rows have one number each.
pub const READS: &str = "one read";
/// The names of the columns of that table, and of all others.
const READ_COLUMNS: [&str; 1] = ["instructions"];
const COLUMNS: [&str; 4] =
    ["hypervisor", "guest", "entries into ring 0, or exits", "PMU registers accessed"];

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

/// Returns the path of the page that a reader of the book sees.
pub fn page() -> PathBuf {
    sh::project().join("docs/costs.md")
}

impl Costs {
    /// Reads the rows of a page.
    pub fn read(page: &Path) -> Result<Self> {
        let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
        Self::of(parts(&text)?.1).with_context(|| page.display().to_string())
    }

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

    /// Writes these rows into a page, which keeps its other rows.
    pub fn write(&self, page: &Path) -> Result<()> {
        let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
        let (before, tables, after) = parts(&text)?;
        let mut all = Self::of(tables)?;
        for (subject, cost) in self.rows() {
            all.insert(subject.clone(), cost.clone());
        }
        Ok(fs::write(page, format!("{before}\n\n{}{after}", all.tables()))?)
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

/// Returns a page's text before its tables, the tables, and the text after them.
fn parts(text: &str) -> Result<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("no line `{BEGIN}`"))?;
    let (tables, after) = rest.split_once(END).with_context(|| format!("no line `{END}`"))?;
    let is_once = !tables.contains(BEGIN) && !after.contains(BEGIN) && !after.contains(END);
    ensure!(is_once, "its marks occur more than once");
    let start = before.len() + BEGIN.len();
    Ok((&text[..start], tables, &text[start + tables.len()..]))
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
    fn a_run_replaces_its_rows_and_leaves_all_else() {
        let page = std::env::temp_dir().join(format!("xtask-costs-{}", std::process::id()));
        let whole = format!("# Before\n{BEGIN}\n\n{}{END}\nafter\n", costs().tables());
        fs::write(&page, &whole).unwrap();
        let mut run = Costs::default();
        run.insert(subject(READS, "libperfctr, 1 counter", "Xen"), vec![Some(57.4)]);
        run.insert(subject(READS, "ioctl", "Xen"), vec![Some(997.0)]);
        run.write(&page).unwrap();
        let written = fs::read_to_string(&page).unwrap();
        let expected = whole.replace("| 56 |\n", "| 57 |\n| ioctl | Xen | 997 |\n");
        assert_eq!(written, expected);
        fs::write(&page, "no marks\n").unwrap();
        run.write(&page).unwrap_err();
        fs::remove_file(page).unwrap();
    }

    #[test]
    fn the_project_has_a_page() {
        let costs = Costs::read(&page()).unwrap();
        assert!(costs.rows().count() > 70);
        let read = subject(READS, "libperfctr, 1 counter", "Xen with perfctr");
        let read = written(costs.get(&read).unwrap()[0]);
        let readme = fs::read_to_string(sh::project().join("README.md")).unwrap();
        assert!(readme.contains(&format!("{read} instructions")), "README.md has another read");
    }
}
