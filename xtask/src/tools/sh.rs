// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs other programs quietly, with a log whose tail is shown when they fail.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The number of lines of a log that an error message quotes.
const TAIL_LINES: usize = 25;

/// Runs `work` as one named step and prints how long it took.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("  {name} ...");
    let start = Instant::now();
    let result = work()?;
    eprintln!("  {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(result)
}

/// Makes a command with its arguments: `cmd("tar", ["-x", "-f", "a.tar"])`.
pub fn cmd<I, S>(program: &str, args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs a command and returns what it wrote to its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let out = command.stderr(Stdio::piped()).output().with_context(|| shown.clone())?;
    if !out.status.success() {
        bail!("{shown}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr).trim_end());
    }
    String::from_utf8(out.stdout).with_context(|| format!("{shown}: output is not UTF-8"))
}

/// Runs a command whose output the user wants to see.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| shown.clone())?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs a long command with its output appended to `log`. A failure quotes the log's end.
pub fn logged(command: &mut Command, log: &Path) -> Result<()> {
    let shown = show(command);
    if let Some(dir) = log.parent() {
        fs::create_dir_all(dir)?;
    }
    let file = File::options().create(true).append(true).open(log)?;
    command.stdout(file.try_clone()?).stderr(file);
    let status = command.status().with_context(|| shown.clone())?;
    if !status.success() {
        bail!("{shown}: {status}\n{}\nthe whole log: {}", tail(log), log.display());
    }
    Ok(())
}

/// Returns the last lines of a log file, indented.
pub fn tail(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    lines[first..].iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// Returns the same command, to be run as root.
pub fn root_command(command: &Command) -> Result<Command> {
    let is_root = output(&mut cmd("id", ["-u"]))?.trim() == "0";
    if !is_root && cmd("sudo", ["--version"]).output().is_err() {
        bail!("{} needs root: be root, or install sudo", show(command));
    }
    let mut root = cmd("sudo", [""; 0]);
    if is_root {
        root = cmd(&command.get_program().to_string_lossy(), [""; 0]);
    } else {
        root.arg(command.get_program());
    }
    root.args(command.get_args());
    Ok(root)
}

/// Runs a command as root and returns what it wrote to its standard output.
pub fn as_root(command: &mut Command) -> Result<String> {
    output(&mut root_command(command)?)
}

/// Returns the number of processors to build with.
pub fn jobs() -> String {
    format!("-j{}", std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Returns the project's root directory.
pub fn project() -> PathBuf {
    // `cargo run` sets the variable; the compile-time value serves a binary started by hand.
    let manifest = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&manifest).parent().expect("xtask lies in the project's root").to_owned()
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
