// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The only writer of a vCPU's page.
//!
//! The page belongs to a guest that may write to it at any time.  It is output: nothing is ever
//! read back from it, not even the sequence word, of which [`Vcpu`] keeps its own count.

use shared_abi::VcpuPage;
use shared_abi::slot::slots_of;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_REGISTERED, VCPU_TSC};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR, VCPU_PAGE_MAGIC};

use crate::vcpu::Vcpu;

/// Fills a page that the guest has just registered.
pub fn register(page: &VcpuPage, vcpu: &mut Vcpu) {
    page.magic.store(VCPU_PAGE_MAGIC, Relaxed);
    page.abi.store(u32::from(ABI_MAJOR) | u32::from(ABI_MINOR) << 16, Relaxed);
    page.size_bytes.store(core::mem::offset_of!(VcpuPage, reserved_tail) as u32, Relaxed);
    page.vcpu_id.store(vcpu.id, Relaxed);
    state(page, vcpu, u32::MAX);
}

/// Publishes the vCPU's state and the slots in `changed`.
#[inline(always)]
pub fn state(page: &VcpuPage, vcpu: &mut Vcpu, changed: u32) {
    let _guard = page.seq.write(&mut vcpu.page_writes);
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
    slots(page, vcpu, changed);
}

/// Publishes only the slots in `changed`.
#[inline(always)]
pub fn counters(page: &VcpuPage, vcpu: &mut Vcpu, changed: u32) {
    let _guard = page.seq.write(&mut vcpu.page_writes);
    slots(page, vcpu, changed);
}

#[inline(always)]
fn slots(page: &VcpuPage, vcpu: &Vcpu, changed: u32) {
    for slot in slots_of(changed) {
        if let (Some(published), Some(own)) =
            (page.slots.get(slot.index()), vcpu.slots.get(slot.index()))
        {
            let mask = if vcpu.running & slot.bit() != 0 { own.mask } else { 0 };
            published.sum.store(own.sum, Relaxed);
            published.start.store(own.start, Relaxed);
            published.mask.store(mask, Relaxed);
        }
    }
}

/// Says that the page means nothing any more.
pub fn unregister(page: &VcpuPage, vcpu: &mut Vcpu) {
    let _guard = page.seq.write(&mut vcpu.page_writes);
    page.flags.store(0, Relaxed);
}
