// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads the files that `perf record` has written.
//!
//! A file may be larger than the memory. Of its records those of about two rounds are in memory at
//! once: in a round perf has read the rings of all CPUs once.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use perfctr_gate::text::harmless;

use super::{
    BUILD_ID_BYTES, BUILD_ID_SIZED, HEADER_BYTES, MAGIC, MAGIC_OLD, RECORD_BYTES, SECTION_BYTES,
    feature, flag, perf, user_record,
};
use crate::elf::{self, Facts, to_hex};
use crate::profile::{DEPTH_MAX, Frame, Layer, Machine, Module, Profile, Samples};

/// The most events. Each is a profile of its own.
const EVENTS_MAX: u64 = 256;
/// The most mappings that all processes have had together. A process that is started has its
/// parent's mappings, so without this limit a short file could have any number of them.
const MAPS_MAX: usize = 1 << 24;
/// The most bytes of a `perf_event_attr`, which may be longer for later kernels.
const ATTRIBUTE_BYTES_MAX: u64 = 4096;
/// The names of code whose file is not known.
const KERNEL: &str = "[kernel]";
const ELSEWHERE: &str = "[hypervisor or guest]";

/// Reads the file: one profile for each event.
pub fn read(file: &mut (impl Read + Seek)) -> Result<Vec<Profile>> {
    let mut file = Sections { bytes: file.seek(SeekFrom::End(0))?, file };
    let whole = Section { from: 0, bytes: file.bytes.min(HEADER_BYTES) };
    let header = file.read(&whole)?;
    ensure!(!header.starts_with(MAGIC_OLD), "a file of perf's old version 1 found, 2 expected");
    ensure!(header.starts_with(MAGIC), "a file of a big-endian machine found");
    let mut header = Input(&header[MAGIC.len()..]);
    let header_bytes = header.u64()?;
    ensure!(
        header_bytes >= HEADER_BYTES,
        "a file that perf has written to a pipe found, one of `perf record -o FILE` expected"
    );
    let attribute_bytes = header.u64()?;
    let [attributes, records] = [header.section(file.bytes)?, header.section(file.bytes)?];
    // The section of events' names that old versions had.
    header.take(SECTION_BYTES)?;
    let bits = header.u64()?;
    let features = features(&mut file, &records, bits)?;
    let events = events(&mut file, &attributes, attribute_bytes)?;
    let mut reader = Reader::new(events, &features)?;
    reader.records(file.at(&records)?)?;
    reader.finish(&features)
}

/// A part of the file.
struct Section {
    from: u64,
    bytes: u64,
}

/// A file, from which sections are read.
struct Sections<'a, F> {
    file: &'a mut F,
    /// The file's length.
    bytes: u64,
}

impl<F: Read + Seek> Sections<'_, F> {
    /// Returns the section as something that can be read.
    fn at(&mut self, section: &Section) -> Result<impl Read> {
        self.file.seek(SeekFrom::Start(section.from))?;
        Ok(self.file.by_ref().take(section.bytes))
    }

    /// Reads a whole section.
    fn read(&mut self, section: &Section) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.at(section)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Bytes that are yet to be read.
#[derive(Clone, Copy)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let found = self.0.len();
        let taken = usize::try_from(length).ok().and_then(|length| self.0.split_at_checked(length));
        let (taken, rest) =
            taken.with_context(|| format!("{found} bytes found, {length} expected"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into()?))
    }

    /// Takes an entry that says where a section is.
    fn section(&mut self, file_bytes: u64) -> Result<Section> {
        let (from, bytes) = (self.u64()?, self.u64()?);
        let is_inside = from.checked_add(bytes).is_some_and(|end| end <= file_bytes);
        ensure!(is_inside, "a section of {bytes} bytes from {from} on found in {file_bytes} bytes");
        Ok(Section { from, bytes })
    }

    /// Takes a name with its length before it.
    fn counted_name(&mut self) -> Result<String> {
        let length = self.u32()?;
        Ok(text(self.take(length.into())?))
    }
}

