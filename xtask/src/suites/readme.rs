// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the first screen of README.md: the output of its commands in the guest, and a picture.

use std::fs;
use std::iter::zip;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::artefacts::guest;
use crate::machine::Spec;
use crate::tools::sh;

/// The lines of README.md between which the screen is written.
const BEGIN: &str = "<!-- cargo xtask readme writes this -->";
const END: &str = "<!-- until here -->";
/// The picture's file.
pub const PICTURE: &str = "docs/flame-graph.svg";

/// How the program is compiled: each caller has to be seen in its stack.
pub const FLAGS: [&str; 2] = ["-O2", "-fno-optimize-sibling-calls"];

/// The commands that the screen shows.
const COMMANDS: [&str; 2] = [
    "perfctr stat -e instructions:u,branches:u -r 20 -- ./primes",
    "perfctr record -g -e instructions:u -c 10007 -- ./primes && perfctr report",
];
/// The command that draws the picture of what was recorded last.
const DRAW: &str = "perfctr report -f flame-graph -o /out/readme/picture";

/// A number before one of these words is a time, or comes from one, and differs from run to run.
pub const CLOCKED: [&str; 3] = ["kHz", "M/sec", "seconds"];
/// The largest difference between the samples of a function in two runs: a period may end just
/// before it or just in it.
const SAMPLES_APART: u64 = 1;

/// Makes the machine run the screen's commands before its own.
pub fn prepare(spec: &mut Spec) -> Result<()> {
    spec.files.push((guest::beside_stat("primes.c", &FLAGS)?, "/work/primes".to_owned()));
    spec.files.push((script()?, "/work/readme.sh".to_owned()));
    let own = spec.command.iter().map(|word| word.to_string_lossy().into_owned());
    let both = format!("sh /work/readme.sh && {}", own.collect::<Vec<_>>().join(" "));
    spec.command = ["sh", "-c", &both].map(Into::into).to_vec();
    Ok(())
}

/// Writes a script that runs the commands and keeps what each prints in a file.
fn script() -> Result<PathBuf> {
    let mut script = "set -e\ncd /work\nPATH=/work:$PATH\nmkdir -p /out/readme\n".to_owned();
    for (n, command) in COMMANDS.iter().enumerate() {
        script += &format!("{{ {command}; }} > /out/readme/{n} 2>&1\n");
    }
    let path = crate::tools::cache::scratch("readme.sh")?;
    fs::write(&path, script + DRAW + "\n")?;
    Ok(path)
}

/// The files of a run in its directory: the screen, and the picture.
struct Printed {
    screen: String,
    picture: String,
}

impl Printed {
    fn of(out: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = out.join("readme").join(name);
            fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        let mut screens = Vec::new();
        for (n, command) in COMMANDS.iter().enumerate() {
            screens
                .push(format!("$ {command}\n{}", read(&n.to_string())?.trim_start_matches('\n')));
        }
        let screen = format!(
            "```console\n{}```\n\n![a flame graph of ./primes]({PICTURE})\n",
            screens.join("\n")
        );
        Ok(Self { screen, picture: read("picture")? })
    }
}

/// Copies the files of a run into the project.
pub fn write(out: &Path) -> Result<()> {
    let (printed, path) = (Printed::of(out)?, sh::project().join("README.md"));
    let readme = fs::read_to_string(&path)?;
    let (before, _, after) = parts(&readme)?;
    fs::write(path, format!("{before}{}{after}", printed.screen))?;
    Ok(fs::write(sh::project().join(PICTURE), printed.picture)?)
}

/// Fails if the project's files differ from those of a run.
pub fn compare(out: &Path) -> Result<()> {
    let printed = Printed::of(out)?;
    let readme = fs::read_to_string(sh::project().join("README.md"))?;
    let (_, shown, _) = parts(&readme)?;
    same_screen(shown, &printed.screen).context("README.md")?;
    let picture = fs::read_to_string(sh::project().join(PICTURE)).context(PICTURE)?;
    same_picture(&picture, &printed.picture).context(PICTURE)
}

/// Returns README.md before the lines that are written, these lines, and what follows them.
fn parts(readme: &str) -> Result<(&str, &str, &str)> {
    let [begin, end] = [BEGIN, END].map(|mark| readme.split(mark).count() == 2);
    ensure!(begin && end, "README.md has not one line `{BEGIN}` and one line `{END}`");
    let start = readme.find(BEGIN).unwrap_or(0) + BEGIN.len() + 1;
    let end =
        readme.find(END).filter(|&end| end >= start).context("the end is before the start")?;
    Ok((&readme[..start], &readme[start..end], &readme[end..]))
}

