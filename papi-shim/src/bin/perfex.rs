// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The command `perfex`, which counts what a program does.
//!
//! The counters are created by the child that is going to execute the program, through a descriptor
//! that it inherits. The parent keeps the same descriptor and reads the final sums from it when the
//! program has ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use perfctr::raw::Device;
use shared_abi::ioctl::{CONTROL_TSC, Control, Sums};
use shared_abi::{CounterConfig, PhysSlot};

const USAGE: &str = "\
usage: perfex [-e EVNTSEL[@PMC]]... [-o FILE] COMMAND [ARGUMENT]...
       perfex -i | -l | -h

Counts what COMMAND does, and the time-stamp counter's ticks while it executes.

  -e EVNTSEL[@PMC]  an event select word, such as 0x4100c0, and RDPMC's index of the counter;
                    without it the first counter that is free
  -o FILE           write the counts there instead of the standard error
  -i                say what the machine has
  -l                list the events that are known by name
  -h                print this
";

/// The options of the command line.
#[derive(Debug, Default)]
struct Options {
    events: Vec<(u64, u32)>,
    output: Option<OsString>,
    command: Vec<OsString>,
}

/// Parses an event select with an optional counter. Numbers are decimal, or hexadecimal with `0x`.
fn event(text: &str, used: &[(u64, u32)]) -> Result<(u64, u32), String> {
    let number = |text: &str| {
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| format!("{text} is not a number"))
    };
    match text.split_once('@') {
        Some((evntsel, pmc)) => {
            let pmc = u32::try_from(number(pmc)?).map_err(|_| format!("no counter {pmc}"))?;
            Ok((number(evntsel)?, pmc))
        }
        None => {
            let free = (0..).find(|pmc| used.iter().all(|(_, other)| other != pmc));
            Ok((number(text)?, free.unwrap_or_default()))
        }
    }
}

fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{} needs a value", word.display()));
        match word.to_str() {
            Some("-e") => {
                let text = value()?.into_string().map_err(|_| "an event is a number")?;
                let parsed = event(&text, &options.events)?;
                options.events.push(parsed);
            }
            Some("-o") => options.output = Some(value()?),
            Some("--") => options.command.extend(words.by_ref()),
            Some(other) if other.starts_with('-') => return Err(format!("unknown option {other}")),
            _ => {
                options.command.push(word);
                options.command.extend(words.by_ref());
            }
        }
    }
    if options.command.is_empty() { Err("no command".to_owned()) } else { Ok(options) }
}

fn control(events: &[(u64, u32)]) -> Result<Control, String> {
    let mut control =
        Control { flags: CONTROL_TSC, counters: events.len() as u32, ..Control::default() };
    let places = control.counter.get_mut(..events.len()).ok_or("too many events")?;
    for (place, (evntsel, pmc)) in places.iter_mut().zip(events) {
        let slot = PhysSlot::from_counter_index(*pmc).ok_or(format!("no counter {pmc}"))?;
        let slot = slot.index() as u32;
        *place = CounterConfig { slot, evntsel: *evntsel, ..CounterConfig::default() };
    }
    Ok(control)
}

/// Runs the command. Returns its status and the final sums.
#[expect(unsafe_code, reason = "what a child does before it executes another program is limited")]
fn measure(options: &Options) -> Result<(ExitCode, Sums), String> {
    let control = control(&options.events)?;
    let device = Device::open().map_err(|error| format!("{}: {error}", Device::PATH))?;
    let device = Arc::new(device);
    let child_device = device.clone();
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            child_device.create_for(0)?;
            child_device.control(&control)
        });
    }
    let status =
        command.status().map_err(|error| format!("{}: {error}", options.command[0].display()))?;
    let sums = device.sums().map_err(|error| format!("cannot read the counts: {error}"))?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    Ok((ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)), sums))
}

fn report(options: &Options, sums: &Sums) -> io::Result<()> {
    let mut out: Box<dyn Write> = match &options.output {
        Some(path) => Box::new(File::create(path)?),
        None => Box::new(io::stderr()),
    };
    writeln!(out, "tsc\t\t\t{}", sums.tsc)?;
    for ((evntsel, pmc), sum) in options.events.iter().zip(sums.counter) {
        writeln!(out, "event {evntsel:#010x}@{pmc:#x}\t{sum}")?;
    }
    Ok(())
}

fn run(words: Vec<OsString>) -> Result<ExitCode, String> {
    match words.first().and_then(|word| word.to_str()) {
        Some("-h" | "--help") => print!("{USAGE}"),
        Some("-i") => print!("{}", perfctr_c::machine().map_err(|error| error.to_string())?),
        Some("-l") => print!("{}", perfctr_c::events().map_err(|error| error.to_string())?),
        _ => {
            let options = parse(words.into_iter()).map_err(|error| format!("{error}\n{USAGE}"))?;
            let (status, sums) = measure(&options)?;
            report(&options, &sums).map_err(|error| error.to_string())?;
            return Ok(status);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    run(std::env::args_os().skip(1).collect()).unwrap_or_else(|error| {
        eprintln!("perfex: {error}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = OsString> {
        line.split(' ').map(OsString::from)
    }

    #[test]
    fn events_take_the_first_free_counter() {
        let options = parse(words("-e 0x4100c0@1 -e 0x41003c -e 4260032 ls -e")).unwrap();
        assert_eq!(options.events, [(0x4100c0, 1), (0x41003c, 0), (4_260_032, 2)]);
        assert_eq!(options.command, ["ls", "-e"]);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["-e x ls", "-e", "-e 0x4100c0", "-z ls", "-e 1@4294967296 ls"] {
            assert!(parse(words(line)).is_err(), "{line}");
        }
        assert!(control(&[(0x4100c0, 99)]).is_err());
    }

    #[test]
    fn a_counter_is_named_by_the_index_of_rdpmc() {
        // Bit 30 selects the fixed counters.
        let first_fixed = 1 << 30;
        let slots = control(&[(0x4100c0, first_fixed + 1), (0x4100c0, 3)]).unwrap().counter;
        let fixed = PhysSlot::from_counter_index(first_fixed).unwrap().index() as u32;
        assert_eq!([slots[0].slot, slots[1].slot], [fixed + 1, 3]);
        assert!(fixed > 3 && control(&[(0x4100c0, fixed)]).is_err(), "no index of RDPMC");
    }

    #[test]
    fn the_time_is_counted_beside_the_events() {
        for events in [&[][..], &[(0x4100c0, 1), (0x41003c, 0)]] {
            let control = control(events).unwrap();
            assert_eq!((control.flags, control.counters as usize), (CONTROL_TSC, events.len()));
        }
        let [first, second, ..] = control(&[(0x4100c0, 1), (0x41003c, 0)]).unwrap().counter;
        assert_eq!(
            [first, second].map(|one| (one.slot, one.evntsel)),
            [(1, 0x4100c0), (0, 0x41003c)]
        );
    }
}
