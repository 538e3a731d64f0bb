// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A process that executes as many iterations as it is told to, and then waits.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use vm_tests::region::Region;
use vm_tests::threads::wait_for_rest;

/// Runs the process: every line of its input is a number of iterations.
pub fn run() -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        Region { first: line?.parse()?, second: 1 }.execute(&mut 0);
        std::io::stdout().write_all(b"done\n")?;
    }
    Ok(())
}

/// The parent's handle of the process.
pub struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    pub fn start() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child =
            command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().context("no orders")?;
        let answers = BufReader::new(child.stdout.take().context("no answers")?);
        let mut worker = Self { child, orders, answers };
        // This executes everything that is executed only once.
        for _ in 0..2 {
            worker.order(100_000)?;
        }
        Ok(worker)
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Makes the worker execute this many iterations, and returns when it waits again. All such
    /// numbers have equally many digits.
    pub fn order(&mut self, iterations: u64) -> Result<()> {
        self.orders.write_all(format!("{iterations:09}\n").as_bytes())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(answer == "done\n", "the worker says {answer:?}");
        wait_for_rest(&self.pid())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).ok();
    }
}
