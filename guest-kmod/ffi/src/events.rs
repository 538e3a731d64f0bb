// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! perf's events on a vCPU, as C sees them.
//!
//! perf calls its PMU on the CPU that the call is about, and the glue disables interrupts during
//! the call.

use core::ffi::c_int;
use core::slice;

use guest_kmod::perf::{
    BranchStack, EventAttr, EventConfig, EventTime, LocalEvents, PRECISE_MAX, Progress, Registers,
    Searches, fit, is_unread, stopped,
};
use shared_abi::hypercall::{FEATURE_PRECISE, HvPlace};

use crate::machine::{answer, pmu};
use crate::on_vcpu::{OnThread, OnVcpu, Present};
use crate::shown::observer_of;
use crate::to_return;

unsafe extern "C" {
    /// Returns a time of an event, by perf's clock.
    fn perfctr_glue_event_time(index: u32, which: EventTime) -> u64;
    /// Adds to perf's books what an event has counted, and for how long it was stalled.
    fn perfctr_glue_event_progress(index: u32, progress: &Progress);
    /// Subtracts `stalled` from the time that an event has run, according to perf's books.
    fn perfctr_glue_event_stall(index: u32, stalled: u64);
    /// Makes perf take a sample of an event, of which `periods` periods have passed.
    fn perfctr_glue_event_sample(index: u32, registers: Registers, place: &HvPlace, periods: u64);
    /// Has this CPU report overflows as soon as it enables interrupts.
    fn perfctr_glue_report_later();
}

/// Finds out what an event with these attributes needs; see [`EventConfig::open`].
///
/// It also stores the first period, or 0; see [`EventAttr::first_period`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_open(
    attr: &EventAttr,
    out: &mut EventConfig,
    first_period: &mut u64,
) -> c_int {
    *first_period = attr.first_period();
    let event = pmu().and_then(|caps| EventConfig::open(&caps, attr, features()));
    to_return(event.map(|event| *out = event))
}

/// Returns the features of the hypervisor.
fn features() -> u32 {
    answer().map_or(0, |answer| answer.features)
}

/// Returns how exact places of samples perf can ask for; see [`PRECISE_MAX`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_precise_max() -> u64 {
    if features() & FEATURE_PRECISE != 0 { PRECISE_MAX } else { 0 }
}

/// Returns the event and the unit mask of one of perf's generic events, or 0.
///
/// The result is 0 if this CPU has no such event, or if the host does not let the domain count it;
/// see [`EventConfig::generic`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_select(id: u64) -> u16 {
    let event = pmu().and_then(|caps| EventConfig::generic(&caps, id));
    event.map_or(0, |event| event.event_and_umask())
}

/// Returns whether the events of a group can be counted at once; see [`fit`].
///
/// # Safety
///
/// `group` points to `count` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_events_fit(group: *const EventConfig, count: u32) -> bool {
    // SAFETY: the caller gives an array of this many events, which stays valid during the call.
    fit(unsafe { slice::from_raw_parts(group, count as usize) })
}

/// Adds an event, and returns its number or an error; see [`LocalEvents::add_event`].
///
/// `thread` has the counters of the thread that executes, if it has any.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_add(
    mut vcpu: OnVcpu<'_>,
    event: &EventConfig,
    mut thread: Present<'_>,
    is_wide: bool,
) -> c_int {
    let own = observer_of(thread.object());
    let mut thread = thread.on_thread();
    let kept = thread.as_mut().and_then(|thread| thread.pmu().0.needs());
    match vcpu.add_event(event, own, kept, is_wide) {
        Ok(index) => index as c_int,
        Err(errno) => errno.to_return(),
    }
}

/// Removes an event whose `hw.state` is `state`; see [`LocalEvents::remove_event`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_remove(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    state: u32,
    is_wide: bool,
) {
    // If the hypervisor refuses, the next switch asks it again.
    let _ = vcpu.remove_event(index, is_unread(state), is_wide);
}

