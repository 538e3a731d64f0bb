// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr info`.

use std::fmt::Display;
use std::mem;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use perfctr::raw::counting;
use perfctr::watch::Watch;
use perfctr::{Description, Error, Event, Provider, Refusal, Session};
use serde::Serialize;
use shared_abi::limits::PERIOD_EVENTS_MAX;

use crate::machine::{Access, Counters, Cpu, Driver, Hypervisor, Module, Policy};
use crate::text::{document, print};

/// The options of `perfctr info`.
#[derive(Debug, Args)]
pub struct Options {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// The provider of counters on this machine.
pub struct Here {
    pub description: Description,
    /// The answers of the better providers, which have no counters here.
    pub refusals: Vec<Refusal>,
}

impl Here {
    /// Asks every provider in turn.
    pub fn find() -> Result<Self, Error> {
        let session = Session::open()?;
        let (description, refusals) = (*session.description(), session.refusals().to_vec());
        Ok(Self { description, refusals })
    }

    /// Returns the error that no provider has counters.
    pub fn no_provider_error(&self, event: Event) -> Error {
        Error::NoCounters { event, tried: self.refusals.clone() }
    }

    /// Checks that there is a provider of counters here.
    ///
    /// # Errors
    ///
    /// Says why there is none.
    pub fn counts(&self, events: &[Event]) -> Result<(), Error> {
        match (self.description.provider, events.first()) {
            (Provider::Tsc, Some(&event)) => Err(self.no_provider_error(event)),
            _ => Ok(()),
        }
    }

    /// Returns why this event cannot be counted here, if it cannot.
    pub fn refuses(&self, event: Event) -> Option<Error> {
        match (self.description.provider, self.description.caps) {
            _ if event.is_software() => {
                Watch::this_thread().count(event.to_string(), event).open().err()
            }
            (Provider::Tsc, _) => Some(self.no_provider_error(event)),
            (Provider::Paravirt, Some(caps)) => counting(&caps, &[event], 0).err(),
            _ => Session::open_with(Provider::Native).and_then(|mut s| s.start(&[event])).err(),
        }
    }
}

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
struct Info {
    provider: String,
    refusals: Vec<Refused>,
    /// The version of this program.
    perfctr: &'static str,
    hypervisor: Option<Hypervisor>,
    /// The driver's state, which only Xen tells.
    driver: Option<Driver>,
    /// The reason for which nothing is known of the driver.
    driver_unknown: Option<String>,
    module: Option<Module>,
    cpu: Cpu,
    vcpus: Option<u32>,
    counters: Option<Counters>,
    limits: Option<Limits>,
    time: Time,
    policy: Policy,
}

#[derive(Debug, Serialize)]
struct Refused {
    provider: String,
    reason: String,
    remedy: &'static str,
    errno: i32,
}

/// The provider's limits, if it says them.
#[derive(Debug, Serialize)]
struct Limits {
    events_at_once: u32,
    samples: bool,
    period_max: u64,
}

/// The clock of readings.
#[derive(Debug, Serialize)]
struct Time {
    unit: &'static str,
    /// Its frequency, or `None` if it is not known.
    khz: Option<u32>,
}

impl Info {
    fn of(here: &Here) -> Self {
        let Description { provider, caps, vcpus, tsc_khz, .. } = here.description;
        let refused = |refusal: &Refusal| Refused {
            provider: refusal.provider.to_string(),
            reason: refusal.cause.reason(),
            remedy: refusal.cause.remedy(),
            errno: refusal.errno,
        };
        let counters = caps.map(|caps| Counters {
            general: caps.general,
            general_bits: caps.general_width.bits(),
            fixed: caps.fixed,
            fixed_bits: caps.fixed_width.bits(),
        });
        let native = provider == Provider::Native;
        let hypervisor = Hypervisor::here();
        let driver = hypervisor.as_ref().filter(|one| one.is_xen()).map(|_| Driver::ask());
        let (driver, driver_unknown) = match driver {
            Some(Ok(driver)) => (Some(driver), None),
            Some(Err(why)) => (None, Some(why)),
            None => (None, None),
        };
        Self {
            provider: provider.to_string(),
            refusals: here.refusals.iter().map(refused).collect(),
            perfctr: env!("CARGO_PKG_VERSION"),
            hypervisor,
            driver,
            driver_unknown,
            module: Module::here(),
            cpu: Cpu::here(),
            vcpus: (vcpus > 0).then_some(vcpus),
            counters: counters.or_else(|| native.then(Counters::of_cpu).flatten()),
            limits: caps.map(|caps| Limits {
                events_at_once: caps.slots().count_ones(),
                samples: caps.can(perfctr::CAPS_SAMPLING),
                period_max: PERIOD_EVENTS_MAX,
            }),
            time: Time {
                unit: if native { "ns" } else { "TSC" },
                khz: (tsc_khz > 0).then_some(tsc_khz),
            },
            policy: Policy::here(),
        }
    }

