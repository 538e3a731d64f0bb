// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes profiles as a file of perf's.
//!
//! A profile knows addresses as files state them, and not where each process had mapped the files.
//! So each process gets an address space in which they could have been: a program with fixed
//! addresses has those, and all else is where there is room.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, ensure};
use perfctr::Event;
use perfctr::raw::perf_numbers;
use shared_abi::limits::PAGE_BYTES;

use super::{
    BUILD_ID_BYTES, BUILD_ID_SIZED, HEADER_BYTES, MAGIC, RECORD_BYTES, SECTION_BYTES, feature,
    flag, perf, user_record,
};
use crate::elf::{Segment, from_hex};
use crate::profile::{Frame, Machine, Module, Profile, Stack};
use crate::text::harmless;

/// The most samples of a file, each of which is a record. They are in memory at once.
const SAMPLES_MAX: u64 = 10_000_000;
/// The first address that is no process's.
const ADDRESS_END: u64 = 1 << 47;
/// The lowest address at which Linux lets programs map something.
const ADDRESS_MIN: u64 = 1 << 16;
/// Files that may be anywhere begin at multiples of this. Unit: bytes.
const ROOM: u64 = 1 << 30;
/// Names in sections are padded to a multiple of this. Unit: bytes.
const NAME_BYTES: usize = 64;

/// Returns the file. Each profile is an event of it.
pub fn encode(profiles: &[Profile]) -> Result<Vec<u8>> {
    let samples = profiles.iter().map(|profile| u128::from(profile.samples())).sum::<u128>();
    ensure!(
        samples <= u128::from(SAMPLES_MAX),
        "{samples} samples found, {SAMPLES_MAX} at most expected in a file of perf's"
    );
    ensure!(
        profiles.iter().all(|profile| profile.host.is_none()),
        "a host's profile found, which cannot be written as a file of perf's yet"
    );
    let writer = Writer::new(profiles)?;
    let records = writer.records()?;
    Ok(writer.file(&records))
}

/// Numbers and names as a file has them.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds a name that ends with a zero, and is padded with zeros to a multiple of so many bytes.
    fn name(&mut self, name: &[u8], multiple: usize) -> &mut Self {
        let end = self.0.len() + (name.len() + 1).next_multiple_of(multiple);
        self.0.extend(name);
        self.0.resize(end, 0);
        self
    }

    /// Adds such a name after its length.
    fn counted_name(&mut self, name: &str) -> &mut Self {
        self.u32((name.len() + 1).next_multiple_of(NAME_BYTES) as u32);
        self.name(name.as_bytes(), NAME_BYTES)
    }

    /// Returns a record of this kind, whose body this is.
    fn record(&self, kind: u32, misc: u32) -> Result<Vec<u8>> {
        let size = RECORD_BYTES + self.0.len();
        let size = u16::try_from(size)
            .with_context(|| format!("a record of {size} bytes found, {} at most", u16::MAX))?;
        let mut record = Bytes::default();
        record.u32(kind);
        record.0.extend((misc as u16).to_le_bytes());
        record.0.extend(size.to_le_bytes());
        record.0.extend(&self.0);
        Ok(record.0)
    }
}

struct Writer<'a> {
    profiles: &'a [Profile],
    /// The fields of each sample.
    sample_type: u64,
    /// The threads of each process, with their names.
    processes: BTreeMap<u32, BTreeMap<u32, &'a str>>,
    spaces: HashMap<u32, Space<'a>>,
    /// The time of the last sample. Unit: ns.
    end: u64,
}

