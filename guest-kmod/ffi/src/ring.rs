// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A thread's ring as C sees it.

use core::ffi::c_int;

use shared_abi::ring::RingRequest;

use crate::on_vcpu::OnThread;
use crate::{ThreadObject, to_return};

/// Where the next record of a ring goes, and what it says.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RingPlace {
    /// Unit: bytes from the beginning of the ring.
    offset: u64,
    /// What the counter had counted.
    count: u64,
    /// What the TSC had.
    tsc: u64,
    /// Callers that there is room for.
    callers: u32,
}

/// `IOC_RING`; see [`ThreadPmu::begin_ring`](guest_kmod::ThreadPmu::begin_ring).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_begin(
    mut thread: OnThread<'_>,
    request: &RingRequest,
) -> c_int {
    let ring = &thread.object().ring;
    to_return(thread.pmu().0.begin_ring(ring, request))
}

/// Whether there is room for a record of this counter, and where.
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

/// The record is there; see [`Ring::wrote`](guest_kmod::Ring::wrote).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_wrote(mut thread: OnThread<'_>) {
    let ring = &thread.object().ring;
    ring.wrote(thread.pmu().1);
}

/// `IOC_RING_TAKE`, by anybody; see [`Ring::take`](guest_kmod::Ring::take).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_take(thread: &ThreadObject, taken: u64) -> c_int {
    to_return(thread.ring.take(taken))
}

/// By anybody; see [`Ring::is_ready`](guest_kmod::Ring::is_ready).
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_ring_is_ready(thread: &ThreadObject) -> bool {
    thread.ring.is_ready()
}
