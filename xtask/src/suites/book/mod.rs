// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the book in `docs/`: the pages that mdBook makes of it, and the commands that it shows.
//! Each command is run on the machine that its block names.

mod pages;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::readme::{self, CLOCKED, same_line};
use crate::artefacts::{guest, rootfs, shim};
use crate::machine::{self, Spec, Status};
use crate::suites::report::{Report, Volume, all};
use crate::tools::cache;
use crate::tools::sh::{self, cmd};

/// The names that blocks give to machines, each with the topology of that machine.
const PLACES: [(&str, &str); 3] = [("guest", "pv"), ("host", "pv"), ("bare", "native")];

/// The name that blocks give to the machine that the testbed runs on.
const HERE: &str = "here";
/// The directory in the project where a reader of a block for [`HERE`] has put the program.
const MINE: &str = "target/mine";
/// The picture that the commands of a block for [`HERE`] make of it.
const PICTURE: &str = "flames.svg";

/// README.md has the commands of [`HERE`], too. They are between these two texts.
const WALK: (&str, &str) = ("a test runs them there. -->\n```sh\n", "\n```\n");

/// A line of a block that stands for any number of lines.
const ANY: &str = "...";

/// In the long run, boots each machine, and the machines of the walk from README.md to a picture.
/// The usual run only checks the text.
pub fn run(report: &mut Report) -> Result<()> {
    let pages = pages()?;
    report.test("each block has a machine", || {
        pages.iter().try_for_each(|page| blocks(page).map(drop))
    });
    report.test("README's way to a flame graph is three commands of the book", || walk(&pages));
    if report.volume == Volume::Usual {
        return Ok(());
    }
    report.test("mdBook makes pages of it whose links lead somewhere", pages::check);
    for (place, topology) in PLACES {
        let mut commands = Vec::new();
        for page in &pages {
            commands.extend(blocks(page)?.into_iter().filter(|command| command.place == place));
        }
        let out = type_in(place, topology, &commands)?;
        for (n, command) in commands.iter().enumerate() {
            let name = format!("{}, {place}: {}", command.page, command.typed);
            report.test(&name, || command.compare(&out.join(n.to_string())));
        }
    }
    run_on_this_machine(report, &pages)
}

/// Returns the commands that a reader types on this machine.
fn typed_here(pages: &[Page]) -> Result<Vec<Command<'_>>> {
    let mut commands = Vec::new();
    for page in pages {
        commands.extend(blocks(page)?.into_iter().filter(|command| command.place == HERE));
    }
    Ok(commands)
}

/// Checks that README.md has three commands, which are those of the book.
fn walk(pages: &[Page]) -> Result<()> {
    let readme = fs::read_to_string(sh::project().join("README.md"))?;
    let walk = readme.split_once(WALK.0).and_then(|(_, rest)| rest.split_once(WALK.1));
    let (walk, _) = walk.context("README.md has no such commands")?;
    let shown: Vec<&str> = walk.lines().collect();
    let typed: Vec<&str> = typed_here(pages)?.iter().map(|command| command.typed).collect();
    ensure!(shown == typed && shown.len() == 3, "README.md: {shown:?}\nthe book: {typed:?}");
    Ok(())
}

/// Types the commands for this machine in, in order, and looks at the picture that they make.
fn run_on_this_machine(report: &mut Report, pages: &[Page]) -> Result<()> {
    let mine = sh::project().join(MINE);
    cache::empty(&mine)?;
    fs::copy(guest::beside_stat("primes.c", &readme::FLAGS)?, mine.join("primes"))?;
    let out = cache::scratch("book-out")?.join(HERE);
    fs::create_dir_all(&out)?;
    for (n, command) in typed_here(pages)?.iter().enumerate() {
        let name = format!("{}, {HERE}: {}", command.page, command.typed);
        report.test(&name, || {
            let file = out.join(n.to_string());
            let script = format!("{{ {}\n}} > {} 2>&1 < /dev/null", command.typed, file.display());
            let script = format!("{script}\necho \"status $?\" >> {}", file.display());
            sh::run(cmd("sh", ["-c", &script]).current_dir(sh::project()))?;
            command.compare(&file)
        });
    }
    report.test("the picture that they lead to has the program's functions", || {
        let boxes = readme::boxes(&fs::read_to_string(mine.join(PICTURE))?)?;
        for function in ["sieve", "strike", "is_prime"] {
            ensure!(boxes.iter().any(|(name, _)| name == function), "{function}: {boxes:?}");
        }
        Ok(())
    });
    Ok(())
}

/// A page, as its name and its text.
type Page = (String, String);

fn pages() -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    for (name, path) in cache::files(&sh::project().join("docs"))? {
        if name.ends_with(".md") {
            pages.push((name, fs::read_to_string(path)?));
        }
    }
    Ok(pages)
}

/// One command of a block.
#[derive(Debug, PartialEq, Eq)]
struct Command<'a> {
    page: &'a str,
    place: &'a str,
    typed: &'a str,
    /// The lines that the book says it prints.
    shown: Vec<&'a str>,
}

