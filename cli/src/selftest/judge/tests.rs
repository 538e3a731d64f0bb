// SPDX-License-Identifier: MIT OR GPL-2.0-only
use super::*;
use crate::selftest::measured::Taken;

const PERIOD: u64 = 20_011;
const ROUND: u64 = 16_386;
/// The count before the first round.
const BEFORE: u64 = 57;

/// Returns samples of a processor whose `n`th interrupt comes `late(n)` instructions late. It
/// counts `more` further instructions for each earlier sample.
fn samples(late: impl Fn(u64) -> u64, more: u64) -> Samples {
    let taken = |n: u64| {
        let count = n * PERIOD + late(n);
        Taken { count, place: Some((count - BEFORE - (n - 1) * more) % ROUND) }
    };
    let (lost, put_off, instructions) = (0, 0, 10 * PERIOD);
    let taken = (1..=10).map(taken).collect();
    Samples { period: PERIOD, round: ROUND, instructions, lost, put_off, taken }
}

fn known(instructions: u64, branches: u64, causes: u64, surplus: &[[i64; 2]]) -> Known {
    let surplus =
        surplus.iter().map(|&[instructions, branches]| Surplus { instructions, branches });
    let (surplus, interrupts) = (surplus.collect(), Some(11));
    Known { instructions, branches, causes, surplus, interrupts, switches: 3 }
}

/// Returns the measurements of a processor that does exactly what its manual promises.
pub(in crate::selftest) fn faultless() -> Measured {
    let spread = |number| Spread { least: number, most: number };
    let reads =
        Reads { regions: 9, instructions: spread(21), branches: spread(3), direct: true, ns: 7.0 };
    let interrupts = Interrupts { by: "nobody", overflows: 100, interrupts: 125 };
    Measured {
        reads: Outcome::Measured(reads),
        short_loops: Outcome::Measured(known(2_000, 1_000, 0, &[[0, 0]; 3])),
        long_loops: Outcome::Measured(known(40_000, 20_000, 0, &[[0, 0]; 2])),
        wrap: Outcome::Measured(known(1 << 32, 1 << 31, 0, &[[0, 0]])),
        page_faults: Outcome::Measured(known(1_024, 256, 256, &[[0, 0]])),
        exits: Outcome::Measured(known(1_000, 200, 200, &[[-200, 0]])),
        samples: Outcome::Measured(samples(|_| 0, 0)),
        interrupts: Outcome::Measured(interrupts),
    }
}

fn found(measured: &Measured) -> Vec<HabitName> {
    let habits = Verdicts::of(measured).habits.into_iter();
    habits.filter(|habit| habit.found == Some(true)).map(|habit| habit.name).collect()
}

fn broken(measured: &Measured) -> Vec<PromiseName> {
    let promises = Verdicts::of(measured).promises.into_iter();
    promises.filter(|promise| promise.holds == Some(false)).map(|promise| promise.name).collect()
}

#[test]
fn a_processor_that_keeps_to_its_manual_has_no_habits() {
    let verdicts = Verdicts::of(&faultless());
    assert!(verdicts.habits.iter().all(|habit| habit.found == Some(false)), "{verdicts:#?}");
    assert!(verdicts.promises.iter().all(|promise| promise.holds == Some(true)), "{verdicts:#?}");
    assert!(verdicts.all_hold());
}

#[test]
fn what_faults_and_interrupts_add_is_an_instruction_and_no_branch() {
    use PromiseName::{ExactBranches, ExactInstructions, RepeatedCounts};
    let mut measured = faultless();
    measured.page_faults = Outcome::Measured(known(1_024, 256, 256, &[[257, 0]]));
    assert_eq!(found(&measured), [HabitName::Interrupts]);
    assert_eq!(broken(&measured), [ExactInstructions]);
    // If the host provides a page, that is an entry into the guest.
    measured.page_faults = Outcome::Measured(known(1_024, 256, 256, &[[127, 0]]));
    assert_eq!(found(&measured), [], "less than one of two");
    measured.page_faults = Outcome::Measured(known(1_024, 256, 256, &[[300, 300]]));
    assert_eq!(found(&measured), []);
    assert_eq!(broken(&measured), [ExactInstructions, ExactBranches]);
    let mut measured = faultless();
    measured.long_loops = Outcome::Measured(known(40_000, 20_000, 0, &[[0, 0], [7, 0]]));
    assert_eq!(found(&measured), [HabitName::Interrupts]);
    assert_eq!(broken(&measured), [ExactInstructions, RepeatedCounts]);
    let habit = Verdicts::of(&measured).habits.remove(1);
    assert_eq!(
        habit.because,
        "0.00 instructions more for each page fault, 7 more in loops with at most 33 interrupts"
    );
}

