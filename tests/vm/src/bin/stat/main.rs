// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what the commands `perfctr stat` and `perfctr record` report about programs with known
//! counts.

mod attached;
mod command;
mod compiled;
mod gated;
mod info;
mod record;
mod sampled;
mod subject;

use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::personality::{self, Persona};
use vm_tests::host::host;
use vm_tests::step::{Executed, Trace};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::cpus;
use vm_tests::{disturb, perf};

use command::{Stat, stat};

/// The number of runs of one program, which all must have the same counts.
const RUNS: u32 = 20;
/// A program without a library, threads or children (`alone.S`).
const ALONE: &str = "/work/alone";
/// How the machine is disturbed meanwhile.
const PCPUS: u32 = 2;
const SEED: u64 = 1;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = arguments.split_first().context("who provides counters here?")?;
    match &**name {
        "subject" => subject::run(rest).map(|()| ExitCode::SUCCESS),
        "pages" => subject::pages(rest).map(|()| ExitCode::SUCCESS),
        "sampled" => sampled::run().map(|()| ExitCode::SUCCESS),
        "sampled-child" => {
            sampled::child();
            Ok(ExitCode::SUCCESS)
        }
        "compiled" => compiled::run().map(|()| ExitCode::SUCCESS),
        "worker" => attached::worker().map(|()| ExitCode::SUCCESS),
        "order" => {
            let [pid, order] = rest else { anyhow::bail!("no process, or no order") };
            attached::order(pid, order).map(|()| ExitCode::SUCCESS)
        }
        provider => judge(provider),
    }
}

/// Runs all checks of a machine with this provider.
fn judge(provider: &str) -> Result<ExitCode> {
    // Then programs have the same addresses each time, and so execute the same instructions.
    personality::set(personality::get()? | Persona::ADDR_NO_RANDOMIZE)?;
    // C libraries ask the kernel for random numbers, and execute more while it has none.
    File::open("/dev/random")?.read_exact(&mut [0])?;
    let mut tally = Tally::default();
    let truth = stepped()?;
    println!("by its machine code: {truth:?}");
    info::published(&mut tally, provider)?;
    perf::keep_sample_rate()?;
    alone(&mut tally, provider, truth, "")?;
    metric(&mut tally, truth)?;
    if provider == "paravirt" {
        disturbed(|| {
            alone(&mut tally, provider, truth, " while vCPUs and threads are moved")?;
            everything_that_it_starts(&mut tally)?;
            attached::exact(&mut tally)?;
            record::functions(&mut tally)
        })?;
    } else {
        attached::exact(&mut tally)?;
        record::functions(&mut tally)?;
    }
    attached::intervals(&mut tally)?;
    attached::in_the_kernel(&mut tally)?;
    of_the_kernel(&mut tally)?;
    ends(&mut tally)?;
    record::others(&mut tally)?;
    record::frequency(&mut tally, provider)?;
    gated::functions(&mut tally)?;
    Ok(tally.finish())
}

/// Returns what that program executes.
fn stepped() -> Result<Executed> {
    let trace = Trace::of_program(&mut Command::new(ALONE)).context(ALONE)?;
    Ok(trace.between(0, trace.len()))
}

/// Checks that every run counts what the machine code says.
fn alone(tally: &mut Tally, provider: &str, truth: Executed, how: &str) -> Result<()> {
    let runs = RUNS.to_string();
    let Stat { document, .. } = stat(&["-r", &runs], &[ALONE.to_owned()])?;
    tally.check(&format!("{provider} provides counts{how}"), {
        equal(document["provider"].as_str(), Some(provider))
    });
    let expected = vec![[truth.instructions, truth.branches]; RUNS as usize];
    tally.check(
        &format!("{provider}: each of {RUNS} runs of a program counts what it executes{how}"),
        equal(command::counts(&document)?, expected),
    );
    Ok(())
}

/// Checks a metric of a table, which this test has written in the form of a vendor's.
fn metric(tally: &mut Tally, truth: Executed) -> Result<()> {
    const TABLES: &str = "/tmp/tables";
    let table = r#"[
        {"EventName": "INST_RETIRED.ANY", "Counter": "Fixed counter 0", "UMask": "0x1"},
        {"EventName": "BR_INST_RETIRED.ALL", "EventCode": "0xc4", "UMask": "0x0"},
        {"MetricName": "Branching", "MetricExpr": "BR_INST_RETIRED.ALL / INST_RETIRED.ANY",
         "ScaleUnit": "100%"}
    ]"#;
    fs::create_dir_all(format!("{TABLES}/any"))?;
    fs::write(format!("{TABLES}/mapfile.csv"), "heading\n.*,v1,any,core\n")?;
    fs::write(format!("{TABLES}/any/all.json"), table)?;
    let options = ["-M", "Branching:u", "--tables", TABLES];
    let Stat { document, .. } = stat(&options, &[ALONE.to_owned()])?;
    let found = document["metrics"][0]["value"].as_f64().with_context(|| document.to_string())?;
    let expected = 100.0 * truth.branches as f64 / truth.instructions as f64;
    tally.check("a metric of a vendor's table is what its expression says", {
        let is_right = (found - expected).abs() < 1e-9;
        is_right.then_some(()).ok_or(format!("{found} found, {expected} expected"))
    });
    Ok(())
}

