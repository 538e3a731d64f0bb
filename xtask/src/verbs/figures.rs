// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask figures` compares the book's tables of costs with new measurements.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::bench;
use super::costs::{self, Cost, Costs};

/// Measures what `docs/costs.md` says, and compares.
#[derive(clap::Args)]
pub struct Args {
    /// Compare with a page that `cargo xtask bench --page FILE` has written, and not with a new
    /// run.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// How far a new figure may be from the page's. The larger of the two bands applies, except to
/// reads, which have only the one in percent. Numbers of instructions depend on when the kernel's
/// timer interrupts, and on the code that the compiler makes of changed sources. Figures of samples
/// and switches vary more, since they are differences of larger numbers.
const BAND_PERCENT: f64 = 5.0;
const BAND_INSTRUCTIONS: f64 = 50.0;
/// The least band for numbers of entries and accesses, of which most samples and switches have only
/// a few.
const BAND_EVENTS: f64 = 1.0;

/// Fails if a figure is out of its band, or has not been measured.
pub fn run(args: &Args) -> Result<()> {
    let measured = match &args.from {
        Some(file) => Costs::read(file)?,
        None => bench::measure(&bench::Args::default(), |_| Ok(()))?,
    };
    let documented = Costs::read(&costs::page())?;
    let wrong = compare(&documented, &measured);
    ensure!(wrong.is_empty(), "docs/costs.md is wrong:\n{}", wrong.join("\n"));
    println!("docs/costs.md has {} rows, and all are right", documented.rows().count());
    Ok(())
}

/// Prints every row, and returns the faults. A row that was measured but is not on the page is also
/// printed. It is no fault, since the page says nothing about it.
fn compare(documented: &Costs, measured: &Costs) -> Vec<String> {
    let mut wrong = Vec::new();
    for (subject, expected) in documented.rows() {
        let name = format!("{}: {}, on {}", subject.operation, subject.how, subject.machine);
        let Some(found) = measured.get(subject) else {
            wrong.push(format!("{name}: not measured"));
            continue;
        };
        println!("{name:<72} documented {}, measured {}", shown(expected), shown(found));
        if !is_near(expected, found) {
            let row = format!("{name}: documented {}, measured {}", shown(expected), shown(found));
            wrong.push(row);
        }
    }
    for (subject, found) in measured.rows().filter(|(one, _)| documented.get(one).is_none()) {
        let (operation, how, machine) = (&subject.operation, &subject.how, &subject.machine);
        println!("{operation}: {how}, on {machine}: not on the page, measured {}", shown(found));
    }
    wrong
}

fn shown(cost: &Cost) -> String {
    let cell = |number: &Option<f64>| number.map_or_else(|| "-".to_owned(), |n| format!("{n:.1}"));
    cost.iter().map(cell).collect::<Vec<_>>().join(" ")
}

/// Returns whether each number is in the other's band.
fn is_near(expected: &Cost, found: &Cost) -> bool {
    // In a row with more than one column, the last two columns are events.
    let instructions = if expected.len() > 1 { expected.len().saturating_sub(2) } else { 1 };
    // A row with one column is a read, which is exact to the instruction except for its loop.
    let least = if expected.len() > 1 { BAND_INSTRUCTIONS } else { 0.0 };
    let near =
        |(n, (expected, found)): (usize, (&Option<f64>, &Option<f64>))| match (expected, found) {
            (Some(expected), Some(found)) => {
                let relative = expected.abs() * BAND_PERCENT / 100.0;
                let least = if n < instructions { least } else { BAND_EVENTS };
                (expected - found).abs() <= relative.max(least)
            }
            (expected, found) => expected.is_none() && found.is_none(),
        };
    expected.len() == found.len() && expected.iter().zip(found).enumerate().all(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Costs {
        Costs::read(&costs::page()).unwrap()
    }

    #[test]
    fn figures_agree_with_themselves_and_more_is_no_fault() {
        let page = page();
        assert_eq!(compare(&page, &page), [""; 0]);
        assert_eq!(compare(&Costs::default(), &page), [""; 0]);
    }

    #[test]
    fn a_wrong_figure_in_any_column_of_any_row_is_named() {
        let page = page();
        for (subject, cost) in page.rows() {
            for column in 0..cost.len() {
                let mut planted = page.clone();
                let mut other = cost.clone();
                let more = if cost.len() > 1 { 53.0 } else { 0.0 };
                other[column] =
                    Some(cost[column].map_or(1.0, |figure| figure + figure.abs() * 0.06 + more));
                planted.insert(subject.clone(), other);
                let wrong = compare(&planted, &page);
                assert_eq!(wrong.len(), 1, "{subject:?}, column {column}");
                assert!(wrong[0].contains(&subject.how), "{wrong:?}");
            }
        }
    }

    #[test]
    fn a_row_that_was_not_measured_is_named() {
        let wrong = compare(&page(), &Costs::default());
        assert_eq!(wrong.len(), page().rows().count());
        assert!(wrong.iter().all(|row| row.ends_with(": not measured")));
    }
}
