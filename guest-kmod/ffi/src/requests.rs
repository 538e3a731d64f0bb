// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The device's requests, as C sees them.

use core::ffi::{c_int, c_void};
use core::slice;

use guest_kmod::Admission;
use guest_kmod::handshake::caps;
use guest_kmod::mapping::{Mappable, Mapped, Mapping, may_map};
use guest_kmod::policy::{Rights, may_lock};
use guest_kmod::requests::{Descriptor, Machine, admit, info, judge};
use guest_kmod::shown::Observer;
use shared_abi::Errno;
use shared_abi::hypercall::HvQuery;
use shared_abi::ioctl::{Control, CpuState, IOC_CONTROL, IOC_RESUME, Info};
use shared_abi::requests::{ARGUMENT_BYTES_MAX, Requester};

use super::{
    COUNTING, ThreadObject, ThreadPage, VcpuObject, VcpuPage, perfctr_core_thread_init, to_return,
};

unsafe extern "C" {
    /// Whether the calling thread has a capability; quietly, without a word in the kernel's log.
    fn perfctr_glue_has_capability(capability: c_int, is_quiet: bool) -> bool;
    fn perfctr_glue_is_locked_down() -> bool;
    /// 0, or perf's error.
    fn perfctr_glue_perf_allows_kernel() -> c_int;
}

/// What C has room for, unit: words.
pub const ARGUMENT_WORDS: usize = 96;
const _: () = assert!(ARGUMENT_WORDS * 8 == ARGUMENT_BYTES_MAX);

/// Numbers of capabilities (Linux, `include/uapi/linux/capability.h`).
const CAP_IPC_LOCK: c_int = 14;
const CAP_SYS_PTRACE: c_int = 19;
const CAP_SYS_ADMIN: c_int = 21;
const CAP_PERFMON: c_int = 38;

/// The calling thread of Linux.
pub(super) struct Caller;

impl Caller {
    fn has(capability: c_int, is_quiet: bool) -> bool {
        // SAFETY: asks the kernel about its calling thread, and every request has one.
        unsafe { perfctr_glue_has_capability(capability, is_quiet) }
    }

    /// Whether it may observe the whole system, asked where nothing is refused if not.
    pub(super) fn is_privileged() -> bool {
        Self::has(CAP_PERFMON, true) || Self::has(CAP_SYS_ADMIN, true)
    }
}

impl Rights for Caller {
    fn has_perfmon(&self) -> bool {
        // As the kernel's own perf asks: the older and larger capability implies it.
        Self::is_privileged() || Self::has(CAP_PERFMON, false)
    }

    fn is_locked_down(&self) -> bool {
        // SAFETY: asks the kernel about itself.
        unsafe { perfctr_glue_is_locked_down() }
    }

    fn has_ipc_lock(&self) -> bool {
        Self::has(CAP_IPC_LOCK, false)
    }

    fn has_ptrace(&self) -> bool {
        Self::has(CAP_SYS_PTRACE, false)
    }

    fn perf_allows_kernel(&self) -> Result<(), Errno> {
        // SAFETY: asks the kernel about its calling thread, and every request has one.
        match unsafe { perfctr_glue_perf_allows_kernel() } {
            0 => Ok(()),
            error => Err(Errno(error.wrapping_neg())),
        }
    }
}

static ADMISSION: Admission = Admission::new();

/// What C has to do for a request that is admitted.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Admitted {
    /// Unit: bytes that are copied from the caller first.
    bytes_in: u32,
    /// Unit: bytes that are copied to the caller at last.
    bytes_out: u32,
    /// It is about CPUs, of which there is one request at a time.
    is_of_cpus: bool,
}

/// Whether a request may be made; see [`admit`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_admit(
    number: u32,
    is_writable: bool,
    is_bound: bool,
    is_linked: bool,
    is_own: bool,
    out: &mut Admitted,
) -> c_int {
    let descriptor = Descriptor { is_writable, is_bound, is_linked, is_own };
    match admit(number, descriptor, &Caller) {
        Ok(request) => {
            *out = Admitted {
                bytes_in: request.bytes_in.into(),
                bytes_out: request.bytes_out.into(),
                is_of_cpus: request.requester == Requester::Observer,
            };
            0
        }
        Err(errno) => errno.to_return(),
    }
}

/// Judges what was copied from the caller of a request that is admitted; see [`judge`].
///
/// # Safety
///
/// `argument` has `bytes` bytes, and nobody changes them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_judge(
    number: u32,
    argument: *const c_void,
    bytes: u32,
    paranoid: c_int,
    cpus: u32,
    query: &HvQuery,
) -> c_int {
    let Some(caps) = caps(query) else { return Errno::NODEV.to_return() };
    // SAFETY: C's copy of the caller's argument, of which it has filled so many bytes.
    let argument = unsafe { slice::from_raw_parts(argument.cast::<u8>(), bytes as usize) };
    to_return(judge(number, argument, &Machine { paranoid, cpus, caps }, &Caller))
}

