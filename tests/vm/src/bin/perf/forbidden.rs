// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The host lets this domain count nothing for a while.

use anyhow::{Context, Result, ensure};
use vm_tests::step::Held;

use crate::Machine;
use crate::stat::{equal, shares};
use crate::tool::{
    EVENTS, LONG, LOOP, LOOP_EXECUTED, Told, executed, held, perf, pids, rows, told,
};

/// Does something meanwhile.
fn forbidden<T>(machine: &Machine, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let host = machine.host.as_ref().context("its host is not asked")?;
    host.allow(false)?;
    let outcome = act();
    host.allow(true)?;
    outcome
}

/// `perf stat` says that it was not counted.
pub fn not_counted(machine: &Machine) -> Result<()> {
    let count = ["stat", "-x,", "-e", EVENTS, LOOP];
    untold(&forbidden(machine, || perf(&count))?)?;
    let counted = rows(&perf(&count)?, 0);
    equal(executed(&counted)?, LOOP_EXECUTED, &counted)?;

    // This process' time begins with its first instruction: perf has not seen it execute.
    let programs = held(&[LOOP])?;
    let pids = pids(&programs);
    untold(&forbidden(machine, || told("stat", &["-x,", "-e", EVENTS, "-p", &pids], programs))?)
}

/// `perf stat` says for which share of the time it was counted, and that exactly.
pub fn partly_counted(machine: &Machine) -> Result<()> {
    let programs = held(&[LOOP, LONG])?;
    let pids = pids(&programs);
    let told = Told::start("stat", &["-x,", "--no-scale", "-e", EVENTS, "-p", &pids])?;
    let mut programs = programs.into_iter();
    programs.next().context("the short one")?.run()?;
    forbidden(machine, || programs.try_for_each(Held::run))?;
    let partly = rows(&told.end()?, 0);
    equal(executed(&partly)?, LOOP_EXECUTED, &partly)?;
    let shares = shares(&partly)?;
    ensure!(shares.iter().all(|share| (0.0..100.0).contains(share)), "{partly:?}");
    Ok(())
}

/// Neither event was counted.
fn untold(said: &str) -> Result<()> {
    let rows = rows(said, 0);
    ensure!(rows.len() == 2 && rows.iter().all(|row| row.count.is_none()), "{rows:?}");
    Ok(())
}
