// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds what code executes from its machine code: it single-steps a child process through each
//! instruction.
//!
//! RDPMCs and system calls mark places in such a trace. A counter that is read at two of them, or
//! that counts from one to the other, has to count the instructions between them.
#![expect(unsafe_code, reason = "a forked child must not return")]

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::threads::{SELF, cpus, run_on};

/// The kinds of instructions that a trace distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RDPMC.
    Rdpmc,
    /// SYSCALL, which is a branch as well.
    SystemCall,
    /// Any other branch, taken or not.
    Branch,
    /// Anything else.
    Other,
}

impl Kind {
    /// Returns the kind of the instruction that starts with these bytes (SDM volume 2, appendix A).
    fn of(code: [u8; 8]) -> Self {
        let start = code.iter().position(|&byte| !is_prefix(byte)).unwrap_or(0);
        let next = code.get(start + 1).copied().unwrap_or_default();
        match code[start] {
            0x0f => match next {
                0x05 => Self::SystemCall,
                0x33 => Self::Rdpmc,
                0x80..=0x8f => Self::Branch,
                _ => Self::Other,
            },
            0x70..=0x7f | 0xc2 | 0xc3 | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb => Self::Branch,
            // CALL and JMP through a register or memory.
            0xff if (2..=5).contains(&(next >> 3 & 7)) => Self::Branch,
            _ => Self::Other,
        }
    }
}

fn is_prefix(byte: u8) -> bool {
    let legacy = [0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3];
    legacy.contains(&byte) || (0x40..=0x4f).contains(&byte)
}

/// Returns whether the instruction that starts with these bytes has a prefix by which it repeats
/// itself (REP). Its iterations are not instructions of their own, while those of LOOP are.
fn repeats(code: [u8; 8]) -> bool {
    code.iter().take_while(|&&byte| is_prefix(byte)).any(|byte| [0xf2, 0xf3].contains(byte))
}

/// A number of instructions, and how many of them are branches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Retired instructions.
    pub instructions: u64,
    /// Retired branches.
    pub branches: u64,
}

impl Executed {
    /// Returns the cycles of the testbed's model of a core: 2 for an instruction, and 4 more for a
    /// branch.
    pub const fn cycles(self) -> u64 {
        2 * self.instructions + 4 * self.branches
    }

    /// Returns the sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            instructions: self.instructions + other.instructions,
            branches: self.branches + other.branches,
        }
    }

    /// Returns the difference. `other` must not be larger.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self {
            instructions: self.instructions - other.instructions,
            branches: self.branches - other.branches,
        }
    }

    /// Returns the product.
    #[must_use]
    pub const fn times(self, times: u64) -> Self {
        Self { instructions: self.instructions * times, branches: self.branches * times }
    }
}

/// How a step has ended.
#[derive(Clone, Copy)]
enum Step {
    Executed,
    /// The instruction was not executed, since a signal was handled first.
    Interrupted,
    /// The child has ended.
    Ended,
}

/// All that a child process has executed.
#[derive(Debug, Default)]
pub struct Trace(Vec<Kind>);

impl Trace {
    /// Forks, and single-steps `body` in the child after it has done `prepare`. Calls `at_rdpmc`
    /// before each of the child's RDPMCs, with how many there were before.
    ///
    /// # Errors
    ///
    /// The child ends otherwise than by getting to the end of `body`.
    pub fn of<T>(
        prepare: impl FnOnce() -> Result<T>,
        body: impl FnOnce(T) -> Result<()>,
        at_rdpmc: impl FnMut(usize),
    ) -> Result<Self> {
        on_one_cpu(|| Self::of_child(prepare, body, at_rdpmc))
    }

    fn of_child<T>(
        prepare: impl FnOnce() -> Result<T>,
        body: impl FnOnce(T) -> Result<()>,
        at_rdpmc: impl FnMut(usize),
    ) -> Result<Self> {
        // SAFETY: the child does only what a thread of this process could do. It needs nothing of
        // other threads, since the C library takes care of its own locks.
        match unsafe { fork()? } {
            ForkResult::Child => {
                let stepped = || -> Result<()> {
                    ptrace::traceme()?;
                    let prepared = prepare()?;
                    raise(Signal::SIGSTOP)?;
                    body(prepared)
                };
                let status = match stepped() {
                    Ok(()) => 0,
                    Err(error) => {
                        eprintln!("a stepped process: {error:#}");
                        1
                    }
                };
                // SAFETY: this ends the child, and nothing that the parent has begun.
                unsafe { libc::_exit(status) }
            }
            ForkResult::Parent { child } => {
                await_stop(child, Signal::SIGSTOP)?;
                Self::record(child, at_rdpmc)
            }
        }
    }

