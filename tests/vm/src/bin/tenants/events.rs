// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests perf's events in a tenant that is saved and restored, and that may not count for a while.
//!
//! If an event has not counted all the time, perf says so. If perf says that it has, the event has
//! counted everything.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context, Result, ensure};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use serde_json::{Value, json};
use vm_tests::perf::{Event, Whose, generic};
use vm_tests::region::Region;
use vm_tests::tally::Tally;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::toolstack::{Tenant, send};

/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `..._RUNNING`.
const ENABLED_AND_RUNNING: u64 = 3;
/// A region that takes a fraction of a second.
const REGION: Region = Region { first: 10_000_000, second: 1 };
const SHORTEST: Region = Region { first: 1, second: 1 };
/// The number of regions that are counted after the host has allowed it again, and the most regions
/// until then.
const AGAIN: usize = 5;
const PATIENCE: usize = 1_000;

/// Counts in the tenant with a CPU's event and a thread's, each on a CPU of its own.
pub fn watch() -> Result<()> {
    let cpus = cpus()?;
    // This thread does not execute on the CPU of the CPU's event.
    run_on(SELF, &cpus[1..])?;
    let (sender, seen) = channel();
    thread::scope(|scope| {
        let watchers: Vec<_> = [true, false]
            .into_iter()
            .zip(&cpus)
            .map(|(is_wide, &cpu)| {
                let sender = sender.clone();
                scope.spawn(move || one(cpu, is_wide, &sender))
            })
            .collect();
        drop(sender);
        // These are the results of both when the tenant is forbidden to count, and when it is
        // allowed again.
        let both = || -> Result<Value> {
            let mut both = [seen.recv()?, seen.recv()?];
            both.sort_by_key(|one| one["whose"].to_string());
            Ok(json!(both))
        };
        let answer = both().and_then(|forbidden| {
            send(&forbidden);
            both()
        });
        watchers.into_iter().try_for_each(|one| one.join().expect("no thread panics"))?;
        send(&answer?);
        Ok(run_on(SELF, &cpus)?)
    })
}

/// The reading of an event for a region: how much it has counted, for how many ns it was enabled,
/// and for how many of them it has counted.
#[derive(Debug)]
struct Reading {
    counted: u64,
    enabled: u64,
    running: u64,
}

#[inline(never)]
fn count(event: &Event, region: Region) -> Result<Reading> {
    let before: [u64; 3] = event.read()?;
    region.execute(&mut 0);
    let after: [u64; 3] = event.read()?;
    let [counted, enabled, running] = [0, 1, 2].map(|n| after[n].wrapping_sub(before[n]));
    Ok(Reading { counted, enabled, running })
}

/// Counts until the host forbids it, and again when the host allows it.
fn one(cpu: usize, is_wide: bool, seen: &Sender<Value>) -> Result<()> {
    run_on(SELF, &[cpu])?;
    let mut instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    instructions.read_format = ENABLED_AND_RUNNING;
    let whose = if is_wide { Whose::Cpu(cpu) } else { Whose::Thread(SELF) };
    let event = Event::open(instructions, whose, None)?;
    let [_, shortest] = [count(&event, SHORTEST)?, count(&event, SHORTEST)?];
    let all = shortest.counted + REGION.instructions() - SHORTEST.instructions();
    let exact = |reading: &Reading| reading.counted == all && reading.running == reading.enabled;
    let mut regions = 0;
    let last = loop {
        let reading = count(&event, REGION)?;
        if !exact(&reading) {
            break reading;
        }
        regions += 1;
    };
    let still = count(&event, REGION)?;
    let whose = if is_wide { "CPU" } else { "thread" };
    // The host may have forbidden the tenant in the second reading, when everything was counted.
    let is_part = last.counted <= all && last.running < last.enabled;
    let is_still = still.counted == 0 && still.running == 0 && still.enabled > 0;
    seen.send(json!({
        "whose": whose, "regions": regions, "all": all,
        "last": format!("{last:?}"), "is_part": is_part,
        "still": format!("{still:?}"), "is_still": is_still,
    }))?;
    let mut tries = 0..PATIENCE;
    let begins = tries.find_map(|_| match count(&event, REGION) {
        Ok(reading) if reading.running == 0 => None,
        reading => Some(reading),
    });
    begins.context("it does not count again")??;
    for _ in 0..AGAIN {
        let reading = count(&event, REGION)?;
        ensure!(exact(&reading), "{reading:?} of {all}, of a {whose}");
    }
    seen.send(json!({ "whose": whose }))?;
    Ok(())
}

/// Judges, in the control domain, the events' results while the tenant was forbidden to count.
pub fn forbidden(tally: &mut Tally, tenant: &mut Tenant) -> Result<()> {
    for seen in tenant.receive()?.as_array().context("both of them")? {
        println!("perf's event of a {}: {seen:#}", seen["whose"]);
        let check = |is| if seen[is] == true { Ok(()) } else { Err(seen.to_string()) };
        let name = format!("perf's event of a {} that is forbidden", seen["whose"]);
        tally.check(&format!("{name} says that it has not counted all the time"), check("is_part"));
        tally.check(&format!("{name} says that it does not count"), check("is_still"));
    }
    Ok(())
}

/// Judges the events' results after the tenant was allowed to count again.
pub fn allowed(tally: &mut Tally, tenant: &mut Tenant) -> Result<()> {
    let reply = tenant.receive()?;
    let is_right = reply.as_array().is_some_and(|both| both.len() == 2);
    let outcome = if is_right { Ok(()) } else { Err(reply.to_string()) };
    tally.check("perf's events count exactly again when it is allowed", outcome);
    Ok(())
}
