// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests samples without signals: records that the guest's kernel writes into a thread's ring.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use perfctr::overflow::{Record, Records, Waited};
use perfctr::raw::Device;
use perfctr::{Error, Event, Provider, Session};
use shared_abi::ioctl::Create;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::version::ABI_MAJOR;
use vm_tests::frames::{Descent, loop_with_frame};
use vm_tests::region::FreshPages;
use vm_tests::rng::Rng;
use vm_tests::users::{Child, NOBODY, admit, become_user};

use crate::Test;

const INSTRUCTIONS: Event = Event::INSTRUCTIONS.user();
const BRANCHES: Event = Event::BRANCHES.user();
const PERIOD: u64 = 10_007;
/// A period that is too long to end.
const NEVER: u64 = 1 << 30;
const DESCENT: Descent = Descent { iterations: 15_000, depth: 24 };
/// The number of records in a page.
const ROOM: usize = 128;
const NOW: Duration = Duration::ZERO;
const PATIENCE: Duration = Duration::from_secs(30);
/// The most instructions between a start and what is executed after it.
const BEFORE_MAX: u64 = 4_000;

/// The tests of this module.
pub const TESTS: &[Test] = &[
    ("each record is where its period ends, with its callers", places),
    ("a ring that is full loses records, and no counts", full),
    ("each counter has its records", counters),
    ("counters that overflow together have their records", together),
    ("a ring can be polled, and ends with its thread", polled),
    ("a consumer may say what it likes", hostile_consumer),
    ("a frame pointer may be anything", hostile_frames),
    ("a child that was forked has no records", forked),
    ("rings are bounded for each user, and given back", bounded),
];

fn open(room: usize, callers: usize) -> Result<(Session, Records)> {
    let session = Session::open_with(Provider::Paravirt)?;
    let records = session.records(room, callers)?;
    Ok((session, records))
}

fn all(records: &mut Records) -> Result<Vec<Record>> {
    Ok(std::iter::from_fn(|| records.take().transpose()).collect::<Result<_, _>>()?)
}

/// Samples a descent. Returns what was counted from the start to the stop.
#[inline(never)]
fn descend(session: &mut Session, period: u64, descent: Descent) -> Result<u64> {
    session.start_recording(&[INSTRUCTIONS.every(period), INSTRUCTIONS])?;
    descent.execute();
    session.stop()?;
    let [sampling, beside] = session.read()?.counts;
    ensure!(sampling == beside, "{sampling} counted by what samples, {beside} beside it");
    Ok(sampling)
}

/// Does [`descend`] twice, since the first time allocates memory. It takes no samples, so the
/// number of instructions is known afterwards.
fn count_descent(session: &mut Session, descent: Descent) -> Result<u64> {
    descend(session, NEVER, descent)?;
    let count = descend(session, NEVER, descent)?;
    ensure!(count > descent.instructions(), "only {count} of {descent:?}");
    let more = Descent { iterations: descent.iterations + 100, ..descent };
    let difference = descend(session, NEVER, more)? - count;
    ensure!(difference == 200 * descent.depth, "{difference} more in {more:?}");
    Ok(count)
}

fn places() -> Result<()> {
    const CALLERS: usize = 16;
    let (mut session, mut records) = open(1_000, CALLERS)?;
    let quiet = count_descent(&mut session, DESCENT)?;
    let counted = descend(&mut session, PERIOD, DESCENT)?;
    ensure!(counted == quiet, "{counted} counted with samples, {quiet} without");
    let taken = all(&mut records)?;
    let expected = quiet / PERIOD;
    ensure!(taken.len() as u64 == expected, "{} records of {expected}", taken.len());
    ensure!(records.lost() == 0, "{} lost", records.lost());
    let mut tsc = 0;
    for (n, record) in (1..).zip(&taken) {
        ensure!(record.counter == 0 && record.count == n * PERIOD, "{record:?} is the {n}th");
        ensure!(record.tsc > tsc, "{record:?} comes after {tsc} ticks");
        tsc = record.tsc;
    }
    // If one number of instructions before the descent is right, it explains all records to the
    // instruction.
    let explained = (0..BEFORE_MAX).filter_map(|before| explain(&taken, before)).max();
    let explained = explained.context("no place explains the records")?;
    ensure!(explained as u64 >= expected - 1, "{explained} of {expected} records are explained");
    Ok(())
}

