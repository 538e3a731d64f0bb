// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The copy of the sources in which faults can be switched on.
//!
//! Each marked piece of code becomes a choice between right and wrong, so one build has all
//! faults, none of them in force until it is switched on: by the simulator for one of its threads,
//! in other programs by the variable `PERFCTR_FAULT`. Files are written only if they differ from
//! what is there, so cargo builds again only what has changed.

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

/// The crate that all others use, which has the switch.
const SWITCH: [&str; 2] = ["shared-abi/src/lib.rs", "shared-abi/src/faults.rs"];

/// What the copy adds to that crate.
const MODULE: &str = "
/// Faults that can be switched on.
pub mod faults;
extern crate self as shared_abi;
";

/// A copy of the sources.
pub struct Copy {
    root: PathBuf,
    /// Where it is built.
    target: PathBuf,
}

impl Copy {
    /// A `cargo` in the copy.
    pub fn cargo(&self) -> Command {
        let mut cargo = toolchain::cargo();
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", self.target.join("host"));
        // Nobody looks at this with a debugger; one test looks for its own lines.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
        cargo
    }

    /// A `cargo` in the copy, for the simulator.
    pub fn cargo_for_simulator(&self) -> Command {
        let mut cargo = toolchain::cargo();
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", self.target.join("sim"));
        // What was woven is not written for anybody's eyes.
        cargo.env("RUSTFLAGS", "--cfg sim --cfg faults --cap-lints allow");
        cargo
    }
}

/// Brings the copy of the project up to date in which each fault can be switched on.
pub fn copy() -> Result<Copy> {
    let project = sh::project();
    let faults: Vec<Fault> = read(&project)?.into_iter().filter(|fault| !fault.alone).collect();
    let mut files = files(&project, changes(&project, &faults, Some)?)?;
    if let Some((_, text)) = files.iter_mut().find(|(name, _)| name == SWITCH[0]) {
        text.extend(MODULE.as_bytes());
    }
    files.push((SWITCH[1].to_owned(), switch(&faults).into_bytes()));
    Copy::write("switched", &files)
}

/// A copy that has one fault for good.
pub fn copy_with(fault: &Fault) -> Result<Copy> {
    let project = sh::project();
    let faults = std::slice::from_ref(fault);
    Copy::write("alone", &files(&project, changes(&project, faults, |_| None)?)?)
}

impl Copy {
    fn write(name: &str, files: &[(String, Vec<u8>)]) -> Result<Self> {
        // Each with builds of its own: cargo would take one copy's for another's.
        let folder = sh::project().join("target/faults").join(name);
        let (root, target) = (folder.join("tree"), folder.join("target"));
        write(&root, files)?;
        Ok(Self { root, target })
    }
}

/// Parts of files by the files' names.
type Changes = BTreeMap<String, Vec<Part>>;

/// The project's files with these changes.
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

/// The parts of each file that are changed, and what says when.
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

/// The files of the project.
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
            // What is built in the copy serves the next fault, too.
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

/// The module that says which fault is in force.
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

/// The end of that module.
const METHODS: &str = r#"
    /// Whether it is in force.
    #[inline]
    pub fn is_on(self) -> bool {
        Self::switched_on() == Some(self)
    }

    /// The one that is in force in this thread.
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
