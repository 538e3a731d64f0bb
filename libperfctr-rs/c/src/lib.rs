// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
// The comments here are those of the header for C.
#![allow(missing_docs, reason = "rustdoc's links mean nothing in C")]
#![expect(unsafe_code, reason = "the boundary to C: pointers that callers pass")]

mod open;
mod regions;
mod status;

use std::ffi::{CStr, c_char, c_void};
use std::mem::offset_of;

use perfctr::Provider;
use perfctr::regions::Operation;
use shared_abi::limits::MAX_COUNTERS;

use open::{FullReading, Open};
pub use status::Status;
use status::{Failure, answer, last, text};

/// The version of this interface, which perfctr_counts_interface() returns. It grows with every
/// function, and every value, that is added. What is there does not change before the library's
/// name does.
pub const INTERFACE: u32 = 2;

/// The most events that a thread can count.
pub const EVENTS_MAX: usize = 18;

const _: () = assert!(EVENTS_MAX == MAX_COUNTERS);

/// Flag of perfctr_counts_open(): counts events that are not known to be right on this CPU, too.
pub const UNVERIFIED: u32 = 1;

/// The counters of one thread. Only the thread that has opened them can use them. A handle is a
/// number, and no address of an object.
pub struct Counters(());

/// Who provides counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum ProviderNumber {
    /// The first of the others that has counters.
    Any = 0,
    /// The hypervisor's driver and the guest's kernel module, through /dev/perfctr.
    Paravirt = 1,
    /// Linux, through perf_event_open(2).
    Native = 2,
    /// The time-stamp counter alone. It counts no events.
    Tsc = 3,
}

/// All counters at one moment, or what happened between two moments.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Snapshot {
    /// How long the thread has executed, unit: ticks of perfctr_facts.clock_khz. Every event was
    /// counted all this time: none is ever counted for a part of it and estimated for the rest.
    pub clock: u64,
    /// The counts, in the order in which the events were named. The others are 0.
    pub counts: [u64; EVENTS_MAX],
    /// The number of events.
    pub events: u32,
    /// How many attempts to read were disturbed and made again.
    pub retries: u32,
    /// 1 if the counters were read without a system call, else 0.
    pub direct: u32,
    /// Always 0.
    pub reserved: u32,
}

// Programs that were compiled with an earlier header rely on this.
const _: () = {
    assert!(size_of::<Snapshot>() == 168);
    assert!(offset_of!(Snapshot, clock) == 0);
    assert!(offset_of!(Snapshot, counts) == 8);
    assert!(offset_of!(Snapshot, events) == 152);
    assert!(offset_of!(Snapshot, retries) == 156);
    assert!(offset_of!(Snapshot, direct) == 160);
    assert!(offset_of!(Snapshot, reserved) == 164);
};

/// What a handle counts with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Facts {
    /// Who provides the counters.
    pub provider: ProviderNumber,
    /// The number of events.
    pub events: u32,
    /// The frequency of the clock, unit: kHz; 0 if it is unknown. Linux' clock has ticks of 1 ns.
    pub clock_khz: u32,
    /// The number of general counters; 0 if the provider does not say.
    pub general: u32,
    /// The number of fixed counters.
    pub fixed: u32,
    /// The width of the general counters, unit: bits. Counts have 64 bits all the same.
    pub general_width: u32,
    /// The width of the fixed counters, unit: bits.
    pub fixed_width: u32,
    /// The number of virtual CPUs; 0 if the provider has none.
    pub vcpus: u32,
    /// Family, model and stepping of the processor (CPUID leaf 1, EAX); 0 if it is not an x86.
    pub cpu_signature: u32,
    /// Always 0.
    pub reserved: [u32; 7],
}

/// What a region has counted in one thread.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RegionRow {
    /// The region's name. It stays until the thread that has the table takes another one.
    pub region: *const c_char,
    /// What Linux called the thread in its first region. It stays as long.
    pub thread_name: *const c_char,
    /// How often the region was stopped.
    pub calls: u64,
    /// How often it was started and not stopped.
    pub open: u64,
    /// The events from its starts to its stops. A recursive region is here once.
    pub total: [u64; EVENTS_MAX],
    /// Those that were not in regions that were started within it.
    pub own: [u64; EVENTS_MAX],
    /// How many readings were disturbed. Each adds a constant to the counts.
    pub retries: u64,
    /// The thread, by the order in which threads have started their first region, from 1.
    pub thread: u32,
    /// The number of events.
    pub events: u32,
    /// Always 0.
    pub reserved: [u64; 4],
}

