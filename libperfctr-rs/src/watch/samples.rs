// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples: the places of threads at each overflow, and their callers.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use perf_event_open_sys::bindings as perf;

use super::ring::{self, Ring};
use crate::error::Error;
use crate::event::Event;
use crate::provider::native::attributes;
use crate::sys::{PerfEvent, poll};

/// One sample of a watched thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Sample {
    /// The address of the instruction that the thread was about to execute.
    pub ip: u64,
    /// The number of the process.
    pub pid: u32,
    /// The number of the thread.
    pub tid: u32,
    /// The time of the sample, by the kernel's clock. Unit: ns.
    pub time: u64,
    /// The CPU on which the thread executed.
    pub cpu: u32,
    /// The number of events for which the sample stands: the event's period, or with a
    /// [frequency](super::Watch::frequency) the period that the kernel had set.
    pub period: u64,
    /// With [`counts`](super::Watch::counts), the event's count at the sample.
    pub count: Option<u64>,
    /// With [`callers`](super::Watch::callers), the addresses to which the functions on the stack
    /// will return, the innermost function's first.
    pub callers: Vec<u64>,
    /// With [`branches`](super::Watch::branches), the branches that were taken last before the
    /// sample, the latest one first. How many there are depends on the processor. Soon after
    /// another thread has executed there are fewer.
    #[cfg_attr(feature = "serde", serde(default))]
    pub branches: Vec<Branch>,
}

impl Sample {
    /// Returns how many periods of this length have ended at the sample. The kernel writes one
    /// sample for several periods that have ended at once.
    pub fn periods(&self, period: u64) -> u64 {
        periods(self.period, period)
    }
}

#[cfg(test)]
impl Sample {
    /// Makes a sample without the fields that only some samples have.
    pub(super) const fn example() -> Self {
        Self {
            ip: 0x1234,
            pid: 7,
            tid: 8,
            time: 99,
            cpu: 3,
            period: 1_000,
            count: None,
            callers: Vec::new(),
            branches: Vec::new(),
        }
    }
}

/// Returns how many periods of this length have ended at a sample that stands for these events.
pub(super) fn periods(events: u64, period: u64) -> u64 {
    (events / period.max(1)).max(1)
}

/// A branch that a processor has taken and recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Branch {
    /// The address of the branch.
    pub from: u64,
    /// The address of the instruction to which it has led.
    pub to: u64,
    /// What Linux says of it.
    pub flags: BranchFlags,
}

/// What Linux says of a branch: the bits behind the addresses in its `struct perf_branch_entry`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BranchFlags(u64);

impl BranchFlags {
    /// Makes them of Linux's bits.
    pub const fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns Linux's bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    const fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }

    /// Returns whether the processor has predicted the branch wrongly, or `None` if the record does
    /// not say.
    pub const fn mispredicted(self) -> Option<bool> {
        match (self.has(0), self.has(1)) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        }
    }

    /// Returns whether the branch was in a transaction (TSX).
    pub const fn in_transaction(self) -> bool {
        self.has(2)
    }

    /// Returns whether this is no branch of the program, but the end of an aborted transaction.
    pub const fn is_abort(self) -> bool {
        self.has(3)
    }

    /// Returns the time since the branch before it, or `None` if the record does not say. Unit:
    /// cycles.
    pub const fn cycles(self) -> Option<u16> {
        match (self.0 >> 4) as u16 {
            0 => None,
            cycles => Some(cycles),
        }
    }
}

/// The samples of a [`Watch`](super::Watch), which the kernel writes into rings.
///
/// ```no_run
/// use perfctr::Event;
/// use perfctr::watch::Watch;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let event = Event::INSTRUCTIONS.user().every(1_000_003);
/// let mut samples = Watch::process(1234).callers().sample(event)?;
/// samples.wait(Duration::from_secs(1))?;
/// while let Some(sample) = samples.take()? {
///     println!("{:#x} in thread {}, called by {:#x?}", sample.ip, sample.tid, sample.callers);
/// }
/// println!("{} lost", samples.lost());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Samples {
    rings: Vec<(PerfEvent, Ring)>,
    /// Events whose samples are written to the rings of other events.
    _others: Vec<PerfEvent>,
    _anchors: Vec<PerfEvent>,
    fields: Fields,
    read: Read,
}

