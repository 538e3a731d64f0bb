// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what `perfctr stat` reports about a running process and about intervals, and what `perfctr
//! record` finds in the kernel.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write, pipe};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vm_tests::region::Region;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{cpus, run_on, wait_for_rest};

use crate::command::{PERFCTR, counts, stat};
use crate::record::{PERIOD, PROFILE, rows};
use crate::subject;

/// The orders. All have as many digits.
const ORDERS: [&str; 2] = ["400000", "910000"];
/// How often each order is given. Only the beginning and the end of counting stop the process'
/// threads.
const PAIRS: usize = 5;
/// An order that takes many intervals, and one that a new thread executes.
const LONG: &str = "50000000";
const THREAD: &str = "3000000";
/// An order by which the process is in the kernel.
const READS: &str = "read 100000";
/// The file to which intervals are written.
const RESULT: &str = "/tmp/intervals";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

const fn region(length: u64) -> Region {
    Region { first: length, second: 1 }
}

/// Runs a process that executes orders: each in both of its threads, one after the other, in a new
/// thread, or in the kernel.
pub fn worker() -> Result<()> {
    let (orders, mut order) = pipe()?;
    let (answers, mut answer) = pipe()?;
    thread::spawn(move || -> Result<()> {
        for line in BufReader::new(orders).lines() {
            region(line?.parse()?).execute(&mut 0);
            answer.write_all(b"done\n")?;
        }
        Ok(())
    });
    let mut answers = BufReader::new(answers);
    let mut line = String::new();
    for text in std::io::stdin().lock().lines() {
        let text = text?;
        if let Some(length) = text.strip_prefix("thread ") {
            let region = region(length.parse()?);
            let done = thread::spawn(move || region.execute(&mut 0)).join();
            ensure!(done.is_ok(), "a thread has ended early");
        } else if let Some(number) = text.strip_prefix("read ") {
            let (number, mut zero) = (number.parse()?, File::open("/dev/zero")?);
            (0..number).try_for_each(|_: u32| zero.read_exact(&mut [0]))?;
        } else {
            region(text.parse()?).execute(&mut 0);
            order.write_all(format!("{text}\n").as_bytes())?;
            line.clear();
            answers.read_line(&mut line)?;
        }
        std::io::stdout().write_all(b"done\n")?;
    }
    Ok(())
}

