// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The functions `vperfctr_*`: the calling thread's counters.

use std::arch::asm;
use std::ffi::c_int;
use std::io;
use std::sync::OnceLock;

use perfctr::raw::{Device, Generation, Pages};
use perfctr::reader::Reader;
use shared_abi::ioctl::{CONTROL_TSC, Control, Info};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::{THREAD_ACTIVE, THREAD_PAUSED, THREAD_TSC};
use shared_abi::{Errno, ThreadPage};
use zerocopy::FromZeros;

use crate::abi::{self, CpusInfo, OPEN_CREAT_EXCL, SumCtrs, VperfctrControl};
use crate::errno::Out;
use crate::handle::{Handle, Held, Table};
use crate::{errno, fd};

/// One thread's counters, its own or another's.
///
/// Both kinds of handle are the same: PAPI stops another thread's counters with a handle of its
/// own ones.
#[derive(Debug)]
pub struct Thread {
    pub(crate) device: Device,
    info: Info,
    /// The pages, which are mapped when they are first needed, since many threads never count
    /// anything.
    pages: OnceLock<Pages>,
    /// The [`this_thread`] that may read directly, or 0, which no thread has, for another thread's
    /// counters.
    reader: usize,
    /// The generation of the reader's process.
    generation: Generation,
    /// The other thread's id, or 0.
    pub(crate) tid: u32,
}

/// `struct vperfctr *`.
pub type Vperfctr = Handle<Thread>;

impl Held for Thread {
    const TABLE: &Table<Self> = {
        static TABLE: Table<Thread> = Table::new(0x7670);
        &TABLE
    };
}

