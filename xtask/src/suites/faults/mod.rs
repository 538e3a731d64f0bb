// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests whether a test notices each fault of the catalogue in `tests/faults`.

mod host;
mod sim;
mod trial;
mod vm;

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::report::{Report, Volume};
use super::shard::Shard;
use crate::artefacts::faults::{self, Fault, Tier};
use crate::tools::sh;

/// The number of parts that the host tier's faults are divided into. The usual run tries one of
/// them, another one every day.
const SHARDS: usize = 30;

/// Runs the suite: it tries a part of the host tier's faults, and in the long tier all of them. The
/// faults that need a build of their own take most of the time, so only the long tier tries them.
/// The simulator's faults are tried by the suite of that name, those that need the testbed by
/// `cargo xtask faults --tier vm`.
pub fn suite(report: &mut Report) -> Result<()> {
    let (shard, switched_only) = match report.volume {
        Volume::Usual => (Some(Shard::of_today(SHARDS)), true),
        Volume::Long => (None, false),
    };
    let choice = Choice { tier: Some(Tier::Host), shard, switched_only, ..Choice::default() };
    let mut verdicts = Vec::new();
    let name = shard.map_or("every fault is noticed".to_owned(), |shard| {
        format!("every fault of the day's part, {shard}, is noticed")
    });
    report.test(&name, || {
        verdicts = try_all(&choice)?;
        print!("{}", table(&verdicts));
        all_caught(&verdicts)
    });
    report.note(format!("{} faults tried", verdicts.len()));
    Ok(())
}

/// Which faults are tried.
#[derive(Debug, Default)]
pub struct Choice {
    /// If given, only the faults of this tier are tried.
    pub tier: Option<Tier>,
    /// If given, only the fault of this name is tried.
    pub only: Option<String>,
    /// If given, only the faults of this list are tried. It is named by its file without the
    /// ending.
    pub list: Option<String>,
    /// Whether the faults that need a build of their own are left out.
    pub switched_only: bool,
    /// If given, only this part of the faults is tried.
    pub shard: Option<Shard>,
}

impl Choice {
    fn pick(&self, faults: Vec<Fault>) -> Result<Vec<Fault>> {
        let is_wanted = |fault: &Fault| {
            self.tier.is_none_or(|tier| tier == fault.tier)
                && self.only.as_ref().is_none_or(|only| *only == fault.name)
                && self.list.as_ref().is_none_or(|list| *list == fault.list)
                && !(self.switched_only && fault.alone)
        };
        let wanted: Vec<Fault> = faults.into_iter().filter(is_wanted).collect();
        let part = self.shard.unwrap_or(Shard::WHOLE).pick(wanted);
        ensure!(!part.is_empty(), "there is no such fault in tests/faults");
        Ok(part)
    }
}

/// The result for a fault.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// This test has noticed it, or whatever else the text says.
    By(String),
    /// No test has noticed it.
    Alive,
}

/// A fault that was tried.
#[derive(Debug)]
pub struct Verdict {
    fault: Fault,
    found: Found,
    time: Duration,
}

/// Tries the faults that are chosen.
pub fn try_all(choice: &Choice) -> Result<Vec<Verdict>> {
    let chosen = choice.pick(faults::read(&sh::project())?)?;
    let mut verdicts = Vec::new();
    for tier in [Tier::Host, Tier::Sim, Tier::Vm] {
        let faults: Vec<Fault> =
            chosen.iter().filter(|fault| fault.tier == tier).cloned().collect();
        if faults.is_empty() {
            continue;
        }
        verdicts.extend(match tier {
            Tier::Host => host::run(faults)?,
            Tier::Sim => sim::run(faults)?,
            Tier::Vm => vm::run(faults)?,
        });
    }
    Ok(verdicts)
}

/// Makes a table of what has become of each fault, with the totals at the end.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut text = format!("{:<32}{:<6}{:>8}  caught by\n", "fault", "tier", "seconds");
    for Verdict { fault, found, time } in verdicts {
        let tier = format!("{:?}", fault.tier).to_lowercase();
        let found = match found {
            Found::By(test) => test,
            Found::Alive => "ALIVE",
        };
        let seconds = time.as_secs_f64();
        text += &format!("{:<32}{tier:<6}{seconds:>8.1}  {found}\n", fault.name);
    }
    let alive = alive(verdicts).count();
    text + &format!("{} faults, {} caught, {alive} alive\n", verdicts.len(), verdicts.len() - alive)
}

fn alive(verdicts: &[Verdict]) -> impl Iterator<Item = &Fault> {
    let alive = verdicts.iter().filter(|verdict| verdict.found == Found::Alive);
    alive.map(|verdict| &verdict.fault)
}

/// Fails with the faults that no test has noticed.
pub fn all_caught(verdicts: &[Verdict]) -> Result<()> {
    let alive: Vec<String> =
        alive(verdicts).map(|fault| format!("{}: {}", fault.name, fault.what)).collect();
    if !alive.is_empty() {
        bail!("no test notices\n  {}", alive.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str, tier: Tier) -> Fault {
        let what = format!("{name} goes wrong.");
        Fault {
            name: name.to_owned(),
            what,
            tier,
            alone: false,
            suite: None,
            test: None,
            program: None,
            edits: Vec::new(),
            list: String::new(),
        }
    }

    #[test]
    fn parts_are_all_of_them() {
        let all = ["A", "B", "C", "D", "E"].map(|name| fault(name, Tier::Host)).to_vec();
        let part = |text: &str| {
            let choice = Choice { shard: Some(text.parse().unwrap()), ..Choice::default() };
            let part = choice.pick(all.clone()).unwrap();
            part.iter().map(|fault| fault.name.clone()).collect::<String>()
        };
        assert_eq!([part("0/2"), part("1/2")], ["ACE", "BD"]);
        let other = Choice { only: Some("F".to_owned()), ..Choice::default() };
        assert!(other.pick(all.clone()).is_err());
        let mut all = all;
        all[1].alone = true;
        let shard = Some("1/2".parse().unwrap());
        let switched = Choice { switched_only: true, shard, ..Choice::default() };
        let names = |part: Vec<Fault>| part.into_iter().map(|fault| fault.name).collect::<String>();
        assert_eq!(names(switched.pick(all).unwrap()), "CE", "parts of those that are left");
    }

    #[test]
    fn what_is_alive_is_said() {
        let verdict = |name, tier, found| Verdict {
            fault: fault(name, tier),
            found,
            time: Duration::from_millis(1250),
        };
        let verdicts = [
            verdict("Caught", Tier::Sim, Found::By("a test".to_owned())),
            verdict("Missed", Tier::Host, Found::Alive),
        ];
        let text = table(&verdicts);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "Caught                          sim        1.2  a test",
                "Missed                          host       1.2  ALIVE",
                "2 faults, 1 caught, 1 alive",
            ]
        );
        assert!(all_caught(&verdicts[..1]).is_ok());
        let error = all_caught(&verdicts).unwrap_err().to_string();
        assert_eq!(error, "no test notices\n  Missed: Missed goes wrong.");
    }
}
