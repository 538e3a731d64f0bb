// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counters of Linux's own perf events, for machines that are not virtual.
//!
//! The events form a group whose leader counts only time. This provider reads them through each
//! event's page (`struct perf_event_mmap_page` in Linux's `perf_event.h` says how). It compares the
//! sequence words of all pages before and after, so that the counts are of one moment. The group is
//! pinned: it counts all the time or not at all.

use std::io::{Error as IoError, ErrorKind};

use perf_event_open_sys::bindings;
use shared_abi::arch::{EVNTSEL_OS, EVNTSEL_RINGS, EVNTSEL_USR};
use shared_abi::limits::{MAX_COUNTERS, READ_ATTEMPTS_MAX};

use crate::error::Error;
use crate::event::{Event, What};
use crate::map::PerfPage;
use crate::rdpmc::{Hardware, survived};
use crate::sys::{Generation, PerfEvent};

use super::known;
use super::refusal::{Refusal, Wanted};
use super::types::{Description, Provider, Taken, cpu_signature};

/// The kernel converts the time-stamp counter to this unit, ns.
const NS_KHZ: u32 = 1_000_000;

/// An event and its page.
#[derive(Debug)]
struct Counting {
    event: PerfEvent,
    page: PerfPage,
}

/// The calling thread's group of events.
#[derive(Debug)]
pub(crate) struct Native {
    /// Counts the time that the thread executes.
    leader: Counting,
    events: Vec<Counting>,
    /// Whether the events are enabled. If they are not, the time in a page still advances, and only
    /// the kernel knows the right time.
    running: bool,
    description: Description,
    generation: Generation,
}

impl Native {
    pub(crate) fn open() -> Result<Self, Error> {
        Generation::watch().map_err(Error::kernel("watch for forks"))?;
        let refused = |error| Error::Refused(Refusal::at_perf(&error));
        // Linux counts time without a PMU as well, so a PMU is assumed only if it can count
        // instructions.
        let mut instructions = attributes(&Event::INSTRUCTIONS.user())?;
        PerfEvent::open(&mut instructions, None).map_err(refused)?;
        let leader = open_leader().map_err(refused)?;
        let description = Description {
            provider: Provider::Native,
            caps: None,
            vcpus: 0,
            cpu_signature: cpu_signature(),
            tsc_khz: NS_KHZ,
        };
        let generation = Generation::current();
        Ok(Self { leader, events: Vec::new(), running: false, description, generation })
    }

    pub(crate) fn description(&self) -> &Description {
        &self.description
    }

    pub(crate) fn start(&mut self, events: &[Event]) -> Result<(), Error> {
        self.check_forked()?;
        if events.len() > MAX_COUNTERS {
            let available = MAX_COUNTERS;
            return Err(Error::TooManyCounters { asked: events.len(), available });
        }
        let leader = open_leader().map_err(Error::kernel("open a perf event"))?;
        let open = |event: &Event| {
            let counting = Counting::open(&mut attributes(event)?, Some(&leader.event));
            counting.map_err(|error| explain_open_failure(event, Wanted::own(event), error))
        };
        let events = events.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        // The earlier group ends here, because its last descriptor is closed.
        (self.leader, self.events) = (leader, events);
        self.resume()
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        self.check_forked()?;
        self.leader.event.disable_group().map_err(Error::kernel("disable perf events"))?;
        self.running = false;
        Ok(())
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        self.check_forked()?;
        self.leader.event.enable_group().map_err(Error::kernel("enable perf events"))?;
        self.running = true;
        Ok(())
    }

