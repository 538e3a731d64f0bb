// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests Debian's rr, which records programs and replays them: a replay follows its recording to
//! the branch, or it fails. Nothing of rr is patched, and none of its own checks is switched off.

mod recorded;
mod victim;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use vm_tests::disturb;
use vm_tests::host::host;
use vm_tests::tally::Tally;
use vm_tests::threads::cpus;

use crate::recorded::{Recording, check_ticks};

/// The number of the testbed's physical CPUs.
const PCPUS: u32 = 2;
const SEED: u64 = 1;

/// The number of recordings of a program that differs from run to run.
const TIMES: usize = 2;

/// What this program does: it tests, or it is what rr records.
#[derive(Debug, Parser)]
enum Role {
    /// Records and replays programs.
    Test,
    /// Is interrupted by signals, and says where.
    Signalled,
    /// Has threads that race, and says who was first.
    Racing,
}

/// This program in another role.
fn own(role: &str) -> [&str; 2] {
    ["/work/rr", role]
}

fn main() -> Result<ExitCode> {
    match Role::parse() {
        Role::Test => test(),
        Role::Signalled => victim::signalled().map(|()| ExitCode::SUCCESS),
        Role::Racing => victim::racing().map(|()| ExitCode::SUCCESS),
    }
}

fn test() -> Result<ExitCode> {
    let mut tally = Tally::default();
    let mut test = |name: &str, test: &dyn Fn() -> Result<()>| {
        tally.check(name, test().map_err(|error| format!("{error:#}")));
    };
    test("rr's own test finds ticks exact, and interrupts where they are due", &|| {
        check_ticks(&[102, 1_000, 1_000_000])
    });
    test("a program that does little is replayed", &|| replayed(&["/bin/ls", "/"], &[], 1));
    test("signals are replayed where they came", &|| {
        differing(&own("signalled"), &[], TIMES)?;
        disturbed(&|| replayed(&own("signalled"), &[], TIMES))
    });
    test("threads that race are replayed in their order", &|| {
        disturbed(&|| replayed(&own("racing"), &[], TIMES))
    });
    test("threads are replayed that rr has tried to confuse", &|| {
        differing(&own("racing"), &["--chaos"], TIMES)
    });
    test("Python is replayed", &|| {
        replayed(&["/usr/bin/python3.11", "-s", "-S", "-B", "words.py"], &[], 1)
    });
    test("SQLite is replayed", &|| {
        replayed(&["/usr/bin/sqlite3", "-batch", ":memory:", "-init", "query.sql"], &[], 1)
    });
    test("a compressor with threads is replayed", &|| {
        replayed(&["/usr/bin/xz", "-0c", "-T2", "--block-size=20000", "words"], &[], 1)
    });
    Ok(tally.finish())
}

/// Records a program so many times, and replays each recording twice.
fn replayed(command: &[&str], options: &[&str], times: usize) -> Result<()> {
    for _ in 0..times {
        record_and_replay(command, options)?;
    }
    Ok(())
}

/// Records a program and replays it twice. Returns what it has written.
fn record_and_replay(command: &[&str], options: &[&str]) -> Result<Vec<u8>> {
    let recording = Recording::make(command, options)?;
    ensure!(!recording.written.is_empty(), "{command:?} writes nothing");
    for replay in 1..=2 {
        let written = recording.replay().with_context(|| format!("replay {replay}"))?;
        ensure!(
            written == recording.written,
            "{} in replay {replay}, recorded was {}",
            String::from_utf8_lossy(&written),
            String::from_utf8_lossy(&recording.written)
        );
    }
    Ok(recording.written.clone())
}

/// Checks that recordings of a program differ, so that its replays could: by nature it writes
/// something else in each run.
fn differing(command: &[&str], options: &[&str], times: usize) -> Result<()> {
    let first = record_and_replay(command, options)?;
    for _ in 0..times.max(3) {
        if record_and_replay(command, options)? != first {
            return Ok(());
        }
    }
    anyhow::bail!("{command:?} does the same in each recording")
}

/// Does something while the vCPUs of this guest are moved between physical CPUs.
fn disturbed(test: &dyn Fn() -> Result<()>) -> Result<()> {
    let (host, cpus, stop) = (&*host()?, &cpus()?, &AtomicBool::new(false));
    thread::scope(|scope| {
        let disturber = scope.spawn(|| disturb::vcpus(host, cpus, PCPUS, SEED, stop));
        let result = test();
        stop.store(true, Ordering::Relaxed);
        disturber.join().expect("no thread panics");
        result
    })
}