    fn page(&self) -> Page {
        let page = &mut Page::default();
        page.line("provider", &self.provider);
        for Refused { provider, reason, remedy, .. } in &self.refusals {
            page.line("not", format!("{provider}: {reason}; {remedy}"));
        }
        page.line("perfctr", self.perfctr);
        self.host(page);
        let Cpu { vendor, family, model, stepping, brand } = &self.cpu;
        let brand = brand.as_ref().map_or_else(String::new, |brand| format!(" ({brand})"));
        page.line(
            "CPU",
            format!("{vendor} family {family} model {model} stepping {stepping}{brand}"),
        );
        if let Some(vcpus) = self.vcpus {
            page.line("vCPUs", vcpus);
        }
        match &self.counters {
            Some(Counters { general, general_bits, fixed, fixed_bits }) => {
                page.line("counters", format!("{general} general of {general_bits} bits"));
                page.line("", format!("{fixed} fixed of {fixed_bits} bits"));
            }
            None => page.line("counters", "not known"),
        }
        if let Some(Limits { events_at_once, samples, period_max }) = &self.limits {
            page.line("limits", format!("{events_at_once} events at once"));
            match samples {
                true => page.line("", format!("samples, every {period_max} events or more often")),
                false => page.line("", "no samples"),
            }
        }
        let khz = self.time.khz.map_or("unknown".to_owned(), |khz| format!("{khz} kHz"));
        page.line("time", format!("{}, {khz}", self.time.unit));
        self.policy(page);
        mem::take(page)
    }

    /// Adds the CPU, the hypervisor, its driver and the kernel's module.
    fn host(&self, page: &mut Page) {
        match &self.hypervisor {
            Some(Hypervisor { name, version, guest }) => {
                let version = version.as_ref().map_or_else(String::new, |v| format!(" {v}"));
                let guest = guest.as_ref().map_or_else(String::new, |g| format!(", {g} guest"));
                page.line("hypervisor", format!("{name}{version}{guest}"));
            }
            None => page.line("hypervisor", "none"),
        }
        match (&self.driver, &self.driver_unknown) {
            (Some(Driver { abi, allows, all_events }), _) => {
                let allows = if *allows { "lets" } else { "does not let" };
                let events =
                    if *all_events { "all events" } else { "events that count nothing of others" };
                page.line("driver", format!("ABI {abi}, {allows} this domain count {events}"));
            }
            (None, Some(why)) => page.line("driver", why),
            (None, None) => {}
        }
        match &self.module {
            Some(Module { version, abi }) => {
                let [version, abi] =
                    [version, abi].map(|text| text.as_deref().unwrap_or("unknown"));
                page.line("module", format!("{version}, ABI {abi}"));
            }
            None => page.line("module", "not loaded"),
        }
    }

    fn policy(&self, page: &mut Page) {
        let Policy { perf_event_paranoid, perf_event_max_sample_rate, paranoid, device, seccomp } =
            &self.policy;
        let mut of = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                page.line("policy", format!("{name} = {value}"));
            }
        };
        of("kernel.perf_event_paranoid", perf_event_paranoid.map(|n| n.to_string()));
        of("kernel.perf_event_max_sample_rate", perf_event_max_sample_rate.map(|n| n.to_string()));
        of("the module's paranoid", paranoid.map(|n| n.to_string()));
        if let Some(Access { path, mode, uid, gid, opens }) = device {
            let may = if *opens { "may" } else { "may not" };
            page.line(
                "policy",
                format!("{path} mode {mode}, uid {uid}, gid {gid}: you {may} open it"),
            );
        }
        if *seccomp {
            page.line("policy", "system calls are filtered by seccomp");
        }
    }
}

