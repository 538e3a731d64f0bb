// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The page's tables of growth.

#[cfg(test)]
use anyhow::{Context, Result};

#[cfg(test)]
use super::number;
use super::written;
use crate::suites::scale::growth::{Growth, Series};
use crate::suites::scale::shapes::{DIMENSIONS, Deviation, Dimension, deviation};

/// Stands for a cost that nobody has measured.
const NOT_MEASURED: &str = "?";

/// Returns the tables as the page has them: one for everything that grows, and below it a note for
/// each reason why a cost grows.
pub fn tables(growth: &Growth) -> String {
    let mut text = String::new();
    let mut notes: Vec<&Deviation> = Vec::new();
    for dimension in DIMENSIONS.iter().filter(|dimension| growth.of(dimension).count() > 0) {
        text += &table(growth, dimension, &mut notes);
    }
    for (letter, note) in ('a'..).zip(notes) {
        text += &format!("- **{letter}**: {}\n", note.why.replace('\n', "\n  "));
    }
    text.push('\n');
    text
}

/// Returns a table. `notes` has the notes so far.
fn table(growth: &Growth, dimension: &Dimension, notes: &mut Vec<&'static Deviation>) -> String {
    let numbers: Vec<String> =
        dimension.numbers.iter().map(|&n| written(Some(f64::from(n)))).collect();
    let mut text = format!("### By the number of {}\n\n", dimension.of);
    text += &format!("| cost | {} | exponent | note |\n", numbers.join(" | "));
    text += &format!("|---|{}---:|---|\n", "---:|".repeat(numbers.len()));
    for series in growth.of(dimension) {
        let cell = |n: &u32| {
            let cost = series.points.iter().find(|(number, _)| number == n);
            cost.map_or_else(|| NOT_MEASURED.to_owned(), |&(_, cost)| written(Some(cost)))
        };
        let cells: Vec<String> = dimension.numbers.iter().map(cell).collect();
        let exponent = series.exponent().map_or_else(
            || "-".to_owned(),
            |exponent| {
                // A sum with 0.0 is never printed as -0.00.
                format!("{:.2}", (exponent * 100.0).round() / 100.0 + 0.0)
            },
        );
        let note = match letter(series, notes) {
            Some(letter) => letter.to_string(),
            // Nobody has said why it grows.
            None if series.grows() => "?".to_owned(),
            None => String::new(),
        };
        text +=
            &format!("| {} | {} | {exponent} | {note} |\n", series.operation, cells.join(" | "));
    }
    text.push('\n');
    text
}

/// Returns the letter of the reason why a cost grows.
fn letter(series: &Series, notes: &mut Vec<&'static Deviation>) -> Option<char> {
    let its = deviation(series.dimension, &series.operation)?;
    let at = notes.iter().position(|note| note.why == its.why).unwrap_or_else(|| {
        notes.push(its);
        notes.len() - 1
    });
    ('a'..).nth(at)
}

/// Reads the tables of a page. A row with other columns than its table is an error.
#[cfg(test)]
pub fn read(text: &str) -> Result<Growth> {
    let mut growth = Growth::default();
    let mut dimension = None;
    for line in text.lines() {
        if let Some(of) = line.strip_prefix("### By the number of ") {
            dimension = DIMENSIONS.iter().find(|dimension| dimension.of == of);
        }
        let row = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |"));
        let (Some(row), Some(dimension)) = (row, dimension) else { continue };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [operation, costs @ .., _, _] = &cells[..] else { continue };
        if *operation == "cost" {
            continue;
        }
        for (n, cost) in dimension.numbers.iter().zip(costs).filter(|(_, c)| **c != NOT_MEASURED) {
            let cost = number(cost)?.with_context(|| line.to_owned())?;
            growth.insert(dimension.name, operation, *n, cost)?;
        }
    }
    Ok(growth)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth() -> Growth {
        let mut growth = Growth::default();
        for (n, cost) in [(1, 12_345.0), (4, 12_345.0), (16, 12_345.0), (64, 12_345.0)] {
            growth.insert("users", "a session", n, cost).unwrap();
            growth.insert("users", "locks of nobody", n, 0.0).unwrap();
        }
        growth.insert("users", "a start", 4, 7.0).unwrap();
        growth
    }

    #[test]
    fn tables_are_read_as_they_are_written() {
        let text = tables(&growth());
        assert_eq!(read(&text).unwrap(), growth());
        assert!(text.contains("### By the number of users who have counters\n\n| cost | 1 | 4 |"));
        let row = "| a session | 12,345 | 12,345 | 12,345 | 12,345 | 0.00 |  |\n";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| locks of nobody | 0 | 0 | 0 | 0 | - |  |\n"), "{text}");
        assert!(text.contains("| a start | ? | 7 | ? | ? | - |  |\n"), "{text}");
    }
}
