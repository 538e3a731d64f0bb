// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The device's requests, as C sees them.

use core::ffi::{c_int, c_void};
use core::slice;

use guest_kmod::LocalVcpu;
use guest_kmod::mapping::{Mappable, Mapped, Mapping, may_map};
use guest_kmod::policy::{Rights, may_lock};
use guest_kmod::requests::{Descriptor, GuestFacts, admit, info, judge};
use shared_abi::Errno;
use shared_abi::ioctl::{Control, IOC_CONTROL, IOC_INTERRUPTS, IOC_RESUME, IOC_RING_TAKE, Info};
use shared_abi::requests::ARGUMENT_BYTES_MAX;

use crate::machine::{answer, pmu};
use crate::on_vcpu::{OnThread, OnVcpu, OnVcpuOrAsleep};
use crate::ring::report_noticed;
use crate::shown::executing;
use crate::{COUNTING, ThreadObject, from_return, to_return};

unsafe extern "C" {
    /// Returns whether the calling thread has a capability.
    ///
    /// If `is_quiet`, the kernel does not log a refusal.
    fn perfctr_glue_has_capability(capability: c_int, is_quiet: bool) -> bool;
    fn perfctr_glue_is_locked_down() -> bool;
    /// Returns 0 if perf lets the caller count the kernel, or perf's error.
    fn perfctr_glue_perf_allows_kernel() -> c_int;
}

/// The size of C's storage for an argument, unit: words.
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
        // SAFETY: C asks the kernel about the calling thread, and every request has one.
        unsafe { perfctr_glue_has_capability(capability, is_quiet) }
    }

    /// Returns whether the caller may observe the whole system. This is asked only where a
    /// negative answer refuses nothing.
    pub(super) fn is_privileged() -> bool {
        Self::has(CAP_PERFMON, true) || Self::has(CAP_SYS_ADMIN, true)
    }
}

impl Rights for Caller {
    fn has_perfmon(&self) -> bool {
        // The kernel's own perf also accepts the older, larger capability.
        Self::is_privileged() || Self::has(CAP_PERFMON, false)
    }

    fn is_locked_down(&self) -> bool {
        // SAFETY: C only reads a setting of the kernel.
        unsafe { perfctr_glue_is_locked_down() }
    }

    fn has_ipc_lock(&self) -> bool {
        Self::has(CAP_IPC_LOCK, false)
    }

    fn has_ptrace(&self) -> bool {
        Self::has(CAP_SYS_PTRACE, false)
    }

    fn perf_allows_kernel(&self) -> Result<(), Errno> {
        // SAFETY: C asks the kernel about the calling thread, and every request has one.
        from_return(unsafe { perfctr_glue_perf_allows_kernel() })
    }
}

/// What C has to copy for a request that is admitted.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Admitted {
    /// How much to copy from the caller first, unit: bytes.
    bytes_in: u32,
    /// How much to copy to the caller at the end, unit: bytes.
    bytes_out: u32,
}

/// Returns 0 if a request may be made, or an error; see [`admit`].
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
            *out =
                Admitted { bytes_in: request.bytes_in.into(), bytes_out: request.bytes_out.into() };
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
) -> c_int {
    // SAFETY: this is C's copy of the caller's argument, of which C has filled this many bytes.
    let argument = unsafe { slice::from_raw_parts(argument.cast::<u8>(), bytes as usize) };
    let machine = pmu().map(|caps| GuestFacts { paranoid, cpus, caps });
    to_return(machine.and_then(|machine| judge(number, argument, &machine, &Caller)))
}

/// Serves `IOC_INFO`, which describes this machine. Returns 0 or an error.
///
/// It is an error if the module is not loaded.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_info(
    vcpus: u32,
    cpu_signature: u32,
    tsc_khz: u32,
    out: &mut Info,
) -> c_int {
    to_return(answer().map(|query| *out = info(query, vcpus, cpu_signature, tsc_khz)))
}

/// Serves `IOC_RING_TAKE` and `IOC_INTERRUPTS` of anybody, whose argument is a word.
///
/// Returns 0 or an error; see [`Ring::take`](guest_kmod::Ring::take).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_serve_word(
    thread: &ThreadObject,
    number: u32,
    word: &mut u64,
) -> c_int {
    match number {
        IOC_RING_TAKE => to_return(thread.ring.take(*word)),
        IOC_INTERRUPTS => {
            *word = thread.interrupts();
            0
        }
        _ => Errno::NOTTY.to_return(),
    }
}

