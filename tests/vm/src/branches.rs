// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds which branches a program takes, by single-stepping it.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};
use perf_event_open_sys::bindings::{
    PERF_SAMPLE_BRANCH_ANY, PERF_SAMPLE_BRANCH_ANY_CALL, PERF_SAMPLE_BRANCH_ANY_RETURN,
    PERF_SAMPLE_BRANCH_CALL, PERF_SAMPLE_BRANCH_COND, PERF_SAMPLE_BRANCH_IND_CALL,
    PERF_SAMPLE_BRANCH_IND_JUMP,
};

use crate::step::{Held, each_instruction, on_one_cpu};

/// The code of a system call, which retires as a branch.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The source and the target of a branch.
pub type Branch = (u64, u64);

/// A branch that was taken.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// The number of instructions that were executed until then, itself among them.
    after: usize,
    branch: Branch,
    /// perf's words that select it (`PERF_SAMPLE_BRANCH_*`).
    kinds: u32,
}

/// All branches that a program takes.
#[derive(Debug, Default)]
pub struct Path {
    taken: Vec<Taken>,
    /// The address of each instruction, in the order in which they are executed.
    executed: Vec<u64>,
    /// The addresses of branches, taken or not, and of system calls.
    branches: BTreeSet<u64>,
}

impl Path {
    /// Single-steps a program from its first instruction to its end.
    ///
    /// # Errors
    ///
    /// The program cannot be executed, or fails.
    pub fn of(program: &mut Command) -> Result<Self> {
        let (mut path, mut before) = (Self::default(), None);
        let executed = |address, code| {
            if let Some(before) = before.replace((address, code)) {
                path.note(before, address);
            }
            path.executed.push(address);
        };
        on_one_cpu(|| each_instruction(Held::start(program)?.pid(), |_| (), executed))?;
        Ok(path)
    }

    /// Notes the instruction with this code if it is a branch that has led to `to`.
    fn note(&mut self, (from, code): (u64, [u8; 8]), to: u64) {
        let kinds = kinds(code);
        if kinds != 0 || code.starts_with(&SYSCALL) {
            self.branches.insert(from);
        }
        let conditional = kinds & PERF_SAMPLE_BRANCH_COND != 0;
        let next = from + if code[0] == 0x0f { 6 } else { 2 };
        if kinds != 0 && !(conditional && to == next) {
            self.taken.push(Taken { after: self.executed.len(), branch: (from, to), kinds });
        }
    }

    /// Returns the number of instructions.
    pub fn instructions(&self) -> usize {
        self.executed.len()
    }

    /// Returns the number of branches that were taken.
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Returns the address of the instruction after this many others.
    pub fn place_after(&self, instructions: usize) -> Option<u64> {
        self.executed.get(instructions).copied()
    }

    /// Returns whether the instruction at this address is a branch or a system call.
    pub fn is_branch(&self, address: u64) -> bool {
        self.branches.contains(&address)
    }

    /// Returns the branches of these kinds that were taken within this many instructions, the
    /// latest first.
    pub fn latest(&self, instructions: usize, kinds: u32) -> impl Iterator<Item = Branch> {
        let within = self.taken.iter().rev().skip_while(move |one| one.after > instructions);
        within.filter(move |one| one.kinds & kinds != 0).map(|one| one.branch)
    }

    /// Checks the branches of a sample that was taken after this many instructions. Returns how
    /// many there are.
    ///
    /// # Errors
    ///
    /// A branch is not the one that the program has taken there.
    pub fn check(&self, instructions: usize, kinds: u32, sampled: &[Branch]) -> Result<usize> {
        let expected: Vec<_> = self.latest(instructions, kinds).take(sampled.len()).collect();
        ensure!(
            expected == sampled,
            "after {instructions} instructions {sampled:x?}, expected {expected:x?}"
        );
        Ok(sampled.len())
    }
}