impl<'a> Writer<'a> {
    fn new(profiles: &'a [Profile]) -> Result<Self> {
        let mut sample_type =
            perf::PERF_SAMPLE_IDENTIFIER | perf::PERF_SAMPLE_IP | perf::PERF_SAMPLE_TID;
        sample_type |= perf::PERF_SAMPLE_PERIOD;
        let mut stacks = profiles.iter().flat_map(|profile| &profile.stacks);
        if stacks.clone().all(|stack| stack.times.len() as u64 == stack.samples) {
            sample_type |= perf::PERF_SAMPLE_TIME;
        }
        let end = stacks.by_ref().flat_map(|stack| &stack.times).max();
        if profiles.iter().any(|profile| profile.call_graph) {
            sample_type |= perf::PERF_SAMPLE_CALLCHAIN;
        }
        let mut processes = BTreeMap::<u32, BTreeMap<u32, &str>>::new();
        for thread in profiles.iter().flat_map(|profile| &profile.threads) {
            processes.entry(thread.pid).or_default().insert(thread.tid, &thread.name);
        }
        let spaces = spaces(profiles)?;
        let (sample_type, end) = (u64::from(sample_type), end.copied().unwrap_or(0));
        Ok(Self { profiles, sample_type, processes, spaces, end })
    }

    fn has(&self, field: u32) -> bool {
        self.sample_type & u64::from(field) != 0
    }