// Programs that were compiled with an earlier header rely on this.
const _: () = {
    assert!(size_of::<RegionRow>() == 368);
    assert!(offset_of!(RegionRow, calls) == 16);
    assert!(offset_of!(RegionRow, total) == 32);
    assert!(offset_of!(RegionRow, own) == 176);
    assert!(offset_of!(RegionRow, retries) == 320);
    assert!(offset_of!(RegionRow, thread) == 328);
    assert!(offset_of!(RegionRow, events) == 332);
};

/// Opens the calling thread's counters, and counts from 0.
///
/// events: names with commas between, as perf writes them: "instructions:u,branches:u",
/// "cpu/event=0xc4,umask=1/u". With "" only the clock runs.
/// provider: one of enum perfctr_provider. PERFCTR_PROVIDER_ANY takes the first provider that
/// counts here, and any other value takes that provider or none.
/// flags: 0, or PERFCTR_COUNTS_UNVERIFIED.
/// counters: gets the handle, or null after an error.
///
/// A thread has at most one handle. The counters end when it closes them or ends itself.
///
/// # Safety
///
/// `events` is a text that ends with a null byte, and `counters` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_counts_open(
    events: *const c_char,
    provider: u32,
    flags: u32,
    counters: *mut *mut Counters,
) -> Status {
    // SAFETY: the caller promises a place for a pointer; null and unaligned ones are found out.
    let result = unsafe { store(counters, std::ptr::null_mut()) }.and_then(|()| {
        // SAFETY: the caller promises a text that ends; null is found out.
        let events = unsafe { utf8(events, "the text with the events") }?;
        let number = open::open(events, wanted(provider)?, unverified(flags)?)?;
        // SAFETY: the caller promises a place for a pointer, which was written above.
        unsafe { store(counters, std::ptr::without_provenance_mut(number)) }
    });
    answer(result)
}

/// Stops counting, and ends the handle. Null is refused like every other value that is no handle.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_close(counters: *mut Counters) -> Status {
    answer(open::close(counters.addr()))
}

/// Reads all counters, without a system call where the provider can.
///
/// reading: gets the reading. If the counters cannot be read, it has only the number of events.
///
/// # Safety
///
/// `reading` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_counts_read(
    counters: *mut Counters,
    reading: *mut Snapshot,
) -> Status {
    let result = open::with(counters.addr(), |open| {
        usable(reading)?;
        // The counters are read into the caller's place, because a copy would cost more than the
        // read itself.
        // SAFETY: the caller promises a place for a reading, and it is neither null nor unaligned.
        // A reading consists of numbers, so zeros are one. The caller uses it only after this
        // function.
        let reading = unsafe {
            reading.write_bytes(0, 1);
            &mut *reading
        };
        reading.events = open.events();
        let perfctr::Reading { tsc, retries, direct, .. } = open.read_into(&mut reading.counts)?;
        (reading.clock, reading.retries, reading.direct) = (tsc, retries, direct.into());
        Ok(())
    });
    answer(result)
}

/// Reads all counters, and gives what was counted since an earlier reading of the same handle.
///
/// The difference has what the two calls execute themselves, about as much each time, beside what
/// was executed between them. perfctr_counts_measure() leaves that out.
///
/// before: the earlier reading.
/// difference: gets the difference. It may be the same object as before.
///
/// # Safety
///
/// `before` is readable and `difference` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_counts_since(
    counters: *mut Counters,
    before: *const Snapshot,
    difference: *mut Snapshot,
) -> Status {
    let result = open::with(counters.addr(), |open| {
        let now = open.read()?;
        // SAFETY: the caller promises a reading; null and unaligned ones are found out.
        let before = unsafe { load(before) }?;
        let spent = now - before.to_reading(open)?;
        // SAFETY: the caller promises a place for a reading; null and unaligned ones are found out.
        unsafe { store(difference, Snapshot::of(open, &spent)) }
    });
    answer(result)
}

