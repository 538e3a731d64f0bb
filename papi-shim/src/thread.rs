// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `vperfctr_*`: the calling thread's counters.

use std::arch::asm;
use std::ffi::c_int;
use std::io;
use std::sync::OnceLock;

use perfctr::raw::{Device, Generation, Pages};
use shared_abi::ioctl::{CONTROL_TSC, Control, Create};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::{THREAD_ACTIVE, THREAD_PAUSED, THREAD_TSC};
use shared_abi::{Errno, ThreadPage};
use zerocopy::FromZeros;

use crate::abi::{self, CpusInfo, OPEN_CREAT_EXCL, SumCtrs, VperfctrControl};
use crate::handle::{Handle, Pool};
use crate::{errno, fd};

/// One thread's counters, its own or another's.
///
/// Both kinds of handle are the same: PAPI stops another thread's counters with a handle of its
/// own ones.
#[derive(Debug)]
pub struct Thread {
    pub(crate) device: Device,
    vendor: u32,
    vcpus: u32,
    /// Mapped when they are first needed, since many threads never count anything.
    pages: OnceLock<Pages>,
    /// The [`this_thread`] that may read directly; 0, which is none, for another thread's counters.
    reader: usize,
    /// That of the reader's process.
    generation: Generation,
    /// The other thread's id, or 0.
    pub(crate) tid: u32,
}

/// `struct vperfctr`.
pub type Vperfctr = Handle<Thread>;

pub(crate) static POOL: Pool<Thread> = Pool::new(Vec::new());

/// The calling thread's pointer: what `pthread_self` gives, without a call on the way of each read.
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
        Self::new(tid, Device::create)
    }

    fn open_existing() -> Result<Self, Errno> {
        Self::new(0, Device::open_existing)
    }

    fn new(tid: u32, bind: fn(&Device, &Create) -> io::Result<()>) -> Result<Self, Errno> {
        errno::from(Generation::watch())?;
        let device = fd::open_device()?;
        let info = errno::from(device.info())?;
        errno::from(bind(&device, &fd::thread(tid)))?;
        Ok(Self {
            device,
            vendor: info.caps.vendor,
            vcpus: info.vcpus,
            pages: OnceLock::new(),
            reader: if tid == 0 { this_thread() } else { 0 },
            generation: Generation::current(),
            tid,
        })
    }

    /// The pages, if this is the thread that they describe.
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
        // If that fails, the kernel is asked instead.
        let pages = Pages::new(&self.device, self.vcpus).ok()?;
        Some(self.pages.get_or_init(|| pages))
    }

    /// The page, if this is the thread that it describes.
    #[inline(always)]
    fn own_page(&self) -> Option<&ThreadPage> {
        self.own_pages()?.thread_page()
    }

    fn control(&self, from: &VperfctrControl) -> Result<(), Errno> {
        if from.cpu_control.nractrs != 0 || from.cpu_control.nrictrs != 0 {
            // Mapping the pages is not to be counted.
            self.own_pages();
        }
        fd::set(&self.device, self.vendor, from)
    }

    /// Reads the TSC and the counters in use without a system call, if the TSC is on and this is
    /// the calling thread's.
    #[inline(always)]
    fn read_direct(&self, sums: &mut SumCtrs) -> Option<()> {
        const RUNNING: u32 = THREAD_ACTIVE | THREAD_TSC;
        let pages = self.own_pages()?;
        let page = pages.thread_page()?;
        if page.state.load(Relaxed) & RUNNING != RUNNING {
            return None;
        }
        let counts = sums.pmc.get_mut(..page.counters.load(Relaxed) as usize)?;
        sums.tsc = pages.read(counts).ok()?.tsc;
        Some(())
    }

    /// The calling thread's sums, read in the cheapest way there is.
    #[inline(always)]
    fn read(&self, sums: &mut SumCtrs) -> Result<(), Errno> {
        match self.read_direct(sums) {
            Some(()) => Ok(()),
            None => self.read_otherwise(sums),
        }
    }

    /// What could not be read directly.  While an overflow has paused the counters, only the TSC
    /// is given.
    #[cold]
    #[inline(never)]
    fn read_otherwise(&self, sums: &mut SumCtrs) -> Result<(), Errno> {
        let asked = fd::sums(&self.device)?;
        if self.own_page().is_some_and(|page| page.state.load(Relaxed) & THREAD_PAUSED != 0) {
            sums.tsc = asked.tsc;
        } else {
            *sums = asked;
        }
        Ok(())
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

    /// Whether anything is counted.
    fn is_running(&self) -> Result<bool, Errno> {
        if let Some(page) = self.own_page() {
            return Ok(page.state.load(Relaxed) & THREAD_ACTIVE != 0);
        }
        let control = errno::from(self.device.read_control())?;
        Ok(control.flags & CONTROL_TSC != 0 || control.counters != 0)
    }

    /// Stops everything; sums stay.
    pub(crate) fn stop(&self) -> Result<(), Errno> {
        errno::from(self.device.control(&Control::default()))
    }

    /// Asks the kernel for sums and control, if there is a place for them.
    ///
    /// # Safety
    ///
    /// The pointers are null or can be written.
    pub(crate) unsafe fn read_state(
        &self,
        sums: *mut SumCtrs,
        control: *mut VperfctrControl,
    ) -> Result<(), Errno> {
        if !sums.is_null() {
            // SAFETY: as the caller says.
            unsafe { sums.write(fd::sums(&self.device)?) };
        }
        if !control.is_null() {
            // SAFETY: as the caller says.
            unsafe { control.write(fd::read_control(&self.device)?) };
        }
        Ok(())
    }
}

