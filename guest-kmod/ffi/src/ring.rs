// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A thread's ring as C sees it.

use core::ffi::c_int;

use guest_kmod::ring::{Frame, callers};
use shared_abi::ring::RingRequest;

use crate::on_vcpu::OnThread;
use crate::{ThreadObject, to_return};

unsafe extern "C" {
    /// Reads a frame of the calling thread's stack. Returns whether it is in memory.
    fn perfctr_glue_read_frame(address: u64, frame: &mut Frame) -> bool;
}

/// The place of a ring's next record, and what is written there.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RingPlace {
    /// Unit: bytes from the beginning of the ring.
    offset: u64,
    /// What the counter had counted.
    count: u64,
    /// What the TSC had.
    tsc: u64,
    /// Number of callers that have room.
    callers: u32,
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

/// Returns whether there is room for a record of this counter, and finds the place.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_place(
    mut thread: OnThread<'_>,
    counter: u32,
    out: &mut RingPlace,
) -> bool {
    let ring = &thread.object().ring;
    let (pmu, page) = thread.pmu();
    let Some(offset) = ring.place(page) else { return false };
    let (count, tsc) = pmu.counted(counter as usize);
    *out = RingPlace { offset, count, tsc, callers: ring.callers() };
    true
}

/// Writes the addresses of the calling thread's callers behind a record; see [`callers`].
///
/// Returns how many it has found.
///
/// # Safety
///
/// The `room` words from `out` on can be written, and nobody else writes to them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_ring_callers(frame: u64, out: *mut u64, room: u32) -> u32 {
    let read = |address| {
        let mut frame = Frame::default();
        // SAFETY: C checks that this is an address of user mode, and writes to the frame only.
        unsafe { perfctr_glue_read_frame(address, &mut frame) }.then_some(frame)
    };
    let mut found = 0;
    for address in callers(frame, read).take(room as usize) {
        // SAFETY: fewer than `room` were written, so this one is among the words.
        unsafe { out.add(found as usize).write(address) };
        found += 1;
    }
    found
}

/// Publishes the record that C has written; see [`Ring::wrote`](guest_kmod::Ring::wrote).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_wrote(mut thread: OnThread<'_>) {
    let ring = &thread.object().ring;
    ring.wrote(thread.pmu().1);
}

/// Serves `IOC_RING_TAKE` of anybody; see [`Ring::take`](guest_kmod::Ring::take).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_take(thread: &ThreadObject, taken: u64) -> c_int {
    to_return(thread.ring.take(taken))
}

/// Returns whether there are records to take. Anybody may ask; see
/// [`Ring::is_ready`](guest_kmod::Ring::is_ready).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_is_ready(thread: &ThreadObject) -> bool {
    thread.ring.is_ready()
}
