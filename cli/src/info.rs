// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `perfctr info`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use perfctr::raw::counting;
use perfctr::{Description, Error, Event, Provider, Refusal, Session};
use serde::Serialize;

/// What to say.
#[derive(Debug, Args)]
pub struct Options {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Who provides counters here.
pub struct Here {
    pub description: Description,
    /// What the better providers have answered.
    pub refusals: Vec<Refusal>,
}

impl Here {
    /// Asks every provider in turn.
    pub fn find() -> Result<Self, Error> {
        let session = Session::open()?;
        let (description, refusals) = (*session.description(), session.refusals().to_vec());
        Ok(Self { description, refusals })
    }

    /// Nobody has counters.
    pub fn nobody(&self, event: Event) -> Error {
        Error::NoCounters { event, tried: self.refusals.clone() }
    }

    /// Why this event cannot be counted here, if it cannot.
    pub fn refuses(&self, event: Event) -> Option<Error> {
        match (self.description.provider, self.description.caps) {
            (Provider::Tsc, _) => Some(self.nobody(event)),
            (Provider::Paravirt, Some(caps)) => counting(&caps, &[event], 0).err(),
            _ => Session::open_with(Provider::Native).and_then(|mut s| s.start(&[event])).err(),
        }
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Info {
    provider: String,
    refusals: Vec<Refused>,
    cpu_signature: u32,
    tsc_khz: u32,
    vcpus: u32,
    counters: Option<Counters>,
}

#[derive(Debug, Serialize)]
struct Refused {
    provider: String,
    message: String,
    errno: i32,
}

#[derive(Debug, Serialize)]
struct Counters {
    general: u32,
    general_bits: u32,
    fixed: u32,
    fixed_bits: u32,
    samples: bool,
}

impl Info {
    fn of(here: &Here) -> Self {
        let Description { provider, caps, vcpus, cpu_signature, tsc_khz } = here.description;
        let refused = |refusal: &Refusal| Refused {
            provider: refusal.provider.to_string(),
            message: refusal.cause.to_string(),
            errno: refusal.errno,
        };
        let counters = caps.map(|caps| Counters {
            general: caps.general,
            general_bits: caps.general_width.bits(),
            fixed: caps.fixed,
            fixed_bits: caps.fixed_width.bits(),
            samples: caps.can(perfctr::CAPS_SAMPLING),
        });
        let refusals = here.refusals.iter().map(refused).collect();
        Self { provider: provider.to_string(), refusals, cpu_signature, tsc_khz, vcpus, counters }
    }

    fn print(&self) {
        println!("provider     {}", self.provider);
        for Refused { provider, message, .. } in &self.refusals {
            println!("not          {provider}: {message}");
        }
        println!("CPU          signature {:#x}", self.cpu_signature);
        match &self.counters {
            Some(Counters { general, general_bits, fixed, fixed_bits, samples }) => {
                println!("counters     {general} general of {general_bits} bits");
                println!("             {fixed} fixed of {fixed_bits} bits");
                println!("sampling     {}", if *samples { "yes" } else { "no" });
                println!("vCPUs        {}", self.vcpus);
                println!("time stamps  {} kHz", self.tsc_khz);
            }
            None => println!("counters     the provider does not say"),
        }
    }
}

/// `perfctr info`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let info = Info::of(&Here::find()?);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&info)?);
    } else {
        info.print();
    }
    Ok(ExitCode::SUCCESS)
}
