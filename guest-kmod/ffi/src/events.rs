// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! perf's events on a vCPU, as C sees them.

use core::ffi::c_int;
use core::slice;

use guest_kmod::handshake::caps;
use guest_kmod::perf::{EventConfig, Progress, fit};
use shared_abi::Errno;
use shared_abi::hypercall::{HvPlace, HvQuery};

use crate::{ThreadObject, VcpuObject};

/// What an event of perf's needs; see [`EventConfig::new`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_wanted(
    query: &HvQuery,
    kind: u32,
    config: u64,
    rings: u64,
    samples: bool,
    out: &mut EventConfig,
) -> c_int {
    let Some(caps) = caps(query) else { return Errno::NODEV.to_return() };
    match EventConfig::new(&caps, kind, config, rings, samples) {
        Ok(wanted) => {
            *out = wanted;
            0
        }
        Err(errno) => errno.to_return(),
    }
}

/// Whether the events of a group can be counted at once; see [`fit`].
///
/// # Safety
///
/// `group` are `count` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_fit(group: *const EventConfig, count: u32) -> bool {
    // SAFETY: the caller's.
    fit(unsafe { slice::from_raw_parts(group, count as usize) })
}

/// An event comes, while `thread` executes if it has counters; gives its number.  See
/// [`Cpu::add_event`](guest_kmod::Cpu::add_event).
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_add(
    vcpu: &VcpuObject,
    event: &EventConfig,
    thread: Option<&ThreadObject>,
) -> c_int {
    // SAFETY: on this vCPU, interrupts disabled.
    let mut cpu = unsafe { vcpu.cpu() };
    // SAFETY: this thread.
    let thread = thread.and_then(|thread| unsafe { thread.pmu() }.0.needs());
    match cpu.add_event(event, thread) {
        Ok(index) => index as c_int,
        Err(errno) => errno.to_return(),
    }
}

/// An event goes.
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_remove(vcpu: &VcpuObject, index: u32) {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.remove_event(index);
}

/// An event is to count; see [`Cpu::start_event`](guest_kmod::Cpu::start_event).
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_start(
    vcpu: &VcpuObject,
    index: u32,
    period: u64,
    left: i64,
) {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.start_event(index, period, left);
}

/// An event is not to count.
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_stop(vcpu: &VcpuObject, index: u32) {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.stop_event(index);
}

/// What an event has counted since this was last asked.
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_progress(
    vcpu: &VcpuObject,
    index: u32,
    out: &mut Progress,
) {
    // SAFETY: on this vCPU, interrupts disabled.
    *out = unsafe { vcpu.cpu() }.progress_of_event(index);
}

/// One bit per event that has overflowed.
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_overflowed(vcpu: &VcpuObject) -> u32 {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.overflowed_events()
}

/// How many periods have passed of an event that has overflowed; another one begins.
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_next_period(vcpu: &VcpuObject, index: u32) -> u64 {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.next_period_of_event(index)
}

/// Where an event has overflowed; see [`Cpu::place_of_event`](guest_kmod::Cpu::place_of_event).
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_place(
    vcpu: &VcpuObject,
    index: u32,
    out: &mut HvPlace,
) {
    // SAFETY: on this vCPU, interrupts disabled.
    *out = unsafe { vcpu.cpu() }.place_of_event(index);
}

/// perf disables its PMU.
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_disable(vcpu: &VcpuObject) {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.disable_events();
}

/// perf enables its PMU, while `thread` executes if it has counters.  Gives whether the thread is
/// to be told of an overflow.
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_enable(
    vcpu: &VcpuObject,
    thread: Option<&ThreadObject>,
) -> bool {
    // SAFETY: on this vCPU, interrupts disabled.
    let mut cpu = unsafe { vcpu.cpu() };
    // SAFETY: this thread.
    let thread = thread.map(|thread| unsafe { thread.pmu() });
    cpu.enable_events(thread)
}

/// Whether nothing is counted here; see
/// [`Cpu::events_are_stalled`](guest_kmod::Cpu::events_are_stalled).
///
/// # Safety
///
/// As the crate's documentation says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_stalled(vcpu: &VcpuObject) -> bool {
    // SAFETY: on this vCPU, interrupts disabled.
    unsafe { vcpu.cpu() }.events_are_stalled()
}
