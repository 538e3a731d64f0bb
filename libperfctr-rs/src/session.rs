// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A thread's counters from opening to closing.

use std::marker::PhantomData;
use std::ops::Sub;

use shared_abi::{CounterConfig, PmuCaps, ThreadPage, VcpuPage};

use crate::error::Error;
use crate::event::{Event, place};
use crate::paravirt::Paravirt;

/// Who provides the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Hypervisor and guest kernel together, through `/dev/perfctr`.
    Paravirt,
}

/// What can be counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Who counts.
    pub provider: Provider,
    /// The counters that there are; `None` if there is no PMU.
    pub caps: Option<PmuCaps>,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// CPUID leaf 1, EAX: family, model and stepping.
    pub cpu_signature: u32,
    /// Frequency of the time-stamp counter in kHz.
    pub tsc_khz: u32,
}

/// What a provider gives besides the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) tsc: u64,
    pub(crate) retries: u32,
    pub(crate) direct: bool,
}

/// One consistent snapshot of a thread's counters.
///
/// The difference of two, `later - earlier`, is what the thread did in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading<const N: usize> {
    /// Unit: TSC ticks during which the thread executed.
    pub tsc: u64,
    /// Unit: events, in the order in which they were given to [`Session::start`].
    pub counts: [u64; N],
    /// Attempts that were disturbed and thrown away before this one.
    pub retries: u32,
    /// Whether no system call was needed.
    pub direct: bool,
}

impl<const N: usize> Sub for Reading<N> {
    type Output = Self;

    /// Retries are those of the later reading: those of the earlier one ended before it was taken
    /// and are not counted in the difference.
    fn sub(self, earlier: Self) -> Self {
        Self {
            tsc: self.tsc.wrapping_sub(earlier.tsc),
            counts: std::array::from_fn(|n| self.counts[n].wrapping_sub(earlier.counts[n])),
            retries: self.retries,
            direct: self.direct && earlier.direct,
        }
    }
}

/// The calling thread's counters.
///
/// There is at most one session per thread.  Dropping it stops the counters.  It stays with its
/// thread, since the pages and counters that it reads are those of whoever executes the read:
///
/// ```compile_fail,E0277
/// let session = perfctr::Session::open().unwrap();
/// std::thread::spawn(move || session.read::<1>());
/// ```
#[derive(Debug)]
pub struct Session {
    paravirt: Paravirt,
    counters: Vec<CounterConfig>,
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl Session {
    /// Opens the calling thread's counters.  Nothing is counted yet.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`], [`Error::Version`], [`Error::AlreadyOpen`], or what the kernel says.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { paravirt: Paravirt::open()?, counters: Vec::new(), thread: PhantomData })
    }

    /// What can be counted here.
    pub fn description(&self) -> &Description {
        self.paravirt.description()
    }

    /// Counts these events and the TSC from 0, in place of what was counted before.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyCounters`], [`Error::EventNotAvailable`] and [`Error::Invalid`] change
    /// nothing; nor does a refusal of the kernel.
    pub fn start(&mut self, events: &[Event]) -> Result<(), Error> {
        let counters = match &self.description().caps {
            Some(caps) => place(caps, events)?,
            None => Vec::new(),
        };
        self.paravirt.control(&counters, 0)?;
        self.counters = counters;
        Ok(())
    }

    /// Stops counting.  Counts stay and can be read.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.paravirt.stop()
    }

    /// Goes on counting after [`stop`](Self::stop) where the counters stopped.  The TSC starts
    /// from 0.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn resume(&mut self) -> Result<(), Error> {
        let all = (1 << self.counters.len()) - 1;
        self.paravirt.control(&self.counters, all)
    }

    /// The counters in use, in the order of the events.
    pub fn counters(&self) -> &[CounterConfig] {
        &self.counters
    }

    /// Reads the TSC and the first `N` counters at once.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyCounters`] if fewer are in use, [`Error::Forked`], [`Error::NotLoaded`],
    /// [`Error::Disturbed`].
    #[inline(always)]
    pub fn read<const N: usize>(&self) -> Result<Reading<N>, Error> {
        let mut counts = [0; N];
        let Taken { tsc, retries, direct } = self.paravirt.read(&mut counts)?;
        Ok(Reading { tsc, counts, retries, direct })
    }

    /// The page that the guest kernel publishes for this thread, for diagnosis.
    ///
    /// `None` in a forked child.
    pub fn thread_page(&self) -> Option<&ThreadPage> {
        self.paravirt.thread_page()
    }

    /// The page that the hypervisor publishes for vCPU `n`, for diagnosis.
    ///
    /// `None` in a forked child, or if there is no such vCPU.
    pub fn vcpu_page(&self, n: u32) -> Option<&VcpuPage> {
        self.paravirt.vcpu_page(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_keeps_the_later_retries() {
        let earlier = Reading { tsc: 10, counts: [u64::MAX], retries: 3, direct: true };
        let later = Reading { tsc: 25, counts: [4], retries: 1, direct: true };
        let difference = Reading { tsc: 15, counts: [5], retries: 1, direct: true };
        assert_eq!(later - earlier, difference);
    }
}
