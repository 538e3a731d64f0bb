// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The only writer of a vCPU's page.
//!
//! The page belongs to a guest that may write to it at any time.  It is output: nothing is ever
//! read back from it, not even the sequence word, of which [`Publisher`] keeps its own count.

use shared_abi::limits::MAX_SLOTS;
use shared_abi::seq::WriteGuard;
use shared_abi::slot::{ALL_SLOTS, slots_of};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_REGISTERED, VCPU_TSC};
use shared_abi::version::{ABI_WORD, VCPU_PAGE_MAGIC};
use shared_abi::{PhysSlot, VcpuPage};

/// One counter's share of the two-level formula.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub(crate) sum: u64,
    pub(crate) start: u64,
    /// The counter's width, as a mask.
    pub(crate) mask: u64,
}

/// What the page says beside the counters; its fields are described there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Direct reads are valid: not since the host has forbidden the domain to count.
    pub(crate) direct: bool,
    pub(crate) loaded: u32,
    pub(crate) tsc_sum: u64,
    pub(crate) tsc_start: u64,
    pub(crate) generation: u64,
    pub(crate) switches: u64,
    pub(crate) migrations: u64,
    pub(crate) overflows: u64,
    pub(crate) throttled: u64,
}

/// The writer of one page.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    /// Writes so far; see [`Seq::write`](shared_abi::seq::Seq::write).
    writes: u64,
}

impl Publisher {
    /// Fills a page that the guest has just registered for its vCPU `id`.
    pub(crate) fn register(
        &mut self,
        page: &VcpuPage,
        id: u32,
        now: &State,
        shares: &[Share; MAX_SLOTS],
    ) {
        page.magic.store(VCPU_PAGE_MAGIC, Relaxed);
        page.abi.store(ABI_WORD, Relaxed);
        page.size_bytes.store(VcpuPage::USED_BYTES, Relaxed);
        page.vcpu_id.store(id, Relaxed);
        let _writing = self.begin(page);
        state(page, now);
        for (n, share) in slots_of(ALL_SLOTS).zip(shares) {
            slot(page, n, share, false);
        }
    }

    /// Begins a write, which ends when the guard is dropped.
    #[inline(always)]
    pub(crate) fn begin<'page>(&mut self, page: &'page VcpuPage) -> WriteGuard<'page> {
        page.seq.write(&mut self.writes)
    }

    /// Says that the page means nothing any more.
    pub(crate) fn unregister(&mut self, page: &VcpuPage) {
        let _writing = self.begin(page);
        page.flags.store(0, Relaxed);
    }
}

/// Publishes everything but the slots, as part of a write.
#[inline(always)]
pub(crate) fn state(page: &VcpuPage, now: &State) {
    let direct = if now.direct { VCPU_DIRECT | VCPU_TSC } else { 0 };
    page.flags.store(VCPU_REGISTERED | direct, Relaxed);
    page.loaded.store(now.loaded, Relaxed);
    page.tsc_sum.store(now.tsc_sum, Relaxed);
    page.tsc_start.store(now.tsc_start, Relaxed);
    page.generation.store(now.generation, Relaxed);
    page.switches.store(now.switches, Relaxed);
    page.migrations.store(now.migrations, Relaxed);
    page.overflows.store(now.overflows, Relaxed);
    page.throttled.store(now.throttled, Relaxed);
}

/// Publishes a slot that is running or not, as part of a write.
#[inline(always)]
pub(crate) fn slot(page: &VcpuPage, slot: PhysSlot, share: &Share, running: bool) {
    if let Some(published) = page.slots.get(slot.index()) {
        published.sum.store(share.sum, Relaxed);
        published.start.store(share.start, Relaxed);
        published.mask.store(if running { share.mask } else { 0 }, Relaxed);
    }
}