/// Compares two screens line by line, and each line word by word.
fn same_screen(shown: &str, printed: &str) -> Result<()> {
    for text in [shown, printed] {
        check_shares(text)?;
    }
    let (one, other) = (shown.lines().count(), printed.lines().count());
    ensure!(one == other, "{one} lines shown, {other} printed:\n{printed}");
    // The number of samples follows from the rows, which are compared above.
    let free = [&CLOCKED[..], &["samples"]].concat();
    for (shown, printed) in zip(shown.lines(), printed.lines()) {
        ensure!(same_line(shown, printed, &free), "shown:   {shown}\nprinted: {printed}");
    }
    Ok(())
}

/// Compares two lines word by word. Before a word of `free` any number will do.
pub fn same_line(shown: &str, printed: &str, free: &[&str]) -> bool {
    let rows = [row(shown), row(printed)];
    if let [Some((shown, one)), Some((printed, other))] = rows {
        return one == other && near(shown, printed);
    }
    let [shown, printed] = [shown, printed].map(|line| line.split(' ').filter(|w| !w.is_empty()));
    let [shown, printed]: [Vec<&str>; 2] = [shown.collect(), printed.collect()];
    let same = |n: usize| {
        let (one, other, next) = (shown[n], printed[n], shown.get(n + 1).copied());
        let numbers = is_number(one) && is_number(other);
        let free = next.is_some_and(|next| free.contains(&next));
        let xen = shown[..n] == ["hypervisor", "Xen"] && release(one) == release(other);
        one == other || numbers && free || xen
    };
    shown.len() == printed.len() && (0..shown.len()).all(same)
}

