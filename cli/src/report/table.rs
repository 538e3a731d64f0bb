// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the table of `perfctr report`.

use std::collections::BTreeMap;

use super::symbols::Named;
use super::{Key, layer, summary, thread};
use crate::profile::{Layer, Profile, Stack};

/// Returns the rows of the table, which are the cells of the columns `keys`, and the number of
/// samples of each row.
pub fn rows(profile: &Profile, names: &[Named], keys: &[Key]) -> BTreeMap<Vec<String>, u64> {
    let mut rows = BTreeMap::new();
    for stack in &profile.stacks {
        let row = |time| keys.iter().map(|key| cell(profile, names, stack, *key, time)).collect();
        if keys.contains(&Key::Time) {
            for time in &stack.times {
                *rows.entry(row(*time)).or_default() += 1;
            }
        } else {
            *rows.entry(row(0)).or_default() += stack.samples;
        }
    }
    rows
}

/// Returns the rows that [`rows`] returns, in the order of the table: by time if that is the first
/// column, otherwise by the number of samples, the largest first.
pub fn ordered(profile: &Profile, names: &[Named], keys: &[Key]) -> Vec<(Vec<String>, u64)> {
    let mut rows: Vec<_> = rows(profile, names, keys).into_iter().collect();
    if keys.first() != Some(&Key::Time) {
        rows.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    }
    rows
}

/// Returns the table as text, with a summary above it. A row has the number of samples that have
/// its cells in the columns `keys`. Columns about code show a sample's innermost frame.
pub fn table(profile: &Profile, names: &[Named], keys: &[Key]) -> String {
    let all = profile.samples();
    let rows = ordered(profile, names, keys).into_iter();
    let rows = rows.map(|(row, samples)| (row, share(samples, all)));
    lines(
        profile,
        &Key::headings(keys),
        &format!("{:>10} {:>7}", "samples", "%"),
        &rows.collect::<Vec<_>>(),
    )
}

/// Returns a number of samples and their share, as rows have them.
pub fn share(samples: u64, all: u64) -> String {
    format!("{samples:>10} {:>7}", percent(samples, all))
}

/// Returns the lines of a table, whose columns have these headings. Each row has its numbers before
/// its cells, and `numbers` is the heading of the numbers.
pub fn lines(
    profile: &Profile,
    headings: &[String],
    numbers: &str,
    rows: &[(Vec<String>, String)],
) -> String {
    let cells = || rows.iter().map(|(row, _)| row.as_slice()).chain([headings]);
    let width = |n: usize| cells().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |numbers: &str, row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        let cells: Vec<String> = cells.collect();
        format!("{numbers}  {}", cells.join("  ")).trim_end().to_owned() + "\n"
    };
    let mut text = format!("{}\n", summary(profile));
    let missed = profile.missed();
    if missed > 0 {
        text += &format!("{missed} more were missed\n");
    }
    if profile.unobserved > 0 {
        let unobserved = profile.unobserved;
        text += &format!("threads or programs that could not be observed: {unobserved}\n");
    }
    text += &line(numbers, headings);
    for (row, numbers) in rows {
        text += &line(numbers, row);
    }
    text
}

/// Returns the text in one column of a sample that was taken at this time.
pub fn cell(profile: &Profile, names: &[Named], stack: &Stack, key: Key, time: u64) -> String {
    // A stack has at least one frame.
    let named = &names[stack.frames[0] as usize];
    match key {
        Key::Thread => thread(profile, stack),
        Key::Process => profile.threads[stack.thread as usize].process(),
        Key::Cgroup => profile.threads[stack.thread as usize].cgroup(),
        Key::Module => named.module.clone(),
        Key::Symbol => named.symbol().to_owned(),
        Key::Line => named.line(),
        // Code that is not the kernel's is in user mode.
        Key::Layer => layer(profile, stack.frames[0]).unwrap_or(Layer::User).name().to_owned(),
        Key::Domain => profile.threads[stack.thread as usize].domain(),
        Key::Time => {
            let tenths = time / 100_000_000;
            // This is so wide that the order of texts is the order of time.
            format!("{:>8}.{}", tenths / 10, tenths % 10)
        }
        Key::Cpu => stack.cpu.map_or_else(String::new, |cpu| cpu.to_string()),
    }
}

/// Returns a share of all samples in percent.
pub fn percent(samples: u64, all: u64) -> String {
    format!("{:.2}", 100.0 * samples as f64 / all.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of_host, profile};
    use super::*;

    #[test]
    fn nothing_is_0_percent_of_nothing() {
        assert_eq!([(0, 0), (1, 8)].map(|(samples, all)| percent(samples, all)), ["0.00", "12.50"]);
    }

    #[test]
    fn samples_are_told_apart_by_what_is_asked_for() {
        let (profile, names) = profile();
        let table = |keys: &[Key]| table(&profile, &names, keys);
        let heading = "6 samples of 2 threads, one every 100 instructions:u, from native\n\
                       2 more were missed\n";
        assert_eq!(
            table(&[Key::Symbol]),
            format!("{heading}   samples       %  symbol\n         6  100.00  f\n")
        );
        let rows = "   samples       %  thread  line\n         3   50.00  7 one   a.c:3\n         \
                    2   33.33  8 two   f\n         1   16.67  8 two   a.c:3\n";
        assert_eq!(table(&[Key::Thread, Key::Line]), format!("{heading}{rows}"));
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell_has_characters() {
        let (mut profile, names) = profile();
        profile.threads[0].name = "größte".to_owned();
        let table = table(&profile, &names, &[Key::Thread, Key::Symbol]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        let expected = [
            "   samples       %  thread    symbol",
            "         3   50.00  7 größte  f",
            "         3   50.00  8 two     f",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn samples_are_in_the_order_of_time_if_that_comes_first() {
        let (mut profile, names) = profile();
        let error = Key::columns(&[Key::Time], &profile).unwrap_err().to_string();
        assert!(error.contains("does not say when samples were taken"), "{error}");
        let times =
            [vec![0, 99_999_999, 10_000_000_000], vec![100_000_000], vec![1, 2_000_000_000]];
        for (stack, times) in profile.stacks.iter_mut().zip(times) {
            stack.times = times;
        }
        let keys = Key::columns(&[Key::Time, Key::Thread], &profile).unwrap();
        let table = table(&profile, &names, &keys);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        let expected = [
            "   samples       %  time        thread",
            "         2   33.33         0.0  7 one",
            "         1   16.67         0.0  8 two",
            "         1   16.67         0.1  8 two",
            "         1   16.67         2.0  8 two",
            "         1   16.67        10.0  7 one",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_host_has_rows_by_layer_domain_and_function() {
        let (profile, names) = of_host();
        let table = |keys: &[Key]| table(&profile, &names, keys);
        let heading = "10 samples of 2 vCPUs, one every 10000 cycles, from xen\n\
                       5 more were missed\n";
        let rows = "   samples       %  layer       domain    symbol
         4   40.00  hypervisor  Domain-0  schedule
         3   30.00  user        domain 3  [user mode of domain 3]
         2   20.00  kernel      Domain-0  do_idle
         1   10.00  hypervisor  domain 3  schedule
";
        assert_eq!(table(&[Key::Layer, Key::Domain, Key::Symbol]), format!("{heading}{rows}"));
        let rows = "   samples       %  cpu  thread
         4   40.00  0    Domain-0 vCPU 1
         4   40.00  1    domain 3 vCPU 1
         2   20.00  1    Domain-0 vCPU 1
";
        assert_eq!(table(&[Key::Cpu, Key::Thread]), format!("{heading}{rows}"));
    }
}