/// Lines for people, each with a name at its beginning.
#[derive(Debug, Default)]
struct Page(String);

impl Page {
    fn line(&mut self, name: &str, text: impl Display) {
        self.0 += &format!("{name:<12} {text}\n");
    }
}

/// Runs `perfctr info`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let info = Info::of(&Here::find()?);
    if options.json {
        print(&document("perfctr info", 1, &info)?)?;
    } else {
        print(&info.page().0)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the description of a guest that has everything. Each number is a different one.
    fn guest() -> Info {
        let text = |text: &str| Some(text.to_owned());
        let reason = "the kernel knows no PMU here".to_owned();
        let refused = Refused { provider: "native".to_owned(), reason, remedy: "ask", errno: 2 };
        Info {
            provider: "paravirt".to_owned(),
            refusals: vec![refused],
            perfctr: "9.8.7",
            hypervisor: Some(Hypervisor {
                name: "Xen".to_owned(),
                version: text("4.17"),
                guest: text("PV"),
            }),
            driver: Some(Driver { abi: "2.4".to_owned(), allows: true, all_events: false }),
            driver_unknown: None,
            module: Some(Module { version: text("0.3"), abi: text("2.5") }),
            cpu: Cpu {
                vendor: "AuthenticAMD".to_owned(),
                family: 25,
                model: 33,
                stepping: 2,
                brand: text("Ryzen"),
            },
            vcpus: Some(6),
            counters: Some(Counters { general: 4, general_bits: 48, fixed: 3, fixed_bits: 40 }),
            limits: Some(Limits { events_at_once: 7, samples: true, period_max: 2_147_483_647 }),
            time: Time { unit: "TSC", khz: Some(2_400_000) },
            policy: Policy {
                perf_event_paranoid: Some(1),
                perf_event_max_sample_rate: Some(100_000),
                paranoid: Some(2),
                device: Some(Access {
                    path: "/dev/perfctr",
                    mode: "660".to_owned(),
                    uid: 0,
                    gid: 117,
                    opens: false,
                }),
                seccomp: true,
            },
        }
    }

    #[test]
    fn each_fact_has_a_line_of_its_own() {
        let lines = [
            "provider     paravirt",
            "not          native: the kernel knows no PMU here; ask",
            "perfctr      9.8.7",
            "hypervisor   Xen 4.17, PV guest",
            "driver       ABI 2.4, lets this domain count events that count nothing of others",
            "module       0.3, ABI 2.5",
            "CPU          AuthenticAMD family 25 model 33 stepping 2 (Ryzen)",
            "vCPUs        6",
            "counters     4 general of 48 bits",
            "             3 fixed of 40 bits",
            "limits       7 events at once",
            "             samples, every 2147483647 events or more often",
            "time         TSC, 2400000 kHz",
            "policy       kernel.perf_event_paranoid = 1",
            "policy       kernel.perf_event_max_sample_rate = 100000",
            "policy       the module's paranoid = 2",
            "policy       /dev/perfctr mode 660, uid 0, gid 117: you may not open it",
            "policy       system calls are filtered by seccomp",
        ];
        assert_eq!(guest().page().0.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn what_is_not_known_is_said_or_left_out() {
        let nothing = Info {
            refusals: Vec::new(),
            hypervisor: None,
            driver: None,
            driver_unknown: Some("asked in vain".to_owned()),
            module: None,
            vcpus: None,
            counters: None,
            limits: Some(Limits { events_at_once: 7, samples: false, period_max: 5 }),
            time: Time { unit: "ns", khz: None },
            policy: Policy {
                perf_event_paranoid: None,
                perf_event_max_sample_rate: None,
                paranoid: None,
                device: None,
                seccomp: false,
            },
            ..guest()
        };
        let lines = [
            "provider     paravirt",
            "perfctr      9.8.7",
            "hypervisor   none",
            "driver       asked in vain",
            "module       not loaded",
            "CPU          AuthenticAMD family 25 model 33 stepping 2 (Ryzen)",
            "counters     not known",
            "limits       7 events at once",
            "             no samples",
            "time         ns, unknown",
        ];
        assert_eq!(nothing.page().0.lines().collect::<Vec<_>>(), lines);
    }
}
