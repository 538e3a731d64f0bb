// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Functions that two guests execute while their host is sampled. Each virtual CPU of each guest
//! executes a function of its own, so the address of a sample in user mode says which virtual CPU
//! of which guest it is of.

use std::ops::Range;

use anyhow::{Context, Result};

use crate::region::Region;
use crate::threads::{SELF, run_on};

/// The number of virtual CPUs of each guest.
pub const VCPUS: usize = 4;
/// A function is not longer than this. Unit: bytes.
const FUNCTION_BYTES: u64 = 64;
/// The number of system calls that a worker makes between two calls of its function.
const CALLS: u32 = 50;

macro_rules! functions {
    ($($function:ident: $second:literal),*) => {
        $(
            #[inline(never)]
            fn $function() {
                Region { first: 5_000, second: $second }.execute(&mut 0);
            }
        )*
        const FUNCTIONS: [fn(); 2 * VCPUS] = [$($function),*];
        const NAMES: [&str; 2 * VCPUS] = [$(stringify!($function)),*];
    };
}

// If two of them were equal, the compiler would make them one.
functions!(
    left_0: 1, left_1: 2, left_2: 3, left_3: 4, right_0: 5, right_1: 6, right_2: 7, right_3: 8
);

/// The two guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first guest, which names its programs.
    Left,
    /// The second guest, which knows nothing of the samples.
    Right,
}

/// A program or a thread that executes one of the functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The virtual CPU on which it executes, and nowhere else.
    pub vcpu: u64,
    /// Its process.
    pub pid: u64,
    /// The addresses of its function.
    pub function: Range<u64>,
}

/// Returns the name of the function of a virtual CPU.
pub fn name(side: Side, vcpu: usize) -> &'static str {
    NAMES[index(side, vcpu)]
}

fn index(side: Side, vcpu: usize) -> usize {
    side as usize * VCPUS + vcpu
}

impl Worker {
    /// Returns what this process is for a virtual CPU.
    pub fn here(side: Side, vcpu: usize) -> Self {
        let address = |function: fn()| function as *const () as u64;
        let start = address(FUNCTIONS[index(side, vcpu)]);
        let others = FUNCTIONS.into_iter().map(address).filter(|&other| other > start);
        let end = others.fold(start + FUNCTION_BYTES, u64::min);
        Self { vcpu: vcpu as u64, pid: std::process::id().into(), function: start..end }
    }

    /// Returns several of them as a line.
    pub fn line(all: &[Self]) -> String {
        let numbers = |one: &Self| [one.vcpu, one.pid, one.function.start, one.function.end];
        serde_json::Value::from_iter(all.iter().map(|one| numbers(one).to_vec())).to_string()
    }

    /// Parses such a line.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn parse(line: &str) -> Result<Vec<Self>> {
        let all: Vec<[u64; 4]> = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let worker = |[vcpu, pid, start, end]: [u64; 4]| Self { vcpu, pid, function: start..end };
        Ok(all.into_iter().map(worker).collect())
    }
}

/// Executes the function of a virtual CPU and system calls, for ever.
///
/// # Errors
///
/// There is no such virtual CPU.
pub fn execute(side: Side, vcpu: usize) -> Result<()> {
    run_on(SELF, &[vcpu])?;
    let function = FUNCTIONS[index(side, vcpu)];
    loop {
        function();
        for _ in 0..CALLS {
            nix::unistd::getppid();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_arrive_as_they_were_sent_and_no_two_share_an_address() {
        let all: Vec<Worker> = [Side::Left, Side::Right]
            .into_iter()
            .flat_map(|side| (0..VCPUS).map(move |vcpu| Worker::here(side, vcpu)))
            .collect();
        assert_eq!(Worker::parse(&Worker::line(&all)).unwrap(), all);
        for (n, one) in all.iter().enumerate() {
            assert!(!one.function.is_empty());
            for other in &all[..n] {
                let apart = one.function.end <= other.function.start
                    || other.function.end <= one.function.start;
                assert!(apart, "{one:?} {other:?}");
            }
        }
        assert_eq!([name(Side::Left, 3), name(Side::Right, 0)], ["left_3", "right_0"]);
    }
}
