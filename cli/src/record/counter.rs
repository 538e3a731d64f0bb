// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A thread's counters that sample, of either provider.

use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use libc::{c_int, pid_t};
use perfctr::overflow::Overflow;
use perfctr::raw::{Device, PerfEvent, of_thread, sampling};
use perfctr::{Event, Provider};
use shared_abi::ioctl::Control;

use crate::info::Here;
use crate::program::{device, ptrace};

/// The signal of an overflow. C libraries reserve it for themselves, so programs can neither block
/// it nor wait for it. If programs send it to each other, that is recognised and passed on.
pub const SIGNAL: c_int = 33;

/// The source of threads' counters.
#[derive(Debug)]
pub enum Source {
    Paravirt(Box<Control>),
    Native(Vec<Event>),
}

impl Source {
    /// Makes a source for these events, which have periods.
    pub fn new(here: &Here, events: Vec<Event>) -> Result<Self> {
        Ok(match (here.description.provider, here.description.caps) {
            (Provider::Paravirt, Some(caps)) => {
                Self::Paravirt(Box::new(sampling(&caps, &events, 0, SIGNAL)?))
            }
            (Provider::Tsc, _) => return Err(here.no_provider_error(events[0]).into()),
            _ => Self::Native(events),
        })
    }

    /// Gives a stopped thread a counter for each event. Returns `None` if it may not be observed,
    /// or has been killed.
    pub fn give(&self, pid: pid_t) -> Result<Option<Counter>> {
        match self {
            Self::Paravirt(control) => Ok(device::give(pid, control)?.map(Counter::Paravirt)),
            Self::Native(events) => {
                let open = |event| of_thread(event, pid.cast_unsigned(), SIGNAL);
                match events.iter().map(open).collect::<Result<Vec<_>, _>>() {
                    Ok(events) => {
                        let start = events.iter().try_for_each(PerfEvent::go_on);
                        start.context("cannot start a perf event")?;
                        Ok(Some(Counter::Native(events)))
                    }
                    Err(error) if error.errno() == Some(libc::ESRCH) => Ok(None),
                    Err(error) => Err(error).context("cannot give a thread a counter"),
                }
            }
        }
    }
}

/// A thread's counters, one for each event.
#[derive(Debug)]
pub enum Counter {
    Paravirt(Device),
    Native(Vec<PerfEvent>),
}

impl Counter {
    /// Returns whether a thread that executes another program still has it.
    pub fn stays(&self, pid: pid_t) -> Result<bool> {
        match self {
            Self::Paravirt(_) => device::has_counters(pid),
            // Linux closes it together with the right to observe the thread.
            Self::Native(_) => Ok(true),
        }
    }

    /// Returns whether this signal tells of an overflow.
    pub fn raised(&self, information: &libc::siginfo_t) -> bool {
        match self {
            Self::Paravirt(_) => Overflow::from_siginfo(information).is_some(),
            // The kernel uses these codes for descriptors (`sigaction(2)`), and nobody else may use
            // them.
            Self::Native(_) => (POLL_IN..=POLL_HUP).contains(&information.si_code),
        }
    }

    /// Returns the numbers of events since the thread got the counters.
    pub fn counts(&self) -> Result<Vec<u64>> {
        match self {
            Self::Paravirt(device) => {
                Ok(device.sums().context("a counter has no count")?.counter.to_vec())
            }
            Self::Native(events) => events.iter().map(count).collect(),
        }
    }

    /// Lets the counters continue after the overflow that a signal has reported.
    pub fn go_on(&self, information: &libc::siginfo_t) -> io::Result<()> {
        match self {
            // All of them pause.
            Self::Paravirt(device) => device.resume(),
            Self::Native(events) => {
                let descriptor = ptrace::descriptor(information);
                let overflowed = events.iter().find(|event| event.as_raw_fd() == descriptor);
                overflowed.map_or(Ok(()), PerfEvent::go_on)
            }
        }
    }
}

fn count(event: &PerfEvent) -> Result<u64> {
    match event.counted() {
        Ok(counted) => Ok(counted.count),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            anyhow::bail!("the kernel has no counter left; somebody else uses them")
        }
        Err(error) => Err(error).context("a counter has no count"),
    }
}

/// The first and the last `si_code` of signals that tell of descriptors.
const POLL_IN: c_int = 1;
const POLL_HUP: c_int = 6;
