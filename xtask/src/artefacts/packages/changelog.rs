// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The project's list of changes in the form that Debian's packages have it.

use anyhow::{Context, Result};

/// The widest line that Debian's tools like.
const COLUMNS: usize = 79;

/// The newest section of `changes` (Markdown: headings and lists) as the one entry of a
/// `debian/changelog`.
pub fn debian(changes: &str, version: &str, maintainer: &str, date: &str) -> Result<String> {
    let (_, section) = changes.split_once("\n## ").context("no section of changes")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut text = format!("perfctr ({version}) unstable; urgency=medium\n");
    let mut item = String::new();
    for line in section.lines().skip(1) {
        if let Some(more) = line.strip_prefix("  ") {
            item += &format!(" {}", more.trim());
            continue;
        }
        text += &wrapped(&item);
        item.clear();
        if let Some(heading) = line.strip_prefix("### ") {
            text += &format!("\n  [ {heading} ]\n");
        } else if let Some(first) = line.strip_prefix("- ") {
            first.clone_into(&mut item);
        }
    }
    text += &wrapped(&item);
    Ok(format!("{text}\n -- {maintainer}  {date}\n"))
}

/// An item of a list, in lines that are not too long.
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
            "# Changes\n\nText.\n\n## 2\n\n### Added\n- {long}\n  and more\n- b\n\n## 1\n- c\n"
        );
        let text = debian(&changes, "2.0", "A <a@b>", "Sun, 22 Nov 2026 13:00:00 +0000").unwrap();
        let words = |count: usize| vec!["word"; count].join(" ");
        let expected = format!(
            "perfctr (2.0) unstable; urgency=medium\n\n  [ Added ]\n\
             \x20 * {}\n    {} and more\n  * b\n\
             \n -- A <a@b>  Sun, 22 Nov 2026 13:00:00 +0000\n",
            words(15),
            words(5)
        );
        assert_eq!(text, expected);
    }
}
