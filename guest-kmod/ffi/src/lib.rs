// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The core as C sees it, declared in `glue/perfctr_core.h`, and the kernel as the core sees it.
//!
//! C owns all memory: it allocates what [`perfctr_core_vcpu_bytes`] and
//! [`THREAD_BYTES`] say, zeroed and aligned to 8 bytes, and frees it when nothing can
//! call with it any more.  Functions that take a vCPU are called on that vCPU with interrupts
//! disabled.  Functions that take a thread are called by that thread, or while it is switched, or
//! while it is asleep and cannot be woken; what counts for a CPU is operated on that CPU.
#![cfg_attr(target_os = "none", no_std)]
#![expect(unsafe_code, reason = "the boundary to C")]

mod events;
mod requests;
mod restore;
mod ring;
mod shown;
mod x86;

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_char, c_int, c_void};

use guest_kmod::hal::{Hypervisor, Kernel};
use guest_kmod::handshake::{GuestKernel, first_handshake, handshake_again};
use guest_kmod::overflow::Signal;
use guest_kmod::policy::ends_at_exec;
use guest_kmod::publish::published;
use guest_kmod::restore::Restoration;
use guest_kmod::shown::{Observer, Subject};
use guest_kmod::{Counting, Cpu, Ring, Stats, ThreadPmu, Vcpu, for_number};
use shared_abi::hypercall::HvQuery;
use shared_abi::ioctl::{Control, Sums};
use shared_abi::{Errno, ThreadPage, VcpuPage};

use requests::Caller;
use shown::Present;

/// No code path leads here: the object is checked not to contain any that does.
#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

unsafe extern "C" {
    fn perfctr_glue_hypercall(op: u32, argument: *mut c_void, length: u32) -> c_int;
    /// The guest frame number of a page; a guest whose frames are the machine's has other ones
    /// after it was restored.
    fn perfctr_glue_gfn(page: *const VcpuPage) -> u64;
    /// RDPMC of ECX to RAX and RDX; changes no other register.
    fn perfctr_glue_rdpmc();
}

/// Linux, on the vCPU that executes this.
struct Linux {
    restoration: Restoration,
}

/// What is beneath it.
struct Host;

impl Hypervisor for Linux {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.restoration.hypercall(&Host, op, argument)
    }
}

impl Kernel for Linux {
    fn frame_of(&self, page: &VcpuPage) -> u64 {
        // SAFETY: C reckons with the address, and does not look at the page.
        unsafe { perfctr_glue_gfn(page) }
    }
}

impl Hypervisor for Host {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let length = argument.len() as u32;
        // SAFETY: the hypervisor reads and writes at most these bytes.
        match unsafe { perfctr_glue_hypercall(op, argument.as_mut_ptr().cast(), length) } {
            0 => Ok(()),
            error => Err(Errno(error.wrapping_neg())),
        }
    }
}

/// A vCPU as C holds it.
pub struct VcpuObject {
    number: u32,
    /// The one that is registered, or will be in a moment; perf's if there is none.
    page: Cell<*const VcpuPage>,
    /// That of perf's events.
    perfs: *const VcpuPage,
    /// What counts for the whole CPU while that is done.
    cpu_wide: Cell<*const ThreadObject>,
    kernel: Linux,
    stats: Stats,
    vcpu: UnsafeCell<Vcpu>,
}

/// A thread's counters as C holds them.
pub struct ThreadObject {
    page: *const ThreadPage,
    pmu: UnsafeCell<ThreadPmu>,
    /// Beside it, since others may take what it holds.
    ring: Ring,
    /// The last one that was accepted.  By C's mutex.
    control: UnsafeCell<Control>,
    /// The user whose thread it was when it got the counters.
    observer: *const Observer,
    /// That user's pages, one for each possible CPU.
    pages: *const *mut VcpuPage,
    /// Whether the user's page is to be registered where the thread executes.
    needs_page: Cell<bool>,
    /// Whoever has made these counters may observe the whole system.
    privileged: bool,
}

const _: () = assert!(align_of::<VcpuObject>() <= 8 && align_of::<ThreadObject>() <= 8);

static COUNTING: Counting = Counting::new();

impl VcpuObject {
    /// # Safety
    ///
    /// The caller executes on this vCPU, with interrupts disabled until it drops the result.
    #[inline(always)]
    unsafe fn cpu(&self) -> Cpu<'_, Linux> {
        Cpu {
            number: self.number,
            // SAFETY: the page outlives the object.
            page: unsafe { &*self.page.get() },
            // SAFETY: only code on this vCPU with interrupts disabled takes this reference.
            vcpu: unsafe { &mut *self.vcpu.get() },
            stats: &self.stats,
            kernel: &self.kernel,
        }
    }
}

