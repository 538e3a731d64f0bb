// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks the pages that mdBook makes, and where their links lead.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::artefacts::mdbook;
use crate::tools::cache;
use crate::tools::sh::{self, cmd};

/// The pages that mdBook adds: one with all chapters, and one that a server shows for a page that
/// does not exist.
const OWN: [&str; 2] = ["print.html", "404.html"];

/// Makes the book, and follows each link. The book is made beside `docs`, so that links to other
/// files of the project lead to them.
pub fn check() -> Result<()> {
    let (docs, built) = (sh::project().join("docs"), cache::scratch("book")?);
    let mut make = cmd(&mdbook::mdbook()?.to_string_lossy(), ["build", "--dest-dir"]);
    let made = make.arg(&built).arg(&docs).output()?;
    let printed = String::from_utf8_lossy(&made.stderr);
    let complains = printed.contains("WARN") || printed.contains("ERROR");
    ensure!(made.status.success() && !complains, "mdbook: {}\n{printed}", made.status);
    let mut pages = BTreeMap::new();
    for (name, path) in cache::files(&built)? {
        if name.ends_with(".html") {
            pages.insert(name, fs::read_to_string(path)?);
        }
    }
    let contents = fs::read_to_string(docs.join("SUMMARY.md"))?;
    let chapters: Vec<&str> =
        contents.split("](").skip(1).filter_map(|rest| rest.split(".md)").next()).collect();
    ensure!(!chapters.is_empty(), "the table of contents has no chapter");
    for chapter in chapters {
        ensure!(pages.contains_key(&format!("{chapter}.html")), "no page was made of {chapter}.md");
    }
    let mut faults = Vec::new();
    for (name, text) in pages.iter().filter(|(name, _)| !OWN.contains(&name.as_str())) {
        for link in links(text) {
            if let Err(error) = follow(&pages, &built, name, link) {
                faults.push(format!("{name}: {link}: {error:#}"));
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Returns the links of a page's elements.
fn links(page: &str) -> Vec<&str> {
    let starts = [" href=\"", " src=\""];
    starts
        .iter()
        .flat_map(|start| page.split(start).skip(1))
        .filter_map(|rest| rest.split('"').next())
        .collect()
}

/// Fails unless the link leads to a page or a file of the book, or to a file of the project, and
/// its fragment to an element of that page.
fn follow(pages: &BTreeMap<String, String>, built: &Path, page: &str, link: &str) -> Result<()> {
    if link.contains("://") {
        return Ok(());
    }
    let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
    let path = if path.is_empty() { Path::new(page).to_owned() } else { relative_to(page, path)? };
    if let Ok(outside) = path.strip_prefix("..") {
        let file = sh::project().join(outside);
        ensure!(file.exists(), "{} does not exist", file.display());
        return Ok(());
    }
    let name = path.to_string_lossy();
    let Some(text) = pages.get(name.as_ref()) else {
        ensure!(built.join(&path).exists(), "the book has no {name}");
        return Ok(());
    };
    let known = fragment.is_empty() || text.contains(&format!(" id=\"{fragment}\""));
    ensure!(known, "{name} has no element {fragment}");
    Ok(())
}

/// Turns a path relative to a page into one relative to the book. Its first component may be `..`.
fn relative_to(page: &str, path: &str) -> Result<PathBuf> {
    let mut whole = PathBuf::new();
    let dir = Path::new(page).parent().context("a page is in a directory")?;
    for component in dir.join(path).components() {
        match component {
            Component::ParentDir if whole.as_os_str().is_empty() => whole.push(".."),
            Component::ParentDir => ensure!(whole.pop(), "{path} leads nowhere"),
            Component::Normal(name) => whole.push(name),
            Component::CurDir => {}
            _ => ensure!(false, "{path} is not relative"),
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed() {
        let page = "<a class=\"x\" href=\"b.html#there\">b</a><img src=\"c.svg\">";
        assert_eq!(links(page), ["b.html#there", "c.svg"]);
        let pages = BTreeMap::from([
            ("a.html".to_owned(), page.to_owned()),
            ("adr/b.html".to_owned(), "<h1 id=\"there\">".to_owned()),
        ]);
        let follow = |page: &str, link: &str| follow(&pages, Path::new("/nowhere"), page, link);
        for link in ["adr/b.html#there", "adr/../a.html", "https://x/", "../README.md"] {
            follow("a.html", link).unwrap();
        }
        follow("adr/b.html", "../a.html").unwrap();
        follow("adr/b.html", "#there").unwrap();
        follow("adr/b.html", "../../README.md").unwrap();
        for link in ["b.html", "adr/b.html#nowhere", "c.svg", "../no.md", "/etc", "#there"] {
            follow("a.html", link).unwrap_err();
        }
    }
}
