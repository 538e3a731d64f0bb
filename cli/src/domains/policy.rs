// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides which machines to let in, by the file of `perfctr domains apply`.

use std::collections::{HashMap, HashSet};

use super::names::Name;

/// The machines that a file's text lets count.
#[derive(Default)]
pub struct Policy {
    /// The machines that were there and named at the last call. All of them have been let in.
    known: HashSet<u32>,
}

impl Policy {
    /// Returns the machines that are to be let in now. These are named in `text`, one in each line,
    /// and were not known at the call before: they have started since, or their name was added.
    ///
    /// Only a name that is verified lets a machine in.
    pub fn newcomers(&mut self, text: &str, names: &HashMap<u32, Name>) -> Vec<u32> {
        let lines = text.lines().map(str::trim);
        let listed: HashSet<&str> =
            lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        let named =
            names.iter().filter(|(_, name)| name.verified && listed.contains(name.text.as_str()));
        let there: HashSet<u32> = named.map(|(id, _)| *id).collect();
        let new = there.difference(&self.known).copied().collect();
        self.known = there;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Machines with these names.
    fn called(all: &[(u32, &str)]) -> HashMap<u32, Name> {
        let name = |text: &str| Name { text: text.to_owned(), verified: true };
        all.iter().map(|&(id, text)| (id, name(text))).collect()
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
    fn a_policy_lets_nobody_in_who_only_calls_itself_so() {
        let mut policy = Policy::default();
        let mut machines = called(&[(7, "web")]);
        machines.get_mut(&7).unwrap().verified = false;
        assert!(policy.newcomers("web\n", &machines).is_empty());
        assert_eq!(policy.newcomers("web\n", &called(&[(7, "web")])), [7], "it is root's now");
    }
}
