// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reports to a thread, and its ring, as C sees them.

use core::ffi::{c_int, c_void};
use core::ptr::from_ref;

use guest_kmod::overflow::Signal;
use guest_kmod::ring::{Frame, RingPlace, callers};
use guest_kmod::{Reporter, Ring, ThreadPmu};
use shared_abi::ThreadPage;
use shared_abi::ring::RingRequest;

use crate::on_vcpu::{OnThread, OnVcpu, Present};
use crate::{ThreadObject, to_return, unpack};

unsafe extern "C" {
    /// Reads a frame of the calling thread's stack. Returns whether the frame is in memory.
    fn perfctr_glue_read_frame(address: u64, frame: &mut Frame) -> bool;
    /// Sends the calling thread an overflow's signal. Returns whether the thread will get it.
    ///
    /// `counters` has the bit of each counter that has overflowed.
    fn perfctr_glue_send_signal(number: u32, counters: u32) -> bool;
    /// Writes a record of the calling thread to the ring of its counters.
    fn perfctr_glue_ring_write(counters: *const c_void, place: &RingPlace);
    /// Wakes whoever waits for records of these counters.
    fn perfctr_glue_ring_wake(counters: *const c_void);
}

/// Reports overflows to the thread that executes; see [`Reporter::report`].
///
/// `pack` has made `overflows`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_report_overflows(
    thread: OnThread<'_>,
    vcpu: OnVcpu<'_>,
    overflows: u64,
) {
    if let Some(found) = unpack(overflows) {
        Reporting { thread, vcpu }.report(found);
    }
}

/// Reports what was found, if anything, to the thread that executes; see [`Reporter::report`].
pub(crate) fn report(present: &mut Present<'_>, vcpu: OnVcpu<'_>, found: Option<Signal>) {
    if let Some((thread, found)) = present.on_thread().zip(found) {
        Reporting { thread, vcpu }.report(found);
    }
}

/// Reports to the thread that executes what was noticed while something else was done; see
/// [`ThreadPmu::report`]. Nothing was noticed in most cases.
#[inline(always)]
pub(crate) fn report_noticed(mut thread: OnThread<'_>, vcpu: OnVcpu<'_>) {
    if thread.pmu().0.has_report() {
        report_pending(thread, vcpu);
    }
}

#[cold]
#[inline(never)]
fn report_pending(mut thread: OnThread<'_>, mut vcpu: OnVcpu<'_>) {
    let (pmu, page) = thread.pmu();
    if let Some(found) = pmu.report(page, &mut vcpu.cpu()) {
        Reporting { thread, vcpu }.report(found);
    }
}

/// Lets the counters of the thread that executes go on after a signal that it did not get; see
/// [`ThreadPmu::signal_lost`].
///
/// C calls this in a kernel with PREEMPT_RT, where a thread sends its signals when it leaves the
/// kernel.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_signal_lost(thread: OnThread<'_>, vcpu: OnVcpu<'_>) {
    Reporting { thread, vcpu }.signal_lost();
}

/// The thread that executes, and its vCPU.
struct Reporting<'a> {
    thread: OnThread<'a>,
    vcpu: OnVcpu<'a>,
}

impl Reporter for Reporting<'_> {
    fn with_ring<R>(&mut self, run: impl FnOnce(&ThreadPmu, &ThreadPage, &Ring) -> R) -> R {
        let ring = &self.thread.object().ring;
        let (pmu, page) = self.thread.pmu();
        run(pmu, page, ring)
    }

    fn send(&mut self, signal: Signal) -> bool {
        // SAFETY: the calling thread executes this and holds none of the locks that sending needs.
        unsafe { perfctr_glue_send_signal(signal.number, signal.counters) }
    }

    fn signal_lost(&mut self) {
        let (pmu, page) = self.thread.pmu();
        pmu.signal_lost(page, &mut self.vcpu.cpu());
    }

    fn write(&mut self, place: &RingPlace) {
        // SAFETY: the place is in the ring, and nobody else writes there.
        unsafe { perfctr_glue_ring_write(from_ref(self.thread.object()).cast(), place) }
    }

    fn wake(&mut self) {
        // SAFETY: the calling thread executes this and holds none of the locks that waking needs.
        unsafe { perfctr_glue_ring_wake(from_ref(self.thread.object()).cast()) }
    }
}

/// Serves `IOC_RING`; see [`ThreadPmu::begin_ring`](guest_kmod::ThreadPmu::begin_ring).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_begin(
    mut thread: OnThread<'_>,
    request: &RingRequest,
) -> c_int {
    let ring = &thread.object().ring;
    to_return(thread.pmu().0.begin_ring(ring, request))
}

/// Writes the addresses of the calling thread's callers behind a record; see [`callers`].
///
/// Returns how many addresses it has written.
///
/// # Safety
///
/// The `room` words from `out` on can be written, and nobody else writes to them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_ring_callers(frame: u64, out: *mut u64, room: u32) -> u32 {
    // SAFETY: this function's contract about `out` is also that of `write_callers`.
    if room == 0 { 0 } else { unsafe { write_callers(frame, out, room) } }
}

/// Does what [`perfctr_core_ring_callers`] does. This function is not inlined, so that records
/// without callers do not save registers for it.
///
/// # Safety
///
/// The `room` words from `out` on can be written, and nobody else writes to them.
#[inline(never)]
unsafe fn write_callers(frame: u64, out: *mut u64, room: u32) -> u32 {
    let read = |address| {
        let mut frame = Frame::default();
        // SAFETY: C checks that this is an address of user mode, and writes to the frame only.
        unsafe { perfctr_glue_read_frame(address, &mut frame) }.then_some(frame)
    };
    let mut found = 0;
    for address in callers(frame, read).take(room as usize) {
        // SAFETY: fewer than `room` words were written, so this word is one of them.
        unsafe { out.add(found as usize).write(address) };
        found += 1;
    }
    found
}

/// Returns whether the ring is full to its watermark. Anybody may ask; see
/// [`Ring::is_ready`](guest_kmod::Ring::is_ready).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_is_ready(thread: &ThreadObject) -> bool {
    thread.ring.is_ready()
}
