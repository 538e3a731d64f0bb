// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads and writes the file of what benchmarks have counted before.
//!
//! It is meant to be kept in version control: it is sorted and has a line for each number. Readers
//! ignore fields that they do not know.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use raw_cpuid::CpuId;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The text by which a file says that it is a baseline.
const FORMAT: &str = "perfctr baseline";
/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// What benchmarks have counted before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Baseline {
    format: String,
    version: u32,
    /// The benchmarks by name.
    pub benchmarks: BTreeMap<String, Benchmark>,
}

/// The counts of a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "callers make them, and the file has these fields")]
pub struct Benchmark {
    /// The name of the CPU that counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The counts by the event's name.
    pub events: BTreeMap<String, Range>,
}

impl Benchmark {
    /// Makes a benchmark that was counted on this CPU.
    pub fn here(events: BTreeMap<String, Range>) -> Self {
        Self { cpu: cpu_name(), events }
    }

    /// Returns a warning if another CPU counted what is compared with this.
    pub fn another_cpu(&self, now: &Self) -> Option<String> {
        match (&self.cpu, &now.cpu) {
            (Some(cpu), Some(here)) if cpu != here => Some(format!(
                "the baseline is of {cpu}, this is {here}: libraries choose their code by the CPU"
            )),
            _ => None,
        }
    }
}

/// Returns this CPU's name, which is CPUID's brand string, if it has one.
pub fn cpu_name() -> Option<String> {
    let brand = CpuId::new().get_processor_brand_string()?;
    Some(brand.as_str().trim().to_owned())
}

/// The least and the greatest count of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "callers make them, and the file has these fields")]
pub struct Range {
    /// The least count.
    pub min: u64,
    /// The greatest count.
    pub max: u64,
}

impl Range {
    /// Returns the range of these counts, or `None` if there was no run.
    pub fn of(counts: impl Iterator<Item = u64> + Clone) -> Option<Self> {
        Some(Self { min: counts.clone().min()?, max: counts.max()? })
    }
}

impl Default for Baseline {
    fn default() -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, benchmarks: BTreeMap::new() }
    }
}

impl Baseline {
    /// Puts these counts of a benchmark in place of those that there are. Its counts of other
    /// events stay as they are.
    pub fn update(&mut self, name: String, now: Benchmark) {
        let benchmark = self.benchmarks.entry(name).or_default();
        benchmark.cpu = now.cpu;
        benchmark.events.extend(now.events);
    }

    /// Reads the file. An absent one is an empty baseline.
    ///
    /// # Errors
    ///
    /// [`Error::Read`], if the file cannot be read or is no baseline.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        match fs::read(path) {
            Ok(bytes) => Self::parse(&bytes).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    ///
    /// [`Error::Syntax`] and [`Error::Format`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let baseline: Self =
            serde_json::from_slice(bytes).map_err(|error| Error::Syntax(error.into()))?;
        if baseline.format == FORMAT && baseline.version == VERSION {
            return Ok(baseline);
        }
        let Self { format, version, .. } = baseline;
        Err(Error::Format { format, version, expected: (FORMAT, VERSION) })
    }

    /// Returns the text of the file.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("its keys are texts") + "\n"
    }

    /// Writes the file.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        fs::write(path, self.text())
            .map_err(|source| Error::Write { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_replaces_what_was_measured_and_nothing_else() {
        let range = |min| Range { min, max: min + 2 };
        let benchmark = |counts: &[(&str, u64)]| Benchmark {
            cpu: Some(counts[0].1.to_string()),
            events: counts.iter().map(|&(name, min)| (name.to_owned(), range(min))).collect(),
        };
        let mut baseline = Baseline::default();
        for (name, counts) in [
            ("sort", &[("instructions:u", 70)][..]),
            ("find", &[("instructions:u", 40)]),
            ("sort", &[("branches:u", 20)]),
            ("sort", &[("instructions:u", 60)]),
        ] {
            baseline.update(name.to_owned(), benchmark(counts));
        }
        let sort = benchmark(&[("instructions:u", 60), ("branches:u", 20)]);
        let find = benchmark(&[("instructions:u", 40)]);
        assert_eq!(
            baseline.benchmarks,
            [("find".to_owned(), find), ("sort".to_owned(), sort)].into()
        );
    }

    #[test]
    fn what_is_written_can_be_read_and_may_grow() {
        let events = [("instructions:u".to_owned(), Range { min: 7, max: 9 })];
        let mut baseline = Baseline::default();
        let benchmark = Benchmark { cpu: Some("a CPU".to_owned()), events: events.into() };
        baseline.benchmarks.insert("sort".to_owned(), benchmark);
        let text = serde_json::to_string(&baseline).unwrap();
        assert_eq!(Baseline::parse(text.as_bytes()).unwrap(), baseline);
        let grown = text.replace("\"min\"", "\"mean\":8,\"min\"");
        assert_eq!(Baseline::parse(grown.as_bytes()).unwrap(), baseline);
        let later = text.replace("\"version\":1", "\"version\":2");
        let error = Baseline::parse(later.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("\"perfctr baseline\" version 2 found"), "{error}");
        assert!(Baseline::parse(b"{}").is_err());
    }

    #[test]
    fn only_a_file_that_is_absent_is_an_empty_baseline() {
        // A directory cannot be read as a file, whoever tries.
        let folder = std::env::temp_dir();
        let error = Baseline::read(&folder).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot read {}", folder.display())), "{error}");
        let absent = folder.join("perfctr-no-such-folder/baseline.json");
        assert_eq!(Baseline::read(&absent).unwrap(), Baseline::default());
    }

    #[test]
    fn a_baseline_of_another_cpu_is_warned_of() {
        let of =
            |cpu: Option<&str>| Benchmark { cpu: cpu.map(str::to_owned), ..Benchmark::default() };
        let warning = of(Some("A 1")).another_cpu(&of(Some("B 2"))).unwrap();
        assert!(warning.starts_with("the baseline is of A 1, this is B 2: "), "{warning}");
        for (before, now) in [(Some("A 1"), Some("A 1")), (None, Some("A 1")), (Some("A 1"), None)]
        {
            assert_eq!(of(before).another_cpu(&of(now)), None);
        }
    }

    #[test]
    fn ranges_are_of_all_runs() {
        assert_eq!(Range::of([8, 7, 9].into_iter()), Some(Range { min: 7, max: 9 }));
        assert_eq!(Range::of([].into_iter()), None);
    }
}
