// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The control domain's part: it creates the tenant, samples the host under each load, and prints
//! the tables.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use vm_tests::network;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, Wanted};
use vm_tests::xen::TOOLS;

use crate::disk;
use crate::lists::{self, Row};
use crate::requests::{self, DISK, KERNEL, OWN_PERF, OWN_SWITCHES, PACKETS, SWITCHES};
use crate::shares::{Names, Samples};
use crate::tenant::PERIOD;

const PERFCTR: &str = "/work/perfctr";
const PROFILE: &str = "/tmp/causes.data";
/// Where the tables are left for the suite, which prints them.
const TABLES: &str = "/out/tables.md";
/// The list of the functions of the tenant's kernel.
const KALLSYMS: &str = "/run/causes.kallsyms";
/// The tenant's name, and the name of this domain.
const TENANT: &str = "causes";
const CONTROL: &str = "Domain-0";
/// The tenant's memory. Its userland, which has perf, takes most of it. Unit: MiB.
const MEMORY_MIB: u32 = 512;
/// How long each load lasts. Unit: seconds.
const SECONDS: u64 = 4;
/// How many functions a table has in each list.
const MOST: usize = 10;

/// A load, and whose functions are shown.
struct Load {
    name: &'static str,
    title: &'static str,
    domain: &'static str,
    /// What some function's name begins with that the load surely executes.
    driver: &'static str,
}

const LOADS: [Load; 4] = [
    Load {
        name: PACKETS,
        title: "A PVH tenant receives packets",
        domain: TENANT,
        driver: "xennet_",
    },
    Load { name: DISK, title: "A PVH tenant reads a disk", domain: TENANT, driver: "blkif_" },
    Load {
        name: SWITCHES,
        title: "A PVH tenant switches between two processes",
        domain: TENANT,
        driver: "__schedule",
    },
    Load {
        name: OWN_SWITCHES,
        title: "The control domain, a PV guest, switches between two processes",
        domain: CONTROL,
        driver: "__schedule",
    },
];

/// Samples the host under each load, compares, and destroys the tenant.
pub fn run() -> Result<ExitCode> {
    let mut tally = Tally::default();
    let config = format!("{}\n{}", network::prepare()?, disk::prepare()?);
    toolstack::start()?;
    // Debian has this link, by which the command finds domains' names.
    symlink(Path::new(TOOLS).join("xl"), "/usr/sbin/xl")?;
    let tenant = start_tenant(&config)?;
    let kallsyms = network::functions_of_tenant()?;
    fs::write(KALLSYMS, &kallsyms)?;
    let list = format!("{}={KALLSYMS}", tenant.domain);
    let mut tables = String::new();
    let mut added = Vec::new();
    for load in &LOADS {
        let rows = record_load(load, &list)?;
        tables += &format!("{}\n\n{}\n", load.title, lists::table(&rows, MOST));
        let mut drivers = rows.iter().filter(|row| row.function.starts_with(load.driver));
        let has_driver = drivers.any(|row| row.itself > 0);
        let name =
            format!("under the load {}, functions {}... have samples", load.name, load.driver);
        tally.check(&name, equal(has_driver, true));
        let [itself, for_it] = lists::sums(&rows);
        added.push(for_it as f64 / itself.max(1) as f64);
    }
    print!("{tables}");
    fs::write(TABLES, tables)?;
    let [packets, disk, switches, own_switches] = added[..] else { unreachable!("four loads") };
    println!("Xen's share: {packets:.3} {disk:.3} {switches:.3} {own_switches:.3}");
    // A PVH guest changes its page tables and its stack without Xen, and a PV guest does not. Its
    // devices need Xen in both.
    for (name, less, more) in [
        ("packets cost a PVH guest more of Xen's work than switches do", switches, packets),
        ("reads of a disk cost a PVH guest more of Xen's work than switches do", switches, disk),
        ("switches cost a PV guest more of Xen's work than a PVH guest", switches, own_switches),
    ] {
        let why = format!("{less:.3} and {more:.3} of the guest's own");
        tally.check(name, if less < more { Ok(()) } else { Err(why) });
    }
    same_functions(&String::from_utf8(kallsyms)?, &list, &mut tally)?;
    ends_while_recorded(tenant, &mut tally)?;
    Ok(tally.finish())
}

