// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes the project's list of changes in the form of Debian's packages.

use anyhow::{Context, Result};

/// The widest line that Debian's tools like.
const COLUMNS: usize = 79;

/// Returns the newest section of `changes` that has any (Markdown in the form of Keep a Changelog),
/// as the one entry of a `debian/changelog`. `date` turns a section's day into the form of that
/// file.
pub fn debian(
    changes: &str,
    version: &str,
    maintainer: &str,
    date: impl FnOnce(&str) -> Result<String>,
) -> Result<String> {
    let sections: Vec<&str> = changes.split("\n## ").skip(1).collect();
    let section = sections.iter().find(|section| section.contains("\n- "));
    let section = section.context("no section of changes")?;
    let day = |section: &&str| Some(section.lines().next()?.split_once("] - ")?.1.to_owned());
    let day = sections.iter().find_map(day).context("no section `[VERSION] - YEAR-MONTH-DAY`")?;
    let mut text = format!("perfctr ({version}) unstable; urgency=medium\n");
    let mut item = String::new();
    for line in section.lines().skip(1) {
        if let Some(more) = line.strip_prefix("  ") {
            item += &format!(" {}", more.trim());
            continue;
        }
        text += &wrapped(&item);
        item.clear();
        if let Some((_, heading)) = line.split_once("## ") {
            text += &format!("\n  [ {heading} ]\n");
        } else if let Some(first) = line.strip_prefix("- ") {
            first.clone_into(&mut item);
        }
    }
    text += &wrapped(&item);
    Ok(format!("{text}\n -- {maintainer}  {}\n", date(&day)?))
}

/// Wraps an item of a list into lines that are not too long.
fn wrapped(item: &str) -> String {
    let mut lines = String::new();
    let mut line = String::from("  *");
    for word in item.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines += &format!("{line}\n");
            line = String::from("   ");
        }
        line += &format!(" {word}");
    }
    if item.is_empty() { lines } else { format!("{lines}{line}\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_section_becomes_an_entry() {
        let long = "word ".repeat(20);
        let changes = format!(
            "# Changes\n\nText.\n\n## [Unreleased]\n\n\
             ## [2.0] - 2026-11-22\n\n### Added\n- {long}\n\
             \x20 and more\n- b\n\n## [1.0] - 2026-11-21\n- c\n"
        );
        let text = debian(&changes, "2.0", "A <a@b>", |day| Ok(format!("of {day}"))).unwrap();
        let words = |count: usize| vec!["word"; count].join(" ");
        let expected = format!(
            "perfctr (2.0) unstable; urgency=medium\n\n  [ Added ]\n\
             \x20 * {}\n    {} and more\n  * b\n\
             \n -- A <a@b>  of 2026-11-22\n",
            words(15),
            words(5)
        );
        assert_eq!(text, expected);
        let undated =
            debian("# Changes\n\n## [Unreleased]\n\n- a\n", "2.0", "A <a@b>", |_| unreachable!());
        undated.unwrap_err();
    }
}
