// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The only writer of a vCPU's page.
//!
//! The page belongs to a guest that may write to it at any time.  It is output: nothing is ever
//! read back from it, not even the sequence word, of which [`Vcpu`] keeps its own count.

use shared_abi::seq::WriteGuard;
use shared_abi::slot::{ALL_SLOTS, slots_of};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_REGISTERED, VCPU_TSC};
use shared_abi::version::{ABI_WORD, VCPU_PAGE_MAGIC};
use shared_abi::{PhysSlot, VcpuPage};

use crate::vcpu::{Slot, Vcpu};

/// Fills a page that the guest has just registered.
pub(crate) fn register(page: &VcpuPage, vcpu: &mut Vcpu) {
    page.magic.store(VCPU_PAGE_MAGIC, Relaxed);
    page.abi.store(ABI_WORD, Relaxed);
    page.size_bytes.store(VcpuPage::USED_BYTES, Relaxed);
    page.vcpu_id.store(vcpu.id, Relaxed);
    let _writing = begin(page, vcpu);
    state(page, vcpu);
    for (n, own) in slots_of(ALL_SLOTS).zip(&vcpu.slots) {
        slot(page, n, own, false);
    }
}

/// Begins a write, which ends when the guard is dropped.
#[inline(always)]
pub(crate) fn begin<'page>(page: &'page VcpuPage, vcpu: &mut Vcpu) -> WriteGuard<'page> {
    page.seq.write(&mut vcpu.page_writes)
}

/// Publishes everything but the slots, as part of a write.
#[inline(always)]
pub(crate) fn state(page: &VcpuPage, vcpu: &Vcpu) {
    let direct = if vcpu.revoked { 0 } else { VCPU_DIRECT | VCPU_TSC };
    page.flags.store(VCPU_REGISTERED | direct, Relaxed);
    page.loaded.store(vcpu.config.slots(), Relaxed);
    page.tsc_sum.store(vcpu.tsc_sum, Relaxed);
    page.tsc_start.store(vcpu.tsc_start, Relaxed);
    page.generation.store(vcpu.generation, Relaxed);
    page.switches.store(vcpu.switches, Relaxed);
    page.migrations.store(vcpu.migrations, Relaxed);
    page.overflows.store(vcpu.overflows, Relaxed);
    page.throttled.store(vcpu.throttled, Relaxed);
}

/// Publishes a slot that is running or not, as part of a write.
#[inline(always)]
pub(crate) fn slot(page: &VcpuPage, slot: PhysSlot, own: &Slot, running: bool) {
    if let Some(published) = page.slots.get(slot.index()) {
        published.sum.store(own.sum, Relaxed);
        published.start.store(own.start, Relaxed);
        published.mask.store(if running { own.mask } else { 0 }, Relaxed);
    }
}

/// Says that the page means nothing any more.
pub(crate) fn unregister(page: &VcpuPage, vcpu: &mut Vcpu) {
    let _writing = begin(page, vcpu);
    page.flags.store(0, Relaxed);
}
