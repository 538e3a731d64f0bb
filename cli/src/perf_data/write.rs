// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes profiles as a file of perf's.
//!
//! A profile has addresses as files state them, and not where each process had mapped the files. So
//! each process gets an address space in which they could have been: programs with fixed addresses
//! are there, and all other files where there is room. The hypervisor and the kernels of a host's
//! profile stay at their addresses.

mod space;
mod who;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, ensure};
use perfctr::Event;
use perfctr::raw::perf_numbers;
use perfctr_gate::text::harmless;

use self::space::{Map, Space, is_users, spaces};
use super::{
    BUILD_ID_BYTES, BUILD_ID_SIZED, HEADER_BYTES, MAGIC, RECORD_BYTES, SECTION_BYTES, feature,
    flag, perf, user_record,
};
use crate::elf::{Segment, from_hex};
use crate::profile::{Branch, Machine, Module, Profile, Stack, Symbol};

/// The most samples of a file, each of which is a record. They are in memory at once.
const SAMPLES_MAX: u64 = 10_000_000;
/// Names in sections are padded to a multiple of this. Unit: bytes.
const NAME_BYTES: usize = 64;
/// The number of no process in particular.
const NOBODY: u32 = u32::MAX;

/// Returns the file. Each profile is an event of it.
pub fn encode(profiles: &[Profile]) -> Result<Vec<u8>> {
    let samples = profiles.iter().map(|profile| u128::from(profile.samples())).sum::<u128>();
    ensure!(
        samples <= u128::from(SAMPLES_MAX),
        "{samples} samples found, {SAMPLES_MAX} at most expected in a file of perf's"
    );
    profiles.iter().try_for_each(who::check)?;
    let writer = Writer::new(profiles)?;
    let records = writer.records()?;
    Ok(writer.file(&records))
}

/// Code that a process or a kernel has mapped.
pub struct Mapped<'a> {
    pub pid: u32,
    pub start: u64,
    pub size: u64,
    pub offset: u64,
    pub path: &'a [u8],
    pub build_id: Option<&'a str>,
}

/// Numbers and names as a file has them.
#[derive(Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// Adds a name that ends with a zero, and is padded with zeros to a multiple of this many
    /// bytes.
    pub fn name(&mut self, name: &[u8], multiple: usize) -> &mut Self {
        let end = self.0.len() + (name.len() + 1).next_multiple_of(multiple);
        self.0.extend(name);
        self.0.resize(end, 0);
        self
    }

    /// Adds such a name after its length.
    pub fn counted_name(&mut self, name: &str) -> &mut Self {
        self.u32((name.len() + 1).next_multiple_of(NAME_BYTES) as u32);
        self.name(name.as_bytes(), NAME_BYTES)
    }

    /// Adds what a record of mapped code has before the fields at its end. Returns the bit of its
    /// header which says that there is a build-id, or 0 if there is none.
    pub fn map(&mut self, map: &Mapped<'_>) -> u32 {
        let Mapped { pid, start, size, offset, path, build_id } = *map;
        self.u32(pid).u32(pid).u64(start).u64(size).u64(offset);
        let misc = match build_id.and_then(binary) {
            Some(id) => {
                self.u32(id.len() as u32).0.extend(&id);
                self.0.resize(self.0.len() + BUILD_ID_BYTES - id.len(), 0);
                perf::PERF_RECORD_MISC_MMAP_BUILD_ID
            }
            None => {
                // The file's device, inode and generation are not known.
                self.u32(0).u32(0).u64(0).u64(0);
                0
            }
        };
        self.u32((libc::PROT_READ | libc::PROT_EXEC) as u32).u32(libc::MAP_PRIVATE as u32);
        self.name(path, 8);
        misc
    }

    /// Returns a record of this kind, which has these bytes as its body.
    pub fn record(&self, kind: u32, misc: u32) -> Result<Vec<u8>> {
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
    processes: BTreeMap<u32, Process>,
    spaces: HashMap<u32, Space<'a>>,
    /// The kernel; of a host, the hypervisor and the control domain's kernel.
    kernels: Vec<&'a Module>,
    /// The time of the last sample. Unit: ns.
    end: u64,
}

