// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `perfctr`: what can be counted here, and what programs do.

mod domains;
mod events;
mod export;
mod generate;
mod info;
mod list;
mod live;
mod machine;
mod profile;
mod program;
mod record;
mod report;
mod stat;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// perfctr's own failures end with this status, as those of `env` and `timeout` do.
const FAILURE: u8 = 125;

/// Exact hardware performance counters, in virtual machines too.
#[derive(Debug, Parser)]
#[command(name = "perfctr", version, arg_required_else_help = true)]
struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Says on a Xen or a KVM host which domains may count, and with what.
    Domains(domains::Options),
    /// Lets Prometheus and others scrape counts of processes, threads and cgroups.
    Export(export::Options),
    /// Writes man pages and completions, for who installs it.
    #[command(hide = true)]
    Generate(generate::Options),
    /// Says who provides counters here, why nobody better does, and what the machine has.
    Info(info::Options),
    /// Lists events, how they are encoded, and which of them can be counted here.
    List(list::Options),
    /// Runs a program and notes where it is whenever so many events have occurred.
    Record(record::Options),
    /// Says of what was recorded how much happened where.
    Report(report::Options),
    /// Runs a program and says what it counted, with all threads and processes that it started.
    Stat(stat::Options),
    /// Says live what threads or CPUs count.
    Top(top::Options),
}

fn main() -> ExitCode {
    let result = match Options::parse().verb {
        Verb::Domains(options) => domains::run(&options),
        Verb::Export(options) => export::run(&options),
        Verb::Generate(options) => generate::run(&options, Options::command()),
        Verb::Info(options) => info::run(&options),
        Verb::List(options) => list::run(&options),
        Verb::Record(options) => record::run(&options),
        Verb::Report(options) => report::run(&options),
        Verb::Stat(options) => stat::run(options),
        Verb::Top(options) => top::run(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("perfctr: {error:#}");
        ExitCode::from(FAILURE)
    })
}
