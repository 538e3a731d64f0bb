// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Threads of another process that have counters and sleep.

use std::io::{Read, Write, pipe};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Builder};

use anyhow::{Context, Result};
use perfctr::{Event, Provider, Session};
use vm_tests::users::{Child, become_user_alone};

/// The bytes of a thread's stack.
pub const STACK_BYTES: usize = 64 << 10;
/// The first of the users that have no other purpose.
const FIRST_USER: u32 = 5_000;

/// Returns whose thread one is that has this number: root's.
pub const fn all_root(_: usize) -> u32 {
    0
}

/// Returns whose thread one is that has this number: the first one is root's, and each of the
/// others has a user of its own.
pub const fn each_its_own(number: usize) -> u32 {
    if number == 0 { 0 } else { FIRST_USER + number as u32 }
}

/// A process whose threads have counters.
#[derive(Debug)]
pub struct Sleepers(Child);

impl Sleepers {
    /// Starts so many threads, and returns when all count. `user` says whose thread each is.
    ///
    /// # Errors
    ///
    /// A thread's error.
    pub fn start(number: usize, user: fn(usize) -> u32) -> Result<Self> {
        let (mut ready, mut to_parent) = pipe()?;
        let child = Child::fork(|| {
            let (begun, all) = channel();
            for thread in 0..number {
                let begun = begun.clone();
                let sleep = move || sleep(user(thread), &begun);
                Builder::new().stack_size(STACK_BYTES).spawn(sleep).context("a thread")?;
            }
            for _ in 0..number {
                all.recv()??;
            }
            to_parent.write_all(&[0])?;
            forever()
        })?;
        drop(to_parent);
        // If the child has ended, it has printed why.
        if ready.read_exact(&mut [0]).is_err() {
            child.join()?;
            anyhow::bail!("the process of the sleeping threads has ended");
        }
        Ok(Self(child))
    }

    /// Ends the process, and waits for its end.
    ///
    /// # Errors
    ///
    /// The process has ended before.
    pub fn end(self) -> Result<()> {
        self.0.kill()
    }
}

/// Counts, says so, and sleeps.
fn sleep(user: u32, begun: &Sender<Result<()>>) {
    let counting = || -> Result<Session> {
        if user != 0 {
            become_user_alone(user)?;
        }
        let mut session = Session::open_with(Provider::Paravirt)?;
        session.start(&[Event::INSTRUCTIONS.user()])?;
        Ok(session)
    };
    let session = counting();
    // The receiver exists as long as it expects threads.
    let _ = begun.send(session.as_ref().map(drop).map_err(|error| anyhow::anyhow!("{error:#}")));
    if session.is_ok() {
        forever();
    }
}

fn forever() -> ! {
    loop {
        thread::park();
    }
}