/// Calls body(argument) once, and stores in spent what the thread counted meanwhile, less what the
/// measurement itself counts.
///
/// To find the latter, the first call also measures a body without instructions several times. For
/// events that count retired instructions the result is exact: it is what the body executes, but
/// for the return at its end. spent->clock is 0. A reading that is disturbed is repeated, and the
/// repetition is counted, too: spent->retries says how often that happened.
///
/// The body must return: neither an exception nor longjmp() may leave it. It may read the counters
/// and measure, but not stop, start, open or close them.
///
/// # Safety
///
/// `body` can be called with `argument`, and `spent` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_counts_measure(
    counters: *mut Counters,
    body: Option<unsafe extern "C" fn(argument: *mut c_void)>,
    argument: *mut c_void,
    spent: *mut Snapshot,
) -> Status {
    let result = open::with(counters.addr(), |open| {
        let body = body.ok_or_else(|| Failure::argument("the body is null"))?;
        // What is refused must not have called the body.
        usable(spent)?;
        // One closure calls both, so that both are called by the same instructions.
        let calls = |body: unsafe extern "C" fn(*mut c_void)| {
            move || {
                // SAFETY: the caller promises that the body can be called with its argument. The
                // other function does nothing.
                unsafe { body(argument) }
            }
        };
        let measured = open.measure([&mut calls(body), &mut calls(nothing)])?;
        // SAFETY: the caller promises a place for a reading; null and unaligned ones are found out.
        unsafe { store(spent, Snapshot::of(open, &measured)) }
    });
    answer(result)
}

/// Stops counting. The counts stay, and can be read.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_stop(counters: *mut Counters) -> Status {
    answer(open::change(counters.addr(), |session, _| session.stop()))
}

/// Goes on counting after a stop, from the counts that there are.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_start(counters: *mut Counters) -> Status {
    answer(open::change(counters.addr(), |session, _| session.resume()))
}

/// Counts the same events from 0.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_restart(counters: *mut Counters) -> Status {
    answer(open::change(counters.addr(), |session, events| session.start(events)))
}

/// Says what a handle counts with.
///
/// # Safety
///
/// `facts` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_counts_facts(
    counters: *mut Counters,
    facts: *mut Facts,
) -> Status {
    let found = open::with(counters.addr(), |open| Ok(Facts::of(open)));
    // SAFETY: the caller promises a place for facts; null and unaligned ones are found out.
    answer(found.and_then(|found| unsafe { store(facts, found) }))
}

/// Returns the name of a handle's event: "instructions:u". Events are numbered from 0. The text
/// stays until the handle is closed. Returns null if there is no such event or handle.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_event(counters: *mut Counters, event: u32) -> *const c_char {
    let name = open::with(counters.addr(), |open| Ok(open.name(event)));
    name.unwrap_or_else(|failure| {
        answer(Err(failure));
        std::ptr::null()
    })
}

/// Chooses what regions count, by names as in perfctr_counts_open(). Without this call they count
/// instructions:u. With "" they count calls only. It fails if regions were started that count other
/// events.
///
/// # Safety
///
/// `events` is a text that ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_region_events(events: *const c_char) -> Status {
    // SAFETY: the caller promises a text that ends; null is found out.
    let events = unsafe { utf8(events, "the text with the events") };
    answer(events.and_then(regions::count))
}

/// Starts the region with this name in the calling thread. Regions may lie within one another,
/// overlap, and be started again before they are stopped. The thread's first region opens counters
/// of its own, so the thread cannot have a handle.
///
/// # Safety
///
/// `name` is a text that ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_region_start(name: *const c_char) -> Status {
    // SAFETY: the caller promises a text that ends; null is found out.
    let name = || unsafe { utf8(name, "the region's name") };
    answer(perfctr::regions::operate(Operation::Start, &name, empty_region))
}

/// Stops the region of this name that the calling thread has started last. A thread that has not
/// started it gets PERFCTR_STATUS_REGION.
///
/// A region counts what the thread executes from the end of perfctr_region_start() to the beginning
/// of this function, but not what these functions execute for regions within it.
///
/// # Safety
///
/// `name` is a text that ends with a null byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_region_stop(name: *const c_char) -> Status {
    // SAFETY: the caller promises a text that ends; null is found out.
    let name = || unsafe { utf8(name, "the region's name") };
    answer(perfctr::regions::operate(Operation::Stop, &name, empty_region))
}

/// Has the table of all regions be printed to the standard error output when the process ends by
/// exit() or by returning from main(), with the regions that were not stopped.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_region_print_at_exit() -> Status {
    answer(perfctr::regions::print_at_exit().map_err(Failure::from))
}

