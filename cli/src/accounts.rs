// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Accounts of a Xen host for `perfctr domains counts` and `perfctr export --host`: what the
//! virtual CPUs execute themselves, and what the hypervisor executes while they are current.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use libc::pid_t;
use perfctr::host::{Divided, Host, HostAccount, HostAccounts, IDLE_DOMAIN};
use perfctr::{Error, Event};
use perfctr_gate::text::{grouped, harmless};
use serde::Serialize;
use serde_json::json;

use crate::program::beside::{self, Beside};
use crate::program::{Signals, Target};
use crate::text::{self, print};

/// The longest time between two reads of the accounts. The driver ends them after ten seconds.
const RENEW: Duration = Duration::from_secs(2);

/// The names of domains, by their numbers.
type Names = HashMap<u32, String>;

/// One virtual CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// `None` for the idle domain.
    pub domain: Option<u32>,
    pub name: String,
    pub vcpu: u32,
    /// The virtual CPU's own events, and those of the hypervisor while it was current. Both are
    /// `None` if the processor does not let the driver count them separately.
    pub executed: Option<u64>,
    pub hypervisor: Option<u64>,
    pub sum: u64,
}

impl Row {
    fn new(account: &HostAccount, names: &Names) -> Self {
        let HostAccount { domain, vcpu, sum, divided, .. } = *account;
        let is_idle = domain == IDLE_DOMAIN;
        let name = || names.get(&domain).cloned().unwrap_or_default();
        Self {
            domain: (!is_idle).then_some(domain),
            name: if is_idle { "idle".to_owned() } else { name() },
            vcpu,
            executed: divided.map(|Divided { executed, .. }| executed),
            hypervisor: divided.map(|Divided { hypervisor, .. }| hypervisor),
            sum,
        }
    }
}

/// The accounts of one event. The driver keeps them as long as they are read or renewed in time,
/// and until this value is dropped.
#[derive(Debug)]
pub struct Accounts {
    pub event: Event,
    accounts: HostAccounts,
    read: Instant,
    names: LatestNames,
    find_names: fn() -> Names,
}

/// The names of the domains that existed at the last look.
#[derive(Debug, Default)]
struct LatestNames {
    names: Names,
    domains: BTreeSet<u32>,
}

impl LatestNames {
    /// Returns the names of the domains that have accounts. They are looked up again if the
    /// domains are not the same as before.
    fn refreshed(&mut self, accounts: &[HostAccount], find: impl FnOnce() -> Names) -> &Names {
        let domains: BTreeSet<u32> = accounts.iter().map(|account| account.domain).collect();
        if domains != self.domains {
            self.names = find();
            self.domains = domains;
        }
        &self.names
    }
}

impl Accounts {
    /// Begins to account the only one of these events. `find_names` returns the domains' names.
    pub fn start(events: &[Event], find_names: fn() -> Names) -> Result<Self> {
        ensure!(events.len() == 1, "{} events found: a host accounts one", events.len());
        let event = events[0];
        let accounts = Host::open()?.accounts(event)?;
        let (read, names) = (Instant::now(), LatestNames::default());
        Ok(Self { event, accounts, read, names, find_names })
    }

    /// Returns all virtual CPUs that exist.
    ///
    /// # Errors
    ///
    /// [`Error::NotAccounted`]: the accounting has ended.
    pub fn rows(&mut self) -> Result<Vec<Row>, Error> {
        let accounts = self.read()?;
        let names = self.names.refreshed(&accounts, self.find_names);
        Ok(accounts.iter().map(|account| Row::new(account, names)).collect())
    }

    /// Keeps the accounting from ending by itself. This is called often.
    ///
    /// # Errors
    ///
    /// Those of [`rows`](Self::rows).
    pub fn renew(&mut self) -> Result<(), Error> {
        if self.read.elapsed() >= RENEW { self.read().map(drop) } else { Ok(()) }
    }

    fn read(&mut self) -> Result<Vec<HostAccount>, Error> {
        let accounts = self.accounts.read()?;
        self.read = Instant::now();
        Ok(accounts)
    }
}

/// Counts until a command ends or the caller interrupts, and prints a table, or JSON. Returns the
/// command's exit status.
pub fn count(
    events: &[Event],
    find_names: fn() -> Names,
    command: &[OsString],
    json: bool,
) -> Result<u8> {
    let signals = Signals::handle(Target::Cpus(command), None)?;
    let mut counting = Counting { events, find_names, accounts: None };
    let (status, _) = beside::run(command, None, &signals, &mut counting)?;
    if let Some(mut accounts) = counting.accounts {
        let rows = accounts.rows()?;
        let text = if json { document(accounts.event, &rows)? } else { table(&rows) };
        print(&text)?;
    }
    Ok(status)
}

