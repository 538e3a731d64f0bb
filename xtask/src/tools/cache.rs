// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Artefacts outside the source tree, named by the content of their inputs.
//!
//! An artefact is a directory `NAME-KEY`, where the key is a hash of every input. It is built in
//! `NAME-KEY.partial` and renamed when it is complete, so that nobody uses an incomplete one. A
//! lock file per name prevents two runs from building the same thing at once.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::tools::sh;

/// Length of a key in hexadecimal digits.
const KEY_DIGITS: usize = 16;
/// Artefacts of one name that are kept: several trees may be worked on at once.
const ARTEFACTS_KEPT: usize = 10;

/// Returns the cache's directory: `$PERFCTR_CACHE`, or `~/.cache/perfctr`.
pub fn root() -> Result<PathBuf> {
    let path = match (env::var_os("PERFCTR_CACHE"), env::var_os("HOME")) {
        (Some(dir), _) => PathBuf::from(dir),
        (None, Some(home)) => Path::new(&home).join(".cache/perfctr"),
        (None, None) => bail!("set PERFCTR_CACHE or HOME: there is no place for the cache"),
    };
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path.canonicalize()?)
}

/// Returns the path of a build step's log.
pub fn log(name: &str) -> Result<PathBuf> {
    Ok(root()?.join("logs").join(format!("{name}.log")))
}

/// Returns the path of a file or a directory that is no artefact, and is made anew each time. Its
/// parent directory exists.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let path = root()?.join("work").join(name);
    let dir = path.parent().context("a name is a path below the cache's")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(path)
}

/// A hash over the inputs of an artefact.
pub struct Key(Sha256);

impl Key {
    /// Makes a key that starts with the recipe's own revision. Raise that when the recipe changes.
    pub fn new(recipe: &str) -> Self {
        Self(Sha256::new()).text(recipe)
    }

    /// Adds a text.
    pub fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// Adds a file, or every file of a directory with its relative path, in a fixed order.
    pub fn path(self, path: &Path) -> Result<Self> {
        let mut key = self;
        for (relative, file) in files(path)? {
            let content = fs::read(&file).with_context(|| file.display().to_string())?;
            key = key.text(&relative).bytes(&content);
        }
        Ok(key)
    }

    /// Adds bytes, with their length so that neighbours cannot run together.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    fn hex(self) -> String {
        self.0.finalize().iter().take(KEY_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the files at or under `path` as (relative name, path), sorted. There are none if the
/// path does not exist.
pub fn files(path: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let mut todo = vec![path.to_owned()];
    while let Some(next) = todo.pop() {
        if next.is_dir() {
            for entry in fs::read_dir(&next)? {
                todo.push(entry?.path());
            }
        } else if next.exists() {
            let relative = next.strip_prefix(path)?.to_string_lossy().into_owned();
            found.push((relative, next));
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the artefact `name` for `key`, building it into an empty directory if it is missing.
pub fn artefact(name: &str, key: Key, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let file = format!("{name}-{}", key.hex());
    let dir = root()?.join(&file);
    if dir.exists() {
        // This notes the time of use, since artefacts that nobody uses are removed first.
        File::open(&dir)?.set_modified(SystemTime::now())?;
        return Ok(dir);
    }
    let _lock = lock(name)?;
    if dir.exists() {
        return Ok(dir);
    }
    // A name may have a dot, as versions do.
    let partial = root()?.join(format!("{file}.partial"));
    empty(&partial)?;
    let log = log(name)?;
    if log.exists() {
        fs::remove_file(&log)?;
    }
    if let Err(error) = sh::step(name, || build(&partial)) {
        // The log that the error names is in another directory.
        fs::remove_dir_all(&partial)?;
        return Err(error);
    }
    fs::rename(&partial, &dir)?;
    prune(name)?;
    Ok(dir)
}

/// Makes this an empty directory, whatever was there before.
pub fn empty(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    Ok(fs::create_dir_all(dir)?)
}

/// Removes the artefacts called `name` that were last used longest ago, if there are many.
fn prune(name: &str) -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root()?)? {
        let entry = entry?;
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let key = file_name.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        if key.is_some_and(|key| key.len() == KEY_DIGITS) {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    found.sort();
    for (_, path) in found.iter().rev().skip(ARTEFACTS_KEPT) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

/// Waits for, and holds, the lock called `name` until the returned file is dropped.
pub fn lock(name: &str) -> Result<File> {
    let dir = root()?.join("locks");
    fs::create_dir_all(&dir)?;
    let file = File::create(dir.join(name))?;
    if file.try_lock().is_err() {
        eprintln!("  waiting for another run that prepares {name} ...");
        file.lock()?;
    }
    Ok(file)
}
