// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests how threads, processes, descriptors, CPUs and the module itself begin and end.
//!
//! Whatever happens, threads that continue to count do so exactly, and nothing is left behind.

mod cpus;
mod ends;
mod forbidden;
mod processes;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use vm_tests::host::host;
use vm_tests::region;
use vm_tests::reload;
use vm_tests::tally::Tally;

/// Tests how sessions begin and end.
#[derive(Debug, Parser)]
struct Options {
    /// What to do as a child process of this program.
    #[arg(long, hide = true)]
    child: Option<processes::Child>,
    /// Sessions to open and close one after the other.
    #[arg(long, default_value_t = 2000)]
    cycles: u32,
    /// Times to take every CPU offline and bring it back.
    #[arg(long, default_value_t = 5)]
    hotplugs: u32,
    /// Times to forbid this domain to count.
    #[arg(long, default_value_t = 20)]
    revocations: u32,
    /// Times to unload and load the module.
    #[arg(long, default_value_t = 20)]
    reloads: u32,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if let Some(child) = options.child {
        return Ok(child.run());
    }
    // A process without other threads is stepped.
    region::overhead()?;
    let mut tally = Tally::default();
    // These come first, since the sessions that later tests forget keep the module.
    tally.check("module in use", outcome(reload::in_use()));
    tally.check("module comes and goes", outcome(reload::comes_and_goes(options.reloads)));
    for (name, test) in ends::TESTS.iter().chain(processes::TESTS) {
        tally.check(name, outcome(test()));
    }
    // Xen says itself who may execute RDPMC in a paravirtualised guest: a user's every process.
    if host()?.xen().is_none() {
        let outcome = outcome(processes::a_forked_child_reads_no_counter());
        tally.check("a forked child reads no counter by itself", outcome);
    }
    tally.check("many sessions", outcome(ends::many_sessions(options.cycles)));
    tally.check("CPUs come and go", outcome(cpus::come_and_go(options.hotplugs)));
    tally.check(
        "a CPU comes online whatever the hypervisor answers",
        outcome(cpus::come_online_without_counters()),
    );
    tally.check(
        "a domain that is forbidden reads nothing from then on",
        outcome(forbidden::forbidden_at_once(options.revocations)),
    );
    Ok(tally.finish())
}

fn outcome(result: Result<()>) -> Result<(), String> {
    result.map_err(|error| format!("{error:#}"))
}
