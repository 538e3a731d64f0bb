// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The control domain's part: it serves pages to the tenant, fetches pages from it, and makes the
//! pictures meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vm_tests::network::{self, CONTROL, TENANT};
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, Wanted};
use vm_tests::xen::TOOLS;

use crate::{pty, web};

const PERFCTR: &str = "/work/perfctr";
const THIS_PROGRAM: &str = "/work/pictures";
const PROFILE: &str = "/out/host.data";
/// The list of the functions of the tenant's kernel.
const KALLSYMS: &str = "/run/web.kallsyms";

/// How long servers are under load while the host is sampled. Unit: seconds.
const SECONDS: u64 = 6;
/// Instructions between two samples of the host.
const PERIOD: &str = "100003";
/// How long the view shows, and how often it is updated.
const UPDATE_MS: &str = "2000";
const UPDATES: &str = "3";

/// Makes the pictures.
pub fn run() -> Result<ExitCode> {
    let mut tally = Tally::default();
    let network = network::prepare()?;
    toolstack::start()?;
    // Debian has this link, by which the command finds domains' names.
    symlink(Path::new(TOOLS).join("xl"), "/usr/sbin/xl")?;
    let mut server = web::serve()?;
    let mut tenant = start_tenant(&network)?;
    web::answers(TENANT)?;
    fs::write(KALLSYMS, network::functions_of_tenant()?)?;
    let list = format!("{}={KALLSYMS}", tenant.domain);
    let asked = beside_load(&mut tenant, SECONDS, || record_host(&list))?;
    tally.check("the tenant fetches the control domain's pages", more_than_none(asked));
    println!("{asked} pages from {CONTROL}\n");
    report_host()?;
    beside_load(&mut tenant, SECONDS, || {
        let load = || web::load(TENANT, SECONDS).map(drop);
        thread::scope(|scope| {
            let load = scope.spawn(load);
            in_terminal(&["--host", "-e", "instructions", "-c", PERIOD], "/out/top-host")?;
            load.join().expect("it does not panic")
        })
    })?;
    tenant.destroy()?;
    server.kill()?;
    server.wait()?;
    record_program()?;
    top_of_threads()?;
    tally.check("all pictures are made", equal(pictures()?, 4));
    Ok(tally.finish())
}

/// Starts the tenant, with this line in its configuration.
fn start_tenant(network: &str) -> Result<Tenant> {
    let wanted = Wanted::usual(Kind::Pvh, "web", 1, Tsc::Native, "tenant");
    let mut tenant = Tenant::create_wanted(&Wanted { config: network, ..wanted })?;
    tenant.unpause()?;
    let printed = tenant.receive()?;
    ensure!(printed == "ready", "the tenant says {printed}");
    Ok(tenant)
}

/// Makes the tenant fetch pages for this many seconds, and does something meanwhile. Returns the
/// number of pages that the tenant has fetched.
fn beside_load(tenant: &mut Tenant, seconds: u64, act: impl FnOnce() -> Result<()>) -> Result<u64> {
    tenant.send(&json!(seconds))?;
    act()?;
    let printed = tenant.receive()?;
    printed.as_u64().with_context(|| format!("the tenant says {printed}"))
}

fn more_than_none(pages: u64) -> Result<(), String> {
    if pages > 0 { Ok(()) } else { Err("none were fetched".to_owned()) }
}

/// Runs a command whose output is for people.
fn show(words: &[&str]) -> Result<()> {
    println!("$ {}", words.join(" ").replace("/work/", ""));
    let status = Command::new(words[0]).args(&words[1..]).status().context(words.join(" "))?;
    ensure!(status.success(), "{words:?}: {status}");
    println!();
    Ok(())
}

/// Samples the host, and accounts the domains, while this domain fetches pages. `list` names the
/// tenant's functions.
fn record_host(list: &str) -> Result<()> {
    let seconds = SECONDS.to_string();
    let counts = [PERFCTR, "domains", "counts", "-e", "instructions", "--"];
    let record = [PERFCTR, "record", "--host", "-e", "instructions", "-c", PERIOD, "-o", PROFILE];
    let load = ["--guest-symbols", list, "--", THIS_PROGRAM, "load", TENANT, &seconds];
    show(&[&counts[..], &record, &load].concat())
}

/// Shows the host's profile, and draws it.
fn report_host() -> Result<()> {
    let report = [PERFCTR, "report", "-i", PROFILE];
    let with = |words: &[&str]| show(&[&report[..], words].concat());
    with(&["-s", "domain,layer"])?;
    with(&["-f", "flame-graph", "-o", "/out/host.svg"])
}

/// Runs the view with these options in a terminal, and keeps what it writes there.
fn in_terminal(options: &[&str], file: &str) -> Result<()> {
    let words = [PERFCTR, "top", "-d", UPDATE_MS, "-n", UPDATES];
    pty::run_in_terminal(&[&words[..], options].concat(), file)
}

/// Samples a program, and draws it.
fn record_program() -> Result<()> {
    let profile = "/out/primes.data";
    let record = ["record", "-g", "-e", "instructions:u", "-c", "10007", "-o", profile];
    show(&[&[PERFCTR], &record[..], &["--", "/work/primes"]].concat())?;
    show(&[PERFCTR, "report", "-i", profile, "-f", "flame-graph", "-o", "/out/primes.svg"])
}

/// Shows threads, some of which are busy.
fn top_of_threads() -> Result<()> {
    let busy = ["gzip -9 < /dev/zero > /dev/null", "yes > /dev/null"];
    let start = |script: &str| {
        let script = format!("exec {script}");
        Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn()
    };
    let children = busy.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let shown = in_terminal(&[], "/out/top");
    for mut child in children {
        child.kill()?;
        child.wait()?;
    }
    shown
}

/// Returns the number of pictures that are not empty.
fn pictures() -> Result<usize> {
    let names = ["host.svg", "primes.svg", "top-host", "top"];
    let lengths = names.map(|name| fs::metadata(format!("/out/{name}")).map(|file| file.len()));
    let lengths = lengths.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(lengths.into_iter().filter(|&length| length > 0).count())
}