/// Checks events that the kernel counts, beside events of counters: a thread of the program writes
/// to a known number of new pages.
fn of_the_kernel(tally: &mut Tally) -> Result<()> {
    const PAGES: [&str; 2] = ["1000", "3000"];
    let counts = |pages| -> Result<[u64; 3]> {
        let program = subject::words(&["pages", pages])?;
        let run = stat(&["-e", "page-faults:u,task-clock:u"], &program)?.document["runs"][0].take();
        let count = |n: usize| run["counts"][n].as_u64().with_context(|| run.to_string());
        Ok([count(0)?, count(2)?, count(3)?])
    };
    let [few, many] = PAGES.map(counts);
    let ([few, many], expected) = ([few?, many?], [true, true, true]);
    let of_pages = many[1].checked_sub(few[1]);
    tally.check("each page that a thread writes to first is a page fault", {
        equal(of_pages, Some(2_000)).map_err(|why| format!("{why}: {few:?}, {many:?}"))
    });
    let found = [few[0] < many[0], few[2] > 0, many[2] > 0];
    tally.check("counters and the kernel's clock go on beside them", equal(found, expected));
    Ok(())
}

/// Runs `body` while host and guest move vCPUs and threads, and other threads compete for the CPUs.
fn disturbed(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let host = host()?;
    let (cpus, stop) = (cpus()?, AtomicBool::new(false));
    thread::scope(|scope| {
        let (host, cpus, stop) = (&*host, &cpus, &stop);
        scope.spawn(move || disturb::vcpus(host, cpus, PCPUS, SEED, stop));
        for _ in cpus {
            scope.spawn(|| while !stop.load(Ordering::Relaxed) {});
        }
        let result = body();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Checks two runs of a program with threads and children. Their counts differ by the lengths of
/// their work, separately in each thread and child.
fn everything_that_it_starts(tally: &mut Tally) -> Result<()> {
    let runs = subject::TREES
        .iter()
        .map(|tree| stat(&["--per-thread"], &subject::words(tree)?))
        .collect::<Result<Vec<_>>>()?;
    let threads =
        runs.iter().map(|run| command::threads(&run.document)).collect::<Result<Vec<_>>>()?;
    // The first thread waits for the others, an unknown number of times.
    let distances: Vec<Vec<i64>> =
        threads[0].iter().zip(&threads[1]).skip(1).map(difference).collect();
    let [short, long] = subject::TREES.map(|tree| subject::work(&tree[1..]));
    let truth = |(short, long): (Executed, Executed)| {
        difference((
            &vec![short.instructions, short.branches],
            &vec![long.instructions, long.branches],
        ))
    };
    let expected: Vec<Vec<i64>> = short.into_iter().zip(long).map(truth).collect();
    tally.check("each thread and process that a program starts counts what it executes", {
        equal(distances, expected)
    });
    for (run, threads) in runs.iter().zip(&threads) {
        let sums = [0, 1].map(|n| threads.iter().map(|counts| counts[n]).sum::<u64>());
        tally.check("the whole program is the sum of its threads", {
            equal(command::counts(&run.document)?, vec![sums])
        });
    }
    Ok(())
}

fn difference((one, two): (&Vec<u64>, &Vec<u64>)) -> Vec<i64> {
    one.iter().zip(two).map(|(one, two)| two.wrapping_sub(*one).cast_signed()).collect()
}

/// Checks that `perfctr stat` ends with its program's status, and names a program that cannot be
/// executed.
fn ends(tally: &mut Tally) -> Result<()> {
    let stopped = "(sleep 0.1; kill -CONT $$) & kill -STOP $$; wait; exit 3";
    for (name, script, status) in [
        ("the program's exit status is perfctr's", "exit 7", 7),
        ("a program that a signal ends gives 128 and the signal", "kill -USR1 $$", 138),
        ("a program that is stopped and continued goes on", stopped, 3),
    ] {
        let words = ["/bin/sh", "-c", script].map(str::to_owned);
        tally.check(name, equal(stat(&[], &words)?.status, Some(status)));
    }
    let absent = command::run(&[], &["/nowhere".to_owned()])?;
    let printed = String::from_utf8_lossy(&absent.stderr).into_owned();
    tally.check("what cannot be executed is named", {
        equal(
            (absent.status.code(), printed.contains("cannot execute /nowhere: No such file")),
            (Some(127), true),
        )
    });
    Ok(())
}