/// Takes the table of what the regions of all threads have counted until now, for the calling
/// thread's calls of perfctr_region_row(), perfctr_region_event() and perfctr_region_text(). Texts
/// of the table that the thread has taken before end.
///
/// rows: gets the number of rows.
///
/// # Safety
///
/// `rows` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_region_table(rows: *mut u32) -> Status {
    let taken = usable(rows).and_then(|()| regions::take());
    // SAFETY: the caller promises a place for a number; null and unaligned ones are found out.
    answer(taken.and_then(|number| unsafe { store(rows, number) }))
}

/// Gives a row of the table that the calling thread has taken. Rows are numbered from 0.
///
/// # Safety
///
/// `row` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_region_row(number: u32, row: *mut RegionRow) -> Status {
    let found = regions::row(number);
    // SAFETY: the caller promises a place for a row; null and unaligned ones are found out.
    answer(found.and_then(|found| unsafe { store(row, found) }))
}

/// Returns the name of an event of the table that the calling thread has taken, or null if there
/// is none. Events are numbered from 0, in the order of the counts.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_region_event(event: u32) -> *const c_char {
    regions::event(event)
}

/// Returns the table that the calling thread has taken as a text, as it is printed at the end, or
/// null if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_region_text() -> *const c_char {
    regions::text()
}

/// An empty region, whose cost the library finds.
fn empty_region() {
    // SAFETY: both are texts that end.
    unsafe {
        perfctr_region_start(c"".as_ptr());
        perfctr_region_stop(c"".as_ptr());
    }
}

/// Returns the text about the calling thread's last failure, or "" if there was none. It says what
/// to do where that is known, and may have several lines. It stays until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_error() -> *const c_char {
    last()
}

/// Returns the name of a value of enum perfctr_status, or null if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_status_name(status: i32) -> *const c_char {
    text(Status::name(status))
}

/// Returns the name of a value of enum perfctr_provider, or null if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_provider_name(provider: u32) -> *const c_char {
    text(PROVIDERS.get(provider as usize).map(|&(_, _, name)| name))
}

/// Returns the library's version: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the version of the interface that the library has. A program that was compiled with a
/// later PERFCTR_COUNTS_INTERFACE may miss functions.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_counts_interface() -> u32 {
    INTERFACE
}

extern "C" fn nothing(_: *mut c_void) {}

/// The providers, each at the place of its number in C, with the Rust library's word for it, which
/// has none for any provider, and its name.
const PROVIDERS: [(ProviderNumber, Option<Provider>, &CStr); 4] = [
    (ProviderNumber::Any, None, c"any"),
    (ProviderNumber::Paravirt, Some(Provider::Paravirt), c"paravirt"),
    (ProviderNumber::Native, Some(Provider::Native), c"native"),
    (ProviderNumber::Tsc, Some(Provider::Tsc), c"tsc"),
];

/// Returns the provider with this number in C, or `None` for any provider.
fn wanted(number: u32) -> Result<Option<Provider>, Failure> {
    let (_, provider, _) = PROVIDERS.get(number as usize).ok_or_else(|| {
        Failure::argument(&format!(
            "provider {number} found, 0 to {} expected",
            PROVIDERS.len() - 1
        ))
    })?;
    Ok(*provider)
}

fn unverified(flags: u32) -> Result<bool, Failure> {
    match flags {
        0 => Ok(false),
        UNVERIFIED => Ok(true),
        _ => Err(Failure::argument(&format!("flags {flags:#x} found, 0 or 1 expected"))),
    }
}

impl Snapshot {
    #[inline(always)]
    fn of(open: &Open, reading: &FullReading) -> Self {
        let &FullReading { tsc, counts, retries, direct, .. } = reading;
        Self {
            clock: tsc,
            counts,
            events: open.events(),
            retries,
            direct: direct.into(),
            reserved: 0,
        }
    }

    /// Returns the reading as the Rust library has it. Fails unless it is of as many events as
    /// these counters have.
    fn to_reading(self, open: &Open) -> Result<FullReading, Failure> {
        let (found, expected) = (self.events, open.events());
        if found != expected {
            let text = format!("a reading of {found} events found, of {expected} expected");
            return Err(Failure::argument(&text));
        }
        let mut reading = FullReading::default();
        (reading.tsc, reading.counts) = (self.clock, self.counts);
        (reading.retries, reading.direct) = (self.retries, self.direct == 1);
        Ok(reading)
    }
}

