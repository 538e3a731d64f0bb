// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts named regions of a program. A table at the end says how often each thread has executed
//! each region, and what was counted in it.
//!
//! ```no_run
//! use perfctr::{Event, regions};
//!
//! # fn main() -> Result<(), perfctr::Error> {
//! regions::count(&[Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
//! regions::print_at_exit()?;
//! let mut sum = 0;
//! for n in 0..10_u64 {
//!     let _square = regions::enter("square")?;
//!     sum += std::hint::black_box(n) * n;
//! }
//! regions::start("print")?;
//! println!("{sum}");
//! regions::stop("print")?;
//! # Ok(())
//! # }
//! ```
//!
//! Each thread that starts a region counts itself, with a [session](crate::Session) of its own. No
//! region counts what this module executes. Each of its functions reads the counters when it begins
//! and when it ends, and leaves out what it has executed between the two readings. The readings
//! themselves are measured with empty regions, and subtracted.
//!
//! Regions may lie within one another, overlap, and be started again before they are stopped. The
//! table of a process has what all of its threads have counted, also those that have ended. A
//! child that was forked begins with an empty table, and outside of all regions.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::event::Event;
use crate::nested::{Amount, Calibration, Nested, Pieces, Progress};
use crate::session::Session;
use crate::sys::{self, Generation};

/// The action of a thread on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is nothing else")]
pub enum Operation {
    /// The thread starts the region.
    Start,
    /// The thread stops the region.
    Stop,
}

/// The counts of all regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// The events, in the order of the counts.
    pub events: Vec<Event>,
    /// A row for each region and thread, in the order of the regions' names.
    pub rows: Vec<Row>,
}

/// The counts of a region in one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// The region's name.
    pub region: String,
    /// The thread, by the order in which threads have started their first region, from 1.
    pub thread: u32,
    /// Linux's name of the thread at that time.
    pub thread_name: String,
    /// How often the region was stopped.
    pub calls: u64,
    /// How often it was started and not stopped.
    pub open: u64,
    /// The events from its starts to its stops. The count of a recursive region is contained only
    /// once.
    pub total: Vec<u64>,
    /// The events from its starts to its stops that were not in regions within it.
    pub own: Vec<u64>,
    /// How many readings were disturbed. Each adds a constant to the counts.
    pub retries: u64,
}

/// A region that ends with this value, which [`enter`] has returned.
#[derive(Debug)]
#[must_use = "the region ends when this is dropped"]
pub struct Region<'a> {
    name: &'a str,
    /// Keeps the value in its thread, since the thread that has started a region has to end it.
    thread: PhantomData<*const ()>,
}

/// The counts of a region in one thread.
#[derive(Debug)]
struct Sums {
    calls: u64,
    open: u64,
    total: Amount,
    own: Amount,
}

/// The state of all threads' regions.
#[derive(Debug)]
struct Shared {
    /// The process to which this state belongs.
    generation: Option<Generation>,
    /// The events, if they were chosen.
    events: Option<Vec<Event>>,
    names: BTreeSet<Arc<str>>,
    /// The names of the threads that have started a region.
    threads: Vec<String>,
    /// The counts by region and thread.
    sums: BTreeMap<(Arc<str>, usize), Sums>,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared::new());

/// A thread that has started a region.
#[derive(Debug)]
struct Thread {
    number: usize,
    nested: Nested<Arc<str>>,
    /// The calibration, until the cost of an empty region is known.
    calibration: Option<Calibration>,
    progress: Progress,
}

thread_local! {
    static THREAD: RefCell<Option<Thread>> = const { RefCell::new(None) };
}

impl Shared {
    const fn new() -> Self {
        Self {
            generation: None,
            events: None,
            names: BTreeSet::new(),
            threads: Vec::new(),
            sums: BTreeMap::new(),
        }
    }

