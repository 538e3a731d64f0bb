// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The command `perfctr`, which shows what can be counted here, and counts what programs execute.

mod accounts;
mod domains;
mod elf;
mod events;
mod examples;
mod export;
mod gate;
mod generate;
mod guest;
mod host;
mod info;
mod list;
mod live;
mod machine;
mod perf_data;
mod profile;
mod program;
mod record;
mod report;
mod selftest;
mod stat;
mod tables;
mod text;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::program::child::NotExecuted;

/// perfctr's own failures end with this status, as those of `env` and `timeout` do.
const FAILURE: u8 = 125;
/// The status that shells report for a program that SIGPIPE has ended.
const CLOSED_PIPE: u8 = 128 + 13;

/// The text below the list of verbs, which is also in the man page.
const EXIT_STATUS: &str = "\
Exit status: that of the program that was run, or 128 and the number of the signal that ended it;
127 if there is no such program; 126 if it cannot be executed; 125 if perfctr itself has failed;
141 if nobody reads the output any more; 2 if the command line is wrong; with gate, 1 if the program
executes more than the baseline says; with selftest, 1 if a promise does not hold on this machine.";

/// Exact hardware performance counters, in virtual machines too.
#[derive(Debug, Parser)]
#[command(name = "perfctr", version, arg_required_else_help = true, after_help = EXIT_STATUS)]
struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Compares two profiles: which functions execute more or less than before.
    #[command(after_help = examples::DIFF)]
    Diff(report::diff::Options),
    /// Says on a host which virtual machines may count, changes that, or counts what they execute.
    #[command(after_help = examples::DOMAINS)]
    Domains(domains::Options),
    /// Serves counts of processes, threads and cgroups, or of a host's domains, to Prometheus.
    #[command(after_help = examples::EXPORT)]
    Export(export::Options),
    /// Runs a program and fails if it executes more than the baseline says.
    #[command(after_help = examples::GATE)]
    Gate(gate::Options),
    /// Writes man pages and completions, which are installed with the command.
    #[command(hide = true)]
    Generate(generate::Options),
    /// Says who provides counters here, why better providers do not, and what the machine has.
    #[command(after_help = examples::INFO)]
    Info(info::Options),
    /// Lists events, their encodings, and which of them can be counted here.
    #[command(after_help = examples::LIST)]
    List(list::Options),
    /// Runs a program, and takes a sample of it whenever a number of events has occurred.
    #[command(after_help = examples::RECORD)]
    Record(record::Options),
    /// Shows in which functions the recorded samples were taken.
    #[command(after_help = examples::REPORT)]
    Report(report::Options),
    /// Measures what counters do on this machine, and says what of our promises holds here.
    #[command(after_help = examples::SELFTEST)]
    Selftest(selftest::Options),
    /// Runs a program and counts events in it and in all threads and processes that it starts.
    #[command(after_help = examples::STAT)]
    Stat(stat::Options),
    /// Shows live counts of threads or CPUs, or where a Xen host is.
    #[command(after_help = examples::TOP)]
    Top(top::Options),
}

fn main() -> ExitCode {
    let result = match Options::parse().verb {
        Verb::Diff(options) => report::diff::run(&options),
        Verb::Domains(options) => domains::run(&options),
        Verb::Export(options) => export::run(&options),
        Verb::Gate(options) => gate::run(&options),
        Verb::Generate(options) => generate::run(&options, Options::command()),
        Verb::Info(options) => info::run(&options),
        Verb::List(options) => list::run(&options),
        Verb::Record(options) => record::run(&options),
        Verb::Report(options) => report::run(&options),
        Verb::Selftest(options) => selftest::run(&options),
        Verb::Stat(options) => stat::run(options),
        Verb::Top(options) => top::run(&options),
    };
    result.unwrap_or_else(|error| failed(&error))
}

/// Prints the reason, and returns the exit status.
fn failed(error: &anyhow::Error) -> ExitCode {
    if text::is_closed_pipe(error) {
        // The reader of our output has closed the pipe.
        return ExitCode::from(CLOSED_PIPE);
    }
    text::print_note(format_args!("{error:#}"));
    ExitCode::from(error.downcast_ref().map_or(FAILURE, NotExecuted::status))
}