/// A process, with the names of its threads.
#[derive(Default)]
struct Process {
    /// The mode in which it executes.
    mode: u32,
    threads: BTreeMap<u32, String>,
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
        if profiles.iter().any(|profile| profile.branches.is_some()) {
            sample_type |= perf::PERF_SAMPLE_BRANCH_STACK;
        }
        let mut stacks = profiles.iter().flat_map(|profile| &profile.stacks);
        if stacks.any(|stack| stack.cpu.is_some()) {
            sample_type |= perf::PERF_SAMPLE_CPU;
        }
        let mut processes = BTreeMap::<u32, Process>::new();
        for profile in profiles {
            for thread in &profile.threads {
                let process = processes.entry(who::process(profile, thread)).or_default();
                process.mode = who::user_mode(profile, thread);
                process.threads.insert(who::thread(profile, thread), profile.name(thread));
            }
        }
        let (spaces, kernels) = (spaces(profiles)?, kernels(profiles));
        let (sample_type, end) = (u64::from(sample_type), end.copied().unwrap_or(0));
        Ok(Self { profiles, sample_type, processes, spaces, kernels, end })
    }

    fn has(&self, field: u32) -> bool {
        self.sample_type & u64::from(field) != 0
    }

    /// Adds the fields that every record except samples has at its end. The event is the first one,
    /// if the record does not concern a certain one.
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
        self.cpu(body, None).u64(identifier(event))
    }

    /// Adds the CPU, if samples have one.
    fn cpu<'b>(&self, body: &'b mut Bytes, cpu: Option<u32>) -> &'b mut Bytes {
        if self.has(perf::PERF_SAMPLE_CPU) {
            body.u32(cpu.unwrap_or(0)).u32(0);
        }
        body
    }

    fn records(&self) -> Result<Vec<u8>> {
        let mut records = Vec::new();
        for module in &self.kernels {
            records.extend(self.kernel(module)?);
        }
        for (&pid, Process { mode, threads }) in &self.processes {
            let name = threads.get(&pid).or_else(|| threads.values().next());
            records.extend(self.name(pid, pid, name.map_or("", String::as_str), *mode)?);
            if let Some(space) = self.spaces.get(&pid) {
                for map in &space.maps {
                    records.extend(self.map(pid, map, who::map_mode(map.module, *mode))?);
                }
            }
            for (&tid, name) in threads.iter().filter(|&(&tid, _)| tid != pid) {
                records.extend(self.life(perf::PERF_RECORD_FORK, pid, tid, 0)?);
                records.extend(self.name(pid, tid, name, *mode)?);
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
        for (&pid, Process { threads, .. }) in &self.processes {
            // A process ends with its first thread, which is therefore the last one here.
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

    /// Returns the records of a name. perf distinguishes a guest's processes from its host's, which
    /// the hypervisor executes for the guest.
    fn name(&self, pid: u32, tid: u32, name: &str, mode: u32) -> Result<Vec<u8>> {
        let mut body = Bytes::default();
        body.u32(pid).u32(tid).name(name.as_bytes(), 8);
        self.identify(&mut body, 0, pid, tid, 0);
        let mut records = body.record(perf::PERF_RECORD_COMM, 0)?;
        if mode == perf::PERF_RECORD_MISC_GUEST_USER {
            records.extend(body.record(perf::PERF_RECORD_COMM, mode)?);
        }
        Ok(records)
    }

    /// Returns the record of a thread's beginning or end.
    fn life(&self, kind: u32, pid: u32, tid: u32, time: u64) -> Result<Vec<u8>> {
        let mut body = Bytes::default();
        // The numbers of the process and of the thread that started it are between them.
        body.u32(pid).u32(pid).u32(tid).u32(pid).u64(time);
        self.identify(&mut body, 0, pid, tid, time).record(kind, 0)
    }

    fn map(&self, pid: u32, map: &Map, mode: u32) -> Result<Vec<u8>> {
        let path = map.module.file();
        // perf uses a kernel's build-id in a section as that of vmlinux.
        let is_kernel = mode == perf::PERF_RECORD_MISC_KERNEL;
        let mut body = Bytes::default();
        let build_id = body.map(&Mapped {
            pid,
            start: map.start,
            size: map.size,
            offset: map.offset,
            path: path.as_os_str().as_bytes(),
            build_id: map.module.build_id.as_deref().filter(|_| is_kernel),
        });
        let body = self.identify(&mut body, 0, pid, pid, 0);
        let record = body.record(perf::PERF_RECORD_MMAP2, mode | build_id);
        record.with_context(|| format!("a path of {} bytes", path.as_os_str().len()))
    }

    /// Returns the records that name the functions of the hypervisor or a kernel. They name its
    /// file, or otherwise each function.
    fn kernel(&self, module: &Module) -> Result<Vec<u8>> {
        let mut records = Vec::new();
        for &Segment { offset, size, address } in &module.code {
            let map = Map { module, start: address, size, offset };
            records.extend(self.map(NOBODY, &map, perf::PERF_RECORD_MISC_KERNEL)?);
        }
        for Symbol { start, end, name } in &module.symbols {
            let Ok(size) = u32::try_from(end.saturating_sub(*start)) else { continue };
            let mut body = Bytes::default();
            body.u64(*start).u32(size);
            // It is of no kind that perf knows, and there are no flags.
            body.u32(0).name(harmless(&who::function(module, name)).as_bytes(), 8);
            self.identify(&mut body, 0, NOBODY, NOBODY, 0);
            let record = body.record(perf::PERF_RECORD_KSYMBOL, perf::PERF_RECORD_MISC_KERNEL);
            records.extend(record?);
        }
        Ok(records)
    }

    fn sample(&self, n: usize, stack: &Stack, time: u64) -> Result<Vec<u8>> {
        let profile = &self.profiles[n];
        let thread = &profile.threads[stack.thread as usize];
        let space = &self.spaces[&who::process(profile, thread)];
        let place = |&frame: &u32| {
            let frame = profile.frames[frame as usize];
            let address = if is_users(profile, thread, frame) {
                space.address(profile, frame)
            } else {
                frame.address
            };
            (who::mode(profile, thread, frame), address)
        };
        let frames: Vec<(u32, u64)> = stack.frames.iter().map(place).collect();
        // A stack has at least one frame.
        let (mode, address) = frames[0];
        let mut body = Bytes::default();
        body.u64(identifier(n)).u64(address);
        body.u32(who::process(profile, thread)).u32(who::thread(profile, thread));
        if self.has(perf::PERF_SAMPLE_TIME) {
            body.u64(time);
        }
        self.cpu(&mut body, stack.cpu);
        body.u64(profile.period);
        if self.has(perf::PERF_SAMPLE_CALLCHAIN) {
            // The callers' addresses are within their calls, and not behind them. perf uses an
            // address as it is, so it finds the function that has made the call. Before the first
            // address of a mode, a word states the mode.
            let mut chain = Vec::new();
            for part in frames.chunk_by(|(one, _), (next, _)| one == next) {
                chain.push(who::context(part[0].0));
                chain.extend(part.iter().map(|(_, address)| address));
            }
            body.u64(chain.len() as u64);
            chain.into_iter().for_each(|word| _ = body.u64(word));
        }
        if self.has(perf::PERF_SAMPLE_BRANCH_STACK) {
            body.u64(stack.branches.len() as u64);
            for &branch in &stack.branches {
                let Branch { from, to, flags } = profile.branches()[branch as usize];
                body.u64(place(&from).1).u64(place(&to).1).u64(flags);
            }
        }
        body.record(perf::PERF_RECORD_SAMPLE, mode)
    }

    /// Returns the record of how many further samples of an event there should have been.
    fn missed(&self, n: usize, missed: u64) -> Result<Vec<u8>> {
        let mut body = Bytes::default();
        body.u64(missed);
        let body = self.identify(&mut body, n, NOBODY, NOBODY, self.end);
        body.record(perf::PERF_RECORD_LOST_SAMPLES, 0)
    }

    /// Puts everything together: header, identifiers, attributes, records, and the sections behind
    /// them.
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
        let (rate, rate_flag) = match profile.frequency {
            Some(frequency) => (frequency, flag::FREQ),
            None => (profile.period, 0),
        };
        let mut attribute = Bytes::default();
        attribute.u32(kind).u32(perf::PERF_ATTR_SIZE_VER5).u64(config).u64(rate);
        attribute.u64(self.sample_type).u64(0).u64(flag::SAMPLE_ID_ALL | kernel | rate_flag);
        if self.has(perf::PERF_SAMPLE_BRANCH_STACK) {
            // Nobody is woken, and there is no breakpoint.
            attribute.u32(0).u32(0).u64(0).u64(0).u64(branch_kinds(&profile.event));
        }
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
        if self.has(perf::PERF_SAMPLE_BRANCH_STACK) {
            features.section(feature::BRANCH_STACK);
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
            // The number of online CPUs also serves as the number of existing ones, since nobody
            // knows better. A host has more than its control domain.
            let hosts = profile.host.iter().flat_map(|host| &host.cpus);
            let cpus = hosts.map(|cpu| cpu.saturating_add(1)).fold(*cpus, u32::max);
            features.section(feature::NRCPUS).u32(cpus).u32(cpus);
        }
        features.0
    }

    fn build_ids(&self, section: &mut Bytes) {
        let mut modules: Vec<&Module> =
            self.spaces.values().flat_map(|space| space.biases.keys().copied()).collect();
        modules.sort_by(|a, b| (&a.path, &a.build_id).cmp(&(&b.path, &b.build_id)));
        modules.dedup();
        for module in modules {
            let Some(id) = build_id(module) else { continue };
            let mut body = Bytes::default();
            body.u32(NOBODY);
            body.0.extend(&id);
            body.0.resize(4 + BUILD_ID_BYTES, 0);
            body.u32(id.len() as u32);
            body.name(module.file().as_os_str().as_bytes(), NAME_BYTES);
            let misc = perf::PERF_RECORD_MISC_USER | BUILD_ID_SIZED;
            // A path that is too long for this was refused before.
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

/// Returns which branches the samples of an event have, in the words of perf: any, in the modes of
/// the event.
fn branch_kinds(event: &str) -> u64 {
    let both = perf::PERF_SAMPLE_BRANCH_USER | perf::PERF_SAMPLE_BRANCH_KERNEL;
    let modes = match event.rsplit_once(':') {
        Some((_, "u")) => perf::PERF_SAMPLE_BRANCH_USER,
        Some((_, "k")) => perf::PERF_SAMPLE_BRANCH_KERNEL,
        _ => both,
    };
    (perf::PERF_SAMPLE_BRANCH_ANY | modes).into()
}

/// Returns the modules whose functions perf treats as those of its own kernel.
fn kernels(profiles: &[Profile]) -> Vec<&Module> {
    let mut kernels = Vec::new();
    for profile in profiles {
        let mut modules = BTreeSet::new();
        for stack in &profile.stacks {
            let thread = &profile.threads[stack.thread as usize];
            for frame in profile.places(stack) {
                if who::mode(profile, thread, frame) == perf::PERF_RECORD_MISC_KERNEL {
                    modules.extend(frame.module);
                }
            }
        }
        kernels.extend(modules.into_iter().map(|module| &profile.modules[module as usize]));
    }
    kernels.sort_by(|a, b| (&a.path, &a.build_id).cmp(&(&b.path, &b.build_id)));
    kernels.dedup();
    kernels
}

/// Returns a module's build-id, if perf has room for it.
fn build_id(module: &Module) -> Option<Vec<u8>> {
    module.build_id.as_deref().and_then(binary)
}

/// Returns the bytes of a build-id, if they have room in a file of perf's.
fn binary(build_id: &str) -> Option<Vec<u8>> {
    from_hex(build_id).filter(|id| id.len() <= BUILD_ID_BYTES)
}

/// Returns the number by which records name an event.
fn identifier(event: usize) -> u64 {
    event as u64 + 1
}
