// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The two lists of a guest's functions that `perfctr report --caused` has: by CPU switch, which
//! has what each function executes itself, and by domain switch, which also has what Xen executes
//! for it.

use anyhow::{Context, Result};

/// The samples of a function of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Samples of the function.
    pub itself: u64,
    /// Samples of what Xen executes for it.
    pub for_it: u64,
    pub function: String,
}

impl Row {
    fn both(&self) -> u64 {
        self.itself + self.for_it
    }
}

/// Reads the rows of a domain from what `perfctr report --caused` has printed.
///
/// # Errors
///
/// No row is this domain's.
pub fn rows(report: &str, domain: &str) -> Result<Vec<Row>> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [itself, for_it, _, _, of, function @ ..] = &words[..] else { return None };
        let (itself, for_it) = (itself.parse().ok()?, for_it.parse().ok()?);
        (*of == domain).then(|| Row { itself, for_it, function: function.join(" ") })
    };
    let rows: Vec<Row> = report.lines().filter_map(row).collect();
    (!rows.is_empty()).then_some(rows).with_context(|| format!("no row of {domain}:\n{report}"))
}

/// The samples of all rows: of the domain itself, and of what Xen executes for it.
pub fn sums(rows: &[Row]) -> [u64; 2] {
    [rows.iter().map(|row| row.itself).sum(), rows.iter().map(|row| row.for_it).sum()]
}

/// Returns both lists side by side, as a table of Markdown. Each has the functions with the most
/// samples, at most so many of them, and then the sum of all.
pub fn table(rows: &[Row], most: usize) -> String {
    let first = |samples: fn(&Row) -> u64| {
        let mut all: Vec<&Row> = rows.iter().filter(|row| samples(row) > 0).collect();
        all.sort_by(|one, other| {
            samples(other).cmp(&samples(one)).then_with(|| one.function.cmp(&other.function))
        });
        let cells = all.into_iter().take(most);
        cells.map(|row| format!("{} | {}", samples(row), code(&row.function))).collect::<Vec<_>>()
    };
    let (own, both) = (first(|row| row.itself), first(Row::both));
    let mut text = "| CPU switch | function | domain switch | function |\n".to_owned();
    text += "|---:|---|---:|---|\n";
    for n in 0..own.len().max(both.len()) {
        let cell = |list: &[String]| list.get(n).map_or_else(|| " | ".to_owned(), String::clone);
        text += &format!("| {} | {} |\n", cell(&own), cell(&both));
    }
    let [itself, for_it] = sums(rows);
    text + &format!("| {itself} | all samples | {} | all samples |\n", itself + for_it)
}

/// Returns a function as code, and what has no name in words.
fn code(function: &str) -> String {
    match function.strip_prefix('[').and_then(|words| words.strip_suffix(']')) {
        Some(words) => words.to_owned(),
        None => format!("`{function}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
34 samples of 3 vCPUs, one every 100003 instructions, from xen
    itself     for it       both       %  domain    symbol
         6         12         18   52.94  web       xennet_poll
         0          9          9   26.47  idle      schedule
         7          0          7   20.59  web       [user mode of domain 1]
";

    #[test]
    fn rows_are_those_of_one_domain() {
        let row =
            |itself, for_it, function: &str| Row { itself, for_it, function: function.to_owned() };
        let expected = [row(6, 12, "xennet_poll"), row(7, 0, "[user mode of domain 1]")];
        let found = rows(REPORT, "web").unwrap();
        assert_eq!(found, expected);
        assert_eq!(sums(&found), [13, 12]);
        assert!(rows(REPORT, "mail").unwrap_err().to_string().starts_with("no row of mail"));
    }

    #[test]
    fn each_list_has_its_own_order_and_its_sum() {
        let mut found = rows(REPORT, "web").unwrap();
        found.push(Row { itself: 0, for_it: 1, function: "hypercall_page".to_owned() });
        let expected = "\
| CPU switch | function | domain switch | function |
|---:|---|---:|---|
| 7 | user mode of domain 1 | 18 | `xennet_poll` |
| 6 | `xennet_poll` | 7 | user mode of domain 1 |
|  |  | 1 | `hypercall_page` |
| 13 | all samples | 26 | all samples |
";
        assert_eq!(table(&found, 9), expected);
        assert_eq!(table(&found, 1).lines().count(), 4);
    }
}
