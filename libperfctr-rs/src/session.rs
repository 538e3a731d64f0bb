// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A session owns a thread's counters from opening to closing.

use std::marker::PhantomData;
use std::ops::Sub;
use std::os::fd::AsRawFd;

use shared_abi::{ThreadPage, VcpuPage};

use crate::claim::Claim;
use crate::error::Error;
use crate::event::Event;
use crate::overflow::{self, Records, Resumer};
use crate::overhead::Overhead;
use crate::provider::Backend;
use crate::provider::refusal::Refusal;
use crate::provider::types::{Description, Notification, Provider, Taken};

/// One consistent snapshot of a thread's counters.
///
/// The difference of two, `later - earlier`, is what the thread did in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Reading<const N: usize> {
    /// How long the thread has executed, unit: ticks of [`Description::tsc_khz`]. With
    /// [`Provider::Tsc`] it is the TSC itself, which also goes on while the thread does not
    /// execute.
    pub tsc: u64,
    /// The counts, unit: events, in the order of the events given to [`Session::start`].
    #[cfg_attr(feature = "serde", serde(with = "list"))]
    pub counts: [u64; N],
    /// Number of attempts that were disturbed and discarded before this one.
    pub retries: u32,
    /// Whether the reading was made without a system call.
    pub direct: bool,
}

impl<const N: usize> Default for Reading<N> {
    fn default() -> Self {
        Self { tsc: 0, counts: [0; N], retries: 0, direct: false }
    }
}

impl<const N: usize> Sub for Reading<N> {
    type Output = Self;

    /// Returns the difference, which has the retries of the later reading. The retries of the
    /// earlier reading had ended before its values were taken, so the difference does not contain
    /// them.
    fn sub(self, earlier: Self) -> Self {
        Self {
            tsc: self.tsc.wrapping_sub(earlier.tsc),
            counts: difference(&self.counts, &earlier.counts),
            retries: self.retries,
            direct: self.direct && earlier.direct,
        }
    }
}

/// One consistent snapshot of a thread's counters, without the time-stamp counter.
///
/// The fields and the difference of two are those of a [`Reading`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Counts<const N: usize> {
    /// The counts, see [`Reading::counts`].
    #[cfg_attr(feature = "serde", serde(with = "list"))]
    pub counts: [u64; N],
    /// Number of discarded attempts, see [`Reading::retries`].
    pub retries: u32,
    /// Whether the reading was made without a system call, see [`Reading::direct`].
    pub direct: bool,
}

impl<const N: usize> Default for Counts<N> {
    fn default() -> Self {
        Self { counts: [0; N], retries: 0, direct: false }
    }
}

impl<const N: usize> Sub for Counts<N> {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            counts: difference(&self.counts, &earlier.counts),
            retries: self.retries,
            direct: self.direct && earlier.direct,
        }
    }
}

impl<const N: usize> Counts<N> {
    /// Returns the sum of the counts of two periods that do not overlap.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            counts: std::array::from_fn(|n| self.counts[n].wrapping_add(other.counts[n])),
            retries: self.retries.saturating_add(other.retries),
            direct: self.direct && other.direct,
        }
    }
}