    /// Adds what every record that is no sample has at its end. The event is the first one if the
    /// record is about none in particular.
    fn identify<'b>(
        &self,
        body: &'b mut Bytes,
        event: usize,
        pid: u32,
        tid: u32,
        time: u64,
    ) -> &'b mut Bytes {
        body.u32(pid).u32(tid);
        if self.has(perf::PERF_SAMPLE_TIME) {
            body.u64(time);
        }
        body.u64(identifier(event))
    }

    fn records(&self) -> Result<Vec<u8>> {
        let mut records = Vec::new();
        for (&pid, threads) in &self.processes {
            let name = threads.get(&pid).or_else(|| threads.values().next());
            records.extend(self.name(pid, pid, name.copied().unwrap_or_default())?);
            if let Some(space) = self.spaces.get(&pid) {
                for map in &space.maps {
                    records.extend(self.map(pid, map)?);
                }
            }
            for (&tid, name) in threads.iter().filter(|&(&tid, _)| tid != pid) {
                records.extend(self.life(perf::PERF_RECORD_FORK, pid, tid, 0)?);
                records.extend(self.name(pid, tid, name)?);
            }
        }
        for (time, profile, stack) in self.ordered() {
            records.extend(self.sample(profile, stack, time)?);
        }
        for (n, profile) in self.profiles.iter().enumerate() {
            if let missed @ 1.. = profile.missed() {
                records.extend(self.missed(n, missed)?);
            }
        }
        for (&pid, threads) in &self.processes {
            // A process ends with its first thread, which so is the last one.
            for &tid in threads.keys().filter(|&&tid| tid != pid).chain([&pid]) {
                records.extend(self.life(perf::PERF_RECORD_EXIT, pid, tid, self.end)?);
            }
        }
        records.extend(Bytes::default().record(user_record::FINISHED_ROUND, 0)?);
        Ok(records)
    }

    /// Returns each sample with its time, the profile's index and the stack, in the order of time.
    fn ordered(&self) -> Vec<(u64, usize, &'a Stack)> {
        let mut samples = Vec::new();
        for (n, profile) in self.profiles.iter().enumerate() {
            for stack in &profile.stacks {
                let time = |k: u64| stack.times.get(k as usize).copied().unwrap_or(0);
                samples.extend((0..stack.samples).map(|k| (time(k), n, stack)));
            }
        }
        samples.sort_by_key(|&(time, _, _)| time);
        samples
    }

    fn name(&self, pid: u32, tid: u32, name: &str) -> Result<Vec<u8>> {
        let mut body = Bytes::default();
        body.u32(pid).u32(tid).name(name.as_bytes(), 8);
        self.identify(&mut body, 0, pid, tid, 0).record(perf::PERF_RECORD_COMM, 0)
    }

    /// Returns the record of a thread's beginning or end.
    fn life(&self, kind: u32, pid: u32, tid: u32, time: u64) -> Result<Vec<u8>> {
        let mut body = Bytes::default();
        // The numbers of the process and of the thread that started it are between them.
        body.u32(pid).u32(pid).u32(tid).u32(pid).u64(time);
        self.identify(&mut body, 0, pid, tid, time).record(kind, 0)
    }

    fn map(&self, pid: u32, map: &Map) -> Result<Vec<u8>> {
        let path = map.module.file();
        let mut body = Bytes::default();
        body.u32(pid).u32(pid).u64(map.start).u64(map.size).u64(map.offset);
        // It is not known which device the file is on, which inode it has, and of which generation.
        body.u32(0).u32(0).u64(0).u64(0);
        body.u32((libc::PROT_READ | libc::PROT_EXEC) as u32).u32(libc::MAP_PRIVATE as u32);
        body.name(path.as_os_str().as_bytes(), 8);
        let body = self.identify(&mut body, 0, pid, pid, 0);
        let record = body.record(perf::PERF_RECORD_MMAP2, perf::PERF_RECORD_MISC_USER);
        record.with_context(|| format!("a path of {} bytes", path.as_os_str().len()))
    }

    fn sample(&self, n: usize, stack: &Stack, time: u64) -> Result<Vec<u8>> {
        let profile = &self.profiles[n];
        let thread = &profile.threads[stack.thread as usize];
        let space = &self.spaces[&thread.pid];
        let address = |&frame: &u32| space.address(profile, profile.frames[frame as usize]);
        let mut body = Bytes::default();
        // A stack has at least one frame.
        body.u64(identifier(n)).u64(address(&stack.frames[0])).u32(thread.pid).u32(thread.tid);
        if self.has(perf::PERF_SAMPLE_TIME) {
            body.u64(time);
        }
        body.u64(profile.period);
        if self.has(perf::PERF_SAMPLE_CALLCHAIN) {
            // The callers' addresses are within their calls, and not behind them. perf, which does
            // not look before an address, so finds the function that has called.
            body.u64(stack.frames.len() as u64 + 1).u64(perf::PERF_CONTEXT_USER);
            for frame in &stack.frames {
                body.u64(address(frame));
            }
        }
        body.record(perf::PERF_RECORD_SAMPLE, perf::PERF_RECORD_MISC_USER)
    }

    /// Returns the record of how many samples of an event there should have been besides.
    fn missed(&self, n: usize, missed: u64) -> Result<Vec<u8>> {
        let mut body = Bytes::default();
        body.u64(missed);
        // No thread in particular.
        let body = self.identify(&mut body, n, u32::MAX, u32::MAX, self.end);
        body.record(perf::PERF_RECORD_LOST_SAMPLES, 0)
    }

    /// Puts everything together: header, identifiers, attributes, records, and what is behind them.
    fn file(&self, records: &[u8]) -> Vec<u8> {
        let features = self.features();
        let count = self.profiles.len() as u64;
        let ids = HEADER_BYTES;
        let attributes = ids + 8 * count;
        let attribute_bytes = u64::from(perf::PERF_ATTR_SIZE_VER5) + SECTION_BYTES;
        let data = attributes + count * attribute_bytes;
        let table = data + records.len() as u64;
        let bits = features.keys().fold(0, |bits, feature| bits | 1_u64 << feature);

        let mut file = Bytes::default();
        file.0.extend(MAGIC);
        file.u64(HEADER_BYTES).u64(attribute_bytes);
        file.u64(attributes).u64(count * attribute_bytes);
        file.u64(data).u64(records.len() as u64);
        // The section of events' names that old versions had is empty.
        file.u64(0).u64(0);
        file.u64(bits).u64(0).u64(0).u64(0);
        for n in 0..self.profiles.len() {
            file.u64(identifier(n));
        }
        for (n, profile) in (0..).zip(self.profiles) {
            file.0.extend(self.attribute(profile));
            file.u64(ids + 8 * n).u64(8);
        }
        file.0.extend(records);
        let mut offset = table + SECTION_BYTES * features.len() as u64;
        for section in features.values() {
            file.u64(offset).u64(section.0.len() as u64);
            offset += section.0.len() as u64;
        }
        file.0.extend(features.into_values().flat_map(|section| section.0));
        file.0
    }

    /// Returns a `perf_event_attr`.
    fn attribute(&self, profile: &Profile) -> Vec<u8> {
        // Another machine's names, such as libpfm4's, have no numbers here.
        let numbers = profile.event.parse::<Event>().map(|event| perf_numbers(&event));
        let (kind, config) = numbers.unwrap_or((perf::PERF_TYPE_RAW, 0));
        let kernel = if profile.event.ends_with(":u") { flag::EXCLUDE_KERNEL } else { 0 };
        let mut attribute = Bytes::default();
        attribute.u32(kind).u32(perf::PERF_ATTR_SIZE_VER5).u64(config).u64(profile.period);
        attribute.u64(self.sample_type).u64(0).u64(flag::SAMPLE_ID_ALL | kernel);
        attribute.0.resize(perf::PERF_ATTR_SIZE_VER5 as usize, 0);
        attribute.0
    }

    /// Returns the sections behind the records, by their numbers.
    fn features(&self) -> BTreeMap<u32, Bytes> {
        let mut features = Features::default();
        self.build_ids(features.section(feature::BUILD_ID));
        self.events(features.section(feature::EVENT_DESC));
        if self.has(perf::PERF_SAMPLE_TIME) {
            let times = || self.profiles.iter().flat_map(|p| &p.stacks).flat_map(|s| &s.times);
            let first = times().min().copied().unwrap_or(0);
            features.section(feature::SAMPLE_TIME).u64(first).u64(self.end);
        }
        let Some(profile) = self.profiles.first() else { return features.0 };
        let command = features.section(feature::CMDLINE);
        command.u32(profile.command.len() as u32);
        for word in &profile.command {
            command.counted_name(word);
        }
        if let Some(Machine { host, release, cpus }) = &profile.machine {
            features.section(feature::HOSTNAME).counted_name(host);
            features.section(feature::OSRELEASE).counted_name(release);
            features.section(feature::ARCH).counted_name("x86_64");
            // All that are online are all that there are, as far as anybody knows.
            features.section(feature::NRCPUS).u32(*cpus).u32(*cpus);
        }
        features.0
    }

    fn build_ids(&self, section: &mut Bytes) {
        let mut modules: Vec<&Module> =
            self.spaces.values().flat_map(|space| space.biases.keys().copied()).collect();
        modules.sort_by(|a, b| (&a.path, &a.build_id).cmp(&(&b.path, &b.build_id)));
        modules.dedup();
        for module in modules {
            let id = module.build_id.as_deref().and_then(from_hex);
            let Some(id) = id.filter(|id| id.len() <= BUILD_ID_BYTES) else { continue };
            let mut body = Bytes::default();
            // No process in particular.
            body.u32(u32::MAX);
            body.0.extend(&id);
            body.0.resize(4 + BUILD_ID_BYTES, 0);
            body.u32(id.len() as u32);
            body.name(module.file().as_os_str().as_bytes(), NAME_BYTES);
            let misc = perf::PERF_RECORD_MISC_USER | BUILD_ID_SIZED;
            // A path that is too long for this has been refused before.
            section.0.extend(body.record(0, misc).unwrap_or_default());
        }
    }

    fn events(&self, section: &mut Bytes) {
        section.u32(self.profiles.len() as u32).u32(perf::PERF_ATTR_SIZE_VER5);
        for (n, profile) in self.profiles.iter().enumerate() {
            section.0.extend(self.attribute(profile));
            section.u32(1).counted_name(&profile.event).u64(identifier(n));
        }
    }
}