/// Returns how many records are in the descent, if this many instructions are executed before it.
/// Returns `None` if a record is not where it should be.
fn explain(taken: &[Record], before: u64) -> Option<usize> {
    let mut inside = 0;
    let mut outermost = None;
    for record in taken {
        let executed = record.count.checked_sub(before)?;
        if executed >= DESCENT.descending() {
            continue;
        }
        let at = DESCENT.at(executed);
        let returns = |address: &&u64| **address == Descent::return_address();
        let most = record.callers.len();
        let calls = record.callers.iter().take_while(returns).count();
        if record.ip != at.ip || calls != at.calls.min(16) || most > 16 {
            return None;
        }
        // The caller of the first function is the same each time.
        if let Some(&address) = record.callers.get(calls).filter(|_| at.framed)
            && *outermost.get_or_insert(address) != address
        {
            return None;
        }
        if calls < 16 && at.framed && most == calls {
            return None;
        }
        inside += 1;
    }
    Some(inside)
}

fn full() -> Result<()> {
    let (mut session, mut records) = open(1, 0)?;
    ensure!(records.room() == ROOM, "room for {}", records.room());
    let descent = Descent { iterations: 50_000, depth: 20 };
    let quiet = count_descent(&mut session, descent)?;
    let expected = (quiet / PERIOD) as usize;
    ensure!(expected > ROOM, "{expected} records fill no ring");
    for round in 1..=3 {
        let counted = descend(&mut session, PERIOD, descent)?;
        ensure!(counted == quiet, "{counted} counted with samples, {quiet} without");
        // The first round fills the ring, and half of it was taken before the second round.
        let lost = round * (expected - ROOM) as u64;
        ensure!(records.lost() == lost, "{} lost of {lost}", records.lost());
        let taken = all(&mut records)?;
        let counts = taken.iter().map(|record| record.count);
        let first = (1..=ROOM as u64).map(|n| n * PERIOD);
        ensure!(counts.eq(first), "the first {ROOM} are not what is there: {taken:?}");
    }
    Ok(())
}

fn counters() -> Result<()> {
    each_has_its_own([BRANCHES.every(7_001), INSTRUCTIONS.every(PERIOD)])
}

/// Checks counters of the same event and period, which overflow at the same instructions.
fn together() -> Result<()> {
    each_has_its_own([INSTRUCTIONS.every(PERIOD); 2])
}

fn each_has_its_own(events: [Event; 2]) -> Result<()> {
    let (mut session, mut records) = open(1_000, 0)?;
    session.start_recording(&events)?;
    DESCENT.execute();
    session.stop()?;
    // The counters continue where they stopped, and so do their periods.
    session.resume()?;
    DESCENT.execute();
    session.stop()?;
    let counts = session.read::<2>()?.counts;
    let taken = all(&mut records)?;
    for (counter, (count, event)) in counts.into_iter().zip(events).enumerate() {
        let period = event.period();
        let own = taken.iter().filter(|record| record.counter == counter);
        let expected = (1..=count / period).map(|n| n * period);
        let passed: Vec<u64> = own.map(|record| record.count).collect();
        ensure!(passed.iter().copied().eq(expected), "counter {counter}, {count}: {passed:?}");
    }
    Ok(())
}

