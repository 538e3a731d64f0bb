// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes a build tree from pristine sources, with some files replaced or added.
//!
//! The tree is kept between runs, and only files whose content changes are written. So `make` and
//! `ninja` rebuild only what is affected.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tools::cache;
use crate::tools::sh::{self, cmd};

/// Files to put over a tree: relative path and content.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The file in which a work tree lists the files that were put over it.
const MANIFEST: &str = ".overlay-files";

/// Makes `work` the same as `pristine` with `files` over it. Writes only what differs.
pub fn apply(pristine: &Path, work: &Path, files: &Files) -> Result<()> {
    if !work.join(MANIFEST).exists() {
        if work.exists() {
            fs::remove_dir_all(work)?;
        }
        fs::create_dir_all(work.parent().context("a work tree has a parent")?)?;
        sh::output(cmd("cp", ["-a"]).arg(pristine).arg(work))?;
        fs::write(work.join(MANIFEST), "")?;
    }
    let before = fs::read_to_string(work.join(MANIFEST))?;
    // The list is written first, so that an interrupted run leaves no file unlisted.
    let mut listed: Vec<&str> = before.lines().chain(files.keys().map(String::as_str)).collect();
    listed.sort_unstable();
    listed.dedup();
    fs::write(work.join(MANIFEST), listed.join("\n"))?;
    for name in before.lines().filter(|name| !files.contains_key(*name)) {
        match fs::read(pristine.join(name)) {
            Ok(content) => write_if_changed(&work.join(name), &content)?,
            Err(_) if work.join(name).exists() => fs::remove_file(work.join(name))?,
            Err(_) => {}
        }
    }
    for (name, content) in files {
        write_if_changed(&work.join(name), content)?;
    }
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    fs::write(work.join(MANIFEST), names.join("\n"))?;
    Ok(())
}

/// Reads every file under `source` as an overlay below `prefix` ("" for the top).
pub fn read(source: &Path, prefix: &str) -> Result<Files> {
    let mut files = Files::new();
    for (name, path) in crate::tools::cache::files(source)? {
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        files.insert(name, fs::read(path)?);
    }
    Ok(files)
}

/// Returns the files of `source` that `patch` changes, as they are afterwards. A scratch copy of
/// them stays in `work`.
pub fn patched(source: &Path, patch: &Path, work: &Path) -> Result<Files> {
    let scratch = work.join("patched");
    cache::empty(&scratch)?;
    if !patch.exists() {
        return Ok(Files::new());
    }
    let text = fs::read_to_string(patch)?;
    let names = text.lines().filter_map(|line| {
        let name = line.strip_prefix("+++ b/")?;
        Some(name.split('\t').next().unwrap_or(name))
    });
    for name in names {
        let copy = scratch.join(name);
        fs::create_dir_all(copy.parent().context("a patched file has a directory")?)?;
        if source.join(name).exists() {
            fs::copy(source.join(name), copy)?;
        }
    }
    let mut apply = cmd("patch", ["-p1", "--no-backup-if-mismatch", "-i"]);
    sh::output(apply.arg(patch).current_dir(&scratch))?;
    read(&scratch, "")
}

/// Returns the difference that `files` make to `pristine`, as a unified diff.
pub fn diff(pristine: &Path, files: &Files) -> Result<String> {
    let (mut text, new) = (String::new(), cache::scratch("new")?);
    for (name, content) in files {
        fs::write(&new, content)?;
        let old = pristine.join(name);
        let (old, label) = if old.exists() {
            (old, format!("a/{name}"))
        } else {
            ("/dev/null".into(), "/dev/null".into())
        };
        let mut diff = cmd("diff", ["-u", "--label", &label, "--label", &format!("b/{name}")]);
        // diff returns 1 when the files differ, which is what is wanted here.
        let out = diff.arg(old).arg(&new).output().context("diff")?;
        text += &String::from_utf8_lossy(&out.stdout);
    }
    Ok(text)
}

fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, content).with_context(|| path.display().to_string())
}
