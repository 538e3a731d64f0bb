// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Writes a vCPU's page. Nothing else writes it.
//!
//! The page belongs to a guest that may write to it at any time. The driver only writes to it, and
//! never reads it back, not even the sequence word: [`Publisher`] keeps its own count of writes.
//! There is one exception: where a restored guest wants to continue from a page, the driver reads
//! the page once, and checks it like an argument.

use shared_abi::arch::EVNTSEL_INT;
use shared_abi::config::{MODE_COUNTING, MODE_SAMPLING};
use shared_abi::limits::{MAX_SLOTS, PERIOD_EVENTS_MAX};
use shared_abi::seq::WriteGuard;
use shared_abi::slot::{ALL_SLOTS, slots_of};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_EXECUTING, VCPU_REGISTERED, VCPU_TSC};
use shared_abi::version::{ABI_MAJOR, ABI_WORD, VCPU_PAGE_MAGIC};
use shared_abi::{Config, CounterConfig, Errno, PhysSlot, PmuCaps, VcpuPage};

/// The content of a page beside its counters. [`VcpuPage`] describes the fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Whether the vCPU executes.
    pub(crate) executing: bool,
    /// Whether direct reads are valid. They are invalid after the host has forbidden the domain to
    /// count.
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

impl State {
    /// The content of a page that is registered for the first time.
    pub(crate) const NEW: Self = Self {
        executing: true,
        direct: true,
        loaded: 0,
        tsc_sum: 0,
        tsc_start: 0,
        generation: 0,
        switches: 0,
        migrations: 0,
        overflows: 0,
        throttled: 0,
    };

    /// Returns the page's flags.
    #[inline(always)]
    fn flags(&self) -> u32 {
        let direct = if self.direct { VCPU_DIRECT | VCPU_TSC } else { 0 };
        let executing = if self.executing { VCPU_EXECUTING } else { 0 };
        VCPU_REGISTERED | direct | executing
    }
}

/// The writer of one page.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    /// Number of writes so far, see [`Seq::write`](shared_abi::seq::Seq::write).
    writes: u64,
}

impl Publisher {
    /// Fills a page that the guest has just registered for its vCPU `id`. The vCPU's counters have
    /// counted `sums` before.
    pub(crate) fn register(
        &mut self,
        page: &VcpuPage,
        id: u32,
        now: &State,
        sums: impl Iterator<Item = u64>,
    ) {
        page.magic.store(VCPU_PAGE_MAGIC, Relaxed);
        page.abi.store(ABI_WORD, Relaxed);
        page.size_bytes.store(VcpuPage::USED_BYTES, Relaxed);
        page.vcpu_id.store(id, Relaxed);
        let _writing = self.begin(page);
        state(page, now);
        for (slot, sum) in slots_of(ALL_SLOTS).zip(sums) {
            folded(page, slot, sum);
        }
    }

    /// Makes the writer of a page to which `writes` writes were made before.
    pub(crate) const fn continuing(writes: u64) -> Self {
        Self { writes }
    }

    /// Begins a write, which ends when the guard is dropped.
    #[inline(always)]
    pub(crate) fn begin<'page>(&mut self, page: &'page VcpuPage) -> WriteGuard<'page> {
        page.seq.write(&mut self.writes)
    }

    /// Writes that the page no longer has a meaning.
    pub(crate) fn unregister(&mut self, page: &VcpuPage) {
        let _writing = self.begin(page);
        page.flags.store(0, Relaxed);
    }
}

/// Publishes everything but the slots. The caller has begun a write.
#[inline(always)]
pub(crate) fn state(page: &VcpuPage, now: &State) {
    switched_out(page, now);
    switched_in(page, now);
    page.generation.store(now.generation, Relaxed);
    page.throttled.store(now.throttled, Relaxed);
}

/// Publishes that the vCPU was switched out. The caller has begun a write.
#[inline(always)]
pub(crate) fn switched_out(page: &VcpuPage, now: &State) {
    page.flags.store(now.flags(), Relaxed);
    page.tsc_sum.store(now.tsc_sum, Relaxed);
    page.overflows.store(now.overflows, Relaxed);
}

/// Publishes that the vCPU was switched in. The caller has begun a write.
#[inline(always)]
pub(crate) fn switched_in(page: &VcpuPage, now: &State) {
    page.flags.store(now.flags(), Relaxed);
    page.loaded.store(now.loaded, Relaxed);
    page.tsc_start.store(now.tsc_start, Relaxed);
    page.switches.store(now.switches, Relaxed);
    page.migrations.store(now.migrations, Relaxed);
}

/// Publishes a slot that does not run any more. The caller has begun a write.
#[inline(always)]
pub(crate) fn folded(page: &VcpuPage, slot: PhysSlot, sum: u64) {
    if let Some(published) = page.slots.get(slot.index()) {
        published.sum.store(sum, Relaxed);
        published.mask.store(0, Relaxed);
    }
}

/// Publishes a slot that runs from now on, while its counter, whose width is `mask`, holds `start`.
/// The caller has begun a write and has published the slot's sum.
#[inline(always)]
pub(crate) fn started(page: &VcpuPage, slot: PhysSlot, start: u64, mask: u64) {
    if let Some(published) = page.slots.get(slot.index()) {
        published.start.store(start, Relaxed);
        published.mask.store(mask, Relaxed);
    }
}

