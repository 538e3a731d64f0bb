// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks licence lines, the length of lines, and leftovers.

use anyhow::Result;

use super::Tree;

/// The comment in the first line of every source file, without the comment's own marks.
const LICENCE: &str = "SPDX-License-Identifier: MIT OR GPL-2.0-only";

/// The widest line, in characters.
const COLUMNS: usize = 100;

/// The kinds of files to which the rules apply. Texts and data have no such rules.
const SOURCES: &[&str] = &["rs", "c", "h", "cc", "cpp", "hpp", "S", "sh", "py"];

pub fn faults(tree: &Tree) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (name, text) in tree.files(SOURCES)? {
        faults.extend(faults_of(&text).into_iter().map(|fault| format!("{name}{fault}")));
    }
    Ok(faults)
}

fn faults_of(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let first = text.lines().find(|line| !line.starts_with("#!")).unwrap_or_default();
    if !first.contains(LICENCE) {
        faults.push(": no licence line".to_owned());
    }
    // They are written in two parts so that this file passes.
    let leftovers = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
    for (number, line) in (1..).zip(text.lines()) {
        // A row of a table in a comment cannot be broken.
        let is_row = line.starts_with("//! |") || line.starts_with("/// |");
        if line.chars().count() > COLUMNS && !is_row {
            faults.push(format!(":{number}: more than {COLUMNS} columns"));
        }
        if line.trim_end() != line {
            faults.push(format!(":{number}: white space at the end"));
        }
        if let Some(word) = leftovers.iter().find(|word| line.contains(**word)) {
            faults.push(format!(":{number}: {word}"));
        }
    }
    if !text.ends_with('\n') {
        faults.push(": the last line has no end".to_owned());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_its_fault() {
        let good = format!("// {LICENCE}\nfn main() {{}}\n");
        assert!(faults_of(&good).is_empty());
        assert_eq!(faults_of("fn main() {}\n"), [": no licence line"]);
        let wide = format!("{good}{}\n", "x".repeat(COLUMNS + 1));
        assert_eq!(faults_of(&wide), [":3: more than 100 columns"]);
        assert!(faults_of(&format!("{good}//! |{}\n", "x".repeat(COLUMNS))).is_empty());
        assert_eq!(faults_of(&format!("{good}x \n")), [":3: white space at the end"]);
        assert_eq!(faults_of(good.trim_end()), [": the last line has no end"]);
        let left = concat!("// FIX", "ME\n");
        assert_eq!(faults_of(&format!("{good}{left}")), [concat!(":3: FIX", "ME")]);
    }
}
