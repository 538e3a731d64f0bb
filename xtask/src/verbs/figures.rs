// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask figures` compares the book's tables of costs with new measurements.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::bench;
use super::costs::{Cost, Costs, noise, page};
use crate::suites::noise::NOISE_PERCENT;

/// Measures what `docs/costs.md` says, and compares.
#[derive(clap::Args)]
pub struct Args {
    /// Compare with a page that `cargo xtask bench --page FILE` has written, and not with a new
    /// run.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Compare with the page that this commit has, and not with the present one.
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
    /// Let a number be this much dearer, unit: percent.
    #[arg(long, value_name = "PERCENT", default_value_t = NOISE_PERCENT)]
    percent: f64,
}

/// Fails if a row has become dearer by more than noise, or has not been measured. Reports rows that
/// have become cheaper, and how to record them: until the page has the new number, a loss of what
/// was gained would pass.
pub fn run(args: &Args) -> Result<()> {
    let measured = match &args.from {
        Some(file) => page::read(file)?,
        None => bench::measure(&bench::Args::default(), |_| Ok(()))?,
    };
    let (documented, page) = match &args.since {
        Some(commit) => (page::read_of(commit)?, format!("docs/costs.md of {commit}")),
        None => (page::read(&page::path())?, "docs/costs.md".to_owned()),
    };
    let Findings { wrong, cheaper } = compare(&documented, &measured, args.percent);
    if !cheaper.is_empty() {
        println!("cheaper than {page} says:\n{}", cheaper.join("\n"));
    }
    ensure!(wrong.is_empty(), "dearer than {page} says:\n{}", wrong.join("\n"));
    println!("{page} has {} rows, and none is dearer", documented.rows().count());
    Ok(())
}

/// What a comparison has found, a line for each row.
#[derive(Default)]
struct Findings {
    /// Rows that are dearer, have other columns, or have not been measured.
    wrong: Vec<String>,
    /// Rows of which a number is less, and none more.
    cheaper: Vec<String>,
}

/// How the numbers of a row have changed, by more than noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    None,
    Cheaper,
    /// A number is more, even if another is less: what a guest saves may be the host's loss.
    Dearer,
    /// A number is there in one of the two only.
    OtherColumns,
}

/// Prints every row, and returns the findings. A row that was measured but is not on the page is
/// also printed. It is no fault, since the page says nothing about it.
fn compare(documented: &Costs, measured: &Costs, percent: f64) -> Findings {
    let mut findings = Findings::default();
    for (subject, expected) in documented.rows() {
        let name = format!("{}: {}, on {}", subject.operation, subject.how, subject.machine);
        let Some(found) = measured.get(subject) else {
            findings.wrong.push(format!("{name}: not measured"));
            continue;
        };
        let numbers = format!("documented {}, measured {}", shown(expected), shown(found));
        println!("{name:<72} {numbers}");
        match change(expected, found, percent) {
            Change::None => {}
            Change::Cheaper => {
                let command = bench::command(&subject.machine).unwrap_or_default();
                findings.cheaper.push(format!("{name}: {numbers}; `{command}` records it"));
            }
            Change::Dearer | Change::OtherColumns => {
                findings.wrong.push(format!("{name}: {numbers}"));
            }
        }
    }
    for (subject, found) in measured.rows().filter(|(one, _)| documented.get(one).is_none()) {
        let (operation, how, machine) = (&subject.operation, &subject.how, &subject.machine);
        println!("{operation}: {how}, on {machine}: not on the page, measured {}", shown(found));
    }
    findings
}

fn shown(cost: &Cost) -> String {
    let cell = |number: &Option<f64>| number.map_or_else(|| "-".to_owned(), |n| format!("{n:.1}"));
    cost.iter().map(cell).collect::<Vec<_>>().join(" ")
}

