// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs in a domain that counts.

use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use perfctr::{Event, PhysSlot};
use serde_json::{Value, json};
use vm_tests::module;
use vm_tests::programs::{self, Attached, Running};
use vm_tests::toolstack::{live, receive, send};

/// Executes requests until the domain is destroyed.
pub fn run() -> Result<ExitCode> {
    live(|| {
        programs::prepare()?;
        module::load()?;
        serve()
    })
}

fn serve() -> Result<()> {
    send(&json!("ready"));
    loop {
        send(&count(&receive()?)?);
    }
}

/// Runs the commands with counters of these events, one after the other or at once.
fn count(request: &Value) -> Result<Value> {
    let list = |key: &str| request[key].as_array().with_context(|| format!("no {key}"));
    let text = |value: &Value| value.as_str().map(str::to_owned).context("no text");
    let commands: Vec<String> = list("commands")?.iter().map(text).collect::<Result<_>>()?;
    let events: Vec<Event> = list("events")?.iter().map(event).collect::<Result<_>>()?;
    let running = &Running::default();
    let one =
        |command: &String| programs::count(command, |pid| Attached::attach(pid, &events), running);
    let counts: Result<Vec<Vec<u64>>> = if request["at_once"] == true {
        thread::scope(|scope| {
            let one = &one;
            let threads: Vec<_> =
                commands.iter().map(|command| scope.spawn(move || one(command))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        })
    } else {
        commands.iter().map(one).collect()
    };
    let preempted = getrusage(UsageWho::RUSAGE_CHILDREN)?.involuntary_context_switches();
    Ok(json!({ "counts": counts?, "preempted": preempted }))
}

/// Returns the event for a pair of an event's name and the number of its counter.
fn event(pair: &Value) -> Result<Event> {
    let name = pair[0].as_str().context("an event without a name")?;
    let number = pair[1].as_u64().context("an event without a counter")?;
    let slot = PhysSlot::general(number as u32).context("no such counter")?;
    Ok(name.parse::<Event>()?.on(slot))
}
