// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares the host's profile, with what the domain says, with what the programs know.

use std::collections::BTreeMap;

use anyhow::Result;
use perfctr::host::DomainClock;
use vm_tests::host_profile::{HostProfile, unknown_at_most};
use vm_tests::tally::Tally;

use crate::programs::{PROGRAMS, Worked};

/// The number of events between two samples.
pub const PERIOD: u64 = 100_000;
/// The length of a program's function. Unit: bytes.
const FUNCTION_BYTES: u64 = 64;

/// A host's profile that the report has joined with what a domain says.
pub struct Joined<'a> {
    /// The domain in words.
    pub whose: &'a str,
    /// The domain's number, and its time-stamp counter.
    pub domain: u32,
    pub clock: DomainClock,
    /// The profile.
    pub profile: &'a HostProfile,
    /// The report's table of layers, processes and functions.
    pub table: &'a str,
    /// The report's table of layers, control groups and functions.
    pub groups: &'a str,
}

/// Judges the samples of both programs.
pub fn judge(joined: &Joined<'_>, both: &[Worked; 2], tally: &mut Tally) -> Result<()> {
    let unknown = unknown_at_most(joined.table)?;
    for (n, worked) in both.iter().enumerate() {
        println!("{}: {worked:x?}", PROGRAMS[n]);
        judge_one(n, worked, joined, unknown, tally)?;
    }
    Ok(())
}

/// Checks that samples at the addresses of a program's function have this program's name, its
/// control group and this function's name, but for `unknown` ones at most, that no others have, and
/// that there is one for each period.
fn judge_one(
    n: usize,
    worked: &Worked,
    joined: &Joined<'_>,
    unknown: u64,
    tally: &mut Tally,
) -> Result<()> {
    let (program, whose) = (PROGRAMS[n], joined.whose);
    let (all, during) = joined.samples_of(worked)?;
    println!("{program}: {all} samples at its function, {during} during its work");
    for (what, table, key) in [
        ("process", joined.table, format!("{} {program}", worked.pid)),
        ("control group", joined.groups, format!("/{program}")),
    ] {
        let mut found = of_function(table, program)?;
        println!("{program}: {found:?}");
        let own = found.remove(&key).unwrap_or(0);
        let why = format!("{own} of {all} samples, {unknown} may be unknown, {found:?} of others");
        let is_own = own <= all && own + unknown >= all && found.is_empty();
        tally.check(
            &format!("{whose}: each sample of the program {program} is of its {what} and function"),
            if is_own { Ok(()) } else { Err(why) },
        );
    }
    let periods = worked.instructions / PERIOD;
    // Whether a period ends in the last instructions of a turn is chance.
    let off = 1 + 3 * worked.turns.isqrt() / 2;
    let why = format!("{during} samples, {periods} periods within {off} expected");
    println!("{program}: {why}");
    let fits = periods > 100 && during.abs_diff(periods) <= off;
    let fits = if fits { Ok(()) } else { Err(why) };
    tally.check(&format!("{whose}: the program {program} has a sample for each period"), fits);
    Ok(())
}

/// Returns the numbers of samples at a program's function, by what a table has in the column
/// between the layer and the function.
fn of_function(table: &str, program: &str) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [samples, _, "user", key @ .., function] = &*words else { continue };
        if function.ends_with(&format!("{program}_work")) {
            *found.entry(key.join(" ")).or_insert(0) += samples.parse::<u64>()?;
        }
    }
    Ok(found)
}

impl Joined<'_> {
    /// Returns how many of the domain's samples are at a program's function, and how many of these
    /// were taken during its work.
    fn samples_of(&self, worked: &Worked) -> Result<(u64, u64)> {
        let [from, to] = worked.tsc;
        let addresses = worked.function..worked.function + FUNCTION_BYTES;
        let mut found = (0, 0);
        for sample in self.profile.samples()? {
            let is_user = sample.layer == "user" && sample.domain == u64::from(self.domain);
            if is_user && addresses.contains(&sample.address) {
                let own_tsc = self.clock.at(self.profile.tsc(sample.ns));
                found.0 += 1;
                found.1 += u64::from((from..=to).contains(&own_tsc));
            }
        }
        Ok(found)
    }
}
