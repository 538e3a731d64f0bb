// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A process that comes to a stop of a certain kind, and then acts.
//!
//! All its acts are system calls without a library between, so that it always executes the same
//! instructions from the stop to its end.
#![expect(unsafe_code, reason = "bare system calls, and a thread without the library's help")]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use clap::ValueEnum;
use vm_tests::region::Region;

use crate::device::{self, USER, counting};

/// Kinds of stops (`ptrace(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At the entry of the system call that is its act.
    Entry,
    /// At the exit of a system call.
    Exit,
    /// At the system call that is its act, by a filter that returns `SECCOMP_RET_TRACE`.
    Seccomp,
    /// In `fork`.
    Fork,
    /// In `clone`.
    Clone,
    /// In `execve`, by the new program.
    Exec,
    /// At its end.
    End,
    /// With its whole process, by SIGSTOP.
    Group,
    /// By `PTRACE_INTERRUPT` in a system call.
    Interrupt,
    /// At a signal.
    Signal,
    /// The first stop of a forked child.
    NewChild,
    /// The first stop of a new thread.
    NewThread,
}

/// All kinds of stops.
pub const STOPS: [Stop; 12] = [
    Stop::Entry,
    Stop::Exit,
    Stop::Seccomp,
    Stop::Fork,
    Stop::Clone,
    Stop::Exec,
    Stop::End,
    Stop::Group,
    Stop::Interrupt,
    Stop::Signal,
    Stop::NewChild,
    Stop::NewThread,
];

/// What the tracee does when it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Act {
    /// A system call that has nothing to do with this project.
    Nothing,
    /// `IOC_CREATE`, with another descriptor.
    Create,
    /// `IOC_CONTROL`.
    Control,
    /// `IOC_READ`.
    Read,
    /// `IOC_RESUME`.
    Resume,
    /// `IOC_UNLINK`.
    Unlink,
    /// Closes the descriptor.
    Close,
    /// Forks.
    Fork,
    /// Executes another program.
    Exec,
    /// Ends.
    Exit,
    /// It does nothing, since it is killed.
    Kill,
}

/// The tracee has just started.
pub const AT_START: u64 = 0;
/// It is about to stop.
pub const AT_STOP: u64 = 1;
/// Its next system call is its act.
pub const AT_ACT: u64 = 2;

/// What the tracee has to do, and what it needs for that.
#[derive(Debug)]
pub struct Plan {
    pub stop: Stop,
    pub act: Act,
    /// Whether it has given itself counters before the stop.
    pub owned: bool,
    /// The length of its work at the end.
    pub iterations: u64,
    /// The descriptor that the tracer also has, and another one.
    pub device: File,
    pub spare: File,
    /// The pipe that tells the tracee to start. The second byte ends a wait.
    pub start: File,
    /// The progress of the tracee, one of the constants above.
    pub at: &'static AtomicU64,
}

/// Ends the process.
fn end() -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    unreachable!("the process has ended")
}

/// Makes a system call whose arguments are numbers only.
fn call(number: libc::c_long, arguments: [usize; 2]) -> libc::c_long {
    // SAFETY: the callers below pass numbers, no addresses.
    unsafe { libc::syscall(number, arguments[0], arguments[1], 0, 0, 0) }
}

impl Plan {
    /// Executes the plan. The calling process ends.
    pub fn run(self) -> ! {
        self.wait();
        if self.owned && device::create(&self.device, 0).is_err() {
            end();
        }
        if self.owned && device::control(&self.device, counting(&[USER])).is_err() {
            end();
        }
        if self.stop == Stop::Seccomp {
            trace_by_filter();
        }
        self.at.store(AT_STOP, SeqCst);
        match self.stop {
            Stop::Entry | Stop::Seccomp => {}
            Stop::Exit => drop(call(libc::SYS_getppid, [0; 2])),
            Stop::Fork => fork(libc::SIGCHLD),
            Stop::Clone => fork(0),
            Stop::Exec => self.exec(self.act),
            Stop::End => end(),
            Stop::Group => raise(libc::SIGSTOP),
            Stop::Interrupt => self.wait(),
            Stop::Signal => raise(libc::SIGURG),
            Stop::NewChild => {
                // The child continues below. Its parent has nothing more to do.
                if call(libc::SYS_clone, [libc::SIGCHLD as usize, 0]) != 0 {
                    end();
                }
            }
            Stop::NewThread => self.go_on_in_thread(),
        }
        self.act_and_work()
    }

