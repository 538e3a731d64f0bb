// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! perf's events on a vCPU, as C sees them.
//!
//! perf calls its PMU on the CPU that it is about, and the glue disables interrupts around that.

use core::ffi::c_int;
use core::slice;

use guest_kmod::perf::{BranchStack, EventAttr, EventConfig, Progress, Registers, fit};
use shared_abi::hypercall::{FEATURE_BRANCHES, HvPlace};

use crate::machine::{answer, pmu};
use crate::on_vcpu::{OnThread, OnVcpu, Present};
use crate::shown::{executing, observer_of};
use crate::to_return;

/// Finds out what an event needs that is opened with these attributes; see [`EventConfig::open`].
///
/// It also finds the first period, or 0; see [`EventAttr::first_period`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_open(
    attr: &EventAttr,
    out: &mut EventConfig,
    first_period: &mut u64,
) -> c_int {
    *first_period = attr.first_period();
    let records = answer().is_ok_and(|answer| answer.features & FEATURE_BRANCHES != 0);
    to_return(
        pmu().and_then(|caps| EventConfig::open(&caps, attr, records)).map(|event| *out = event),
    )
}

/// Returns the event and the unit mask of one of perf's generic events, or 0.
///
/// It is 0 if this CPU has no such event, or if the host does not let the domain count it; see
/// [`EventConfig::generic`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_select(id: u64) -> u16 {
    let event = pmu().and_then(|caps| EventConfig::generic(&caps, id));
    event.map_or(0, |event| event.event_and_umask())
}

/// Returns whether the events of a group can be counted at once; see [`fit`].
///
/// # Safety
///
/// `group` are `count` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_fit(group: *const EventConfig, count: u32) -> bool {
    // SAFETY: the caller gives an array of this many events, which lives during the call.
    fit(unsafe { slice::from_raw_parts(group, count as usize) })
}

/// Adds an event, and returns its number.  `thread` are the counters of the thread that executes,
/// if it has any.
///
/// If the registered page may not show the event, perf's page is registered in its place; see
/// [`Vcpu::event_needs_page`](guest_kmod::Vcpu::event_needs_page) and
/// [`ThisVcpu::add_event`](guest_kmod::ThisVcpu::add_event).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_add(
    mut vcpu: OnVcpu<'_>,
    event: &EventConfig,
    mut thread: Present<'_>,
    is_wide: bool,
) -> c_int {
    let present = executing();
    let own = observer_of(thread.object());
    if vcpu.cpu().vcpu.event_needs_page(&present, own, is_wide) {
        // Where it is refused, so is the event.
        let _ = vcpu.show_perfs(&present);
    }
    let mut cpu = vcpu.cpu();
    let mut thread = thread.on_thread();
    let kept = thread.as_mut().and_then(|thread| thread.pmu().0.needs());
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

/// Removes an event, and returns for how long it was stalled.
///
/// See [`ThisVcpu::remove_event`](guest_kmod::ThisVcpu::remove_event) and
/// [`Vcpu::event_goes`](guest_kmod::Vcpu::event_goes).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_remove(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    now: u64,
    is_wide: bool,
) -> u64 {
    let present = executing();
    let mut cpu = vcpu.cpu();
    let stalled = cpu.remove_event(index, now);
    if cpu.vcpu.event_goes(&present, is_wide) {
        // What the hypervisor refuses is asked for again at the next switch.
        let _ = vcpu.hide();
    }
    stalled
}

/// Lets an event count; see [`ThisVcpu::start_event`](guest_kmod::ThisVcpu::start_event).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_start(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    period: u64,
    left: i64,
) {
    vcpu.cpu().start_event(index, period, left);
}

/// Stops an event.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_stop(mut vcpu: OnVcpu<'_>, index: u32) {
    vcpu.cpu().stop_event(index);
}

/// Returns what an event has counted since this was called last; see
/// [`ThisVcpu::progress_of_event`](guest_kmod::ThisVcpu::progress_of_event).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_progress(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    now: u64,
    out: &mut Progress,
) {
    *out = vcpu.cpu().progress_of_event(index, now);
}

/// Returns one bit for each event that has overflowed.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_events_overflowed(mut vcpu: OnVcpu<'_>) -> u32 {
    vcpu.cpu().overflowed_events()
}

/// Returns how many periods of an event that has overflowed have passed, and begins the next one.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_next_period(mut vcpu: OnVcpu<'_>, index: u32) -> u64 {
    vcpu.cpu().next_period_of_event(index)
}

/// Returns which registers the sample of an event gets; see
/// [`ThisVcpu::registers_of_event`](guest_kmod::ThisVcpu::registers_of_event).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_registers(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    interrupted: &mut HvPlace,
) -> Registers {
    vcpu.cpu().registers_of_event(index, interrupted)
}

/// Fills in the branches before the overflow of an event; see
/// [`ThisVcpu::branches_of_event`](guest_kmod::ThisVcpu::branches_of_event).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_branches(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    stack: &mut BranchStack,
) {
    vcpu.cpu().branches_of_event(index, stack);
}

/// Forgets recorded branches, because another thread is about to execute; see
/// [`ThisVcpu::forget_records`](guest_kmod::ThisVcpu::forget_records).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_forget_records(mut vcpu: OnVcpu<'_>) {
    vcpu.cpu().forget_records();
}

/// Does what has to be done when perf disables its PMU.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_events_disable(mut vcpu: OnVcpu<'_>) {
    vcpu.cpu().disable_events();
}

/// Does what has to be done when perf enables its PMU.  `thread` are the counters of the thread
/// that executes, if it has any.  Returns whether to report an overflow to that thread.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_events_enable(
    mut vcpu: OnVcpu<'_>,
    mut thread: Present<'_>,
) -> bool {
    let mut thread = thread.on_thread();
    vcpu.cpu().enable_events(thread.as_mut().map(OnThread::pmu))
}

/// Returns whether each event's stall is to be settled; see
/// [`ThisVcpu::events_are_unsettled`](guest_kmod::ThisVcpu::events_are_unsettled).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_events_unsettled(mut vcpu: OnVcpu<'_>) -> bool {
    vcpu.cpu().events_are_unsettled()
}

/// Returns for how long an event was stalled; see
/// [`ThisVcpu::settle_event`](guest_kmod::ThisVcpu::settle_event).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_settle(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    began: u64,
    now: u64,
) -> u64 {
    vcpu.cpu().settle_event(index, began, now)
}