impl ThreadObject {
    /// # Safety
    ///
    /// The caller is the thread or its switch, with interrupts disabled until it drops the result.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the safety condition")]
    #[inline(always)]
    unsafe fn pmu(&self) -> (&mut ThreadPmu, &ThreadPage) {
        // SAFETY: only the thread takes this reference, and the page outlives the object.
        unsafe { (&mut *self.pmu.get(), &*self.page) }
    }
}

impl ThreadObject {
    /// Keeps a control that was accepted, and is not to preserve anything if it is made again.
    ///
    /// # Safety
    ///
    /// C holds the mutex under which controls are set.
    unsafe fn keep_control(&self, control: &Control) {
        // SAFETY: nobody else reads or writes it while C holds the mutex.
        unsafe { *self.control.get() = Control { preserve: 0, ..*control } };
    }
}

fn to_return(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => errno.to_return(),
    }
}

/// Asks the hypervisor when the module is loaded, and says what was found if that is refused; see
/// [`first_handshake`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_handshake(
    owns_cr4: bool,
    lends_cr4: bool,
    cpus: u32,
    answer: &mut HvQuery,
    found: &mut *const c_char,
) -> c_int {
    match first_handshake(&Host, &GuestKernel { owns_cr4, lends_cr4, cpus }) {
        Ok(query) => {
            *answer = query;
            0
        }
        Err(unsuitable) => {
            *found = unsuitable.found.as_ptr();
            unsuitable.errno.to_return()
        }
    }
}

/// Asks again; see [`handshake_again`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_handshake_again(before: &HvQuery) -> c_int {
    to_return(handshake_again(&Host, before))
}

/// Bytes of a vCPU object.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_vcpu_bytes() -> usize {
    size_of::<VcpuObject>()
}

/// Makes a vCPU object of memory, with a page for perf's events that is not registered.
///
/// # Safety
///
/// `memory` has the bytes of a vCPU object, is aligned to 8 bytes, and nothing else uses it; the
/// page outlives it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpu_init(
    memory: *mut VcpuObject,
    number: u32,
    perfs: *const VcpuPage,
) {
    let object = VcpuObject {
        number,
        page: Cell::new(perfs),
        perfs,
        cpu_wide: Cell::new(core::ptr::null()),
        kernel: Linux { restoration: Restoration::new() },
        stats: Stats::default(),
        vcpu: UnsafeCell::new(Vcpu::default()),
    };
    // SAFETY: the caller gives memory of this size and alignment.
    unsafe { memory.write(object) }
}

/// No thread may count on the vCPU, for the reason of this negative error number; see
/// [`Cpu::refuse`].
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpu_refuse(vcpu: &VcpuObject, error: c_int) {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.refuse(Errno(error.wrapping_neg()));
}

/// Stops the vCPU's counters if nobody counts.
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_vcpu_stop_if_idle(vcpu: &VcpuObject) {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.stop_if_idle(&COUNTING);
}

/// Whether nobody counts.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_is_idle() -> bool {
    COUNTING.is_idle()
}

/// The name of statistic `index`, or null behind the last.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_stat_name(vcpu: &VcpuObject, index: u32) -> *const c_char {
    vcpu.stats.list().nth(index as usize).map_or(core::ptr::null(), |(name, _)| name.as_ptr())
}

/// The value of statistic `index` on any vCPU.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_stat(vcpu: &VcpuObject, index: u32) -> u64 {
    vcpu.stats.list().nth(index as usize).map_or(0, |(_, count)| count.get())
}

/// Bytes of a thread object.  With what C has beside it, it fits the allocator's 2 KiB.
pub const THREAD_BYTES: usize = 1_928;
const _: () = assert!(size_of::<ThreadObject>() == THREAD_BYTES);