/// Returns what is before the first zero.
fn before_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(before_zero(bytes)).into_owned()
}

/// The sections behind the records, by their numbers.
type Features = BTreeMap<u32, Vec<u8>>;

fn features<F: Read + Seek>(
    file: &mut Sections<'_, F>,
    records: &Section,
    bits: u64,
) -> Result<Features> {
    let from = records.from + records.bytes;
    let bytes = (SECTION_BYTES * u64::from(bits.count_ones())).min(file.bytes - from);
    let table = file.read(&Section { from, bytes })?;
    let (mut table, mut features, mut known) = (Input(&table), Features::new(), 0);
    for feature in (0..u64::BITS).filter(|feature| bits & 1 << feature != 0) {
        let section = table.section(file.bytes).context("sections behind the records")?;
        // A short file could otherwise name its bytes again and again.
        known += section.bytes;
        ensure!(known <= file.bytes, "sections of {known} bytes found in {}", file.bytes);
        features.insert(feature, file.read(&section)?);
    }
    let refuse = |feature, what: &str| {
        ensure!(!features.contains_key(&feature), "{what}");
        Ok(())
    };
    refuse(feature::AUXTRACE, AUX)?;
    refuse(feature::COMPRESSED, COMPRESSED)?;
    refuse(feature::STAT, "counts of `perf stat record` found, samples expected")?;
    Ok(features)
}

const AUX: &str = "a processor's trace (Intel PT, for example) found, samples expected";
const COMPRESSED: &str = "compressed records found; `perf record` without `-z` writes others";

/// A `perf_event_attr`, as far as it is needed here.
struct Event {
    kind: u32,
    config: u64,
    /// The period, or the frequency.
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    /// The numbers by which records name it.
    ids: Vec<u64>,
}

impl Event {
    fn has(&self, field: u32) -> bool {
        self.sample_type & u64::from(field) != 0
    }
}

fn events<F: Read + Seek>(
    file: &mut Sections<'_, F>,
    attributes: &Section,
    each: u64,
) -> Result<Vec<Event>> {
    let least = u64::from(perf::PERF_ATTR_SIZE_VER0) + SECTION_BYTES;
    ensure!(
        (least..=ATTRIBUTE_BYTES_MAX).contains(&each),
        "attributes of {each} bytes found, {least} to {ATTRIBUTE_BYTES_MAX} expected"
    );
    let count = attributes.bytes / each;
    ensure!((1..=EVENTS_MAX).contains(&count), "{count} events found, 1 to {EVENTS_MAX} expected");
    let (mut events, mut known) = (Vec::new(), 0);
    for attribute in file.read(attributes)?.chunks_exact(each as usize) {
        let mut input = Input(attribute);
        let (kind, _, config) = (input.u32()?, input.u32()?, input.u64()?);
        let (period, sample_type) = (input.u64()?, input.u64()?);
        let (read_format, flags) = (input.u64()?, input.u64()?);
        let mut ids = Input(&attribute[(each - SECTION_BYTES) as usize..]);
        let ids = ids.section(file.bytes).context("identifiers of an event")?;
        known += ids.bytes;
        ensure!(known <= file.bytes, "identifiers of {known} bytes found in {}", file.bytes);
        let ids = file.read(&ids)?;
        let ids = ids.chunks_exact(8).map(|id| Input(id).u64()).collect::<Result<_>>()?;
        events.push(Event { kind, config, period, sample_type, read_format, flags, ids });
    }
    for event in &events {
        ensure!(
            !event.has(perf::PERF_SAMPLE_STACK_USER),
            "copies of stacks found (`--call-graph dwarf`); `perf record -g` writes callers"
        );
        ensure!(
            event.has(perf::PERF_SAMPLE_IP) && event.has(perf::PERF_SAMPLE_TID),
            "samples without address or thread found"
        );
    }
    let all_have = |field| events.iter().all(|event| event.has(field));
    let alike = || events.iter().all(|event| event.sample_type == events[0].sample_type);
    ensure!(
        events.len() == 1
            || all_have(perf::PERF_SAMPLE_IDENTIFIER)
            || all_have(perf::PERF_SAMPLE_ID) && alike(),
        "{} events found whose samples cannot be told apart",
        events.len()
    );
    Ok(events)
}

