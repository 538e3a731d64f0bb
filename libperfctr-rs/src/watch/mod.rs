// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts and samples of other threads, of processes, programs, CPUs and groups of processes.
//!
//! A [`Watch`] describes which events to count, and in which threads. Opening it gives counts
//! ([`Watched`]) or samples ([`Samples`]). It uses Linux's perf events, for which nothing has to be
//! stopped. In a guest with the kernel module, the module counts these events as exactly as the
//! calling thread's own counters. A read is a system call. A thread that counts only itself reads
//! faster by a [`Session`](crate::Session).

mod machines;
mod ring;
mod samples;
mod totals;
mod turns;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use perf_event_open_sys::bindings as perf;

pub use self::machines::{Counted, CpuMode, MachineSample, MachineSamples};
use self::samples::Fields;
pub use self::samples::{Branch, BranchFlags, Sample, Samples};
pub use self::totals::Totals;
pub use self::turns::{Turns, TurnsForm};
pub use crate::total::Total;

use crate::cpus;
use crate::error::Error;
use crate::event::Event;
use crate::provider::known;
use crate::provider::native::{attributes, explain_open_failure, pid};
use crate::provider::refusal::{Cause, Refusal, Wanted};
use crate::sys::{PerfEvent, WITH_TIMES};

/// A description of the threads to count, of the events, and of the time at which counting starts.
///
/// This example counts a program that the thread starts, from the program's first instruction, and
/// nothing of the thread itself:
///
/// ```no_run
/// use perfctr::Event;
/// use perfctr::watch::Watch;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let watched = Watch::this_thread()
///     .inherit()
///     .from_exec()
///     .count("instructions", Event::INSTRUCTIONS.user())
///     .count("branches", Event::BRANCHES.user())
///     .open()?;
/// std::process::Command::new("true").status()?;
/// let totals = watched.read()?;
/// println!("{} instructions in {:?}", totals["instructions"].count, totals["branches"].enabled);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Watch {
    whose: Whose,
    inherit: bool,
    from_exec: bool,
    together: bool,
    /// Samples that the kernel shall take in a second, in place of periods.
    frequency: Option<u64>,
    fields: Fields,
    events: Vec<(String, Event)>,
}

#[derive(Clone, Debug)]
enum Whose {
    /// The thread's number; 0 stands for the calling thread.
    Thread(u32),
    Process(u32),
    Cpu(u32),
    Cgroup(Arc<File>),
}

/// The place at which an event is opened: the thread or the group's directory, the CPU, and flags.
type Place = (libc::pid_t, libc::c_int, u32);

/// The number that stands for every thread or every CPU.
const ALL: i32 = -1;

impl Watch {
    const fn new(whose: Whose) -> Self {
        let events = Vec::new();
        let fields = Fields { counts: false, callers: false, branches: false, ids: false };
        Self {
            whose,
            inherit: false,
            from_exec: false,
            together: false,
            frequency: None,
            fields,
            events,
        }
    }

    /// Watches the thread that [opens](Self::open) it.
    pub const fn this_thread() -> Self {
        Self::new(Whose::Thread(0))
    }

    /// Watches the thread with this number.
    pub const fn thread(tid: u32) -> Self {
        Self::new(Whose::Thread(tid))
    }

    /// Watches all threads that the process has when the watch is opened.
    pub const fn process(pid: u32) -> Self {
        Self::new(Whose::Process(pid))
    }

    /// Watches everything that executes on a CPU.
    pub const fn cpu(cpu: u32) -> Self {
        Self::new(Whose::Cpu(cpu))
    }

