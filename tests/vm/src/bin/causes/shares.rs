// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares two lists of samples of one kernel: which functions they have, and the functions'
//! shares.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The samples of each function.
pub type Samples = BTreeMap<String, u64>;

/// Functions with smaller shares in both lists are not compared.
const SHARE_MIN: f64 = 0.04;
/// At least so many functions must be compared.
const FUNCTIONS_MIN: usize = 4;
/// By so many standard deviations two shares may differ that were found by independent samples of
/// one load.
const DEVIATIONS: f64 = 4.0;
/// What only one of the two recordings has executed, as a share of its samples: the start and the
/// end of a program, and some more interrupts of the timer.
const ELSE: f64 = 0.01;

/// The names of a kernel's functions, of which one address may have several.
pub struct Names(HashMap<String, String>);

impl Names {
    /// Reads the list of a kernel's functions, as `/proc/kallsyms`.
    pub fn of(kallsyms: &str) -> Self {
        let mut first: HashMap<&str, &str> = HashMap::new();
        let mut names = HashMap::new();
        for line in kallsyms.lines() {
            let mut words = line.split_whitespace();
            let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let one = *first.entry(address).or_insert(name);
            names.entry(name.to_owned()).or_insert_with(|| one.to_owned());
        }
        Self(names)
    }

    /// Returns the samples by one name of each function.
    fn by_one_name(&self, samples: &Samples) -> Samples {
        let mut by_name = Samples::new();
        for (name, number) in samples {
            let name = self.0.get(name).unwrap_or(name);
            *by_name.entry(name.clone()).or_default() += number;
        }
        by_name
    }

    /// Fails unless the functions with large shares have the same share in both lists, as far as
    /// independent samples can tell. Returns what was compared, in words.
    pub fn compare(&self, inside: &Samples, outside: &Samples) -> Result<String, String> {
        let lists = [inside, outside].map(|samples| self.by_one_name(samples));
        let sums = lists.each_ref().map(|list| list.values().sum::<u64>() as f64);
        if sums.contains(&0.0) {
            return Err(format!("a list is empty: {lists:?}"));
        }
        let (mut compared, mut wrong) = (String::new(), String::new());
        let (mut functions, all) =
            (0, lists.iter().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>());
        for name in all {
            let numbers = lists.each_ref().map(|list| *list.get(name).unwrap_or(&0) as f64);
            let [own, others] = [0, 1].map(|n| numbers[n] / sums[n]);
            if own.max(others) < SHARE_MIN {
                continue;
            }
            let line =
                format!("{name}: {:.1} % inside, {:.1} % outside\n", own * 1e2, others * 1e2);
            functions += 1;
            compared += &line;
            if (own - others).abs() > tolerance(numbers, sums) {
                wrong += &line;
            }
        }
        if functions < FUNCTIONS_MIN {
            return Err(format!("only {functions} functions have a share of {SHARE_MIN}"));
        }
        if wrong.is_empty() { Ok(compared) } else { Err(wrong) }
    }
}

/// Returns by how much the shares of a function in two lists may differ: by several standard
/// deviations of the difference of two shares, and by what was executed in one recording only.
fn tolerance(numbers: [f64; 2], sums: [f64; 2]) -> f64 {
    let share = (numbers[0] + numbers[1]) / (sums[0] + sums[1]);
    let variance = share * (1.0 - share) * (1.0 / sums[0] + 1.0 / sums[1]);
    DEVIATIONS * variance.sqrt() + ELSE
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "\
10 T read_zero
20 t clear
20 T clear_user
30 T getppid
40 T pipe_read
";

    fn samples(numbers: &[(&str, u64)]) -> Samples {
        numbers.iter().map(|&(name, number)| (name.to_owned(), number)).collect()
    }

    fn inside() -> Samples {
        samples(&[("read_zero", 1000), ("clear", 500), ("getppid", 400), ("pipe_read", 100)])
    }

    #[test]
    fn shares_agree_within_what_chance_allows() {
        let names = Names::of(KALLSYMS);
        let outside =
            [("read_zero", 520), ("clear_user", 240), ("getppid", 190), ("pipe_read", 50)];
        let compared = names.compare(&inside(), &samples(&outside)).unwrap();
        assert!(compared.contains("clear: 25.0 % inside, 24.0 % outside\n"), "{compared}");
        let outside =
            [("read_zero", 400), ("clear_user", 240), ("getppid", 310), ("pipe_read", 50)];
        let wrong = names.compare(&inside(), &samples(&outside)).unwrap_err();
        let expected = "getppid: 20.0 % inside, 31.0 % outside\n\
                        read_zero: 50.0 % inside, 40.0 % outside\n";
        assert_eq!(wrong, expected);
    }

    #[test]
    fn a_function_of_one_list_only_is_wrong() {
        let names = Names::of(KALLSYMS);
        let outside = [("read_zero", 500), ("[unknown]", 250), ("getppid", 200), ("pipe_read", 50)];
        let wrong = names.compare(&inside(), &samples(&outside)).unwrap_err();
        assert!(wrong.starts_with("[unknown]: 0.0 % inside, 25.0 % outside\n"), "{wrong}");
        assert!(wrong.contains("clear: 25.0 % inside, 0.0 % outside\n"), "{wrong}");
    }

    #[test]
    fn lists_that_say_nothing_are_wrong() {
        let names = Names::of(KALLSYMS);
        assert!(names.compare(&inside(), &Samples::new()).is_err());
        let few = samples(&[("read_zero", 100), ("getppid", 100)]);
        let why = names.compare(&few, &few).unwrap_err();
        assert!(why.starts_with("only 2 functions"), "{why}");
    }

    #[test]
    fn more_samples_tolerate_less() {
        let few = tolerance([50.0, 50.0], [100.0, 100.0]);
        let many = tolerance([5000.0, 5000.0], [10_000.0, 10_000.0]);
        // Half of 100 samples has a standard deviation of 5 %, and the difference that of √2 times.
        assert!((few - (4.0 * 0.05 * 2.0_f64.sqrt() + ELSE)).abs() < 1e-9, "{few}");
        assert!((many - (few - ELSE) / 10.0 - ELSE).abs() < 1e-9, "{many}");
    }
}