fn open_mode(mode: u32) -> Result<*mut Vperfctr, Errno> {
    let thread = match mode {
        OPEN_CREAT_EXCL => Thread::create(0)?,
        0 => Thread::open_existing()?,
        _ => return Err(Errno::INVAL),
    };
    Ok(Handle::open(&POOL, thread))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_open() -> *mut Vperfctr {
    errno::pointer(open_mode(OPEN_CREAT_EXCL))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn vperfctr_open_mode(mode: u32) -> *mut Vperfctr {
    errno::pointer(open_mode(mode))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle; `to` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_info(handle: *const Vperfctr, to: *mut abi::Info) -> c_int {
    // SAFETY: as the caller says.
    let result = unsafe { Handle::get(handle) }.and_then(|thread| {
        // SAFETY: as the caller says.
        unsafe { errno::give(to, fd::info(&thread.device)) }
    });
    errno::status(result)
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_cpus_info(handle: *const Vperfctr) -> *mut CpusInfo {
    // SAFETY: as the caller says.
    errno::pointer(unsafe { Handle::get(handle) }.and_then(|thread| fd::cpus_info(&thread.device)))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_read_tsc(handle: *const Vperfctr) -> u64 {
    // SAFETY: as the caller says.
    match unsafe { Handle::get(handle) } {
        Ok(thread) => thread.read_or_zeros().tsc,
        Err(error) => {
            errno::set(error);
            0
        }
    }
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_read_pmc(handle: *const Vperfctr, index: u32) -> u64 {
    // SAFETY: as the caller says.
    let thread = unsafe { Handle::get(handle) };
    let place = (index as usize) < MAX_COUNTERS;
    match thread {
        Ok(thread) if place => thread.read_or_zeros().pmc[index as usize],
        Ok(_) => {
            errno::set(Errno::INVAL);
            0
        }
        Err(error) => {
            errno::set(error);
            0
        }
    }
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle; `to` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_read_ctrs(handle: *const Vperfctr, to: *mut SumCtrs) -> c_int {
    // SAFETY: as the caller says; C leaves any bits there, all of which are valid.
    let (thread, sums) = unsafe { (Handle::get(handle), to.as_mut()) };
    errno::status(thread.and_then(|thread| thread.read(sums.ok_or(Errno::INVAL)?)))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle; the others are null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_read_state(
    handle: *const Vperfctr,
    sums: *mut SumCtrs,
    control: *mut VperfctrControl,
) -> c_int {
    // SAFETY: as the caller says.
    let thread = unsafe { Handle::get(handle) };
    // SAFETY: as the caller says.
    errno::status(thread.and_then(|thread| unsafe { thread.read_state(sums, control) }))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle; `from` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_control(
    handle: *const Vperfctr,
    from: *mut VperfctrControl,
) -> c_int {
    // SAFETY: as the caller says.
    let (thread, from) = unsafe { (Handle::get(handle), errno::take(from)) };
    errno::status(thread.and_then(|thread| thread.control(&from?)))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_stop(handle: *const Vperfctr) -> c_int {
    // SAFETY: as the caller says.
    errno::status(unsafe { Handle::get(handle) }.and_then(Thread::stop))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_is_running(handle: *const Vperfctr) -> c_int {
    // SAFETY: as the caller says.
    errno::number(unsafe { Handle::get(handle) }.and_then(Thread::is_running).map(c_int::from))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_iresume(handle: *const Vperfctr) -> c_int {
    // SAFETY: as the caller says.
    let thread = unsafe { Handle::get(handle) };
    errno::status(thread.and_then(|thread| errno::from(thread.device.resume())))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_unlink(handle: *const Vperfctr) -> c_int {
    // SAFETY: as the caller says.
    let thread = unsafe { Handle::get(handle) };
    errno::status(thread.and_then(|thread| errno::from(thread.device.unlink())))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle, which nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vperfctr_close(handle: *mut Vperfctr) {
    // SAFETY: as the caller says.
    unsafe { Handle::close(&POOL, handle) };
}
