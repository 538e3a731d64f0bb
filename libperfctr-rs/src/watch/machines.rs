// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples of everything that the CPUs of a KVM host execute, its virtual machines included.
//!
//! The time at which a counter's interrupt arrives does not say exactly in which mode the counter
//! has overflowed: the processor may have left the guest meanwhile, or entered it. So each mode has
//! an event of its own, which the processor counts only there.

use std::collections::HashMap;
use std::time::Duration;

use perf_event_open_sys::bindings as perf;
use shared_abi::arch::{EVNTSEL_OS, EVNTSEL_USR, is_kernels_address};

use super::ring::Ring;
use super::samples::{Fields, Found, Pause, Read, periods};
use super::{ALL, Samples, number, online};
use crate::error::Error;
use crate::event::Event;
use crate::provider::known;
use crate::provider::native::explain_open_failure;
use crate::provider::refusal::Wanted;
use crate::sys::{PerfEvent, WITH_TIMES};
use crate::total::Total;

/// The mode in which a CPU of a host executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(
    clippy::exhaustive_enums,
    reason = "a processor has two levels, inside and outside guests"
)]
pub enum CpuMode {
    /// The host's kernel.
    HostKernel,
    /// A program of the host.
    HostUser,
    /// The kernel of a virtual machine.
    GuestKernel,
    /// A program of a virtual machine.
    GuestUser,
}

impl CpuMode {
    const ALL: [Self; 4] = [Self::HostKernel, Self::HostUser, Self::GuestKernel, Self::GuestUser];

    /// Returns whether this is the mode of a virtual machine.
    pub const fn is_guests(self) -> bool {
        matches!(self, Self::GuestKernel | Self::GuestUser)
    }

    /// Returns whether this is the mode of a kernel.
    pub const fn is_kernels(self) -> bool {
        matches!(self, Self::HostKernel | Self::GuestKernel)
    }

    /// Returns the mode of which a record with these flags is.
    fn of_misc(misc: u16) -> Option<Self> {
        match u32::from(misc) & perf::PERF_RECORD_MISC_CPUMODE_MASK {
            perf::PERF_RECORD_MISC_KERNEL => Some(Self::HostKernel),
            perf::PERF_RECORD_MISC_USER => Some(Self::HostUser),
            perf::PERF_RECORD_MISC_GUEST_KERNEL => Some(Self::GuestKernel),
            perf::PERF_RECORD_MISC_GUEST_USER => Some(Self::GuestUser),
            _ => None,
        }
    }

    /// Returns whether an interrupt at this address came in this mode. The kernel says that it came
    /// in the mode `arrived`.
    ///
    /// The KVM of Linux 6.1 tells perf the mode in which the virtual CPU was when it was last
    /// preempted, and not its present one. So the address decides. Only a kernel that is where
    /// programs should be depends on what KVM says.
    fn is_at(self, arrived: Self, ip: u64) -> bool {
        let is_kernels = is_kernels_address(ip);
        match self {
            Self::HostKernel | Self::HostUser => self == arrived,
            Self::GuestKernel => arrived.is_guests() && (is_kernels || arrived == self),
            Self::GuestUser => arrived.is_guests() && !is_kernels,
        }
    }

    /// Returns whether an event of these rings counts in this mode.
    const fn is_counted(self, rings: u64) -> bool {
        rings & (if self.is_kernels() { EVNTSEL_OS } else { EVNTSEL_USR }) != 0
    }

    /// Makes an event count only in this mode.
    fn restrict(self, attributes: &mut perf::perf_event_attr) {
        attributes.set_exclude_kernel((!self.is_kernels()).into());
        attributes.set_exclude_user(self.is_kernels().into());
        attributes.set_exclude_host(self.is_guests().into());
        attributes.set_exclude_guest((!self.is_guests()).into());
    }
}