/// The code at some addresses of a process.
#[derive(Clone, Copy)]
pub(super) struct Map {
    pub end: u64,
    pub offset: u64,
    /// Index of the file, if there is one.
    pub file: Option<usize>,
}

/// The memory of a process, by first addresses. It is shared until it changes.
type Space = Rc<BTreeMap<u64, Map>>;

/// The profile of one event while it is read.
struct Sampled {
    profile: Profile,
    samples: Samples,
    modules: HashMap<Place, u32>,
}

/// A module of a profile: the index of a file, or the name of a place without one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    File(usize),
    Named(&'static str),
}

struct Reader {
    events: Vec<Event>,
    /// The index of the event that an identifier names.
    ids: HashMap<u64, usize>,
    sampled: Vec<Sampled>,
    spaces: HashMap<u32, Space>,
    /// The number of mappings that they have had.
    maps: usize,
    names: HashMap<u32, String>,
    /// The files that are mapped.
    files: Vec<Module>,
    places: HashMap<Vec<u8>, usize>,
    build_ids: HashMap<Vec<u8>, String>,
    /// The time of the first sample.
    start: Option<u64>,
}

/// A record of the kernel's.
#[derive(Clone, Copy)]
struct Record<'a> {
    kind: u32,
    misc: u32,
    body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the record in these bytes, whose length is the record's.
    fn of(bytes: &'a [u8]) -> Result<Self> {
        let mut input = Input(bytes);
        let (kind, misc, _) = (input.u32()?, input.u16()?.into(), input.u16()?);
        Ok(Self { kind, misc, body: input.0 })
    }

    fn has(&self, misc: u32) -> bool {
        self.misc & misc != 0
    }
}

/// Records that wait until all earlier ones have come.
#[derive(Default)]
struct Waiting {
    /// The records one behind the other. Records that are not kept leave no gaps.
    bytes: Vec<u8>,
    /// The time of each record, and where it begins and ends.
    records: Vec<(u64, usize, usize)>,
}

/// Says where a record is that cannot be read.
fn record_at(byte: u64) -> String {
    format!("the record at byte {byte}")
}

impl Waiting {
    /// Reads one record behind the others, and returns its length, or `None` if there is none.
    fn read(&mut self, input: &mut impl Read) -> Result<Option<usize>> {
        let from = self.bytes.len();
        let mut read = |bytes: &mut Vec<u8>, length: usize| -> Result<usize> {
            let found = input.by_ref().take(length as u64).read_to_end(bytes)?;
            ensure!(found == length || found == 0, "{found} bytes found, {length} expected");
            Ok(found)
        };
        if read(&mut self.bytes, RECORD_BYTES)? == 0 {
            return Ok(None);
        }
        let size = Input(&self.bytes[from + RECORD_BYTES - 2..]).u16()?;
        let length = usize::from(size).checked_sub(RECORD_BYTES);
        let length = length.with_context(|| format!("a record of {size} bytes found"))?;
        let found = read(&mut self.bytes, length)?;
        ensure!(found == length, "{found} bytes found, {length} expected");
        Ok(Some(usize::from(size)))
    }

    /// Returns the bytes of the record that was read last, which has this length.
    fn last(&self, length: usize) -> &[u8] {
        &self.bytes[self.bytes.len() - length..]
    }

    /// Keeps the record that was read last.
    fn keep(&mut self, time: u64, length: usize) {
        let end = self.bytes.len();
        self.records.push((time, end - length, end));
    }

    /// Forgets the record that was read last.
    fn forget(&mut self, length: usize) {
        self.bytes.truncate(self.bytes.len() - length);
    }

