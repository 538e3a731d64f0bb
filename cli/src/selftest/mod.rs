// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr selftest`: measures what counters do on this machine, and says which of
//! perfctr's promises hold here.

mod bodies;
mod judge;
mod measure;
mod measured;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use self::judge::{Judged, Verdicts};
use self::measured::{Known, Measured, Outcome, Reads, Spread};
use crate::info::Here;
use crate::machine::{Cpu, Hypervisor, Module};
use crate::stat::grouped;
use crate::text::{counted, document, harmless, print, tell};

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
        let mut line = |name: &str, said: &str| text += &format!("{name:<14} {said}\n");
        let Cpu { vendor, family, model, stepping, brand } = &self.cpu;
        let brand = harmless(brand.as_deref().unwrap_or_default());
        let cpu = format!("{vendor} family {family} model {model} stepping {stepping} {brand}");
        line("CPU", cpu.trim_end());
        line("provider", &self.provider);
        line("\nMeasured", "");
        let Measured { reads, short_loops, long_loops, wrap, page_faults, exits, .. } =
            &self.measured;
        line("empty region", &said(reads, Reads::said));
        for (name, known) in [
            ("short loops", short_loops),
            ("long loops", long_loops),
            ("past 2^32", wrap),
            ("page faults", page_faults),
            ("CPUID", exits),
        ] {
            line(name, &said(known, Known::said));
        }
        let samples = said(&self.measured.samples, |samples| {
            let period = grouped(samples.period);
            Judged::of(samples).map_or("none in the loop".to_owned(), |judged| {
                let Judged { number, late, .. } = judged;
                format!("{number}, one every {period} instructions; {} late", late.said())
            })
        });
        line("samples", &samples);
        line("\nHabits", "");
        for habit in &self.verdicts.habits {
            let name = serde_json::to_value(habit.name).unwrap_or_default();
            let found = word(habit.found, ["yes", "no"]);
            let said = format!("{found:<11}{}", habit.because);
            line(name.as_str().unwrap_or_default(), &said);
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

fn said<T>(outcome: &Outcome<T>, say: impl Fn(&T) -> String) -> String {
    match outcome {
        Outcome::Measured(value) => say(value),
        Outcome::NotMeasured(why) => format!("not measured: {}", why.replace('\n', "; ")),
    }
}

impl Reads {
    fn said(&self) -> String {
        let Self { regions, instructions, branches, direct, ns } = self;
        format!(
            "{} instructions and {} branches in {regions} regions; a read takes {ns:.0} ns{}",
            instructions.said(),
            branches.said(),
            if *direct { "" } else { " and system calls" }
        )
    }
}

impl Spread {
    fn said(self) -> String {
        let Self { least, most } = self;
        if least == most { least.to_string() } else { format!("{least} to {most}") }
    }
}

impl Known {
    fn said(&self) -> String {
        let [instructions, branches] =
            [self.spread(|one| one.instructions), self.spread(|one| one.branches)];
        let interrupts =
            self.interrupts.map_or_else(String::new, |n| format!("; {}", counted(n, "interrupt")));
        format!(
            "{} x {} instructions: {} more, branches {} more{interrupts}, switches {}",
            self.surplus.len(),
            grouped(self.instructions),
            instructions.said(),
            branches.said(),
            self.switches
        )
    }
}

/// Runs `perfctr selftest`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let here = Here::find()?;
    here.counts(&measure::EVENTS)?;
    if !options.json {
        tell("measuring, which takes less than a minute");
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
