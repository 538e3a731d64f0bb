// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts what single functions of a program execute, with all that they call.
//!
//! The tracer stops a thread before the function's first instruction, and again before the
//! instruction to which the function returns. The difference of the two counts is what the call has
//! executed. The stops are the CPU's own (debug registers, SDM volume 3, chapter "Debug, Branch
//! Profile, TSC"), so the program's code stays as it is, and executes nothing more.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use libc::{c_int, pid_t};
use perfctr::Event;
use perfctr::watch::{Watch, Watched};

use crate::elf;
use crate::live::{How, watch};
use crate::program::ptrace::{self, BREAKPOINTS, unless_killed};
use crate::program::tracer::{self, Followed, Observer};
use crate::program::{Signals, Target};
use crate::text::counted;

/// The most functions that can be counted in one run: each needs a debug register.
pub const FUNCTIONS_MAX: usize = BREAKPOINTS;

/// Runs a program, and returns its exit status and what each of these functions has executed in all
/// its threads and processes: for each function the count of each event.
///
/// # Errors
///
/// No program that was executed has such a function, or one of its calls did not return.
pub fn run(
    target: Target<'_>,
    events: &[Event],
    functions: &[String],
    signals: &Signals,
) -> Result<(u8, Vec<Vec<u64>>)> {
    let called = functions.iter().map(|name| Function::new(name, events.len())).collect();
    let mut calls = Calls { events, functions: called };
    let Followed { status, unobserved, .. } = tracer::run(target, &mut calls, signals)?;
    ensure!(
        unobserved == 0,
        "{} could not be observed, so the functions' counts are not known",
        counted(unobserved.into(), "thread")
    );
    Ok((status, calls.finish()?))
}

/// A function whose calls are counted.
struct Function {
    name: String,
    /// Whether a program that was executed has it.
    exists: bool,
    /// The calls that have returned, and those of threads that have ended before.
    returned: u64,
    unfinished: u64,
    /// What the calls that have returned have executed, by event.
    counts: Vec<u64>,
}

impl Function {
    fn new(name: &str, events: usize) -> Self {
        let counts = vec![0; events];
        Self { name: name.to_owned(), exists: false, returned: 0, unfinished: 0, counts }
    }
}

/// The functions, and the events that are counted.
struct Calls<'a> {
    events: &'a [Event],
    functions: Vec<Function>,
}

/// A thread that executes functions, or may.
struct Thread {
    watched: Watched,
    /// What it does in each function.
    places: Vec<Place>,
}

/// What a thread does in a function.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Its program does not have the function.
    Nowhere,
    /// It is outside of the function, which begins here.
    Outside(u64),
    /// It is in a call.
    Inside(Call),
}

/// A call of a function that began at `entry`. It has returned when the thread is about to execute
/// the instruction at `to` with this stack pointer. Calls within it belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    entry: u64,
    to: u64,
    stack: u64,
    /// The events' counts when it began.
    before: Vec<u64>,
}

impl Place {
    /// Returns the address of the next instruction before which the thread has to stop.
    const fn stop(&self) -> Option<u64> {
        match self {
            Self::Nowhere => None,
            Self::Outside(entry) => Some(*entry),
            Self::Inside(call) => Some(call.to),
        }
    }
}

impl Thread {
    /// Makes the stopped thread stop where one of the functions begins or returns.
    fn arm(&self, pid: pid_t) -> Result<()> {
        let stops: Vec<Option<u64>> = self.places.iter().map(Place::stop).collect();
        let armed = unless_killed(ptrace::break_at(pid, &stops));
        armed.context("the CPU's breakpoints cannot be set").map(drop)
    }

    /// Returns the count of each event.
    fn counts(&self) -> Result<Vec<u64>> {
        let totals = self.watched.read()?;
        let always = totals.values().iter().all(|total| total.share() == 1.0);
        ensure!(
            always,
            "there are not enough counters for all events, and estimates prove nothing"
        );
        Ok(totals.values().iter().map(|total| total.count).collect())
    }
}