/// The optional fields of samples: each is true if the samples have that field.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields {
    pub(super) counts: bool,
    pub(super) callers: bool,
    pub(super) branches: bool,
    pub(super) ids: bool,
}

/// The records that were read from the rings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) samples: VecDeque<Found>,
    pub(super) lost: u64,
    pub(super) throttled: u64,
    /// When the kernel has stopped an event for a while, and when it has started one again.
    pub(super) pauses: Vec<Pause>,
}

/// A moment at which the kernel has stopped an event that had too many samples, or has started it
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    pub(super) begins: bool,
    /// By the event's clock. Unit: ns.
    pub(super) time: u64,
    /// The number that the kernel has given the event.
    pub(super) id: u64,
}

/// A sample, with what its record says of it besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) sample: Sample,
    /// The flags of the record.
    pub(super) misc: u16,
    /// The number that the kernel has given the event, if samples have it.
    pub(super) id: Option<u64>,
}

/// The fields that each sample has even if nobody asks for them, in this order.
const WORDS: u64 = (perf::PERF_SAMPLE_IP
    | perf::PERF_SAMPLE_TID
    | perf::PERF_SAMPLE_TIME
    | perf::PERF_SAMPLE_CPU
    | perf::PERF_SAMPLE_PERIOD) as u64;
/// Size of a record's header, which has its type, flags and size.
const HEADER_BYTES: usize = 8;
/// Callers from this number on are not addresses; they say in which mode the next callers executed.
const CONTEXT_FIRST: u64 = -4095_i64 as u64;

impl Samples {
    /// Returns the attributes with which sampling events are opened. An event has a period, or
    /// there is a frequency.
    pub(super) fn attributes(
        event: &Event,
        frequency: Option<u64>,
        fields: Fields,
    ) -> Result<perf::perf_event_attr, Error> {
        let mut attributes = attributes(event)?;
        match (frequency, event.period) {
            (Some(0), _) => return Err(Error::unavailable(*event, "its frequency is 0")),
            (Some(frequency), 0) => {
                attributes.set_freq(1);
                attributes.__bindgen_anon_1.sample_freq = frequency;
            }
            (Some(_), _) => {
                return Err(Error::unavailable(*event, "it has a period and a frequency"));
            }
            (None, 0) => return Err(Error::unavailable(*event, "no period is given")),
            (None, period) => attributes.__bindgen_anon_1.sample_period = period,
        }
        attributes.sample_type = WORDS;
        if fields.ids {
            attributes.sample_type |= u64::from(perf::PERF_SAMPLE_IDENTIFIER);
        }
        if fields.counts {
            attributes.sample_type |= u64::from(perf::PERF_SAMPLE_READ);
        }
        if fields.callers {
            attributes.sample_type |= u64::from(perf::PERF_SAMPLE_CALLCHAIN);
            attributes.set_exclude_callchain_kernel(attributes.exclude_kernel());
            attributes.set_exclude_callchain_user(attributes.exclude_user());
        }
        if fields.branches {
            attributes.sample_type |= u64::from(perf::PERF_SAMPLE_BRANCH_STACK);
            // Linux adds the event's own modes, since no other ones are named.
            attributes.branch_sample_type = perf::PERF_SAMPLE_BRANCH_ANY.into();
        }
        attributes.set_watermark(1);
        attributes.__bindgen_anon_2.wakeup_watermark = (ring::BYTES / 4) as u32;
        Ok(attributes)
    }

    /// Maps a ring for each of these events, which come with their CPUs. Events of one CPU share a
    /// ring.
    pub(super) fn new(
        events: Vec<(libc::c_int, PerfEvent)>,
        anchors: Vec<PerfEvent>,
        fields: Fields,
    ) -> Result<Self, Error> {
        let (mut of_cpu, mut others) = (BTreeMap::new(), Vec::new());
        let mut rings: Vec<(PerfEvent, Ring)> = Vec::new();
        let mut add = |(cpu, event): (libc::c_int, PerfEvent)| -> io::Result<()> {
            match of_cpu.get(&cpu).map(|&n: &usize| &rings[n]) {
                Some((first, _)) => {
                    event.write_to(first)?;
                    others.push(event);
                }
                None => {
                    // The ring of a thread on all CPUs is the thread's own.
                    if cpu >= 0 {
                        of_cpu.insert(cpu, rings.len());
                    }
                    let ring = Ring::new(&event)?;
                    rings.push((event, ring));
                }
            }
            Ok(())
        };
        let added = events.into_iter().try_for_each(&mut add);
        // EPERM means that the caller's rings would be too large together.
        let operation = "map a perf event's ring, of which kernel.perf_event_mlock_kb and \
                         `ulimit -l` bound the size";
        added.map_err(Error::kernel(operation))?;
        Ok(Self { rings, _others: others, _anchors: anchors, fields, read: Read::default() })
    }