/// One sample of a CPU of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineSample {
    /// The mode in which the event has occurred for which the sample was taken.
    pub mode: CpuMode,
    /// The address of the next instruction in that mode, or `None` if the CPU had left the mode
    /// before the counter's interrupt arrived.
    pub ip: Option<u64>,
    /// The mode in which the counter's interrupt arrived, or `None` if the kernel does not say.
    pub arrived: Option<CpuMode>,
    /// The number of the host's process. It is 0 if the CPU had nothing to do.
    pub pid: u32,
    /// The number of the host's thread. In a virtual machine this is the one that executes the
    /// virtual CPU.
    pub tid: u32,
    /// The time by CLOCK_MONOTONIC_RAW. Unit: ns.
    pub time: u64,
    /// The CPU of the host.
    pub cpu: u32,
    /// The number of events for which the sample stands.
    pub period: u64,
}

impl MachineSample {
    /// Makes a sample of what was found, whose event counts in the mode `counted`.
    fn new(found: &Found, counted: CpuMode) -> Self {
        let sample = &found.sample;
        let arrived = CpuMode::of_misc(found.misc);
        let is_there = arrived.is_some_and(|arrived| counted.is_at(arrived, sample.ip));
        Self {
            mode: counted,
            ip: is_there.then_some(sample.ip),
            arrived,
            pid: sample.pid,
            tid: sample.tid,
            time: sample.time,
            cpu: sample.cpu,
            period: sample.period,
        }
    }

    /// Returns how many periods of this length have ended at the sample, as
    /// [`Sample::periods`](super::Sample::periods) does.
    pub fn periods(&self, period: u64) -> u64 {
        periods(self.period, period)
    }

    /// Makes a sample at this address, for tests of what reads samples.
    pub const fn at(mode: CpuMode, ip: Option<u64>, [pid, tid]: [u32; 2], time: u64) -> Self {
        let arrived = if ip.is_some() { Some(mode) } else { None };
        Self { mode, ip, arrived, pid, tid, time, cpu: 0, period: 1 }
    }
}

/// How often the sampled event has occurred on a CPU in a mode, and how many samples there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// The CPU of the host.
    pub cpu: u32,
    /// The mode.
    pub mode: CpuMode,
    /// The count, and for how long it was counted. If others have used the counter for a part of
    /// the time, or the kernel has stopped the event, there are no samples of that part.
    pub total: Total,
    /// The samples that were taken of this mode on this CPU.
    pub samples: u64,
}

impl Counted {
    /// Makes such a number.
    pub const fn new(cpu: u32, mode: CpuMode, total: Total, samples: u64) -> Self {
        Self { cpu, mode, total, samples }
    }

    /// Returns how many samples of a period each there should be beside those that there are. If
    /// the event was counted for a part of the time only, this is an estimate.
    pub fn missing(&self, period: u64) -> u64 {
        let all = self.total.scaled().unwrap_or(0) / period.max(1);
        all.saturating_sub(self.samples)
    }
}

/// The samples of a host's CPUs, which the kernel writes into rings.
#[derive(Debug)]
pub struct MachineSamples {
    cpus: Vec<CpuEvents>,
    period: u64,
    read: Read,
}

/// A CPU's ring, and its events.
#[derive(Debug)]
struct CpuEvents {
    cpu: u32,
    ring: Ring,
    events: Vec<ModeEvent>,
    /// The index of each event, by the number that the kernel has given it.
    indices: HashMap<u64, usize>,
}

/// The event that counts on a CPU in a mode.
#[derive(Debug)]
struct ModeEvent {
    mode: CpuMode,
    event: PerfEvent,
    samples: u64,
    pauses: Pauses,
}

/// For how long the kernel has stopped an event because it had too many samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pauses {
    /// When the last pause has begun, if it has not ended.
    since: Option<u64>,
    /// Those that have ended. Unit: ns.
    sum: u64,
}

impl Pauses {
    fn add(&mut self, pause: Pause) {
        match (pause.begins, self.since) {
            (true, None) => self.since = Some(pause.time),
            (false, Some(since)) => {
                self.sum = self.sum.saturating_add(pause.time.saturating_sub(since));
                self.since = None;
            }
            // One of the records was lost.
            _ => {}
        }
    }

    /// Leaves the pauses out of the time in which the event has counted.
    fn leave_out(&self, total: Total) -> Total {
        let running = total.running.saturating_sub(Duration::from_nanos(self.sum));
        Total { running, ..total }
    }
}

