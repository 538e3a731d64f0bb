// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads the statistics of the guest's module.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The file with the module's counters, one `key value` pair per line.
pub const PATH: &str = "/sys/kernel/debug/perfctr/stats";

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleStats(BTreeMap<String, u64>);

impl ModuleStats {
    /// Reads the module's counters.
    ///
    /// # Errors
    ///
    /// There is no such file (debugfs has to be mounted), or it has another form.
    pub fn read() -> Result<Self> {
        let text = fs::read_to_string(PATH).with_context(|| format!("cannot read {PATH}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let pair = |line: &str| -> Result<_> {
            let (key, value) = line.split_once(char::is_whitespace).context("no value")?;
            Ok((key.to_owned(), value.trim().parse()?))
        };
        let pairs = text.lines().map(|line| {
            pair(line).with_context(|| format!("cannot understand line {line:?} of {PATH}"))
        });
        Ok(Self(pairs.collect::<Result<_>>()?))
    }

    /// Returns the counter of this name.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn get(&self, key: &str) -> Result<u64> {
        self.0.get(key).copied().with_context(|| format!("{PATH} has no line {key:?}"))
    }

    /// Returns by how much the counter of this name has grown since `earlier`.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn growth(&self, earlier: &Self, key: &str) -> Result<u64> {
        Ok(self.get(key)?.wrapping_sub(earlier.get(key)?))
    }
}

/// Returns the number of threads that have counters, by the module's account.
///
/// # Errors
///
/// Those of [`ModuleStats::read`].
pub fn threads() -> Result<u64> {
    ModuleStats::read()?.get("threads")
}

/// Waits, at most two seconds, until the module says that this many threads have counters.
///
/// # Errors
///
/// The module says something else, or nothing.
pub fn until_threads(expected: u64) -> Result<()> {
    for _ in 0..200 {
        if threads()? == expected {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    bail!("{} threads have counters, {expected} expected", threads()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_parsed_and_compared() {
        let early = ModuleStats::parse("threads 3\nloads   10\n").unwrap();
        let late = ModuleStats::parse("threads 3\nloads 25\n").unwrap();
        assert_eq!(late.growth(&early, "loads").unwrap(), 15);
        assert!(late.get("nothing").is_err());
        let error = ModuleStats::parse("threads\n").unwrap_err();
        assert!(error.to_string().contains("\"threads\""), "{error}");
    }
}
