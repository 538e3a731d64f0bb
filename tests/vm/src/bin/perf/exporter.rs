// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests an exporter of metrics: Prometheus' for machines, whose collector for perf counts on all
//! CPUs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use vm_tests::perf::{Event, Whose, generic};

use crate::Machine;
use crate::tool::{LONG, LONG_EXECUTED};

const ADDRESS: &str = "127.0.0.1:9100";
const METRIC: &str = "node_perf_instructions_total";
/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(100);

/// The exporter, which is ended when this is dropped.
struct Exporter(Child);

impl Exporter {
    fn start() -> Result<Self> {
        let listen = format!("--web.listen-address={ADDRESS}");
        let mut exporter = Command::new("prometheus-node-exporter");
        exporter.args(["--collector.disable-defaults", "--collector.perf", &listen]);
        let child = exporter.stderr(Stdio::null()).spawn().context("there is no exporter")?;
        let mut exporter = Self(child);
        for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
            if TcpStream::connect(ADDRESS).is_ok() {
                return Ok(exporter);
            }
            let ended = exporter.0.try_wait()?;
            ensure!(ended.is_none(), "the exporter has ended: {ended:?}");
            sleep(STEP);
        }
        bail!("the exporter does not listen")
    }

    /// Returns each CPU's instructions.
    fn scrape(&self, cpus: &[usize]) -> Result<Vec<u64>> {
        let mut stream = TcpStream::connect(ADDRESS)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut printed = String::new();
        stream.read_to_string(&mut printed)?;
        let of = |cpu: &usize| {
            let metric = format!("{METRIC}{{cpu=\"{cpu}\"}} ");
            let value = printed.lines().find_map(|line| line.strip_prefix(&metric));
            // A count is a whole number however it is written.
            let value = value.and_then(|value| value.parse::<f64>().ok());
            value.map(|value| value as u64).with_context(|| format!("no {metric}: {printed}"))
        };
        cpus.iter().map(of).collect()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

/// Checks that the exported counts are never more than the counts of pinned events of the same
/// CPUs. The exporter's eight events take turns on the testbed's four general counters. The
/// exported value of each event is what it has counted in its own turns: much of a program, but not
/// all.
pub fn agrees(machine: &Machine) -> Result<()> {
    let cpus = &machine.cpus;
    let mut instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    instructions.set_exclude_kernel(0);
    instructions.set_pinned(1);
    let open = |&cpu: &usize| Event::open(instructions, Whose::Cpu(cpu), None);
    let events: Vec<Event> = cpus.iter().map(open).collect::<Result<_, _>>()?;
    let read = || events.iter().map(Event::count).collect::<std::io::Result<Vec<u64>>>();
    let exporter = Exporter::start()?;
    let (before, first) = (read()?, exporter.scrape(cpus)?);
    let busy = *cpus.last().context("there is no CPU")?;
    let done = Command::new("taskset").args(["-c", &busy.to_string(), LONG]).status()?;
    ensure!(done.success(), "{LONG}: {done}");
    let (second, after) = (exporter.scrape(cpus)?, read()?);
    for (n, &cpu) in cpus.iter().enumerate() {
        let exported = second[n].checked_sub(first[n]).context("a counter has gone back")?;
        let most = after[n] - before[n];
        let least = if cpu == busy { LONG_EXECUTED.instructions / 4 } else { 0 };
        let is_right = (least..=most).contains(&exported);
        ensure!(is_right, "CPU {cpu}: {exported} exported, of {least} to {most}");
        println!("the exporter says {exported} of CPU {cpu}, of {least} to {most}");
    }
    Ok(())
}