const FIELDS: Fields = Fields { counts: false, callers: false, branches: false, ids: true };
const BUSY: &str = "all counters are in use (EBUSY): while a virtual machine counts with KVM's \
                    driver, the host's perf has none; `perfctr domains list` shows which machines \
                    may count, and `perfctr domains forbid` gives the counters back at once";
const SOFTWARE: &str = "the kernel counts it, and not the processor, which executes the guests";
const NO_CPU: &str = "one of the physical CPUs that were named does not exist or is not online";
const MAPPING: &str = "map a perf event's ring, of which kernel.perf_event_mlock_kb and `ulimit \
                       -l` bound the size";

impl MachineSamples {
    /// Begins to sample all CPUs that are online, or these, by an event that has a
    /// [period](Event::every). Each mode of a CPU in which the event counts has a sample for each
    /// period.
    ///
    /// # Errors
    ///
    /// [`Error::NotSampled`]: all counters are in use, or a CPU does not exist. Those of
    /// [`Watch::sample`](super::Watch::sample).
    pub fn start(event: Event, cpus: Option<&[u32]>) -> Result<Self, Error> {
        known::check(&[event])?;
        if event.is_software() {
            return Err(Error::unavailable(event, SOFTWARE));
        }
        let online = online()?;
        let cpus = cpus.unwrap_or(&online);
        if cpus.iter().any(|cpu| !online.contains(cpu)) {
            return Err(Error::NotSampled(NO_CPU));
        }
        let cpus =
            cpus.iter().map(|&cpu| CpuEvents::open(cpu, event)).collect::<Result<Vec<_>, _>>()?;
        let started = Self { cpus, period: event.period, read: Read::default() };
        let mut events = started.cpus.iter().flat_map(|cpu_events| &cpu_events.events);
        events
            .try_for_each(|one| one.event.enable())
            .map_err(Error::kernel("enable perf events"))?;
        Ok(started)
    }

    /// Iterates over the CPUs that are sampled.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        self.cpus.iter().map(|cpu_events| cpu_events.cpu)
    }

    /// Takes the samples that there are, those of each CPU in their order.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if a record of the kernel's breaks the rules of its format.
    pub fn take(&mut self) -> Result<Vec<MachineSample>, Error> {
        let mut taken = Vec::new();
        for cpu_events in &mut self.cpus {
            let bytes = cpu_events.ring.drain();
            let records = self.read.records(&bytes, FIELDS);
            records.ok_or(Error::Malformed("record of a perf event"))?;
            for pause in self.read.pauses.drain(..) {
                let index = cpu_events.indices.get(&pause.id).copied();
                if let Some(event) = index.and_then(|index| cpu_events.events.get_mut(index)) {
                    event.pauses.add(pause);
                }
            }
            for found in self.read.samples.drain(..) {
                let index = found.id.and_then(|id| cpu_events.indices.get(&id));
                let event = index.and_then(|&index| cpu_events.events.get_mut(index));
                let event = event.ok_or(Error::Malformed("number of a perf event"))?;
                event.samples += found.sample.periods(self.period);
                taken.push(MachineSample::new(&found, event.mode));
            }
        }
        Ok(taken)
    }

    /// Ends sampling. The samples that remain can still be taken.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn stop(&self) -> Result<(), Error> {
        let mut events = self.cpus.iter().flat_map(|cpu_events| &cpu_events.events);
        events.try_for_each(|one| one.event.disable()).map_err(Error::kernel("disable perf events"))
    }

    /// Returns how often the event has occurred until now on each CPU in each mode.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn counted(&self) -> Result<Vec<Counted>, Error> {
        let all = self.cpus.iter().flat_map(|cpu_events| {
            cpu_events.events.iter().map(|&ModeEvent { mode, ref event, samples, pauses }| {
                let (total, _) = read(event)?;
                let total = pauses.leave_out(total);
                Ok(Counted { cpu: cpu_events.cpu, mode, total, samples })
            })
        });
        all.collect()
    }

    /// Returns how many samples were lost until the last [`take`](Self::take) because a ring was
    /// full.
    pub fn lost(&self) -> u64 {
        self.read.lost
    }

    /// Returns how often the kernel has stopped an event for a while because it had too many
    /// samples (`kernel.perf_event_max_sample_rate`).
    pub fn throttled(&self) -> u64 {
        self.read.throttled
    }
}