/// Serialises arrays of any length. serde itself only serialises arrays of up to 32 elements.
#[cfg(feature = "serde")]
mod list {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer, const N: usize>(
        counts: &[u64; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(counts)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<[u64; N], D::Error> {
        let counts = Vec::deserialize(deserializer)?;
        <[u64; N]>::try_from(counts)
            .map_err(|counts| D::Error::invalid_length(counts.len(), &format!("{N}").as_str()))
    }
}

fn difference<const N: usize>(later: &[u64; N], earlier: &[u64; N]) -> [u64; N] {
    std::array::from_fn(|n| later[n].wrapping_sub(earlier[n]))
}

/// The calling thread's counters.
///
/// A thread has at most one session, whichever provider it uses. Dropping the session stops the
/// counters. A session cannot be sent to another thread, because a read reads the pages and
/// counters of the thread that executes it:
///
/// ```compile_fail,E0277
/// let session = perfctr::Session::open().unwrap();
/// std::thread::spawn(move || session.read::<1>());
/// ```
#[derive(Debug)]
pub struct Session {
    backend: Backend,
    refusals: Vec<Refusal>,
    claim: Claim,
    overhead: Overhead,
    /// Makes the session neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl Session {
    /// Returns whether this process was forked from the one that has opened the session.
    pub(crate) fn forked(&self) -> bool {
        self.claim.forked()
    }

    /// Makes the session look like one that another process has opened, for tests.
    #[cfg(test)]
    pub(crate) fn give_away(&mut self) {
        self.claim = Claim::of_child();
    }

    /// Opens the calling thread's counters at the first provider that has counters, in the order of
    /// [`Provider`]. Nothing is counted yet.
    ///
    /// It is no error if a provider has no counters. [`refusals`](Self::refusals) returns what
    /// each of them has answered. If no provider has counters, [`start`](Self::start) fails with
    /// these answers.
    ///
    /// # Errors
    ///
    /// [`Error::Version`], [`Error::AlreadyOpen`], or the kernel's error.
    pub fn open() -> Result<Self, Error> {
        let claim = Claim::take()?;
        let (backend, refusals) = Backend::open()?;
        Ok(Self::new(backend, refusals, claim))
    }

    /// Opens the calling thread's counters at this provider and at no other.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open), and [`Error::Refused`].
    pub fn open_with(provider: Provider) -> Result<Self, Error> {
        let claim = Claim::take()?;
        let backend = Backend::open_with(provider)?;
        Ok(Self::new(backend, Vec::new(), claim))
    }

    fn new(backend: Backend, refusals: Vec<Refusal>, claim: Claim) -> Self {
        Self { backend, refusals, claim, overhead: Overhead::default(), thread: PhantomData }
    }

    /// Returns a description of the provider and its counters.
    pub fn description(&self) -> &Description {
        self.backend.description()
    }

    /// Returns the answers of the providers that [`open`](Self::open) asked before it found this
    /// one:
    ///
    /// ```
    /// # fn main() -> Result<(), perfctr::Error> {
    /// let session = perfctr::Session::open()?;
    /// for refusal in session.refusals() {
    ///     eprintln!("{refusal}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Starts to count these events and the TSC from 0, in place of the earlier events.
    ///
    /// # Errors
    ///
    /// [`Error::NoCounters`], [`Error::TooManyCounters`], [`Error::EventNotAvailable`],
    /// [`Error::Invalid`], or the kernel's error. The kernel's error is [`Error::Refused`] if the
    /// caller lacks a right. After an error nothing has changed.
    pub fn start(&mut self, events: &[Event]) -> Result<(), Error> {
        if let Some(&event) = events.iter().find(|event| event.samples()) {
            return Err(Error::unavailable(event, "it samples, and no signal is given"));
        }
        self.start_all(events, Notification::Signal(0))
    }

    /// Starts to count like [`start`](Self::start). Each overflow of an event that
    /// [samples](Event::every) raises `signal` in this thread.
    ///
    /// At an overflow all counters pause, so that the work of sampling is not counted. The TSC
    /// goes on. [`overflow`](crate::overflow) says how to receive the signal and how to let the
    /// counters go on.
    ///
    /// # Errors
    ///
    /// The errors of [`start`](Self::start). [`Error::EventNotAvailable`] also says that the
    /// provider does not sample: only [`Provider::Paravirt`] does.
    pub fn start_sampling(&mut self, events: &[Event], signal: libc::c_int) -> Result<(), Error> {
        if !events.iter().any(|event| event.samples()) {
            return self.start(events);
        }
        if let Some(paravirt) = self.backend.paravirt() {
            overflow::go_on_by(Some(paravirt.device().as_raw_fd()));
        }
        // A negative signal number becomes a number that is too high, which is as invalid.
        self.start_all(events, Notification::Signal(signal.cast_unsigned()))
    }

    /// Gives the thread a ring with room for at least `room` records, each with at most `callers`
    /// callers. A thread gets at most one ring, and only while it counts nothing.
    ///
    /// The ring's memory cannot be swapped. `RLIMIT_MEMLOCK` bounds the size of all rings of a
    /// user together.
    ///
    /// # Errors
    ///
    /// [`Error::NoRings`] with other providers than [`Provider::Paravirt`],
    /// [`Error::RingTooLarge`], [`Error::Forked`], or the kernel's error: `EEXIST` the thread has a
    /// ring, `EBUSY` it counts, `ENOSPC` the rings of its user are too large.
    pub fn records(&self, room: usize, callers: usize) -> Result<Records, Error> {
        let none = Error::NoRings("only /dev/perfctr has them");
        self.backend.paravirt().ok_or(none)?.records(room, callers)
    }

    /// Starts to count like [`start`](Self::start). The guest's kernel writes a record of each
    /// overflow of an event that [samples](Event::every) into the thread's [ring](Self::records),
    /// and sends no signal.
    ///
    /// The counters do not pause, not even while the ring is full.
    ///
    /// # Errors
    ///
    /// The errors of [`start_sampling`](Self::start_sampling), and [`Error::NoRings`].
    pub fn start_recording(&mut self, events: &[Event]) -> Result<(), Error> {
        if !events.iter().any(|event| event.samples()) {
            return self.start(events);
        }
        self.start_all(events, Notification::Records)
    }

    fn start_all(&mut self, events: &[Event], notification: Notification) -> Result<(), Error> {
        self.overhead.forget();
        match (events.first(), self.description().provider) {
            (Some(&event), Provider::Tsc) => {
                Err(Error::NoCounters { event, tried: self.refusals.clone() })
            }
            _ => self.backend.start(events, notification),
        }
    }

    /// Returns the object that lets this thread's counters go on after an overflow, or `None` with
    /// other providers than [`Provider::Paravirt`].
    ///
    /// It uses the session's descriptor, and so cannot outlive the session:
    ///
    /// ```compile_fail,E0505
    /// let session = perfctr::Session::open().unwrap();
    /// let resumer = session.resumer().unwrap();
    /// drop(session);
    /// resumer.resume();
    /// ```
    pub fn resumer(&self) -> Option<Resumer<'_>> {
        self.backend.paravirt().map(|paravirt| Resumer::new(paravirt.device()))
    }

    /// Stops counting. The counts stay and can be read.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.backend.stop()
    }