/// Serves `IOC_CONTROL` and `IOC_RESUME` of a thread's counters. Returns 0 or an error.
///
/// If there is no vCPU, the thread is asleep. Otherwise it executes, and what is noticed is
/// reported to it.
///
/// # Safety
///
/// For `IOC_CONTROL`, C holds the thread's mutex, and `control` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_operate(
    mut thread: OnThread<'_>,
    vcpu: OnVcpuOrAsleep<'_>,
    number: u32,
    control: *const Control,
) -> c_int {
    let object = thread.object();
    let mut operate = |vcpu: Option<&mut OnVcpu<'_>>| match number {
        // SAFETY: C holds the mutex, and `control` points to C's copy of the control.
        IOC_CONTROL => unsafe { set_control(&mut thread, vcpu, &*control) },
        IOC_RESUME => go_on(&mut thread, vcpu),
        _ => Err(Errno::NOTTY),
    };
    let mut vcpu = vcpu.on_vcpu();
    let operated = match &mut vcpu {
        Some(vcpu) => vcpu.operate(object.user, |vcpu| operate(Some(vcpu))),
        None => operate(None),
    };
    let needs_page = &object.needs_page;
    needs_page.set(thread.pmu().0.needs_page(vcpu.is_none(), needs_page.get()));
    if let Some(vcpu) = vcpu {
        report_noticed(thread, vcpu);
    }
    to_return(operated)
}

/// Sets the thread's control.
///
/// # Safety
///
/// C holds the thread's mutex.
unsafe fn set_control(
    thread: &mut OnThread<'_>,
    vcpu: Option<&mut OnVcpu<'_>>,
    control: &Control,
) -> Result<(), Errno> {
    let caps = pmu()?;
    let object = thread.object();
    let (pmu, page) = thread.pmu();
    match vcpu {
        Some(vcpu) => pmu.control(page, &mut vcpu.cpu(), &COUNTING, &caps, control)?,
        None => pmu.control_asleep(page, &COUNTING, &caps, control)?,
    }
    // SAFETY: C holds the mutex under which the control is written and read.
    unsafe { object.keep_control(control) };
    Ok(())
}

#[inline(never)]
fn go_on(thread: &mut OnThread<'_>, vcpu: Option<&mut OnVcpu<'_>>) -> Result<(), Errno> {
    let (pmu, page) = thread.pmu();
    match vcpu {
        Some(vcpu) => pmu.go_on(page, &mut vcpu.cpu()),
        None => pmu.go_on_asleep(),
    }
}

/// Returns the control that was accepted last.
///
/// # Safety
///
/// C holds the mutex under which the thread's controls are set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_last_control(thread: &ThreadObject, out: &mut Control) {
    // SAFETY: the control changes only under the mutex that C holds.
    *out = unsafe { *thread.control.get() };
}

/// Decides about a mapping that is made through a descriptor of these counters; see [`may_map`].
///
/// Returns 1 if the mapping shows the ring, 0 if it shows the counters, or an error.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_may_map(
    thread: &ThreadObject,
    wanted: &Mapping,
    cpus: u32,
    ring_pages: u32,
) -> c_int {
    let mappable = Mappable { cpus, ring_pages, observer: thread.user.observer };
    match may_map(wanted, &mappable, &executing(), &Caller) {
        Ok(mapped) => (mapped == Mapped::Ring).into(),
        Err(errno) => errno.to_return(),
    }
}

/// Returns a page of the counters' mapping: the thread's page, or behind it the page of a vCPU.
///
/// # Safety
///
/// `index` is at most the number of possible vCPUs, as in a mapping that [`may_map`] has allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_mapped_page(
    thread: &ThreadObject,
    index: u32,
) -> *const c_void {
    match index.checked_sub(1) {
        None => thread.page.cast(),
        // SAFETY: the caller promises that `index` is at most the number of possible vCPUs, so
        // `vcpu` is the number of one.
        Some(vcpu) => unsafe { thread.user.page(vcpu) }.cast(),
    }
}

/// Returns 0 if a user may have this number of locked pages, or an error; see [`may_lock`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_may_lock(locked: u64, limit: u64) -> c_int {
    to_return(may_lock(locked, limit, &Caller))
}
