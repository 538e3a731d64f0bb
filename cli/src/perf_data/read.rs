// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads the files that `perf record` has written.
//!
//! A file may be larger than the memory. Of its records those of about two rounds are in memory at
//! once: in a round perf has read the rings of all CPUs once.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{Read, Seek};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use shared_abi::arch::is_kernels_address;

use super::input::{
    AUX, COMPRESSED, Event, Features, Input, Opened, Ordered, Record, before_zero, in_order,
};
use super::tasks::Tasks;
use super::{
    BRANCH_BYTES, BUILD_ID_BYTES, BUILD_ID_SIZED, RECORD_BYTES, feature, flag, perf, user_record,
};
use crate::elf::{Facts, to_hex};
use crate::profile::{
    Branch, DEPTH_MAX, Frame, Layer, Machine, Module, Profile, SampleOrigin, Samples,
};

/// The names of code whose file is not known.
const KERNEL: &str = "[kernel]";
const ELSEWHERE: &str = "[hypervisor or guest]";

/// Reads the file: one profile for each event.
pub fn read(file: &mut (impl Read + Seek)) -> Result<Vec<Profile>> {
    let mut opened = Opened::new(file)?;
    let (events, features) = (mem::take(&mut opened.events), mem::take(&mut opened.features));
    let mut reader = Reader::new(events, &features)?;
    in_order(opened.records()?, &mut reader)?;
    reader.finish(&features)
}

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
    tasks: Tasks<'static>,
    /// The time of the first sample.
    start: Option<u64>,
}

impl Ordered for Reader {
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

    fn take(&mut self, record: Record<'_>) -> Result<()> {
        match record.kind {
            perf::PERF_RECORD_SAMPLE => self.sample(&record),
            perf::PERF_RECORD_LOST | perf::PERF_RECORD_LOST_SAMPLES => self.lose(&record),
            _ => self.tasks.take(&record),
        }
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
            profile.branches = event.has_branches().then(Vec::new);
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
            tasks: Tasks::new(move |path, id| {
                describe(path, id.or_else(|| build_ids.get(path.as_bytes()).cloned()))
            }),
            start: None,
        })
    }

    fn time(&self, record: &Record<'_>) -> Result<u64> {
        if record.kind == perf::PERF_RECORD_SAMPLE {
            let (_, event) = self.event(record)?;
            return Ok(Sample::read(event, record.body)?.time.unwrap_or(0));
        }
        Ok(self.events[0].at_end(record, perf::PERF_SAMPLE_TIME)?.unwrap_or(0))
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

    fn lose(&mut self, record: &Record<'_>) -> Result<()> {
        let mut input = Input(record.body);
        let id = match record.kind {
            perf::PERF_RECORD_LOST => Some(input.u64()?),
            _ if self.events[0].has(perf::PERF_SAMPLE_IDENTIFIER) => {
                self.events[0].at_end(record, perf::PERF_SAMPLE_IDENTIFIER)?
            }
            _ => self.events[0].at_end(record, perf::PERF_SAMPLE_ID)?,
        };
        let event = id.and_then(|id| self.ids.get(&id).copied()).unwrap_or(0);
        let lost = &mut self.sampled[event].profile.lost;
        *lost = lost.saturating_add(input.u64()?);
        Ok(())
    }

    fn sample(&mut self, record: &Record<'_>) -> Result<()> {
        let (n, event) = self.event(record)?;
        let sample = Sample::read(event, record.body)?;
        let period = sample.period.unwrap_or(event.period);
        let mut mode = record.misc & perf::PERF_RECORD_MISC_CPUMODE_MASK;
        let sampled = &mut self.sampled[n];
        let mut frames = vec![sampled.frame(&self.tasks, sample.pid, mode, sample.address)];
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
                frames.push(sampled.frame(&self.tasks, sample.pid, mode, address));
                is_caller = true;
            }
        }
        let mut branches = Vec::new();
        for words in sample.branches.chunks_exact(BRANCH_BYTES as usize) {
            let mut words = Input(words);
            let (from, to, flags) = (words.u64()?, words.u64()?, words.u64()?);
            let mut end = |at| {
                // Records do not say in which mode a branch was.
                let mode = match is_kernels_address(at) {
                    true => perf::PERF_RECORD_MISC_KERNEL,
                    false => perf::PERF_RECORD_MISC_USER,
                };
                sampled.frame(&self.tasks, sample.pid, mode, at)
            };
            branches.push(Branch { from: end(from), to: end(to), flags });
        }
        let thread = sampled.thread(sample.pid, sample.tid, self.tasks.name(sample.tid));
        let start = *self.start.get_or_insert(sample.time.unwrap_or(0));
        let time = sample.time.map(|time| time.saturating_sub(start));
        let origin = SampleOrigin { branches: &branches, ..SampleOrigin::new(thread, &frames) };
        sampled.samples.add_one(origin, period, time);
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

    fn frame(&mut self, tasks: &Tasks<'_>, pid: u32, mode: u32, at: u64) -> Frame {
        let name = match mode {
            perf::PERF_RECORD_MISC_KERNEL => Some(KERNEL),
            perf::PERF_RECORD_MISC_USER | perf::PERF_RECORD_MISC_CPUMODE_UNKNOWN => None,
            _ => Some(ELSEWHERE),
        };
        let (place, address) = match (name, tasks.code(pid, at)) {
            (Some(name), _) => (Place::Named(name), at),
            (None, Some((file, address))) => (Place::File(file), address),
            (None, None) => return Frame { module: None, address: at },
        };
        let modules = &mut self.profile.modules;
        let module = *self.modules.entry(place).or_insert_with(|| {
            modules.push(match place {
                Place::File(file) => tasks.files[file].clone(),
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
    /// Branches of [`BRANCH_BYTES`].
    branches: &'a [u8],
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
        if event.has(perf::PERF_SAMPLE_RAW) {
            let length = input.u32()?;
            input.take(length.into())?;
        }
        let count = event.has(perf::PERF_SAMPLE_BRANCH_STACK).then(|| input.u64()).transpose()?;
        if event.branch_kinds & u64::from(perf::PERF_SAMPLE_BRANCH_HW_INDEX) != 0 {
            input.u64()?;
        }
        let count = count.unwrap_or(0);
        let length = count.checked_mul(BRANCH_BYTES);
        let branches = input.take(length.with_context(|| format!("{count} branches found"))?)?;
        let branches = if event.has_branches() { branches } else { &[] };
        let id = identifier.or(id).unwrap_or(0);
        Ok(Self { id, address, pid, tid, time, period, chain, branches })
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

/// Reads what this machine has as the file at a path. The file may have changed, which is noticed
/// when its functions are named.
fn describe(path: &OsStr, known: Option<String>) -> Module {
    let mut facts = Facts::default();
    if path.as_bytes().starts_with(b"/") {
        facts = Facts::read(Path::new(path));
    }
    facts.build_id = known.or(facts.build_id);
    Module::new(path, facts)
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
