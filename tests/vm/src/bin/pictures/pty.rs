// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs commands in a terminal, and keeps what they write to it.

use std::fs::{self, File};
use std::io::Read;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::pty::{OpenptyResult, Winsize, openpty};

/// The terminal's columns and lines. `xtask/src/suites/terminal.rs` has the same.
const SIZE: [u16; 2] = [110, 30];

/// Runs a command in a terminal, and saves its output in a file.
pub fn run_in_terminal(words: &[&str], file: &str) -> Result<()> {
    let [ws_col, ws_row] = SIZE;
    let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None)?;
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("TERM", "xterm-256color");
    command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
    let mut child = command.spawn().with_context(|| words.join(" "))?;
    // From here on, only the child has the terminal's other end open.
    drop(command);
    let reader = thread::spawn(|| read_to_end(File::from(master)));
    let status = child.wait()?;
    let written = reader.join().expect("it does not panic");
    let printed = String::from_utf8_lossy(&written).into_owned();
    ensure!(status.success(), "{status}: {printed}");
    fs::write(file, written).with_context(|| file.to_owned())
}

/// Reads until the other end is closed, which a terminal reports as an error.
fn read_to_end(mut terminal: File) -> Vec<u8> {
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = terminal.read(&mut some) {
        all.extend_from_slice(&some[..length]);
    }
    all
}