/// Returns the calling thread's pointer, as `pthread_self` does, without a call in each read.
#[inline(always)]
fn this_thread() -> usize {
    let pointer;
    // SAFETY: a thread pointer leads to a word with its own value (ELF Handling For Thread-Local
    // Storage, 3.4.6).
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

impl Thread {
    pub(crate) fn create(tid: u32) -> Result<Self, Errno> {
        Self::new(tid, Device::create_for)
    }

    fn open_existing() -> Result<Self, Errno> {
        Self::new(0, Device::open_for)
    }

    fn new(tid: u32, bind: fn(&Device, u32) -> io::Result<()>) -> Result<Self, Errno> {
        errno::from(Generation::watch())?;
        let device = fd::open_device()?;
        let info = errno::from(device.info())?;
        errno::from(bind(&device, tid))?;
        Ok(Self {
            device,
            info,
            pages: OnceLock::new(),
            reader: if tid == 0 { this_thread() } else { 0 },
            generation: Generation::current(),
            tid,
        })
    }

    /// Returns the pages, if this is the thread that they describe.
    #[inline(always)]
    fn own_pages(&self) -> Option<&Pages> {
        self.pages.get().or_else(|| self.map()).filter(|_| self.reader == this_thread())
    }

    #[cold]
    #[inline(never)]
    fn map(&self) -> Option<&Pages> {
        if self.reader != this_thread() || self.generation != Generation::current() {
            return None;
        }
        // If mapping fails, the kernel is asked instead.
        let pages = Pages::new(&self.device, self.info.vcpus).ok()?;
        Some(self.pages.get_or_init(|| pages))
    }

    /// Returns the page, if this is the thread that it describes.
    #[inline(always)]
    fn own_page(&self) -> Option<&ThreadPage> {
        self.own_pages()?.thread_page()
    }

    fn control(&self, from: &VperfctrControl) -> Result<(), Errno> {
        if from.cpu_control.nractrs != 0 || from.cpu_control.nrictrs != 0 {
            // Mapping the pages is not to be counted.
            self.own_pages();
        }
        fd::set(&self.device, &self.info, from)
    }

    /// Returns the reader of the calling thread's pages if these are mapped, the counters are this
    /// thread's, and the TSC is on: without it the page does not contain the present time.
    #[inline(always)]
    fn reader(pages: Option<&Pages>) -> Option<Reader<'_>> {
        let reader = pages?.reader()?;
        (reader.thread().state.load(Relaxed) & THREAD_TSC != 0).then_some(reader)
    }

    /// Reads the TSC and the counters in use without a system call, if this is the calling
    /// thread's.
    fn read_direct(&self, sums: &mut SumCtrs) -> Option<()> {
        let reader = Self::reader(self.own_pages())?;
        let page = reader.thread();
        // The page has old sums of counters that are not active. The kernel has the present ones.
        if page.state.load(Relaxed) & THREAD_ACTIVE == 0 {
            return None;
        }
        let counts = sums.pmc.get_mut(..page.counters.load(Relaxed) as usize)?;
        sums.tsc = reader.read(counts).ok()?.tsc;
        Some(())
    }

    /// Reads the calling thread's sums in the cheapest way: one attempt, on pages that are mapped.
    ///
    /// If that fails, the slower way is a tail call, so that no registers are saved for it. A
    /// single counter, the usual case, is read without a loop.
    #[inline(always)]
    fn read(&self, sums: &mut SumCtrs) -> c_int {
        let pages = self.pages.get().filter(|_| self.reader == this_thread());
        match Self::reader(pages) {
            None => self.read_otherwise(sums),
            Some(reader) if reader.thread().counters.load(Relaxed) != 1 => {
                self.read_several(reader, sums)
            }
            Some(reader) => self.read_once(reader, sums, 1),
        }
    }

    #[inline(never)]
    fn read_several(&self, reader: Reader<'_>, sums: &mut SumCtrs) -> c_int {
        self.read_once(reader, sums, reader.thread().counters.load(Relaxed) as usize)
    }

    #[inline(always)]
    fn read_once(&self, reader: Reader<'_>, sums: &mut SumCtrs, counters: usize) -> c_int {
        match sums.pmc.get_mut(..counters).and_then(|counts| reader.try_read(counts)) {
            Some(tsc) => {
                sums.tsc = tsc;
                0
            }
            None => self.read_otherwise(sums),
        }
    }

    /// Reads what the fast way could not. While an overflow has paused the counters, only the TSC
    /// is returned.
    #[cold]
    #[inline(never)]
    fn read_otherwise(&self, sums: &mut SumCtrs) -> c_int {
        if self.read_direct(sums).is_some() {
            return 0;
        }
        errno::status(fd::sums(&self.device).map(|asked| {
            let paused = |page: &ThreadPage| page.state.load(Relaxed) & THREAD_PAUSED != 0;
            if self.own_page().is_some_and(paused) {
                sums.tsc = asked.tsc;
            } else {
                *sums = asked;
            }
        }))
    }

    /// Reads for a function that cannot fail: all counters, even paused ones.
    fn read_or_zeros(&self) -> SumCtrs {
        let mut sums = SumCtrs::new_zeroed();
        if self.read_direct(&mut sums).is_none() {
            match fd::sums(&self.device) {
                Ok(asked) => sums = asked,
                Err(error) => errno::set(error),
            }
        }
        sums
    }

    /// Returns whether anything is counted.
    fn is_running(&self) -> Result<bool, Errno> {
        if let Some(page) = self.own_page() {
            return Ok(page.state.load(Relaxed) & THREAD_ACTIVE != 0);
        }
        Ok(counts(&errno::from(self.device.read_control())?))
    }

    /// Stops everything. Sums stay readable.
    pub(crate) fn stop(&self) -> Result<(), Errno> {
        errno::from(self.device.control(&Control::default()))
    }

    /// Asks the kernel for sums and control, if there is a place for them.
    fn read_state(
        &self,
        sums: Out<'_, SumCtrs>,
        control: Out<'_, VperfctrControl>,
    ) -> Result<(), Errno> {
        if let Some(sums) = sums {
            sums.write(fd::sums(&self.device)?);
        }
        if let Some(control) = control {
            control.write(fd::read_control(&self.device)?);
        }
        Ok(())
    }
}

/// Returns whether a control counts anything, be it the clock alone.
const fn counts(control: &Control) -> bool {
    control.flags & CONTROL_TSC != 0 || control.counters != 0
}

fn open_mode(mode: u32) -> Result<Thread, Errno> {
    match mode {
        OPEN_CREAT_EXCL => Thread::create(0),
        0 => Thread::open_existing(),
        _ => Err(Errno::INVAL),
    }
}