/// Makes a thread object of memory; see [`ThreadPmu::new`].
///
/// # Safety
///
/// `memory` has [`THREAD_BYTES`], is aligned to 8 bytes, and nothing else uses it; `page` is
/// zeroed; it, `observer` and `pages`, which has a page for each possible CPU, outlive it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_thread_init(
    memory: *mut ThreadObject,
    page: *const ThreadPage,
    tid: u32,
    observer: *const Observer,
    pages: *const *mut VcpuPage,
) {
    // SAFETY: the caller gives a page.
    let pmu = ThreadPmu::new(unsafe { &*page }, tid);
    let object = ThreadObject {
        page,
        pmu: UnsafeCell::new(pmu),
        ring: Ring::default(),
        control: UnsafeCell::new(Control::default()),
        observer,
        pages,
        needs_page: Cell::new(false),
        privileged: Caller::is_privileged(),
    };
    // SAFETY: the caller gives memory of this size and alignment.
    unsafe { memory.write(object) }
}

/// What to tell a thread as C gets it: the signal's number in the high half, 0 for records, and the
/// counters in the low one; 0 for nothing.
fn pack(signal: Option<Signal>) -> u64 {
    signal.map_or(0, |signal| u64::from(signal.number) << 32 | u64::from(signal.counters))
}

/// The thread is switched in; gives a signal, see `pack`.
///
/// # Safety
///
/// C calls this at a switch of this thread, on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_switch_in(thread: &ThreadObject, vcpu: &VcpuObject) -> u64 {
    // SAFETY: this thread's switch, on this vCPU, interrupts disabled.
    let number = unsafe { thread.pmu().0.plainly_in(&vcpu.cpu()) };
    // SAFETY: as above.
    unsafe {
        for_number!(
            number,
            N => switch_in_plainly::<N>(thread, vcpu),
            else switch_in_otherwise(thread, vcpu)
        )
    }
}

