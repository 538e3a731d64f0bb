// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests `perfctr export`, which Debian's Prometheus scrapes, and `perfctr top`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use serde_json::Value;
use vm_tests::region::Region;
use vm_tests::tally::{Tally, equal};

use crate::command::{PERFCTR, printed};
use crate::worker::Worker;

const EXPORTER: &str = "127.0.0.1:9464";
pub const PROMETHEUS_PATH: &str = "/usr/bin/prometheus";
const PROMETHEUS: &str = "127.0.0.1:9090";
const CONFIGURATION: &str = "/run/prometheus.yml";
const STORE: &str = "/run/prometheus";
const CGROUPS: &str = "/sys/fs/cgroup";
const EVENT: &str = "instructions:u";
/// The numbers of iterations that the worker is told to execute.
const ORDERS: [u64; 2] = [400_000, 910_000];
/// How long anything may take. Prometheus starts slowly on an emulated machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server, which is ended when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

impl Server {
    fn start(command: &mut Command, address: &str) -> Result<Self> {
        let mut server = Self(command.spawn().with_context(|| format!("{command:?}"))?);
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(start.elapsed() < PATIENCE, "{command:?} does not listen");
            let ended = server.0.try_wait()?;
            ensure!(ended.is_none(), "{command:?}: {ended:?}");
            sleep(Duration::from_millis(100));
        }
        Ok(server)
    }
}

/// Returns what a server answers.
fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut printed = String::new();
    stream.read_to_string(&mut printed)?;
    Ok(printed.split_once("\r\n\r\n").context("no answer")?.1.to_owned())
}

/// Returns the value of the one metric that starts with this text.
fn value(metrics: &str, start: &str) -> Result<u64> {
    let mut found = metrics.lines().filter(|line| line.starts_with(start));
    let (line, more) = (found.next(), found.next());
    ensure!(more.is_none(), "two of {start} in\n{metrics}");
    let number = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    // A count is a whole number however it is written.
    number.map(|number| number as u64).with_context(|| format!("no {start} in\n{metrics}"))
}

/// Returns the value that Prometheus has of a metric, once it is the expected one. Prometheus
/// scrapes every second.
fn stored(metric: &str, expected: u64) -> Result<Option<u64>> {
    let start = Instant::now();
    loop {
        let query: String = metric.bytes().map(|byte| format!("%{byte:02x}")).collect();
        // Until Prometheus has started, its answer has another form.
        let answer = get(PROMETHEUS, &format!("/api/v1/query?query={query}"))?;
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        let text = answer["data"]["result"][0]["value"][1].as_str().map(str::to_owned);
        let found = text.and_then(|text| text.parse::<f64>().ok()).map(|number| number as u64);
        if found == Some(expected) || start.elapsed() > PATIENCE {
            return Ok(found);
        }
        sleep(Duration::from_millis(500));
    }
}

/// Makes a group of processes that has the worker alone, and returns its name.
fn group(worker: &Worker) -> Result<String> {
    let control = Path::new(CGROUPS).join("cgroup.subtree_control");
    if !control.exists() {
        mount(Some("none"), CGROUPS, Some("cgroup2"), MsFlags::empty(), None::<&str>)?;
        // perf's controller has no name here: the kernel enables it with any other controller.
        fs::write(control, "+pids")?;
    }
    let directory = Path::new(CGROUPS).join("worker");
    fs::create_dir(&directory)?;
    fs::write(directory.join("cgroup.procs"), worker.pid())?;
    Ok(directory.display().to_string())
}

/// Tests that everything that is exported is exact, and that Prometheus, if it is there, has the
/// same numbers.
pub fn scraped(tally: &mut Tally, prometheus: bool) -> Result<()> {
    let mut worker = Worker::start()?;
    let (group, pid) = (group(&worker)?, worker.pid());
    let mut exporter = Command::new(PERFCTR);
    exporter.args(["export", "-e", EVENT, "-p", &pid, "-G", &group]);
    let _exporter = Server::start(exporter.args(["-l", EXPORTER]), EXPORTER)?;
    let stores = prometheus.then(start_prometheus).transpose()?;
    let names = ["process", "thread", "cgroup"];
    let look = || -> Result<[u64; 3]> {
        let metrics = get(EXPORTER, "/metrics")?;
        let values: Result<Vec<u64>> = names
            .iter()
            .map(|name| value(&metrics, &format!("perfctr_{name}_events_total{{")))
            .collect();
        values?.try_into().ok().context("three values")
    };
    let mut counts = vec![look()?];
    for order in ORDERS {
        worker.order(order)?;
        counts.push(look()?);
    }
    let spent = |n: usize, of: usize| counts[n + 1][of].wrapping_sub(counts[n][of]);
    let lengths = ORDERS.map(|first| Region { first, second: 1 }.instructions());
    for (of, name) in names.iter().enumerate() {
        tally.check(&format!("a {name}'s exported instructions are what it executes"), {
            equal(spent(1, of).wrapping_sub(spent(0, of)), lengths[1] - lengths[0])
        });
    }
    tally.check("a process, its thread and its group are exported alike", {
        equal([spent(0, 1), spent(0, 2)], [spent(0, 0); 2])
    });
    if stores.is_none() {
        return Ok(());
    }
    for (name, count) in names.iter().zip(counts[2]) {
        let metric = format!("perfctr_{name}_events_total{{event=\"{EVENT}\"}}");
        tally.check(&format!("Prometheus has the {name}'s"), {
            equal(stored(&metric, count)?, Some(count))
        });
    }
    let up = stored("up{job=\"perfctr\"}", 1)?;
    tally.check("Prometheus finds nothing wrong with what it scrapes", equal(up, Some(1)));
    Ok(())
}

