// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides from measurements which habits this processor has, and which promises hold here.

use serde::Serialize;

use super::measured::{Interrupts, Known, Measured, Outcome, Reads, Samples, Spread, Surplus};

/// Habits of processors that their manuals do not promise, by the names of `docs/habits.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HabitName {
    /// Each entry into a guest is counted in the guest, as an instruction and a branch.
    Vmrun,
    /// Each interrupt and page fault is counted as an instruction.
    Interrupts,
    /// Interrupts of overflows come late.
    Skid,
    /// Counters interrupt without a reason.
    Spurious,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Habit {
    pub name: HabitName,
    /// `None` if it could not be measured.
    pub found: Option<bool>,
    /// The measurement, or the reason why there is none.
    pub because: String,
}

/// perfctr's promises about counts and samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PromiseName {
    ExactInstructions,
    ExactBranches,
    RepeatedCounts,
    ConstantReads,
    EachPeriodOnce,
    SamplePlaces,
    Wraps,
}

impl PromiseName {
    /// Returns the promise, and the consequence if it does not hold.
    pub const fn texts(self) -> [&'static str; 2] {
        match self {
            Self::ExactInstructions => [
                "instructions:u counts the program's own instructions",
                "compare counts only beyond the surplus above, or count branches",
            ],
            Self::ExactBranches => [
                "branches:u counts the program's own branches",
                "gates and rr need branches that are exact: they will see differences",
            ],
            Self::RepeatedCounts => [
                "two runs of the same program have the same counts",
                "allow a gate the difference between the runs (`perfctr gate --threshold`)",
            ],
            Self::ConstantReads => [
                "a read takes no system call and always counts the same of itself",
                "short regions have an error of this size",
            ],
            Self::EachPeriodOnce => {
                ["each period has one sample", "profiles have too few or too many samples"]
            }
            Self::SamplePlaces => [
                "a sample is at the instruction where its period ended",
                "samples are this many instructions late; functions are right, lines may not be",
            ],
            Self::Wraps => ["counts stay right when a counter wraps", "do not use counts here"],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Promise {
    pub name: PromiseName,
    pub promised: &'static str,
    /// `None` if it could not be measured.
    pub holds: Option<bool>,
    pub because: String,
}

/// The verdicts about a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdicts {
    pub habits: Vec<Habit>,
    pub promises: Vec<Promise>,
}

impl Verdicts {
    pub fn of(measured: &Measured) -> Self {
        let samples = Sampled::of(&measured.samples);
        let interrupts = interrupts(measured);
        let entries = entries(measured);
        // Then the interrupt that takes a sample is counted before the sample: the interrupt
        // itself, and the entries into the guest that come with it.
        let itself = i64::from(interrupts.found == Some(true))
            + i64::from(entries.found == Some(true)) * ENTRIES_OF_INTERRUPT;
        let habits =
            vec![entries, interrupts, skid(&samples, itself), spurious(&measured.interrupts)];
        let promises = vec![
            exact(measured, PromiseName::ExactInstructions, |surplus| surplus.instructions),
            exact(measured, PromiseName::ExactBranches, |surplus| surplus.branches),
            repeated(measured),
            constant(&measured.reads),
            once(&samples),
            places(&samples, itself),
            wraps(measured, &samples),
        ];
        Self { habits, promises }
    }

    /// Returns whether no promise is known not to hold.
    pub fn all_hold(&self) -> bool {
        self.promises.iter().all(|promise| promise.holds != Some(false))
    }
}

/// The findings of all samples together.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// How many there are in the loop.
    pub number: usize,
    /// How many instructions after the end of its period a sample was taken.
    pub late: Spread,
    pub late_median: i64,
    /// Periods without a sample, and samples beyond the first one of a period.
    pub missing: u64,
    pub doubled: u64,
    /// How many instructions the counter has counted, from the first sample to the last, beyond
    /// those that the places prove.
    pub surplus: Spread,
    pub put_off: u64,
}

/// The most that a processor may add to a loop past 2^32: a lost wrap is 2^32.
const SURPLUS_MAX: i64 = 1 << 24;
/// The entries into a guest that come with the interrupt of an overflow: one after the exit of the
/// overflow, and one after the exit in which the guest gets its interrupt.
const ENTRIES_OF_INTERRUPT: i64 = 2;
/// The most that a processor may add for each sample: a lost wrap is a period.
const SURPLUS_OF_SAMPLE_MAX: i64 = 8;

/// The samples' judgement, or the reason why there is none.
type Sampled = Outcome<Judged>;

impl Sampled {
    fn of(samples: &Outcome<Samples>) -> Self {
        match samples {
            Outcome::Measured(samples) => match Judged::of(samples) {
                Some(judged) => Self::Measured(judged),
                None => Self::NotMeasured("no sample was taken in the loop".to_owned()),
            },
            Outcome::NotMeasured(why) => Self::NotMeasured(why.clone()),
        }
    }
}

impl Judged {
    /// Judges samples, or returns `None` if none was taken in the loop.
    pub fn of(samples: &Samples) -> Option<Self> {
        let Samples { period, round, instructions, taken, put_off, .. } = samples;
        let (mut missing, mut doubled, mut last) = (0, 0, 0);
        for sample in taken {
            let ended = sample.count / period;
            if ended == last {
                doubled += 1;
            }
            missing += ended.saturating_sub(last + 1);
            last = last.max(ended);
        }
        // The counter has counted at least the loop.
        missing += (instructions / period).saturating_sub(last);
        let within = taken.iter().filter_map(|sample| Some((sample.count, sample.place?)));
        let mut late: Vec<i64> = within.clone().map(|(count, _)| (count % period) as i64).collect();
        late.sort_unstable();
        // The count before the first round is the same for all samples.
        let before = |(count, place): (u64, u64)| (count + round - place % round) % round;
        let first = before(within.clone().next()?);
        let surplus = within.map(|sample| near(before(sample), first, *round));
        Some(Self {
            number: late.len(),
            late: Spread::of(late.iter().copied())?,
            late_median: *late.get(late.len() / 2)?,
            missing,
            doubled,
            surplus: Spread::of(surplus)?,
            put_off: *put_off,
        })
    }
}

impl Judged {
    /// Returns whether samples come later than the interrupt's own count explains. If that count
    /// is not 0, other interrupts may add to single samples, so most samples decide.
    const fn is_late(&self, itself: i64) -> bool {
        if itself == 0 { self.late.most > 0 } else { self.late_median > itself }
    }
}

/// Returns the difference of two places in a round, which is at most half a round.
fn near(place: u64, first: u64, round: u64) -> i64 {
    let forward = (place + round - first) % round;
    if forward > round / 2 { forward as i64 - round as i64 } else { forward as i64 }
}

fn loops(measured: &Measured) -> impl Iterator<Item = &Known> + Clone {
    [&measured.short_loops, &measured.long_loops, &measured.wrap]
        .into_iter()
        .filter_map(Outcome::measured)
}

/// Returns the number for each cause, if there are causes.
fn each(number: i64, causes: u64) -> Option<f64> {
    (causes > 0).then(|| number as f64 / causes as f64)
}

fn unmeasured(name: HabitName, why: Option<&str>) -> Habit {
    Habit { name, found: None, because: why.unwrap_or("nothing was measured").to_owned() }
}

/// Judges whether entries into the guest are counted: each is an instruction and a branch.
fn entries(measured: &Measured) -> Habit {
    let name = HabitName::Vmrun;
    let long: i64 = loops(measured).map(|known| known.sum(|one| one.branches)).sum();
    match measured.exits.measured() {
        None => unmeasured(name, measured.exits.why()),
        Some(exits) => {
            let branches = exits.sum(|one| one.branches);
            let of_one = each(branches, exits.causes).unwrap_or(0.0);
            let because = format!(
                "{of_one:.2} branches more for each CPUID, which leaves a guest, {long} in loops"
            );
            Habit { name, found: Some(of_one >= 0.5 || long > 0), because }
        }
    }
}

/// Judges whether interrupts and page faults are counted: each is an instruction and no branch.
fn interrupts(measured: &Measured) -> Habit {
    let name = HabitName::Interrupts;
    let long: i64 = loops(measured).map(|known| known.sum(Surplus::others)).sum();
    match measured.page_faults.measured() {
        None => unmeasured(name, measured.page_faults.why()),
        Some(faults) => {
            let of_one = each(faults.sum(Surplus::others), faults.causes).unwrap_or(0.0);
            let mut because = format!("{of_one:.2} instructions more for each page fault");
            let taken = loops(measured).map(|known| known.interrupts).sum::<Option<u64>>();
            if let Some(taken) = taken {
                because += &format!(", {long} more in loops with at most {taken} interrupts");
            }
            Habit { name, found: Some(of_one >= 0.5 || long > 0), because }
        }
    }
}

/// Judges whether samples are later than their interrupt's own count explains.
fn skid(samples: &Sampled, itself: i64) -> Habit {
    let name = HabitName::Skid;
    match samples.measured() {
        None => unmeasured(name, samples.why()),
        Some(judged) => {
            let because = late(judged, itself);
            Habit { name, found: Some(judged.is_late(itself)), because }
        }
    }
}

fn late(judged: &Judged, itself: i64) -> String {
    let Judged { late: Spread { least, most }, late_median, number, .. } = judged;
    let itself = if itself > 0 { "; the interrupt itself may be some of these" } else { "" };
    format!(
        "{number} samples come {least} to {most} instructions late, half of them at most \
         {late_median}{itself}"
    )
}

fn spurious(interrupts: &Outcome<Interrupts>) -> Habit {
    let name = HabitName::Spurious;
    match interrupts {
        Outcome::NotMeasured(why) => unmeasured(name, Some(why)),
        Outcome::Measured(Interrupts { by, overflows, interrupts }) => {
            // Somebody else's counter, such as a watchdog's, may interrupt now and then.
            let found = interrupts.saturating_sub(*overflows) > overflows / 4;
            let because = format!("{overflows} overflows had {interrupts} interrupts, by {by}");
            Habit { name, found: Some(found), because }
        }
    }
}

fn promise(name: PromiseName, holds: Option<bool>, because: String) -> Promise {
    let [promised, meaning] = name.texts();
    let because = if holds == Some(false) { format!("{because}: {meaning}") } else { because };
    Promise { name, promised, holds, because }
}

fn exact(measured: &Measured, name: PromiseName, of: fn(Surplus) -> i64) -> Promise {
    let all = loops(measured).chain(measured.page_faults.measured());
    let why = [&measured.short_loops, &measured.long_loops].into_iter().find_map(Outcome::why);
    if let Some(why) = why {
        return promise(name, None, why.to_owned());
    }
    let spread = |known: &Known| known.spread(of);
    let exact = all.clone().all(|known| spread(known).is(0));
    let (mut least, mut most) = (0, 0);
    for spread in all.map(spread) {
        (least, most) = (least.min(spread.least), most.max(spread.most));
    }
    let because = if exact {
        "short and long loops and page faults are exact".to_owned()
    } else {
        format!("{least} to {most} more in a run")
    };
    promise(name, Some(exact), because)
}

fn repeated(measured: &Measured) -> Promise {
    let name = PromiseName::RepeatedCounts;
    let pair = measured.short_loops.measured().zip(measured.long_loops.measured());
    let Some((short, long)) = pair else {
        let why = measured.short_loops.why().or_else(|| measured.long_loops.why());
        return promise(name, None, why.unwrap_or_default().to_owned());
    };
    let width = |of: fn(Surplus) -> i64| {
        let of_one = |known: &Known| known.spread(of).most - known.spread(of).least;
        of_one(short).max(of_one(long))
    };
    let (instructions, branches) = (width(|one| one.instructions), width(|one| one.branches));
    let because = format!("runs differ by {instructions} instructions and {branches} branches");
    promise(name, Some(instructions == 0 && branches == 0), because)
}

fn constant(reads: &Outcome<Reads>) -> Promise {
    let name = PromiseName::ConstantReads;
    match reads {
        Outcome::NotMeasured(why) => promise(name, None, why.clone()),
        Outcome::Measured(reads) => {
            let Reads { instructions, branches, direct, .. } = reads;
            let constant = instructions.least == instructions.most
                && branches.least == branches.most
                && *direct;
            let because = format!(
                "{} to {} instructions, {}",
                instructions.least,
                instructions.most,
                if *direct { "no system call" } else { "with system calls" }
            );
            promise(name, Some(constant), because)
        }
    }
}

fn once(samples: &Sampled) -> Promise {
    let name = PromiseName::EachPeriodOnce;
    match samples {
        Outcome::NotMeasured(why) => promise(name, None, why.clone()),
        Outcome::Measured(Judged { missing, doubled, put_off, .. }) => {
            let because =
                format!("{missing} without a sample, {doubled} with more, {put_off} put off");
            promise(name, Some((*missing, *doubled) == (0, 0)), because)
        }
    }
}

fn places(samples: &Sampled, itself: i64) -> Promise {
    let name = PromiseName::SamplePlaces;
    match samples {
        Outcome::NotMeasured(why) => promise(name, None, why.clone()),
        Outcome::Measured(judged) => {
            promise(name, Some(!judged.is_late(itself)), late(judged, itself))
        }
    }
}

/// Judges the counts of a counter that wraps at each sample, and of one that passes 2^32.
fn wraps(measured: &Measured, samples: &Sampled) -> Promise {
    let name = PromiseName::Wraps;
    // A surplus from the processor is small, while a lost wrap is not.
    let small = |spread: Spread| spread.least >= -SURPLUS_MAX && spread.most <= SURPLUS_MAX;
    let past = measured.wrap.measured().map(|known| small(known.spread(|one| one.instructions)));
    let past_said = match past {
        Some(_) => "a loop past 2^32 was counted".to_owned(),
        None => format!("2^32 was not tried: {}", measured.wrap.why().unwrap_or_default()),
    };
    let Outcome::Measured(judged) = samples else {
        return promise(name, past, past_said);
    };
    let Spread { least, most } = judged.surplus;
    let few = SURPLUS_OF_SAMPLE_MAX * judged.number as i64;
    let is_right = least >= -few && most <= few && past != Some(false);
    let number = judged.number;
    let because =
        format!("{number} wraps, {least} to {most} more than their places say; {past_said}");
    promise(name, Some(is_right), because)
}

#[cfg(test)]
pub(super) mod tests;