/// Returns the value, or 0 with `errno` set.
fn value(result: Result<u64, Errno>) -> u64 {
    result.unwrap_or_else(|errno| {
        errno::set(errno);
        0
    })
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_open() -> Vperfctr {
    errno::handle(open_mode(OPEN_CREAT_EXCL))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_open_mode(mode: u32) -> Vperfctr {
    errno::handle(open_mode(mode))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_info(handle: Vperfctr, to: Out<'_, abi::Info>) -> c_int {
    errno::status(handle.with(|thread| errno::give(to, fd::info(&thread.device))))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_cpus_info(handle: Vperfctr) -> *mut CpusInfo {
    errno::pointer(handle.with(|thread| fd::cpus_info(&thread.device)))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_read_tsc(handle: Vperfctr) -> u64 {
    value(handle.with(|thread| Ok(thread.read_or_zeros().tsc)))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_read_pmc(handle: Vperfctr, index: u32) -> u64 {
    value(handle.with(|thread| {
        let index = Some(index as usize).filter(|index| *index < MAX_COUNTERS);
        index.map(|index| thread.read_or_zeros().pmc[index]).ok_or(Errno::INVAL)
    }))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_read_ctrs(handle: Vperfctr, to: Option<&mut SumCtrs>) -> c_int {
    let read = |thread: &Thread| to.map(|sums| thread.read(sums)).ok_or(Errno::INVAL);
    handle.with(read).unwrap_or_else(errno::failed)
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_read_state(
    handle: Vperfctr,
    sums: Out<'_, SumCtrs>,
    control: Out<'_, VperfctrControl>,
) -> c_int {
    errno::status(handle.with(|thread| thread.read_state(sums, control)))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_control(handle: Vperfctr, from: Option<&VperfctrControl>) -> c_int {
    errno::status(handle.with(|thread| thread.control(&errno::take(from)?)))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_stop(handle: Vperfctr) -> c_int {
    errno::status(handle.with(Thread::stop))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_is_running(handle: Vperfctr) -> c_int {
    errno::number(handle.with(|thread| thread.is_running().map(c_int::from)))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_iresume(handle: Vperfctr) -> c_int {
    errno::status(handle.with(|thread| errno::from(thread.device.resume())))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_unlink(handle: Vperfctr) -> c_int {
    errno::status(handle.with(|thread| errno::from(thread.device.unlink())))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_close(handle: Vperfctr) {
    handle.close();
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use shared_abi::ioctl::CONTROL_CLOEXEC;
    use shared_abi::limits::PAGE_BYTES;

    use super::*;

    /// Returns counters of a device whose pages are 0.
    fn thread(reader: usize, generation: Generation) -> Thread {
        let path = std::env::temp_dir().join(format!("perfctr-{}-{reader}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(2 * PAGE_BYTES as u64).unwrap();
        std::fs::remove_file(path).unwrap();
        let device = Device::from(OwnedFd::from(file));
        let info = Info { vcpus: 1, ..Info::default() };
        Thread { device, info, pages: OnceLock::new(), reader, generation, tid: 0 }
    }

    #[test]
    fn a_clock_alone_is_running_and_so_is_a_counter() {
        let control = |flags, counters| Control { flags, counters, ..Control::default() };
        assert!(counts(&control(CONTROL_TSC, 0)));
        assert!(counts(&control(0, 1)));
        // What is left of a control that was stopped.
        assert!(!counts(&control(CONTROL_CLOEXEC, 0)));
    }

    #[test]
    fn only_the_thread_itself_maps_its_pages() {
        let mapped = |reader, generation| thread(reader, generation).own_pages().is_some();
        let now = Generation::current();
        assert!(mapped(this_thread(), now));
        assert!(!mapped(this_thread() + 64, now), "another thread");
        assert!(!mapped(0, now), "a tracer");
    }

    #[test]
    fn a_forked_child_does_not_map_its_parents_pages() {
        let inherited = thread(this_thread(), Generation::current());
        Generation::watch().unwrap();
        assert!(in_forked_child(|| inherited.own_pages().is_none()));
        assert!(inherited.own_pages().is_some());
    }

    /// Returns what `check` returns in a child that is forked for it.
    fn in_forked_child(check: impl Fn() -> bool) -> bool {
        let mut status = 0;
        // SAFETY: the child makes system calls only, and ends without returning.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(check().into());
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        libc::WEXITSTATUS(status) == 1
    }
}