    fn check_forked(&self) -> Result<(), Error> {
        if self.generation == Generation::current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Reads the counts. It is not inlined, because it would lengthen the code of the provider
    /// with the short reads.
    #[inline(never)]
    pub(crate) fn read(&self, counts: &mut [u64]) -> Result<Taken, Error> {
        self.check_forked()?;
        let available = self.events.len();
        let Some(events) = self.events.get(..counts.len()) else {
            return Err(Error::TooManyCounters { asked: counts.len(), available });
        };
        if !self.running {
            return self.read_otherwise(counts);
        }
        for retries in 0..READ_ATTEMPTS_MAX {
            // Sequence words only grow, so their sum changes if any of them does.
            let stamp = self.stamp(events);
            let ns = self.leader.page.enabled_ns(&Hardware);
            let mut direct = ns.is_some();
            for (count, counting) in counts.iter_mut().zip(events) {
                match counting.page.count(&Hardware) {
                    Some(value) => *count = value,
                    None => direct = false,
                }
            }
            if self.stamp(events) == stamp && stamp & 1 == 0 {
                return match ns {
                    Some(ns) if direct => Ok(Taken { tsc: ns, retries, direct }),
                    _ => self.read_otherwise(counts),
                };
            }
        }
        Err(Error::Disturbed)
    }

    /// Returns a number that changes whenever a page has changed or RDPMC has faulted.
    ///
    /// If an administrator forbids RDPMC, the pages do not change; only the fault shows it.
    #[inline(always)]
    fn stamp(&self, events: &[Counting]) -> u64 {
        let words = events.iter().map(|counting| counting.page.lock());
        words.fold(self.leader.page.lock() + 2 * survived(), u64::wrapping_add)
    }

    /// Asks the kernel for the counts.
    #[cold]
    #[inline(never)]
    fn read_otherwise(&self, counts: &mut [u64]) -> Result<Taken, Error> {
        // Number of events, time enabled, the leader's count, the events' counts.
        let mut words = [0; 3 + MAX_COUNTERS];
        let read = self.leader.event.read(&mut words).map_err(Error::kernel("read perf events"))?;
        if read != 3 + self.events.len() {
            // This is how perf reports a pinned group that does not fit the counters.
            return Err(Error::kernel("count all events at once")(ErrorKind::ResourceBusy.into()));
        }
        counts.copy_from_slice(&words[3..3 + counts.len()]);
        Ok(Taken { tsc: words[1], retries: 0, direct: false })
    }
}

impl Counting {
    fn open(
        attributes: &mut bindings::perf_event_attr,
        leader: Option<&PerfEvent>,
    ) -> Result<Self, IoError> {
        let event = PerfEvent::open(attributes, leader)?;
        let page = PerfPage::new(&event)?;
        Ok(Self { event, page })
    }
}

/// Opens an event of thread `tid` that samples.
///
/// [`PerfEvent::go_on`] starts it. At each overflow it stops counting and the thread gets
/// `signal`; `go_on` lets it count again.
///
/// # Errors
///
/// [`Error::EventNotAvailable`], or the kernel's error.
pub fn of_thread(event: &Event, tid: u32, signal: libc::c_int) -> Result<PerfEvent, Error> {
    known::check(std::slice::from_ref(event))?;
    if !event.samples() {
        return Err(Error::unavailable(*event, "no period is given"));
    }
    let mut attributes = attributes(event)?;
    attributes.__bindgen_anon_1.sample_period = event.period;
    PerfEvent::open_to_sample(pid(tid)?, &mut attributes, signal)
        .map_err(|error| explain_open_failure(event, Wanted::others(event), error))
}

pub(crate) fn pid(number: u32) -> Result<libc::pid_t, Error> {
    let absent = |_| Error::kernel("open a perf event")(IoError::from_raw_os_error(libc::ESRCH));
    libc::pid_t::try_from(number).map_err(absent)
}

/// Returns the error that explains why this event could not be opened.
pub(crate) fn explain_open_failure(event: &Event, wanted: Wanted, error: IoError) -> Error {
    match error.kind() {
        ErrorKind::NotFound if !has_pmu() => Error::Refused(Refusal::at_perf(&error)),
        ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::Unsupported => {
            Error::unavailable(*event, "the kernel's PMU driver does not know it")
        }
        ErrorKind::PermissionDenied => Error::Refused(Refusal::of_denial(&error, wanted)),
        _ => Error::kernel("open a perf event")(error),
    }
}

/// Returns whether the kernel counts instructions, as it does with every PMU.
fn has_pmu() -> bool {
    let instructions = attributes(&Event::INSTRUCTIONS.user());
    let opened = instructions.map(|mut attributes| PerfEvent::open(&mut attributes, None));
    opened.is_ok_and(|opened| opened.is_ok())
}

impl Wanted {
    /// Returns the purpose of an event that is to count the caller's own thread.
    pub(crate) fn own(event: &Event) -> Self {
        Self::Own { kernel: event.rings & EVNTSEL_OS != 0 }
    }