    /// Continues to count after [`stop`](Self::stop), from the counts at which the counters
    /// stopped. The TSC may start from 0.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn resume(&mut self) -> Result<(), Error> {
        self.backend.resume()
    }

    /// Reads the TSC and the first `N` counters; all values are of one moment.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyCounters`] if fewer counters are in use, [`Error::Forked`],
    /// [`Error::NotLoaded`], [`Error::Disturbed`], [`Error::Faulted`].
    #[inline(always)]
    pub fn read<const N: usize>(&self) -> Result<Reading<N>, Error> {
        let mut counts = [0; N];
        let Taken { tsc, retries, direct } = self.backend.read(&mut counts)?;
        Ok(Reading { tsc, counts, retries, direct })
    }

    /// Reads the first `N` counters without the TSC; all values are of one moment. This is the
    /// reading that executes the fewest instructions.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    #[inline(always)]
    pub fn counts<const N: usize>(&self) -> Result<Counts<N>, Error> {
        let mut counts = [0; N];
        let Taken { retries, direct, .. } = self.backend.counts(&mut counts)?;
        Ok(Counts { counts, retries, direct })
    }

    /// Reads the first counters without the TSC, as many as `counts` has room for. Returns the
    /// number of discarded attempts.
    #[inline(always)]
    pub(crate) fn counts_alone(&self, counts: &mut [u64]) -> Result<u32, Error> {
        Ok(self.backend.counts(counts)?.retries)
    }

    /// Reads the TSC and the first counters, as many as `counts` has room for. All values are of
    /// one moment. It is for callers that learn the number of events only when they run.
    ///
    /// The result says how the counters were read; its own list of counts is empty.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    #[inline(always)]
    pub fn read_into(&self, counts: &mut [u64]) -> Result<Reading<0>, Error> {
        let Taken { tsc, retries, direct } = self.backend.read(counts)?;
        Ok(Reading { tsc, counts: [], retries, direct })
    }

    /// Counts what the first of two closures executes, as
    /// [`Counting::measure`](crate::Counting::measure) does, for callers that learn the number of
    /// events only when they run. `counts` gets the counts of the first events, as many as it has
    /// room for.
    ///
    /// The second closure does nothing, and is measured to find what the measurement itself
    /// executes. It is called only in the first measurement after a start.
    ///
    /// The result says how the counters were read; its own list of counts is empty.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn measure(
        &self,
        body_and_nothing: [&mut dyn FnMut(); 2],
        counts: &mut [u64],
    ) -> Result<Counts<0>, Error> {
        let around = |body: &mut dyn FnMut(), lists: [&mut [u64]; 2]| self.around(body, lists);
        let (retries, direct) = self.overhead.measure(&around, body_and_nothing, counts)?;
        Ok(Counts { counts: [], retries, direct })
    }

    /// Reads the counters, calls `body`, and reads again. Returns the second reading's retries,
    /// and whether both readings were made without a system call.
    ///
    /// There is one compiled function for every body and every number of counters. So it executes
    /// the same instructions between the two readings, whatever the body is.
    #[inline(never)]
    fn around(
        &self,
        body: &mut dyn FnMut(),
        [before, after]: [&mut [u64]; 2],
    ) -> Result<(u32, bool), Error> {
        let first = self.backend.counts(before)?;
        body();
        let last = self.backend.counts(after)?;
        Ok(of_region(&first, &last))
    }

    /// Returns the page that the guest kernel publishes for this thread. It is meant for
    /// diagnosis.
    ///
    /// It is `None` in a forked child, and with other providers than [`Provider::Paravirt`].
    pub fn thread_page(&self) -> Option<&ThreadPage> {
        self.backend.pages().thread_page()
    }

    /// Returns the page that the hypervisor publishes for vCPU `n`. It is meant for diagnosis.
    ///
    /// It is `None` in a forked child, with other providers than [`Provider::Paravirt`], or if
    /// there is no such vCPU.
    pub fn vcpu_page(&self, n: u32) -> Option<&VcpuPage> {
        self.backend.pages().vcpu_page(n)
    }
}

