// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests perf while the host does not let this domain count.

use anyhow::{Context, Result, ensure};
use vm_tests::step::Held;

use crate::Machine;
use crate::stat::{equal, shares};
use crate::tool::{
    EVENTS, LONG, LOOP, LOOP_EXECUTED, RunningPerf, executed, held, perf, pids, rows,
    watch_programs,
};

/// Does something while the host forbids this domain to count.
fn forbidden<T>(machine: &Machine, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let host = machine.host.as_ref().context("its host is not asked")?;
    host.allow(false)?;
    let outcome = act();
    host.allow(true)?;
    outcome
}

/// Checks that `perf stat` says that a program was not counted.
pub fn not_counted(machine: &Machine) -> Result<()> {
    let count = ["stat", "-x,", "-e", EVENTS, LOOP];
    check_not_counted(&forbidden(machine, || perf(&count))?)?;
    let counted = rows(&perf(&count)?, 0);
    equal(executed(&counted)?, LOOP_EXECUTED, &counted)?;

    // This process' time begins with its first instruction, since perf has not seen it execute
    // before.
    let programs = held(&[LOOP])?;
    let pids = pids(&programs);
    check_not_counted(&forbidden(machine, || {
        watch_programs("stat", &["-x,", "-e", EVENTS, "-p", &pids], programs)
    })?)
}

/// Checks that `perf stat` says for which share of the time a program was counted, and that this
/// part is exact.
pub fn partly_counted(machine: &Machine) -> Result<()> {
    let programs = held(&[LOOP, LONG])?;
    let pids = pids(&programs);
    let running = RunningPerf::start("stat", &["-x,", "--no-scale", "-e", EVENTS, "-p", &pids])?;
    let mut programs = programs.into_iter();
    programs.next().context("the short one")?.run()?;
    forbidden(machine, || programs.try_for_each(Held::run))?;
    let partly = rows(&running.end()?, 0);
    equal(executed(&partly)?, LOOP_EXECUTED, &partly)?;
    let shares = shares(&partly)?;
    ensure!(shares.iter().all(|share| (0.0..100.0).contains(share)), "{partly:?}");
    Ok(())
}

/// Fails unless perf says of both events that they were not counted.
fn check_not_counted(printed: &str) -> Result<()> {
    let rows = rows(printed, 0);
    ensure!(rows.len() == 2 && rows.iter().all(|row| row.count.is_none()), "{rows:?}");
    Ok(())
}
