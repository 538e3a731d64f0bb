// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts what single functions of a program execute, with all that they call.
//!
//! The tracer stops a thread before the function's first instruction, and again before the
//! instruction to which the function returns. The difference of the two counts is what the call has
//! executed. The CPU's debug registers make the stops (SDM volume 3, chapter "Debug, Branch
//! Profile, TSC"), so the program's code is not changed and executes nothing more.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use libc::{c_int, pid_t};
use perfctr::Event;
use perfctr::watch::{Total, Watch, Watched};

use super::always_counted;
use crate::elf;
use crate::live::{How, watch};
use crate::program::ptrace::{self, BREAKPOINTS, unless_killed};
use crate::program::tracer::{self, Followed, Observer};
use crate::program::{Signals, Target};
use crate::text::counted;

/// The most functions that can be counted in one run: each needs two debug registers.
pub const FUNCTIONS_MAX: usize = BREAKPOINTS / 2;

/// Runs a program, and counts these functions in all of its threads and processes. Returns the
/// program's exit status, and for each function the count of each event, summed over its calls.
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
    /// The calls that have returned.
    returned: u64,
    /// The calls that have not returned, and will not: they were left in another way, or their
    /// threads have ended.
    abandoned: u64,
    /// What the calls that have returned have executed, by event.
    counts: Vec<u64>,
}

impl Function {
    fn new(name: &str, events: usize) -> Self {
        let counts = vec![0; events];
        Self { name: name.to_owned(), exists: false, returned: 0, abandoned: 0, counts }
    }

    /// Notes that a thread has stopped. Until then it had counted `now`, by event.
    fn stopped(&mut self, place: &mut Place, stop: Stop, now: &[u64]) {
        // The return takes its address off the stack.
        let begun = |entry| {
            let stack = stop.stack.wrapping_add(8);
            Place::Inside(Call { entry, returns_to: stop.word, stack, before: now.to_vec() })
        };
        match place {
            Place::Outside(entry) if *entry == stop.instruction => *place = begun(*entry),
            // A recursive call has more on the stack than the first one. If it has not, the first
            // one was left without a return.
            Place::Inside(call)
                if call.entry == stop.instruction && stop.stack.wrapping_add(8) >= call.stack =>
            {
                self.abandoned += 1;
                *place = begun(call.entry);
            }
            // A recursive call may return to the same instruction, with more on the stack.
            Place::Inside(call)
                if (call.returns_to, call.stack) == (stop.instruction, stop.stack) =>
            {
                for ((sum, now), before) in self.counts.iter_mut().zip(now).zip(&call.before) {
                    *sum += now - before;
                }
                self.returned += 1;
                *place = Place::Outside(call.entry);
            }
            _ => {}
        }
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

/// Where a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stop {
    /// The address of its next instruction.
    instruction: u64,
    /// Its stack pointer.
    stack: u64,
    /// The word at the stack pointer. Where a function begins, this is the address of the
    /// instruction to which it returns.
    word: u64,
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

/// A call of a function. The calls that the function makes belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    /// The address at which the function begins.
    entry: u64,
    /// The address of the instruction to which the call returns.
    returns_to: u64,
    /// The stack pointer when the call has returned.
    stack: u64,
    /// The events' counts when it began.
    before: Vec<u64>,
}

impl Place {
    /// Returns the addresses of the instructions before which the thread has to stop.
    const fn stops(&self) -> [Option<u64>; 2] {
        match self {
            Self::Nowhere => [None, None],
            Self::Outside(entry) => [Some(*entry), None],
            Self::Inside(call) => [Some(call.entry), Some(call.returns_to)],
        }
    }
}

impl Thread {
    /// Makes the stopped thread stop where one of the functions begins or returns.
    fn arm(&self, pid: pid_t) -> Result<()> {
        let stops: Vec<Option<u64>> = self.places.iter().flat_map(Place::stops).collect();
        let armed = unless_killed(ptrace::break_at(pid, &stops));
        armed.context("the CPU's breakpoints cannot be set").map(drop)
    }

