// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr export`. It serves counts of processes, threads and groups of processes, and
//! of a host's domains, in the form that Prometheus and others scrape (OpenMetrics).

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use libc::pid_t;
use perfctr::watch::{Total, Watched};
use perfctr::{Error, Event};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{self, DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::accounts::{Accounts, Row};
use crate::domains::names_of_xl;
use crate::events::{EventList, EventParser};
use crate::info::Here;
use crate::live::{How, Live, Threads};
use crate::program::{Signals, limits};
use crate::text;

/// The options of `perfctr export`.
#[derive(Debug, Args)]
pub struct Options {
    /// Events, separated by commas. `perfctr list` shows their names.
    #[arg(
        short,
        long,
        value_parser = EventParser::Single,
        hide_possible_values = true,
        default_value = "instructions:u,cycles:u",
        default_value_if("host", "true", "instructions")
    )]
    event: EventList,
    /// Counts events that are not known to be right on this CPU, too.
    #[arg(long)]
    unverified: bool,
    /// Exports a process, with its threads and all that it starts; may be given several times.
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,
    /// Exports a group of processes, by its directory of cgroup v2; may be given several times.
    #[arg(short = 'G', long, value_name = "DIRECTORY")]
    cgroup: Vec<PathBuf>,
    /// Exports all domains of the Xen host that this is the control domain of, by one event: what
    /// each virtual CPU executes, and what the hypervisor executes meanwhile.
    #[arg(long, conflicts_with_all = ["pid", "cgroup"])]
    host: bool,
    /// Listens at this address; whoever can reach it can read the counts.
    #[arg(short, long, default_value = "127.0.0.1:9464")]
    listen: String,
    /// Prints what a scrape would get, and ends.
    #[arg(long, conflicts_with = "listen")]
    once: bool,
}

/// The content type that OpenMetrics asks for.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The time between two checks whether the caller has interrupted.
const LOOK: Duration = Duration::from_millis(200);

/// Everything that is counted.
#[derive(Debug)]
struct Counted {
    events: Vec<Event>,
    processes: Vec<(pid_t, Watched)>,
    threads: Mutex<Threads>,
    cgroups: Vec<(PathBuf, Watched)>,
    domains: Option<Mutex<Accounts>>,
}

impl Counted {
    fn open(options: &Options) -> Result<Self> {
        let events = &options.event.events(options.unverified);
        if options.host {
            return Self::host(events);
        }
        limits::raise();
        // If there are no counters at all, this gives the reason.
        Here::find()?.counts(events)?;
        let (pids, groups) = (unique(&options.pid), unique(&options.cgroup));
        let process = |&pid: &pid_t| Ok((pid, Live::process(pid).count(How::InTurns, events)?));
        let group =
            |path: &PathBuf| Ok((path.clone(), Live::cgroup(path)?.count(How::InTurns, events)?));
        Ok(Self {
            events: events.clone(),
            processes: pids.iter().map(process).collect::<Result<_>>()?,
            threads: Mutex::new(Threads::new(events, &pids)?),
            cgroups: groups.iter().map(group).collect::<Result<_>>()?,
            domains: None,
        })
    }

    /// Counts the domains of this host.
    fn host(events: &[Event]) -> Result<Self> {
        Ok(Self {
            events: events.to_vec(),
            processes: Vec::new(),
            threads: Mutex::new(Threads::new(events, &[])?),
            cgroups: Vec::new(),
            domains: Some(Mutex::new(Accounts::start(events, names_of_xl)?)),
        })
    }

    /// Renews accounts that would otherwise end, or begins them anew. Their counters then begin
    /// with 0.
    fn renew(&self) -> Result<()> {
        let Some(domains) = &self.domains else { return Ok(()) };
        let mut domains = domains.lock().unwrap_or_else(PoisonError::into_inner);
        match domains.renew() {
            Err(Error::NotAccounted(_)) => *domains = Accounts::start(&self.events, names_of_xl)?,
            renewed => renewed?,
        }
        Ok(())
    }

    /// Reads everything for one scrape.
    fn scrape(&self) -> Result<Scrape> {
        let mut scrape = Scrape { events: self.events.clone(), ..Scrape::default() };
        for (pid, watched) in &self.processes {
            scrape.processes.push((vec![("pid", pid.to_string())], watched.read()?.into_values()));
        }
        if !self.processes.is_empty() {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.refresh()?;
            for (tid, thread) in &threads.live {
                let labels = vec![
                    ("pid", thread.pid.to_string()),
                    ("tid", tid.to_string()),
                    ("name", thread.name.clone()),
                ];
                scrape.threads.push((labels, thread.watched.read()?.into_values()));
            }
        }
        for (path, watched) in &self.cgroups {
            scrape.cgroups.push((
                vec![("cgroup", path.display().to_string())],
                watched.read()?.into_values(),
            ));
        }
        if let Some(domains) = &self.domains {
            scrape.domains = domains.lock().unwrap_or_else(PoisonError::into_inner).rows()?;
        }
        Ok(scrape)
    }
}

