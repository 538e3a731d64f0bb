// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr domains`, for use on a host. It shows and changes which domains may count
//! and within which limits. On a Xen host it also counts what the domains' virtual CPUs execute.

mod names;
mod policy;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, value_parser};
use perfctr::CAPS_SAMPLING;
use perfctr::host::{Domain, Host, Limits};
use serde_json::{Value, json};
use shared_abi::caps::CAPS_ALL_EVENTS;

use self::policy::{Policy, Sight};
use crate::accounts;
use crate::events::{EventList, EventParser};
use crate::examples;
use crate::text::{document, print, print_note};

pub use self::names::{Name, Names, name_of_process, names_of_xl};

pub const PROC: &str = "/proc";
/// How often `perfctr domains apply` looks for new machines. A machine that is restored has to be
/// allowed while its memory is read, before it goes on.
const LOOK: Duration = Duration::from_millis(100);

/// The options of `perfctr domains`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists the host's virtual machines, and says which of them may count.
    ///
    /// A name is unverified if anybody but root may have given it, as the arguments of a process
    /// that is not root's, or that is in a container.
    #[command(after_help = examples::DOMAINS_LIST)]
    List {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lets a domain count.
    ///
    /// The limits replace those that it had. Its kernel module learns how many counters it has when
    /// it is loaded.
    #[command(after_help = examples::DOMAINS_ALLOW)]
    Allow {
        /// Its number or name; on a KVM host, that of the process that runs it.
        domain: String,
        /// The most counters that each of its virtual CPUs may use, general ones first.
        #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
        counters: Option<u32>,
        /// The most overflows of each virtual CPU that interrupt in a millisecond.
        #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
        rate: Option<u32>,
    },
    /// Forbids a domain to count; it stops at once.
    #[command(after_help = examples::DOMAINS_FORBID)]
    Forbid {
        /// Its number or name; on a KVM host, that of the process that runs it.
        domain: String,
    },
    /// Lets those virtual machines of a host count whose names are the lines of a file.
    ///
    /// A name may be followed by limits: counters=N, rate=N. Empty lines and lines that begin with
    /// # are ignored. On a Xen host, a domain that migrates to the host counts by its name from
    /// the moment when its memory begins to arrive.
    #[command(after_help = examples::DOMAINS_APPLY)]
    Apply {
        /// The file.
        file: PathBuf,
        /// Reads the file again after each interval of this length, and does not end.
        ///
        /// Meanwhile it looks for new machines ten times in a second. Each machine is allowed once
        /// while this runs, and again if its limits in the file change. One that is forbidden later
        /// stays so. While the file cannot be read or has a wrong line, what it said before holds;
        /// an error is printed once.
        #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..))]
        every: Option<u64>,
    },
    /// Counts on a Xen host what each virtual CPU executes, and what the hypervisor does meanwhile.
    ///
    /// It counts until the command ends, or until it is interrupted. The domains need not be
    /// allowed to count, and do not notice it.
    #[command(after_help = examples::DOMAINS_COUNTS)]
    Counts {
        /// The event. `perfctr list` shows names.
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

/// The names of a host's machines, by their numbers.
type Known = HashMap<u32, Name>;

/// Returns the names of these domains.
fn names(host: &Host, domains: &[Domain]) -> Known {
    if host.is_xen() {
        let verified = |(id, text)| (id, Name { text, verified: true });
        return names_of_xl().into_iter().map(verified).collect();
    }
    let name = |domain: &Domain| Some((domain.id, name_of_process(Path::new(PROC), domain.id)?));
    domains.iter().filter_map(name).collect()
}

/// Returns the number of a domain. The domain is given by its number, or by its name if the name is
/// verified and only one domain has it.
fn number(domain: &str, names: impl FnOnce() -> Result<Known>) -> Result<u32> {
    if let Ok(number) = domain.parse() {
        return Ok(number);
    }
    let names = names()?;
    let called = names.iter().filter(|(_, name)| name.text == domain);
    let (verified, claims): (Vec<_>, Vec<_>) = called.partition(|(_, name)| name.verified);
    match (&verified[..], &claims[..]) {
        ([(number, _)], _) => Ok(**number),
        ([], []) => bail!("there is no domain {domain}"),
        ([], [(number, _), ..]) => bail!(
            "domain {domain}: process {number} only calls itself that (it is neither a machine of \
             libvirt's nor root's outside of containers), expected its number"
        ),
        _ => bail!("domain {domain}: {} domains have this name, expected a number", verified.len()),
    }
}

fn apply(host: &Host, file: &Path, every: Option<u64>) -> Result<()> {
    let (mut follower, mut sight) = (Follower::new(file), Sight::default());
    let start = Instant::now();
    loop {
        let domains = host.domains()?;
        let seen = domains.iter().map(|domain| domain.id).collect();
        let is_due = sight.is_due(start.elapsed(), Duration::from_secs(every.unwrap_or(1)), seen);
        if is_due {
            let mut names = names(host, &domains);
            if host.is_xen() {
                names.values_mut().for_each(Name::arrive);
            }
            let errors =
                follower.read_and_allow(&names, |id, limits| host.allow_within(id, limits));
            if every.is_none() {
                return if errors.is_empty() { Ok(()) } else { bail!(errors.join("\n")) };
            }
            errors.iter().for_each(|error| print_note(format_args!("{error}")));
        }
        thread::sleep(LOOK);
    }
}

/// Lets those machines count that a file names, also after the file has changed.
struct Follower<'a> {
    file: &'a Path,
    policy: Policy,
    /// The errors of the last call.
    errors: Vec<String>,
}

impl<'a> Follower<'a> {
    fn new(file: &'a Path) -> Self {
        Self { file, policy: Policy::default(), errors: Vec::new() }
    }

    /// Reads the file again, and calls `allow` for each machine that it names and that has not been
    /// allowed yet. If the file cannot be read, or a line of it is wrong, the text that was right
    /// last still holds. If `allow` fails for a machine, the next call tries it again.
    ///
    /// `names` are the names of all machines. Returns the errors, except those that the call before
    /// has also found.
    fn read_and_allow(
        &mut self,
        names: &Known,
        mut allow: impl FnMut(u32, Limits) -> Result<(), perfctr::Error>,
    ) -> Vec<String> {
        let text = fs::read_to_string(self.file).map_err(Into::into);
        let read = text.and_then(|text| self.policy.read(&text));
        let error = read.with_context(|| self.file.display().to_string()).err();
        let mut errors: Vec<String> = error.iter().map(|error| format!("{error:#}")).collect();
        for (id, limits) in self.policy.newcomers(names) {
            match allow(id, limits) {
                // The machine has ended meanwhile.
                Err(error) if error.errno() == Some(libc::ESRCH) => (),
                Err(error) => {
                    self.policy.refused(id);
                    errors.push(format!("domain {id}: {error}"));
                }
                Ok(()) => (),
            }
        }
        let new = errors.iter().filter(|error| !self.errors.contains(error)).cloned().collect();
        self.errors = errors;
        new
    }
}

/// Runs `perfctr domains`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let host = Host::open()?;
    let number = |domain: &str| number(domain, || Ok(names(&host, &host.domains()?)));
    match &options.action {
        Action::List { json } => list(&host, *json)?,
        Action::Allow { domain, counters, rate } => {
            let (counters, overflows_per_ms) = (counters.unwrap_or(0), rate.unwrap_or(0));
            let allowed = host.allow_within(number(domain)?, Limits { counters, overflows_per_ms });
            allowed.with_context(|| format!("domain {domain}"))?;
        }
        Action::Forbid { domain } => {
            let forbidden = host.allow(number(domain)?, false);
            forbidden.with_context(|| format!("domain {domain}"))?;
        }
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
    let domains = host.domains()?;
    let names = names(host, &domains);
    let text = if json {
        document("perfctr domains list", 1, &listing(&domains, &names))?
    } else {
        table(&domains, &names)
    };
    Ok(print(&text)?)
}

fn listing(domains: &[Domain], names: &Known) -> Value {
    let domain = |domain: &Domain| {
        let name = names.get(&domain.id);
        let limit = |number| (number != 0).then_some(number);
        json!({
            "id": domain.id,
            "allowed": domain.allowed,
            "counters": limit(domain.limits.counters),
            "rate": limit(domain.limits.overflows_per_ms),
            "name": name.map(|name| &name.text),
            "verified": name.map(|name| name.verified),
        })
    };
    json!({ "domains": domains.iter().map(domain).collect::<Vec<_>>() })
}

fn table(domains: &[Domain], names: &Known) -> String {
    let mut text =
        format!("{:>8}  {:<9}  {:>8}  {:>6}  name\n", "number", "may count", "counters", "rate");
    for domain in domains {
        let allowed = if domain.allowed { "yes" } else { "no" };
        let name = names.get(&domain.id).map_or_else(String::new, Name::shown);
        let limit = |number| if number == 0 { "-".to_owned() } else { format!("{number}") };
        let [counters, rate] = [domain.limits.counters, domain.limits.overflows_per_ms].map(limit);
        let limits = format!("{counters:>8}  {rate:>6}");
        text += format!("{:>8}  {allowed:<9}  {limits}  {name}", domain.id).trim_end();
        text += "\n";
    }
    text
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
    use std::cell::Cell;

    use super::*;

    fn known(all: &[(u32, &str, bool)]) -> Known {
        let name = |&(id, text, verified): &(u32, &str, bool)| {
            (id, Name { text: text.to_owned(), verified })
        };
        all.iter().map(name).collect()
    }

    fn many() -> Vec<Domain> {
        let limits = |id| match id {
            4 => Limits { counters: 2, overflows_per_ms: 0 },
            6 => Limits { counters: 0, overflows_per_ms: 9 },
            _ => Limits::default(),
        };
        (1..=400).map(|id| Domain::new(id, id % 2 == 0, limits(id))).collect()
    }

    #[test]
    fn hundreds_of_machines_are_listed() {
        let names = known(&[(3, "web", true), (4, "mail", false), (5, "\x1b[2J", true)]);
        let text = table(&many(), &names);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 401, "{text}");
        assert_eq!(
            lines[..7],
            [
                "  number  may count  counters    rate  name",
                "       1  no                -       -",
                "       2  yes               -       -",
                "       3  no                -       -  web",
                "       4  yes               2       -  mail (unverified)",
                r"       5  no                -       -  \u{1b}[2J",
                "       6  yes               -       9",
            ]
        );
        assert!(!text.contains('\x1b'), "{text:?}");
        assert_eq!(lines[400], "     400  yes               -       -");
        let all = listing(&many(), &names);
        assert_eq!(all["domains"].as_array().unwrap().len(), 400);
        assert_eq!(all["domains"][2]["name"], "web");
        let limits = |n: usize| ["counters", "rate"].map(|key| all["domains"][n][key].as_u64());
        assert_eq!([3, 5].map(limits), [[Some(2), None], [None, Some(9)]]);
        let verified = [2, 3, 5].map(|n| all["domains"][n]["verified"].as_bool());
        assert_eq!(verified, [Some(true), Some(false), None]);
    }

    #[test]
    fn a_name_that_several_have_is_nobodys() {
        let names = || known(&[(7, "web", true), (8, "web", true), (9, "mail", true)]);
        let number = |domain| number(domain, || Ok(names()));
        assert_eq!(number("mail").unwrap(), 9);
        assert_eq!(number("11").unwrap(), 11);
        let error = |domain| number(domain).unwrap_err().to_string();
        assert_eq!(error("web"), "domain web: 2 domains have this name, expected a number");
        assert_eq!(error("news"), "there is no domain news");
    }

    #[test]
    fn whoever_imitates_a_machine_does_not_get_its_name() {
        let names = || known(&[(7, "web", true), (8, "web", false), (9, "mail", false)]);
        let number = |domain| number(domain, || Ok(names()));
        assert_eq!(number("web").unwrap(), 7);
        assert_eq!(
            number("mail").unwrap_err().to_string(),
            "domain mail: process 9 only calls itself that (it is neither a machine of libvirt's \
             nor root's outside of containers), expected its number"
        );
    }

    #[test]
    fn a_file_that_is_wrong_for_a_while_ends_nothing() {
        let name = format!("perfctr-policy-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut follower = Follower::new(&path);
        let mut allowed = Vec::new();
        // Machine 9 has ended meanwhile, and machine 8 cannot be allowed at first.
        let refuses = Cell::new(true);
        let mut look = |names: &[(u32, &str, bool)]| {
            let errors = follower.read_and_allow(&known(names), |id, limits| {
                let errno = match id {
                    8 if refuses.get() => libc::EINVAL,
                    9 => libc::ESRCH,
                    _ => {
                        allowed.push((id, limits.counters));
                        return Ok(());
                    }
                };
                Err(perfctr::Error::NotLoaded(std::io::Error::from_raw_os_error(errno)))
            });
            (errors, std::mem::take(&mut allowed))
        };
        let nothing = || (Vec::new(), Vec::new());
        let [web, mail] = [(7, "web", true), (10, "mail", true)];

        let (errors, allowed) = look(&[web]);
        assert_eq!(allowed, [], "there is no file yet");
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].ends_with("No such file or directory (os error 2)"), "{errors:?}");
        assert_eq!(look(&[web]), nothing(), "that was said before");
        fs::write(&path, "web\nmail counters=2\n").unwrap();
        assert_eq!(look(&[web]), (Vec::new(), vec![(7, 0)]));

        fs::write(&path, "web\nmail counters=x\n").unwrap();
        let (errors, allowed) = look(&[web, mail]);
        assert_eq!(allowed, [(10, 2)], "what the file said before still holds");
        let place = path.display();
        let what = "line 2: found counters=x, expected a number from 1 on";
        assert_eq!(errors, [format!("{place}: {what}")]);
        assert_eq!(look(&[web, mail]), nothing());
        fs::remove_file(&path).unwrap();
        let (errors, allowed) = look(&[mail]);
        assert_eq!((errors.len(), allowed), (1, Vec::new()), "another error is said");
        assert_eq!(
            look(&[web, mail]),
            (Vec::new(), vec![(7, 0)]),
            "another machine of this number"
        );

        fs::write(&path, "web\nmail counters=2\nnews\nshop\n").unwrap();
        let all = [web, mail, (8, "news", true), (9, "shop", true)];
        let (errors, allowed) = look(&all);
        assert_eq!((errors.len(), allowed), (1, Vec::new()), "{errors:?}");
        assert!(errors[0].starts_with("domain 8: "), "{errors:?}");
        assert_eq!(look(&all), nothing());
        fs::write(&path, "web\nshop\n").unwrap();
        assert_eq!(look(&all), nothing());
        fs::write(&path, "web counters=1\nshop\nnews\n").unwrap();
        let (errors, allowed) = look(&all);
        assert_eq!((errors.len(), allowed), (1, vec![(7, 1)]), "it is refused again: {errors:?}");
        refuses.set(false);
        assert_eq!(look(&all), (Vec::new(), vec![(8, 0)]), "it is tried at each look");
        assert_eq!(look(&all), nothing());
        fs::remove_file(&path).unwrap();
    }
}
