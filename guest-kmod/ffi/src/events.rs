// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! perf's events on a vCPU, as C sees them.
//!
//! perf calls its PMU on the CPU that it is about, and the glue disables interrupts around that, so
//! whoever calls these functions with a vCPU is alone with it.

use core::ffi::c_int;
use core::slice;

use guest_kmod::handshake::caps;
use guest_kmod::perf::{EventAttr, EventConfig, Progress, Registers, fit};
use guest_kmod::shown::Subject;
use shared_abi::Errno;
use shared_abi::hypercall::{HvPlace, HvQuery};

use crate::shown::{Present, observer_of};
use crate::{ThreadObject, VcpuObject};

/// What an event needs that is opened so; see [`EventConfig::open`].
///
/// Also gives the period to begin with, or 0; see [`EventAttr::first_period`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_open(
    query: &HvQuery,
    attr: &EventAttr,
    out: &mut EventConfig,
    first_period: &mut u64,
) -> c_int {
    *first_period = attr.first_period();
    give(query, out, |caps| EventConfig::open(caps, attr))
}

/// What one of perf's generic events needs; see [`EventConfig::generic`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_generic(
    query: &HvQuery,
    id: u64,
    out: &mut EventConfig,
) -> c_int {
    give(query, out, |caps| EventConfig::generic(caps, id))
}

fn give(
    query: &HvQuery,
    out: &mut EventConfig,
    event: impl FnOnce(&shared_abi::PmuCaps) -> Result<EventConfig, Errno>,
) -> c_int {
    match caps(query).ok_or(Errno::NODEV).and_then(|caps| event(&caps)) {
        Ok(event) => {
            *out = event;
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
    // SAFETY: the caller gives an array of so many events, which lives during the call.
    fit(unsafe { slice::from_raw_parts(group, count as usize) })
}

/// An event comes while a thread executes whose counters are `thread`, if it has any; gives the
/// event's number.
///
/// Where no page is registered in which it may be counted, perf's is; see
/// [`Vcpu::event_needs_page`](guest_kmod::Vcpu::event_needs_page) and
/// [`Cpu::add_event`](guest_kmod::Cpu::add_event).
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled; `thread` executes there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_add(
    vcpu: &VcpuObject,
    event: &EventConfig,
    thread: Option<&ThreadObject>,
    is_wide: bool,
) -> c_int {
    let present = Subject::present();
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    let state = unsafe { vcpu.cpu() }.vcpu;
    if state.event_needs_page(&present, observer_of(thread), is_wide) {
        // Where it is refused, so is the event.
        // SAFETY: as above; the reference before is not used any more.
        let _ = unsafe { vcpu.show_perfs(&present) };
    }
    // SAFETY: as above.
    let mut cpu = unsafe { vcpu.cpu() };
    // SAFETY: the thread executes this, or is about to, so nobody else operates its counters.
    let kept = thread.and_then(|thread| unsafe { thread.pmu() }.0.needs());
    match cpu.add_event(event, kept) {
        Ok(index) => {
            if is_wide {
                cpu.vcpu.wide_event_comes();
            }
            index as c_int
        }
        Err(errno) => errno.to_return(),
    }
}

/// An event goes; gives for how long it was stalled.
///
/// See [`Cpu::remove_event`](guest_kmod::Cpu::remove_event) and
/// [`Vcpu::event_goes`](guest_kmod::Vcpu::event_goes).
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_remove(
    vcpu: &VcpuObject,
    index: u32,
    now: u64,
    is_wide: bool,
) -> u64 {
    let present = Subject::present();
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    let mut cpu = unsafe { vcpu.cpu() };
    let stalled = cpu.remove_event(index, now);
    if cpu.vcpu.event_goes(&present, is_wide) {
        // What the hypervisor refuses is asked for again at the next switch.
        // SAFETY: as above; the reference before is not used any more.
        let _ = unsafe { vcpu.hide() };
    }
    stalled
}

/// An event is to count; see [`Cpu::start_event`](guest_kmod::Cpu::start_event).
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_start(
    vcpu: &VcpuObject,
    index: u32,
    period: u64,
    left: i64,
) {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    unsafe { vcpu.cpu() }.start_event(index, period, left);
}

/// An event is not to count.
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_stop(vcpu: &VcpuObject, index: u32) {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    unsafe { vcpu.cpu() }.stop_event(index);
}

/// What an event has counted since this was last asked; see
/// [`Cpu::progress_of_event`](guest_kmod::Cpu::progress_of_event).
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_progress(
    vcpu: &VcpuObject,
    index: u32,
    now: u64,
    out: &mut Progress,
) {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    *out = unsafe { vcpu.cpu() }.progress_of_event(index, now);
}

/// One bit for each event that has overflowed.
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_overflowed(vcpu: &VcpuObject) -> u32 {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    unsafe { vcpu.cpu() }.overflowed_events()
}

/// How many periods have passed of an event that has overflowed; another one begins.
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_next_period(vcpu: &VcpuObject, index: u32) -> u64 {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    unsafe { vcpu.cpu() }.next_period_of_event(index)
}

/// Whose registers the sample of an event gets; see
/// [`Cpu::registers_of_event`](guest_kmod::Cpu::registers_of_event).
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_registers(
    vcpu: &VcpuObject,
    index: u32,
    interrupted: &mut HvPlace,
) -> Registers {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    unsafe { vcpu.cpu() }.registers_of_event(index, interrupted)
}

/// perf disables its PMU.
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_disable(vcpu: &VcpuObject) {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    unsafe { vcpu.cpu() }.disable_events();
}

/// perf enables its PMU, while `thread` executes if it has counters.  Gives whether the thread is
/// to be told of an overflow.
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled; `thread` executes there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_enable(
    vcpu: &VcpuObject,
    thread: Option<&ThreadObject>,
) -> bool {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    let mut cpu = unsafe { vcpu.cpu() };
    // SAFETY: the thread executes this, so nobody else operates its counters.
    let thread = thread.map(|thread| unsafe { thread.pmu() });
    cpu.enable_events(thread)
}

/// Whether each event's stall is to be settled; see
/// [`Cpu::events_are_unsettled`](guest_kmod::Cpu::events_are_unsettled).
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_unsettled(vcpu: &VcpuObject) -> bool {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    unsafe { vcpu.cpu() }.events_are_unsettled()
}

/// For how long an event was stalled; see
/// [`Cpu::settle_event`](guest_kmod::Cpu::settle_event).
///
/// # Safety
///
/// Called on this vCPU, with interrupts disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_event_settle(
    vcpu: &VcpuObject,
    index: u32,
    began: u64,
    now: u64,
) -> u64 {
    // SAFETY: nobody else uses the vCPU until this returns, since interrupts are disabled there.
    unsafe { vcpu.cpu() }.settle_event(index, began, now)
}
