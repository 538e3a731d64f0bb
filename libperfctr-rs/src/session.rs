// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A thread's counters from opening to closing.

use std::marker::PhantomData;
use std::ops::Sub;

use shared_abi::{PmuCaps, ThreadPage, VcpuPage};

use crate::error::Error;
use crate::event::Event;
use crate::native::Native;
use crate::overflow::{self, Resumer};
use crate::paravirt::Paravirt;
use crate::tsc::TscOnly;

/// Who provides the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Hypervisor and guest kernel together, through `/dev/perfctr`.
    Paravirt,
    /// Linux alone, through `perf_event_open(2)`.  Right on bare metal, and in a virtual machine
    /// whose hypervisor emulates a PMU.  The kernel chooses the counters.
    Native,
    /// Nobody: there is only the time-stamp counter, which goes on while the thread does not.
    Tsc,
}

/// What can be counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Who counts.
    pub provider: Provider,
    /// The counters that there are; `None` if the provider does not say.
    pub caps: Option<PmuCaps>,
    /// Pages of virtual CPUs; 0 if the provider has none.
    pub vcpus: u32,
    /// CPUID leaf 1, EAX: family, model and stepping.
    pub cpu_signature: u32,
    /// Frequency in kHz of what readings give as TSC; 0 if unknown.  [`Provider::Native`] gives ns.
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
    /// Unit: ticks of [`Description::tsc_khz`] during which the thread executed; with
    /// [`Provider::Tsc`] simply all.
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

/// A session's provider.
#[derive(Debug)]
enum Backend {
    Paravirt(Paravirt),
    Native(Native),
    Tsc(TscOnly),
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
    backend: Backend,
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl Session {
    /// Opens the calling thread's counters at the best provider that there is: in the order of
    /// [`Provider`].  Nothing is counted yet.
    ///
    /// # Errors
    ///
    /// [`Error::Version`], [`Error::AlreadyOpen`], or what the kernel says.  That a provider is not
    /// there is none.
    pub fn open() -> Result<Self, Error> {
        match Self::open_with(Provider::Paravirt) {
            Err(Error::NoDevice { .. }) => {}
            result => return result,
        }
        Self::open_with(Provider::Native).or_else(|_| Self::open_with(Provider::Tsc))
    }

    /// Opens the calling thread's counters at this provider.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`Error::NoDevice`].
    pub fn open_with(provider: Provider) -> Result<Self, Error> {
        let backend = match provider {
            Provider::Paravirt => Backend::Paravirt(Paravirt::open()?),
            Provider::Native => Backend::Native(Native::open()?),
            Provider::Tsc => Backend::Tsc(TscOnly::open()),
        };
        Ok(Self { backend, thread: PhantomData })
    }

    /// What can be counted here.
    pub fn description(&self) -> &Description {
        match &self.backend {
            Backend::Paravirt(paravirt) => paravirt.description(),
            Backend::Native(native) => native.description(),
            Backend::Tsc(tsc) => tsc.description(),
        }
    }

    /// Counts these events and the TSC from 0, in place of what was counted before.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyCounters`], [`Error::EventNotAvailable`] and [`Error::Invalid`] change
    /// nothing; nor does a refusal of the kernel.
    pub fn start(&mut self, events: &[Event]) -> Result<(), Error> {
        if let Some(event) = events.iter().find(|event| event.samples()) {
            return Err(event.unavailable("it samples, and no signal is given"));
        }
        match &mut self.backend {
            Backend::Paravirt(paravirt) => paravirt.start(events, 0),
            Backend::Native(native) => native.start(events),
            Backend::Tsc(tsc) => tsc.start(events),
        }
    }

    /// As [`start`](Self::start), and overflows of the events that [sample](Event::every) raise
    /// `signal` in this thread.
    ///
    /// At an overflow all counters pause, so that nothing is counted that the program would not do
    /// without being sampled; the TSC goes on.  [`overflow`](crate::overflow) says how to receive
    /// the signal and how to let the counters go on.
    ///
    /// # Errors
    ///
    /// Those of [`start`](Self::start); [`Error::EventNotAvailable`] also if the provider does not
    /// sample: only [`Provider::Paravirt`] does.
    pub fn start_sampling(&mut self, events: &[Event], signal: libc::c_int) -> Result<(), Error> {
        let Some(sampling) = events.iter().find(|event| event.samples()) else {
            return self.start(events);
        };
        match &mut self.backend {
            Backend::Paravirt(paravirt) => {
                overflow::set_resumer(Some(paravirt.resumer()));
                // A negative number is as invalid as any that is too high.
                paravirt.start(events, signal.cast_unsigned())
            }
            Backend::Native(_) | Backend::Tsc(_) => {
                Err(sampling.unavailable("this provider does not sample"))
            }
        }
    }

    /// What lets this thread's counters go on after an overflow; `None` with other providers than
    /// [`Provider::Paravirt`].
    pub fn resumer(&self) -> Option<Resumer> {
        match &self.backend {
            Backend::Paravirt(paravirt) => Some(paravirt.resumer()),
            Backend::Native(_) | Backend::Tsc(_) => None,
        }
    }

    /// Stops counting.  Counts stay and can be read.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn stop(&mut self) -> Result<(), Error> {
        match &mut self.backend {
            Backend::Paravirt(paravirt) => paravirt.stop(),
            Backend::Native(native) => native.stop(),
            Backend::Tsc(_) => Ok(()),
        }
    }

    /// Goes on counting after [`stop`](Self::stop) where the counters stopped.  The TSC may start
    /// from 0.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn resume(&mut self) -> Result<(), Error> {
        match &mut self.backend {
            Backend::Paravirt(paravirt) => paravirt.resume(),
            Backend::Native(native) => native.resume(),
            Backend::Tsc(_) => Ok(()),
        }
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
        let Taken { tsc, retries, direct } = self.read_into(&mut counts)?;
        Ok(Reading { tsc, counts, retries, direct })
    }

    #[inline(always)]
    fn read_into(&self, counts: &mut [u64]) -> Result<Taken, Error> {
        match &self.backend {
            Backend::Paravirt(paravirt) => paravirt.read(counts),
            Backend::Native(native) => native.read(counts),
            Backend::Tsc(tsc) => tsc.read(counts),
        }
    }

    /// The page that the guest kernel publishes for this thread, for diagnosis.
    ///
    /// `None` in a forked child, and with other providers than [`Provider::Paravirt`].
    pub fn thread_page(&self) -> Option<&ThreadPage> {
        match &self.backend {
            Backend::Paravirt(paravirt) => paravirt.thread_page(),
            Backend::Native(_) | Backend::Tsc(_) => None,
        }
    }

    /// The page that the hypervisor publishes for vCPU `n`, for diagnosis.
    ///
    /// `None` in a forked child, with other providers than [`Provider::Paravirt`], or if there is
    /// no such vCPU.
    pub fn vcpu_page(&self, n: u32) -> Option<&VcpuPage> {
        match &self.backend {
            Backend::Paravirt(paravirt) => paravirt.vcpu_page(n),
            Backend::Native(_) | Backend::Tsc(_) => None,
        }
    }
}

/// CPUID leaf 1, EAX (SDM volume 2, CPUID).
pub(crate) fn cpu_signature() -> u32 {
    std::arch::x86_64::__cpuid(1).eax
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
