// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the copy of the sources in which faults can be switched on.
//!
//! Each marked piece of code becomes a choice between right and wrong. So one build has all faults,
//! and none of them is in force until it is switched on: in the simulator for one of its threads,
//! in other programs by the variable `PERFCTR_FAULT`. Only files whose content changes are written,
//! so cargo builds again only what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::catalogue::{Fault, Tier, read};
use crate::tools::anchors::{Part, weave};
use crate::tools::sh::{self, cmd};
use crate::tools::{cache, toolchain};

/// The variable that names the fault in force.
pub const VARIABLE: &str = "PERFCTR_FAULT";

/// The files of the crate in which the switch is.
const SWITCH: [&str; 2] = ["shared-abi/src/lib.rs", "shared-abi/src/faults.rs"];

/// The text that the copy adds to that crate.
const MODULE: &str = "
/// Faults that can be switched on.
pub mod faults;
extern crate self as shared_abi;
";

/// A copy of the sources.
pub struct Copy {
    root: PathBuf,
    /// The directory in which it is built.
    target: PathBuf,
}

impl Copy {
    /// Returns a command that runs `cargo` in the copy.
    pub fn cargo(&self) -> Command {
        let mut cargo = toolchain::cargo();
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", self.target.join("host"));
        cargo
    }

    /// Returns a command that runs `cargo` in the copy, for the simulator.
    pub fn cargo_for_simulator(&self) -> Command {
        let mut cargo = toolchain::cargo();
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", self.target.join("sim"));
        // Lints do not matter, since nobody reads the changed code.
        cargo.env("RUSTFLAGS", "--cfg sim --cfg faults --cap-lints allow");
        cargo
    }
}

/// Brings the copy of the project up to date, in which each fault can be switched on.
pub fn copy() -> Result<Copy> {
    let project = sh::project();
    let faults: Vec<Fault> = read(&project)?.into_iter().filter(|fault| !fault.alone).collect();
    let mut files = files(&project, changes(&project, &faults, Some)?)?;
    if let Some((_, text)) = files.iter_mut().find(|(name, _)| name == SWITCH[0]) {
        text.extend(MODULE.as_bytes());
    }
    for (_, text) in files.iter_mut().filter(|(name, _)| name.ends_with("/Cargo.toml")) {
        *text = with_switch(std::str::from_utf8(text)?).into_bytes();
    }
    files.push((SWITCH[1].to_owned(), switch(&faults).into_bytes()));
    Copy::write("switched", &files)
}

/// Makes a copy that always has one fault.
pub fn copy_with(fault: &Fault) -> Result<Copy> {
    let project = sh::project();
    let faults = std::slice::from_ref(fault);
    Copy::write("alone", &files(&project, changes(&project, faults, |_| None)?)?)
}

impl Copy {
    fn write(name: &str, files: &[(String, Vec<u8>)]) -> Result<Self> {
        // Each copy has builds of its own, since cargo would confuse those of several copies.
        let folder = sh::project().join("target/faults").join(name);
        let (root, target) = (folder.join("tree"), folder.join("target"));
        write(&root, files)?;
        Ok(Self { root, target })
    }
}

/// Returns the manifest of a crate that depends on the one in which the switch is.
fn with_switch(manifest: &str) -> String {
    if manifest.contains("shared-abi") {
        return manifest.to_owned();
    }
    manifest.replace("\n[dependencies]\n", "\n[dependencies]\nshared-abi = { workspace = true }\n")
}

/// The parts that change, by their files' names.
type Changes = BTreeMap<String, Vec<Part>>;

/// Returns the project's files with these changes.
fn files(project: &Path, mut changes: Changes) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for name in names(project)? {
        let text = fs::read(project.join(&name)).with_context(|| name.clone())?;
        let text = match changes.remove(&name) {
            Some(parts) => weave(&String::from_utf8(text)?, parts)?.into_bytes(),
            None => text,
        };
        files.push((name, text));
    }
    Ok(files)
}

