// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes system calls, and detects forks.
#![expect(unsafe_code, reason = "system calls take pointers")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use perf_event_open_sys as perf;
use shared_abi::ioctl::{
    Control, CpuState, Create, DEVICE_PATH, IOC_CONTROL, IOC_CPU_CONTROL, IOC_CPU_READ,
    IOC_CPU_START, IOC_CPU_STOP, IOC_CREATE, IOC_INFO, IOC_INTERRUPTS, IOC_OPEN, IOC_READ,
    IOC_READ_CONTROL, IOC_RESUME, IOC_RING, IOC_RING_TAKE, IOC_UNLINK, Info, Sums,
};
use shared_abi::ring::RingRequest;
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::total::Total;

/// How often this process's ancestors have forked since the library was first used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_fork() {
    // ATOMICS: a forked child has a single thread, so there is nothing to be ordered with.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Generation {
    /// Starts counting forks.
    ///
    /// The count does not contain a child that a bare `clone` or `vfork` makes. Such a child
    /// faults when it reads, because the kernel does not copy the mapping to it either.
    ///
    /// # Errors
    ///
    /// The C library's error.
    pub fn watch() -> io::Result<()> {
        static WATCH: Once = Once::new();
        let mut error = 0;
        WATCH.call_once(|| {
            // SAFETY: the handler is async-signal-safe, as a child of a threaded process needs.
            error = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    /// The generation of no process.
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// Returns the generation of a child that this process could have forked.
    #[cfg(test)]
    pub(crate) fn of_child() -> Self {
        Self(Self::current().0 + 1)
    }

    /// Returns how often the calling process's ancestors have forked.
    #[inline(always)]
    pub fn current() -> Self {
        // ATOMICS: see `count_fork`.
        Self(FORKS.load(Ordering::Relaxed))
    }
}

/// Makes the C library call `function` when the process ends by itself.
///
/// # Errors
///
/// The C library has no memory.
pub(crate) fn at_exit(function: extern "C" fn()) -> io::Result<()> {
    // SAFETY: the function takes no argument, and stays as long as the program does.
    let failed = unsafe { libc::atexit(function) };
    if failed == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}

/// An open `/dev/perfctr`, with a method per ioctl; see [`shared_abi::ioctl`] for what each does
/// and its errors.
///
/// Closing it leaves the thread's counters as they are.
#[derive(Debug)]
pub struct Device(File);

#[expect(missing_docs, reason = "each method is the ioctl of the same name")]
#[expect(clippy::missing_errors_doc, reason = "see the table in shared_abi::ioctl")]
impl Device {
    pub const PATH: &str = DEVICE_PATH;

    pub fn open() -> io::Result<Self> {
        File::options().read(true).write(true).open(Self::PATH).map(Self)
    }

    pub fn info(&self) -> io::Result<Info> {
        self.ioctl_read(IOC_INFO)
    }

    pub fn create(&self, argument: &Create) -> io::Result<()> {
        self.ioctl_write(IOC_CREATE, argument).map(drop)
    }

    pub fn open_existing(&self, argument: &Create) -> io::Result<()> {
        self.ioctl_write(IOC_OPEN, argument).map(drop)
    }

    /// Gives a thread counters, and binds this descriptor to them; thread 0 is the calling one.
    ///
    /// Another thread has to be stopped, with the caller as its tracer.
    pub fn create_for(&self, tid: u32) -> io::Result<()> {
        self.create(&of_thread(tid))
    }

    /// Binds this descriptor to the counters that a thread has, as [`create_for`](Self::create_for)
    /// to new ones.
    pub fn open_for(&self, tid: u32) -> io::Result<()> {
        self.open_existing(&of_thread(tid))
    }

    pub fn control(&self, argument: &Control) -> io::Result<()> {
        self.ioctl_write(IOC_CONTROL, argument).map(drop)
    }

    pub fn sums(&self) -> io::Result<Sums> {
        self.ioctl_read(IOC_READ)
    }

    pub fn interrupts(&self) -> io::Result<u64> {
        self.ioctl_read(IOC_INTERRUPTS)
    }

    pub fn read_control(&self) -> io::Result<Control> {
        self.ioctl_read(IOC_READ_CONTROL)
    }

    pub fn unlink(&self) -> io::Result<()> {
        self.ioctl(IOC_UNLINK, std::ptr::null_mut()).map(drop)
    }

    pub fn resume(&self) -> io::Result<()> {
        self.ioctl(IOC_RESUME, std::ptr::null_mut()).map(drop)
    }

    pub fn ring(&self, argument: &RingRequest) -> io::Result<()> {
        self.ioctl_write(IOC_RING, argument).map(drop)
    }

    pub fn ring_take(&self, taken: u64) -> io::Result<()> {
        self.ioctl_write(IOC_RING_TAKE, &taken).map(drop)
    }

    /// Returns another descriptor of the same counters.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    pub fn cpu_control(&self, argument: &CpuState) -> io::Result<i32> {
        self.ioctl_write(IOC_CPU_CONTROL, argument)
    }

    pub fn cpu_start(&self) -> io::Result<i32> {
        self.ioctl(IOC_CPU_START, std::ptr::null_mut())
    }

    pub fn cpu_stop(&self) -> io::Result<()> {
        self.ioctl(IOC_CPU_STOP, std::ptr::null_mut()).map(drop)
    }

    pub fn cpu_read(&self, cpu: u32) -> io::Result<CpuState> {
        let mut state = CpuState { cpu, ..CpuState::default() };
        self.ioctl(IOC_CPU_READ, (&raw mut state).cast())?;
        Ok(state)
    }

    fn ioctl_read<T: FromBytes + Default>(&self, request: u32) -> io::Result<T> {
        let mut answer = T::default();
        self.ioctl(request, (&raw mut answer).cast())?;
        Ok(answer)
    }

    fn ioctl_write<T: IntoBytes + Immutable>(&self, request: u32, argument: &T) -> io::Result<i32> {
        self.ioctl(request, (&raw const *argument).cast_mut().cast())
    }

    fn ioctl(&self, request: u32, argument: *mut libc::c_void) -> io::Result<i32> {
        // SAFETY: the request's number contains the argument's size, which is the size of the type
        // that `ioctl_read` or `ioctl_write` was given. The device writes only to arguments that
        // are borrowed mutably, and for these all bit patterns are valid.
        let result = unsafe { libc::ioctl(self.as_raw_fd(), request.into(), argument) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }
}

/// Returns the argument that names a thread.
fn of_thread(tid: u32) -> Create {
    Create { abi_major: ABI_MAJOR.into(), abi_minor: ABI_MINOR.into(), tid, ..Create::default() }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl From<Device> for OwnedFd {
    fn from(device: Device) -> Self {
        device.0.into()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The format in which an event that is not in a group is read.
pub(crate) const WITH_TIMES: u64 = (perf::bindings::PERF_FORMAT_TOTAL_TIME_ENABLED
    | perf::bindings::PERF_FORMAT_TOTAL_TIME_RUNNING) as u64;

/// Linux's names and numbers for the owner of a descriptor, which gets its signals; see `fcntl(2)`.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// Linux's `struct f_owner_ex`.
#[repr(C)]
struct OwnerEx {
    kind: libc::c_int,
    id: libc::pid_t,
}

/// An open perf event; see Linux's `perf_event_open(2)`.
#[derive(Debug)]
pub struct PerfEvent(File);

impl PerfEvent {
    /// Opens an event of the calling thread, in the group of `leader` if there is one.
    pub(crate) fn open(
        attributes: &mut perf::bindings::perf_event_attr,
        leader: Option<&Self>,
    ) -> io::Result<Self> {
        Self::open_where((0, -1), attributes, leader, 0)
    }

    /// Opens an event of thread `tid` that stops at each overflow and sends the thread `signal`.
    pub(crate) fn open_to_sample(
        tid: libc::pid_t,
        attributes: &mut perf::bindings::perf_event_attr,
        signal: libc::c_int,
    ) -> io::Result<Self> {
        attributes.read_format = WITH_TIMES;
        attributes.set_disabled(1);
        attributes.set_pinned(1);
        let event = Self::open_where((tid, -1), attributes, None, 0)?;
        let owner = OwnerEx { kind: F_OWNER_TID, id: tid };
        // SAFETY: the owner is readable; the other requests take numbers.
        let results = unsafe {
            let (fd, flags) = (event.as_raw_fd(), libc::O_ASYNC | libc::O_NONBLOCK);
            [
                libc::fcntl(fd, F_SETOWN_EX, &raw const owner),
                libc::fcntl(fd, F_SETSIG, signal),
                libc::fcntl(fd, libc::F_SETFL, flags),
            ]
        };
        if results == [0; 3] { Ok(event) } else { Err(io::Error::last_os_error()) }
    }

    /// Opens an event of a thread on a CPU; -1 stands for all threads, or for all CPUs.
    pub(crate) fn open_where(
        (pid, cpu): (libc::pid_t, libc::c_int),
        attributes: &mut perf::bindings::perf_event_attr,
        leader: Option<&Self>,
        flags: u32,
    ) -> io::Result<Self> {
        let group = leader.map_or(-1, AsRawFd::as_raw_fd);
        let flags = (perf::bindings::PERF_FLAG_FD_CLOEXEC | flags).into();
        // SAFETY: the attributes are writable and say how large they are.
        let descriptor = unsafe { perf::perf_event_open(attributes, pid, cpu, group, flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, so nobody else owns it.
        Ok(Self(unsafe { File::from_raw_fd(descriptor) }))
    }

    /// Makes the kernel write this event's records to the ring of another event of the same CPU.
    pub(crate) fn write_to(&self, other: &Self) -> io::Result<()> {
        // SAFETY: the request takes the number of a descriptor and no pointer.
        let result = unsafe { perf::ioctls::SET_OUTPUT(self.as_raw_fd(), other.as_raw_fd()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(crate) fn enable(&self) -> io::Result<()> {
        self.ioctl(perf::ioctls::ENABLE, 0)
    }

    pub(crate) fn disable(&self) -> io::Result<()> {
        self.ioctl(perf::ioctls::DISABLE, 0)
    }

    pub(crate) fn enable_group(&self) -> io::Result<()> {
        self.ioctl(perf::ioctls::ENABLE, perf::bindings::PERF_IOC_FLAG_GROUP)
    }

    pub(crate) fn disable_group(&self) -> io::Result<()> {
        self.ioctl(perf::ioctls::DISABLE, perf::bindings::PERF_IOC_FLAG_GROUP)
    }

    fn ioctl(&self, request: unsafe fn(RawFd, u32) -> i32, argument: u32) -> io::Result<()> {
        // SAFETY: these requests take a number and no pointer.
        let result = unsafe { request(self.as_raw_fd(), argument) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Lets an event of [`of_thread`](crate::raw::of_thread) count until its next overflow.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn go_on(&self) -> io::Result<()> {
        // SAFETY: this request takes a number and no pointer.
        let result = unsafe { perf::ioctls::REFRESH(self.as_raw_fd(), 1) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns what an event of [`raw`](crate::raw) has counted until now.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn counted(&self) -> io::Result<Total> {
        let mut words = [0; 3];
        if self.read(&mut words)? != words.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let [count, enabled, running] = words;
        Ok(Total::of_ns(count, enabled, running))
    }

    /// Reads words in the event's format, and returns the number of words.
    pub(crate) fn read(&self, words: &mut [u64]) -> io::Result<usize> {
        Ok((&self.0).read(words.as_mut_bytes())? / size_of::<u64>())
    }
}

impl AsRawFd for PerfEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until any of these descriptors has something to read or has ended, or the time has passed.
///
/// Returns the union of the events that poll(2) reports for the descriptors.
pub(crate) fn poll(
    all: impl Iterator<Item = RawFd>,
    at_most: Duration,
) -> io::Result<libc::c_short> {
    let of = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut all: Vec<libc::pollfd> = all.map(of).collect();
    let ms = at_most.as_millis().try_into().unwrap_or(libc::c_int::MAX);
    // SAFETY: the slice's structures are readable and writable, and its length is passed with it.
    match unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, ms) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(all.iter().fold(0, |events, one| events | one.revents)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_events_words_are_its_count_and_then_both_times() {
        // A file stands for the event: its words have the order of `perf_event_open(2)`.
        let path = std::env::temp_dir().join(format!("perfctr-words-{}", std::process::id()));
        let words = [5_u64, 700, 90];
        std::fs::write(&path, words.as_bytes()).unwrap();
        let total = PerfEvent(File::open(&path).unwrap()).counted().unwrap();
        std::fs::write(&path, words[..2].as_bytes()).unwrap();
        let short = PerfEvent(File::open(&path).unwrap()).counted();
        std::fs::remove_file(path).unwrap();
        let [enabled, running] = [700, 90].map(Duration::from_nanos);
        assert_eq!(total, Total { count: 5, enabled, running });
        assert_eq!(short.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_fork_is_seen_in_the_child_only() {
        Generation::watch().unwrap();
        let before = Generation::current();
        // SAFETY: the child calls nothing but async-signal-safe functions.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = Generation::current() != before;
            // SAFETY: the call ends the child, and executes none of the parent's exit handlers.
            unsafe { libc::_exit(i32::from(seen)) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1);
        assert_eq!(Generation::current(), before);
    }
}
