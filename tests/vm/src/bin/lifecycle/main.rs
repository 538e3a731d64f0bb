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
use vm_tests::module::complains_of_nothing;
use vm_tests::region;
use vm_tests::reload;
use vm_tests::tally::Tally;

/// Tests how sessions begin and end.
#[derive(Debug, Parser)]
struct Options {
    /// What to do as a child process of this program.
    #[arg(long, hide = true)]
    child: Option<processes::Child>,
    /// Only tests whose names contain this text.
    #[arg(long, default_value = "")]
    only: String,
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
    let mut test = |name: &str, test: &dyn Fn() -> Result<()>| {
        if name.contains(&options.only) {
            tally.check(name, test().map_err(|error| format!("{error:#}")));
        }
    };
    // A guest of KVM may open this only once.
    let host = host()?;
    // These come first, since the sessions that later tests forget keep the module.
    test("module in use", &reload::in_use);
    test("module comes and goes", &|| reload::comes_and_goes(options.reloads, Some(&*host)));
    test("a CPU that is away when the module goes keeps no page", &|| {
        cpus::absent_while_the_module_goes(&*host)
    });
    for (name, of_table) in ends::TESTS.iter().chain(processes::TESTS) {
        test(name, of_table);
    }
    // In a paravirtualised guest, Xen itself decides who may execute RDPMC: all of a user's
    // processes.
    if host.xen().is_none() {
        test(
            "a forked child reads no counter by itself",
            &processes::a_forked_child_reads_no_counter,
        );
    }
    test("many sessions", &|| ends::many_sessions(options.cycles));
    test("CPUs come and go", &|| cpus::come_and_go(options.hotplugs));
    test("a CPU comes online whatever the hypervisor answers", &|| {
        cpus::come_online_without_counters(&*host)
    });
    test("a domain that is forbidden reads nothing from then on", &|| {
        forbidden::forbidden_at_once(options.revocations, &*host)
    });
    test("the kernel complains of nothing", &complains_of_nothing);
    Ok(tally.finish())
}
