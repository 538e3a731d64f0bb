// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The core as C sees it, declared in `glue/perfctr_core.h`, and the kernel as the core sees it.
//!
//! C allocates the memory of a thread's object together with memory of its own. It is
//! [`THREAD_BYTES`] of zeroes, aligned to 8 bytes. C frees it when no caller can pass the object to
//! an entry any more. The core allocates everything else.
//!
//! If an entry takes an `OnVcpu`, an `OnThread` or a `Present`, its caller guarantees what the
//! documentation of that type says.
#![cfg_attr(target_os = "none", no_std)]
#![expect(unsafe_code, reason = "the boundary to C")]

mod call;
mod called;
mod cpu_wide;
mod events;
mod machine;
mod memory;
mod observers;
mod on_vcpu;
mod requests;
mod restore;
mod ring;
mod shown;
mod surplus;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod users;
mod vcpu;
mod watch;
mod x86;

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use guest_kmod::hal::{Hypervisor, Kernel};
use guest_kmod::overflow::Signal;
use guest_kmod::policy::ends_at_exec;
use guest_kmod::publish::published;
use guest_kmod::restore::Restoration;
use guest_kmod::shown::ShownWords;
use guest_kmod::{Counting, Ring, Stats, ThreadPmu, Vcpu};
use shared_abi::ioctl::{Control, Sums};
use shared_abi::{Errno, ThreadPage, VcpuPage};

use cpu_wide::CpuWide;
use memory::{alloc_page, free_page};
use on_vcpu::{OnThread, OnVcpu, OnVcpuOrAsleep, Present};
use requests::Caller;
use ring::{report, report_noticed};
use shown::executing;
use users::User;

/// Nothing calls this: a check makes sure that no code in the object does.
#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

unsafe extern "C" {
    fn perfctr_glue_hypercall(op: u32, argument: *mut c_void, length: u32) -> c_int;
    /// Returns the guest frame number of a page.
    ///
    /// In a guest whose frames are the machine's, a page has another number after a restoration.
    fn perfctr_glue_gfn(page: *const VcpuPage) -> u64;
    /// Executes RDPMC with the index in ECX, and returns the value in RAX and RDX.
    ///
    /// After a fault both are 0, and all bits of R10 are set. No other register changes.
    fn perfctr_glue_rdpmc();
}

/// Linux, on the vCPU that executes this.
pub struct Linux {
    restoration: Restoration,
}

/// The hypervisor beneath this Linux.
struct Host;

impl Hypervisor for Linux {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.restoration.hypercall(&Host, op, argument)
    }
}

impl Kernel for Linux {
    fn frame_of(&self, page: &VcpuPage) -> u64 {
        // SAFETY: C only computes with the address, and does not access the page.
        unsafe { perfctr_glue_gfn(page) }
    }
}

impl Hypervisor for Host {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let length = argument.len() as u32;
        // SAFETY: the hypervisor reads and writes at most these bytes.
        from_return(unsafe { perfctr_glue_hypercall(op, argument.as_mut_ptr().cast(), length) })
    }
}

/// A vCPU as C holds it.
pub struct VcpuObject {
    number: u32,
    /// The possible vCPU that was made before this one, or null.
    next: *const VcpuObject,
    /// The result of binding the interrupt of overflows, or `NXIO` while the vCPU is offline.
    /// Changed on this vCPU only, with interrupts disabled.
    bound: Cell<Result<(), Errno>>,
    /// Whether that interrupt is bound, but no page may be registered. Changed on this vCPU only.
    is_refused: AtomicBool,
    /// The page that is registered, or will be in a moment. Without such a page, this is perf's.
    page: Cell<*const VcpuPage>,
    /// The page that a hypercall registers in the place of that one. It has no meaning unless
    /// `kernel.restoration` says that there is one.
    next_page: Cell<*const VcpuPage>,
    /// The page of perf's events.
    perfs: *const VcpuPage,
    /// The number with which perf's page was registered last. Changed on this vCPU only.
    perfs_number: AtomicU32,
    /// The counters of the whole CPU.
    cpu_wide: CpuWide,
    kernel: Linux,
    stats: Stats,
    vcpu: UnsafeCell<Vcpu>,
    /// What is registered. C and other vCPUs read it, too.
    shown: ShownWords,
}

/// A thread's counters as C holds them.
pub struct ThreadObject {
    page: *const ThreadPage,
    pmu: UnsafeCell<ThreadPmu>,
    /// The thread's ring. It is not a part of `pmu`, since others may take records from it.
    ring: Ring,
    /// The last control that was accepted. Changed under C's mutex.
    control: UnsafeCell<Control>,
    /// The user whose thread this was when it got the counters.
    user: &'static User,
    /// Whether the user's page is to be registered where the thread executes.
    needs_page: Cell<bool>,
    /// Whether the thread that has made these counters may observe the whole system.
    privileged: bool,
}

const _: () = assert!(align_of::<VcpuObject>() <= 8 && align_of::<ThreadObject>() <= 8);

static COUNTING: Counting = Counting::new();

impl ThreadObject {
    /// Keeps a control that was accepted, without its request to preserve counts.
    ///
    /// # Safety
    ///
    /// C holds the mutex under which controls are set.
    unsafe fn keep_control(&self, control: &Control) {
        // SAFETY: nobody else reads or writes the control while C holds the mutex.
        unsafe { *self.control.get() = Control { preserve: 0, ..*control } };
    }

    /// Returns how many interrupts were subtracted from the thread's counts. Anybody may ask.
    fn interrupts(&self) -> u64 {
        // SAFETY: the page is freed only together with the object.
        let page = unsafe { &*self.page };
        page.interrupts.load(Relaxed)
    }
}