    /// Takes the records of up to this time, in the order of their times. Those of one time are in
    /// the order in which they were read.
    fn take_until(
        &mut self,
        time: u64,
        mut take: impl FnMut(Record<'_>) -> Result<()>,
    ) -> Result<()> {
        self.records.sort_unstable();
        let due = self.records.partition_point(|record| record.0 <= time);
        for &(_, from, end) in &self.records[..due] {
            let record = Record::of(&self.bytes[from..end])?;
            take(record).with_context(|| format!("a record of kind {}", record.kind))?;
        }
        let mut kept = Self::default();
        for &(time, from, end) in &self.records[due..] {
            kept.bytes.extend(&self.bytes[from..end]);
            kept.keep(time, end - from);
        }
        *self = kept;
        Ok(())
    }
}

impl Reader {
    fn new(events: Vec<Event>, features: &Features) -> Result<Self> {
        let names = match features.get(&feature::EVENT_DESC) {
            Some(section) => names(Input(section)).context("names of events")?,
            None => Vec::new(),
        };
        let command = match features.get(&feature::CMDLINE) {
            Some(section) => command(Input(section)).context("the command line")?,
            None => Vec::new(),
        };
        let profile = |(n, event): (usize, &Event)| {
            let name = names.get(n).cloned();
            let name = name.unwrap_or_else(|| format!("{}:{:#x}", event.kind, event.config));
            let mut profile =
                Profile::new(command.clone(), "perf".to_owned(), name, event.period.max(1));
            profile.call_graph = event.has(perf::PERF_SAMPLE_CALLCHAIN);
            profile.frequency = (event.flags & flag::FREQ != 0).then_some(event.period);
            profile
        };
        let sampled =
            |profile| Sampled { profile, samples: Samples::default(), modules: HashMap::new() };
        let ids = events
            .iter()
            .enumerate()
            .flat_map(|(n, event)| event.ids.iter().map(move |&id| (id, n)));
        let build_ids = match features.get(&feature::BUILD_ID) {
            Some(section) => build_ids(Input(section)).context("build-ids")?,
            None => HashMap::new(),
        };
        Ok(Self {
            ids: ids.collect(),
            sampled: events.iter().enumerate().map(profile).map(sampled).collect(),
            events,
            spaces: HashMap::new(),
            maps: 0,
            names: HashMap::new(),
            files: Vec::new(),
            places: HashMap::new(),
            build_ids,
            start: None,
        })
    }

    /// Reads all records, in the order of their times. Those of different CPUs are in no order.
    ///
    /// A round has all records that were in any ring when it began. So at its end there are no
    /// more records to come that are older than the latest one of the round before.
    fn records(&mut self, mut input: impl Read) -> Result<()> {
        let (mut waiting, mut at) = (Waiting::default(), 0);
        let (mut latest, mut latest_before) = (0, 0);
        while let Some(bytes) = waiting.read(&mut input).with_context(|| record_at(at))? {
            let record = Record::of(waiting.last(bytes))?;
            let time = self.time_of(&record).with_context(|| record_at(at))?;
            let is_end = record.kind == user_record::FINISHED_ROUND;
            at += bytes as u64;
            match time {
                Some(time) => waiting.keep(time, bytes),
                None => waiting.forget(bytes),
            }
            latest = time.unwrap_or(0).max(latest);
            if is_end {
                waiting.take_until(latest_before, |record| self.take(record))?;
                latest_before = latest;
            }
        }
        waiting.take_until(u64::MAX, |record| self.take(record))
    }

    /// Returns the time of a record, 0 if it has none, or `None` for records without meaning here.
    fn time_of(&self, record: &Record<'_>) -> Result<Option<u64>> {
        match record.kind {
            perf::PERF_RECORD_AUX | user_record::AUXTRACE_INFO | user_record::AUXTRACE => {
                bail!("{AUX}")
            }
            user_record::COMPRESSED | user_record::COMPRESSED2 => bail!("{COMPRESSED}"),
            perf::PERF_RECORD_MMAP
            | perf::PERF_RECORD_MMAP2
            | perf::PERF_RECORD_COMM
            | perf::PERF_RECORD_FORK
            | perf::PERF_RECORD_LOST
            | perf::PERF_RECORD_LOST_SAMPLES
            | perf::PERF_RECORD_SAMPLE => Ok(Some(self.time(record)?)),
            _ => Ok(None),
        }
    }

