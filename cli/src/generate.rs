// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr generate`: writes man pages and completions from what the command line
//! itself says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

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
    clap_mangen::generate_to(command.clone(), &man)?;
    for &shell in Shell::value_variants() {
        clap_complete::generate_to(shell, &mut command.clone(), "perfctr", &completions)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_verb_and_option_has_a_page_and_is_completed() {
        let directory = std::env::temp_dir().join(format!("perfctr-generate-{}", process::id()));
        write(&directory, crate::Options::command()).unwrap();
        let command = crate::Options::command();
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let page = directory.join(format!("man1/perfctr-{}.1", verb.get_name()));
            let text = fs::read_to_string(page).unwrap().replace("\\-", "-");
            for option in verb.get_arguments().filter_map(|argument| argument.get_long()) {
                assert!(text.contains(&format!("--{option}")), "{}: {option}", verb.get_name());
            }
        }
        assert!(directory.join("man1/perfctr.1").exists());
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
}
