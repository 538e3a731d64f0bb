// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Keeps what each counter of a vCPU has counted, up to its last fold and since its last start.

use shared_abi::count::phys_star;
use shared_abi::limits::MAX_SLOTS;
use shared_abi::slot::slots_of;
use shared_abi::{PhysSlot, PmuCaps, VcpuPage};

use crate::hal::Pmu;
use crate::publish::{self, Left};

/// One counter's share of the two-level formula.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    sum: u64,
    start: u64,
    /// The counter's width, as a mask.
    mask: u64,
    /// The counter's index.
    index: u32,
}

/// The shares of all counters.
#[derive(Debug)]
pub(crate) struct Shares([Share; MAX_SLOTS]);

impl Shares {
    /// Makes the shares of a vCPU that continues from the counts that it has left, or that begins
    /// with 0.
    pub(crate) fn new(caps: &PmuCaps, left: Option<&Left>) -> Self {
        let mut shares = [Share::default(); MAX_SLOTS];
        for slot in slots_of(caps.slots()) {
            if let Some(share) = shares.get_mut(slot.index()) {
                let sum = left.map_or(0, |left| left.sum(slot));
                let mask = caps.width(slot).mask();
                *share = Share { sum, start: 0, mask, index: slot.counter_index() };
            }
        }
        Self(shares)
    }

    /// Iterates over what each counter has counted.
    pub(crate) fn sums(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|share| share.sum)
    }

    /// See [`Share::mask`].
    #[inline(always)]
    pub(crate) fn mask(&self, slot: PhysSlot) -> u64 {
        self.0.get(slot.index()).map_or(0, |share| share.mask)
    }

    /// Folds and publishes a counter that no longer runs. Returns what the counter holds.
    #[inline(always)]
    pub(crate) fn fold(&mut self, pmu: &impl Pmu, page: &VcpuPage, slot: PhysSlot) -> u64 {
        let Some(own) = self.0.get_mut(slot.index()) else { return 0 };
        let raw = pmu.counter(own.index);
        own.sum = phys_star(own.sum, own.start, own.mask, raw);
        publish::folded(page, slot, own.sum);
        raw
    }

    /// Subtracts an event of a running counter that is not the guest's, and publishes the new sum.
    #[inline(always)]
    pub(crate) fn take_back(&mut self, page: &VcpuPage, slot: PhysSlot) {
        if let Some(own) = self.0.get_mut(slot.index()) {
            own.sum = own.sum.wrapping_sub(1);
            publish::sum(page, slot, own.sum);
        }
    }

    /// Starts and publishes a counter that runs from now on.
    #[inline(always)]
    pub(crate) fn start(&mut self, pmu: &impl Pmu, page: &VcpuPage, slot: PhysSlot) {
        if let Some(own) = self.0.get_mut(slot.index()) {
            own.start = pmu.counter(own.index);
            publish::started(page, slot, own.start, own.mask);
        }
    }
}