    fn time(&self, record: &Record<'_>) -> Result<u64> {
        if record.kind == perf::PERF_RECORD_SAMPLE {
            let (_, event) = self.event(record)?;
            return Ok(Sample::read(event, record.body)?.time.unwrap_or(0));
        }
        Ok(self.at_end(record, perf::PERF_SAMPLE_TIME)?.unwrap_or(0))
    }

    /// Returns one of the fields at the end of a record that is no sample, if it is there.
    fn at_end(&self, record: &Record<'_>, field: u32) -> Result<Option<u64>> {
        // The thread is before these, which are 8 bytes each.
        const FIELDS: [u32; 5] = [
            perf::PERF_SAMPLE_TIME,
            perf::PERF_SAMPLE_ID,
            perf::PERF_SAMPLE_STREAM_ID,
            perf::PERF_SAMPLE_CPU,
            perf::PERF_SAMPLE_IDENTIFIER,
        ];
        // All events have the same fields there. If they have not, the fields of the first one are
        // as good as any.
        let event = &self.events[0];
        if event.flags & flag::SAMPLE_ID_ALL == 0 || !event.has(field) {
            return Ok(None);
        }
        let from_it_on = FIELDS.into_iter().skip_while(|&other| other != field);
        let length = 8 * from_it_on.filter(|&field| event.has(field)).count();
        let at = record.body.len().checked_sub(length).context("its last fields are missing")?;
        Input(&record.body[at..]).u64().map(Some)
    }

    /// Returns the event of a sample.
    fn event(&self, record: &Record<'_>) -> Result<(usize, &Event)> {
        let first = &self.events[0];
        if self.events.len() == 1 {
            return Ok((0, first));
        }
        // Either each sample begins with the identifier, or all have it at the same place.
        let id = match first.has(perf::PERF_SAMPLE_IDENTIFIER) {
            true => Input(record.body).u64()?,
            false => Sample::read(first, record.body)?.id,
        };
        let n = *self.ids.get(&id).with_context(|| format!("no event has the identifier {id}"))?;
        Ok((n, &self.events[n]))
    }

    fn take(&mut self, record: Record<'_>) -> Result<()> {
        match record.kind {
            perf::PERF_RECORD_SAMPLE => self.sample(&record),
            perf::PERF_RECORD_COMM => self.name(&record),
            perf::PERF_RECORD_FORK => self.fork(&record),
            perf::PERF_RECORD_LOST | perf::PERF_RECORD_LOST_SAMPLES => self.lose(&record),
            _ => self.map(&record),
        }
    }

    fn name(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let (pid, tid) = (input.u32()?, input.u32()?);
        self.names.insert(tid, harmless(&text(input.0)));
        if record.has(perf::PERF_RECORD_MISC_COMM_EXEC) {
            // The process executes another program, whose files are not mapped yet.
            self.spaces.remove(&pid);
        }
        Ok(())
    }

    fn fork(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let [pid, parent, tid, starter] = [input.u32()?, input.u32()?, input.u32()?, input.u32()?];
        if let Some(name) = self.names.get(&starter) {
            self.names.insert(tid, name.clone());
        }
        if pid != parent {
            let space = self.spaces.get(&parent).cloned().unwrap_or_default();
            self.spaces.insert(pid, space);
        }
        Ok(())
    }

    fn lose(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let id = match record.kind {
            perf::PERF_RECORD_LOST => Some(input.u64()?),
            _ if self.events[0].has(perf::PERF_SAMPLE_IDENTIFIER) => {
                self.at_end(record, perf::PERF_SAMPLE_IDENTIFIER)?
            }
            _ => self.at_end(record, perf::PERF_SAMPLE_ID)?,
        };
        let event = id.and_then(|id| self.ids.get(&id).copied()).unwrap_or(0);
        let lost = &mut self.sampled[event].profile.lost;
        *lost = lost.saturating_add(input.u64()?);
        Ok(())
    }