/// Each way in a function of its own: a shorter one has fewer registers to save.
///
/// # Safety
///
/// C calls this at a switch of this thread, on this vCPU, with interrupts disabled.
#[inline(never)]
unsafe fn switch_in_plainly<const N: usize>(thread: &ThreadObject, vcpu: &VcpuObject) -> u64 {
    // SAFETY: as the caller says.
    let ((pmu, page), cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    if pmu.begin::<N, Linux>(page, &cpu) {
        return 0;
    }
    // SAFETY: as above.
    unsafe { switch_in_otherwise(thread, vcpu) }
}

/// As [`switch_in_plainly`].
///
/// # Safety
///
/// C calls this at a switch of this thread, on this vCPU, with interrupts disabled.
#[inline(never)]
unsafe fn switch_in_otherwise(thread: &ThreadObject, vcpu: &VcpuObject) -> u64 {
    // SAFETY: as the caller says.
    unsafe { vcpu.show_page_if_needed(thread) };
    // SAFETY: as the caller says; the references before are gone.
    let ((pmu, page), mut cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    pack(pmu.switch_in_otherwise(page, &mut cpu))
}

/// The thread is switched out.
///
/// # Safety
///
/// C calls this at a switch of this thread, on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_switch_out(thread: &ThreadObject, vcpu: &VcpuObject) {
    // SAFETY: this thread's switch, on this vCPU, interrupts disabled.
    let number = unsafe { thread.pmu().0.plainly_out() };
    // SAFETY: as above.
    unsafe {
        for_number!(
            number,
            N => switch_out_plainly::<N>(thread, vcpu),
            else switch_out_otherwise(thread, vcpu)
        )
    }
}

/// As [`switch_in_plainly`].
///
/// # Safety
///
/// C calls this at a switch of this thread, on this vCPU, with interrupts disabled.
#[inline(never)]
unsafe fn switch_out_plainly<const N: usize>(thread: &ThreadObject, vcpu: &VcpuObject) {
    // SAFETY: as the caller says.
    let ((pmu, page), cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    if !pmu.end::<N, Linux>(page, &cpu) {
        // SAFETY: as above.
        unsafe { switch_out_otherwise(thread, vcpu) }
    }
}

/// As [`switch_in_plainly`].
///
/// # Safety
///
/// C calls this at a switch of this thread, on this vCPU, with interrupts disabled.
#[inline(never)]
unsafe fn switch_out_otherwise(thread: &ThreadObject, vcpu: &VcpuObject) {
    // SAFETY: as the caller says.
    let ((pmu, page), mut cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    pmu.switch_out_otherwise(page, &mut cpu);
}

/// The thread is switched in, and what that costs is counted.
///
/// # Safety
///
/// C calls this at a switch of this thread, on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_switch_in_measured(
    thread: &ThreadObject,
    vcpu: &VcpuObject,
) -> u64 {
    // SAFETY: this thread's switch, on this vCPU, interrupts disabled.
    unsafe { vcpu.show_page_if_needed(thread) };
    // SAFETY: as above; the references before are gone.
    let ((pmu, page), mut cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    pack(pmu.switch_in_measured(page, &mut cpu))
}

/// The thread is switched out, and what that costs is counted.
///
/// # Safety
///
/// C calls this at a switch of this thread, on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_switch_out_measured(
    thread: &ThreadObject,
    vcpu: &VcpuObject,
) {
    // SAFETY: this thread's switch, on this vCPU, interrupts disabled.
    let ((pmu, page), mut cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    pmu.switch_out_measured(page, &mut cpu);
}

/// The virtual interrupt of an overflow came while `thread`, if it has counters, executes; see
/// [`ThreadPmu::interrupt`].
///
/// # Safety
///
/// The interrupt's handler calls this on this vCPU, with interrupts disabled; `thread` executes
/// there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_interrupt(
    thread: Option<&ThreadObject>,
    vcpu: &VcpuObject,
) -> u64 {
    // SAFETY: on this vCPU, interrupts disabled.
    let mut cpu = unsafe { vcpu.cpu() };
    let signal = thread.and_then(|thread| {
        // SAFETY: this thread.
        let (pmu, page) = unsafe { thread.pmu() };
        pmu.interrupt(page, &mut cpu)
    });
    cpu.count_interrupt(signal.is_some());
    pack(signal)
}

/// A signal could not be sent; see [`ThreadPmu::signal_lost`].
///
/// # Safety
///
/// The thread itself calls this, on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_signal_lost(thread: &ThreadObject, vcpu: &VcpuObject) {
    // SAFETY: this thread, on this vCPU, interrupts disabled.
    let ((pmu, page), mut cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    pmu.signal_lost(page, &mut cpu);
}

/// What to send the thread after an ioctl; see [`ThreadPmu::tell`] and `pack`.
///
/// # Safety
///
/// The thread itself calls this, on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_tell(thread: &ThreadObject, vcpu: &VcpuObject) -> u64 {
    // SAFETY: this thread, on this vCPU, interrupts disabled.
    let ((pmu, page), mut cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    pack(pmu.tell(page, &mut cpu))
}

/// Stops the thread's counters; see [`ThreadPmu::stop`].  Without a vCPU the thread is asleep and
/// stays so.
///
/// # Safety
///
/// The thread itself calls this, on this vCPU, with interrupts disabled; without a vCPU its tracer
/// does, which keeps it asleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_stop(thread: &ThreadObject, vcpu: Option<&VcpuObject>) {
    // SAFETY: this thread, or its tracer while it is asleep.
    let (pmu, page) = unsafe { thread.pmu() };
    match vcpu {
        // SAFETY: on this vCPU, interrupts disabled.
        Some(vcpu) => pmu.stop(page, &mut unsafe { vcpu.cpu() }, &COUNTING),
        None => pmu.stop_asleep(page, &COUNTING),
    }
}

/// Whether the thread's counters end now that it executes another program: with rights that its
/// observers lack (`has_gained_rights`), or one that they may not read, as perf's events do, or as
/// its control says; see [`ends_at_exec`] and [`Observer::may_see`].
///
/// # Safety
///
/// The caller is the thread, whose control nobody sets while it executes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_ends_at_exec(
    thread: &ThreadObject,
    has_gained_rights: bool,
) -> bool {
    // SAFETY: C keeps the user for as long as the thread's counters.
    let observer = unsafe { &*thread.observer };
    let is_guarded = has_gained_rights || !observer.may_see(&Subject::present());
    // SAFETY: the thread itself, and its tracer sets it only while the thread is asleep.
    ends_at_exec(unsafe { &*thread.control.get() }, is_guarded)
}

/// `IOC_READ` by the thread itself; see [`ThreadPmu::read`].
///
/// # Safety
///
/// The thread itself calls this, or for a CPU's counters that CPU, on this vCPU, with interrupts
/// disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_read(
    thread: &ThreadObject,
    vcpu: &VcpuObject,
    sums: &mut Sums,
) -> c_int {
    // SAFETY: this thread, on this vCPU, interrupts disabled.
    let ((pmu, _), cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
    to_return(pmu.read(&cpu, sums))
}

/// `IOC_READ` by anybody; see [`published`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_read_published(thread: &ThreadObject, sums: &mut Sums) -> c_int {
    // SAFETY: the page outlives the object.
    to_return(published(unsafe { &*thread.page }).map(|published| *sums = published))
}
