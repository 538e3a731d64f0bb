// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads and writes `docs/costs.md`: the tables, and the one that puts all operations side by side.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{Costs, growth, summary};
use crate::suites::scale::growth::Growth;
use crate::tools::sh::{self, cmd};

/// The lines of the page between which something is written.
struct Marks {
    begin: &'static str,
    end: &'static str,
}

/// Around the table of all operations.
const SUMMARY: Marks = Marks {
    begin: "<!-- cargo xtask bench writes this from the tables below -->",
    end: "<!-- until here -->",
};
/// Around the tables, each of which is about one operation.
const TABLES: Marks =
    Marks { begin: "<!-- cargo xtask bench writes from here -->", end: "<!-- to here -->" };
/// Around the tables of growth.
const GROWTH: Marks = Marks {
    begin: "<!-- cargo xtask bench growth writes from here -->",
    end: "<!-- to here: growth -->",
};

/// Returns the path of the page that a reader of the book sees.
pub fn path() -> PathBuf {
    sh::project().join("docs/costs.md")
}

/// Reads the rows of a page.
pub fn read(page: &Path) -> Result<Costs> {
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    rows(&text).with_context(|| page.display().to_string())
}

/// Reads the rows of the page that a commit has.
pub fn read_of(commit: &str) -> Result<Costs> {
    let page = format!("{commit}:docs/costs.md");
    let text = sh::output(cmd("git", ["show", &page]).current_dir(sh::project()))?;
    rows(&text).context(page)
}

fn rows(text: &str) -> Result<Costs> {
    TABLES.split(text).and_then(|(_, tables, _)| Costs::of(tables))
}

/// Writes these rows into a page, which keeps its other rows.
pub fn write(costs: &Costs, page: &Path) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    Ok(fs::write(page, with(costs, &text)?)?)
}

/// Returns a page with these rows and its other rows, and with all of them side by side.
fn with(costs: &Costs, text: &str) -> Result<String> {
    let (before, tables, after) = TABLES.split(text)?;
    let mut all = Costs::of(tables)?;
    for (subject, cost) in costs.rows() {
        all.insert(subject.clone(), cost.clone());
    }
    let text = format!("{before}\n\n{}{after}", all.tables());
    let (before, _, after) = SUMMARY.split(&text)?;
    Ok(format!("{before}\n\n{}{after}", summary::table(&all)))
}

/// Writes the tables of growth into a page.
pub fn write_growth(growth: &Growth, page: &Path) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    Ok(fs::write(page, with_growth(growth, &text)?)?)
}

/// Returns a page with these tables of growth.
fn with_growth(growth: &Growth, text: &str) -> Result<String> {
    let (before, _, after) = GROWTH.split(text)?;
    Ok(format!("{before}\n\n{}{after}", growth::tables(growth)))
}

impl Marks {
    /// Returns a page's text up to the first mark, what is between the marks, and the rest.
    fn split<'a>(&self, text: &'a str) -> Result<(&'a str, &'a str, &'a str)> {
        let Self { begin, end } = self;
        let (before, rest) =
            text.split_once(begin).with_context(|| format!("no line `{begin}`"))?;
        let (inside, after) = rest.split_once(end).with_context(|| format!("no line `{end}`"))?;
        let is_once = !inside.contains(begin) && !after.contains(begin) && !after.contains(end);
        ensure!(is_once, "its marks occur more than once");
        let start = before.len() + begin.len();
        Ok((&text[..start], inside, &text[start + inside.len()..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::scale::shapes::deviation;
    use crate::verbs::costs::{READS, Subject, written};

    fn read_of(how: &str) -> Subject {
        let [operation, how, machine] = [READS, how, "Xen with perfctr"].map(str::to_owned);
        Subject { operation, how, machine }
    }

    #[test]
    fn a_run_replaces_its_rows_and_leaves_all_else() {
        let mut costs = Costs::default();
        costs.insert(read_of("libperfctr, 1 counter"), vec![Some(56.0)]);
        let whole = |costs: &Costs| {
            format!(
                "# Before\n{}\n\n{}{}\nbetween\n{}\n\n{}{}\nafter\n",
                SUMMARY.begin,
                summary::table(costs),
                SUMMARY.end,
                TABLES.begin,
                costs.tables(),
                TABLES.end
            )
        };
        let page = std::env::temp_dir().join(format!("xtask-costs-{}", std::process::id()));
        fs::write(&page, whole(&costs)).unwrap();
        let mut run = Costs::default();
        run.insert(read_of("libperfctr, 1 counter"), vec![Some(57.4)]);
        run.insert(read_of("ioctl of /dev/perfctr, all counters"), vec![Some(997.0)]);
        write(&run, &page).unwrap();
        let written = fs::read_to_string(&page).unwrap();
        assert_eq!(written, whole(&run));
        assert!(
            written.contains("| ioctl of /dev/perfctr, all counters | Xen with perfctr | 997 |")
        );
        assert!(written.contains("| one read, by a system call | PV | 997 |"), "{written}");
        fs::write(&page, "no marks\n").unwrap();
        write(&run, &page).unwrap_err();
        fs::remove_file(page).unwrap();
    }

    #[test]
    fn the_project_has_a_page() {
        let costs = read(&path()).unwrap();
        assert!(costs.rows().count() > 70);
        let read = written(costs.get(&read_of("libperfctr, 1 counter")).unwrap()[0]);
        let readme = fs::read_to_string(sh::project().join("README.md")).unwrap();
        assert!(readme.contains(&format!("{read} instructions")), "README.md has another read");
    }

    #[test]
    fn the_page_is_what_its_tables_make_of_it() {
        let text = fs::read_to_string(path()).unwrap();
        let anew = with(&Costs::default(), &text).unwrap();
        assert!(anew == text, "`cargo xtask bench --summary` writes docs/costs.md anew");
        let anew = with_growth(&recorded_growth(), &text).unwrap();
        assert!(anew == text, "the tables of growth are not what their numbers make of them");
    }

    fn recorded_growth() -> Growth {
        let text = fs::read_to_string(path()).unwrap();
        growth::read(GROWTH.split(&text).unwrap().1).unwrap()
    }

    /// Checks every cost that was measured at enough sizes, and every reason whose cost was.
    #[test]
    fn every_cost_of_the_page_grows_as_it_may_and_every_reason_is_needed() {
        let growth = recorded_growth();
        assert!(!growth.all().is_empty());
        for series in growth.all().iter().filter(|series| series.points.len() >= 3) {
            series.check().unwrap_or_else(|error| panic!("{}: {error}", series.operation));
        }
        for series in growth.all() {
            let reason = deviation(series.dimension, &series.operation);
            let (dimension, operation) = (series.dimension, &series.operation);
            let grows = series.points.len() > 1 && series.grows();
            assert!(reason.is_some() || !grows, "{operation} grows by {dimension}");
            let is_needed = grows || series.points.len() < 3;
            assert!(reason.is_none() || is_needed, "{operation} is flat by {dimension}");
        }
    }
}