/// Returns the parts of each file that are changed, with the expressions that switch them on.
fn changes(
    project: &Path,
    faults: &[Fault],
    switched: impl Fn(String) -> Option<String>,
) -> Result<Changes> {
    let mut changes = Changes::new();
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    for fault in faults {
        for edit in &fault.edits {
            let context = || format!("{}: {}: {}", fault.list, fault.name, edit.file);
            if !sources.contains_key(&*edit.file) {
                let text = fs::read_to_string(project.join(&edit.file)).with_context(context)?;
                sources.insert(&edit.file, text);
            }
            let place = edit.place(&sources[&*edit.file]).with_context(context)?;
            let switch = format!("::shared_abi::faults::Fault::{}.is_on()", fault.name);
            let switch = switched(switch).filter(|_| !edit.always);
            let part = Part { place, switch, wrong: edit.wrong.clone() };
            changes.entry(edit.file.clone()).or_default().push(part);
        }
    }
    Ok(changes)
}

/// Returns the names of the project's files.
fn names(project: &Path) -> Result<Vec<String>> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let text = sh::output(cmd("git", list).current_dir(project))?;
    let names = text.lines().map(str::to_owned).filter(|name| project.join(name).is_file());
    Ok(names.collect())
}

/// Makes the folder hold these files and no others.
fn write(root: &Path, files: &[(String, Vec<u8>)]) -> Result<()> {
    let wanted: BTreeSet<&str> = files.iter().map(|(name, _)| &**name).collect();
    if root.exists() {
        for (name, path) in cache::files(root)? {
            // Builds in the copy are kept, since they serve the next fault, too.
            if !wanted.contains(&*name) && !name.starts_with("target/") {
                fs::remove_file(path)?;
            }
        }
    }
    for (name, text) in files {
        let path = root.join(name);
        if fs::read(&path).is_ok_and(|held| held == *text) {
            continue;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Returns the text of the module that says which fault is in force.
fn switch(faults: &[Fault]) -> String {
    let names = |wanted: &dyn Fn(&Fault) -> bool| -> String {
        let wanted = faults.iter().filter(|fault| wanted(fault));
        wanted.map(|fault| format!("Self::{}, ", fault.name)).collect()
    };
    let variants: String = faults
        .iter()
        .map(|fault| format!("    /// {}\n    {},\n", fault.what, fault.name))
        .collect();
    format!(
        "//! Which fault is in force; `cargo xtask` has written this.\n\
         extern crate std;\n\
         use core::cell::Cell;\n\
         use std::prelude::v1::*;\n\n\
         /// A fault.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq)]\n\
         pub enum Fault {{\n{variants}}}\n\n\
         impl Fault {{\n\
         /// Every fault.\n\
         pub const ALL: &[Self] = &[{all}];\n\
         /// Those that the simulator has to find.\n\
         pub const SIMULATED: &[Self] = &[{simulated}];\n\
         {METHODS}",
        all = names(&|_| true),
        simulated = names(&|fault| fault.tier == Tier::Sim),
    )
    .replace("PERFCTR_FAULT", VARIABLE)
}

/// The end of that module's text.
const METHODS: &str = r#"
    /// Returns whether it is in force.
    #[inline]
    pub fn is_on(self) -> bool {
        Self::switched_on() == Some(self)
    }

    /// Returns the one that is in force in this thread.
    #[inline]
    pub fn switched_on() -> Option<Self> {
        if cfg!(sim) { ON.get() } else { *NAMED.get_or_init(Self::named) }
    }

    /// Puts one, or none, in force in this thread of the simulator.
    pub fn switch(fault: Option<Self>) {
        ON.set(fault);
    }

    fn named() -> Option<Self> {
        let name = std::env::var("PERFCTR_FAULT").ok()?;
        let is_named = |fault: &&Self| std::format!("{fault:?}") == name;
        Some(*Self::ALL.iter().find(is_named).expect("a fault has this name"))
    }
}

std::thread_local! {
    static ON: Cell<Option<Fault>> = const { Cell::new(None) };
}

static NAMED: std::sync::OnceLock<Option<Fault>> = std::sync::OnceLock::new();
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_of_a_copy_can_ask_which_fault_is_in_force() {
        let without = "[package]\nname = \"one\"\n\n[dependencies]\nlibc = \"0.2\"\n";
        let with = with_switch(without);
        let dependency = "[dependencies]\nshared-abi = { workspace = true }\nlibc = \"0.2\"\n";
        assert!(with.ends_with(dependency), "{with}");
        assert_eq!(with_switch(&with), with, "it has it already");
        let own = "[package]\nname = \"shared-abi\"\n\n[dependencies]\n";
        assert_eq!(with_switch(own), own);
        let workspace = "[workspace.dependencies]\nlibc = \"0.2\"\n";
        assert_eq!(with_switch(workspace), workspace);
    }
}