/// The sections behind the records, by their numbers.
#[derive(Default)]
struct Features(BTreeMap<u32, Bytes>);

impl Features {
    fn section(&mut self, feature: u32) -> &mut Bytes {
        self.0.entry(feature).or_default()
    }
}

/// Returns the number by which records name an event.
fn identifier(event: usize) -> u64 {
    event as u64 + 1
}

/// The address space of one process.
#[derive(Default)]
struct Space<'a> {
    /// What is added to the addresses that a file states.
    biases: HashMap<&'a Module, u64>,
    maps: Vec<Map<'a>>,
    /// Code without a file, whose addresses are the process's own.
    anonymous: BTreeSet<u64>,
    /// Where there is something already: from the first byte to the one behind the last.
    taken: BTreeMap<u64, u64>,
    /// No module that may be anywhere has been put behind this.
    next: u64,
}

/// A part of a file that is mapped.
struct Map<'a> {
    module: &'a Module,
    start: u64,
    size: u64,
    /// Where it begins in the file.
    offset: u64,
}

/// Makes the address space of each process that has samples.
fn spaces(profiles: &[Profile]) -> Result<HashMap<u32, Space<'_>>> {
    let mut spaces: HashMap<u32, Space<'_>> = HashMap::new();
    // The lowest and the highest address that a process uses in a file.
    let mut used: HashMap<(u32, &Module), (u64, u64)> = HashMap::new();
    for profile in profiles {
        for stack in &profile.stacks {
            let pid = profile.threads[stack.thread as usize].pid;
            let space = spaces.entry(pid).or_default();
            for &frame in &stack.frames {
                let Frame { module, address } = profile.frames[frame as usize];
                let Some(index) = module else {
                    space.anonymous.insert(address);
                    continue;
                };
                let module = &profile.modules[index as usize];
                let (low, high) = used.entry((pid, module)).or_insert((address, address));
                (*low, *high) = ((*low).min(address), (*high).max(address));
            }
        }
    }
    let mut used: Vec<_> = used.into_iter().collect();
    // The file is the same whenever it is written.
    used.sort_by_key(|((pid, module), _)| (*pid, &module.path, &module.build_id));
    for ((pid, module), (low, high)) in used {
        spaces.entry(pid).or_default().put(module, low, high)?;
    }
    Ok(spaces)
}