impl CpuEvents {
    /// Opens an event for each mode, which do not count yet.
    fn open(cpu: u32, event: Event) -> Result<Self, Error> {
        let (mut events, mut indices) = (Vec::<ModeEvent>::new(), HashMap::new());
        for mode in CpuMode::ALL.into_iter().filter(|mode| mode.is_counted(event.rings)) {
            let mut attributes = attributes(event, mode)?;
            let place = (ALL, number(cpu)?);
            let opened = PerfEvent::open_where(place, &mut attributes, None, 0);
            let opened = opened.map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY) => Error::NotSampled(BUSY),
                _ => explain_open_failure(&event, Wanted::Cpu, error),
            })?;
            let (_, id) = read(&opened)?;
            indices.insert(id, events.len());
            events.push(ModeEvent { mode, event: opened, samples: 0, pauses: Pauses::default() });
        }
        let first = events.first().ok_or(Error::unavailable(event, "it counts in no mode"))?;
        let ring = Ring::new(&first.event).map_err(Error::kernel(MAPPING))?;
        for other in &events[1..] {
            other.event.write_to(&first.event).map_err(Error::kernel(MAPPING))?;
        }
        Ok(Self { cpu, ring, events, indices })
    }
}

/// Returns the attributes of the event that counts in this mode only.
fn attributes(event: Event, mode: CpuMode) -> Result<perf::perf_event_attr, Error> {
    let mut attributes = Samples::attributes(&event, None, FIELDS)?;
    mode.restrict(&mut attributes);
    attributes.read_format = WITH_TIMES | u64::from(perf::PERF_FORMAT_ID);
    attributes.set_disabled(1);
    // The time-stamp counter is a function of this clock.
    attributes.set_use_clockid(1);
    attributes.clockid = libc::CLOCK_MONOTONIC_RAW;
    Ok(attributes)
}