/// Lets an event count, and returns how many events its present period has; see
/// [`ThisVcpu::start_event`](guest_kmod::ThisVcpu::start_event).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_start(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    period: u64,
    left: i64,
    present: u64,
) -> u64 {
    vcpu.cpu().start_event(index, period, left, present)
}

/// Stops an event whose `hw.state` is `state`, and returns its new state; see
/// [`LocalEvents::stop_event`].
///
/// `updates` says whether perf wants its books brought up to date.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_stop(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    state: u32,
    updates: bool,
) -> u32 {
    let reads = updates && is_unread(state);
    vcpu.stop_event(index, reads);
    stopped(state, reads)
}

static SEARCHES: Searches = Searches::new();

/// Notes that C begins to search for contexts of perf's; see [`Searches::begins`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_contexts_searched(now: u64) {
    SEARCHES.begins(now);
}

/// Returns in how much time C may search again, unit: ms; see [`Searches::wait_ms`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_contexts_wait(now: u64) -> u32 {
    SEARCHES.wait_ms(now)
}

/// Brings perf's books of an event up to date; see [`LocalEvents::read_event`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_read(mut vcpu: OnVcpu<'_>, index: u32) {
    vcpu.read_event(index);
}

/// Fills in the branches that were recorded before an event overflowed; see
/// [`ThisVcpu::branches_of_event`](guest_kmod::ThisVcpu::branches_of_event).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_event_branches(
    mut vcpu: OnVcpu<'_>,
    index: u32,
    stack: &mut BranchStack,
) {
    vcpu.cpu().branches_of_event(index, stack);
}

/// Does what is needed when perf disables its PMU.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_events_disable(mut vcpu: OnVcpu<'_>) {
    vcpu.cpu().disable_events();
}

/// Does what is needed when perf enables its PMU; see [`LocalEvents::enable_events`].
///
/// `thread` has the counters of the thread that executes, if it has any.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_events_enable(mut vcpu: OnVcpu<'_>, mut thread: Present<'_>) {
    // If the hypervisor refuses, perf asks it again when it enables its PMU next.
    let _ = vcpu.enable_events(|vcpu| enable(vcpu, &mut thread));
}

/// Handles the interrupt of an overflow for perf's events. Returns whether any has overflowed.
///
/// `thread` has the counters of the thread that executes, if it has any, and `interrupted` the
/// registers of the interrupted code. See [`LocalEvents::interrupt_events`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_events_interrupt(
    mut vcpu: OnVcpu<'_>,
    mut thread: Present<'_>,
    interrupted: &HvPlace,
) -> bool {
    vcpu.interrupt_events(interrupted, |vcpu| enable(vcpu, &mut thread))
}

fn enable(vcpu: &mut OnVcpu<'_>, thread: &mut Present<'_>) -> bool {
    let mut thread = thread.on_thread();
    vcpu.cpu().enable_events(thread.as_mut().map(OnThread::pmu))
}

impl LocalEvents for OnVcpu<'_> {
    fn time(&mut self, index: u32, which: EventTime) -> u64 {
        // SAFETY: the core has added the event here and has not removed it.
        unsafe { perfctr_glue_event_time(index, which) }
    }

    fn book_progress(&mut self, index: u32, progress: &Progress) {
        // SAFETY: the core has added the event here and has not removed it.
        unsafe { perfctr_glue_event_progress(index, progress) }
    }

    fn book_stall(&mut self, index: u32, stalled: u64) {
        // SAFETY: C forgets the event only after the entry that removes it has returned.
        unsafe { perfctr_glue_event_stall(index, stalled) }
    }

    fn sample(&mut self, index: u32, registers: Registers, place: &HvPlace, periods: u64) {
        // SAFETY: the core has added the event here and has not removed it. C may meanwhile pass
        // this vCPU to other entries as the only right to use it: nothing of it is borrowed here.
        unsafe { perfctr_glue_event_sample(index, registers, place, periods) }
    }

    fn report_later(&mut self) {
        // SAFETY: C queues irq work on this CPU, which does nothing before interrupts are enabled.
        unsafe { perfctr_glue_report_later() }
    }
}
