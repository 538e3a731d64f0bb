// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A thread's counter that samples, of either provider.

use std::io;

use anyhow::{Context, Result};
use libc::{c_int, pid_t};
use perfctr::overflow::Overflow;
use perfctr::raw::{Device, PerfEvent, of_thread, sampling};
use perfctr::{Event, Provider};
use shared_abi::ioctl::Control;

use crate::info::Here;
use crate::program::device;

/// The signal of an overflow. C libraries keep it to themselves, so programs can neither block it
/// nor wait for it. If they send it to each other, that is recognised and passed on.
pub const SIGNAL: c_int = 33;

/// The source of threads' counters.
#[derive(Debug)]
pub enum Source {
    Paravirt(Box<Control>),
    Native(Event),
}

impl Source {
    /// Makes a source for this event, which has a period.
    pub fn new(here: &Here, event: Event) -> Result<Self> {
        Ok(match (here.description.provider, here.description.caps) {
            (Provider::Paravirt, Some(caps)) => {
                Self::Paravirt(Box::new(sampling(&caps, &[event], 0, SIGNAL)?))
            }
            (Provider::Tsc, _) => return Err(here.nobody(event).into()),
            _ => Self::Native(event),
        })
    }

    /// Gives a stopped thread a counter. Returns `None` if it may not be observed, or has been
    /// killed.
    pub fn give(&self, pid: pid_t) -> Result<Option<Counter>> {
        match self {
            Self::Paravirt(control) => Ok(device::give(pid, control)?.map(Counter::Paravirt)),
            Self::Native(event) => match of_thread(event, pid.cast_unsigned(), SIGNAL) {
                Ok(event) => {
                    event.go_on().context("cannot start a perf event")?;
                    Ok(Some(Counter::Native(event)))
                }
                Err(error) if error.errno() == Some(libc::ESRCH) => Ok(None),
                Err(error) => Err(error).context("cannot give a thread a counter"),
            },
        }
    }
}

/// A thread's counter.
#[derive(Debug)]
pub enum Counter {
    Paravirt(Device),
    Native(PerfEvent),
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
            // These codes are the kernel's about descriptors (`sigaction(2)`), which nobody else
            // may use.
            Self::Native(_) => (POLL_IN..=POLL_HUP).contains(&information.si_code),
        }
    }

    /// Returns the number of events since the thread got it.
    pub fn count(&self) -> Result<u64> {
        match self {
            Self::Paravirt(device) => {
                Ok(device.sums().context("a counter has no count")?.counter[0])
            }
            Self::Native(event) => match event.counted() {
                Ok(counted) => Ok(counted.count),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    anyhow::bail!("the kernel has no counter left; somebody else uses them")
                }
                Err(error) => Err(error).context("a counter has no count"),
            },
        }
    }

    /// Lets the counter continue after an overflow.
    pub fn go_on(&self) -> io::Result<()> {
        match self {
            Self::Paravirt(device) => device.resume(),
            Self::Native(event) => event.go_on(),
        }
    }
}

/// The first and the last `si_code` of signals that tell of descriptors.
const POLL_IN: c_int = 1;
const POLL_HUP: c_int = 6;