    /// Single-steps a program from its first instruction to its end.
    ///
    /// # Errors
    ///
    /// The program cannot be executed, or fails.
    pub fn of_program(command: &mut Command) -> Result<Self> {
        Self::record(Held::start(command)?.pid(), |_| ())
    }

    fn record(child: Pid, mut at_rdpmc: impl FnMut(usize)) -> Result<Self> {
        let (mut trace, mut rdpmcs) = (Self::default(), 0);
        let before = |code| {
            if Kind::of(code) == Kind::Rdpmc {
                at_rdpmc(rdpmcs);
                rdpmcs += 1;
            }
        };
        each_instruction(child, before, |_, code| trace.0.push(Kind::of(code)))?;
        Ok(trace)
    }

    /// Returns the number of instructions executed.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing was executed, which cannot be.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the places of the instructions of a kind.
    pub fn places(&self, kind: Kind) -> Vec<usize> {
        (0..self.0.len()).filter(|&place| self.0[place] == kind).collect()
    }

    /// Returns what was executed from one place to another, without the one at `to`.
    pub fn between(&self, from: usize, to: usize) -> Executed {
        let kinds = &self.0[from..to];
        let is_branch = |kind: &&Kind| matches!(kind, Kind::Branch | Kind::SystemCall);
        Executed {
            instructions: kinds.len() as u64,
            branches: kinds.iter().filter(is_branch).count() as u64,
        }
    }

    /// Returns what was executed between the system call before the first RDPMC and the next system
    /// call after the `rdpmcs`th, that call included. A counter counts that if the first call
    /// starts it and the second one stops it.
    ///
    /// # Errors
    ///
    /// There are no such calls.
    pub fn from_start_to_stop(&self, rdpmcs: usize) -> Result<Executed> {
        let (calls, reads) = (self.places(Kind::SystemCall), self.places(Kind::Rdpmc));
        let (first, last) = (reads.first(), rdpmcs.checked_sub(1).and_then(|n| reads.get(n)));
        let (first, last) = first.zip(last).context("there are not so many RDPMCs")?;
        let start = calls.iter().rfind(|&call| call < first).context("nothing starts")?;
        let stop = calls.iter().find(|&call| call > last).context("nothing stops")?;
        Ok(self.between(start + 1, stop + 1))
    }
}

/// Runs `steps`, which starts a child and steps it, with both on one CPU, since a step that wakes
/// another CPU takes long in a virtual machine.
///
/// # Errors
///
/// That of `steps`.
pub fn on_one_cpu<T>(steps: impl FnOnce() -> Result<T>) -> Result<T> {
    let cpus = cpus()?;
    run_on(SELF, cpus.get(..1).context("there is no CPU")?)?;
    let done = steps();
    run_on(SELF, &cpus)?;
    done
}

/// Single-steps a child to its end. Calls `before` with the first bytes of each instruction that is
/// about to be executed, and `executed` with its address and these bytes when it was.
///
/// # Errors
///
/// The child fails.
pub fn each_instruction(
    child: Pid,
    mut before: impl FnMut([u8; 8]),
    mut executed: impl FnMut(u64, [u8; 8]),
) -> Result<()> {
    let mut last = (0, [0; 8]);
    loop {
        let address = ptrace::getregs(child)?.rip;
        let is_new = address != last.0 || !repeats(last.1);
        if is_new {
            let code = ptrace::read(child, address as ptrace::AddressType)?.to_le_bytes();
            before(code);
            last = (address, code);
        }
        let step = step(child, address)?;
        // An interrupted instruction is executed when the handler returns.
        if is_new && !matches!(step, Step::Interrupted) {
            executed(address, last.1);
        }
        if matches!(step, Step::Ended) {
            return Ok(());
        }
    }
}

/// Lets the child execute the instruction at `address`, or enter a signal's handler before it.
fn step(child: Pid, address: u64) -> Result<Step> {
    let (mut step, mut signal) = (Step::Executed, None);
    loop {
        ptrace::step(child, signal)?;
        match waitpid(child, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => return Ok(step),
            WaitStatus::Stopped(_, other) => {
                signal = Some(other);
                if ptrace::getregs(child)?.rip == address {
                    step = Step::Interrupted;
                }
            }
            WaitStatus::Exited(_, 0) => return Ok(Step::Ended),
            otherwise => anyhow::bail!("a stepped process: {otherwise:?}"),
        }
    }
}

/// A program that is stopped before its first instruction, until the thread that has started it
/// continues it.
#[derive(Debug)]
pub struct Held(Child);

impl Held {
    /// Starts the program.
    ///
    /// # Errors
    ///
    /// The program cannot be executed.
    pub fn start(command: &mut Command) -> Result<Self> {
        // SAFETY: the closure makes one system call.
        unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
        let held = Self(command.spawn()?);
        await_stop(held.pid(), Signal::SIGTRAP)?;
        Ok(held)
    }