    /// Takes the next sample. Returns `None` if there is none now. Samples of one thread on one
    /// CPU are in order.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if a record of the kernel's breaks the rules of its format.
    pub fn take(&mut self) -> Result<Option<Sample>, Error> {
        if self.read.samples.is_empty() {
            for (_, ring) in &self.rings {
                let bytes = ring.drain();
                self.read
                    .records(&bytes, self.fields)
                    .ok_or(Error::Malformed("record of a perf event"))?;
            }
        }
        Ok(self.read.samples.pop_front().map(|found| found.sample))
    }

    /// Returns how many samples were lost because a ring was full. The number is brought up to
    /// date when [`take`](Self::take) finds no sample.
    pub fn lost(&self) -> u64 {
        self.read.lost
    }

    /// Returns how often the kernel has stopped an event for a while because it had too many
    /// samples (`perf_event_max_sample_rate`). What threads executed meanwhile has no samples. The
    /// number is brought up to date like [`lost`](Self::lost).
    pub fn throttled(&self) -> u64 {
        self.read.throttled
    }

    /// Waits until 32 KiB of a ring are full, or everything watched has ended, but not longer
    /// than `at_most`. Returns whether one of these has happened.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn wait(&self, at_most: Duration) -> io::Result<bool> {
        let all = self.rings.iter().map(|(event, _)| event.as_raw_fd());
        Ok(poll(all, at_most)? != 0)
    }
}

impl Read {
    /// Parses records. Returns `None` if one breaks the rules of its format.
    pub(super) fn records(&mut self, mut bytes: &[u8], fields: Fields) -> Option<()> {
        while !bytes.is_empty() {
            let (header, _) = bytes.split_at_checked(HEADER_BYTES)?;
            let kind = u32::from_ne_bytes(header[..4].try_into().ok()?);
            let misc = u16::from_ne_bytes(header[4..6].try_into().ok()?);
            let size = u16::from_ne_bytes(header[6..].try_into().ok()?);
            let (record, rest) = bytes.split_at_checked(size.into())?;
            let mut words = record
                .get(HEADER_BYTES..)?
                .chunks_exact(8)
                .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
            match kind {
                perf::PERF_RECORD_SAMPLE => {
                    let id = if fields.ids { Some(words.next()?) } else { None };
                    let sample = sample(&mut words, fields)?;
                    self.samples.push_back(Found { sample, misc, id });
                }
                perf::PERF_RECORD_LOST => self.lost += words.nth(1)?,
                perf::PERF_RECORD_THROTTLE | perf::PERF_RECORD_UNTHROTTLE => {
                    let begins = kind == perf::PERF_RECORD_THROTTLE;
                    self.throttled += u64::from(begins);
                    if fields.ids {
                        let [time, id] = [words.next()?, words.next()?];
                        self.pauses.push(Pause { begins, time, id });
                    }
                }
                _ => {}
            }
            bytes = rest;
        }
        Some(())
    }
}

fn sample(words: &mut impl Iterator<Item = u64>, fields: Fields) -> Option<Sample> {
    let [ip, thread, time] = [words.next()?, words.next()?, words.next()?];
    let [cpu, period] = [words.next()?, words.next()?];
    let mut sample = Sample {
        ip,
        pid: low(thread),
        tid: low(thread.rotate_left(32)),
        time,
        cpu: low(cpu),
        period,
        count: None,
        callers: Vec::new(),
        branches: Vec::new(),
    };
    if fields.counts {
        sample.count = Some(words.next()?);
    }
    if fields.callers {
        let entries = words.next()?;
        let addresses = words.take(entries as usize).filter(|&word| word < CONTEXT_FIRST);
        // The first address is the place of the thread.
        sample.callers = addresses.skip(1).collect();
    }
    if fields.branches {
        let entries = words.next()?;
        let branch = |_| {
            let (from, to, flags) = (words.next()?, words.next()?, BranchFlags(words.next()?));
            Some(Branch { from, to, flags })
        };
        sample.branches = (0..entries).map(branch).collect::<Option<_>>()?;
    }
    Some(sample)
}

