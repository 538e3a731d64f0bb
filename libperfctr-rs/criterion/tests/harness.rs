// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Has criterion measure by a counter that the benchmarks move themselves.
#![allow(missing_docs, reason = "these are tests")]

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use criterion::Criterion;
use criterion::measurement::Measurement;
use perfctr::Error;
use perfctr::nested::Source;
use perfctr_criterion::Counted;

/// Counts what [`work`](Fake::work) is told, and 30 for each reading.
#[derive(Clone, Debug, Default)]
struct Fake {
    executed: Rc<Cell<u64>>,
    is_lost: Rc<Cell<bool>>,
}

impl Fake {
    fn work(&self, instructions: u64) {
        self.executed.set(self.executed.get() + instructions);
    }
}

impl Source for Fake {
    fn counts_into(&self, counts: &mut [u64]) -> Result<u32, Error> {
        if self.is_lost.get() {
            return Err(Error::Faulted);
        }
        self.work(10);
        counts[0] = self.executed.get();
        self.work(20);
        Ok(0)
    }
}

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("perfctr-criterion-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Has criterion measure an iteration that executes so many instructions. Returns the files with
/// its estimates, and with how they have changed if it has measured before.
fn benchmark(fake: &Fake, directory: &Path, instructions: u64) -> (String, Option<String>) {
    let counted = Counted::with_source(fake.clone(), "instructions:u").unwrap();
    Criterion::default()
        .with_measurement(counted)
        .without_plots()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(2))
        .measurement_time(Duration::from_millis(20))
        .nresamples(1_001)
        .output_directory(directory)
        .bench_function("work", |bencher| bencher.iter(|| fake.work(instructions)));
    let results = directory.join("work");
    let read = |name: &str| fs::read_to_string(results.join(name).join("estimates.json")).ok();
    (read("new").unwrap(), read("change"))
}

/// Returns an estimate of a file of criterion's.
fn point(estimates: &str, name: &str) -> f64 {
    let (_, rest) = estimates.split_once(&format!("\"{name}\":")).unwrap();
    let (_, rest) = rest.split_once("\"point_estimate\":").unwrap();
    rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
}

#[test]
fn criterion_estimates_what_an_iteration_executes() {
    let (fake, directory) = (Fake::default(), Directory::new("estimates"));
    let (estimates, change) = benchmark(&fake, &directory.0, 1_000);
    assert_eq!(change, None);
    for name in ["mean", "median", "slope"] {
        assert_eq!(point(&estimates, name), 1_000.0, "{estimates}");
    }
    assert_eq!(point(&estimates, "std_dev"), 0.0, "{estimates}");
    let (estimates, change) = benchmark(&fake, &directory.0, 1_001);
    assert_eq!(point(&estimates, "slope"), 1_001.0);
    let change = change.unwrap();
    assert!((point(&change, "mean") - 0.001).abs() < 1e-9, "{change}");
    let (_, change) = benchmark(&fake, &directory.0, 1_001);
    assert_eq!(point(&change.unwrap(), "mean"), 0.0);
}

#[test]
fn what_a_measurement_counts_of_itself_is_subtracted_once() {
    let fake = Fake::default();
    let counted = Counted::with_source(fake.clone(), "instructions:u").unwrap();
    let first = counted.end(counted.start());
    let before = counted.start();
    fake.work(7);
    let second = counted.end(before);
    assert_eq!((first, second), (0, 7));
    assert_eq!(counted.to_f64(&counted.add(&second, &counted.add(&3, &counted.zero()))), 10.0);
}

#[test]
#[should_panic(expected = "the benchmark cannot be counted: the host does not let this domain")]
fn a_benchmark_that_cannot_be_counted_says_why() {
    let fake = Fake::default();
    let counted = Counted::with_source(fake.clone(), "instructions:u").unwrap();
    fake.is_lost.set(true);
    counted.start();
}

#[test]
fn an_error_before_the_first_benchmark_is_returned() {
    let fake = Fake::default();
    fake.is_lost.set(true);
    let error = Counted::with_source(fake, "instructions:u").unwrap_err();
    assert!(matches!(error, Error::Faulted), "{error}");
}
