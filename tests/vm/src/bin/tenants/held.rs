// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a reader that is stopped after it has looked at the pages and before its RDPMC.

use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use perfctr::rdpmc::Hardware;
use perfctr::{Event, Provider, Session};
use shared_abi::ThreadPage;
use shared_abi::read::{Counters, read_thread};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::THREAD_FAILED;

/// The time between two looks at the page.
const MOMENT: Duration = Duration::from_millis(1);

/// The CPU's counters, which are read only after the thread is forbidden to count.
struct Late<'a> {
    page: &'a ThreadPage,
    looked: Sender<()>,
}

impl Counters for Late<'_> {
    fn counter(&self, index: u32) -> u64 {
        // Only the first message is waited for.
        let _ = self.looked.send(());
        while self.page.state.load(Relaxed) & THREAD_FAILED == 0 {
            thread::sleep(MOMENT);
        }
        Hardware.counter(index)
    }

    fn clock(&self) -> u64 {
        Hardware.clock()
    }
}

/// Starts a reader that has already looked at its pages, and executes RDPMC only when it may not
/// count any more. The thread returns the result of that read.
pub fn reader() -> Result<JoinHandle<Result<String>>> {
    let (looked, wait) = channel();
    let reader = thread::spawn(move || {
        let mut session = Session::open_with(Provider::Paravirt)?;
        session.start(&[Event::INSTRUCTIONS.user()])?;
        let page = session.thread_page().context("a thread has no page")?;
        let late = Late { page, looked };
        Ok(format!("{:?}", read_thread(page, |n| session.vcpu_page(n), &late, &mut [0])))
    });
    match wait.recv() {
        Ok(()) => Ok(reader),
        Err(_) => {
            let end = reader.join().expect("no thread panics")?;
            bail!("a reader did not get to RDPMC: {end}")
        }
    }
}