fn polled() -> Result<()> {
    let (mut session, mut records) = open(ROOM, 0)?;
    let watermark = ROOM as u64 / 4;
    let quiet = Waited::default();
    let waited = records.wait(NOW)?;
    ensure!(waited == quiet, "{waited:?} of an empty ring");
    let one_less = Descent { iterations: ((watermark - 1) * PERIOD + PERIOD / 4) / 2, depth: 1 };
    descend(&mut session, PERIOD, one_less)?;
    let waited = records.wait(Duration::from_millis(100))?;
    ensure!(waited == quiet, "{waited:?} with one record too few");
    descend(&mut session, PERIOD, Descent { iterations: PERIOD * 3 / 4, depth: 1 })?;
    let waited = records.wait(NOW)?;
    ensure!(waited.ready && !waited.ended, "{waited:?} at the watermark");
    let taken = all(&mut records)?.len() as u64;
    ensure!(taken == watermark, "{taken} records");

    let woken = &AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(move || -> Result<(u64, u64)> {
            let start = Instant::now();
            let waited = records.wait(PATIENCE)?;
            woken.store(true, Ordering::Relaxed);
            // A wait that times out looks once more, and would then find the records.
            ensure!(start.elapsed() < PATIENCE, "nobody has woken the reader");
            ensure!(waited.ready, "{waited:?}");
            let mut taken = all(&mut records)?.len() as u64;
            ensure!(taken >= watermark, "woken after {taken} records");
            loop {
                let ended = records.wait(PATIENCE)?.ended;
                taken += all(&mut records)?.len() as u64;
                if ended {
                    return Ok((taken, records.lost()));
                }
            }
        });
        // This lets the reader sleep.
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        session.start_recording(&[INSTRUCTIONS.every(PERIOD)])?;
        while !woken.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
            Descent { iterations: 1_000, depth: 1 }.execute();
        }
        session.stop()?;
        let [count] = session.read::<1>()?.counts;
        drop(session);
        let (taken, lost) = reader.join().expect("it does not panic")?;
        let expected = count / PERIOD;
        ensure!(taken + lost == expected, "{taken} taken and {lost} lost of {expected}");
        Ok(())
    })
}

fn hostile_consumer() -> Result<()> {
    let (mut session, _records) = open(1, 0)?;
    let quiet = count_descent(&mut session, DESCENT)?;
    let device = Device::open()?;
    device.open_existing(&Create { abi_major: ABI_MAJOR.into(), ..Create::default() })?;
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        let hostile = scope.spawn(move || {
            let mut rng = Rng::new(7, 0);
            let mut accepted = 0_u64;
            while !done.load(Ordering::Relaxed) {
                let any = rng.between(0, u64::MAX - 1);
                for taken in [any, any % 4_096, 1 << (any % 64), u64::MAX << (any % 64)] {
                    accepted += u64::from(device.ring_take(taken).is_ok());
                }
            }
            accepted
        });
        let made = |session: &Session| {
            let page = session.thread_page().expect("not forked");
            page.ring_written.load(Relaxed) + page.ring_lost.load(Relaxed)
        };
        let outcome = (0..20).try_for_each(|_| {
            let before = made(&session);
            let counted = descend(&mut session, PERIOD, DESCENT)?;
            ensure!(counted == quiet, "{counted} counted, {quiet} expected");
            let records = made(&session) - before;
            ensure!(records == quiet / PERIOD, "{records} records of {}", quiet / PERIOD);
            Ok(())
        });
        done.store(true, Ordering::Relaxed);
        let accepted = hostile.join().expect("it does not panic");
        outcome?;
        ensure!(accepted > 0, "nothing that it said was ever possible");
        Ok(())
    })
}

