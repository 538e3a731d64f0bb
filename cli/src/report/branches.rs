// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the table of the branches that samples have.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use perfctr::watch::BranchFlags;

use super::symbols::Named;
use super::table::{lines, share};
use crate::profile::{Branch, Profile};

/// How often a branch was recorded, and how often it was then one that the processor had predicted
/// wrongly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Recorded {
    all: u64,
    mispredicted: u64,
}

/// Returns the number of records of each branch, by the names of both ends.
fn recorded(profile: &Profile, names: &[Named]) -> BTreeMap<[String; 2], Recorded> {
    let mut records = vec![0_u64; profile.branches().len()];
    for stack in &profile.stacks {
        for &branch in &stack.branches {
            let records = &mut records[branch as usize];
            *records = records.saturating_add(stack.samples);
        }
    }
    let mut rows = BTreeMap::<_, Recorded>::new();
    for (&Branch { from, to, flags }, records) in profile.branches().iter().zip(records) {
        let row = rows.entry([from, to].map(|end| names[end as usize].place())).or_default();
        row.all = row.all.saturating_add(records);
        if BranchFlags::new(flags).mispredicted() == Some(true) {
            row.mispredicted = row.mispredicted.saturating_add(records);
        }
    }
    rows
}

/// Returns the table. The branches that were recorded most often come first.
///
/// # Errors
///
/// The profile was recorded without branches.
pub fn table(profile: &Profile, names: &[Named]) -> Result<String> {
    ensure!(
        profile.branches.is_some(),
        "the profile has no branches: `perfctr record --branches` notes them"
    );
    let mut rows: Vec<_> = recorded(profile, names).into_iter().collect();
    rows.sort_by_key(|(_, recorded)| Reverse(recorded.all));
    let all = rows.iter().fold(0, |sum: u64, (_, recorded)| sum.saturating_add(recorded.all));
    let row = |(ends, recorded): ([String; 2], Recorded)| {
        let numbers = format!("{} {:>12}", share(recorded.all, all), recorded.mispredicted);
        (ends.to_vec(), numbers)
    };
    let rows: Vec<_> = rows.into_iter().map(row).collect();
    let numbers = format!("{:>10} {:>7} {:>12}", "branches", "%", "mispredicted");
    Ok(lines(profile, &["from", "to"].map(str::to_owned), &numbers, &rows))
}

#[cfg(test)]
mod tests {
    use super::super::tests::profile;
    use super::*;

    #[test]
    fn each_branch_has_a_row_with_all_of_its_records() {
        let (mut profile, names) = profile();
        let error = table(&profile, &names).unwrap_err().to_string();
        assert!(error.contains("`perfctr record --branches` notes them"), "{error}");
        // The same branch as it was mispredicted, and as the record does not say.
        let branch = |from, to, flags| Branch { from, to, flags };
        profile.branches = Some(vec![branch(0, 2, 1), branch(0, 2, 0), branch(2, 1, 2)]);
        // These stacks have 3, 1 and 2 samples.
        for (stack, branches) in [(0, vec![0, 2, 0]), (1, vec![1])] {
            profile.stacks[stack].branches = branches;
        }
        profile.check().unwrap();
        let text = table(&profile, &names).unwrap();
        let expected = [
            "6 samples of 2 threads, one every 100 instructions:u, from native",
            "2 more were missed",
            "  branches       % mispredicted  from    to",
            "         7   70.00            6  f+0x10  main",
            "         3   30.00            0  main    f+0x20",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