    /// Returns the state of this process.
    fn lock() -> MutexGuard<'static, Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.come_to(Generation::current());
        shared
    }

    /// Makes this the state of the process `now`. A forked child has no regions yet, and counts
    /// the events that were chosen for its parent.
    fn come_to(&mut self, now: Generation) {
        if self.generation != Some(now) {
            let events = self.events.take();
            *self = Self { generation: Some(now), events, ..Self::new() };
        }
    }

    fn events(&self) -> Vec<Event> {
        self.events.clone().unwrap_or_else(|| vec![Event::INSTRUCTIONS.user()])
    }

    fn count(&mut self, events: &[Event]) -> Result<(), Error> {
        let now = self.events();
        if !self.threads.is_empty() && now != events {
            let [now, found] = [&now, events].map(list);
            let text = format!(
                "regions count {now} since the first one was started, and cannot count {found} \
                 from now on: expected the same events, or a call before the first region"
            );
            return Err(Error::Region(text));
        }
        self.events = Some(events.to_vec());
        Ok(())
    }

    /// Starts or stops a region of a thread.
    fn apply(
        &mut self,
        operation: Operation,
        name: &str,
        thread: usize,
        pieces: &mut Pieces<Arc<str>>,
    ) -> Result<(), Error> {
        match operation {
            Operation::Start if name.is_empty() => {
                Err(Error::Region("a region without a name found, a name expected".to_owned()))
            }
            Operation::Start => {
                let name = self.name(name);
                let sums = self.sums.entry((name.clone(), thread)).or_insert(Sums {
                    calls: 0,
                    open: 0,
                    total: Amount::ZERO,
                    own: Amount::ZERO,
                });
                sums.open += 1;
                pieces.start(name);
                Ok(())
            }
            Operation::Stop => {
                // A name is found here only if its region was started.
                let known = self.names.get(name).cloned();
                let spent = known.as_ref().and_then(|name| pieces.stop(name));
                let (Some(name), Some(spent)) = (known, spent) else {
                    return Err(not_started(name, pieces));
                };
                // A region has sums if it was started.
                let Some(sums) = self.sums.get_mut(&(name, thread)) else { return Ok(()) };
                sums.calls += 1;
                sums.open = sums.open.saturating_sub(1);
                sums.own.add(&spent.own);
                if !spent.is_recursive {
                    sums.total.add(&spent.total);
                }
                Ok(())
            }
        }
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(name) = self.names.get(name) {
            return name.clone();
        }
        let name: Arc<str> = name.into();
        self.names.insert(name.clone());
        name
    }

    fn table(&self) -> Table {
        let events = self.events();
        let row = |((region, thread), sums): (&(Arc<str>, usize), &Sums)| Row {
            region: region.to_string(),
            thread: *thread as u32,
            thread_name: self.threads.get(thread - 1).cloned().unwrap_or_default(),
            calls: sums.calls,
            open: sums.open,
            total: sums.total.counts.iter().copied().take(events.len()).collect(),
            own: sums.own.counts.iter().copied().take(events.len()).collect(),
            retries: sums.own.retries,
        };
        Table { rows: self.sums.iter().map(row).collect(), events }
    }
}

/// Returns the error that a region was not started. The error names the regions that were started.
fn not_started(name: &str, pieces: &Pieces<Arc<str>>) -> Error {
    let open: Vec<String> = pieces.open().rev().map(|name| format!("`{}`", shown(name))).collect();
    let open = if open.is_empty() {
        "it is in no region".to_owned()
    } else {
        format!("it is in {}", open.join(", in "))
    };
    let text =
        format!("this thread has stopped `{}`, which it has not started: {open}", shown(name));
    Error::Region(text)
}

fn list(events: &[Event]) -> String {
    let names: Vec<String> = events.iter().map(Event::to_string).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(",") }
}

/// Returns a name in a printable form, without characters that a terminal takes for commands.
fn shown(name: &str) -> String {
    let shown = |c: char| {
        if c.is_control() { c.escape_default().to_string() } else { c.to_string() }
    };
    name.chars().map(shown).collect()
}

/// Chooses the events that regions count. Without this call they count instructions in user mode.
///
/// # Errors
///
/// [`Error::Region`] if regions were started that count other events.
pub fn count(events: &[Event]) -> Result<(), Error> {
    Shared::lock().count(events)
}

/// Starts a region in this thread.
///
/// # Errors
///
/// The errors of [`Session::open`] and [`Session::start`], in the thread's first region.
/// [`Error::AlreadyOpen`] says that something else counts this thread. [`Error::Region`] says that
/// the name is empty. The errors of [`Session::read`]: regions that are open then end without
/// being counted.
#[inline]
pub fn start(name: &str) -> Result<(), Error> {
    operate(Operation::Start, &|| Ok(name), empty)
}

/// Stops the region of this name that this thread has started last.
///
/// # Errors
///
/// [`Error::Region`] if this thread has not started it, and the errors of [`start`].
#[inline]
pub fn stop(name: &str) -> Result<(), Error> {
    operate(Operation::Stop, &|| Ok(name), empty)
}

/// Starts a region that is stopped when the returned value is dropped.
///
/// # Errors
///
/// The errors of [`start`].
pub fn enter(name: &str) -> Result<Region<'_>, Error> {
    start(name)?;
    Ok(Region { name, thread: PhantomData })
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // The stop fails if the region was already stopped by name, or if the counters could not be
        // read. In the second case the table says that the region was not stopped.
        stop(self.name).ok();
    }
}

/// Returns what all threads have counted until now.
pub fn table() -> Table {
    Shared::lock().table()
}

/// Makes the library print the table to the standard error output when the process ends by itself,
/// if there was any region.
///
/// # Errors
///
/// The C library's error.
pub fn print_at_exit() -> Result<(), Error> {
    extern "C" fn print() {
        let table = table();
        if !table.rows.is_empty() {
            // A program that has closed the output does not want the table.
            write!(io::stderr(), "{table}").ok();
        }
    }
    static REGISTERED: Mutex<bool> = Mutex::new(false);
    register_once(&REGISTERED, || sys::at_exit(print))
        .map_err(Error::kernel("have the table of regions be printed"))
}

/// Calls `register`, unless `registered` says that this has been done. Notes there that it has
/// succeeded.
fn register_once(
    registered: &Mutex<bool>,
    register: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let mut registered = registered.lock().unwrap_or_else(PoisonError::into_inner);
    if !*registered {
        register()?;
        *registered = true;
    }
    Ok(())
}

