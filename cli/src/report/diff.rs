// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr diff`, which says which functions execute more or less than before.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use perfctr_gate::text::grouped;

use super::symbols::{self, Named};
use super::table::rows;
use super::{Key, events, summary};
use crate::profile::Profile;
use crate::text::{print, print_note};

/// The options of `perfctr diff`.
#[derive(Debug, Args)]
pub struct Options {
    /// Compares this profile, which `perfctr record` has written before.
    before: PathBuf,
    /// Compares it with this one, of the program as it is now.
    after: PathBuf,
    /// Distinguishes samples by these columns, separated by commas.
    #[arg(short, long, value_enum, value_delimiter = ',')]
    sort: Vec<Key>,
}

/// A row's samples, in events: before and after.
type Rows = BTreeMap<Vec<String>, [u64; 2]>;

/// Runs `perfctr diff`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let [before, after] = [only(&options.before)?, only(&options.after)?];
    ensure!(
        before.event == after.event,
        "{} and {} found: profiles of one event can be compared",
        before.event,
        after.event
    );
    let names = [&before, &after].map(|profile| symbols::name(profile, |text| print_note(text)));
    let profiles = [(&before, &*names[0]), (&after, &*names[1])];
    print(&text(profiles, &columns(&options.sort, [&before, &after])?))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a profile of one event.
fn only(path: &Path) -> Result<Profile> {
    let profiles = <[Profile; 1]>::try_from(Profile::read(path)?);
    let [profile] = profiles.map_err(|profiles| {
        anyhow!("{} has {}: one event expected", path.display(), events(&profiles))
    })?;
    Ok(profile)
}

/// Returns the columns of the table: those of `sort`. If `sort` is empty, they are the usual
/// columns that both profiles have.
fn columns(sort: &[Key], [before, after]: [&Profile; 2]) -> Result<Vec<Key>> {
    let [mut keys, others] = [Key::columns(sort, before)?, Key::columns(sort, after)?];
    keys.retain(|key| others.contains(key));
    Ok(keys)
}

fn text(profiles: [(&Profile, &[Named]); 2], keys: &[Key]) -> String {
    let mut all = Rows::new();
    for (n, (profile, names)) in profiles.into_iter().enumerate() {
        for (row, samples) in rows(profile, names, keys) {
            // The profile's check has made sure that this does not overflow.
            all.entry(row).or_default()[n] += samples * profile.period;
        }
    }
    let mut all: Vec<_> = all.into_iter().collect();
    // Rows that have changed most come first.
    all.sort_by_key(|(_, [before, after])| std::cmp::Reverse(before.abs_diff(*after)));
    let [before, after] = profiles.map(|(profile, _)| summary(profile));
    let mut text = format!("before: {before}\nafter:  {after}\n");
    let heading: Vec<String> = keys.iter().map(|key| key.heading()).collect();
    text += &line(["before", "after", "difference"].map(str::to_owned), &heading);
    for (row, [before, after]) in &all {
        let sign = if after >= before { "+" } else { "-" };
        let difference = format!("{sign}{}", grouped(before.abs_diff(*after)));
        text += &line([grouped(*before), grouped(*after), difference], row);
    }
    text
}

fn line([before, after, difference]: [String; 3], row: &[String]) -> String {
    let numbers = format!("{before:>18} {after:>18} {difference:>18}");
    format!("{numbers}  {}", row.join("  ")).trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of_host, profile, with_kernel};
    use super::*;

    #[test]
    fn what_has_changed_most_comes_first() {
        let (before, names) = profile();
        let mut after = before.clone();
        // One sample fewer in the first line of `f`, and three more elsewhere in it.
        after.stacks[0].samples -= 1;
        after.stacks[2].samples += 3;
        let text = text([(&before, &names), (&after, &names)], &[Key::Line]);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["before", "after", "difference", "line"]);
        assert_eq!(lines[1], ["200", "500", "+300", "f"]);
        assert_eq!(lines[2], ["400", "300", "-100", "a.c:3"]);
        assert_eq!(lines.len(), 3);
        assert!(text.starts_with("before: 6 samples of 2 threads, "), "{text}");
    }

    #[test]
    fn each_profile_has_a_period_of_its_own() {
        let (before, names) = profile();
        let mut after = before.clone();
        after.period = 3 * before.period;
        let text = text([(&before, &names), (&after, &names)], &[Key::Line]);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows, [["400", "1,200", "+800", "a.c:3"], ["200", "600", "+400", "f"]]);
    }

    #[test]
    fn what_is_gone_comes_before_what_has_changed_less() {
        let (before, names) = profile();
        let mut after = before.clone();
        after.stacks[0].samples += 1;
        after.stacks[2].samples = 0;
        let text = text([(&before, &names), (&after, &names)], &[Key::Line]);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows, [["200", "0", "-200", "f"], ["400", "500", "+100", "a.c:3"]]);
    }

    #[test]
    fn what_is_in_one_profile_only_is_compared_with_nothing() {
        let (before, names) = profile();
        let mut after = before.clone();
        after.stacks.clear();
        let text = text([(&before, &names), (&after, &names)], &[Key::Module]);
        assert!(text.contains("600                  0               -600  a\n"), "{text}");
    }

    #[test]
    fn both_profiles_have_the_columns() {
        let [(plain, _), (kernel, _), (host, _)] = [profile(), with_kernel(), of_host()];
        let of = |sort: &[Key], profiles| columns(sort, profiles).map_err(|why| why.to_string());
        for profiles in [[&plain, &host], [&host, &plain]] {
            assert_eq!(of(&[], profiles), Ok(vec![Key::Symbol]));
            let error = of(&[Key::Symbol, Key::Domain], profiles).unwrap_err();
            assert!(error.starts_with("the column domain is one of hosts' profiles"), "{error}");
        }
        assert_eq!(of(&[], [&kernel, &host]), Ok(vec![Key::Layer, Key::Symbol]));
        assert_eq!(of(&[], [&host, &host]), Ok(vec![Key::Layer, Key::Domain, Key::Symbol]));
        assert_eq!(of(&[Key::Cpu], [&host, &host]), Ok(vec![Key::Cpu]));
    }
}
