// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Ways of counting and sampling a thread's own instructions in user mode.
#![expect(unsafe_code, reason = "perf_event_open and its kin have no safe interface")]

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU64};

use anyhow::{Context, Result, ensure};
use memmap2::MmapRaw;
use perf_event_open_sys::{bindings, ioctls, perf_event_open};
use perfctr::watch::Watch;
use perfctr::{Event, Provider, Session};
use vm_tests::users;

/// Executes a program while the calling thread counts its instructions. Returns how many overflows
/// it was told of. With a period of 0 it only counts.
pub type Stack = fn(period: u64, program: &mut dyn FnMut()) -> Result<u64>;

/// The signal of all overflows. Nothing else sends it.
const SIGNAL: libc::c_int = libc::SIGURG;

/// The number of signals that came.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// Executes the program while nobody counts.
pub fn nothing(_period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    program();
    Ok(0)
}

/// Uses libperfctr. Each overflow is a signal, after which the counter continues.
pub fn perfctr(period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    let count = |_: &_| {
        SIGNALS.fetch_add(1, Relaxed);
    };
    // SAFETY: the handler uses nothing but an atomic.
    unsafe { perfctr::overflow::set_handler(SIGNAL, count)? };
    let mut session = Session::open_with(Provider::Paravirt)?;
    let before = SIGNALS.load(Relaxed);
    session.start_sampling(&[Event::INSTRUCTIONS.user().every(period)], SIGNAL)?;
    program();
    session.stop()?;
    Ok(SIGNALS.load(Relaxed) - before)
}

/// Uses libperfctr. Each overflow is a record in the thread's ring.
pub fn perfctr_records(period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    /// The number of records in the ring.
    const ROOM: usize = 1_024;
    let mut session = Session::open_with(Provider::Paravirt)?;
    let mut records = session.records(ROOM, 0)?;
    session.start_recording(&[Event::INSTRUCTIONS.user().every(period)])?;
    program();
    session.stop()?;
    let mut taken = 0;
    while records.take()?.is_some() {
        taken += 1;
    }
    ensure!(records.lost() == 0, "the ring was too small");
    Ok(taken)
}

/// The events of four counters of user mode.
const FOUR: [Event; 4] = [
    Event::INSTRUCTIONS.user(),
    Event::BRANCHES.user(),
    Event::CYCLES.user(),
    Event::BRANCHES.user(),
];

/// Uses libperfctr with four counters, without overflows.
pub fn perfctr_four(_period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&FOUR)?;
    program();
    Ok(0)
}

/// Uses perf events with four counters, without overflows.
pub fn perf_four(_period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    let four = FOUR
        .iter()
        .fold(Watch::this_thread(), |watch, &event| watch.count(event.to_string(), event));
    let _watched = four.together().open()?;
    program();
    Ok(0)
}

/// Executes a program that gets the index by which RDPMC reads the calling thread's instructions.
pub type Mapped = fn(program: &mut dyn FnMut(u32)) -> Result<()>;

/// Uses libperfctr, and finds the index in the thread's page.
pub fn perfctr_mapped(program: &mut dyn FnMut(u32)) -> Result<()> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    let page = session.thread_page().context("the thread has no page")?;
    program(page.slots[0].counter_index.load(Relaxed));
    Ok(())
}

/// Uses perf events, and finds the index in the event's page.
pub fn perf_mapped(program: &mut dyn FnMut(u32)) -> Result<()> {
    const PAGE: usize = 4096;
    let event = open(0)?;
    let page = memmap2::MmapOptions::new().len(PAGE).map_raw(&event)?;
    // SAFETY: the descriptor is that of an open event, and the request takes no pointer.
    check(unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) })?;
    // SAFETY: the page has this form, and the kernel changes the index only when the thread is
    // switched.
    let index = unsafe { (*page.as_ptr().cast::<bindings::perf_event_mmap_page>()).index };
    // The page has one more than the index, or 0 if nobody may use it.
    program(index.checked_sub(1).context("the kernel lets nobody execute RDPMC")?);
    Ok(())
}

