// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Takes a file of perf's apart: into sections, events' attributes, and records in the order of
//! their times.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

use anyhow::{Context, Result, ensure};

use super::{
    HEADER_BYTES, MAGIC, MAGIC_OLD, RECORD_BYTES, SECTION_BYTES, feature, flag, perf, user_record,
};

/// The most events. Each is a profile of its own.
const EVENTS_MAX: u64 = 256;
/// The most bytes of a `perf_event_attr`, which may be longer for later kernels.
const ATTRIBUTE_BYTES_MAX: u64 = 4096;
/// The length of the fields of a `perf_event_attr` between its flags and the kinds of branches,
/// which say when its reader is woken and where a breakpoint is. Unit: bytes.
const WAKEUP_BYTES: u64 = 24;

/// A file whose header, events and sections have been read, and whose records have not.
pub struct Opened<'a, F> {
    file: Sections<'a, F>,
    records: Section,
    pub events: Vec<Event>,
    pub features: Features,
}

impl<'a, F: Read + Seek> Opened<'a, F> {
    pub fn new(file: &'a mut F) -> Result<Self> {
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
        Ok(Self { file, records, events, features })
    }

    /// Returns all records from the first one on.
    pub fn records(&mut self) -> Result<impl Read> {
        self.file.at(&self.records)
    }
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
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let found = self.0.len();
        let taken = usize::try_from(length).ok().and_then(|length| self.0.split_at_checked(length));
        let (taken, rest) =
            taken.with_context(|| format!("{found} bytes found, {length} expected"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
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
    pub fn counted_name(&mut self) -> Result<String> {
        let length = self.u32()?;
        Ok(text(self.take(length.into())?))
    }
}

/// Returns what is before the first zero.
pub fn before_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(before_zero(bytes)).into_owned()
}

/// The sections behind the records, by their numbers.
pub type Features = BTreeMap<u32, Vec<u8>>;

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

pub const AUX: &str = "a processor's trace (Intel PT, for example) found, samples expected";
pub const COMPRESSED: &str = "compressed records found; `perf record` without `-z` writes others";

/// A `perf_event_attr`, as far as it is needed here.
pub struct Event {
    pub kind: u32,
    pub config: u64,
    /// The period, or the frequency.
    pub period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    /// The kinds of the branches in samples, `PERF_SAMPLE_BRANCH_*`.
    pub branch_kinds: u64,
    /// The numbers by which records name it.
    pub ids: Vec<u64>,
}

impl Event {
    pub fn has(&self, field: u32) -> bool {
        self.sample_type & u64::from(field) != 0
    }

    /// Returns whether the branches of samples are those that were taken last. A processor can also
    /// keep only the calls that have not returned yet.
    pub fn has_branches(&self) -> bool {
        let calls_only = self.branch_kinds & u64::from(perf::PERF_SAMPLE_BRANCH_CALL_STACK) != 0;
        self.has(perf::PERF_SAMPLE_BRANCH_STACK) && !calls_only
    }

    /// Returns one of the fields at the end of a record that is no sample, if it is there.
    pub fn at_end(&self, record: &Record<'_>, field: u32) -> Result<Option<u64>> {
        // They are 8 bytes each.
        const FIELDS: [u32; 6] = [
            perf::PERF_SAMPLE_TID,
            perf::PERF_SAMPLE_TIME,
            perf::PERF_SAMPLE_ID,
            perf::PERF_SAMPLE_STREAM_ID,
            perf::PERF_SAMPLE_CPU,
            perf::PERF_SAMPLE_IDENTIFIER,
        ];
        if self.flags & flag::SAMPLE_ID_ALL == 0 || !self.has(field) {
            return Ok(None);
        }
        let from_it_on = FIELDS.into_iter().skip_while(|&other| other != field);
        let length = 8 * from_it_on.filter(|&field| self.has(field)).count();
        let at = record.body.len().checked_sub(length).context("its last fields are missing")?;
        Input(&record.body[at..]).u64().map(Some)
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
        let (attribute, ids) = attribute.split_at((each - SECTION_BYTES) as usize);
        let mut input = Input(attribute);
        let (kind, _, config) = (input.u32()?, input.u32()?, input.u64()?);
        let (period, sample_type) = (input.u64()?, input.u64()?);
        let (read_format, flags) = (input.u64()?, input.u64()?);
        // Attributes of old versions end before the kinds of branches.
        let branch_kinds = input.take(WAKEUP_BYTES).and_then(|_| input.u64()).unwrap_or(0);
        let ids = Input(ids).section(file.bytes).context("identifiers of an event")?;
        known += ids.bytes;
        ensure!(known <= file.bytes, "identifiers of {known} bytes found in {}", file.bytes);
        let ids = file.read(&ids)?;
        let ids = ids.chunks_exact(8).map(|id| Input(id).u64()).collect::<Result<_>>()?;
        events.push(Event {
            kind,
            config,
            period,
            sample_type,
            read_format,
            flags,
            branch_kinds,
            ids,
        });
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

/// A record of the kernel's.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    pub kind: u32,
    pub misc: u32,
    pub body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the record in these bytes, whose length is the record's.
    pub fn of(bytes: &'a [u8]) -> Result<Self> {
        let mut input = Input(bytes);
        let (kind, misc, _) = (input.u32()?, input.u16()?.into(), input.u16()?);
        Ok(Self { kind, misc, body: input.0 })
    }

    pub fn has(&self, misc: u32) -> bool {
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

/// What is done with records in the order of their times.
pub trait Ordered {
    /// Returns the time of a record, 0 if it has none, or `None` for records without meaning here.
    fn time_of(&self, record: &Record<'_>) -> Result<Option<u64>>;
    /// Takes the next record.
    fn take(&mut self, record: Record<'_>) -> Result<()>;
}

/// Reads all records, in the order of their times. Those of different CPUs are in no order.
///
/// A round has all records that were in any ring when it began. So at its end there are no more
/// records to come that are older than the latest one of the round before.
pub fn in_order(mut input: impl Read, taker: &mut impl Ordered) -> Result<()> {
    let (mut waiting, mut at) = (Waiting::default(), 0);
    let (mut latest, mut latest_before) = (0, 0);
    while let Some(bytes) = waiting.read(&mut input).with_context(|| record_at(at))? {
        let record = Record::of(waiting.last(bytes))?;
        let time = taker.time_of(&record).with_context(|| record_at(at))?;
        let is_end = record.kind == user_record::FINISHED_ROUND;
        at += bytes as u64;
        match time {
            Some(time) => waiting.keep(time, bytes),
            None => waiting.forget(bytes),
        }
        latest = time.unwrap_or(0).max(latest);
        if is_end {
            waiting.take_until(latest_before, |record| taker.take(record))?;
            latest_before = latest;
        }
    }
    waiting.take_until(u64::MAX, |record| taker.take(record))
}

/// Reads all records, in the order in which they are in the file.
pub fn in_file(mut input: impl Read, mut take: impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
    let (mut waiting, mut at) = (Waiting::default(), 0);
    while let Some(bytes) = waiting.read(&mut input).with_context(|| record_at(at))? {
        take(Record::of(waiting.last(bytes))?).with_context(|| record_at(at))?;
        waiting.forget(bytes);
        at += bytes as u64;
    }
    Ok(())
}