#[test]
fn runs_differ_by_as_much_as_those_of_the_loops_that_differ_most() {
    let repeated = |short: &[[i64; 2]], long: &[[i64; 2]]| {
        let mut measured = faultless();
        measured.short_loops = Outcome::Measured(known(2_000, 1_000, 0, short));
        measured.long_loops = Outcome::Measured(known(40_000, 20_000, 0, long));
        let mut promises = Verdicts::of(&measured).promises.into_iter();
        let name = PromiseName::RepeatedCounts;
        let promise = promises.find(|promise| promise.name == name).unwrap();
        (promise.holds, promise.because.split(':').next().unwrap().to_owned())
    };
    let differ = |instructions, branches| {
        let words = format!("runs differ by {instructions} instructions and {branches} branches");
        (Some((instructions, branches) == (0, 0)), words)
    };
    let (same, other) = ([[5, 3]; 2], [[9, 2], [5, 4]]);
    assert_eq!(repeated(&same, &same), differ(0, 0));
    assert_eq!(repeated(&other, &same), differ(4, 2));
    assert_eq!(repeated(&same, &other), differ(4, 2));
    assert_eq!(repeated(&[[1, 0], [0, 7]], &other), differ(4, 7));
}

#[test]
fn what_entries_add_is_as_many_branches_as_instructions() {
    use PromiseName::{ExactBranches, ExactInstructions, RepeatedCounts};
    let mut measured = faultless();
    measured.exits = Outcome::Measured(known(1_000, 200, 200, &[[0, 200]]));
    assert_eq!(found(&measured), [HabitName::Vmrun]);
    assert_eq!(broken(&measured), []);
    measured.exits = Outcome::Measured(known(1_000, 200, 200, &[[-101, 99]]));
    assert_eq!(found(&measured), []);
    measured.long_loops = Outcome::Measured(known(40_000, 20_000, 0, &[[5, 5], [0, 0]]));
    assert_eq!(found(&measured), [HabitName::Vmrun]);
    assert_eq!(broken(&measured), [ExactInstructions, ExactBranches, RepeatedCounts]);
    // Both habits occur at once.
    measured.long_loops = Outcome::Measured(known(40_000, 20_000, 0, &[[9, 5], [0, 0]]));
    assert_eq!(found(&measured), [HabitName::Vmrun, HabitName::Interrupts]);
}

#[test]
fn late_samples_are_a_skid_and_have_their_periods() {
    for more in [0, 1, 2] {
        let mut measured = faultless();
        measured.samples = Outcome::Measured(samples(|n| 60 + n, more));
        assert_eq!(found(&measured), [HabitName::Skid]);
        assert_eq!(broken(&measured), [PromiseName::SamplePlaces]);
        let judged = Judged::of(&samples(|n| 60 + n, more)).unwrap();
        let expected = Judged {
            number: 10,
            late: Spread { least: 61, most: 70 },
            late_median: 66,
            missing: 0,
            doubled: 0,
            surplus: Spread { least: 0, most: 9 * more as i64 },
            put_off: 0,
        };
        assert_eq!(judged, expected);
    }
}

#[test]
fn a_sample_that_comes_behind_a_later_one_is_missed_once() {
    let mut samples = samples(|_| 0, 0);
    let in_order = Judged::of(&samples).unwrap();
    samples.taken.swap(1, 2);
    let swapped = Judged::of(&samples).unwrap();
    let found = [&in_order, &swapped].map(|judged| (judged.missing, judged.doubled));
    assert_eq!(found, [(0, 0), (1, 0)], "the second of ten");
}

#[test]
fn the_interrupt_that_takes_a_sample_is_no_skid() {
    let mut measured = faultless();
    measured.samples = Outcome::Measured(samples(|_| 1, 1));
    assert_eq!(found(&measured), [HabitName::Skid]);
    measured.page_faults = Outcome::Measured(known(1_024, 256, 256, &[[256, 0]]));
    assert_eq!(found(&measured), [HabitName::Interrupts]);
    assert_eq!(broken(&measured), [PromiseName::ExactInstructions]);
    measured.samples = Outcome::Measured(samples(|n| n / 2, 1));
    assert_eq!(found(&measured), [HabitName::Interrupts, HabitName::Skid]);
    use PromiseName::{ExactInstructions, SamplePlaces};
    assert_eq!(broken(&measured), [ExactInstructions, SamplePlaces]);
    // In a guest whose entries are counted there are two of them.
    let mut measured = faultless();
    measured.exits = Outcome::Measured(known(1_000, 200, 200, &[[0, 200]]));
    for (late, expected) in
        [(2, &[HabitName::Vmrun][..]), (3, &[HabitName::Vmrun, HabitName::Skid])]
    {
        measured.samples = Outcome::Measured(samples(|_| late, 1));
        assert_eq!(found(&measured), expected, "{late}");
    }
}

