// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr domains`, which says on a host which domains may count, and with what, and
//! changes it, and counts what they execute.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, value_parser};
use perfctr::CAPS_SAMPLING;
use perfctr::host::{Domain, Host};
use serde_json::json;
use shared_abi::caps::CAPS_ALL_EVENTS;

use crate::accounts;
use crate::events::{EventList, EventParser};
use crate::examples;
use crate::text::{document, harmless, print};

/// The options of `perfctr domains`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists a KVM host's virtual machines, and says which of them may count.
    #[command(after_help = examples::DOMAINS_LIST)]
    List {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lets a domain count.
    #[command(after_help = examples::DOMAINS_ALLOW)]
    Allow {
        /// Its number or name; on a KVM host, that of the process that runs it.
        domain: String,
    },
    /// Forbids a domain to count; it stops at once.
    #[command(after_help = examples::DOMAINS_FORBID)]
    Forbid {
        /// Its number or name; on a KVM host, that of the process that runs it.
        domain: String,
    },
    /// Lets those virtual machines of a KVM host count whose names are the lines of a file.
    ///
    /// Empty lines and lines that begin with # are ignored.
    #[command(after_help = examples::DOMAINS_APPLY)]
    Apply {
        /// The file.
        file: PathBuf,
        /// Reads the file again after each interval of this length, and does not end.
        ///
        /// Each machine is allowed once while this runs. One that is forbidden later stays so.
        #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..))]
        every: Option<u64>,
    },
    /// Counts on a Xen host what each virtual CPU executes, and what the hypervisor does meanwhile.
    ///
    /// It counts until the command ends, or until it is interrupted. The domains need not be
    /// allowed to count, and do not notice it.
    #[command(after_help = examples::DOMAINS_COUNTS)]
    Counts {
        /// The event.  `perfctr list` shows names.
        #[arg(
            short,
            long,
            value_parser = EventParser::Single,
            hide_possible_values = true,
            default_value = "instructions"
        )]
        event: EventList,
        /// Counts an event that is not known to be right on this CPU, too.
        #[arg(long)]
        unverified: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
        /// A command to run meanwhile, with its arguments.
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Says what guests may use.
    #[command(after_help = examples::DOMAINS_LIMITS)]
    Limits {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

/// The names that the host's tools have given domains, by their numbers.
pub type Names = HashMap<u32, String>;

/// Returns the names of the machines that the driver lists, from their processes' arguments, or
/// else those that Xen's toolstack knows, if there is one.
fn names(domains: Option<&[Domain]>) -> Names {
    let Some(domains) = domains else { return names_of_xl() };
    let name = |domain: &Domain| Some((domain.id, name_of_process(domain.id)?));
    domains.iter().filter_map(name).collect()
}

pub fn names_of_xl() -> Names {
    let listed = Command::new("xl").arg("list").output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, number) = (words.next()?, words.next()?.parse().ok()?);
        Some((number, name.to_owned()))
    };
    listed.unwrap_or_default().lines().filter_map(parse).collect()
}

/// Returns the name that QEMU's arguments give its machine.
fn name_of_process(id: u32) -> Option<String> {
    let words = fs::read(format!("/proc/{id}/cmdline")).ok()?;
    let words = String::from_utf8_lossy(&words).into_owned();
    name_of_arguments(words.split('\0'))
}

/// Parses the name in `-name NAME,...` or `-name guest=NAME,...`.
fn name_of_arguments<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut options = words.skip_while(|word| !matches!(*word, "-name" | "--name")).skip(1);
    let mut parts = options.next()?.split(',');
    let first = parts.clone().next().filter(|first| !first.contains('='));
    let named = || parts.find_map(|part| part.strip_prefix("guest="));
    Some(first.or_else(named)?.to_owned())
}

/// Returns the number of a domain that is given by its number, or by its name if only one domain
/// has that.
fn number(domain: &str, names: impl FnOnce() -> Result<Names>) -> Result<u32> {
    if let Ok(number) = domain.parse() {
        return Ok(number);
    }
    let called = names()?.into_iter().filter(|(_, name)| name == domain);
    let called: Vec<u32> = called.map(|(id, _)| id).collect();
    match called[..] {
        [number] => Ok(number),
        [] => bail!("there is no domain {domain}"),
        _ => bail!("domain {domain}: {} domains have this name, expected a number", called.len()),
    }
}

/// The machines that a file's text lets count.
#[derive(Default)]
struct Policy {
    /// The machines that were there and named at the last call. All of them have been let in.
    known: HashSet<u32>,
}

impl Policy {
    /// Returns the machines that are to be let in now. These are named in `text`, one in each line,
    /// and were not known at the call before: they have started since, or their name was added.
    fn newcomers(&mut self, text: &str, names: &Names) -> Vec<u32> {
        let lines = text.lines().map(str::trim);
        let listed: HashSet<&str> =
            lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        let named = names.iter().filter(|(_, name)| listed.contains(name.as_str()));
        let there: HashSet<u32> = named.map(|(id, _)| *id).collect();
        let new = there.difference(&self.known).copied().collect();
        self.known = there;
        new
    }

    fn apply(&mut self, host: &Host, text: &str) -> Result<()> {
        let names = names(Some(&machines(host)?));
        for id in self.newcomers(text, &names) {
            match host.allow(id, true) {
                // The machine has ended meanwhile.
                Err(error) if error.errno() == Some(libc::ESRCH) => (),
                allowed => allowed.with_context(|| format!("domain {id}"))?,
            }
        }
        Ok(())
    }
}

