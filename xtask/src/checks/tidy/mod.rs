// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks house rules that no other tool knows. `xtask/tidy.toml` has what they allow, and every
//! exception with its reason.

mod arch;
mod circles;
mod code;
mod crates;
mod docs;
mod functions;
mod glue;
mod lines;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::tools::sh::{self, cmd};

/// What the rules allow.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Allowed {
    /// Files with unsafe code, each with its reason.
    #[serde(rename = "unsafe")]
    unsafe_files: BTreeMap<String, String>,
    /// Functions that are longer than 70 lines, as `FILE: NAME`, each with its reason.
    long_functions: BTreeMap<String, String>,
    /// Files that need each other, as their names with commas between, each with its reason.
    circles: BTreeMap<String, String>,
    /// Files of the cores that name an architecture outside its module, each with its reason.
    architecture: BTreeMap<String, String>,
    /// The dependencies of each crate.
    crates: BTreeMap<String, crates::Dependencies>,
    /// The folders of `xtask/src`, from the top, which may use those after them.
    floors: Vec<String>,
}

/// The project's files, as git knows them or would add them.
pub struct Tree {
    root: PathBuf,
    names: Vec<String>,
}

impl Tree {
    /// Lists all files of the project at `root`.
    pub fn new(root: PathBuf) -> Result<Self> {
        let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
        let text = sh::output(cmd("git", list).current_dir(&root))?;
        let names = text.lines().map(str::to_owned).filter(|name| root.join(name).exists());
        Ok(Self { names: names.collect(), root })
    }

    /// Returns a file's path.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the files with one of these endings, with their contents.
    pub fn files(&self, kinds: &[&str]) -> Result<Vec<(&str, String)>> {
        let mut files = Vec::new();
        for name in self.names.iter().filter(|name| kinds.contains(&kind(name))) {
            let text = fs::read_to_string(self.root.join(name)).with_context(|| name.clone())?;
            files.push((name.as_str(), text));
        }
        Ok(files)
    }
}

/// Returns whether a program has written the file, as the first lines of such a file say.
pub fn is_generated(text: &str) -> bool {
    text.lines().take(5).any(|line| line.contains("Generated from"))
}

/// Returns the ending of a file's name.
fn kind(name: &str) -> &str {
    Path::new(name).extension().and_then(|kind| kind.to_str()).unwrap_or_default()
}

/// Checks every rule. The error lists every fault.
pub fn check() -> Result<()> {
    let tree = Tree::new(sh::project())?;
    let allowed = fs::read_to_string(tree.root.join("xtask/tidy.toml"))?;
    let allowed: Allowed = toml::from_str(&allowed).context("xtask/tidy.toml")?;
    let mut faults = Vec::new();
    faults.extend(lines::faults(&tree)?);
    faults.extend(functions::faults(&tree, &allowed.long_functions)?);
    faults.extend(code::faults(&tree, &allowed.unsafe_files, &allowed.floors)?);
    faults.extend(glue::faults(&tree)?);
    faults.extend(arch::faults(&tree, &allowed.architecture)?);
    faults.extend(circles::faults(&tree, &allowed.circles)?);
    faults.extend(crates::faults(&tree, &allowed.crates)?);
    faults.extend(docs::faults(&tree)?);
    if !faults.is_empty() {
        bail!("house rules:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
impl Tree {
    /// Makes a directory with these files, which contain a test's faults.
    fn planted(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("xtask-tidy-{name}-{}", std::process::id()));
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self { root, names: files.iter().map(|(name, _)| (*name).to_owned()).collect() }
    }
}

#[cfg(test)]
impl Drop for Tree {
    fn drop(&mut self) {
        if self.root.starts_with(std::env::temp_dir()) {
            fs::remove_dir_all(&self.root).ok();
        }
    }
}