fn is_number(word: &str) -> bool {
    word.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Returns the part of Xen's version that its security updates leave as it is.
fn release(version: &str) -> Option<(&str, &str)> {
    let mut parts = version.split('.');
    Some((parts.next()?, parts.next()?))
}

fn near(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= SAMPLES_APART
}

/// Reads a function's line of the report. Returns its samples, and the function.
fn row(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_whitespace();
    let (samples, share, function) = (words.next()?, words.next()?, words.next()?);
    share.split_once('.').filter(|_| is_number(share) && words.next().is_none())?;
    Some((samples.parse().ok()?, function))
}

/// Fails unless the rows sum up to what the report says above them, and their shares are right.
fn check_shares(text: &str) -> Result<()> {
    let rows: Vec<_> = text.lines().filter_map(|line| Some((line, row(line)?))).collect();
    let sum: u64 = rows.iter().map(|(_, (samples, _))| samples).sum();
    let output: Vec<_> = text.split(" samples of ").map(last_word).collect();
    let output = output.split_last().map_or(&[][..], |(_, output)| output);
    let is_right = output.iter().all(|output| output.parse() == Ok(sum));
    ensure!(
        is_right && sum > 0 && !output.is_empty(),
        "samples of {output:?} found, {sum} expected"
    );
    for (line, (samples, _)) in rows {
        let share = format!("{:.2}", 100.0 * samples as f64 / sum as f64);
        ensure!(line.split_whitespace().nth(1) == Some(&share), "{line}\nexpected {share}");
    }
    Ok(())
}

fn last_word(text: &str) -> &str {
    text.split_whitespace().next_back().unwrap_or_default()
}

/// Compares the boxes of two flame graphs. Everything else in a flame graph follows from them.
fn same_picture(shown: &str, printed: &str) -> Result<()> {
    let (shown, printed) = (boxes(shown)?, boxes(printed)?);
    let same = |(one, other): (&(String, u64), &(String, u64))| {
        // A stack may hold each function that it leads through just at the end of a period.
        one.0 == other.0 && one.1.abs_diff(other.1) <= SAMPLES_APART * shown.len() as u64
    };
    let all = shown.len() == printed.len() && zip(&shown, &printed).all(same);
    ensure!(all, "shown:   {shown:?}\nprinted: {printed:?}");
    Ok(())
}

/// Returns the function and the samples of each box of a flame graph, in their order.
pub fn boxes(picture: &str) -> Result<Vec<(String, u64)>> {
    let titles = picture.split("<title>").skip(1);
    let titles = titles.map(|text| text.split("</title>").next().unwrap_or_default());
    let mut boxes: Vec<_> =
        titles.filter_map(|text| title(text).transpose()).collect::<Result<_>>()?;
    ensure!(!boxes.is_empty(), "a flame graph without boxes");
    boxes.sort_unstable();
    Ok(boxes)
}

/// Returns the function and the samples of one box's title, or `None` if it is empty.
pub fn title(text: &str) -> Result<Option<(String, u64)>> {
    let Some((name, rest)) = text.rsplit_once(" (") else { return Ok(None) };
    let samples = rest.split_once(" samples").context("a box without samples")?.0;
    Ok(Some((without_thread(name).to_owned(), samples.replace(',', "").parse()?)))
}

/// Removes the number of the thread from a box's name. The kernel chooses that number.
pub fn without_thread(name: &str) -> &str {
    let number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once(' ').filter(|(word, _)| number(word)).map_or(name, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: &str = "\
$ perfctr info
hypervisor   Xen 4.17.5, PV guest
counters     4 general of 48 bits
time         TSC, 2599998 kHz

$ perfctr stat
             145,078  branches:u    #    93.10 M/sec   145,078 to 145,078
            0.001558  seconds executed
perfctr: 4 samples of 1 thread in perfctr.data
4 samples of 1 thread, one every 10007 instructions:u, from paravirt
   samples       %  symbol
         3   75.00  sieve
         1   25.00  strike
";

    fn with(old: &str, new: &str) -> Result<()> {
        assert!(SCREEN.contains(old), "{old}");
        same_screen(SCREEN, &SCREEN.replacen(old, new, 1))
    }

    #[test]
    fn what_a_clock_says_may_differ_and_so_may_a_sample() {
        same_screen(SCREEN, SCREEN).unwrap();
        for (old, new) in
            [("2599998", "1"), ("93.10", "7.5"), ("0.001558", "12.0"), ("4.17.5", "4.17.12-pre")]
        {
            with(old, new).unwrap();
        }
        let more = SCREEN.replace("4 samples of", "5 samples of");
        let more = more.replace("3   75.00", "4   80.00").replace("25.00", "20.00");
        same_screen(SCREEN, &more).unwrap();
    }

    #[test]
    fn nothing_else_may() {
        for (old, new) in [
            ("4.17.5", "4.18.5"),
            ("4 general", "5 general"),
            ("48 bits", "40 bits"),
            ("2599998 kHz", "soon kHz"),
            ("145,078 to", "145,079 to"),
            ("93.10 M/sec", "93.10 G/sec"),
            ("3   75.00", "2   75.00"),
            ("25.00  strike", "25.00  strick"),
            ("time ", "times "),
            ("one every 10007", "one every 10009"),
            ("perfctr: 4 samples", "perfctr: 5 samples"),
            ("\n4 samples", "\n5 samples"),
            ("\n\n", "\n"),
        ] {
            assert!(with(old, new).is_err(), "{old}");
        }
        let more = SCREEN.replace("4 samples of", "6 samples of");
        let more = more.replace("3   75.00", "5   83.33").replace("25.00", "16.67");
        assert!(same_screen(SCREEN, &more).is_err());
    }

    #[test]
    fn a_picture_is_its_boxes() {
        let picture = |name, samples| {
            format!("<title>7 a (1,402 samples, 100%)</title><title>{name} ({samples} samples, 9%)")
        };
        let shown = picture("main", 10);
        assert_eq!(boxes(&shown).unwrap(), [("a".to_owned(), 1402), ("main".to_owned(), 10)]);
        same_picture(&shown, &picture("main", 12)).unwrap();
        assert!(same_picture(&shown, &picture("main", 13)).is_err());
        assert!(same_picture(&shown, &picture("man", 10)).is_err());
        assert!(same_picture(&shown, "<svg/>").is_err());
    }

    #[test]
    fn readme_has_what_is_written() {
        let readme = fs::read_to_string(sh::project().join("README.md")).unwrap();
        let (before, shown, after) = parts(&readme).unwrap();
        assert!(before.ends_with(&format!("{BEGIN}\n")) && after.starts_with(END));
        check_shares(shown).unwrap();
        for command in COMMANDS {
            assert!(shown.contains(&format!("\n$ {command}\n")), "{command}");
        }
        boxes(&fs::read_to_string(sh::project().join(PICTURE)).unwrap()).unwrap();
    }
}