/// An empty region, whose cost is measured.
fn empty() {
    start("").ok();
    stop("").ok();
}

/// Starts or stops a region, for [`start`] and [`stop`] of another language.
///
/// `name` returns the region's name. It is called where nothing counts, so that it may check and
/// convert the name. `empty` starts and stops a region by the other language's own functions, with
/// any name; it is called several times in a thread's first region, to measure these functions.
///
/// # Errors
///
/// The errors of [`start`] and [`stop`], and that of `name`.
#[inline(never)]
pub fn operate<'a, E: From<Error>>(
    operation: Operation,
    name: &dyn Fn() -> Result<&'a str, E>,
    empty: fn(),
) -> Result<(), E> {
    let attempt = || {
        THREAD.try_with(|thread| {
            let mut thread = thread.try_borrow_mut().ok()?;
            Some(thread.as_mut()?.operate(operation, name))
        })
    };
    match attempt() {
        Ok(Some(Ok(result))) => result,
        Ok(Some(Err(Error::Forked)) | None) => {
            open(empty)?;
            match attempt() {
                Ok(Some(result)) => result?,
                _ => Err(ending().into()),
            }
        }
        Ok(Some(Err(error))) => Err(error.into()),
        Err(_) => Err(ending().into()),
    }
}

fn ending() -> Error {
    Error::Region("this thread ends, or does something with a region already".to_owned())
}

/// Opens the calling thread's counters, and measures the cost of an empty region.
fn open(empty: fn()) -> Result<(), Error> {
    let replace = |with: Option<Thread>| {
        let replaced = THREAD.try_with(|thread| {
            thread.try_borrow_mut().map(|mut thread| drop(std::mem::replace(&mut *thread, with)))
        });
        replaced.is_ok_and(|replaced| replaced.is_ok())
    };
    // A session that was inherited from the parent process is dropped before another is opened.
    if !replace(None) || !replace(Some(Thread::open()?)) {
        return Err(ending());
    }
    let calibrated = Calibration::run(|| {
        empty();
        let progress = THREAD.with_borrow(|thread| thread.as_ref().map(|thread| thread.progress));
        Ok(progress.unwrap_or(Progress::Disturbed))
    });
    calibrated.inspect_err(|_| {
        replace(None);
    })
}

impl Thread {
    fn open() -> Result<Self, Error> {
        let mut session = Session::open()?;
        let mut shared = Shared::lock();
        let events = shared.events();
        session.start(&events)?;
        let nested = Nested::new(session, events.len())?;
        let name = std::fs::read("/proc/thread-self/comm").unwrap_or_default();
        shared.threads.push(String::from_utf8_lossy(&name).trim_end().to_owned());
        let (number, calibration) = (shared.threads.len(), Some(Calibration::default()));
        Ok(Self { number, nested, calibration, progress: Progress::More })
    }

    /// The outer result is that of the readings.
    #[inline(always)]
    fn operate<'a, E: From<Error>>(
        &mut self,
        operation: Operation,
        name: &dyn Fn() -> Result<&'a str, E>,
    ) -> Result<Result<(), E>, Error> {
        let Self { number, nested, calibration, progress } = self;
        let mut result = Ok(());
        nested.aside(&mut |pieces| {
            let Some(first) = calibration else {
                result = name()
                    .and_then(|name| Ok(Shared::lock().apply(operation, name, *number, pieces)?));
                return;
            };
            if operation == Operation::Stop {
                *progress = first.note(pieces);
                if *progress == Progress::Done {
                    *calibration = None;
                }
            }
        })?;
        Ok(result)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![["region", "thread", "calls"].map(str::to_owned).to_vec()];
        for event in &self.events {
            lines[0].extend([event.to_string(), "own".to_owned()]);
        }
        for row in &self.rows {
            let thread = format!("{} {}", row.thread, shown(&row.thread_name));
            let mut line = vec![shown(&row.region), thread, grouped(row.calls)];
            for (&total, &own) in row.total.iter().zip(&row.own) {
                line.extend([grouped(total), grouped(own)]);
            }
            lines.push(line);
        }
        let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max();
        let widths: Vec<usize> = (0..lines[0].len()).filter_map(width).collect();
        for line in &lines {
            let mut text = String::new();
            for (n, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                // Words are aligned to the left, and numbers to the right.
                text +=
                    &if n < 2 { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        for row in &self.rows {
            let (name, thread) = (shown(&row.region), row.thread);
            if row.open > 0 {
                writeln!(
                    f,
                    "`{name}` was started {} in thread {thread} and not stopped",
                    times(row.open)
                )?;
            }
            if row.retries > 0 {
                writeln!(
                    f,
                    "`{name}`: {} disturbed in thread {thread}, which adds a constant each",
                    if row.retries == 1 {
                        "1 reading was".to_owned()
                    } else {
                        format!("{} readings were", grouped(row.retries))
                    }
                )?;
            }
        }
        Ok(())
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{} times", grouped(count)) }
}

/// Returns a number with commas between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