fn start_prometheus() -> Result<Server> {
    let text = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: perfctr\n  \
         scrape_timeout: 1s\n  static_configs:\n  - targets: ['{EXPORTER}']\n"
    );
    fs::write(CONFIGURATION, text)?;
    let mut command = Command::new(PROMETHEUS_PATH);
    command.arg(format!("--config.file={CONFIGURATION}"));
    command.arg(format!("--storage.tsdb.path={STORE}"));
    command.arg(format!("--web.listen-address={PROMETHEUS}"));
    command.stderr(fs::File::create("/run/prometheus.log")?).stdout(Stdio::null());
    Server::start(&mut command, PROMETHEUS)
        .with_context(|| fs::read_to_string("/run/prometheus.log").unwrap_or_default())
}

/// Tests that a busy thread is in the first row, and that its vCPU is not shown as idle.
pub fn live(tally: &mut Tally) -> Result<()> {
    let mut busy = Server(Command::new("/bin/sh").args(["-c", "while :; do :; done"]).spawn()?);
    let looks = ["top", "--plain", "-e", EVENT, "-d", "500", "-n", "2"];
    let threads = printed(&looks)?;
    let first = |text: &str| -> Option<(String, u64)> {
        let lines: Vec<&str> = text.lines().collect();
        let heading = lines.iter().rposition(|line| line.contains(EVENT))?;
        let words: Vec<&str> = lines.get(heading + 1)?.split_whitespace().collect();
        let count = words.last()?.replace(',', "").parse().ok()?;
        Some((words.first()?.to_string(), count))
    };
    let top = first(&threads);
    println!("{threads}");
    tally.check("perfctr top has the busy thread first", {
        let is_right = top
            .as_ref()
            .is_some_and(|(tid, count)| *tid == busy.0.id().to_string() && *count > 1_000_000);
        is_right.then_some(()).ok_or(format!("{top:?} in\n{threads}"))
    });
    let cpus = printed(&[&looks[..], &["--cpus"]].concat())?;
    println!("{cpus}");
    let counts = cpus.lines().filter(|line| line.contains(" CPU "));
    let counts: Vec<u64> = counts
        .filter_map(|line| line.split_whitespace().last()?.replace(',', "").parse().ok())
        .collect();
    tally.check("perfctr top has all vCPUs, and what keeps one busy", {
        let expected = vm_tests::threads::cpus()?.len() * 2;
        let is_right = counts.len() == expected && counts.iter().any(|&count| count > 1_000_000);
        is_right.then_some(()).ok_or(cpus)
    });
    let sampled = printed(&["top", "--plain", "--functions", "-e", EVENT, "-d", "500", "-n", "2"])?;
    println!("{sampled}");
    let updates: Vec<(u64, u64)> = sampled.lines().fold(Vec::new(), |mut updates, line| {
        let mut words = line.split_whitespace();
        let first = words.next().and_then(|word| word.parse().ok());
        match (first, words.next(), updates.last_mut()) {
            (Some(all), Some("samples"), _) => updates.push((all, 0)),
            (Some(samples), _, Some((_, listed))) => *listed += samples,
            _ => {}
        }
        updates
    });
    tally.check("perfctr top has the functions of all samples of each update", {
        let is_right = |&(all, listed): &(u64, u64)| all > 0 && all == listed;
        let are_right = updates.len() == 2 && updates.iter().all(is_right);
        are_right.then_some(()).ok_or(format!("{updates:?} in\n{sampled}"))
    });
    busy.0.kill()?;
    Ok(())
}