fn hostile_frames() -> Result<()> {
    let (mut session, mut records) = open(1_000, 8)?;
    let mut fresh = FreshPages::new()?;
    let fresh = fresh.take(1)?.as_ptr() as u64;
    // One chain of frames ends, one goes back to its start, and one ends at an address without
    // memory.
    let mut words = [0_u64; 8];
    let at = |n: usize, words: &[u64; 8]| &raw const words[n] as u64;
    let here: Vec<u64> = (0..8).map(|n| at(n, &words)).collect();
    words.copy_from_slice(&[here[2], 0xa, here[4], 0xb, 0, 0xc, here[2], 0xd]);
    let words = std::hint::black_box(&words);
    ensure!(at(0, words) == here[0], "the words have moved");
    // The address is one byte further, so that each word consists of parts of two.
    let odd = words[6] >> 8 | words[7] << 56;
    let cases: [(&str, u64, &[u64]); 12] = [
        ("nothing", 0, &[]),
        ("no memory", 0x1000, &[]),
        ("memory that was never touched", fresh, &[]),
        ("the kernel's memory", 0xffff_8880_0000_1000, &[]),
        ("the hypervisor's memory", 0xffff_82d0_4000_0000, &[]),
        ("no canonical address", 0x0080_0000_0000_0000, &[]),
        ("the end of what a user has", 0x7fff_ffff_eff8, &[]),
        ("the last byte", u64::MAX, &[]),
        ("the last words", u64::MAX - 15, &[]),
        ("a chain", here[0], &[0xa, 0xb, 0xc]),
        ("a chain that goes back", here[6], &[0xd]),
        ("an odd address", here[5] + 1, &[odd]),
    ];
    let mut quiet = None;
    for (name, frame, callers) in cases {
        session.start_recording(&[INSTRUCTIONS.every(PERIOD)])?;
        loop_with_frame(10 * PERIOD, frame);
        session.stop()?;
        let [count] = session.read::<1>()?.counts;
        let taken = all(&mut records)?;
        ensure!(taken.len() as u64 == count / PERIOD, "{name}: {} of {count}", taken.len());
        // The frame pointer has this value in the loop only.
        let wrong = taken.iter().find(|record| record.callers != callers);
        ensure!(wrong.is_none(), "{name}: {wrong:x?}");
        // The first start had no earlier counters to forget.
        if name != "nothing" {
            let quiet = *quiet.get_or_insert(count);
            ensure!(count == quiet, "{name}: {count} counted, {quiet} before");
        }
    }
    Ok(())
}

fn forked() -> Result<()> {
    let (mut session, mut records) = open(ROOM, 0)?;
    descend(&mut session, PERIOD, DESCENT)?;
    let refused = |answer| matches!(answer, Err(Error::Forked));
    Child::fork(|| {
        ensure!(refused(records.take().map(drop)), "a child takes its parent's records");
        ensure!(refused(records.wait(NOW).map(drop)), "a child waits for its parent's records");
        ensure!(records.lost() == 0, "a child has lost records");
        drop((session.records(1, 0).map(drop), Session::open()?));
        Ok(())
    })?
    .join()?;
    ensure!(!all(&mut records)?.is_empty(), "there are no records");
    Ok(())
}

/// Checks the bounds for an unprivileged user, who may lock two rings' pages.
fn bounded() -> Result<()> {
    const PAGES: usize = 16;
    const ERROR: &str = "No space left on device";
    admit(0o666)?;
    Child::fork(|| {
        let bytes = (2 * PAGES * 4096) as u64;
        nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK, bytes, bytes)?;
        become_user(NOBODY)?;
        for _ in 0..200 {
            let first = open(PAGES * ROOM, 0)?;
            thread::scope(|scope| {
                let other = scope.spawn(|| -> Result<()> {
                    let (session, records) = open(PAGES * ROOM, 0)?;
                    // The ring that is closed in between is still mapped.
                    drop(session);
                    let third = Session::open_with(Provider::Paravirt)?;
                    let error = third.records(1, 0).map(drop).unwrap_err().to_string();
                    ensure!(error.contains(ERROR), "a third ring: {error}");
                    drop(records);
                    third.records(1, 0)?;
                    Ok(())
                });
                other.join().expect("it does not panic")
            })?;
            drop(first);
        }
        Ok(())
    })?
    .join()
}