/// Publishes the sum of a slot that continues to run. The caller has begun a write.
#[inline(always)]
pub(crate) fn sum(page: &VcpuPage, slot: PhysSlot, sum: u64) {
    if let Some(published) = page.slots.get(slot.index()) {
        published.sum.store(sum, Relaxed);
    }
}

/// Publishes what the configuration selects. The caller has begun a write.
#[inline(always)]
pub(crate) fn selected(page: &VcpuPage, config: &Config) {
    for slot in slots_of(config.slots()) {
        if let Some(published) = page.slots.get(slot.index()) {
            let interrupts = config.sampling() & slot.bit() != 0;
            let bit = if interrupts { EVNTSEL_INT } else { 0 };
            published.evntsel.store(config.evntsel(slot) | bit, Relaxed);
        }
    }
}

/// Publishes the value from which a slot will continue that interrupts and does not count now. The
/// caller has begun a write.
#[inline(always)]
pub(crate) fn held(page: &VcpuPage, slot: PhysSlot, raw: u64) {
    if let Some(published) = page.slots.get(slot.index()) {
        published.start.store(raw, Relaxed);
    }
}

/// What a page that another hypervisor has written says about its vCPU.
#[derive(Debug)]
pub struct Left {
    pub(crate) state: State,
    sums: [u64; MAX_SLOTS],
    pub(crate) config: Config,
    pub(crate) writes: u64,
}

impl Left {
    /// Decodes and validates a page that the guest passes as its vCPU's last page.
    ///
    /// # Errors
    ///
    /// `INVAL` if it is not such a page, or if its vCPU executes; otherwise the error of its
    /// configuration.
    // It is not inlined, because some hypervisors' stacks are small.
    #[inline(never)]
    pub fn of(page: &VcpuPage, caps: &PmuCaps) -> Result<Self, Errno> {
        parse_left(page, caps)
    }

    /// Returns the slots that the vCPU had loaded.
    pub const fn slots(&self) -> u32 {
        self.config.slots()
    }

    pub(crate) fn sum(&self, slot: PhysSlot) -> u64 {
        self.sums.get(slot.index()).copied().unwrap_or(0)
    }
}

fn parse_left(page: &VcpuPage, caps: &PmuCaps) -> Result<Left, Errno> {
    let flags = page.flags.load(Relaxed);
    if page.magic.load(Relaxed) != VCPU_PAGE_MAGIC
        || !has_counts_of_vcpu(page.abi.load(Relaxed))
        || flags & (VCPU_REGISTERED | VCPU_EXECUTING) != VCPU_REGISTERED
    {
        return Err(Errno::INVAL);
    }
    // A vCPU that was forbidden to count has to load anew, although its page still has a
    // configuration: a revocation only clears the flag for direct reads.
    let direct = flags & VCPU_DIRECT != 0;
    let loaded = if direct { page.loaded.load(Relaxed) } else { 0 };
    let mut sums = [0; MAX_SLOTS];
    let mut counters = [CounterConfig::default(); MAX_SLOTS];
    let mut used = 0;
    for (sum, (slot, published)) in sums.iter_mut().zip(slots_of(ALL_SLOTS).zip(&page.slots)) {
        *sum = published.sum.load(Relaxed);
        if loaded & slot.bit() != 0
            && let Some(counter) = counters.get_mut(used)
        {
            let (evntsel, held) = (published.evntsel.load(Relaxed), published.start.load(Relaxed));
            *counter = counter_of(slot, evntsel, held.wrapping_neg() & caps.width(slot).mask());
            used += 1;
        }
    }
    let config = Config::new(caps, counters.get(..used).unwrap_or_default());
    let state = State {
        direct,
        tsc_sum: page.tsc_sum.load(Relaxed),
        generation: page.generation.load(Relaxed),
        switches: page.switches.load(Relaxed),
        migrations: page.migrations.load(Relaxed),
        overflows: page.overflows.load(Relaxed),
        throttled: page.throttled.load(Relaxed),
        ..State::NEW
    };
    let writes = page.seq.writes();
    Ok(Left { state, sums, config: config.map_err(|error| error.errno())?, writes })
}

/// Returns whether pages of this version of the ABI contain what their vCPUs count.
fn has_counts_of_vcpu(abi: u32) -> bool {
    abi & 0xffff == u32::from(ABI_MAJOR) && abi >> 16 >= 2
}

/// Returns the configuration of a counter that continues with `distance` events to its overflow.
///
/// If the counter has already overflowed, it gets the longest distance: a restored guest is
/// interrupted anyway.
fn counter_of(slot: PhysSlot, evntsel: u64, distance: u64) -> CounterConfig {
    let interrupts = evntsel & EVNTSEL_INT != 0;
    CounterConfig {
        slot: slot.index() as u32,
        mode: if interrupts { MODE_SAMPLING } else { MODE_COUNTING },
        evntsel: evntsel & !EVNTSEL_INT,
        period: if interrupts { distance.clamp(1, PERIOD_EVENTS_MAX) } else { 0 },
        reserved: 0,
    }
}
