// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads the list of faults, and finds where each is in the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serde::Deserialize;

use crate::tools::anchors::{Anchor, line_of};
use crate::tools::cache;

/// The lists' directory in the project.
const LISTS: &str = "tests/faults";

/// One list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    fault: Vec<Fault>,
}

/// A fault.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The name, which is written like that of a variant in Rust.
    pub name: String,
    /// What goes wrong, and for whom.
    pub what: String,
    /// The tests that must notice.
    pub tier: Tier,
    /// Whether it cannot be switched on while the program runs, as faults in C, in types and in
    /// constants. It then gets a copy of its own.
    #[serde(default)]
    pub alone: bool,
    /// The suite of the testbed that must notice.
    pub suite: Option<String>,
    /// A piece of the test names of this suite. One of the tests with that piece must fail.
    pub test: Option<String>,
    /// The suite's program with its arguments, if a part of it is enough to notice. It is run in
    /// place of the suite. Options of `cargo xtask vm` may be before the program's name.
    pub program: Option<String>,
    /// The changes.
    #[serde(rename = "edit")]
    pub edits: Vec<Edit>,
    /// The list that it is in, which is a file's name without the ending.
    #[serde(skip)]
    pub list: String,
}

/// The tests that must notice a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The simulator must find it: it is a planted bug.
    Sim,
    /// A test that `cargo test` runs must notice it.
    Host,
    /// A suite that boots the testbed must notice it.
    Vm,
}

/// A change of one place.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file, from the project's root.
    pub file: String,
    /// A piece of it, with guillemets around what is changed.
    pub anchor: String,
    /// A piece of the line that begins the block of the anchor, if that is not the only one in its
    /// file.
    pub within: Option<String>,
    /// The text that replaces what is marked.
    pub wrong: String,
    /// Whether the replacement is always in force. For example, `const` must be removed from a
    /// function that has to ask which fault is in force.
    #[serde(default)]
    pub always: bool,
}

impl Edit {
    /// Finds the place of the change in the text of its file.
    pub fn place(&self, source: &str) -> Result<Range<usize>> {
        Anchor { text: &self.anchor, within: self.within.as_deref() }.find(source)
    }
}

/// Reads every fault of every list of the project at `root`.
pub fn read(root: &Path) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    for (name, path) in cache::files(&root.join(LISTS))? {
        let text = fs::read_to_string(&path)?;
        let list: List = toml::from_str(&text).with_context(|| format!("{LISTS}/{name}"))?;
        let name = name.strip_suffix(".toml").unwrap_or(&name).to_owned();
        faults.extend(list.fault.into_iter().map(|fault| Fault { list: name.clone(), ..fault }));
    }
    let mut names = BTreeSet::new();
    for fault in &faults {
        let Fault { name, list, .. } = fault;
        let is_name = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric());
        if !is_name || !names.insert(name) {
            bail!("{LISTS}/{list}.toml: {name} is no name, or that of another fault, too");
        }
        if fault.edits.is_empty() {
            bail!("{LISTS}/{list}.toml: {name} changes nothing");
        }
        let test = fault.test.as_ref().filter(|test| !test.is_empty());
        let is_vm = fault.tier == Tier::Vm;
        if [fault.suite.is_some(), test.is_some()] != [is_vm; 2]
            || fault.program.is_some() && !is_vm
        {
            bail!(
                "{LISTS}/{list}.toml: {name}: those of tier vm, and no others, name suite and test"
            );
        }
    }
    Ok(faults)
}

/// Makes sure that each anchor is found once. The error names every one that is not.
pub fn check(root: &Path) -> Result<()> {
    let mut sources = Sources::default();
    let mut lost = Vec::new();
    for fault in read(root)? {
        for edit in &fault.edits {
            if let Err(error) = sources.place(root, edit) {
                lost.push(sources.advice(root, &fault, edit, &error));
            }
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    bail!(
        "{} anchors of faults are lost. Whoever changes code mends the anchors of the faults in \
         it: the text between « and » is what the fault replaces by `wrong`, so that something \
         goes wrong as `what` says.\n  {}",
        lost.len(),
        lost.join("\n  ")
    )
}

/// The texts of files, each of which is read once.
#[derive(Default)]
struct Sources(BTreeMap<String, String>);

impl Sources {
    fn text(&mut self, root: &Path, file: &str) -> Result<&str> {
        if !self.0.contains_key(file) {
            let text = fs::read_to_string(root.join(file)).map_err(|_| anyhow!("no such file"))?;
            self.0.insert(file.to_owned(), text);
        }
        Ok(&self.0[file])
    }

    fn place(&mut self, root: &Path, edit: &Edit) -> Result<Range<usize>> {
        edit.place(self.text(root, &edit.file)?)
    }

    /// Returns the problem with an anchor, and where the anchor may be now.
    fn advice(&mut self, root: &Path, fault: &Fault, edit: &Edit, error: &anyhow::Error) -> String {
        let Fault { name, list, what, .. } = fault;
        let mut text = format!(
            "{LISTS}/{list}.toml: {name} ({what})\n    {}: {error:#}: {}",
            edit.file,
            edit.anchor.trim()
        );
        if let Some(within) = &edit.within {
            text += &format!("\n    within: {within}");
        }
        for file in Self::neighbours(root, &edit.file) {
            let Ok(source) = self.text(root, &file) else { continue };
            let anchor = Anchor { text: &edit.anchor, within: None };
            if let Ok(place) = anchor.find(source) {
                text += &format!("\n    it is in {file}:{} now", line_of(source, place.start));
            }
        }
        text
    }

    /// Returns the other files of the same crate.
    fn neighbours(root: &Path, file: &str) -> Vec<String> {
        let Some(folder) = file.split_once('/').map(|(folder, _)| folder) else {
            return Vec::new();
        };
        let files = cache::files(&root.join(folder)).unwrap_or_default();
        let names = files.into_iter().map(|(name, _)| format!("{folder}/{name}"));
        names.filter(|name| name.ends_with(".rs") || name.ends_with(".c")).collect()
    }
}