    fn map(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let (pid, _) = (input.u32()?, input.u32()?);
        let (start, length, offset) = (input.u64()?, input.u64()?, input.u64()?);
        let (mut executable, mut id) = (!record.has(perf::PERF_RECORD_MISC_MMAP_DATA), None);
        if record.kind == perf::PERF_RECORD_MMAP2 {
            // These bytes are the file's build-id, or its device, inode and generation.
            let mut file = Input(input.take(24)?);
            if record.has(perf::PERF_RECORD_MISC_MMAP_BUILD_ID) {
                let length = file.u32()? & 0xff;
                id = Some(to_hex(file.take(length.min(BUILD_ID_BYTES as u32).into())?));
            }
            executable = input.u32()? & libc::PROT_EXEC as u32 != 0;
            input.u32()?;
        }
        // The kernel's own code belongs to no process.
        let Some(end) = start.checked_add(length) else { bail!("{length} bytes at {start:#x}") };
        if pid == u32::MAX || !executable || length == 0 {
            return Ok(());
        }
        let file = self.file(before_zero(input.0), id);
        let space = self.spaces.entry(pid).or_default();
        self.maps += 1 + if Rc::strong_count(space) > 1 { space.len() } else { 0 };
        ensure!(self.maps <= MAPS_MAX, "more than {MAPS_MAX} mappings found");
        replace(Rc::make_mut(space), start, Map { end, offset, file });
        Ok(())
    }

    /// Returns the index of a file, or `None` for memory without one.
    fn file(&mut self, path: &[u8], id: Option<String>) -> Option<usize> {
        let is_memory = path.is_empty()
            || [&b"//anon"[..], b"/dev/zero", b"/anon_hugepage", b"/memfd:", b"/SYSV", b"[heap]"]
                .iter()
                .any(|name| path.starts_with(name));
        if is_memory {
            return None;
        }
        if let Some(&place) = self.places.get(path) {
            return Some(place);
        }
        let known = id.or_else(|| self.build_ids.get(path).cloned());
        let name = OsStr::from_bytes(path);
        let mut facts = Facts::default();
        if path.starts_with(b"/") {
            facts = Facts::read(Path::new(name));
        }
        // The file may have changed, which is noticed when its functions are named.
        facts.build_id = known.or(facts.build_id);
        self.files.push(Module::new(name, facts));
        self.places.insert(path.to_vec(), self.files.len() - 1);
        Some(self.files.len() - 1)
    }

    fn sample(&mut self, record: &Record<'_>) -> Result<()> {
        let (n, event) = self.event(record)?;
        let sample = Sample::read(event, record.body)?;
        let period = sample.period.unwrap_or(event.period);
        let mut mode = record.misc & perf::PERF_RECORD_MISC_CPUMODE_MASK;
        let sampled = &mut self.sampled[n];
        let space = self.spaces.get(&sample.pid);
        let mut frames = vec![sampled.frame(&self.files, space, mode, sample.address)];
        // The first address in each mode is where the thread was, those behind it are callers.
        let (mut is_caller, mut is_first) = (true, true);
        for address in sample.chain.chunks_exact(8).map(|word| Input(word).u64()) {
            let address = address?;
            if address >= perf::PERF_CONTEXT_MAX {
                (mode, is_caller) = (mode_of(address), false);
            } else if is_first {
                (is_first, is_caller) = (false, true);
            } else if frames.len() < DEPTH_MAX {
                // A return address may already belong to another function.
                let address = address.saturating_sub(u64::from(is_caller));
                frames.push(sampled.frame(&self.files, space, mode, address));
                is_caller = true;
            }
        }
        let name = self.names.get(&sample.tid).map_or("", |name| name);
        let thread = sampled.thread(sample.pid, sample.tid, name);
        let start = *self.start.get_or_insert(sample.time.unwrap_or(0));
        let time = sample.time.map(|time| time.saturating_sub(start));
        sampled.samples.add_one(thread, &frames, period, time);
        Ok(())
    }