fn apply(host: &Host, file: &Path, every: Option<u64>) -> Result<()> {
    let mut policy = Policy::default();
    loop {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        policy.apply(host, &text)?;
        let Some(seconds) = every else { return Ok(()) };
        thread::sleep(Duration::from_secs(seconds));
    }
}

/// Returns the machines of a KVM host.
fn machines(host: &Host) -> Result<Vec<Domain>> {
    host.domains()?.context(
        "Xen's driver does not say which domains may count; `xl list` says which there are",
    )
}

/// Runs `perfctr domains`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let host = Host::open()?;
    let allow = |domain: &str, allowed| {
        let id = number(domain, || Ok(names(host.domains()?.as_deref())))?;
        host.allow(id, allowed).with_context(|| format!("domain {domain}"))
    };
    match &options.action {
        Action::List { json } => list(&host, *json)?,
        Action::Allow { domain } => allow(domain, true)?,
        Action::Forbid { domain } => allow(domain, false)?,
        Action::Apply { file, every } => apply(&host, file, *every)?,
        Action::Limits { json } => limits(&host, *json)?,
        Action::Counts { event, unverified, json, command } => {
            let events = event.events(*unverified);
            return Ok(accounts::count(&events, names_of_xl, command, *json)?.into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(host: &Host, json: bool) -> Result<()> {
    let domains = machines(host)?;
    let names = names(Some(&domains));
    if json {
        let domain = |domain: &Domain| {
            let name = names.get(&domain.id);
            json!({ "id": domain.id, "allowed": domain.allowed, "name": name })
        };
        let content = json!({ "domains": domains.iter().map(domain).collect::<Vec<_>>() });
        return Ok(print(&document("perfctr domains list", 1, &content)?)?);
    }
    let mut text = format!("{:>8}  {:<9}  name\n", "process", "may count");
    for domain in &domains {
        let allowed = if domain.allowed { "yes" } else { "no" };
        let name = names.get(&domain.id).map_or_else(String::new, |name| harmless(name));
        text += format!("{:>8}  {allowed:<9}  {name}", domain.id).trim_end();
        text += "\n";
    }
    Ok(print(&text)?)
}

fn limits(host: &Host, json: bool) -> Result<()> {
    let caps = host.driver()?.caps;
    let samples = caps.can(CAPS_SAMPLING);
    let all_events = caps.can(CAPS_ALL_EVENTS);
    if json {
        let limits = json!({
            "general": caps.general, "fixed": caps.fixed, "samples": samples,
            "all_events": all_events,
        });
        return Ok(print(&document("perfctr domains limits", 1, &limits)?)?);
    }
    let events = if all_events {
        "all that are not known to harm others"
    } else {
        "those known to count nothing of others (perfctr=events=all lets the rest in)"
    };
    let samples = if samples { "yes" } else { "no: these counters do not interrupt" };
    Ok(print(&format!(
        "counters   {} general and {} fixed for each vCPU\nevents     {events}\nsampling   \
         {samples}\n",
        caps.general, caps.fixed
    ))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Machines with these names.
    fn called(all: &[(u32, &str)]) -> Names {
        all.iter().map(|(id, name)| (*id, (*name).to_owned())).collect()
    }

    #[test]
    fn machines_are_called_what_qemu_was_told() {
        let name = |line: &str| name_of_arguments(line.split(' '));
        assert_eq!(name("qemu -name guest=web,debug-threads=on -m 1G").unwrap(), "web");
        assert_eq!(name("qemu -m 1G -name web,debug-threads=on").unwrap(), "web");
        assert_eq!(name("qemu -name debug-threads=on,guest=web").unwrap(), "web");
        for nameless in ["qemu -m 1G", "qemu -name", "qemu -name debug-threads=on"] {
            assert_eq!(name(nameless), None, "{nameless}");
        }
    }

    #[test]
    fn a_policy_lets_each_machine_in_once() {
        let mut policy = Policy::default();
        let mut newcomers = |all: &[(u32, &str)]| {
            let mut new = policy.newcomers("# Of the shop.\n web\n\nmail \n#news\n", &called(all));
            new.sort_unstable();
            new
        };
        assert_eq!(newcomers(&[(7, "web"), (8, "news"), (9, "#news"), (10, "we")]), [7]);
        assert_eq!(newcomers(&[(7, "web"), (11, "mail"), (12, "web")]), [11, 12]);
        assert!(newcomers(&[(7, "web"), (11, "mail"), (12, "web")]).is_empty(), "nobody came");
        assert!(newcomers(&[(11, "mail")]).is_empty());
        assert_eq!(newcomers(&[(7, "web"), (11, "mail")]), [7], "another one with this number");
    }

    #[test]
    fn a_policy_follows_its_file() {
        let mut policy = Policy::default();
        let machines = called(&[(7, "web"), (8, "mail")]);
        assert_eq!(policy.newcomers("web\n", &machines), [7]);
        assert_eq!(policy.newcomers("web\nmail\n", &machines), [8], "a name was added");
        assert!(policy.newcomers("mail\n", &machines).is_empty(), "a name was removed");
        assert_eq!(policy.newcomers("mail\nweb\n", &machines), [7], "it is there again");
    }

    #[test]
    fn a_name_that_several_have_is_nobodys() {
        let number = |domain| number(domain, || Ok(called(&[(7, "web"), (8, "web"), (9, "mail")])));
        assert_eq!(number("mail").unwrap(), 9);
        assert_eq!(number("11").unwrap(), 11);
        let error = |domain| number(domain).unwrap_err().to_string();
        assert_eq!(error("web"), "domain web: 2 domains have this name, expected a number");
        assert_eq!(error("news"), "there is no domain news");
    }
}