impl<'a> Space<'a> {
    /// Finds a place for a file in which these addresses are used.
    fn put(&mut self, module: &'a Module, low: u64, high: u64) -> Result<()> {
        let page = PAGE_BYTES as u64;
        let start = low - low % page;
        // What is no file is as far as it is used.
        let whole =
            [Segment { offset: start, size: (high - start).saturating_add(1), address: start }];
        let code = if module.code.is_empty() { &whole[..] } else { &module.code };
        let end = |segment: &Segment| {
            let end = segment.address.checked_add(segment.size)?.checked_next_multiple_of(page)?;
            (end <= ADDRESS_END && segment.offset < ADDRESS_END).then_some(end)
        };
        let name = harmless(&module.path);
        let ends: Option<Vec<u64>> = code.iter().map(end).collect();
        let ends = ends.with_context(|| {
            format!("{name}: addresses from {ADDRESS_END:#x} on found, lower ones expected")
        })?;
        let first = code.iter().map(|segment| segment.address).min().unwrap_or(0);
        let last = ends.iter().copied().max().unwrap_or(0);
        let bias = if first >= ADDRESS_MIN && self.is_free(first, last) {
            0
        } else {
            let size = last - first;
            let mut places = (self.next.max(ROOM)..=ADDRESS_END - size).step_by(ROOM as usize);
            let place = places.find(|&place| self.is_free(place, place + size));
            let place = place.with_context(|| format!("{name}: no room for {size} bytes"))?;
            self.next = (place + size).next_multiple_of(ROOM);
            place.wrapping_sub(first)
        };
        self.taken.insert(first.wrapping_add(bias), last.wrapping_add(bias));
        self.biases.insert(module, bias);
        for (segment, end) in code.iter().zip(ends) {
            let start = segment.address.wrapping_add(bias);
            let size = end - segment.address;
            self.maps.push(Map { module, start, size, offset: segment.offset });
        }
        Ok(())
    }

    fn is_free(&self, start: u64, end: u64) -> bool {
        let before = self.taken.range(..end).next_back();
        before.is_none_or(|(_, &taken)| taken <= start)
            && self.anonymous.range(start..end).next().is_none()
    }

    fn address(&self, profile: &Profile, frame: Frame) -> u64 {
        let module = frame.module.map(|index| &profile.modules[index as usize]);
        // Each file that has samples was put somewhere.
        let bias = module.and_then(|module| self.biases.get(module));
        frame.address.wrapping_add(bias.copied().unwrap_or(0))
    }
}