#[test]
fn samples_are_missing_doubled_and_elsewhere() {
    let all = samples(|_| 5, 0);
    let of = |taken: &[usize]| {
        let taken = taken.iter().map(|&n| all.taken[n]).collect();
        let judged = Judged::of(&Samples { taken, ..all.clone() }).unwrap();
        (judged.missing, judged.doubled, judged.number)
    };
    let places: Vec<usize> = (0..10).collect();
    assert_eq!(of(&places), (0, 0, 10));
    assert_eq!(of(&places[2..]), (2, 0, 8), "the first");
    assert_eq!(of(&places[..7]), (3, 0, 7), "the last");
    assert_eq!(of(&[0, 1, 2, 2, 2, 5, 6, 7, 8, 9]), (2, 2, 10));
    let mut elsewhere = all.clone();
    elsewhere.taken[4].place = None;
    let judged = Judged::of(&elsewhere).unwrap();
    assert_eq!((judged.missing, judged.doubled, judged.number), (0, 0, 9));
    elsewhere.taken.iter_mut().for_each(|sample| sample.place = None);
    assert_eq!(Judged::of(&elsewhere), None);
}

#[test]
fn a_wrap_that_is_lost_is_seen() {
    use PromiseName::{ExactInstructions, SamplePlaces, Wraps};
    let mut measured = faultless();
    measured.wrap = Outcome::Measured(known(1 << 32, 1 << 31, 0, &[[-(1 << 32), 0]]));
    assert_eq!(broken(&measured), [ExactInstructions, Wraps]);
    let mut measured = faultless();
    // One sample in the middle shows a place that contradicts the counter.
    let mut shifted = samples(|_| 3, 0);
    shifted.taken[5].place = shifted.taken[5].place.map(|place| (place + 5_000) % ROUND);
    measured.samples = Outcome::Measured(shifted);
    assert_eq!(broken(&measured), [SamplePlaces, Wraps]);
    let mut measured = faultless();
    measured.wrap = Outcome::NotMeasured("too slow".to_owned());
    let promise = Verdicts::of(&measured).promises.pop().unwrap();
    assert_eq!(promise.holds, Some(true));
    assert!(promise.because.ends_with("2^32 was not tried: too slow"), "{}", promise.because);
}

#[test]
fn interrupts_without_a_reason_are_more_than_a_watchdogs() {
    for (interrupts, expected) in
        [(99, &[][..]), (125, &[]), (126, &[HabitName::Spurious]), (200, &[HabitName::Spurious])]
    {
        let mut measured = faultless();
        measured.interrupts =
            Outcome::Measured(Interrupts { by: "nobody", overflows: 100, interrupts });
        assert_eq!(found(&measured), expected, "{interrupts}");
    }
}

#[test]
fn reads_are_constant_and_direct() {
    for (least, most, direct, holds) in
        [(21, 21, true, true), (21, 22, true, false), (21, 21, false, false)]
    {
        let instructions = Spread { least, most };
        let branches = Spread { least: 3, most: 3 };
        let reads = Reads { regions: 9, instructions, branches, direct, ns: 7.0 };
        let promise = constant(&Outcome::Measured(reads));
        assert_eq!(promise.holds, Some(holds), "{least} {most} {direct}");
    }
}

#[test]
fn what_is_not_measured_is_neither_found_nor_absent() {
    let why = || "no reason".to_owned();
    let measured = Measured {
        reads: Outcome::NotMeasured(why()),
        short_loops: Outcome::NotMeasured(why()),
        long_loops: Outcome::NotMeasured(why()),
        wrap: Outcome::NotMeasured(why()),
        page_faults: Outcome::NotMeasured(why()),
        exits: Outcome::NotMeasured(why()),
        samples: Outcome::NotMeasured(why()),
        interrupts: Outcome::NotMeasured(why()),
    };
    let Verdicts { habits, promises } = Verdicts::of(&measured);
    assert!(habits.iter().all(|habit| habit.found.is_none() && habit.because == "no reason"));
    assert!(promises.iter().all(|promise| promise.holds.is_none()));
    assert!(promises.iter().all(|promise| promise.because.contains("no reason")), "{promises:?}");
}

/// Any skid and surplus that a processor may have is found exactly.
#[test]
fn skid_and_surplus_are_found_whatever_they_are() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let (most, more) = (random.u64(1..PERIOD / 2), random.u64(0..4));
        let skids: Vec<u64> = (0..=10).map(|_| random.u64(0..=most)).collect();
        let judged = Judged::of(&samples(|n| skids[n as usize], more)).unwrap();
        let within = skids[1..].iter().map(|&skid| skid as i64);
        assert_eq!(Some(judged.late), Spread::of(within));
        assert_eq!(judged.surplus, Spread { least: 0, most: 9 * more as i64 });
        assert_eq!((judged.missing, judged.doubled), (0, 0));
    }
}