/// Returns every command of a page, in the order in which they are typed.
fn blocks((page, text): &Page) -> Result<Vec<Command<'_>>> {
    let mut commands: Vec<Command<'_>> = Vec::new();
    let mut place = None;
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            place = match (place, kind.strip_prefix("console")) {
                (None, Some(name)) => {
                    let name = name.trim();
                    let known = name == HERE || PLACES.iter().any(|(place, _)| *place == name);
                    ensure!(
                        known,
                        "{page}: `console {name}`, expected {HERE} or one of {PLACES:?}"
                    );
                    Some(name)
                }
                _ => None,
            };
            continue;
        }
        let Some(place) = place else { continue };
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(typed), _) => {
                commands.push(Command { page, place, typed, shown: Vec::new() });
            }
            (None, Some(last)) if last.place == place => last.shown.push(line),
            _ => bail!("{page}: a block begins with `{line}`, expected `$ ` and a command"),
        }
    }
    Ok(commands)
}

/// Makes a machine run the commands, each page's in a directory of its own. Returns the directory
/// with the files that they have left.
fn type_in(place: &str, topology: &str, commands: &[Command<'_>]) -> Result<PathBuf> {
    let mut script = "PATH=/work:$PATH\nmkdir -p /out\n".to_owned();
    for (n, Command { page, typed, .. }) in commands.iter().enumerate() {
        script += &format!(
            "mkdir -p /tmp/{page} && cd /tmp/{page} && ln -sf /work/primes .\n\
             {{ {typed}\n}} > /out/{n} 2>&1 < /dev/null\necho \"status $?\" >> /out/{n}\n"
        );
    }
    let path = cache::scratch(&format!("book-{place}.sh"))?;
    fs::write(&path, script)?;
    let mut spec = Spec::new(topology, ["sh", "/work/book.sh"])?;
    spec.module = topology == "pv";
    if place == "host" {
        spec = spec.driver("profile,accounts")?;
    }
    spec.timeout = Duration::from_secs(900);
    spec.add_program("perfctr", "perfctr")?;
    spec.files.push((path, "/work/book.sh".into()));
    spec.files.push((guest::beside_stat("primes.c", &readme::FLAGS)?, "/work/primes".into()));
    spec.files.push((rootfs::perf()?, "/".into()));
    let prefix = cache::scratch("book-shim")?;
    shim::install(&prefix)?;
    spec.files.push((prefix.join("bin/perfex"), "/usr/bin/perfex".into()));
    let out = cache::scratch("book-out")?.join(place);
    spec.keep_out(&out)?;
    let outcome = machine::run(&spec)?;
    ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
    Ok(out)
}

impl Command<'_> {
    /// Fails if the command has not succeeded, or if the output in the file differs from the
    /// book's.
    fn compare(&self, printed: &Path) -> Result<()> {
        let text = fs::read_to_string(printed).with_context(|| printed.display().to_string())?;
        let output = |lines: &str| format!("{}\n{lines}", self.shown.join("\n"));
        let ended = text.strip_suffix("status 0\n");
        let text = ended.with_context(|| format!("it failed:\n{text}"))?;
        let printed: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let shown: Vec<&str> =
            self.shown.iter().copied().filter(|line| !line.trim().is_empty()).collect();
        ensure!(matches(&shown, &printed), "{}", output(text));
        Ok(())
    }
}

/// Compares line by line. A line that is [`ANY`] stands for any number of lines.
fn matches(shown: &[&str], printed: &[&str]) -> bool {
    match (shown, printed) {
        ([], _) => printed.is_empty(),
        ([ANY, rest @ ..], _) => (0..=printed.len()).any(|n| matches(rest, &printed[n..])),
        ([one, shown @ ..], [other, printed @ ..]) => {
            same_line(one, other, &CLOCKED) && matches(shown, printed)
        }
        (_, []) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_commands_and_what_they_print() {
        let text = "x\n```sh\n$ no\n```\n```console guest\n$ one\nsays\n$ two\n```\n$ text\n";
        let page = ("page.md".to_owned(), text.to_owned());
        let command = |typed, shown: &[&'static str]| Command {
            page: "page.md",
            place: "guest",
            typed,
            shown: shown.to_vec(),
        };
        assert_eq!(blocks(&page).unwrap(), [command("one", &["says"]), command("two", &[])]);
        for text in ["```console\n$ one\n```\n", "```console guest\nsays\n```\n"] {
            blocks(&("page.md".to_owned(), text.to_owned())).unwrap_err();
        }
    }

    #[test]
    fn dots_stand_for_any_lines_and_nothing_else_does() {
        let same = |shown: &str, printed: &str| {
            matches(&shown.lines().collect::<Vec<_>>(), &printed.lines().collect::<Vec<_>>())
        };
        assert!(same("", "") && same("...", "") && same("...", "a\nb") && same("a\n...", "a\nb"));
        assert!(same("...\nb\n...", "a\nb\nc") && same("...\nc", "a\nb\nc"));
        assert!(!same("", "a") && !same("a", "") && !same("...\nb", "a\nb\nc") && !same("a", "b"));
    }
}
