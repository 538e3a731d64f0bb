// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr selftest`: measures the behaviour of counters on this machine, and reports
//! which of perfctr's promises hold here.

mod bodies;
mod judge;
mod measure;
mod measured;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use perfctr_gate::text::{grouped, harmless};
use serde::Serialize;

use self::judge::{Judged, Verdicts};
use self::measured::{Known, Measured, Outcome, Reads, Spread};
use crate::info::Here;
use crate::machine::{Cpu, Hypervisor, Module};
use crate::text::{counted, document, print, print_note};

/// The exit status if a promise does not hold.
const BROKEN: u8 = 1;

/// The options of `perfctr selftest`.
#[derive(Debug, Args)]
pub struct Options {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Also writes the JSON to this file, which can be sent to perfctr's developers.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    perfctr: &'static str,
    provider: String,
    cpu: Cpu,
    /// The logical CPU on which everything was measured.
    on: usize,
    hypervisor: Option<Hypervisor>,
    kernel: Option<String>,
    module: Option<Module>,
    measured: Measured,
    #[serde(flatten)]
    verdicts: Verdicts,
}

impl Document {
    fn measure(here: &Here) -> Result<Self> {
        let on = measure::stay().context("cannot stay on one CPU")?;
        let measured = measure::all(on)?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Ok(Self {
            perfctr: env!("CARGO_PKG_VERSION"),
            provider: here.description.provider.to_string(),
            cpu: Cpu::here(),
            on,
            hypervisor: Hypervisor::here(),
            kernel: kernel.map(|text| text.trim().to_owned()),
            module: Module::here(),
            verdicts: Verdicts::of(&measured),
            measured,
        })
    }