/// `IOC_INFO`: what this machine offers; gives 0.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_info(
    query: &HvQuery,
    vcpus: u32,
    cpu_signature: u32,
    tsc_khz: u32,
    out: &mut Info,
) -> c_int {
    *out = info(query, vcpus, cpu_signature, tsc_khz);
    0
}

/// `IOC_CONTROL` and `IOC_RESUME` of a thread's counters.  Without a vCPU the thread is asleep and
/// stays so.  `query` is the answer of the handshake.
///
/// # Safety
///
/// The thread itself calls this, on this vCPU, with interrupts disabled; without a vCPU its tracer
/// does, which keeps it asleep. C holds the thread's mutex; `control` is valid for `IOC_CONTROL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_operate(
    thread: &ThreadObject,
    vcpu: Option<&VcpuObject>,
    query: &HvQuery,
    number: u32,
    control: *const Control,
) -> c_int {
    if let Some(vcpu) = vcpu {
        // A thread that does not count yet may find another user's page registered.
        // SAFETY: the thread executes this, on this vCPU, with interrupts disabled.
        unsafe { vcpu.show_page_of(thread) };
    }
    let operated = match number {
        // SAFETY: what the caller says holds for these, and C has copied the control.
        IOC_CONTROL => unsafe { set_control(thread, vcpu, query, &*control) },
        // SAFETY: what the caller says holds for these.
        IOC_RESUME => unsafe { go_on(thread, vcpu) },
        _ => Err(Errno::NOTTY),
    };
    // SAFETY: this thread, or its tracer while it is asleep.
    let counts = unsafe { thread.pmu() }.0.counts();
    // A thread that is asleep may be in the middle of a read, which needs the page.
    thread.needs_page.set(counts || vcpu.is_none() && thread.needs_page.get());
    to_return(operated)
}

/// # Safety
///
/// As [`perfctr_core_operate`].
unsafe fn set_control(
    thread: &ThreadObject,
    vcpu: Option<&VcpuObject>,
    query: &HvQuery,
    control: &Control,
) -> Result<(), Errno> {
    let caps = caps(query).ok_or(Errno::NODEV)?;
    // SAFETY: this thread, or its tracer while it is asleep.
    let (pmu, page) = unsafe { thread.pmu() };
    match vcpu {
        // SAFETY: on this vCPU, interrupts disabled.
        Some(vcpu) => pmu.control(page, &mut unsafe { vcpu.cpu() }, &COUNTING, &caps, control)?,
        None => pmu.control_asleep(page, &COUNTING, &caps, control)?,
    }
    // SAFETY: C holds the mutex under which this is changed and read.
    unsafe { thread.keep_control(control) };
    Ok(())
}

/// # Safety
///
/// As [`perfctr_core_operate`].
#[inline(never)]
unsafe fn go_on(thread: &ThreadObject, vcpu: Option<&VcpuObject>) -> Result<(), Errno> {
    // SAFETY: this thread, or its tracer while it is asleep.
    let (pmu, page) = unsafe { thread.pmu() };
    match vcpu {
        // SAFETY: on this vCPU, interrupts disabled.
        Some(vcpu) => pmu.go_on(page, &mut unsafe { vcpu.cpu() }),
        None => pmu.go_on_asleep(),
    }
}

/// The control that was accepted last.
///
/// # Safety
///
/// C holds the mutex under which the thread's, or the CPUs', controls are set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_last_control(thread: &ThreadObject, out: &mut Control) {
    // SAFETY: nobody sets it while C holds the mutex.
    *out = unsafe { *thread.control.get() };
}

/// What a mapping through a descriptor shows: 1 for the ring, 0 for the counters of a thread with
/// this observer, or an error; see [`may_map`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_may_map(
    wanted: &Mapping,
    cpus: u32,
    ring_pages: u32,
    observer: &Observer,
) -> c_int {
    let mappable = Mappable { cpus, ring_pages, uid: observer.uid };
    match may_map(wanted, &mappable, &Caller) {
        Ok(mapped) => (mapped == Mapped::Ring).into(),
        Err(errno) => errno.to_return(),
    }
}

/// A thread gets these counters; see [`Admission::thread_begins`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_thread_begins(thread: &ThreadObject) -> c_int {
    to_return(ADMISSION.thread_begins(thread.privileged))
}

/// A thread has lost the counters that it got; see [`Admission::thread_ends`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_thread_ends(thread: &ThreadObject) {
    ADMISSION.thread_ends(thread.privileged);
}

