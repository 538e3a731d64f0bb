// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that the maker of a user namespace answers for its users.

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Uid, alarm, setresuid};
use vm_tests::raw::{Refusal, open_device};
use vm_tests::stats::until_threads;
use vm_tests::tally::Tally;

use crate::device;
use vm_tests::users::{Child, NOBODY, SOMEBODY, admit, as_user, become_user};

/// The bound on one owner's users.
const USERS: u32 = 64;

/// The users of the namespace: their numbers inside and outside, and how many there are.
const MAP: &str = "0 100000 100";

/// How long the test may take, in s.
const PATIENCE_S: u32 = 120;

/// Tests how many users of one owner get counters.
pub fn run(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    let outcome = bounded().and_then(|()| until_threads(0));
    let name = "users of a namespace are bounded by who has made it";
    tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    Ok(())
}

fn bounded() -> Result<()> {
    let (mut from_child, to_parent) = pipe()?;
    let (from_parent, mut to_child) = pipe()?;
    let child = Child::fork(move || inside(to_parent, from_parent))?;
    let mut outside = || {
        from_child.read_exact(&mut [0])?;
        fs::write(format!("/proc/{}/uid_map", child.pid), MAP).context("uid_map")?;
        to_child.write_all(&[0])?;
        from_child.read_exact(&mut [0])?;
        as_user(NOBODY, || create(&open_device()?, Err(Refusal::ENOSPC)).context("who made it"))?;
        as_user(SOMEBODY, || create(&open_device()?, Ok(())).context("somebody else"))?;
        Ok(to_child.write_all(&[0])?)
    };
    let outcome: Result<()> = outside();
    drop(to_child);
    child.join()?;
    outcome
}

/// Makes a namespace, and gives its users counters, one user after the other. The descriptors keep
/// the counters after the threads have ended.
fn inside(mut telling: PipeWriter, mut asked: PipeReader) -> Result<()> {
    alarm::set(PATIENCE_S);
    become_user(NOBODY)?;
    let devices = (0..=USERS).map(|_| open_device()).collect::<io::Result<Vec<File>>>()?;
    let mut devices = devices.into_iter().zip(1..);
    unshare(CloneFlags::CLONE_NEWUSER)?;
    let mut tell = || -> io::Result<()> {
        telling.write_all(&[0])?;
        asked.read_exact(&mut [0])
    };
    tell()?;
    let mut kept = Vec::new();
    for (device, user) in devices.by_ref().take(USERS as usize) {
        create_as(user, &device, Ok(()))?;
        kept.push(device);
    }
    let (device, user) = devices.next().context("a descriptor for one too many")?;
    create_as(user, &device, Err(Refusal::ENOSPC))?;
    tell()?;
    drop(kept.pop());
    create_as(user, &device, Ok(())).context("one of the others has gone")
}

/// Makes a thread of this user ask for counters.
fn create_as(user: u32, device: &File, expected: Result<(), Refusal>) -> Result<()> {
    let uid = Uid::from_raw(user);
    let get = || {
        setresuid(uid, uid, uid)?;
        create(device, expected)
    };
    Child::fork(get)?.join().with_context(|| format!("user {user}"))
}

fn create(device: &File, expected: Result<(), Refusal>) -> Result<()> {
    let answer = device::create(device, 0);
    ensure!(answer == expected, "{answer:?} in place of {expected:?}");
    Ok(())
}