/// Returns the retries of the second of two readings, and whether both were made without a system
/// call.
fn of_region(first: &Taken, last: &Taken) -> (u32, bool) {
    (last.retries, first.direct && last.direct)
}

impl Drop for Session {
    fn drop(&mut self) {
        // The handler of a signal that is still pending must not let the counters go on.
        if !self.claim.forked() {
            overflow::go_on_by(None);
        }
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

    #[test]
    fn a_difference_is_direct_if_both_of_its_readings_are() {
        for (earlier, later, both) in
            [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
        {
            let reading = |direct| Reading { tsc: 1, counts: [2], retries: 0, direct };
            assert_eq!((reading(later) - reading(earlier)).direct, both, "{earlier} {later}");
            let counts = |direct| Counts { counts: [2], retries: 0, direct };
            assert_eq!((counts(later) - counts(earlier)).direct, both, "{earlier} {later}");
        }
    }

    #[test]
    fn a_region_is_direct_if_it_begins_and_ends_so() {
        for (begins, ends, direct) in
            [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
        {
            let first = Taken { tsc: 1, retries: 3, direct: begins };
            let last = Taken { tsc: 9, retries: 5, direct: ends };
            assert_eq!(of_region(&first, &last), (5, direct), "{begins} {ends}");
        }
    }

    #[test]
    fn a_sum_has_the_retries_of_both() {
        let one = Counts { counts: [1, u64::MAX], retries: 2, direct: true };
        let other = Counts { counts: [10, 3], retries: u32::MAX - 1, direct: false };
        assert_eq!(one.plus(other), Counts { counts: [11, 2], retries: u32::MAX, direct: false });
        assert!(one.plus(one).direct);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn readings_are_written_and_read() {
        let reading = Reading { tsc: 7, counts: [1, u64::MAX], retries: 2, direct: true };
        let json = serde_json::to_string(&reading).unwrap();
        assert_eq!(
            json,
            r#"{"tsc":7,"counts":[1,18446744073709551615],"retries":2,"direct":true}"#
        );
        assert_eq!(serde_json::from_str::<Reading<2>>(&json).unwrap(), reading);
        let error = serde_json::from_str::<Reading<3>>(&json).unwrap_err().to_string();
        assert!(error.starts_with("invalid length 2, expected 3"), "{error}");
        let counts = Counts { counts: [4], retries: 0, direct: false };
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(serde_json::from_str::<Counts<1>>(&json).unwrap(), counts);
    }

    #[test]
    fn a_thread_has_one_session_whoever_provides_it() {
        let session = Session::open_with(Provider::Tsc).unwrap();
        for second in [Session::open(), Session::open_with(Provider::Tsc)] {
            assert!(matches!(second, Err(Error::AlreadyOpen)));
        }
        let elsewhere = std::thread::spawn(|| Session::open_with(Provider::Tsc).is_ok());
        assert!(elsewhere.join().unwrap());
        drop(session);
        assert!(Session::open_with(Provider::Tsc).is_ok());
    }

    #[test]
    fn where_nobody_counts_a_start_says_what_everybody_answered() {
        use crate::provider::refusal::Cause;
        let mut session = Session::open_with(Provider::Tsc).unwrap();
        for (provider, cause, errno) in [
            (Provider::Paravirt, Cause::NoModule, libc::ENOENT),
            (Provider::Native, Cause::Paranoid(3), libc::EACCES),
        ] {
            session.refusals.push(Refusal { provider, cause, errno });
        }
        let error = session.start(&[Event::BRANCHES.user()]).unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, "no counters for branches:u"));
        assert!(lines[1].starts_with("paravirt: the kernel module is not loaded; `modprobe"));
        assert!(lines[2].starts_with("native: kernel.perf_event_paranoid is 3; `sysctl"));
        session.start(&[]).unwrap();
    }
}