/// Starts the tenant, with these lines in its configuration.
fn start_tenant(config: &str) -> Result<Tenant> {
    let usual = Wanted::usual(Kind::Pvh, TENANT, 1, Tsc::Native, "tenant");
    let wanted = Wanted { config, memory_mib: MEMORY_MIB, ..usual };
    let mut tenant = Tenant::create_wanted(&wanted)?;
    tenant.unpause()?;
    let printed = tenant.receive()?;
    ensure!(printed == "ready", "the tenant says {printed}");
    Ok(tenant)
}

fn record<'a>(options: impl IntoIterator<Item = &'a str>, event: &str) -> Command {
    let mut command = Command::new(PERFCTR);
    command.args(["record", "--host", "-o", PROFILE, "-e", event, "-c", PERIOD]).args(options);
    command
}

/// Runs a command that succeeds, and returns what it has printed.
fn printed(command: &mut Command) -> Result<String> {
    let out = command.output()?;
    let shown = String::from_utf8([out.stdout, out.stderr].concat())?;
    ensure!(out.status.success(), "{command:?}: {}: {shown}", out.status);
    Ok(shown)
}

fn report(options: &[&str]) -> Result<String> {
    printed(Command::new(PERFCTR).args(["report", "-i", PROFILE]).args(options))
}

/// Samples the host under a load. Returns the samples of the load's domain.
fn record_load(load: &Load, list: &str) -> Result<Vec<Row>> {
    let this = env::current_exe()?.display().to_string();
    let seconds = SECONDS.to_string();
    let options =
        ["--at-guests", "--guest-symbols", list, "--", &this, "load", load.name, &seconds];
    let shown = printed(&mut record(options, "instructions"))?;
    println!("{}: {}", load.name, shown.trim());
    lists::rows(&report(&["--caused"])?, load.domain)
}

/// Checks that the host finds the functions of the tenant's kernel that the tenant's own perf
/// finds, with the same shares. First the tenant samples itself, and then the host samples the
/// tenant, which does the same work and does not sample.
fn same_functions(kallsyms: &str, list: &str, tally: &mut Tally) -> Result<()> {
    let inside: Samples = serde_json::from_value(requests::ask(OWN_PERF, SECONDS)?)?;
    let this = env::current_exe()?.display().to_string();
    let seconds = SECONDS.to_string();
    let options = ["--guest-symbols", list, "--", &this, "load", KERNEL, &seconds];
    printed(&mut record(options, "instructions:k"))?;
    let table = report(&["-s", "layer,domain,symbol"])?;
    let outside = of_kernel(&table, TENANT);
    let compared = Names::of(kallsyms).compare(&inside, &outside);
    println!("{}", compared.as_deref().unwrap_or(&table));
    let name = "the host names the functions of a tenant's kernel as the tenant's own perf does";
    tally.check(name, compared.map(drop));
    Ok(())
}

/// Returns the samples of each function of a domain's kernel, in a table of `perfctr report -s
/// layer,domain,symbol`.
fn of_kernel(table: &str, domain: &str) -> Samples {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [samples, _, "kernel", of, function @ ..] = &words[..] else { return None };
        if *of == domain { Some((function.join(" "), samples.parse().ok()?)) } else { None }
    };
    table.lines().filter_map(row).collect()
}

/// Destroys the tenant while the host is sampled. Checks that the recording goes on to its end, and
/// that its profile names the tenant.
fn ends_while_recorded(tenant: Tenant, tally: &mut Tally) -> Result<()> {
    let seconds = (2 * SECONDS).to_string();
    let mut recording = record(["--", "sleep", &seconds], "instructions").spawn()?;
    sleep(Duration::from_secs(SECONDS));
    tenant.destroy()?;
    let before = recording.try_wait()?;
    ensure!(before.is_none(), "the recording has ended before the tenant: {before:?}");
    let status = recording.wait()?;
    let name = "a recording goes on when a domain is destroyed";
    tally.check(name, equal(status.success(), true));
    let table = report(&["-s", "domain"])?;
    println!("{table}");
    let named = table.lines().any(|line| line.split_whitespace().last() == Some(TENANT));
    tally.check("the profile names the domain that is gone", equal(named, true));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_one_kernel() {
        let table = "\
9 samples of 2 vCPUs, one every 100003 instructions, from xen
   samples       %  layer       domain    symbol
         4   44.44  kernel      causes    clear_user
         3   33.33  kernel      Domain-0  clear_user
         1   11.11  user        causes    [user mode of domain 1]
         1   11.11  kernel      causes    read_zero
";
        let expected = [("clear_user".to_owned(), 4), ("read_zero".to_owned(), 1)];
        assert_eq!(of_kernel(table, TENANT), Samples::from(expected));
    }
}