    /// Returns the count of each event.
    fn counts(&self) -> Result<Vec<u64>> {
        let totals = self.watched.read()?;
        always_counted(totals.values().iter().map(Total::share))?;
        Ok(totals.values().iter().map(|total| total.count).collect())
    }
}

impl Calls<'_> {
    fn finish(self) -> Result<Vec<Vec<u64>>> {
        for Function { name, exists, returned, abandoned, .. } in &self.functions {
            ensure!(
                exists,
                "no program that was executed has a function {name:?} (one that is inlined \
                 everywhere, or is in a shared library, is not found)"
            );
            ensure!(
                *abandoned == 0,
                "{} of {name:?} did not return, so its count is not known; {} did",
                counted(*abandoned, "call"),
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
            function.abandoned += u64::from(matches!(place, Place::Inside(_)));
        }
    }

    /// Handles a thread that has stopped where a function begins or returns.
    fn stopped(&mut self, pid: pid_t, thread: &mut Thread) -> Result<()> {
        let Some(registers) = unless_killed(ptrace::registers(pid))? else { return Ok(()) };
        let Some(word) = unless_killed(word_at(pid, registers.rsp))? else { return Ok(()) };
        let stop = Stop { instruction: registers.rip, stack: registers.rsp, word };
        let now = thread.counts()?;
        for (function, place) in self.functions.iter_mut().zip(&mut thread.places) {
            function.stopped(place, stop, &now);
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
fn word_at(pid: pid_t, address: u64) -> io::Result<u64> {
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

    /// A thread whose stack begins at 0x1000. The function is at 7, and returns to 70 or 80.
    fn at(instruction: u64, stack: u64, word: u64) -> Stop {
        Stop { instruction, stack, word }
    }

    /// Returns what a function has counted, and how many of its calls have returned and have not.
    fn after(stops: &[(Stop, u64)]) -> (u64, u64, u64) {
        let (mut function, mut place) = (Function::new("f", 1), Place::Outside(7));
        for &(stop, now) in stops {
            function.stopped(&mut place, stop, &[now]);
        }
        function.abandoned += u64::from(matches!(place, Place::Inside(_)));
        (function.counts[0], function.returned, function.abandoned)
    }

    #[test]
    fn calls_are_added_up() {
        let first = [(at(7, 0xff0, 70), 100), (at(70, 0xff8, 0), 130)];
        assert_eq!(after(&first), (30, 1, 0));
        let second = [(at(7, 0xfe0, 80), 1_000), (at(80, 0xfe8, 0), 1_005)];
        assert_eq!(after(&[first, second].concat()), (35, 2, 0));
        assert_eq!(after(&[]), (0, 0, 0), "a function that is never called");
    }

    #[test]
    fn a_recursive_call_belongs_to_the_first_one() {
        // The function calls itself twice, from one place, to which the first call returns as well.
        let stops = [
            (at(7, 0xff0, 70), 100),
            (at(7, 0xfd0, 70), 110),
            (at(7, 0xfb0, 70), 120),
            (at(70, 0xfb8, 0), 125),
            (at(70, 0xfd8, 0), 131),
            (at(70, 0xff8, 0), 144),
        ];
        assert_eq!(after(&stops), (44, 1, 0));
        assert_eq!(after(&stops[..5]), (0, 0, 1), "the first call has not returned");
    }

    #[test]
    fn a_call_that_is_left_without_a_return_is_noticed_at_the_next_one() {
        // The second call is from the same place, and would hide that the first one was left.
        let (first, second) = ((at(7, 0xff0, 70), 100), (at(7, 0xff0, 70), 500));
        let returned = (at(70, 0xff8, 0), 510);
        assert_eq!(after(&[first, second, returned]), (10, 1, 1));
        let from_above = (at(7, 0xff8, 80), 500);
        assert_eq!(after(&[first, from_above, (at(80, 0x1000, 0), 520)]), (20, 1, 1));
    }

    #[test]
    fn a_thread_stops_where_a_function_begins_and_where_its_call_returns() {
        let mut place = Place::Outside(7);
        assert_eq!(place.stops(), [Some(7), None]);
        Function::new("f", 1).stopped(&mut place, at(7, 0xff0, 70), &[1]);
        assert_eq!(place.stops(), [Some(7), Some(70)]);
        assert_eq!(Place::Nowhere.stops(), [None, None]);
    }

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