impl Calls<'_> {
    fn finish(self) -> Result<Vec<Vec<u64>>> {
        for Function { name, exists, returned, unfinished, .. } in &self.functions {
            ensure!(
                exists,
                "no program that was executed has a function {name:?} (one that is inlined \
                 everywhere, or is in a shared library, is not found)"
            );
            ensure!(
                *unfinished == 0,
                "{} of {name:?} did not return, so its count is not known; {} did",
                counted(*unfinished, "call"),
                counted(*returned, "call")
            );
        }
        Ok(self.functions.into_iter().map(|function| function.counts).collect())
    }

    /// Returns where the stopped thread's program has each function.
    fn places(&mut self, pid: pid_t) -> Result<Vec<Place>> {
        let of = |file: &str| format!("/proc/{pid}/{file}");
        let program = unless_killed(fs::read(of("exe")))?;
        let auxiliary = unless_killed(fs::read(of("auxv")))?;
        let (Some(program), Some(auxiliary)) = (program, auxiliary) else {
            return Ok(vec![Place::Nowhere; self.functions.len()]);
        };
        let path = || fs::read_link(of("exe")).unwrap_or_default().display().to_string();
        let names: Vec<&str> = self.functions.iter().map(|function| &*function.name).collect();
        let found = elf::functions(&program, &names).with_context(path)?;
        // The kernel says where the entry point is, and the file states its address.
        let entry = entry_point(&auxiliary).context("a program without an entry point")?;
        let place = |(function, address): (&mut Function, &Option<u64>)| {
            let Some(address) = address else { return Place::Nowhere };
            function.exists = true;
            Place::Outside(entry.wrapping_add(address.wrapping_sub(found.entry)))
        };
        Ok(self.functions.iter_mut().zip(&found.addresses).map(place).collect())
    }

    /// Notes the calls that a thread has not finished.
    fn leave(&mut self, thread: &Thread) {
        for (function, place) in self.functions.iter_mut().zip(&thread.places) {
            function.unfinished += u64::from(matches!(place, Place::Inside(_)));
        }
    }

    /// Handles a thread that has stopped where a function begins or returns.
    fn stopped(&mut self, pid: pid_t, thread: &mut Thread) -> Result<()> {
        let Some(registers) = unless_killed(ptrace::registers(pid))? else { return Ok(()) };
        let now = thread.counts()?;
        for (function, place) in self.functions.iter_mut().zip(&mut thread.places) {
            match place {
                Place::Outside(entry) if *entry == registers.rip => {
                    let Some(to) = unless_killed(word(pid, registers.rsp))? else { return Ok(()) };
                    let (entry, before) = (*entry, now.clone());
                    // The return takes its address off the stack.
                    let stack = registers.rsp.wrapping_add(8);
                    *place = Place::Inside(Call { entry, to, stack, before });
                }
                // A recursive call may return to the same instruction, with more on the stack.
                Place::Inside(call) if call.to == registers.rip && call.stack == registers.rsp => {
                    for ((sum, now), before) in
                        function.counts.iter_mut().zip(&now).zip(&call.before)
                    {
                        *sum += now - before;
                    }
                    function.returned += 1;
                    *place = Place::Outside(call.entry);
                }
                _ => {}
            }
        }
        thread.arm(pid)
    }
}

impl Observer for Calls<'_> {
    type Given = Thread;

    fn give(&mut self, pid: pid_t) -> Result<Option<Thread>> {
        let watched = Watch::thread(pid.cast_unsigned());
        let watched = match watch(watched, How::Together, self.events).open() {
            Ok(watched) => watched,
            Err(error) if error.errno() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("thread {pid}")),
        };
        let thread = Thread { watched, places: self.places(pid)? };
        thread.arm(pid)?;
        Ok(Some(thread))
    }

    fn keeps(&mut self, pid: pid_t, thread: &mut Thread) -> Result<bool> {
        self.leave(thread);
        thread.places = self.places(pid)?;
        thread.arm(pid)?;
        Ok(true)
    }

    fn signal(&mut self, pid: pid_t, thread: &mut Thread, signal: c_int) -> Result<c_int> {
        if signal != libc::SIGTRAP {
            return Ok(signal);
        }
        match unless_killed(ptrace::signal_information(pid))? {
            Some(information) if information.si_code == libc::TRAP_HWBKPT => {
                self.stopped(pid, thread)?;
                Ok(0)
            }
            _ => Ok(signal),
        }
    }

    fn ended(&mut self, _: pid_t, thread: Thread) -> Result<()> {
        self.leave(&thread);
        Ok(())
    }
}

/// Returns the word at this address of a stopped thread's memory.
fn word(pid: pid_t, address: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, address)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Returns the address at which a program begins, by its auxiliary vector (`getauxval(3)`).
fn entry_point(auxiliary: &[u8]) -> Option<u64> {
    let number = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let mut pairs = auxiliary.chunks_exact(16).map(|pair| (number(&pair[..8]), number(&pair[8..])));
    pairs.find_map(|(key, value)| value.filter(|_| key == Some(libc::AT_ENTRY)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_point_is_found_among_other_values() {
        let words = [(6, 4096), (libc::AT_ENTRY, 0x5555_0000_1040), (libc::AT_UID, 9), (0, 0)];
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|&(key, value)| [key, value])
            .flat_map(u64::to_ne_bytes)
            .collect();
        assert_eq!(entry_point(&bytes), Some(0x5555_0000_1040));
        assert_eq!(entry_point(&bytes[..16]), None);
    }
}
