// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks documents: links lead somewhere, paths in the text exist, tables of files and folders are
//! complete, the book's table of contents lists each page, and there is one blank between words.
//!
//! A table whose first heading is "file of `DIR/`" names, in its first column, every Rust and C
//! file of that directory; "folder of `DIR/`" every folder. `lib.rs`, `main.rs`, `mod.rs` and
//! headers may be left out, and further files may be named.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use super::{Tree, kind};

/// The first page that a reader sees, and the number of lines that it may have.
const FIRST: &str = "README.md";
const FIRST_LINES: usize = 120;
/// The folder of the book.
const BOOK: &str = "docs/";
/// The book's table of contents, in [`BOOK`]. If there is none, there is no book.
const CONTENTS: &str = "SUMMARY.md";

pub fn faults(tree: &Tree) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (name, text) in tree.files(&["md"])? {
        let lines = text.lines().count();
        if name == FIRST && lines > FIRST_LINES {
            faults.push(format!("{name} has {lines} lines, more than {FIRST_LINES}"));
        }
        let dir = Path::new(name).parent().unwrap_or(Path::new(""));
        faults.extend(link_faults(tree, name, dir, &text)?);
        faults.extend(table_faults(tree, name, dir, &text));
        faults.extend(blank_faults(name, &text));
        if !is_history(name) {
            faults.extend(path_faults(tree, name, &text));
        }
        if name.strip_prefix(BOOK) == Some(CONTENTS) {
            faults.extend(contents_faults(tree, &text));
        }
    }
    Ok(faults)
}

/// Finds pages of the book that its table of contents does not list.
fn contents_faults(tree: &Tree, contents: &str) -> Vec<String> {
    let pages = tree.names.iter().filter_map(|name| name.strip_prefix(BOOK));
    let chapters = pages.filter(|page| kind(page) == "md" && *page != CONTENTS);
    chapters
        .filter(|page| !contents.contains(&format!("]({page})")))
        .map(|page| format!("{BOOK}{CONTENTS} does not list {page}"))
        .collect()
}

/// Finds relative links that name nothing that git knows, or no heading of it.
fn link_faults(tree: &Tree, name: &str, dir: &Path, text: &str) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { name.into() } else { normal(&dir.join(path)) };
            if !exists(tree, &target) {
                faults.push(format!("{name}:{number}: the link {link} leads nowhere"));
            } else if name.starts_with(BOOK) && path.ends_with(".md") && !target.starts_with(BOOK) {
                // mdBook would take it for a page of the book.
                faults.push(format!("{name}:{number}: {link} is not in the book: name its folder"));
            } else if !heading.is_empty() && !has_heading(tree, &target, heading)? {
                faults.push(format!("{name}:{number}: {link} has no such heading"));
            }
        }
    }
    Ok(faults)
}

/// Returns whether a document describes the past, and so may name files that are gone.
fn is_history(name: &str) -> bool {
    name.starts_with("docs/adr/") || name == "CHANGELOG.md"
}

/// Finds paths in the text that name no file or folder of the project. Such a path is set as code
/// and starts with one of the project's folders.
fn path_faults(tree: &Tree, name: &str, text: &str) -> Vec<String> {
    let folders: BTreeSet<&str> =
        tree.names.iter().filter_map(|name| Some(name.split_once('/')?.0)).collect();
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for path in quoted(line) {
            let starts_in = path.split_once('/').is_some_and(|(top, _)| folders.contains(top));
            // The text must be neither a command nor a pattern.
            let is_plain = !path.contains([' ', '*', '{', '<', '$']) && !path.contains("NAME");
            if starts_in && is_plain && !exists(tree, Path::new(&path)) {
                faults.push(format!("{name}:{number}: there is no {path}"));
            }
        }
    }
    faults
}

/// Finds several blanks between words, outside of code and tables, and a last line without an end.
fn blank_faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.starts_with('|') && line.trim().contains("  ") {
            faults.push(format!("{name}:{number}: several blanks between words"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        faults.push(format!("{name}: the last line has no end"));
    }
    faults
}

/// Returns the path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// Returns whether git knows a file of this name, or one below it.
fn exists(tree: &Tree, path: &Path) -> bool {
    tree.names.iter().any(|name| Path::new(name).starts_with(path))
}

/// Returns whether the document, or a folder's README, has a heading with this anchor, which is in
/// lower case with hyphens for spaces.
fn has_heading(tree: &Tree, path: &Path, anchor: &str) -> Result<bool> {
    let mut file = tree.root.join(path);
    if file.is_dir() {
        file.push("README.md");
    }
    let text = std::fs::read_to_string(file)?;
    let anchor_of = |heading: &str| -> String {
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
    };
    Ok(text
        .lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| anchor_of(line.trim_start_matches('#')) == anchor))
}

/// Compares each table of files or folders with those that exist.
fn table_faults(tree: &Tree, name: &str, dir: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut lines = (1..).zip(text.lines()).peekable();
    while let Some((number, line)) = lines.next() {
        let Some(heading) = first_cell(line) else { continue };
        let mut entries = BTreeSet::new();
        while let Some((_, row)) = lines.next_if(|(_, row)| row.starts_with('|')) {
            entries.extend(first_cell(row).into_iter().flat_map(quoted));
        }
        let what = heading.split(' ').next().unwrap_or_default();
        if what != "file" && what != "folder" {
            continue;
        }
        let Some(folder) = quoted(heading).pop() else {
            faults.push(format!("{name}:{number}: `{heading}` does not say of which folder"));
            continue;
        };
        let folder = normal(&dir.join(folder));
        let (needed, known) = inventory(tree, &folder, what == "folder");
        for missing in needed.difference(&entries) {
            faults.push(format!("{name}:{number}: the table does not name {missing}"));
        }
        for entry in entries.iter().filter(|entry| !known.contains(*entry)) {
            if !exists(tree, &normal(&folder.join(entry))) {
                faults
                    .push(format!("{name}:{number}: the table names {entry}, which is not there"));
            }
        }
    }
    faults
}

