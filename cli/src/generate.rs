// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr generate`: writes man pages and completions from the command line's own
//! description.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::builder::Resettable;
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, roman};

/// The options of `perfctr generate`.
#[derive(Debug, Args)]
pub struct Options {
    /// Writes man pages to `man1` in this directory, and completions to `completions`.
    directory: PathBuf,
}

/// Runs `perfctr generate`.
pub fn run(options: &Options, command: Command) -> Result<ExitCode> {
    let directory = &options.directory;
    write(directory, command).with_context(|| format!("cannot write {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn write(directory: &Path, command: Command) -> Result<()> {
    let [man, completions] = ["man1", "completions"].map(|name| directory.join(name));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    man_pages(&command, &man)?;
    for &shell in Shell::value_variants() {
        clap_complete::generate_to(shell, &mut command.clone(), "perfctr", &completions)?;
    }
    Ok(())
}

/// Writes the pages. The help's text below the options gets sections of its own there.
fn man_pages(command: &Command, directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(without_end(command.clone()), directory)?;
    let status = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    add_sections(command, "perfctr", &status, directory)
}

/// Returns the command, and all its verbs, without the help's text below the options.
fn without_end(command: Command) -> Command {
    command.after_help(Resettable::Reset).mut_subcommands(without_end)
}

/// Adds the sections to the page of this command and to those of its verbs.
fn add_sections(command: &Command, name: &str, status: &str, directory: &Path) -> io::Result<()> {
    let end = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let examples = end.strip_prefix("Examples:\n").unwrap_or_default();
    let mut page = File::options().append(true).open(directory.join(format!("{name}.1")))?;
    page.write_all(&sections(status, examples))?;
    command.get_subcommands().filter(|verb| !verb.is_hide_set()).try_for_each(|verb| {
        add_sections(verb, &format!("{name}-{}", verb.get_name()), status, directory)
    })
}

/// Returns the sections of the exit status and of the examples, if there are any, in the language
/// of man pages.
fn sections(status: &str, examples: &str) -> Vec<u8> {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    let (_, status) = status.split_once(": ").unwrap_or_default();
    roff.text([roman(capital(&status.replace('\n', " ")))]);
    let mut lines = examples.lines().map(str::trim).peekable();
    if lines.peek().is_some() {
        roff.control("SH", ["EXAMPLES"]);
    }
    while let (Some(command), Some(what)) = (lines.next(), lines.next()) {
        roff.control("TP", []).text([bold(command)]).text([roman(what)]);
    }
    roff.render().into_bytes()
}

/// Returns the text with a capital letter at its beginning.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use std::process;

    use clap::{CommandFactory, Parser};

    use super::*;

    /// Returns all verbs and their verbs, each with the words that one writes behind `perfctr`.
    fn verbs() -> Vec<(Vec<String>, Command)> {
        fn below(words: &[String], command: &Command, all: &mut Vec<(Vec<String>, Command)>) {
            for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
                let words = [words, &[verb.get_name().to_owned()]].concat();
                below(&words, verb, all);
                all.push((words, verb.clone()));
            }
        }
        let mut all = Vec::new();
        below(&[], &crate::Options::command(), &mut all);
        all
    }

    #[test]
    fn every_verb_and_option_has_a_page_and_is_completed() {
        let directory = std::env::temp_dir().join(format!("perfctr-generate-{}", process::id()));
        write(&directory, crate::Options::command()).unwrap();
        for (words, verb) in verbs() {
            let page = directory.join(format!("man1/perfctr-{}.1", words.join("-")));
            let text = fs::read_to_string(page).unwrap().replace("\\-", "-");
            for part in ["EXAMPLES", "EXIT STATUS", "\\fBperfctr ", "127 if there is no such"] {
                assert!(text.contains(part), "{words:?}: {part}");
            }
            assert!(!text.contains("EXTRA"), "{text}");
            for option in verb.get_arguments().filter_map(|argument| argument.get_long()) {
                assert!(text.contains(&format!("--{option}")), "{words:?}: {option}");
            }
        }
        let page = fs::read_to_string(directory.join("man1/perfctr.1")).unwrap();
        assert!(page.contains("EXIT STATUS") && !page.contains("EXAMPLES"), "{page}");
        let complete = |words: &str, last: &str, previous: &str| {
            let script = format!(
                "source \"$0\"; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
                 _perfctr perfctr {last} {previous}; echo \"${{COMPREPLY[*]}}\""
            );
            let mut bash = process::Command::new("bash");
            bash.args(["-c", &script]).arg(directory.join("completions/perfctr.bash"));
            String::from_utf8(bash.output().unwrap().stdout).unwrap()
        };
        assert_eq!(complete("perfctr st", "st", "perfctr"), "stat\n");
        let events = "branches branch-misses\n";
        for verb in ["stat", "record", "top", "export", "gate"] {
            assert_eq!(complete(&format!("perfctr {verb} -e br"), "br", "-e"), events, "{verb}");
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn each_example_is_a_command_line_and_a_sentence() {
        for (names, verb) in verbs() {
            let text = verb.get_after_help().unwrap_or_else(|| panic!("{names:?}")).to_string();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[0], "Examples:");
            assert!(lines.len() > 1 && lines.len() % 2 == 1, "{text}");
            for pair in lines[1..].chunks(2) {
                let words = pair[0].split_whitespace();
                assert!(
                    words.clone().skip(1).zip(&names).all(|(word, name)| word == name),
                    "{pair:?}"
                );
                crate::Options::try_parse_from(words).unwrap();
                assert!(pair[1].starts_with("      ") && pair[1].ends_with('.'), "{pair:?}");
            }
        }
    }
}