impl Facts {
    fn of(open: &Open) -> Self {
        let about = open.session.description();
        let caps = about.caps;
        Self {
            provider: PROVIDERS
                .iter()
                .find(|(_, provider, _)| *provider == Some(about.provider))
                .map_or(ProviderNumber::Any, |&(number, ..)| number),
            events: open.events(),
            clock_khz: about.tsc_khz,
            general: caps.map_or(0, |caps| caps.general),
            fixed: caps.map_or(0, |caps| caps.fixed),
            general_width: caps.map_or(0, |caps| caps.general_width.bits()),
            fixed_width: caps.map_or(0, |caps| caps.fixed_width.bits()),
            vcpus: about.vcpus,
            cpu_signature: about.cpu_signature,
            reserved: [0; 7],
        }
    }
}

/// Fails unless this place, which C has given, can have a value.
#[inline(always)]
fn usable<T>(place: *mut T) -> Result<(), Failure> {
    if place.is_null() || !place.is_aligned() {
        return Err(Failure::argument("a pointer to the result is null or not aligned"));
    }
    Ok(())
}

/// Writes `value` to a place that C has given.
///
/// # Safety
///
/// `place` is null, not aligned, or writable.
#[inline(always)]
unsafe fn store<T>(place: *mut T, value: T) -> Result<(), Failure> {
    usable(place)?;
    // SAFETY: it is neither null nor unaligned, so it is writable.
    unsafe { place.write(value) };
    Ok(())
}

/// Reads a reading that C has given.
///
/// # Safety
///
/// `place` is null, not aligned, or has a reading.
unsafe fn load(place: *const Snapshot) -> Result<Snapshot, Failure> {
    if place.is_null() || !place.is_aligned() {
        return Err(Failure::argument("a pointer to a reading is null or not aligned"));
    }
    // SAFETY: it is neither null nor unaligned, so it has a reading, whose fields are numbers of
    // which each value is valid.
    Ok(unsafe { place.read() })
}

/// Returns a text that C has given.
///
/// # Safety
///
/// `text` is null, or ends with a null byte and does not change meanwhile.
unsafe fn utf8<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument(&format!("{what} is null")));
    }
    // SAFETY: it is not null, so it ends with a null byte.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(&format!("{what} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header for C, which is generated and which `cargo xtask check` holds to this file.
    pub(crate) const HEADER: &str = include_str!("../include/perfctr_counts.h");

    /// Returns the names and numbers of an enumeration's values, by what their names begin with.
    pub(crate) fn values(beginning: &str) -> Vec<(&'static str, u32)> {
        let value = |line: &'static str| {
            let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
            Some((name, number.parse().ok()?))
        };
        let values: Vec<_> = HEADER.lines().filter_map(value).collect();
        values.into_iter().filter(|(name, _)| name.starts_with(beginning)).collect()
    }

    #[test]
    fn each_provider_has_its_number_and_its_name() {
        let values = values("PERFCTR_PROVIDER_");
        assert_eq!(values.len(), PROVIDERS.len());
        for ((in_c, number), (enumerated, provider, name)) in values.into_iter().zip(PROVIDERS) {
            let name = name.to_str().unwrap();
            assert_eq!(in_c, format!("PERFCTR_PROVIDER_{}", name.to_uppercase()));
            assert_eq!((enumerated as u32, wanted(number).unwrap()), (number, provider));
            assert!(provider.is_none_or(|provider| provider.to_string() == name));
        }
        assert_eq!(wanted(4).unwrap_err().text, "provider 4 found, 0 to 3 expected");
    }

    #[test]
    fn an_unknown_flag_is_refused_also_beside_a_known_one() {
        assert_eq!([0, UNVERIFIED].map(|flags| unverified(flags).unwrap()), [false, true]);
        for flags in [2, 2 | UNVERIFIED, 1 << 31] {
            let text = unverified(flags).unwrap_err().text;
            assert_eq!(text, format!("flags {flags:#x} found, 0 or 1 expected"));
        }
    }

    #[test]
    fn only_a_reading_of_as_many_events_is_subtracted() {
        let number = open::open("", Some(Provider::Tsc), false).unwrap();
        let failure = |events| {
            let again = open::with(number, |open| {
                let reading = Snapshot { events, ..Snapshot::of(open, &open.read()?) };
                reading.to_reading(open)
            });
            again.err().map(|failure| (failure.status, failure.text))
        };
        let text = "a reading of 1 events found, of 0 expected".to_owned();
        assert_eq!(failure(1), Some((Status::Argument, text)));
        assert_eq!(failure(0), None);
        open::close(number).unwrap();
    }
}