    fn finish(self, features: &Features) -> Result<Vec<Profile>> {
        let machine = machine(features).context("the machine's names")?;
        let profile = |sampled: Sampled| {
            let Sampled { mut profile, samples, .. } = sampled;
            samples.fill(&mut profile);
            profile.machine = machine.clone();
            profile.count_by_samples();
            profile.check()?;
            Ok(profile)
        };
        self.sampled.into_iter().map(profile).collect()
    }
}

impl Sampled {
    /// Returns the index of a thread, whose name is this one now.
    fn thread(&mut self, pid: u32, tid: u32, name: &str) -> u32 {
        let thread = self.samples.thread(&mut self.profile, pid, tid, String::new);
        let known = &mut self.profile.threads[thread as usize].name;
        if known != name {
            name.clone_into(known);
        }
        thread
    }

    fn frame(&mut self, files: &[Module], space: Option<&Space>, mode: u32, at: u64) -> Frame {
        let name = match mode {
            perf::PERF_RECORD_MISC_KERNEL => Some(KERNEL),
            perf::PERF_RECORD_MISC_USER | perf::PERF_RECORD_MISC_CPUMODE_UNKNOWN => None,
            _ => Some(ELSEWHERE),
        };
        let before = space.and_then(|space| space.range(..=at).next_back());
        let map = before.filter(|(_, map)| at < map.end);
        let (place, address) = match (name, map) {
            (Some(name), _) => (Place::Named(name), at),
            (None, Some((start, &Map { offset, file: Some(file), .. }))) => {
                let offset = offset.wrapping_add(at - start);
                (Place::File(file), elf::address(&files[file].code, offset).unwrap_or(offset))
            }
            (None, _) => return Frame { module: None, address: at },
        };
        let modules = &mut self.profile.modules;
        let module = *self.modules.entry(place).or_insert_with(|| {
            modules.push(match place {
                Place::File(file) => files[file].clone(),
                Place::Named(name) => {
                    let mut module = Module::new(name.as_ref(), Facts::default());
                    module.layer = (name == KERNEL).then_some(Layer::Kernel);
                    module
                }
            });
            modules.len() as u32 - 1
        });
        Frame { module: Some(module), address }
    }
}

/// Puts a mapping where others may have been, of which the rest stays.
pub(super) fn replace(space: &mut BTreeMap<u64, Map>, start: u64, map: Map) {
    let under = space.range(..map.end).rev().take_while(|(_, under)| under.end > start);
    let under: Vec<(u64, Map)> = under.map(|(&first, &under)| (first, under)).collect();
    for (first, old) in under {
        space.remove(&first);
        if first < start {
            space.insert(first, Map { end: start, ..old });
        }
        if old.end > map.end {
            let offset = old.offset.wrapping_add(map.end - first);
            space.insert(map.end, Map { offset, ..old });
        }
    }
    space.insert(start, map);
}

/// Returns the mode, as records encode it, for a mark between the addresses of callers.
fn mode_of(context: u64) -> u32 {
    match context {
        perf::PERF_CONTEXT_KERNEL => perf::PERF_RECORD_MISC_KERNEL,
        perf::PERF_CONTEXT_USER => perf::PERF_RECORD_MISC_USER,
        _ => perf::PERF_RECORD_MISC_HYPERVISOR,
    }
}

/// A sample as far as it is needed here.
struct Sample<'a> {
    id: u64,
    address: u64,
    pid: u32,
    tid: u32,
    time: Option<u64>,
    period: Option<u64>,
    /// Words of 8 bytes.
    chain: &'a [u8],
}