    fn json(&self) -> Result<String> {
        Ok(document("perfctr selftest", 1, self)?)
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| text += &format!("{name:<14} {value}\n");
        let Cpu { vendor, family, model, stepping, brand } = &self.cpu;
        let brand = harmless(brand.as_deref().unwrap_or_default());
        let cpu = format!("{vendor} family {family} model {model} stepping {stepping} {brand}");
        line("CPU", cpu.trim_end());
        line("provider", &self.provider);
        line("\nMeasured", "");
        let Measured { reads, short_loops, long_loops, wrap, page_faults, exits, .. } =
            &self.measured;
        line("empty region", &described(reads, Reads::describe));
        for (name, known) in [
            ("short loops", short_loops),
            ("long loops", long_loops),
            ("past 2^32", wrap),
            ("page faults", page_faults),
            ("CPUID", exits),
        ] {
            line(name, &described(known, Known::describe));
        }
        let samples = described(&self.measured.samples, |samples| {
            let period = grouped(samples.period);
            Judged::of(samples).map_or("none in the loop".to_owned(), |judged| {
                let Judged { number, late, .. } = judged;
                format!("{number}, one every {period} instructions; {} late", late.describe())
            })
        });
        line("samples", &samples);
        line("\nHabits", "");
        for habit in &self.verdicts.habits {
            let name = serde_json::to_value(habit.name).unwrap_or_default();
            let found = word(habit.found, ["yes", "no"]);
            let value = format!("{found:<11}{}", habit.because);
            line(name.as_str().unwrap_or_default(), &value);
        }
        line("\nPromises", "");
        for promise in &self.verdicts.promises {
            let holds = word(promise.holds, ["holds", "does not"]);
            line(holds, promise.promised);
            line("", &promise.because);
        }
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

/// Returns a word for yes or no, or that it is not known.
fn word(is: Option<bool>, [yes, no]: [&'static str; 2]) -> &'static str {
    match is {
        Some(true) => yes,
        Some(false) => no,
        None => "not known",
    }
}

fn described<T>(outcome: &Outcome<T>, describe: impl Fn(&T) -> String) -> String {
    match outcome {
        Outcome::Measured(value) => describe(value),
        Outcome::NotMeasured(why) => format!("not measured: {}", why.replace('\n', "; ")),
    }
}

impl Reads {
    fn describe(&self) -> String {
        let Self { regions, instructions, branches, direct, ns } = self;
        format!(
            "{} instructions and {} branches in {regions} regions; a read takes {ns:.0} ns{}",
            instructions.describe(),
            branches.describe(),
            if *direct { "" } else { " and system calls" }
        )
    }
}

impl Spread {
    fn describe(self) -> String {
        let Self { least, most } = self;
        if least == most { least.to_string() } else { format!("{least} to {most}") }
    }
}

impl Known {
    fn describe(&self) -> String {
        let [instructions, branches] =
            [self.spread(|one| one.instructions), self.spread(|one| one.branches)];
        let interrupts =
            self.interrupts.map_or_else(String::new, |n| format!("; {}", counted(n, "interrupt")));
        format!(
            "{} x {} instructions: {} more, branches {} more{interrupts}, switches {}",
            self.surplus.len(),
            grouped(self.instructions),
            instructions.describe(),
            branches.describe(),
            self.switches
        )
    }
}

/// Runs `perfctr selftest`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let here = Here::find()?;
    here.counts(&measure::EVENTS)?;
    if !options.json {
        print_note("measuring, which takes less than a minute");
    }
    let document = Document::measure(&here)?;
    if let Some(path) = &options.report {
        let written = fs::write(path, document.json()?);
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(&if options.json { document.json()? } else { document.table() })?;
    let holds = document.verdicts.all_hold();
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::judge::tests::faultless;
    use super::*;

    /// Returns the document of `perfctr selftest` for these measurements.
    fn document_of(measured: Measured) -> Document {
        Document {
            perfctr: "1.2.3",
            provider: "a module".to_owned(),
            cpu: Cpu {
                vendor: "AuthenticAMD".to_owned(),
                family: 25,
                model: 1,
                stepping: 2,
                brand: Some("A \u{1b}[2Jbrand".to_owned()),
            },
            on: 3,
            hypervisor: None,
            kernel: None,
            module: None,
            verdicts: Verdicts::of(&measured),
            measured,
        }
    }

    /// Returns the lines of a part of the table.
    fn part<'a>(table: &'a str, title: &str) -> Vec<&'a str> {
        table
            .lines()
            .skip_while(|line| *line != title)
            .skip(1)
            .take_while(|l| !l.is_empty())
            .collect()
    }

    #[test]
    fn the_table_has_the_processor_and_each_measurement_habit_and_promise() {
        let table = document_of(faultless()).table();
        let first = table.lines().next().unwrap();
        assert!(first.starts_with("CPU            AuthenticAMD family 25 model 1 stepping 2 A "));
        assert!(!table.contains('\u{1b}'), "a brand controls no terminal");
        let measured = part(&table, "Measured");
        assert_eq!(
            measured[0],
            "empty region   21 instructions and 3 branches in 9 regions; a read takes 7 ns"
        );
        assert_eq!(
            measured[5],
            "CPUID          1 x 1,000 instructions: -200 more, branches 0 more; 11 interrupts, \
             switches 3"
        );
        let habits = part(&table, "Habits");
        let names: Vec<&str> = habits.iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(names, ["vmrun", "interrupts", "skid", "spurious"]);
        assert!(habits.iter().all(|line| line[15..].starts_with("no ")), "{habits:?}");
        let promises = part(&table, "Promises");
        assert_eq!(promises.iter().filter(|line| line.starts_with("holds ")).count(), 7);
    }

    #[test]
    fn what_was_not_measured_is_not_known_and_the_table_says_why() {
        let mut measured = faultless();
        measured.exits = Outcome::NotMeasured("no\nCPUID".to_owned());
        measured.samples = Outcome::NotMeasured("no signals".to_owned());
        let table = document_of(measured).table();
        assert!(table.contains("\nCPUID          not measured: no; CPUID\n"), "{table}");
        assert!(table.contains("\nsamples        not measured: no signals\n"), "{table}");
        assert!(table.contains("\nskid           not known  "), "{table}");
    }

    #[test]
    fn the_report_says_its_format_and_has_every_measurement() {
        let json: Value = serde_json::from_str(&document_of(faultless()).json().unwrap()).unwrap();
        assert_eq!((&json["format"], &json["version"]), (&"perfctr selftest".into(), &1.into()));
        assert_eq!((&json["perfctr"], &json["on"]), (&"1.2.3".into(), &3.into()));
        let measured = json["measured"].as_object().unwrap();
        assert_eq!(measured.len(), 8, "{:?}", measured.keys());
        assert_eq!(json["habits"].as_array().map(Vec::len), Some(4));
        assert_eq!(json["promises"].as_array().map(Vec::len), Some(7));
    }
}