    /// Returns the purpose of an event that is to count another thread.
    pub(crate) fn others(event: &Event) -> Self {
        Self::Others { kernel: event.rings & EVNTSEL_OS != 0 }
    }
}

fn open_leader() -> Result<Counting, IoError> {
    let mut attributes = bindings::perf_event_attr {
        type_: bindings::PERF_TYPE_SOFTWARE,
        size: size_of::<bindings::perf_event_attr>() as u32,
        config: u64::from(bindings::PERF_COUNT_SW_DUMMY),
        read_format: u64::from(
            bindings::PERF_FORMAT_GROUP | bindings::PERF_FORMAT_TOTAL_TIME_ENABLED,
        ),
        ..Default::default()
    };
    attributes.set_disabled(1);
    attributes.set_pinned(1);
    attributes.set_exclude_kernel(1);
    Counting::open(&mut attributes, None)
}

/// Returns `type` and `config` of the event in Linux's `perf_event_attr`.
pub fn perf_numbers(event: &Event) -> (u32, u64) {
    match event.what {
        What::Generic(generic) => (bindings::PERF_TYPE_HARDWARE, generic.perf()),
        What::Raw(select) => (bindings::PERF_TYPE_RAW, select),
        What::Software(number) => (bindings::PERF_TYPE_SOFTWARE, number.into()),
    }
}

pub(crate) fn attributes(event: &Event) -> Result<bindings::perf_event_attr, Error> {
    let (type_, config) = perf_numbers(event);
    if event.slot.is_some() {
        return Err(Error::unavailable(*event, "the kernel chooses the counters"));
    }
    let mut attributes = bindings::perf_event_attr {
        type_,
        size: size_of::<bindings::perf_event_attr>() as u32,
        config,
        ..Default::default()
    };
    attributes.set_exclude_user(u64::from(event.rings & EVNTSEL_RINGS == EVNTSEL_OS));
    attributes.set_exclude_kernel(u64::from(event.rings & EVNTSEL_RINGS == EVNTSEL_USR));
    attributes.set_exclude_hv(1);
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_and_placement_are_the_kernels_words() {
        let user = attributes(&Event::INSTRUCTIONS.user()).unwrap();
        assert_eq!((user.exclude_user(), user.exclude_kernel()), (0, 1));
        let kernel = attributes(&Event::raw(0xc5).kernel()).unwrap();
        assert_eq!((kernel.exclude_user(), kernel.exclude_kernel(), kernel.config), (1, 0, 0xc5));
        let both = attributes(&Event::CYCLES).unwrap();
        assert_eq!((both.exclude_user(), both.exclude_kernel()), (0, 0));
        let events = [Event::CYCLES, Event::INSTRUCTIONS, Event::raw(0xc5), Event::PAGE_FAULTS];
        let numbers = [(0, 0), (0, 1), (4, 0xc5), (1, 2)];
        assert_eq!(events.map(|event| perf_numbers(&event)), numbers);
        let placed = Event::CYCLES.on(shared_abi::PhysSlot::general(0).unwrap());
        assert!(matches!(attributes(&placed), Err(Error::EventNotAvailable { .. })));
    }
}