/// Returns an event's total, and the number that the kernel has given it.
fn read(event: &PerfEvent) -> Result<(Total, u64), Error> {
    let mut words = [0; 4];
    match event.read(&mut words).map_err(Error::kernel("read a perf event"))? {
        4 => Ok((Total::of_ns(words[0], words[1], words[2]), words[3])),
        _ => Err(Error::Malformed("count of a perf event")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::Sample;
    use super::*;

    #[test]
    fn each_mode_has_an_event_that_counts_nowhere_else() {
        let event = Event::INSTRUCTIONS.every(10_000);
        let excluded = |mode| {
            let of = attributes(event, mode).unwrap();
            [of.exclude_host(), of.exclude_guest(), of.exclude_kernel(), of.exclude_user()]
        };
        assert_eq!(
            CpuMode::ALL.map(excluded),
            [[0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 1, 0]]
        );
        let of = attributes(event, CpuMode::GuestUser).unwrap();
        assert_eq!((of.disabled(), of.use_clockid(), of.clockid), (1, 1, 4));
        let modes = |event: Event| {
            CpuMode::ALL.into_iter().filter(|mode| mode.is_counted(event.rings)).collect::<Vec<_>>()
        };
        assert_eq!(modes(event), CpuMode::ALL);
        assert_eq!(modes(event.user()), [CpuMode::HostUser, CpuMode::GuestUser]);
        assert_eq!(modes(event.kernel()), [CpuMode::HostKernel, CpuMode::GuestKernel]);
    }

    const KERNELS: u64 = 0xffff_ffff_8100_1234;
    const PROGRAMS: u64 = 0x1234;

    /// Returns the mode, the address and the mode of arrival of a sample at this address.
    fn taken(misc: u32, counted: CpuMode, ip: u64) -> (CpuMode, Option<u64>, Option<CpuMode>) {
        let sample = Sample { ip, ..Sample::example() };
        let found = Found { sample, misc: misc as u16, id: None };
        let MachineSample { mode, ip, arrived, pid, tid, time, cpu, period } =
            MachineSample::new(&found, counted);
        assert_eq!((pid, tid, time, cpu, period), (7, 8, 99, 3, 1_000));
        (mode, ip, arrived)
    }

    #[test]
    fn a_sample_is_of_the_mode_that_was_counted_wherever_the_interrupt_came() {
        let modes = [
            (perf::PERF_RECORD_MISC_KERNEL, CpuMode::HostKernel, KERNELS),
            (perf::PERF_RECORD_MISC_USER, CpuMode::HostUser, PROGRAMS),
            (perf::PERF_RECORD_MISC_GUEST_KERNEL, CpuMode::GuestKernel, KERNELS),
            (perf::PERF_RECORD_MISC_GUEST_USER, CpuMode::GuestUser, PROGRAMS),
        ];
        for (misc, mode, ip) in modes {
            // Other flags say nothing of the mode.
            let exact = misc | perf::PERF_RECORD_MISC_EXACT_IP;
            assert_eq!(taken(exact, mode, ip), (mode, Some(ip), Some(mode)));
            for other in CpuMode::ALL.into_iter().filter(|other| *other != mode) {
                let expected = (other, None, Some(mode));
                assert_eq!(taken(misc, other, ip), expected, "its address is another mode's");
            }
        }
        let of_nobody = taken(perf::PERF_RECORD_MISC_HYPERVISOR, CpuMode::HostKernel, KERNELS);
        assert_eq!(of_nobody, (CpuMode::HostKernel, None, None));
    }

    #[test]
    fn an_old_state_of_a_guest_does_not_decide_where_a_sample_is() {
        let [kernel, user] =
            [perf::PERF_RECORD_MISC_GUEST_KERNEL, perf::PERF_RECORD_MISC_GUEST_USER];
        let place = |misc, counted, ip| taken(misc, counted, ip).1;
        assert_eq!(place(user, CpuMode::GuestKernel, KERNELS), Some(KERNELS));
        assert_eq!(place(kernel, CpuMode::GuestUser, PROGRAMS), Some(PROGRAMS));
        assert_eq!(place(user, CpuMode::GuestUser, KERNELS), None, "it has left its program");
        assert_eq!(place(user, CpuMode::GuestKernel, PROGRAMS), None, "it has left its kernel");
        // Firmware, and kernels of 32 bits.
        assert_eq!(place(kernel, CpuMode::GuestKernel, PROGRAMS), Some(PROGRAMS));
        assert_eq!(place(user, CpuMode::HostUser, PROGRAMS), None);
        assert_eq!(place(kernel, CpuMode::HostKernel, KERNELS), None);
    }

    #[test]
    fn samples_are_missing_where_periods_have_none() {
        let missing = |count, enabled, running, samples| {
            let total = Total::of_ns(count, enabled, running);
            Counted::new(0, CpuMode::GuestUser, total, samples).missing(100)
        };
        assert_eq!(missing(599, 10, 10, 5), 0);
        assert_eq!(missing(599, 10, 10, 6), 0, "one may be early");
        assert_eq!(missing(599, 10, 10, 2), 3);
        assert_eq!(missing(500, 10, 5, 5), 5, "others had the counter for half of the time");
        assert_eq!(missing(0, 10, 0, 0), 0, "nobody knows");
    }

    #[test]
    fn pauses_are_no_time_in_which_an_event_has_counted() {
        let mut pauses = Pauses::default();
        let records =
            [(true, 10), (false, 40), (false, 50), (true, 60), (true, 70), (false, 80), (true, 90)];
        for (begins, time) in records {
            pauses.add(Pause { begins, time, id: 7 });
        }
        assert_eq!(pauses, Pauses { since: Some(90), sum: 50 });
        let total = pauses.leave_out(Total::of_ns(500, 100, 100));
        assert_eq!(total, Total::of_ns(500, 100, 50));
        assert_eq!(Counted::new(0, CpuMode::HostUser, total, 5).missing(100), 5);
        let long = Pauses { since: None, sum: 500 };
        assert!(long.leave_out(Total::of_ns(500, 100, 100)).running.is_zero());
    }

    #[test]
    fn what_the_kernel_counts_by_itself_samples_no_guest() {
        let error = MachineSamples::start(Event::PAGE_FAULTS.every(10_000), None).unwrap_err();
        assert!(error.to_string().contains("the kernel counts it"), "{error}");
    }
}