/// Gives the worker this order, and waits until it is executed and all its threads wait again.
pub fn order(pid: &str, text: &str) -> Result<()> {
    // The order is written in one piece, since two pieces would make the worker execute more.
    let mut input = File::options().write(true).open(format!("/proc/{pid}/fd/0"))?;
    input.write_all(format!("{text}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(File::open(format!("/proc/{pid}/fd/1"))?).read_line(&mut answer)?;
    ensure!(answer == "done\n", "the worker says {answer:?}");
    wait_for_rest(pid)
}

struct Worker(Child);

impl Worker {
    fn start() -> Result<Self> {
        let mut command = Command::new(subject::path()?);
        command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped());
        let worker = Self(command.spawn()?);
        // This executes everything that is executed only once.
        for order in [ORDERS[0], ORDERS[1]] {
            self::order(&worker.pid(), order)?;
        }
        Ok(worker)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Counts what the worker executes for this order.
    fn counted(&self, order: &str) -> Result<[u64; 2]> {
        self.counted_by(&["-p", &self.pid()], order)
    }

    /// Counts those whom these options name while the worker executes this order.
    fn counted_by(&self, options: &[&str], order: &str) -> Result<[u64; 2]> {
        let program = subject::words(&["order", &self.pid(), order])?;
        Ok(counts(&stat(options, &program)?.document)?[0])
    }

    /// Makes the worker end normally.
    fn finish(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait()?;
        ensure!(status.success(), "the worker has ended by {status}");
        Ok(())
    }
}

/// Checks that the counts of two orders differ by the orders' lengths, in the threads that existed.
pub fn exact(tally: &mut Tally) -> Result<()> {
    let worker = Worker::start()?;
    let lengths = ORDERS.map(|order| order.parse::<u64>().unwrap_or_default());
    let distance = 2 * (lengths[1] - lengths[0]);
    let pair = |_| -> Result<[u64; 2]> {
        let [short, long] = [worker.counted(ORDERS[0])?, worker.counted(ORDERS[1])?];
        Ok([0, 1].map(|n| long[n].wrapping_sub(short[n])))
    };
    let pairs = (0..PAIRS).map(pair).collect::<Result<Vec<_>>>()?;
    let first = |order| worker.counted_by(&["-t", &worker.pid()], order);
    let [short, long] = [first(ORDERS[0])?, first(ORDERS[1])?];
    tally.check("a thread counts what it executes, without the other one", {
        equal([0, 1].map(|n| long[n].wrapping_sub(short[n])), [distance, distance / 2])
    });
    let [everything, _] = worker.counted_by(&["-a"], LONG)?;
    let both = 2 * instructions(LONG)?;
    tally.check("all CPUs count what both threads execute, and what others do", {
        (everything > both).then_some(()).ok_or(format!("{everything} found, {both} in both"))
    });
    tally.check("a process that runs already counts what its threads execute", {
        equal(pairs, vec![[2 * distance, distance]; PAIRS])
    });
    let length: u64 = THREAD.parse()?;
    let [instructions, _] = worker.counted(&format!("thread {THREAD}"))?;
    tally.check("so does a thread that it starts then", {
        let known = region(length).instructions();
        let is_right = (known..known + known / 10).contains(&instructions);
        is_right
            .then_some(())
            .ok_or(format!("{instructions} found, {known} and little more expected"))
    });
    tally.check("it goes on when it is not counted any more", {
        worker.finish().map_err(|error| error.to_string())
    });
    Ok(())
}

/// Checks samples of the kernel, each of which is in a function that the kernel lists. There is one
/// for each period that another event counts at the same time. The two events begin and end at
/// different moments, so one more or less is right. The thread stays on one CPU, since Linux counts
/// a thread's periods on each CPU separately.
pub fn in_the_kernel(tally: &mut Tally) -> Result<()> {
    let worker = Worker::start()?;
    let pid = worker.pid();
    run_on(Pid::from_raw(pid.parse()?), &cpus()?[..1])?;
    order(&pid, READS)?;
    let period = PERIOD.to_string();
    let record = [PERFCTR, "record", "-e", "instructions:k", "-c", &period, "-o", PROFILE];
    let record = record.into_iter().chain(["-t", &pid, "--"]).map(str::to_owned);
    let program: Vec<String> = record.chain(subject::words(&["order", &pid, READS])?).collect();
    let document = stat(&["-e", "instructions:k", "-t", &pid], &program)?.document;
    let counted = document["runs"][0]["counts"][2].as_u64();
    let counted = counted.with_context(|| document.to_string())?;
    let (layers, symbols) = (rows("layer")?, rows("layer,symbol")?);
    let samples = layers.iter().filter(|row| row.name == "kernel").map(|row| row.samples).sum();
    let (samples, periods): (u64, u64) = (samples, counted / PERIOD);
    tally.check("the kernel has a sample for every period that it executes for a thread", {
        let is_right = samples > 50 && samples.abs_diff(periods) <= 1;
        is_right.then_some(()).ok_or(format!("{samples} found, {counted} counted"))
    });
    let names: Vec<&str> = symbols.iter().map(|row| &*row.name).collect();
    tally.check("each of them is in a function of the kernel's", {
        let is_right = !names.contains(&"[kernel]") && names.contains(&"vfs_read");
        is_right.then_some(()).ok_or(format!("{names:?}"))
    });
    worker.finish()
}

/// Checks that intervals add up to the whole, until an interrupt, the end of the process, or the
/// end of the program.
pub fn intervals(tally: &mut Tally) -> Result<()> {
    let worker = Worker::start()?;
    let pid = worker.pid();
    let mut perfctr = watch(&["-p", &pid])?;
    order(&pid, LONG)?;
    kill(Pid::from_raw(perfctr.id() as i32), Signal::SIGINT)?;
    sum_up(tally, &mut perfctr, "a process until an interrupt", 2 * instructions(LONG)?)?;
    let mut perfctr = watch(&["-p", &pid])?;
    order(&pid, ORDERS[0])?;
    worker.finish()?;
    sum_up(tally, &mut perfctr, "a process to its end", 2 * instructions(ORDERS[0])?)?;
    let program = subject::words(&["subject", LONG])?;
    let words: Vec<&str> = ["--"].into_iter().chain(program.iter().map(String::as_str)).collect();
    let mut perfctr = watch(&words)?;
    sum_up(tally, &mut perfctr, "a program", instructions(LONG)?)?;
    let absent = Command::new(PERFCTR).args(["stat", "-p", "4194304"]).output()?;
    let printed = String::from_utf8_lossy(&absent.stderr).into_owned();
    tally.check("a process that is not there is named", {
        let is_right = absent.status.code() == Some(125) && printed.contains("process 4194304");
        is_right.then_some(()).ok_or(printed)
    });
    Ok(())
}

fn instructions(order: &str) -> Result<u64> {
    Ok(region(order.parse()?).instructions())
}

/// Starts `perfctr stat`, and waits until it has printed an interval.
fn watch(options: &[&str]) -> Result<Child> {
    fs::remove_file(RESULT).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let mut command = Command::new(PERFCTR);
    command.args(["stat", "--csv", "-I", "10", "-o", RESULT, "-e", "instructions:u,branches:u"]);
    let mut child = command.args(options).spawn().context(PERFCTR)?;
    let start = Instant::now();
    while !fs::read_to_string(RESULT).is_ok_and(|text| text.contains('\n')) {
        if start.elapsed() > PATIENCE || child.try_wait()?.is_some() {
            child.kill()?;
            bail!("perfctr stat prints no intervals");
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(child)
}

/// Checks that the first event's intervals add up to the whole count, which is at least `least`.
fn sum_up(tally: &mut Tally, perfctr: &mut Child, what: &str, least: u64) -> Result<()> {
    let status = perfctr.wait()?;
    let text = fs::read_to_string(RESULT)?;
    let (mut parts, mut totals) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let fields: Vec<&str> = line.split(',').collect();
        match fields[..] {
            [_, value, "", "instructions:u", _, _, _, _] => parts.push(value.parse::<u64>()?),
            [value, "", "instructions:u", _, _, _, _] => totals.push(value.parse::<u64>()?),
            _ => {}
        }
    }
    tally.check(&format!("intervals of {what} sum up to the whole"), {
        let sum: u64 = parts.iter().sum();
        let is_right = status.success() && totals == [sum] && parts.len() > 1 && sum >= least;
        is_right
            .then_some(())
            .ok_or(format!("{status}, {parts:?} and {totals:?}, {least} at least"))
    });
    Ok(())
}