struct Counting<'a> {
    events: &'a [Event],
    find_names: fn() -> Names,
    accounts: Option<Accounts>,
}

impl Beside for Counting<'_> {
    fn begin(&mut self, _: Option<pid_t>) -> Result<()> {
        self.accounts = Some(Accounts::start(self.events, self.find_names)?);
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        self.accounts.as_mut().map_or(Ok(()), Accounts::renew)?;
        Ok(())
    }
}

fn document(event: Event, vcpus: &[Row]) -> Result<String> {
    let content = json!({ "event": event.to_string(), "vcpus": vcpus });
    Ok(text::document("perfctr domains counts", 1, &content)?)
}

fn table(rows: &[Row]) -> String {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), grouped);
    let mut text = format!(
        "{:>6} {:>5} {:>22} {:>22} {:>22}  name\n",
        "domain", "vCPU", "executed", "by the hypervisor", "sum"
    );
    for row in rows {
        let domain = row.domain.map_or_else(|| "-".to_owned(), |domain| domain.to_string());
        let (executed, hypervisor) = (number(row.executed), number(row.hypervisor));
        let (vcpu, sum, name) = (row.vcpu, grouped(row.sum), harmless(&row.name));
        let line =
            format!("{domain:>6} {vcpu:>5} {executed:>22} {hypervisor:>22} {sum:>22}  {name}");
        text += line.trim_end();
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(domain: u32, vcpu: u32, divided: bool) -> HostAccount {
        let mut parts = Divided::default();
        (parts.executed, parts.hypervisor) = (1_234_567, 890);
        let mut account = HostAccount::default();
        (account.domain, account.vcpu) = (domain, vcpu);
        (account.sum, account.divided) = (1_235_457, divided.then_some(parts));
        account
    }

    fn rows() -> Vec<Row> {
        let names = Names::from([(0, "Domain-0".to_owned()), (3, "we\x1bb".to_owned())]);
        let accounts = [account(0, 1, true), account(3, 0, false), account(IDLE_DOMAIN, 7, true)];
        accounts.iter().map(|account| Row::new(account, &names)).collect()
    }

    #[test]
    fn a_table_has_a_line_for_each_virtual_cpu() {
        let expected = "\
domain  vCPU               executed      by the hypervisor                    sum  name
     0     1              1,234,567                    890              1,235,457  Domain-0
     3     0                      -                      -              1,235,457  we\\u{1b}b
     -     7              1,234,567                    890              1,235,457  idle
";
        assert_eq!(table(&rows()), expected);
    }

    #[test]
    fn the_document_has_the_numbers_that_there_are() {
        let text = document(Event::INSTRUCTIONS, &rows()).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["format"], "perfctr domains counts");
        assert_eq!(document["event"], "instructions");
        let vcpus = document["vcpus"].as_array().unwrap();
        assert_eq!((&vcpus[0]["domain"], &vcpus[0]["executed"]), (&0.into(), &1_234_567.into()));
        assert_eq!((&vcpus[1]["hypervisor"], &vcpus[1]["sum"]), (&().into(), &1_235_457.into()));
        assert_eq!((&vcpus[2]["domain"], &vcpus[2]["name"]), (&().into(), &"idle".into()));
    }

    #[test]
    fn a_domain_that_comes_in_place_of_another_one_has_its_name() {
        let name = |domain: u32, name: &str| Names::from([(domain, name.to_owned())]);
        let mut named = LatestNames::default();
        let before = [account(5, 0, true), account(5, 1, true)];
        assert_eq!(named.refreshed(&before, || name(5, "web")), &name(5, "web"));
        let same = named.refreshed(&before, || panic!("the same domains are there"));
        assert_eq!(same, &name(5, "web"));
        let after = [account(6, 0, true)];
        assert_eq!(named.refreshed(&after, || name(6, "web")), &name(6, "web"), "it was rebooted");
    }

    #[test]
    fn a_host_accounts_one_event() {
        let refused =
            |events: &[Event]| Accounts::start(events, Names::new).unwrap_err().to_string();
        assert_eq!(refused(&[]), "0 events found: a host accounts one");
        assert_eq!(refused(&[Event::CYCLES; 2]), "2 events found: a host accounts one");
    }
}
