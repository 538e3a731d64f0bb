// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares each event's counts with the baseline, and shows the result.

use crate::baseline::{Benchmark, Range};
use crate::text::{grouped, harmless};

/// The exit status of a program that has found [`Verdict::Worse`].
pub const WORSE: u8 = 1;

/// The result of comparing an event's counts with those of the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "these are all results of comparing two numbers")]
pub enum Verdict {
    /// The least counts differ by no more than the threshold.
    Same,
    /// The least count has grown by more than the threshold.
    Worse,
    /// The least count has fallen by more than the threshold.
    Better,
    /// The baseline has no counts of it.
    New,
}

/// An event of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compared {
    /// The event's name.
    pub event: String,
    /// The counts of the baseline, if it has any.
    pub before: Option<Range>,
    /// The counts of now.
    pub now: Range,
    /// The result.
    pub verdict: Verdict,
}

impl Compared {
    /// Compares each event that was counted now.
    ///
    /// The least count of the runs is compared, since whatever disturbs a program makes it execute
    /// more.
    pub fn all(before: Option<&Benchmark>, now: &Benchmark, threshold: u64) -> Vec<Self> {
        let compared = |(event, &now): (&String, &Range)| {
            let before = before.and_then(|before| before.events.get(event)).copied();
            let verdict = match before {
                None => Verdict::New,
                Some(before) if now.min > before.min.saturating_add(threshold) => Verdict::Worse,
                Some(before) if before.min > now.min.saturating_add(threshold) => Verdict::Better,
                Some(_) => Verdict::Same,
            };
            Self { event: event.clone(), before, now, verdict }
        };
        now.events.iter().map(compared).collect()
    }

    /// Returns how much more was counted than before.
    fn growth(&self) -> Option<i128> {
        Some(i128::from(self.now.min) - i128::from(self.before?.min))
    }

    /// Returns the result in words, for people.
    pub fn line(&self, name: &str) -> String {
        let Self { event, before, now, .. } = self;
        let count = grouped(now.min);
        let beside = match (before, self.growth()) {
            (Some(before), Some(growth)) => {
                format!("{} before, {}{}", grouped(before.min), signed(growth), self.percent())
            }
            _ => "not in the baseline".to_owned(),
        };
        let spread = match now.max - now.min {
            0 => String::new(),
            spread => format!("; runs differ by {}", grouped(spread)),
        };
        let name = harmless(name);
        format!("{:<6} {name}: {count} {event}; {beside}{spread}\n", self.word())
    }

    fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Same => "same",
            Verdict::Worse => "WORSE",
            Verdict::Better => "better",
            Verdict::New => "new",
        }
    }

    fn percent(&self) -> String {
        match (self.before, self.growth()) {
            (Some(before), Some(growth)) if before.min > 0 && growth != 0 => {
                format!(" ({:+.4} %)", 100.0 * growth as f64 / before.min as f64)
            }
            _ => String::new(),
        }
    }
}

fn signed(number: i128) -> String {
    let digits = grouped(number.unsigned_abs().try_into().unwrap_or(u64::MAX));
    match number {
        1.. => format!("+{digits}"),
        0 => digits,
        _ => format!("-{digits}"),
    }
}

/// Makes a table for a pull request.
pub fn markdown(name: &str, all: &[Compared]) -> String {
    let escaped = harmless(name).replace('|', "\\|");
    let mut text = "| benchmark | event | before | now | difference | |\n\
                    |---|---|---:|---:|---:|---|\n"
        .to_owned();
    for one in all {
        let before = one.before.map_or_else(String::new, |before| grouped(before.min));
        let growth = one.growth().map_or_else(String::new, signed);
        let (now, percent) = (grouped(one.now.min), one.percent());
        let (event, word) = (&one.event, one.word());
        text +=
            &format!("| {escaped} | {event} | {before} | {now} | {growth}{percent} | {word} |\n");
    }
    text
}

