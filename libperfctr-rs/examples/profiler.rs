// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A sampling profiler that any program can be run under, without being changed:
//!
//! ```text
//! cargo build --release --example profiler
//! LD_PRELOAD=target/release/examples/libprofiler.so bzip2 -k file
//! ```
//!
//! It samples by a handler of its own, since its samples are read by whichever thread ends the
//! program; one that reads its own takes a `Ring`.  It samples the thread that starts the program,
//! every `PROFILER_PERIOD` instructions (100003 unless given), and prints at the program's end
//! which functions the samples hit.
#![expect(unsafe_code, reason = "the loader calls functions that are listed in sections")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::{env, fs, mem};

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use perfctr::overflow::{Sample, set_handler};
use perfctr::{Event, Provider, Session};

const SIGNAL: i32 = libc::SIGPROF;
const DEFAULT_PERIOD: u64 = 100_003;

/// One sample.
struct Record {
    ip: AtomicUsize,
    thread: AtomicU32,
    /// The first counter that overflowed.
    event: AtomicU32,
}

/// More samples than this are counted, not recorded.
const RECORDS: usize = 1 << 16;

/// The handler may not allocate, so everything that it needs is here from the beginning.
static BUFFER: [Record; RECORDS] = [const {
    Record { ip: AtomicUsize::new(0), thread: AtomicU32::new(0), event: AtomicU32::new(0) }
}; RECORDS];
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicBool = AtomicBool::new(false);

/// The signal handler's part.
fn record(sample: &Sample) {
    // ATOMICS: `finish` reads in the thread that records, when it records no more.
    if ENDED.load(Ordering::Relaxed) {
        return;
    }
    if let Some(record) = BUFFER.get(TAKEN.fetch_add(1, Ordering::Relaxed)) {
        let event = sample.overflow.counters().next().unwrap_or_default();
        record.ip.store(sample.ip, Ordering::Relaxed);
        // SAFETY: a system call without arguments.
        record.thread.store(unsafe { libc::gettid() } as u32, Ordering::Relaxed);
        record.event.store(event as u32, Ordering::Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

fn period() -> u64 {
    let given = env::var("PROFILER_PERIOD").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(DEFAULT_PERIOD)
}

extern "C" fn start() {
    if let Err(error) = sample() {
        eprintln!("profiler: {error}");
    }
}

fn sample() -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: `record` stores to atomics, and makes one system call.
    unsafe { set_handler(SIGNAL, record)? };
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start_sampling(&[Event::INSTRUCTIONS.user().every(period())], SIGNAL)?;
    // It lasts as long as the program.
    mem::forget(session);
    Ok(())
}

extern "C" fn finish() {
    ENDED.store(true, Ordering::Relaxed);
    let taken = TAKEN.load(Ordering::Relaxed);
    let recorded = &BUFFER[..taken.min(RECORDS)];
    let mut places = Places::default();
    let mut hits = BTreeMap::<_, usize>::new();
    for record in recorded {
        let place = places.name(record.ip.load(Ordering::Relaxed));
        let thread = record.thread.load(Ordering::Relaxed);
        *hits.entry((record.event.load(Ordering::Relaxed), thread, place)).or_default() += 1;
    }
    let mut hits: Vec<_> = hits.into_iter().collect();
    hits.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    eprintln!("profiler: {taken} samples, one every {} instructions", period());
    eprintln!("{:>8} {:>6}  event  {:>7}  function", "samples", "%", "thread");
    for ((event, thread, place), count) in hits {
        let percent = 100.0 * count as f64 / recorded.len() as f64;
        eprintln!("{count:>8} {percent:>6.1}  {event:>5}  {thread:>7}  {place}");
    }
}

/// What the addresses of this process belong to.
#[derive(Default)]
struct Places {
    maps: Vec<Map>,
    /// The functions of each file.
    functions: BTreeMap<String, Vec<Function>>,
}

/// A file, mapped for execution.
struct Map {
    start: usize,
    end: usize,
    offset: usize,
    path: String,
}

/// A function, by offset in its file.
struct Function {
    start: usize,
    end: usize,
    name: String,
}

impl Places {
    /// The function at this address; its file and the offset in it if the function is not known.
    fn name(&mut self, ip: usize) -> String {
        if self.maps.is_empty() {
            let text = fs::read_to_string("/proc/self/maps").unwrap_or_default();
            self.maps = text.lines().filter_map(Map::parse).collect();
        }
        let Some(map) = self.maps.iter().find(|map| (map.start..map.end).contains(&ip)) else {
            return format!("{ip:#x}");
        };
        let offset = ip - map.start + map.offset;
        let file = map.path.rsplit('/').next().unwrap_or_default();
        let functions =
            self.functions.entry(map.path.clone()).or_insert_with(|| functions(&map.path));
        match functions.iter().find(|f| (f.start..f.end).contains(&offset)) {
            Some(function) => function.name.clone(),
            None => format!("{file}, no function"),
        }
    }
}

impl Map {
    /// Of a line of `/proc/self/maps`; see `proc_pid_maps(5)`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let executable = fields.next()?.contains('x');
        let number = |text| usize::from_str_radix(text, 16).ok();
        let offset = number(fields.next()?)?;
        let path = fields.nth(2)?.to_owned();
        let map = Self { start: number(start)?, end: number(end)?, offset, path };
        executable.then_some(map)
    }
}

/// The functions of a file: those that it describes to unwinders, which are all even in a stripped
/// one, by name if it gives that.
fn functions(path: &str) -> Vec<Function> {
    let data = fs::read(path).unwrap_or_default();
    let Ok(file) = object::File::parse(&*data) else { return Vec::new() };
    let offset = |address: u64| {
        let mut segments = file.segments();
        let segment =
            segments.find(|s| (s.address()..s.address() + s.size()).contains(&address))?;
        Some((address - segment.address() + segment.file_range().0) as usize)
    };
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let named = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let named = named.filter_map(|s| Some((s.address(), s.size(), s.name().ok()?.to_owned())));
    // The first one that covers an address is taken: names come first.
    let short = path.rsplit('/').next().unwrap_or_default();
    let unwound = unwound(&file).unwrap_or_default().into_iter();
    let unnamed = unwound.map(|(address, size)| (address, size, format!("{short}+{address:#x}")));
    let function = |(address, size, name)| {
        let start = offset(address)?;
        Some(Function { start, end: start + size as usize, name })
    };
    named.chain(unnamed).filter_map(function).collect()
}

/// Address and size of every function in the file's unwind table.
fn unwound(file: &object::File<'_>) -> Result<Vec<(u64, u64)>, Box<dyn std::error::Error>> {
    let section = file.section_by_name(".eh_frame").ok_or("no unwind table")?;
    let table = EhFrame::new(section.data()?, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = table.entries(&bases);
    let mut functions = Vec::new();
    while let Some(entry) = entries.next()? {
        if let CieOrFde::Fde(partial) = entry {
            let fde = partial.parse(EhFrame::cie_from_offset)?;
            functions.push((fde.initial_address(), fde.len()));
        }
    }
    Ok(functions)
}