/// Threads that have counters.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_threads() -> u32 {
    ADMISSION.threads()
}

/// `IOC_CPU_CONTROL` of a CPU whose counters did count before or not, which is said anew; gives how
/// many CPUs do.  See [`Admission::cpu_set`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_cpu_set(
    by: u64,
    query: &HvQuery,
    state: &CpuState,
    counts: &mut bool,
) -> c_int {
    let Some(caps) = caps(query) else { return Errno::NODEV.to_return() };
    match ADMISSION.cpu_set(by, &caps, state, *counts) {
        Ok((now, set)) => {
            *counts = now;
            set as c_int
        }
        Err(errno) => errno.to_return(),
    }
}

/// Makes a CPU's counters anew, which are to count this when they are started.
///
/// # Safety
///
/// As for [`perfctr_core_thread_init`]; they count nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_cpu_init(
    counters: *mut ThreadObject,
    page: *const ThreadPage,
    control: &Control,
    observer: *const Observer,
    pages: *const *mut VcpuPage,
) {
    // SAFETY: the caller's memory and pages, which nothing uses while they count nothing.
    unsafe {
        perfctr_core_thread_init(counters, page, 0, observer, pages);
        (*counters).keep_control(control);
    }
}

/// See [`Admission::cpus_start`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_cpus_start(by: u64) -> c_int {
    ADMISSION.cpus_start(by).map_or_else(Errno::to_return, |set| set as c_int)
}

/// 1 if CPUs have to be stopped; see [`Admission::cpus_stop`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_cpus_stop(by: u64) -> c_int {
    ADMISSION.cpus_stop(by).map_or_else(Errno::to_return, c_int::from)
}

/// Whether CPUs count.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_cpus_count() -> bool {
    ADMISSION.cpus_count()
}

/// CPUs have stopped.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_cpus_stopped() {
    ADMISSION.cpus_stopped();
}

/// A descriptor is closed; see [`Admission::closed`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_closed(descriptor: u64) -> bool {
    ADMISSION.closed(descriptor)
}

/// The CPU starts to count whatever executes there, with `counters` and as they were set; see
/// [`Cpu::start_cpu_wide`](guest_kmod::Cpu::start_cpu_wide).  `thread` is what executes here, if it
/// has counters.
///
/// # Safety
///
/// C calls this on this vCPU, whose the counters are, with interrupts disabled, while it holds the
/// mutex of the CPUs' controls; `thread` executes there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_start_cpu_wide(
    counters: &ThreadObject,
    thread: Option<&ThreadObject>,
    vcpu: &VcpuObject,
    query: &HvQuery,
) -> c_int {
    let Some(caps) = caps(query) else { return Errno::NODEV.to_return() };
    // SAFETY: whoever has called this CPU holds the mutex until it has answered.
    let control = unsafe { &*counters.control.get() };
    if let Some(thread) = thread {
        // SAFETY: this thread executes on this vCPU, with interrupts disabled.
        let ((pmu, page), mut cpu) = unsafe { (thread.pmu(), vcpu.cpu()) };
        pmu.switch_out(page, &mut cpu);
    }
    // SAFETY: on this vCPU, interrupts disabled; the references before are gone.
    unsafe { vcpu.show_page_of(counters) };
    // SAFETY: on this vCPU, whose the counters are, interrupts disabled.
    let (own, mut cpu) = unsafe { (counters.pmu(), vcpu.cpu()) };
    // SAFETY: this thread.
    let thread = thread.map(|thread| unsafe { thread.pmu() });
    let started = cpu.start_cpu_wide(own, thread, &COUNTING, &caps, control);
    if started.is_ok() {
        vcpu.cpu_wide.set(counters);
    }
    to_return(started)
}

/// The CPU stops counting whatever executes there, if it does; see
/// [`Cpu::stop_cpu_wide`](guest_kmod::Cpu::stop_cpu_wide).
///
/// # Safety
///
/// C calls this on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_stop_cpu_wide(vcpu: &VcpuObject) {
    let counters = vcpu.cpu_wide.replace(core::ptr::null());
    // SAFETY: C frees the counters after it has had each CPU stop, and before that a CPU that goes
    // offline has stopped.
    let Some(counters) = (unsafe { counters.as_ref() }) else { return };
    // SAFETY: on this vCPU, whose the counters are, interrupts disabled.
    let (counters, mut cpu) = unsafe { (counters.pmu(), vcpu.cpu()) };
    cpu.stop_cpu_wide(counters, &COUNTING);
}

/// Whether a user may have so many locked pages; see [`may_lock`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_may_lock(locked: u64, limit: u64) -> c_int {
    to_return(may_lock(locked, limit, &Caller))
}