/// Converts a return value of C's, which is 0 or a negative error number.
fn from_return(error: c_int) -> Result<(), Errno> {
    if error == 0 { Ok(()) } else { Err(Errno(error.wrapping_neg())) }
}

fn to_return(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => errno.to_return(),
    }
}

/// Bytes of a thread object. With the memory that C has beside it, it fits the allocator's 2 KiB.
pub const THREAD_BYTES: usize = 1_944;
const _: () = assert!(size_of::<ThreadObject>() == THREAD_BYTES);

/// Makes a thread object for a user, and takes over the caller's reference to the user.
///
/// Returns 0, or an error if there is no memory. See [`ThreadPmu::new`].
///
/// # Safety
///
/// `memory` has [`THREAD_BYTES`], is aligned to 8 bytes, and nothing else uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_thread_init(
    memory: *mut ThreadObject,
    tid: u32,
    user: &'static User,
) -> c_int {
    let Ok(page) = alloc_page::<ThreadPage>() else {
        user.put();
        return Errno::NOMEM.to_return();
    };
    let object = ThreadObject {
        page,
        // SAFETY: the page was just allocated, and a page of zeroes is a valid `ThreadPage`.
        pmu: UnsafeCell::new(ThreadPmu::new(unsafe { &*page }, tid)),
        ring: Ring::default(),
        control: UnsafeCell::new(Control::default()),
        user,
        needs_page: Cell::new(false),
        privileged: Caller::is_privileged(),
    };
    // SAFETY: the caller gives memory of this size and alignment.
    unsafe { memory.write(object) };
    0
}

/// Frees what belongs to a thread object, but not the object's own memory.
///
/// # Safety
///
/// Nobody uses the object any more, or has its page mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_thread_release(thread: &ThreadObject) {
    // SAFETY: `alloc_page` has returned the page, and the caller promises that nobody uses it any
    // more.
    unsafe { free_page(thread.page) };
    thread.user.put();
}

/// Packs a report to a thread into a word for C. The high half is the signal's number, or 0 for
/// records. The low half has the counters. The word is 0 if there is nothing to report.
fn pack(signal: Option<Signal>) -> u64 {
    signal.map_or(0, |signal| u64::from(signal.number) << 32 | u64::from(signal.counters))
}

/// Converts a word that `pack` has made.
fn unpack(overflows: u64) -> Option<Signal> {
    let signal = Signal { number: (overflows >> 32) as u32, counters: overflows as u32 };
    (overflows != 0).then_some(signal)
}

/// Takes a thread off the vCPU that ran it, and counts what that costs.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_switch_out_measured(mut thread: OnThread<'_>, mut vcpu: OnVcpu<'_>) {
    let (pmu, page) = thread.pmu();
    pmu.switch_out_measured(page, &mut vcpu.cpu());
}

/// Handles the virtual interrupt of an overflow; see [`ThreadPmu::interrupt`].
///
/// It reports the overflow to the thread that executes, if it is that thread's.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_interrupt(mut present: Present<'_>, mut vcpu: OnVcpu<'_>) {
    let mut cpu = vcpu.cpu();
    let signal = present.on_thread().and_then(|mut thread| {
        let (pmu, page) = thread.pmu();
        pmu.interrupt(page, &mut cpu)
    });
    cpu.count_interrupt(signal.is_some());
    report(&mut present, vcpu, signal);
}

/// Reports to the thread that executes what was noticed while something else was done.
///
/// See [`ThreadPmu::report`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_report(mut present: Present<'_>, vcpu: OnVcpu<'_>) {
    if let Some(thread) = present.on_thread() {
        report_noticed(thread, vcpu);
    }
}

/// Stops the thread's counters; see [`ThreadPmu::stop`].
///
/// If there is no vCPU, the thread is asleep. Otherwise it executes, and what is noticed is
/// reported to it.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_stop(mut thread: OnThread<'_>, vcpu: OnVcpuOrAsleep<'_>) {
    let (pmu, page) = thread.pmu();
    match vcpu.on_vcpu() {
        Some(mut vcpu) => {
            pmu.stop(page, &mut vcpu.cpu(), &COUNTING);
            report_noticed(thread, vcpu);
        }
        None => pmu.stop_asleep(page, &COUNTING),
    }
}

/// Returns whether the thread's counters end now that it executes another program.
///
/// They do if the program has rights that the thread's observers lack (`has_gained_rights`), if
/// they may not read the program, and if the thread's control says so. See [`ends_at_exec`] and
/// [`Observer::may_see`](guest_kmod::shown::Observer).
///
/// # Safety
///
/// The caller is the thread, whose control nobody sets while it executes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_ends_at_exec(
    thread: &ThreadObject,
    has_gained_rights: bool,
) -> bool {
    let is_guarded = has_gained_rights || !thread.user.observer.may_see(&executing());
    // SAFETY: the thread itself reads this, and its tracer writes it only while the thread is
    // asleep.
    ends_at_exec(unsafe { &*thread.control.get() }, is_guarded)
}

/// Serves `IOC_READ` of the thread itself; see [`ThreadPmu::read`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_read(
    mut thread: OnThread<'_>,
    mut vcpu: OnVcpu<'_>,
    sums: &mut Sums,
) -> c_int {
    to_return(thread.pmu().0.read(&vcpu.cpu(), sums))
}

/// Serves `IOC_READ` of anybody; see [`published`].
///
/// Returns 0, a negative error number, or 1 if C has to ask again.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_read_published(thread: &ThreadObject, sums: &mut Sums) -> c_int {
    // SAFETY: the page is freed only together with the object.
    match published(unsafe { &*thread.page }) {
        Ok(Some(published)) => {
            *sums = published;
            0
        }
        Ok(None) => 1,
        Err(errno) => errno.to_return(),
    }
}