impl<'a> Sample<'a> {
    fn read(event: &Event, body: &'a [u8]) -> Result<Self> {
        let mut input = Input(body);
        let field = |field, input: &mut Input<'a>| -> Result<Option<u64>> {
            event.has(field).then(|| input.u64()).transpose()
        };
        let identifier = field(perf::PERF_SAMPLE_IDENTIFIER, &mut input)?;
        let address = field(perf::PERF_SAMPLE_IP, &mut input)?.unwrap_or(0);
        let (pid, tid) = (input.u32()?, input.u32()?);
        let time = field(perf::PERF_SAMPLE_TIME, &mut input)?;
        field(perf::PERF_SAMPLE_ADDR, &mut input)?;
        let id = field(perf::PERF_SAMPLE_ID, &mut input)?;
        field(perf::PERF_SAMPLE_STREAM_ID, &mut input)?;
        field(perf::PERF_SAMPLE_CPU, &mut input)?;
        let period = field(perf::PERF_SAMPLE_PERIOD, &mut input)?;
        if event.has(perf::PERF_SAMPLE_READ) {
            skip_counts(&mut input, event.read_format)?;
        }
        let length = field(perf::PERF_SAMPLE_CALLCHAIN, &mut input)?.unwrap_or(0);
        let length = length.checked_mul(8).with_context(|| format!("{length} callers found"))?;
        let chain = input.take(length)?;
        Ok(Self { id: identifier.or(id).unwrap_or(0), address, pid, tid, time, period, chain })
    }
}

/// Skips the counts that a sample may have.
fn skip_counts(input: &mut Input<'_>, format: u64) -> Result<()> {
    let has = |flag: u32| u64::from(format & u64::from(flag) != 0);
    let times =
        has(perf::PERF_FORMAT_TOTAL_TIME_ENABLED) + has(perf::PERF_FORMAT_TOTAL_TIME_RUNNING);
    let each = 1 + has(perf::PERF_FORMAT_ID) + has(perf::PERF_FORMAT_LOST);
    let counts = if has(perf::PERF_FORMAT_GROUP) == 1 { input.u64()? } else { 1 };
    let words = counts.checked_mul(each).and_then(|words| words.checked_add(times)?.checked_mul(8));
    input.take(words.with_context(|| format!("{counts} counts in a sample found"))?)?;
    Ok(())
}

/// Returns the names of the events.
fn names(mut section: Input<'_>) -> Result<Vec<String>> {
    let (count, attribute_bytes) = (section.u32()?, section.u32()?);
    let mut names = Vec::new();
    for _ in 0..count {
        section.take(attribute_bytes.into())?;
        let ids = section.u32()?;
        names.push(section.counted_name()?);
        section.take(8 * u64::from(ids))?;
    }
    Ok(names)
}

fn command(mut section: Input<'_>) -> Result<Vec<String>> {
    let count = section.u32()?;
    (0..count).map(|_| section.counted_name()).collect()
}

/// Returns the machine that the file was recorded on.
fn machine(features: &Features) -> Result<Option<Machine>> {
    let section = |feature| features.get(&feature).map(|section| Input(section));
    let (Some(mut host), Some(mut release), Some(mut cpus)) =
        (section(feature::HOSTNAME), section(feature::OSRELEASE), section(feature::NRCPUS))
    else {
        return Ok(None);
    };
    // The number of CPUs that may exist comes first.
    cpus.u32()?;
    let (host, release) = (host.counted_name()?, release.counted_name()?);
    Ok(Some(Machine { host, release, cpus: cpus.u32()? }))
}

fn build_ids(mut section: Input<'_>) -> Result<HashMap<Vec<u8>, String>> {
    let mut ids = HashMap::new();
    while !section.0.is_empty() {
        let (_, misc, size) = (section.u32()?, section.u16()?, section.u16()?);
        let length = usize::from(size).checked_sub(RECORD_BYTES).context("a short record")?;
        let mut body = Input(section.take(length as u64)?);
        body.u32()?;
        let id = body.take(BUILD_ID_BYTES as u64)?;
        let used = match u32::from(misc) & BUILD_ID_SIZED {
            0 => BUILD_ID_BYTES,
            _ => usize::from(body.0.first().copied().unwrap_or(0)).min(BUILD_ID_BYTES),
        };
        body.u32()?;
        ids.insert(before_zero(body.0).to_vec(), to_hex(&id[..used]));
    }
    Ok(ids)
}