/// Uses libperfctr. The counters are stopped, and still belong to the thread.
pub fn stopped(_period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    session.stop()?;
    program();
    Ok(0)
}

/// Another user.
const ANOTHER: u32 = 4242;

/// Executes the program while nobody counts. The calling thread is another user's from now on.
pub fn nothing_of_another(period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    users::become_user_alone(ANOTHER)?;
    nothing(period, program)
}

/// Does [`perfctr()`]. The calling thread is another user's from now on.
pub fn perfctr_of_another(period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    users::become_user_alone(ANOTHER)?;
    perfctr(period, program)
}

/// Uses perf events. Each overflow is a signal, after which the counter continues.
pub fn perf_signals(period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    /// The event that the handler lets continue.
    static EVENT: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn go_on(_: libc::c_int) {
        SIGNALS.fetch_add(1, Relaxed);
        // SAFETY: the event is open while its signals come, and the request takes a number.
        unsafe { ioctls::REFRESH(EVENT.load(Relaxed), 1) };
    }
    let event = open(period)?;
    let before = SIGNALS.load(Relaxed);
    if period > 0 {
        signal_overflows(&event, go_on)?;
        EVENT.store(event.as_raw_fd(), Relaxed);
        // SAFETY: the descriptor is that of an open event, and the request takes a number: the
        // event stops at its first overflow.
        check(unsafe { ioctls::REFRESH(event.as_raw_fd(), 1) })?;
    } else {
        // SAFETY: the descriptor is that of an open event, and the request takes no pointer.
        check(unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) })?;
    }
    program();
    // SAFETY: the descriptor is that of an open event, and the request takes no pointer.
    check(unsafe { ioctls::DISABLE(event.as_raw_fd(), 0) })?;
    Ok(SIGNALS.load(Relaxed) - before)
}

/// Uses perf events. The kernel writes a record of each overflow into memory.
pub fn perf_records(period: u64, program: &mut dyn FnMut()) -> Result<u64> {
    Records::of(open(period)?, program)?.count()
}

/// The modes that a perf event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modes {
    /// The kernel.
    Kernel,
    /// User mode.
    User,
}

/// Samples one mode of the first CPU, whoever executes there, as `perf record -a` does: the kernel
/// writes place, thread, time and CPU into memory, and wakes nobody until half of it is full.
/// Returns what it has written while the program executed.
pub fn perf_of_cpu(modes: Modes, period: u64, program: &mut dyn FnMut()) -> Result<Records> {
    let mut attributes = attributes(period);
    let kinds = [
        bindings::PERF_SAMPLE_IP,
        bindings::PERF_SAMPLE_TID,
        bindings::PERF_SAMPLE_TIME,
        bindings::PERF_SAMPLE_CPU,
    ];
    attributes.sample_type = kinds.iter().map(|&kind| u64::from(kind)).sum();
    attributes.__bindgen_anon_2.wakeup_events = 0;
    attributes.set_exclude_kernel(u64::from(modes == Modes::User));
    attributes.set_exclude_user(u64::from(modes == Modes::Kernel));
    Records::of(open_for(attributes, EVERYBODY, FIRST_CPU)?, program)
}

/// The records of an event that is stopped, in the memory into which the kernel has written them.
#[derive(Debug)]
pub struct Records(MmapRaw);

impl Records {
    /// The bytes of the page before the records.
    const PAGE: usize = 4096;
    /// The bytes of all records, which have at most one header and four words each.
    const BUFFER: usize = 16 * Self::PAGE;

