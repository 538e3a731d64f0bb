// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides which machines may count, by the file of `perfctr domains apply`.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use perfctr::host::Limits;

use super::names::Name;

/// The machines that a file's text lets count.
#[derive(Default)]
pub struct Policy {
    /// The names in the last text that was right, with their limits.
    listed: HashMap<String, Limits>,
    /// The machines that were named at the last call and that existed then, with their limits. All
    /// of them have been allowed.
    known: HashMap<u32, Limits>,
}

impl Policy {
    /// Replaces the names and limits by those of a text, which has one name in each line.
    ///
    /// # Errors
    ///
    /// If a limit is wrong, the error names the line and says what is wrong. All names and limits
    /// then stay as they were.
    pub fn read(&mut self, text: &str) -> Result<()> {
        let mut listed = HashMap::new();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if !line.is_empty() && !line.starts_with('#') {
                let (name, limits) = parse(line).with_context(|| format!("line {number}"))?;
                listed.insert(name.to_owned(), limits);
            }
        }
        self.listed = listed;
        Ok(())
    }

    /// Returns the machines that have to be allowed now, with their limits: the text names them,
    /// and did not do so with these limits at the last call, or they did not exist then. `names`
    /// are the names of all machines that exist.
    ///
    /// Only a verified name lets a machine count.
    pub fn newcomers(&mut self, names: &HashMap<u32, Name>) -> Vec<(u32, Limits)> {
        let limits = |name: &Name| self.listed.get(&name.text).filter(|_| name.verified);
        let named = names.iter().filter_map(|(id, name)| Some((*id, *limits(name)?)));
        let there: HashMap<u32, Limits> = named.collect();
        let is_new = |(id, limits): &(u32, Limits)| self.known.get(id) != Some(limits);
        let new = there.iter().map(|(id, limits)| (*id, *limits)).filter(is_new).collect();
        self.known = there;
        new
    }

    /// Notes that a machine could not be allowed, so that [`newcomers`](Self::newcomers) returns it
    /// again.
    pub fn refused(&mut self, id: u32) {
        self.known.remove(&id);
    }
}

/// For how long after a machine was first seen its name is asked for at each look. A toolstack
/// makes a machine first and names it then.
const NAMED_AFTER: Duration = Duration::from_secs(2);

/// Decides when to ask for machines' names, and to read the file. That takes a program of the
/// toolstack or several files for each machine, and to look which machines there are takes a call.
#[derive(Default)]
pub struct Sight {
    seen: Vec<u32>,
    named: Duration,
    next: Duration,
}

impl Sight {
    /// Notes that there are the machines `seen`. Returns whether to ask: `every` so often, and for
    /// a while after other machines were there than at the last look. `now` is the time since the
    /// first look.
    pub fn is_due(&mut self, now: Duration, every: Duration, seen: Vec<u32>) -> bool {
        if self.seen != seen {
            (self.seen, self.named) = (seen, now + NAMED_AFTER);
        }
        if now < self.next && now > self.named {
            return false;
        }
        self.next = now + every;
        true
    }
}