    /// Waits for a byte.
    fn wait(&self) {
        let mut byte = 0_u8;
        // SAFETY: the kernel writes one byte to this variable.
        unsafe { libc::syscall(libc::SYS_read, self.start.as_raw_fd(), &raw mut byte, 1_usize) };
    }

    fn act_and_work(self) -> ! {
        let counters = counting(&[USER]);
        let (_words, program) = program(&self, Act::Nothing);
        self.at.store(AT_ACT, Relaxed);
        match self.act {
            Act::Nothing | Act::Kill => drop(call(libc::SYS_getppid, [0; 2])),
            Act::Create => drop(device::create(&self.spare, 0)),
            Act::Control => drop(device::control(&self.device, counters)),
            Act::Read => drop(device::read(&self.device)),
            Act::Resume => drop(device::resume(&self.device)),
            Act::Unlink => drop(device::unlink(&self.device)),
            Act::Close => drop(call(libc::SYS_close, [self.device.as_raw_fd() as usize, 0])),
            Act::Fork => fork(libc::SIGCHLD),
            Act::Exec => execute(&program),
            Act::Exit => end(),
        }
        Region { first: self.iterations, second: 1 }.execute(&mut 0);
        end()
    }

    fn exec(&self, act: Act) -> ! {
        let (_words, program) = program(self, act);
        execute(&program);
        end()
    }

    /// Makes a new thread do the rest.
    fn go_on_in_thread(self) -> ! {
        const STACK: usize = 1 << 16;
        let top = Box::leak(vec![0_u8; STACK].into_boxed_slice()).as_mut_ptr_range().end;
        let plan = Box::into_raw(Box::new(self));
        let flags = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        // SAFETY: the stack is the thread's own and large enough, and the plan is the thread's own,
        // too. The calling thread does nothing more that would use the thread-local storage, which
        // both share.
        unsafe { libc::clone(thread, top.cast(), flags, plan.cast()) };
        loop {
            call(libc::SYS_pause, [0; 2]);
        }
    }
}

extern "C" fn thread(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `go_on_in_thread` has made the pointer from a box, and given it to this thread alone.
    let plan = unsafe { Box::from_raw(plan.cast::<Plan>()) };
    plan.act_and_work()
}

/// Forks a child that ends at once. The child inherits the filter, but not the tracer, without whom
/// the filtered system calls fail.
fn fork(end_signal: libc::c_int) {
    if call(libc::SYS_clone, [end_signal as usize, 0]) == 0 {
        call(libc::SYS_exit, [0; 2]);
    }
}

fn raise(signal: libc::c_int) {
    call(libc::SYS_tkill, [call(libc::SYS_gettid, [0; 2]) as usize, signal as usize]);
}

/// Returns the words that execute this program so that it acts when it starts, and their addresses.
fn program(plan: &Plan, act: Act) -> (Vec<CString>, Vec<*const libc::c_char>) {
    let act = act.to_possible_value().expect("every act has a name");
    let [device, spare] = [&plan.device, &plan.spare].map(|file| file.as_raw_fd().to_string());
    let words = ["hostile", "act", act.get_name(), &device, &spare];
    let words = words.map(|word| CString::new(word).expect("no word has a 0"));
    let end = std::iter::once(std::ptr::null());
    let places = words.iter().map(|word| word.as_ptr()).chain(end).collect();
    (words.into(), places)
}

fn execute(program: &[*const libc::c_char]) {
    // SAFETY: the strings and the list are terminated, and live during the call.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), program.as_ptr()) };
}

/// Does the act of a tracee that has executed this program.
pub fn act_as_program(act: Act, device: i32, spare: i32) -> ! {
    // SAFETY: the descriptors were inherited, and no other code here knows them.
    let [device, spare] = [device, spare].map(|file| unsafe { File::from_raw_fd(file) });
    let start = spare.try_clone().expect("a descriptor that was open");
    let at = Box::leak(Box::new(AtomicU64::new(AT_START)));
    let plan =
        Plan { stop: Stop::Entry, act, owned: false, iterations: 1000, device, spare, start, at };
    plan.act_and_work()
}

/// Sets a filter that stops this process, for its tracer, at every system call that may be its act.
fn trace_by_filter() {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let traced = [
        libc::SYS_getppid,
        libc::SYS_ioctl,
        libc::SYS_close,
        libc::SYS_clone,
        libc::SYS_execve,
        libc::SYS_exit_group,
    ];
    let mut filter = vec![step(LOAD_NUMBER, 0, 0, 0)];
    for (place, number) in traced.iter().enumerate() {
        filter.push(step(IF_EQUAL, (traced.len() - place) as u8, 0, *number as u32));
    }
    filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_TRACE));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives while the kernel copies it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0);
    }
}