    /// Watches a group of processes on all CPUs. `directory` is its directory in cgroup v2.
    ///
    /// # Errors
    ///
    /// The directory cannot be opened.
    pub fn cgroup(directory: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::new(Whose::Cgroup(Arc::new(File::open(directory)?))))
    }

    /// Also watches all threads and processes that those watched start from now on.
    pub const fn inherit(mut self) -> Self {
        self.inherit = true;
        self
    }

    /// Counts each thread only from the moment when it next executes a program. A process that was
    /// just started may not have executed its first program yet.
    pub const fn from_exec(mut self) -> Self {
        self.from_exec = true;
        self
    }

    /// Counts all events at the same time or none of them, so that their ratios are exact. If
    /// there are not enough counters, the watch is refused. Without this, events take turns.
    pub const fn together(mut self) -> Self {
        self.together = true;
        self
    }

    /// Takes about this many samples in each second in which the event is counted.  The event has
    /// no period: the kernel sets a new one again and again, by the event's recent rate, and each
    /// sample says in [`period`](Sample::period) for how many events it stands.
    pub const fn frequency(mut self, per_second: u64) -> Self {
        self.frequency = Some(per_second);
        self
    }

    /// Gives samples their callers, which are found by frame pointers.
    pub const fn callers(mut self) -> Self {
        self.fields.callers = true;
        self
    }

    /// Gives samples the branches that the processor took last before them, of each mode in which
    /// the event counts. Processors, and hosts of a guest, may record none, or only those of user
    /// mode. Events whose samples have branches of different modes take turns on a CPU.
    pub const fn branches(mut self) -> Self {
        self.fields.branches = true;
        self
    }

    /// Gives each sample the event's count at that moment. Linux does not do that for events that
    /// are [inherited](Self::inherit).
    pub const fn counts(mut self) -> Self {
        self.fields.counts = true;
        self
    }

    /// Counts this event, too, under this name.
    #[must_use]
    pub fn count(mut self, name: impl Into<String>, event: Event) -> Self {
        self.events.push((name.into(), event));
        self
    }

    /// Starts to count.
    ///
    /// # Errors
    ///
    /// [`Error::EventNotAvailable`], or [`Error::Kernel`]: `ESRCH` if there is no such thread,
    /// `EACCES` or `EPERM` if the caller may not count it.
    pub fn open(&self) -> Result<Watched, Error> {
        let events: Vec<Event> = self.events.iter().map(|(_, event)| *event).collect();
        if let Some(&event) = events.iter().find(|event| event.samples()) {
            return Err(Error::unavailable(event, "it samples, which is not counting"));
        }
        self.check(&events)?;
        // If a group has hardware events, they determine where the group is opened.
        let anchored = events.iter().find(|event| !event.is_software()).or(events.first());
        let anchors = anchored.map_or(Ok(Vec::new()), |event| self.anchors(event))?;
        let parts = self.at(self.places()?, |place| {
            let mut part = Vec::new();
            for event in &events {
                part.push(self.open_one(event, place, part.first())?);
            }
            Ok(part)
        })?;
        let names = self.events.iter().map(|(name, _)| name.clone()).collect();
        Ok(Watched { names, parts, together: self.together, _anchors: anchors })
    }

    /// Starts to sample by an event that has a [period](Event::every), or has none if a
    /// [frequency](Self::frequency) was chosen. The events that were given to
    /// [`count`](Self::count) are not counted.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn sample(&self, event: Event) -> Result<Samples, Error> {
        self.check(&[event])?;
        if self.inherit && self.fields.counts {
            return Err(Error::unavailable(event, "its samples have no counts if it is inherited"));
        }
        let mut attributes = Samples::attributes(&event, self.frequency, self.fields)?;
        self.when(&mut attributes);
        let mut places = self.places()?;
        if self.inherit {
            // A ring that inherited events share belongs to one CPU.
            let cpus = online()?;
            let on = |&(whose, _, flags): &Place| {
                cpus.iter().map(move |&cpu| Ok((whose, number(cpu)?, flags)))
            };
            places = places.iter().flat_map(on).collect::<Result<_, Error>>()?;
        }
        let open = |place| {
            let (whose, cpu, flags) = place;
            PerfEvent::open_where((whose, cpu), &mut attributes, None, flags)
                .map(|opened| (cpu, opened))
                .map_err(|error| self.explain_sampling(&event, place, error))
        };
        let anchors = self.anchors(&event)?;
        Samples::new(self.at(places, open)?, anchors, self.fields)
    }

    fn check(&self, events: &[Event]) -> Result<(), Error> {
        known::check(events)?;
        match (&self.whose, events.first()) {
            (Whose::Cpu(_) | Whose::Cgroup(_), Some(&event)) if self.from_exec || self.inherit => {
                let reason = "neither CPUs nor groups start programs; threads and processes do";
                Err(Error::unavailable(event, reason))
            }
            _ => Ok(()),
        }
    }

    /// Opens the events at each place. If there are several threads, some may end meanwhile.
    fn at<T>(
        &self,
        places: Vec<Place>,
        mut open: impl FnMut(Place) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let (mut opened, mut absent) = (Vec::new(), None);
        for place in places {
            match open(place) {
                Ok(one) => opened.push(one),
                Err(error) if matches!(self.whose, Whose::Process(_)) && is_absence(&error) => {
                    absent = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match absent {
            Some(error) if opened.is_empty() => Err(error),
            _ => Ok(opened),
        }
    }

    /// Opens one further event for threads whose children begin to count when they execute a
    /// program. It never counts, and children do not inherit it. So a thread and its child never
    /// have the same events. If they had the same ones, the kernel would exchange the two sets at a
    /// switch instead of switching them. A child that executes a program would then start its
    /// parent's events. Later children inherit copies of those, and their copies would never start.
    fn anchors(&self, event: &Event) -> Result<Vec<PerfEvent>, Error> {
        if !(self.inherit && self.from_exec) {
            return Ok(Vec::new());
        }
        let mut attributes = attributes(event)?;
        attributes.set_disabled(1);
        self.at(self.places()?, |(whose, cpu, flags)| {
            PerfEvent::open_where((whose, cpu), &mut attributes, None, flags)
                .map_err(|error| explain_open_failure(event, self.wanted(event), error))
        })
    }

    /// Returns the error that explains why this event does not sample at a place. Linux refuses
    /// branches in the same way as an event that cannot sample, and a frequency that is too high in
    /// the same way as an event that it does not know.
    fn explain_sampling(&self, event: &Event, place: Place, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::Unsupported && self.fields.branches {
            let opens = |event: &Event, fields| self.can_sample(event, fields, place);
            if let Some(cause) = self.why_no_branches(event, opens) {
                return Error::Refused(Refusal::of_branches(&error, cause));
            }
        }
        let is_too_often = |frequency| samples_at_most().is_some_and(|most| most < frequency);
        if error.kind() == io::ErrorKind::InvalidInput && self.frequency.is_some_and(is_too_often) {
            let reason = "kernel.perf_event_max_sample_rate allows fewer samples in a second";
            return Error::unavailable(*event, reason);
        }
        explain_open_failure(event, self.wanted(event), error)
    }

    /// Returns why an event cannot have branches in its samples, if it samples without them.
    /// `opens` says whether an event can sample with certain fields.
    fn why_no_branches(
        &self,
        event: &Event,
        opens: impl Fn(&Event, Fields) -> bool,
    ) -> Option<Cause> {
        let without = Fields { branches: false, ..self.fields };
        if *event != event.user() && opens(&event.user(), self.fields) {
            return Some(Cause::KernelBranches);
        }
        opens(event, without).then_some(Cause::NoBranches)
    }

    /// Returns whether an event can sample with these fields at a place.
    fn can_sample(&self, event: &Event, fields: Fields, (whose, cpu, flags): Place) -> bool {
        let attributes = Samples::attributes(event, self.frequency, fields);
        attributes.is_ok_and(|mut attributes| {
            self.when(&mut attributes);
            PerfEvent::open_where((whose, cpu), &mut attributes, None, flags).is_ok()
        })
    }

    fn wanted(&self, event: &Event) -> Wanted {
        match self.whose {
            Whose::Thread(0) => Wanted::own(event),
            Whose::Thread(_) | Whose::Process(_) => Wanted::others(event),
            Whose::Cpu(_) | Whose::Cgroup(_) => Wanted::Cpu,
        }
    }

    fn places(&self) -> Result<Vec<Place>, Error> {
        Ok(match &self.whose {
            Whose::Thread(tid) => vec![(pid(*tid)?, ALL, 0)],
            Whose::Process(process) => threads(*process)
                .map_err(Error::kernel("find a process's threads"))?
                .into_iter()
                .map(|tid| Ok((pid(tid)?, ALL, 0)))
                .collect::<Result<_, Error>>()?,
            Whose::Cpu(cpu) => vec![(ALL, number(*cpu)?, 0)],
            Whose::Cgroup(directory) => online()?
                .into_iter()
                .map(|cpu| Ok((directory.as_raw_fd(), number(cpu)?, perf::PERF_FLAG_PID_CGROUP)))
                .collect::<Result<_, Error>>()?,
        })
    }

    fn when(&self, attributes: &mut perf::perf_event_attr) {
        attributes.set_inherit(self.inherit.into());
        attributes.set_disabled(self.from_exec.into());
        attributes.set_enable_on_exec(self.from_exec.into());
    }

    /// Opens an event. If it has to count together with `first`, it joins the group of `first`.
    fn open_one(
        &self,
        event: &Event,
        (whose, cpu, flags): Place,
        first: Option<&PerfEvent>,
    ) -> Result<PerfEvent, Error> {
        let mut attributes = attributes(event)?;
        attributes.read_format = WITH_TIMES;
        let leader = first.filter(|_| self.together);
        if self.together {
            attributes.read_format |= u64::from(perf::PERF_FORMAT_GROUP);
        }
        self.when(&mut attributes);
        if leader.is_some() {
            // The event counts whenever the leader of its group counts.
            attributes.set_disabled(0);
            attributes.set_enable_on_exec(0);
        }
        let mut open = |leader| PerfEvent::open_where((whose, cpu), &mut attributes, leader, flags);
        open(leader).map_err(|error| match leader {
            Some(_) if error.raw_os_error() == Some(libc::EINVAL) && open(None).is_ok() => {
                Error::unavailable(*event, "no counter is left beside those that count with it")
            }
            _ => explain_open_failure(event, self.wanted(event), error),
        })
    }
}

/// The running counts of a [`Watch`]. Dropping it ends the counting.
#[derive(Debug)]
pub struct Watched {
    names: Arc<[String]>,
    /// All events, once for each thread or CPU that was there.
    parts: Vec<Vec<PerfEvent>>,
    together: bool,
    _anchors: Vec<PerfEvent>,
}

impl Watched {
    /// Reads what was counted until now, summed over all threads and CPUs.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn read(&self) -> Result<Totals, Error> {
        let mut values = vec![Total::default(); self.names.len()];
        for part in &self.parts {
            let read = if self.together { together(part) } else { each(part) };
            let read = read.map_err(Error::kernel("read perf events"))?;
            values = values.into_iter().zip(read).map(|(sum, one)| sum + one).collect();
        }
        Ok(Totals { names: self.names.clone(), values })
    }

    /// Stops counting until [`go_on`](Self::go_on).
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn pause(&self) -> Result<(), Error> {
        self.parts
            .iter()
            .flatten()
            .try_for_each(PerfEvent::disable)
            .map_err(Error::kernel("disable perf events"))
    }

    /// Counts again after a [pause](Self::pause).
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn go_on(&self) -> Result<(), Error> {
        // The leader of a group comes last, because the other events start together with it.
        self.parts
            .iter()
            .flat_map(|part| part.iter().rev())
            .try_for_each(PerfEvent::enable)
            .map_err(Error::kernel("enable perf events"))
    }
}

/// Reads events that take turns.
fn each(part: &[PerfEvent]) -> io::Result<Vec<Total>> {
    part.iter().map(PerfEvent::counted).collect()
}

/// Reads a group of events.
fn together(part: &[PerfEvent]) -> io::Result<Vec<Total>> {
    let Some(first) = part.first() else { return Ok(Vec::new()) };
    // The words are: number of events, both times, counts.
    let mut words = vec![0; 3 + part.len()];
    if first.read(&mut words)? != words.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(words[3..].iter().map(|&count| Total::of_ns(count, words[1], words[2])).collect())
}

/// Returns the highest frequency that the kernel allows now: it lowers the setting if samples take
/// too long.
pub fn samples_at_most() -> Option<u64> {
    fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").ok()?.trim().parse().ok()
}

/// Returns whether the error says that the thread has ended.
fn is_absence(error: &Error) -> bool {
    error.errno() == Some(libc::ESRCH)
}

/// Lists a process's threads.
fn threads(process: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).map_err(|error| {
        let absent = error.kind() == io::ErrorKind::NotFound;
        if absent { io::Error::from_raw_os_error(libc::ESRCH) } else { error }
    })?;
    let number = |entry: io::Result<fs::DirEntry>| {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        number.ok_or_else(|| io::ErrorKind::InvalidData.into())
    };
    entries.map(number).collect()
}