    /// Executes the program while the event samples.
    fn of(event: File, program: &mut dyn FnMut()) -> Result<Self> {
        let pages = memmap2::MmapOptions::new().len(Self::PAGE + Self::BUFFER).map_raw(&event)?;
        // SAFETY: the descriptor is that of an open event, and the request takes no pointer.
        check(unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) })?;
        program();
        // SAFETY: the descriptor is that of an open event, and the request takes no pointer.
        check(unsafe { ioctls::DISABLE(event.as_raw_fd(), 0) })?;
        Ok(Self(pages))
    }

    /// Reads all words of all records, which must not have filled the buffer. Returns the number of
    /// samples.
    pub fn count(&self) -> Result<u64> {
        const HEADER: usize = size_of::<bindings::perf_event_header>();
        let Self(pages) = self;
        let control = pages.as_ptr().cast::<bindings::perf_event_mmap_page>();
        // SAFETY: the first page has this form; the event is disabled, so nobody writes.
        let head = unsafe { (*control).data_head } as usize;
        ensure!(head < Self::BUFFER, "the buffer was too small for {head} bytes of records");
        let (mut at, mut samples) = (0, 0);
        while at < head {
            // SAFETY: records begin with headers, are aligned like them, and end before `head`.
            let header = unsafe {
                pages.as_ptr().add(Self::PAGE + at).cast::<bindings::perf_event_header>().read()
            };
            let size = usize::from(header.size);
            ensure!(size >= HEADER && at + size <= head, "a record of {size} bytes");
            for word in (at + HEADER..at + size).step_by(size_of::<u64>()) {
                // SAFETY: records consist of words, and this one ends before `head`.
                black_box(unsafe { pages.as_ptr().add(Self::PAGE + word).cast::<u64>().read() });
            }
            at += size;
            samples += u64::from(header.type_ == bindings::PERF_RECORD_SAMPLE);
        }
        Ok(samples)
    }
}

/// Opens an event of the calling thread's instructions in user mode, disabled.
fn open(period: u64) -> Result<File> {
    open_for(attributes(period), THIS_THREAD, ANY_CPU)
}

/// Returns the attributes of an event of instructions in user mode, disabled.
fn attributes(period: u64) -> bindings::perf_event_attr {
    let mut attributes = bindings::perf_event_attr {
        type_: bindings::PERF_TYPE_HARDWARE,
        size: size_of::<bindings::perf_event_attr>() as u32,
        config: bindings::PERF_COUNT_HW_INSTRUCTIONS.into(),
        sample_type: bindings::PERF_SAMPLE_IP.into(),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_period = period;
    attributes.__bindgen_anon_2.wakeup_events = u32::from(period > 0);
    attributes.set_disabled(1);
    attributes.set_exclude_kernel(1);
    attributes.set_exclude_hv(1);
    attributes
}

/// What the kernel takes for the calling thread or for all, and for any CPU or for the first one.
const THIS_THREAD: libc::pid_t = 0;
const EVERYBODY: libc::pid_t = -1;
const ANY_CPU: libc::c_int = -1;
const FIRST_CPU: libc::c_int = 0;

fn open_for(
    mut attributes: bindings::perf_event_attr,
    whose: libc::pid_t,
    cpu: libc::c_int,
) -> Result<File> {
    // SAFETY: the attributes are writable and say how large they are.
    let descriptor = unsafe { perf_event_open(&mut attributes, whose, cpu, -1, 0) };
    check(descriptor).context("cannot open a perf event")?;
    // SAFETY: a new descriptor, which nobody else owns.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// Has overflows of the event become signals of the calling thread.
fn signal_overflows(event: &File, handler: extern "C" fn(libc::c_int)) -> Result<()> {
    let descriptor = event.as_raw_fd();
    // SAFETY: an all-zero action is valid; the handler does what one may; the arguments are those
    // that fcntl(2) asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        check(libc::sigaction(SIGNAL, &action, std::ptr::null_mut()))?;
        let owner = [F_OWNER_TID, libc::gettid()];
        check(libc::fcntl(descriptor, F_SETOWN_EX, owner.as_ptr()))?;
        check(libc::fcntl(descriptor, F_SETSIG, SIGNAL))?;
        check(libc::fcntl(descriptor, libc::F_SETFL, libc::O_ASYNC))?;
    }
    Ok(())
}

/// These are from Linux's `fcntl.h`.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