/// Returns the worst change of the numbers of a row.
fn change(expected: &Cost, found: &Cost, percent: f64) -> Change {
    if expected.len() != found.len() {
        return Change::OtherColumns;
    }
    let columns = expected.len();
    let changes = expected.iter().zip(found).enumerate().map(|(column, numbers)| match numbers {
        (Some(expected), Some(found)) => {
            let noise = noise(*expected, column, columns, percent);
            if found - expected > noise {
                Change::Dearer
            } else if expected - found > noise {
                Change::Cheaper
            } else {
                Change::None
            }
        }
        (None, None) => Change::None,
        _ => Change::OtherColumns,
    });
    changes.max().unwrap_or(Change::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Costs {
        page::read(&page::path()).unwrap()
    }

    /// Calls `check` with each number of the page, and with the findings of a measurement in which
    /// this number alone is by more than noise larger (`sign` is 1) or smaller (-1).
    fn with_each_number(sign: f64, check: impl Fn(&str, &Findings)) {
        let page = recorded();
        for (subject, cost) in page.rows() {
            for (column, number) in cost.iter().enumerate() {
                let Some(number) = number else { continue };
                let mut planted = page.clone();
                let mut other = cost.clone();
                let by = noise(*number, column, cost.len(), NOISE_PERCENT) * 1.01;
                other[column] = Some(number + sign * by);
                planted.insert(subject.clone(), other);
                check(&subject.how, &compare(&page, &planted, NOISE_PERCENT));
            }
        }
    }

    #[test]
    fn figures_agree_with_themselves_and_more_is_no_fault() {
        let page = recorded();
        for documented in [&page, &Costs::default()] {
            let Findings { wrong, cheaper } = compare(documented, &page, NOISE_PERCENT);
            assert!(wrong.is_empty() && cheaper.is_empty(), "{wrong:?} {cheaper:?}");
        }
    }

    #[test]
    fn a_dearer_figure_in_any_column_of_any_row_is_wrong() {
        with_each_number(1.0, |how, Findings { wrong, cheaper }| {
            assert!(wrong.len() == 1 && wrong[0].contains(how), "{how}: {wrong:?}");
            assert!(cheaper.is_empty(), "{how}: {cheaper:?}");
        });
    }

    #[test]
    fn a_cheaper_figure_is_not_wrong_and_can_be_recorded() {
        with_each_number(-1.0, |how, Findings { wrong, cheaper }| {
            assert!(wrong.is_empty(), "{how}: {wrong:?}");
            assert!(cheaper.len() == 1 && cheaper[0].contains(how), "{how}: {cheaper:?}");
            assert!(cheaper[0].contains("`cargo xtask bench --only "), "{cheaper:?}");
        });
    }

    #[test]
    fn what_is_in_the_noise_is_no_change_and_the_worst_change_of_a_row_counts() {
        let cost = |numbers: [f64; 4]| numbers.map(Some).to_vec();
        let before = cost([10_000.0, 100.0, 3.0, 40.0]);
        for (after, expected) in [
            ([10_500.0, 150.0, 4.0, 42.0], Change::None),
            ([9500.0, 50.0, 2.0, 38.0], Change::None),
            ([9499.0, 150.0, 4.0, 42.0], Change::Cheaper),
            ([9000.0, 151.0, 3.0, 40.0], Change::Dearer),
        ] {
            assert_eq!(change(&before, &cost(after), 5.0), expected, "{after:?}");
        }
        assert_eq!(change(&before, &cost([10_301.0, 100.0, 3.0, 40.0]), 3.0), Change::Dearer);
        let bare = vec![None, Some(100.0), Some(3.0), Some(40.0)];
        assert_eq!(change(&bare, &bare, 5.0), Change::None);
        assert_eq!(change(&before, &bare, 5.0), Change::OtherColumns);
        assert_eq!(change(&before, &vec![Some(1.0)], 5.0), Change::OtherColumns);
        assert_eq!(change(&vec![Some(56.0)], &vec![Some(59.0)], 5.0), Change::Dearer);
    }

    #[test]
    fn a_row_that_was_not_measured_is_named() {
        let page = recorded();
        let Findings { wrong, cheaper } = compare(&page, &Costs::default(), NOISE_PERCENT);
        assert_eq!((wrong.len(), cheaper.len()), (page.rows().count(), 0));
        assert!(wrong.iter().all(|row| row.ends_with(": not measured")));
    }
}