/// Lists the CPUs that are online.
fn online() -> Result<Vec<u32>, Error> {
    cpus::online().map_err(Error::kernel("find the CPUs"))
}

fn number(cpu: u32) -> Result<libc::c_int, Error> {
    let absent = |_| Error::kernel("open a perf event")(io::Error::from_raw_os_error(libc::EINVAL));
    libc::c_int::try_from(cpu).map_err(absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Event = Event::INSTRUCTIONS.user();

    #[test]
    fn this_process_has_this_thread() {
        let here = std::process::id();
        assert!(threads(here).unwrap().contains(&here));
        let absent = Watch::process(u32::MAX).count("none", EVENT).open().unwrap_err();
        assert!(is_absence(&absent), "{absent}");
    }

    #[test]
    fn threads_of_a_process_may_end_meanwhile_but_not_all_of_them() {
        let opened = |watch: Watch, numbers: [Option<libc::c_int>; 2]| {
            let places = (0..2).map(|n| (n, ALL, 0)).collect();
            let open = |(n, ..): Place| match numbers[n as usize] {
                Some(errno) => Err(Error::kernel("open")(io::Error::from_raw_os_error(errno))),
                None => Ok(n),
            };
            watch.at(places, open).map_err(|error| error.errno())
        };
        let (process, absent) = (|| Watch::process(7), Some(libc::ESRCH));
        assert_eq!(opened(process(), [None, None]), Ok(vec![0, 1]));
        assert_eq!(opened(process(), [absent, None]), Ok(vec![1]));
        assert_eq!(opened(process(), [None, absent]), Ok(vec![0]));
        assert_eq!(opened(process(), [absent, absent]), Err(absent));
        let other = Some(libc::EACCES);
        assert_eq!(opened(process(), [None, other]), Err(other));
        assert_eq!(opened(Watch::this_thread(), [None, absent]), Err(absent), "it is one thread");
    }

    #[test]
    fn what_cannot_be_is_refused_before_the_kernel_is_asked() {
        let message = |error: Error| error.to_string();
        let sampling = Watch::this_thread().count("x", EVENT.every(1_000)).open();
        assert!(message(sampling.unwrap_err()).contains("which is not counting"));
        // These watches would never count anything.
        for whose in [Watch::cpu(0), Watch::cgroup("/").unwrap()] {
            for watch in [whose.clone().from_exec(), whose.inherit()] {
                let refused = message(watch.clone().count("x", EVENT).open().unwrap_err());
                assert!(refused.contains("neither CPUs nor groups start programs"), "{watch:?}");
                let refused = message(watch.sample(EVENT.every(1_000)).unwrap_err());
                assert!(refused.contains("neither CPUs nor groups start programs"), "{watch:?}");
            }
        }
        let counting = Watch::this_thread().sample(EVENT);
        assert!(message(counting.unwrap_err()).contains("no period is given"));
        let unknown = Watch::this_thread().count("x", Event::raw(0x0151)).open();
        assert!(message(unknown.unwrap_err()).contains("not known to be right"));
    }

    #[test]
    fn an_event_without_branches_is_told_from_one_that_cannot_sample() {
        let watch = Watch::this_thread().branches();
        let both = Event::INSTRUCTIONS;
        let why =
            |event: Event, opens: fn(&Event, Fields) -> bool| watch.why_no_branches(&event, opens);
        let of_user = |event: &Event, fields: Fields| !fields.branches || *event == event.user();
        assert_eq!(why(both, of_user), Some(Cause::KernelBranches));
        assert_eq!(why(both, |_, fields| !fields.branches), Some(Cause::NoBranches));
        assert_eq!(why(EVENT, |_, fields| !fields.branches), Some(Cause::NoBranches));
        assert_eq!([both, EVENT].map(|event| why(event, |_, _| false)), [None; 2]);
    }

    #[test]
    fn nothing_counted_is_an_empty_answer() {
        let totals = Watch::this_thread().open().unwrap().read().unwrap();
        assert_eq!(totals.values(), []);
    }
}
