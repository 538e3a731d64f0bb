// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests Debian's rr, which records programs and replays them: a replay follows its recording to
//! the branch, or it fails. Nothing of rr is patched, and none of its own checks is switched off.

mod recorded;
mod tenant;
mod upstream;
mod victim;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use vm_tests::disturb;
use vm_tests::host::host;
use vm_tests::in_tenant::Tests;
use vm_tests::tally::Tally;
use vm_tests::threads::cpus;
use vm_tests::toolstack::Kind;
use vm_tests::volume::pick;

use crate::recorded::{Recording, check_ticks};

/// The number of the testbed's physical CPUs.
const PCPUS: u32 = 2;
const SEED: u64 = 1;

/// The number of recordings of a program that differs from run to run.
const TIMES: usize = 2;

/// The number of switches that show that vCPUs are moved.
const SWITCHES_MIN: u64 = 500;

/// What this program does: it tests, or it is what rr records.
#[derive(Debug, Parser)]
enum Role {
    /// Records and replays programs.
    Test {
        /// Only tests whose names contain this text.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Creates a tenant of Xen that does so.
    Control {
        /// How it is virtualised.
        kind: Kind,
    },
    /// Is the first program of this tenant.
    Tenant,
    /// Runs rr's own tests.
    Upstream {
        /// The directory with rr and its tests.
        dir: PathBuf,
        /// The names of the tests with blanks in between; all if there is none.
        #[arg(default_value = "")]
        wanted: String,
    },
    /// Is interrupted by signals, and says where.
    Signalled,
    /// Has threads that race, and says who was first.
    Racing,
}

/// The tests of every kind of guest.
const TESTS: Tests<fn() -> Result<()>> = Tests {
    at_rest: &[
        ("rr's own test finds ticks exact, and interrupts where they are due", || {
            check_ticks(&[102, 1_000, 1_000_000])
        }),
        ("a program that does little is replayed", || replayed(&["/bin/ls", "/"], &[], 1)),
        ("signals are replayed where they came", || differing(&own("signalled"), &[], TIMES)),
        ("threads are replayed that rr has tried to confuse", || {
            differing(&own("racing"), &["--chaos"], TIMES)
        }),
        ("Python is replayed", || {
            replayed(&["/usr/bin/python3.11", "-s", "-S", "-B", "words.py"], &[], 1)
        }),
        ("SQLite is replayed", || {
            replayed(&["/usr/bin/sqlite3", "-batch", ":memory:", "-init", "query.sql"], &[], 1)
        }),
        ("a compressor with threads is replayed", || {
            replayed(&["/usr/bin/xz", "-0c", "-T2", "--block-size=20000", "words"], &[], 1)
        }),
    ],
    moved: &[
        ("signals are replayed where they came, while vCPUs are moved", || {
            replayed(&own("signalled"), &[], TIMES)
        }),
        ("threads that race are replayed in their order, while vCPUs are moved", || {
            replayed(&own("racing"), &[], TIMES)
        }),
    ],
    saved: &[(
        "threads that race are replayed in their order, while the tenant is saved and migrated",
        || replayed(&own("racing"), &[], TIMES),
    )],
};

/// Returns the command line of this program in another role.
fn own(role: &str) -> [&str; 2] {
    ["/work/rr", role]
}

fn main() -> Result<ExitCode> {
    match Role::parse() {
        Role::Test { only } => test(&only),
        Role::Control { kind } => tenant::control(kind),
        Role::Tenant => tenant::run(),
        Role::Upstream { dir, wanted } => upstream::run(&dir, &wanted),
        Role::Signalled => victim::signalled().map(|()| ExitCode::SUCCESS),
        Role::Racing => victim::racing().map(|()| ExitCode::SUCCESS),
    }
}

/// Runs in a guest that can ask its host to move its vCPUs.
fn test(only: &str) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let (host, cpus, stop) = (&*host()?, &cpus()?, &AtomicBool::new(false));
    let is_wanted = |(name, _): &&(&str, _)| name.contains(only);
    let mut test = |(name, test): &(&str, fn() -> Result<()>)| {
        tally.check(name, test().map_err(|error| format!("{error:#}")));
    };
    // The usual run executes only the first ones.
    let at_rest = &TESTS.at_rest[..pick(3, TESTS.at_rest.len())];
    let moved = &TESTS.moved[..pick(1, TESTS.moved.len())];
    at_rest.iter().filter(is_wanted).for_each(&mut test);
    if moved.iter().any(|test| is_wanted(&test)) {
        let before = host.switches()?;
        thread::scope(|scope| {
            let disturber = scope.spawn(|| disturb::vcpus(host, cpus, PCPUS, SEED, stop));
            moved.iter().filter(is_wanted).for_each(&mut test);
            stop.store(true, Ordering::Relaxed);
            disturber.join().expect("no thread panics");
        });
        disturb::check(&mut tally, host, before, SWITCHES_MIN)?;
    }
    Ok(tally.finish())
}

/// Records a program this many times, and replays each recording twice.
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

/// Checks that recordings of a program differ, so that its replays could differ. By nature the
/// program writes something else in each run.
fn differing(command: &[&str], options: &[&str], times: usize) -> Result<()> {
    let first = record_and_replay(command, options)?;
    for _ in 0..times.max(3) {
        if record_and_replay(command, options)? != first {
            return Ok(());
        }
    }
    anyhow::bail!("{command:?} does the same in each recording")
}