/// Returns the first of two numbers that share a word.
fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a record of these words.
    fn record(kind: u32, words: &[u64]) -> Vec<u8> {
        let size = (HEADER_BYTES + 8 * words.len()) as u16;
        let head = [&kind.to_ne_bytes()[..], &[0; 2], &size.to_ne_bytes()].concat();
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        head.into_iter().chain(words).collect()
    }

    fn two(first: u32, second: u32) -> u64 {
        let bytes = [first.to_ne_bytes(), second.to_ne_bytes()].concat();
        u64::from_ne_bytes(bytes.try_into().unwrap())
    }

    fn read(bytes: &[u8], callers: bool) -> Option<Read> {
        let mut read = Read::default();
        read.records(bytes, Fields { callers, ..Fields::default() })?;
        Some(read)
    }

    #[test]
    fn counts_stand_before_the_callers() {
        let words = [0x1234, two(7, 8), 99, two(3, 0), 1_000, 5_017, 2, 0x1234, 0x50];
        let bytes = record(perf::PERF_RECORD_SAMPLE, &words);
        let read = |fields| {
            let mut read = Read::default();
            read.records(&bytes, fields)?;
            read.samples.pop_front().map(|found| found.sample)
        };
        let sample = read(Fields { counts: true, callers: true, ..Fields::default() }).unwrap();
        assert_eq!((sample.count, &sample.callers[..]), (Some(5_017), &[0x50][..]));
        let counts = Fields { counts: true, ..Fields::default() };
        assert_eq!(read(counts).unwrap().count, Some(5_017));
        assert_eq!(read(Fields::default()).unwrap().count, None);
    }

    #[test]
    fn a_sample_stands_for_whole_periods_and_at_least_for_one() {
        let of = |events| Sample { period: events, ..Sample::example() }.periods(100);
        assert_eq!([0, 99, 100, 199, 200, 350].map(of), [1, 1, 1, 1, 2, 3]);
        assert_eq!(Sample::example().periods(0), 1_000, "a period has one event at least");
    }

    #[test]
    fn records_are_parsed() {
        let context = -512_i64 as u64;
        let words = [0x1234, two(7, 8), 99, two(3, 0), 1_000, 4, context, 0x1234, 0x50, 0x60];
        let bytes = [
            record(perf::PERF_RECORD_SAMPLE, &words),
            record(perf::PERF_RECORD_THROTTLE, &[1, 2, 3]),
            record(perf::PERF_RECORD_LOST, &[9, 5]),
            record(perf::PERF_RECORD_LOST, &[9, 2]),
        ]
        .concat();
        let expected = Sample { callers: vec![0x50, 0x60], ..Sample::example() };
        let alone = Sample { callers: Vec::new(), ..expected.clone() };
        for (callers, expected) in [(true, expected), (false, alone)] {
            let expected = Found { sample: expected, misc: 0, id: None };
            let expected =
                Read { samples: [expected].into(), lost: 7, throttled: 1, ..Read::default() };
            assert_eq!(read(&bytes, callers), Some(expected));
        }
    }

    #[test]
    fn branches_stand_behind_the_callers() {
        let start = [0x1234, two(7, 8), 99, two(3, 0), 1_000];
        let (count, callers) = ([5_017], [2, 0x1234, 0x50]);
        let flags = [1, 2, 1 << 40];
        let branches = [3, 0x10, 0x20, flags[0], 0x30, 0x40, flags[1], 0x50, 0x60, flags[2]];
        let of = |words: &[&[u64]], fields| {
            let mut read = Read::default();
            read.records(&record(perf::PERF_RECORD_SAMPLE, &words.concat()), fields)?;
            read.samples.pop_front().map(|found| found.sample)
        };
        let all = Fields { counts: true, callers: true, branches: true, ids: false };
        let sample = of(&[&start, &count, &callers, &branches], all).unwrap();
        assert_eq!((sample.count, &sample.callers[..]), (Some(5_017), &[0x50][..]));
        let expected = [(0x10, 0x20), (0x30, 0x40), (0x50, 0x60)];
        let expected: Vec<_> = expected
            .into_iter()
            .zip(flags.map(BranchFlags))
            .map(|((from, to), flags)| Branch { from, to, flags })
            .collect();
        assert_eq!(sample.branches, expected);
        let alone = Fields { branches: true, ..Fields::default() };
        assert_eq!(of(&[&start, &branches], alone).unwrap().branches, expected);
        assert_eq!(of(&[&start, &[0]], alone).unwrap().branches, [], "there may be none");
        let callers = Fields { counts: false, ..all };
        assert_eq!(of(&[&start, &[1, 0x1234], &branches], callers).unwrap().branches, expected);
        // A record that ends before its last branch, or before the number of branches.
        for length in 0..branches.len() {
            assert_eq!(of(&[&start, &branches[..length]], alone), None, "{length} words");
        }
        assert_eq!(of(&[&start, &[u64::MAX], &branches[1..]], alone), None);
    }

    #[test]
    fn flags_of_branches_are_linuxs() {
        let facts = |flags: u64| {
            let flags = BranchFlags(flags);
            let transaction = (flags.in_transaction(), flags.is_abort());
            (flags.mispredicted(), transaction, flags.cycles())
        };
        let no = (false, false);
        assert_eq!(facts(0), (None, no, None));
        assert_eq!(facts(1), (Some(true), no, None));
        assert_eq!(facts(1 << 1 | 3 << 4), (Some(false), no, Some(3)));
        assert_eq!(facts(1 << 2), (None, (true, false), None));
        assert_eq!(facts(1 << 3), (None, (false, true), None));
        // Bit 20 begins the branch's kind, which is not told here.
        assert_eq!(facts(0xffff << 4 | 1 << 20), (None, no, Some(0xffff)));
    }

    #[test]
    fn branches_are_of_the_modes_in_which_the_event_counts() {
        let event = Event::INSTRUCTIONS.every(1_000);
        let of = |fields| Samples::attributes(&event, None, fields).unwrap();
        let with = of(Fields { branches: true, ..Fields::default() });
        let without = of(Fields::default());
        let has = |attributes: &perf::perf_event_attr| {
            attributes.sample_type & u64::from(perf::PERF_SAMPLE_BRANCH_STACK) != 0
        };
        assert_eq!((has(&with), with.branch_sample_type), (true, 1 << 3), "any, and no mode");
        assert_eq!((has(&without), without.branch_sample_type), (false, 0));
    }

    #[test]
    fn nonsense_is_refused() {
        let complete = record(perf::PERF_RECORD_SAMPLE, &[1, 2, 3, 4, 5]);
        assert!(read(&complete, false).is_some());
        assert_eq!(read(&complete, true), None, "callers are missing");
        for end in 1..complete.len() {
            assert_eq!(read(&complete[..end], false), None, "{end} bytes");
        }
        assert_eq!(read(&[9, 0, 0, 0, 0, 0, 0, 0], false), None, "a record without a size");
        assert_eq!(read(&record(perf::PERF_RECORD_SAMPLE, &[1]), false), None);
    }

    #[test]
    fn what_samples_has_a_period_or_a_frequency() {
        let event = Event::INSTRUCTIONS.user();
        let fields = Fields { callers: true, ..Fields::default() };
        let why = |event: Event, frequency| {
            Samples::attributes(&event, frequency, fields).unwrap_err().to_string()
        };
        let (none, zero) = (why(event, None), why(event, Some(0)));
        let both = why(event.every(1_000), Some(99));
        assert!(none.ends_with("no period is given"), "{none}");
        assert!(zero.ends_with("its frequency is 0"), "{zero}");
        assert!(both.ends_with("it has a period and a frequency"), "{both}");
        assert_eq!(Samples::attributes(&event, Some(99), fields).unwrap().freq(), 1);
        let attributes = Samples::attributes(&event.every(1_000), None, fields).unwrap();
        assert_eq!(attributes.freq(), 0);
        assert_eq!(
            (attributes.exclude_callchain_kernel(), attributes.exclude_callchain_user()),
            (1, 0)
        );
    }
}