/// Makes a test for each event, as continuous integration reads it (JUnit's XML).
pub fn junit(name: &str, all: &[Compared]) -> String {
    let worse = all.iter().filter(|one| one.verdict == Verdict::Worse).count();
    let suite = escaped(name);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{suite}\" tests=\"{}\" \
         failures=\"{worse}\">\n",
        all.len()
    );
    for one in all {
        let (event, line) = (escaped(&one.event), escaped(one.line(name).trim_end()));
        text += &format!("  <testcase classname=\"{suite}\" name=\"{event}\">");
        if one.verdict == Verdict::Worse {
            text += &format!("<failure message=\"{line}\"/>");
        }
        text += "</testcase>\n";
    }
    text + "</testsuite>\n"
}

/// Escapes a text for XML, also for an attribute.
fn escaped(text: &str) -> String {
    let text = harmless(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn benchmark(events: &[(&str, u64, u64)]) -> Benchmark {
        let range = |&(event, min, max): &(&str, u64, u64)| (event.to_owned(), Range { min, max });
        Benchmark { cpu: None, events: events.iter().map(range).collect() }
    }

    fn compared(threshold: u64) -> Vec<Compared> {
        let before = benchmark(&[("a", 1_000, 1_007), ("b", 1_000, 1_000), ("c", 1_000, 1_000)]);
        let now =
            benchmark(&[("a", 1_001, 1_001), ("b", 1_000, 1_040), ("c", 998, 998), ("d", 5, 5)]);
        Compared::all(Some(&before), &now, threshold)
    }

    #[test]
    fn one_instruction_more_is_worse_unless_the_threshold_allows_it() {
        let verdicts = |threshold| compared(threshold).iter().map(|one| one.verdict).collect();
        let at: [Vec<Verdict>; 3] = [0, 1, 2].map(verdicts);
        assert_eq!(at[0], [Verdict::Worse, Verdict::Same, Verdict::Better, Verdict::New]);
        assert_eq!(at[1], [Verdict::Same, Verdict::Same, Verdict::Better, Verdict::New]);
        assert_eq!(at[2], [Verdict::Same, Verdict::Same, Verdict::Same, Verdict::New]);
        let all = Compared::all(None, &benchmark(&[("a", 7, 7)]), 0);
        assert_eq!(all[0].verdict, Verdict::New);
        let before = benchmark(&[("a", u64::MAX, u64::MAX)]);
        let all = Compared::all(Some(&before), &benchmark(&[("a", 7, 7)]), u64::MAX);
        assert_eq!(all[0].verdict, Verdict::Same);
        let before = benchmark(&[("a", u64::MAX - 3, u64::MAX - 1)]);
        let all = Compared::all(Some(&before), &benchmark(&[("a", u64::MAX, u64::MAX)]), 5);
        assert_eq!(all[0].verdict, Verdict::Same, "3 more of 5 that are allowed");
    }

    #[test]
    fn lines_say_by_how_much() {
        let lines: Vec<String> = compared(0).iter().map(|one| one.line("sort")).collect();
        assert_eq!(lines[0], "WORSE  sort: 1,001 a; 1,000 before, +1 (+0.1000 %)\n");
        assert_eq!(lines[1], "same   sort: 1,000 b; 1,000 before, 0; runs differ by 40\n");
        assert_eq!(lines[2], "better sort: 998 c; 1,000 before, -2 (-0.2000 %)\n");
        assert_eq!(lines[3], "new    sort: 5 d; not in the baseline\n");
    }

    #[test]
    fn pull_requests_get_a_table() {
        let text = markdown("a|b", &compared(0)[..1]);
        let row = text.lines().nth(2).unwrap();
        assert_eq!(row, "| a\\|b | a | 1,000 | 1,001 | +1 (+0.1000 %) | WORSE |");
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn continuous_integration_gets_a_test_for_each_event() {
        let text = junit("<\"&", &compared(0));
        assert!(text.contains("name=\"&lt;&quot;&amp;\" tests=\"4\" failures=\"1\""), "{text}");
        assert_eq!(text.matches("<testcase ").count(), 4);
        assert_eq!(text.matches("<failure ").count(), 1, "{text}");
    }
}