/// Returns the names that a table of this folder must have, and those that it may have.
fn inventory(tree: &Tree, folder: &Path, folders: bool) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut needed, mut known) = (BTreeSet::new(), BTreeSet::new());
    for name in &tree.names {
        let Ok(inside) = Path::new(name).strip_prefix(folder) else { continue };
        let inside = inside.to_string_lossy().into_owned();
        if let Some((sub, _)) = inside.split_once('/') {
            let sub = format!("{sub}/");
            if folders && !sub.starts_with('.') {
                needed.insert(sub.clone());
            }
            known.insert(sub);
        } else {
            let is_plain = ["lib.rs", "main.rs", "mod.rs"].contains(&inside.as_str());
            if !folders && ["rs", "c"].contains(&kind(&inside)) && !is_plain {
                needed.insert(inside.clone());
            }
            known.insert(inside);
        }
    }
    (needed, known)
}

/// Returns the first cell of a table's row.
fn first_cell(line: &str) -> Option<&str> {
    line.strip_prefix('|')?.split('|').next().map(str::trim)
}

/// Returns the texts between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_somewhere() {
        let text = "[a](src) [b](../d.md#the-end) [c](none.md) [d](../d.md#start) [e](http://x)\n";
        let tree = Tree::planted(
            "links",
            &[("a/README.md", text), ("a/src/x.rs", ""), ("d.md", "# The end\n")],
        );
        assert_eq!(
            faults(&tree).unwrap(),
            [
                "a/README.md:1: the link none.md leads nowhere",
                "a/README.md:1: ../d.md#start has no such heading"
            ]
        );
    }

    #[test]
    fn words_have_one_blank_between_them() {
        let text = "* One.\n  Two.  Three.\n```\na  b\n```\n| a  | b |\nFour  five.";
        let tree = Tree::planted("blanks", &[("a.md", text)]);
        assert_eq!(
            faults(&tree).unwrap(),
            [
                "a.md:2: several blanks between words",
                "a.md:7: several blanks between words",
                "a.md: the last line has no end"
            ]
        );
    }

    #[test]
    fn the_book_links_to_folders() {
        let text = "[a](b.md) [c](../a/) [d](../a/#the-end) [e](../a/#start) [f](../a/README.md)\n";
        let files = [("docs/a.md", text), ("docs/b.md", ""), ("a/README.md", "# The end\n")];
        let tree = Tree::planted("book", &files);
        assert_eq!(
            faults(&tree).unwrap(),
            [
                "docs/a.md:1: ../a/#start has no such heading",
                "docs/a.md:1: ../a/README.md is not in the book: name its folder"
            ]
        );
    }

    #[test]
    fn the_table_of_contents_lists_each_page() {
        let files = [
            ("docs/SUMMARY.md", "[a](a.md)\n"),
            ("docs/a.md", ""),
            ("docs/adr/1.md", ""),
            ("docs/a.png", ""),
            ("b.md", ""),
        ];
        let tree = Tree::planted("contents", &files);
        assert_eq!(faults(&tree).unwrap(), ["docs/SUMMARY.md does not list adr/1.md"]);
    }

    #[test]
    fn the_first_page_is_short() {
        let lines = |count| "x\n".repeat(count);
        let (long, other) = (lines(FIRST_LINES + 1), lines(FIRST_LINES + 1));
        let files = [("README.md", long.as_str()), ("a/README.md", other.as_str())];
        let tree = Tree::planted("first-page", &files);
        assert_eq!(faults(&tree).unwrap(), ["README.md has 121 lines, more than 120"]);
        let tree = Tree::planted("short-page", &[("README.md", &lines(FIRST_LINES))]);
        assert!(faults(&tree).unwrap().is_empty());
    }

    #[test]
    fn a_path_in_the_text_is_there() {
        let text = "`src/a.rs`, `src/b.rs`, `src/bin/NAME.rs`, `src/*.c`, `usr/lib` and `src/`.\n";
        let files = [("README.md", text), ("docs/adr/1.md", text), ("src/a.rs", "")];
        let tree = Tree::planted("paths", &files);
        assert_eq!(faults(&tree).unwrap(), ["README.md:1: there is no src/b.rs"]);
    }

    #[test]
    fn a_table_names_what_there_is() {
        let text = "| file of `src/` | what |\n|---|---|\n| `a.rs`, `gone.rs` | x |\n\n\
                    | folder of `./` | what |\n|---|---|\n| `other/` | x |\n\n\
                    | file | what |\n|---|---|\n| `a.rs` | x |\n";
        let tree = Tree::planted(
            "tables",
            &[("README.md", text), ("src/a.rs", ""), ("src/b.rs", ""), ("src/mod.rs", "")],
        );
        assert_eq!(
            faults(&tree).unwrap(),
            [
                "README.md:1: the table does not name b.rs",
                "README.md:1: the table names gone.rs, which is not there",
                "README.md:5: the table does not name src/",
                "README.md:5: the table names other/, which is not there",
                "README.md:9: `file` does not say of which folder",
            ]
        );
    }
}