/// Returns perf's words that select the branch that starts with these bytes, or 0. SYSCALL has
/// none, since its branch ends in the kernel.
fn kinds(code: [u8; 8]) -> u32 {
    let start = usize::from((0x40..=0x4f).contains(&code[0]));
    let field = code[start + 1] >> 3 & 7;
    let more = match code[start] {
        0x70..=0x7f | 0xe0..=0xe3 => PERF_SAMPLE_BRANCH_COND,
        0x0f if (0x80..=0x8f).contains(&code[start + 1]) => PERF_SAMPLE_BRANCH_COND,
        0xc2 | 0xc3 => PERF_SAMPLE_BRANCH_ANY_RETURN,
        0xe8 => PERF_SAMPLE_BRANCH_ANY_CALL | PERF_SAMPLE_BRANCH_CALL,
        0xe9 | 0xeb => 0,
        0xff if field == 2 => PERF_SAMPLE_BRANCH_ANY_CALL | PERF_SAMPLE_BRANCH_IND_CALL,
        0xff if field == 4 => PERF_SAMPLE_BRANCH_IND_JUMP,
        _ => return 0,
    };
    PERF_SAMPLE_BRANCH_ANY | more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_taken_is_a_branch_and_the_latest_comes_first() {
        let mut path = Path { executed: vec![0; 5], ..Path::default() };
        let code = |bytes: &[u8]| {
            let mut code = [0x90; 8];
            code[..bytes.len()].copy_from_slice(bytes);
            code
        };
        path.note((100, code(&[0x74, 8])), 102);
        path.note((100, code(&[0x74, 8])), 110);
        path.executed.push(0);
        path.note((200, code(&[0x0f, 0x85])), 206);
        path.note((200, code(&[0xe8])), 300);
        path.executed.push(0);
        path.note((300, code(&[0x0f, 0x05])), 302);
        path.note((302, code(&[0xc3])), 205);
        let latest = |after, kinds| path.latest(after, kinds).collect::<Vec<_>>();
        assert_eq!(latest(7, PERF_SAMPLE_BRANCH_ANY), [(302, 205), (200, 300), (100, 110)]);
        assert_eq!(latest(6, PERF_SAMPLE_BRANCH_ANY), [(200, 300), (100, 110)]);
        assert_eq!(latest(7, PERF_SAMPLE_BRANCH_COND), [(100, 110)]);
        assert!(path.check(7, PERF_SAMPLE_BRANCH_ANY, &[(302, 205), (200, 300)]).is_ok());
        assert!(path.check(7, PERF_SAMPLE_BRANCH_ANY, &[(200, 300)]).is_err());
    }

    #[test]
    fn kinds_are_perfs() {
        let any = PERF_SAMPLE_BRANCH_ANY;
        for (bytes, expected) in [
            (&[0xff, 0xd2][..], any | PERF_SAMPLE_BRANCH_ANY_CALL | PERF_SAMPLE_BRANCH_IND_CALL),
            (&[0x41, 0xff, 0xd4], any | PERF_SAMPLE_BRANCH_ANY_CALL | PERF_SAMPLE_BRANCH_IND_CALL),
            (&[0xff, 0x24, 0xd5], any | PERF_SAMPLE_BRANCH_IND_JUMP),
            (&[0xe8], any | PERF_SAMPLE_BRANCH_ANY_CALL | PERF_SAMPLE_BRANCH_CALL),
            (&[0xe2, 0xfe], any | PERF_SAMPLE_BRANCH_COND),
            (&[0xeb], any),
            (&[0xc3], any | PERF_SAMPLE_BRANCH_ANY_RETURN),
            // PUSH by the same opcode, SYSCALL, IMUL.
            (&[0xff, 0x30], 0),
            (&[0x0f, 0x05], 0),
            (&[0x69, 0xdb], 0),
        ] {
            let mut code = [0x90; 8];
            code[..bytes.len()].copy_from_slice(bytes);
            assert_eq!(kinds(code), expected, "{bytes:x?}");
        }
    }
}