    /// Returns its process number.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    /// Lets the program execute to its end.
    ///
    /// # Errors
    ///
    /// The program fails.
    pub fn run(mut self) -> Result<()> {
        ptrace::detach(self.pid(), None)?;
        let status = self.0.wait()?;
        ensure!(status.success(), "a program that was let go: {status}");
        Ok(())
    }
}

fn await_stop(child: Pid, signal: Signal) -> Result<()> {
    let stopped = waitpid(child, None)?;
    ensure!(stopped == WaitStatus::Stopped(child, signal), "{stopped:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::arch::asm;
    use std::hint::black_box;

    use super::*;
    use crate::region::Region;
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};

    fn trace(region: Region) -> Trace {
        let body = |()| {
            region.execute(&mut 0);
            Ok(())
        };
        Trace::of(|| Ok(()), body, |_| ()).unwrap()
    }

    #[test]
    fn instructions_and_branches_are_those_of_the_machine_code() {
        let (short, long) = (Region { first: 1, second: 2 }, Region { first: 30, second: 7 });
        let executed = |region| {
            let trace = trace(region);
            trace.between(0, trace.len())
        };
        let truth = |of: fn(Region) -> u64| of(long) - of(short);
        let more = executed(long).less(executed(short));
        assert_eq!(more.instructions, truth(Region::instructions));
        assert_eq!(more.branches, truth(Region::branches));
        assert_eq!(more.cycles(), 2 * more.instructions + 4 * more.branches);
    }

    #[test]
    fn a_loop_at_one_address_is_an_instruction_each_time_and_a_repeated_one_is_not() {
        let executed = |turns: u64, bytes: u64| {
            let body = |()| {
                let mut memory = [0_u8; 64];
                // SAFETY: the bytes that are written are in `memory`.
                unsafe {
                    asm!("2: loop 2b", inout("rcx") turns => _);
                    asm!("rep stosb", inout("rcx") bytes => _, in("al") 1_u8,
                         inout("rdi") memory.as_mut_ptr() => _);
                }
                black_box(memory);
                Ok(())
            };
            let trace = Trace::of(|| Ok(()), body, |_| ()).unwrap();
            trace.between(0, trace.len())
        };
        let least = executed(1, 1);
        assert_eq!(executed(21, 1).less(least), Executed { instructions: 20, branches: 20 });
        assert_eq!(executed(1, 64), least);
    }

    #[test]
    fn a_handler_is_stepped_and_takes_nothing_from_what_it_interrupts() {
        extern "C" fn ignore(_: i32) {}
        let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing.
        unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
        let executed = |signal: Option<Signal>| {
            let body = |()| {
                if let Some(signal) = signal {
                    raise(signal)?;
                }
                Region { first: 3, second: 3 }.execute(&mut 0);
                Ok(())
            };
            Trace::of(|| Ok(()), body, |_| ()).unwrap().places(Kind::SystemCall).len()
        };
        // The end of the process is a system call.
        assert_eq!(executed(None), 1);
        // The handler's return is a system call, too; a signal without a handler has none.
        assert_eq!(executed(Some(Signal::SIGURG)), executed(Some(Signal::SIGWINCH)) + 1);
    }

    #[test]
    fn a_child_that_fails_is_an_error() {
        let failed = Trace::of(|| Ok(()), |()| anyhow::bail!("as it should"), |_| ());
        assert!(failed.is_err());
    }

    #[test]
    fn kinds_are_told_apart_behind_prefixes() {
        let kind = |bytes: &[u8]| {
            let mut code = [0x90; 8];
            code[..bytes.len()].copy_from_slice(bytes);
            Kind::of(code)
        };
        assert_eq!(kind(&[0x0f, 0x33]), Kind::Rdpmc);
        assert_eq!(kind(&[0x0f, 0x05]), Kind::SystemCall);
        for branch in [
            &[0x75, 0xfd][..],
            &[0x0f, 0x85],
            &[0xf2, 0xe9],
            &[0xf3, 0xc3],
            &[0x3e, 0xff, 0xe0],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0x15],
            &[0xe8],
        ] {
            assert_eq!(kind(branch), Kind::Branch, "{branch:x?}");
        }
        // ENDBR64, DEC and PUSH by the same opcode, SETNZ, LFENCE.
        for other in [
            &[0xf3, 0x0f, 0x1e, 0xfa][..],
            &[0x48, 0xff, 0xc8],
            &[0xff, 0x30],
            &[0x0f, 0x95, 0xc0],
            &[0x0f, 0xae, 0xe8],
        ] {
            assert_eq!(kind(other), Kind::Other, "{other:x?}");
        }
    }
}