/// Returns each element once, since scrapers refuse two series with the same labels.
fn unique<T: Clone + PartialEq>(all: &[T]) -> Vec<T> {
    let mut unique = Vec::new();
    for one in all {
        if !unique.contains(one) {
            unique.push(one.clone());
        }
    }
    unique
}

/// A number of an event: its name, its description, and how to compute it.
type OfCount = (&'static str, &'static str, fn(&Total) -> f64);

type Labels = Vec<(&'static str, String)>;

/// The counts at the time of a scrape.
#[derive(Debug, Default)]
struct Scrape {
    events: Vec<Event>,
    processes: Vec<(Labels, Vec<Total>)>,
    threads: Vec<(Labels, Vec<Total>)>,
    cgroups: Vec<(Labels, Vec<Total>)>,
    domains: Vec<Row>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, whose, all) in [
            ("process", "of a process and all that it starts", &self.processes),
            ("thread", "of a thread", &self.threads),
            ("cgroup", "of a group of processes", &self.cgroups),
        ] {
            self.counts(&mut encoder, name, whose, all)?;
        }
        self.domains(&mut encoder)
    }
}

impl Scrape {
    /// Encodes how many events each virtual CPU of a host has executed, and how many the hypervisor
    /// has executed while that virtual CPU was current.
    fn domains(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if self.domains.is_empty() {
            return Ok(());
        }
        let help = "Events that a domain and the hypervisor meanwhile have executed";
        let mut family =
            encoder.encode_descriptor("domain_events", help, None, MetricType::Counter)?;
        let event = self.events.first().map(Event::to_string).unwrap_or_default();
        for row in &self.domains {
            let by = match (row.executed, row.hypervisor) {
                (Some(executed), Some(hypervisor)) => {
                    vec![("domain", executed), ("hypervisor", hypervisor)]
                }
                _ => vec![("both", row.sum)],
            };
            for (by, count) in by {
                let labels = [
                    (
                        "domain",
                        row.domain.map_or_else(|| "idle".to_owned(), |domain| domain.to_string()),
                    ),
                    ("name", row.name.clone()),
                    ("vcpu", row.vcpu.to_string()),
                    ("event", event.clone()),
                    ("by", by.to_owned()),
                ];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Encodes the counts, how long they were to be counted, and how long they were counted, which
    /// is less if events took turns.
    fn counts(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        whose: &str,
        all: &[(Labels, Vec<Total>)],
    ) -> Result<(), fmt::Error> {
        if all.is_empty() {
            return Ok(());
        }
        let metrics: [OfCount; 3] = [
            ("events", "Events", |count| count.count as f64),
            ("enabled_seconds", "Time that events were to be counted", |count| {
                count.enabled.as_secs_f64()
            }),
            ("counted_seconds", "Time that events were counted", |count| {
                count.running.as_secs_f64()
            }),
        ];
        for (what, help, value) in metrics {
            let (metric, help) = (format!("{name}_{what}"), format!("{help} {whose}"));
            let mut family =
                encoder.encode_descriptor(&metric, &help, None, MetricType::Counter)?;
            for (labels, counts) in all {
                for (event, count) in self.events.iter().zip(counts) {
                    let labels = [&labels[..], &[("event", event.to_string())]].concat();
                    ConstCounter::new(value(count)).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }

    /// Formats it for a scrape.
    fn text(self) -> Result<String> {
        let mut registry = Registry::with_prefix("perfctr");
        registry.register_collector(Box::new(self));
        let mut body = String::new();
        encoding::text::encode(&mut body, &registry)?;
        Ok(body)
    }
}

/// Runs `perfctr export`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let nothing = options.pid.is_empty() && options.cgroup.is_empty() && !options.host;
    ensure!(!nothing, "nothing to export: --pid, --cgroup or --host says what");
    let counted = Counted::open(options)?;
    if options.once {
        text::print(&counted.scrape()?.text()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let signals = Signals::to_end()?;
    let server = Server::http(&options.listen).map_err(|error| anyhow!(error));
    let server = server.with_context(|| format!("cannot listen on {}", options.listen))?;
    text::print_note(format_args!("http://{}/metrics", server.server_addr()));
    while !signals.interrupted() {
        counted.renew()?;
        if let Some(request) = server.recv_timeout(LOOK)? {
            // A client that has gone away needs no answer.
            answer(request, &counted).ok();
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a request's address asks for the counts. Scrapers may add parameters.
fn asks_for_counts(address: &str) -> bool {
    address.split('?').next() == Some("/metrics")
}

fn answer(request: Request, counted: &Counted) -> Result<()> {
    if *request.method() != Method::Get {
        return Ok(request.respond(Response::empty(405))?);
    }
    if !asks_for_counts(request.url()) {
        return Ok(request.respond(Response::empty(404))?);
    }
    match counted.scrape().and_then(Scrape::text) {
        Ok(body) => {
            let header = Header::from_bytes("Content-Type", CONTENT_TYPE);
            let header = header.map_err(|()| anyhow!("no header"))?;
            Ok(request.respond(Response::from_string(body).with_header(header))?)
        }
        Err(error) => {
            text::print_note(format_args!("{error:#}"));
            Ok(request
                .respond(Response::from_string(format!("{error:#}\n")).with_status_code(500))?)
        }
    }
}

#[cfg(test)]
#[path = "export/tests.rs"]
mod panels;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_twice_is_counted_once() {
        assert_eq!(unique(&[7, 9, 7, 8, 9]), [7, 9, 8]);
    }

    #[test]
    fn counts_are_at_one_address_whatever_its_parameters() {
        for (address, expected) in [
            ("/metrics", true),
            ("/metrics?format=text", true),
            ("/metrics?", true),
            ("/", false),
            ("/metrics/x", false),
            ("/x?/metrics", false),
        ] {
            assert_eq!(asks_for_counts(address), expected, "{address}");
        }
    }

    #[test]
    fn threads_are_those_of_processes_that_were_named() {
        let threads = Mutex::new(Threads::new(&[], &[]).unwrap());
        let counted = Counted {
            events: Vec::new(),
            processes: Vec::new(),
            threads,
            cgroups: Vec::new(),
            domains: None,
        };
        assert_eq!(counted.scrape().unwrap().threads, []);
        let threads = counted.threads.into_inner().unwrap();
        assert!(threads.live.is_empty(), "nobody has asked for the whole machine's");
    }

    #[test]
    fn domains_are_written_by_who_has_executed() {
        let most = u64::MAX;
        let row = |domain, executed, hypervisor| Row {
            domain,
            name: if domain.is_some() { "web".into() } else { "idle".into() },
            vcpu: 1,
            executed,
            hypervisor,
            sum: 9,
        };
        let domains = vec![
            row(Some(3), Some(most), Some(5)),
            row(Some(4), None, None),
            row(None, Some(0), Some(8)),
        ];
        let scrape = Scrape { events: vec![Event::INSTRUCTIONS], domains, ..Scrape::default() };
        let text = scrape.text().unwrap();
        for (domain, name, by, count) in [
            ("3", "web", "domain", most),
            ("3", "web", "hypervisor", 5),
            ("4", "web", "both", 9),
            ("idle", "idle", "domain", 0),
            ("idle", "idle", "hypervisor", 8),
        ] {
            let line = format!(
                "perfctr_domain_events_total{{domain=\"{domain}\",name=\"{name}\",vcpu=\"1\",\
                 event=\"instructions\",by=\"{by}\"}} {count}"
            );
            assert!(text.lines().any(|found| found == line), "`{line}` is not in\n{text}");
        }
    }

    #[test]
    fn counts_are_written_as_openmetrics_has_them() {
        let mut count = Total::default();
        (count.enabled, count.running) = (Duration::from_millis(3), Duration::from_micros(1_500));
        count.count = 123_456_789_012;
        let scrape = Scrape {
            events: vec![Event::INSTRUCTIONS.user()],
            threads: vec![(vec![("tid", "7".into()), ("name", "a\"b".into())], vec![count])],
            ..Scrape::default()
        };
        let text = scrape.text().unwrap();
        for line in [
            "perfctr_thread_events_total{tid=\"7\",name=\"a\\\"b\",event=\"instructions:u\"} \
             123456789012.0",
            "perfctr_thread_counted_seconds_total{tid=\"7\",name=\"a\\\"b\",\
             event=\"instructions:u\"} 0.0015",
            "perfctr_thread_enabled_seconds_total{tid=\"7\",name=\"a\\\"b\",\
             event=\"instructions:u\"} 0.003",
            "# TYPE perfctr_thread_counted_seconds counter",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "`{line}` is not in\n{text}");
        }
        assert!(!text.contains("cgroup"), "{text}");
    }
}
