// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows which function called which: the samples of each function include those of all that it
//! called.

use std::collections::BTreeMap;

use super::symbols::Named;
use super::table::percent;
use super::{functions, thread};
use crate::profile::Profile;

/// The smallest share of all samples of a call that is shown. Unit: per mille.
const SHARE_MIN: u64 = 5;

/// A function that was reached by one sequence of calls.
#[derive(Default)]
struct Node<'a> {
    samples: u64,
    calls: BTreeMap<&'a str, Node<'a>>,
}

/// Returns a tree of calls for each thread.
pub fn tree(profile: &Profile, names: &[Named]) -> String {
    let mut threads = BTreeMap::<u32, Node<'_>>::new();
    for stack in &profile.stacks {
        let mut node = threads.entry(stack.thread).or_default();
        node.samples += stack.samples;
        for function in functions(names, stack) {
            node = node.calls.entry(function).or_default();
            node.samples += stack.samples;
        }
    }
    let all = profile.samples();
    let mut text = format!("\n{:>10} {:>7}  called\n", "samples", "%");
    for (index, node) in &threads {
        let stack = profile.stacks.iter().find(|stack| stack.thread == *index);
        let name = stack.map_or_else(String::new, |stack| thread(profile, stack));
        node.print(&name, 0, all, &mut text);
    }
    text
}

impl Node<'_> {
    fn print(&self, name: &str, depth: usize, all: u64, text: &mut String) {
        if self.samples * 1_000 < all * SHARE_MIN {
            return;
        }
        let (percent, indent) = (percent(self.samples, all), 2 * depth);
        *text += &format!("{:>10} {percent:>7}  {:indent$}{name}\n", self.samples, "");
        let mut calls: Vec<_> = self.calls.iter().collect();
        calls.sort_by_key(|(_, node)| std::cmp::Reverse(node.samples));
        for (name, node) in calls {
            node.print(name, depth + 1, all, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::profile;
    use super::*;

    #[test]
    fn a_function_has_the_samples_of_what_it_calls() {
        let (profile, names) = profile();
        let expected = "
   samples       %  called
         3   50.00  7 one
         3   50.00    main
         3   50.00      f
         3   50.00        g;<inlined>
         3   50.00  8 two
         2   33.33    f
         1   16.67    main
         1   16.67      f
         1   16.67        g;<inlined>
";
        assert_eq!(tree(&profile, &names), expected);
    }

    #[test]
    fn what_has_most_samples_is_called_first_whatever_its_name() {
        let (mut profile, names) = profile();
        let called = |profile: &Profile| {
            let text = tree(profile, &names);
            let of_two = text.lines().skip_while(|line| !line.ends_with("two")).skip(1);
            of_two.map(|line| line[18..].trim_end().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(called(&profile)[..2], ["    f", "    main"], "2 and 1 samples");
        profile.stacks[1].samples = 3;
        assert_eq!(called(&profile)[..2], ["    main", "      f"], "3 samples, and 2 of the other");
    }

    #[test]
    fn what_has_less_than_5_of_1000_samples_is_left_out() {
        let (mut profile, names) = profile();
        for (stack, samples) in profile.stacks.iter_mut().zip([991, 4, 5]) {
            stack.samples = samples;
        }
        let text = tree(&profile, &names);
        let of_two: Vec<&str> = text.lines().skip_while(|line| !line.ends_with("two")).collect();
        assert_eq!(
            of_two,
            ["         9    0.90  8 two", "         5    0.50    f"],
            "`main` has 4, and is left out"
        );
    }
}