/// Splits a line into a machine's name, which may contain blanks, and its limits.
fn parse(line: &str) -> Result<(&str, Limits)> {
    let (mut name, mut limits) = (line, Limits::default());
    while let Some((before, word)) = name.rsplit_once(char::is_whitespace)
        && let Some((key, value)) = word.split_once('=')
    {
        let limit = match key {
            "counters" => &mut limits.counters,
            "rate" => &mut limits.overflows_per_ms,
            _ => bail!("found {word}, expected counters=N or rate=N"),
        };
        ensure!(*limit == 0, "found {key}= twice");
        let number = value.parse().ok().filter(|number| *number != 0);
        *limit = number.with_context(|| format!("found {word}, expected a number from 1 on"))?;
        name = before.trim_end();
    }
    Ok((name, limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Machines with these names.
    fn called(all: &[(u32, &str)]) -> HashMap<u32, Name> {
        let name = |text: &str| Name { text: text.to_owned(), verified: true };
        all.iter().map(|&(id, text)| (id, name(text))).collect()
    }

    /// Returns the machines that have to be allowed by this text, all of them without limits.
    fn without_limits(policy: &mut Policy, text: &str, machines: &HashMap<u32, Name>) -> Vec<u32> {
        policy.read(text).unwrap();
        let id = |(id, limits)| {
            assert_eq!(limits, Limits::default());
            id
        };
        policy.newcomers(machines).into_iter().map(id).collect()
    }

    #[test]
    fn names_are_asked_for_often_only_while_machines_come() {
        let mut sight = Sight::default();
        let every = Duration::from_secs(60);
        let mut due = |tenths: u64, seen: &[u32]| {
            sight.is_due(Duration::from_millis(100 * tenths), every, seen.to_vec())
        };
        assert!(due(0, &[7]), "the first look");
        assert!(due(1, &[7]) && due(20, &[7]), "it may get its name late");
        assert!(!due(21, &[7]) && !due(300, &[7]));
        assert!(due(301, &[7, 8]) && due(302, &[7, 8]) && due(321, &[7, 8]));
        assert!(!due(322, &[7, 8]) && !due(920, &[7, 8]));
        assert!(due(922, &[7, 8]), "the file may have changed");
        assert!(!due(923, &[7, 8]));
        assert!(due(924, &[7, 9]), "as many as before, but another one");
    }

    #[test]
    fn a_domain_that_arrives_counts_by_the_name_that_it_will_have() {
        let mut policy = Policy::default();
        let mut newcomers = |text: &str| {
            let mut names = called(&[(7, text)]);
            names.values_mut().for_each(Name::arrive);
            without_limits(&mut policy, "web\nweb--outgoing\n", &names)
        };
        assert_eq!(newcomers("web--incoming"), [7]);
        assert!(newcomers("web").is_empty(), "it is there, and is the same");
        assert!(newcomers("mail--incoming").is_empty());
    }

    #[test]
    fn a_machine_is_let_in_within_the_limits_of_its_line() {
        let mut policy = Policy::default();
        let machines = called(&[(7, "my shop"), (8, "web")]);
        let mut limits = |text: &str| {
            policy.read(text).unwrap();
            let mut new = policy.newcomers(&machines);
            new.sort_unstable_by_key(|(id, _)| *id);
            new.iter().map(|(id, l)| (*id, l.counters, l.overflows_per_ms)).collect::<Vec<_>>()
        };
        let text = "my shop  rate=9 counters=2\nweb\tcounters=3\n";
        assert_eq!(limits(text), [(7, 2, 9), (8, 3, 0)]);
        assert_eq!(limits(text), []);
        assert_eq!(limits("my shop rate=9\nweb counters=3\n"), [(7, 0, 9)], "they were changed");
        assert_eq!(limits("my shop\nweb\n"), [(7, 0, 0), (8, 0, 0)], "they were removed");
    }

    #[test]
    fn a_limit_that_is_none_is_named_with_its_line() {
        let error = |line: &str| {
            let text = format!("mail\n{line}\n");
            let mut policy = Policy::default();
            let error = policy.read(&text).unwrap_err();
            assert_eq!(policy.newcomers(&called(&[(7, "mail")])), []);
            format!("{error:#}")
        };
        for (line, expected) in [
            ("web counters=0", "line 2: found counters=0, expected a number from 1 on"),
            ("web rate=x", "line 2: found rate=x, expected a number from 1 on"),
            ("web rate=1 rate=2", "line 2: found rate= twice"),
            ("web counter=1", "line 2: found counter=1, expected counters=N or rate=N"),
        ] {
            assert_eq!(error(line), expected);
        }
    }

    #[test]
    fn a_policy_lets_each_machine_in_once() {
        let mut policy = Policy::default();
        let mut newcomers = |all: &[(u32, &str)]| {
            let text = "# Of the shop.\n web\n\nmail \n#news\n";
            let mut new = without_limits(&mut policy, text, &called(all));
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
        let mut newcomers = |text: &str| without_limits(&mut policy, text, &machines);
        assert_eq!(newcomers("web\n"), [7]);
        assert_eq!(newcomers("web\nmail\n"), [8], "a name was added");
        assert!(newcomers("mail\n").is_empty(), "a name was removed");
        assert_eq!(newcomers("mail\nweb\n"), [7], "it is there again");
    }

    #[test]
    fn a_machine_that_was_refused_is_returned_again() {
        let mut policy = Policy::default();
        let machines = called(&[(7, "web"), (8, "mail")]);
        let mut newcomers = |refused: u32| {
            let mut new = without_limits(&mut policy, "web\nmail\n", &machines);
            policy.refused(refused);
            new.sort_unstable();
            new
        };
        assert_eq!(newcomers(8), [7, 8]);
        assert_eq!(newcomers(9), [8]);
        assert!(newcomers(9).is_empty());
    }

    #[test]
    fn a_policy_lets_nobody_in_who_only_calls_itself_so() {
        let mut policy = Policy::default();
        let mut machines = called(&[(7, "web")]);
        machines.get_mut(&7).unwrap().verified = false;
        assert!(without_limits(&mut policy, "web\n", &machines).is_empty());
        let machines = called(&[(7, "web")]);
        assert_eq!(without_limits(&mut policy, "web\n", &machines), [7], "it is root's now");
    }
}
