// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Keeps the events that are on one vCPU, the counter that each holds, and its count.
//!
//! This file accesses no vCPU: a [`Sampler`] reads the counters, and the functions return the
//! configuration that is to be loaded.

use shared_abi::hypercall::HvPlace;
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::read::VcpuSample;
use shared_abi::slot::slots_of;
use shared_abi::{Config, Errno, PhysSlot};

use crate::overflow::interrupt_distance;
use crate::perf::event::EventConfig;
use crate::perf::stall::Stall;
use crate::surplus::is_counted_by;

/// The most events at once, which is the number of counters: perf takes turns if it has more.
pub(crate) const EVENTS_MAX: usize = MAX_COUNTERS;

/// The counter of each event.
pub(crate) type Slots = [PhysSlot; EVENTS_MAX];

/// A vCPU whose counters can be read.
pub(crate) trait Sampler {
    /// Samples `Phys*` of these counters at one moment. Returns false if they cannot be read.
    fn sample(&self, slots: &[PhysSlot], now: &mut VcpuSample) -> bool;

    /// Reads the values that these counters held when the host stopped them. Returns false if they
    /// have not stopped.
    fn sample_stopped(&self, slots: &[PhysSlot], now: &mut VcpuSample) -> bool;
}

/// One event that is on the vCPU.
#[derive(Clone, Copy, Debug)]
struct Held {
    event: EventConfig,
    slot: PhysSlot,
    /// Whether the event is started. perf may keep a stopped event here.
    started: bool,
    /// The count that perf has not been given yet.
    count: u64,
    /// Its counter's `Phys*` when the event went live or was last advanced.
    start: u64,
    /// Whether its counter has gained anything since it went live, or since an interrupt was last
    /// subtracted.
    has_gained: bool,
    /// The number of events between overflows, if it samples.
    period: u64,
    /// The number of events to the next overflow. It is below 1 if the event has overflowed and
    /// perf does not know yet.
    left: i64,
    /// The place of the last overflow, if the module had to ask for it before it takes the sample.
    place: Option<HvPlace>,
    stall: Stall,
}

impl Held {
    /// Makes an event that does not count yet.
    fn new(event: &EventConfig, slot: PhysSlot) -> Self {
        Self {
            event: *event,
            slot,
            started: false,
            count: 0,
            start: 0,
            has_gained: false,
            period: 0,
            left: i64::MAX,
            place: None,
            stall: Stall::default(),
        }
    }

    const fn samples(&self) -> bool {
        self.event.samples != 0
    }

    /// Returns the select word of its own counter.
    const fn evntsel(&self) -> u64 {
        self.event.evntsel(self.slot)
    }

    /// Returns what the event needs loaded, on this counter.
    fn config(&self, slot: PhysSlot) -> Config {
        let armed = self.samples() && self.started;
        let distance = armed.then(|| self.interrupt_distance());
        let config = Config::one(slot, self.event.evntsel(slot), distance);
        if self.event.is_precise() { config.precisely() } else { config }
    }

    /// Returns the number of events until the counter is to interrupt. An event of user mode alone
    /// interrupts where it overflows, however near that is: programs such as rr need this very
    /// place, and the event does not count the kernel's handler. An event that also counts the
    /// kernel would overflow again in the handler, for ever.
    fn interrupt_distance(&self) -> u64 {
        let left = self.left.max(1).unsigned_abs();
        if self.event.counts_kernel() { interrupt_distance(left, self.period) } else { left }
    }

    /// Adds what its counter has gained since `start`; its `Phys*` is `now`.
    fn advance(&mut self, now: u64) {
        let more = now.wrapping_sub(self.start);
        self.start = now;
        self.count = self.count.wrapping_add(more);
        self.left = self.left.wrapping_sub_unsigned(more);
        self.has_gained |= more != 0;
    }

    /// Subtracts an interrupt that the CPU has counted as an instruction, unless the counter has
    /// gained nothing since the last one was subtracted; see [`surplus`](crate::surplus). Returns
    /// whether it was subtracted. perf may have been given the count already, so what it has not
    /// been given may be below 0 now.
    fn subtract_interrupt(&mut self, is_counted: bool) -> bool {
        let has_gained = core::mem::take(&mut self.has_gained);
        let is_new = is_counted && has_gained && is_counted_by(self.slot, self.evntsel());
        if is_new {
            self.count = self.count.wrapping_sub(1);
            self.left = self.left.wrapping_add(1);
        }
        is_new
    }

    /// Returns whether there is an overflow of which perf does not know yet.
    const fn has_overflowed(&self) -> bool {
        self.started && self.samples() && self.left <= 0
    }

    /// Begins its next period. Returns how many periods have passed.
    fn next_period(&mut self) -> u64 {
        let Some(more) = self.left.min(0).unsigned_abs().checked_div(self.period) else {
            return 0;
        };
        let passed = more.wrapping_add(1);
        self.left = self.left.wrapping_add_unsigned(passed.wrapping_mul(self.period));
        passed
    }
}

/// What perf adds to its books of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Progress {
    /// The count since perf was last given it.
    pub count: u64,
    /// Events to the next overflow, if it samples; below 1 if it has overflowed.
    pub left: i64,
    /// The time for which it was stalled since perf was last given that.
    pub stalled: u64,
}

/// Returns whether all events of a group fit together on a vCPU without other events. perf adds
/// them together or not at all, so a group that does not fit would never count.
pub fn fit(group: &[EventConfig]) -> bool {
    let mut events = Events::default();
    let nothing = Config::default();
    group.iter().all(|event| events.add(event, &nothing, &nothing).is_ok())
}

/// The events that are on one vCPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    held: [Option<Held>; EVENTS_MAX],
    /// One more than the number of the last event, or 0. Usually there are few events, and perf's
    /// switch of a thread examines all of them many times.
    end: usize,
    /// Whether perf's PMU is enabled.
    enabled: bool,
    /// Whether the events are live: each that is started has a `Phys*` to subtract.
    live: bool,
    /// Whether what the events need differs from what is loaded: an event was added that is not
    /// loaded, or a distance has changed, or the host has stopped the counters.
    changed: bool,
    /// Whether the events were not live when they should have been.
    stalled: bool,
    /// Whether the events were stalled when perf's times were last corrected.
    settled: bool,
    /// Whether an event was added whose samples have branches. They must not have branches that
    /// were recorded before.
    records_anew: bool,
}

impl Events {
    pub(crate) fn is_empty(&self) -> bool {
        self.end == 0
    }

    fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().take(self.end).flatten()
    }

    fn started(&mut self) -> impl Iterator<Item = &mut Held> {
        self.held.iter_mut().take(self.end).flatten().filter(|held| held.started)
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Held> {
        self.held.get_mut(index as usize)?.as_mut()
    }

    /// Adds an event, which does not count yet. Returns the event's number on this vCPU.
    ///
    /// # Errors
    ///
    /// `AGAIN` if there is no counter for it beside the others and what is `kept`, or if the others
    /// want other branches recorded.
    pub(crate) fn add(
        &mut self,
        event: &EventConfig,
        loaded: &Config,
        kept: &Config,
    ) -> Result<u32, Errno> {
        let free = self.held.iter().position(Option::is_none).ok_or(Errno::AGAIN)?;
        let others = self.branches();
        if event.branches != 0 && others != 0 && event.branches != others {
            return Err(Errno::AGAIN);
        }
        let chosen = self.choose_counter(event, loaded, kept).or_else(|| {
            self.share_counters();
            self.choose_counter(event, loaded, kept)
        });
        let slot = chosen.ok_or(Errno::AGAIN)?;
        if let Some(place) = self.held.get_mut(free) {
            *place = Some(Held::new(event, slot));
            self.end = self.end.max(free.wrapping_add(1));
        }
        self.changed |= loaded.evntsel(slot) != event.evntsel(slot);
        self.records_anew |= event.branches != 0;
        Ok(free as u32)
    }

    /// Removes an event. Its select word stays loaded, since the event often comes back.
    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(place) = self.held.get_mut(index as usize) {
            *place = None;
        }
        while let Some(last) = self.end.checked_sub(1)
            && self.held.get(last).is_none_or(Option::is_none)
        {
            self.end = last;
        }
    }

    /// Notes that an event is or is not stalled from now on, see [`Stall::settle`].
    pub(crate) fn settle(&mut self, index: u32, began: u64, now: u64) -> u64 {
        let stalled = self.stalled;
        self.get_mut(index).map_or(0, |held| held.stall.settle(stalled, began, now))
    }

    /// Does the same for an event that is removed, whose count perf has got.
    pub(crate) fn settle_removed(&mut self, index: u32, now: u64) -> u64 {
        let stalled = self.stalled;
        self.get_mut(index).map_or(0, |held| held.stall.settle_with_count(stalled, now))
    }

    /// Returns whether perf's time of every event has to be corrected: some are stalled, or were
    /// stalled at the last call.
    pub(crate) fn take_unsettled(&mut self) -> bool {
        core::mem::replace(&mut self.settled, self.stalled) || self.stalled
    }

    /// Starts an event, which counts as soon as the events are live. If it samples, it overflows
    /// after `left` events and then every `period`. `left` is the rest of a period that continues,
    /// unless perf has set another period meanwhile, or none has begun. The events are folded.
    /// Returns whether a period continues, which may be one that perf had set before.
    pub(crate) fn start(&mut self, index: u32, period: u64, left: i64) -> bool {
        let Some(held) = self.get_mut(index) else { return false };
        held.started = held.event.counts();
        let goes_on = left > 0 && left.unsigned_abs() <= period;
        held.period = period;
        held.left = if goes_on { left } else { i64::try_from(period).unwrap_or(i64::MAX) };
        let armed = held.started && held.samples();
        self.changed |= armed;
        goes_on
    }

    /// Stops an event, which stays here and does not count any more. The events are folded.
    pub(crate) fn stop(&mut self, index: u32) {
        if let Some(held) = self.get_mut(index) {
            held.started = false;
        }
    }

    /// Returns whether an event counts when perf's PMU is enabled.
    pub(crate) fn is_started(&self, index: u32) -> bool {
        self.held.get(index as usize).and_then(Option::as_ref).is_some_and(|held| held.started)
    }

    /// Returns whether an event has overflowed, even if it was stopped since then.
    pub(crate) fn is_due(&self, index: u32) -> bool {
        let held = self.held.get(index as usize).and_then(Option::as_ref);
        held.is_some_and(|held| held.samples() && held.left <= 0)
    }

    /// Notes that perf's PMU is enabled or disabled.
    pub(crate) fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Returns what an event has counted since the last call. `now` is perf's time.
    pub(crate) fn take_progress(&mut self, index: u32, now: u64) -> Progress {
        let stalled = self.stalled;
        self.get_mut(index).map_or(Progress::default(), |held| Progress {
            count: core::mem::take(&mut held.count),
            left: held.left,
            stalled: held.stall.settle_with_count(stalled, now),
        })
    }

    /// Returns an event of this vCPU, and its counter.
    pub(crate) fn get(&self, index: u32) -> Option<(&EventConfig, PhysSlot)> {
        let held = self.held.get(index as usize)?.as_ref()?;
        Some((&held.event, held.slot))
    }

    /// Returns the number and the counter of an event that has overflowed, whose place the
    /// hypervisor knows better, and whose place is not kept yet.
    pub(crate) fn without_place(&self) -> Option<(u32, PhysSlot)> {
        self.held.iter().take(self.end).enumerate().find_map(|(index, held)| {
            let held = held.as_ref()?;
            let is_wanted = held.has_overflowed() && held.event.asks_for_place();
            (is_wanted && held.place.is_none()).then_some((index as u32, held.slot))
        })
    }

    /// Keeps the place where an event has overflowed until its sample is taken.
    pub(crate) fn keep_place(&mut self, index: u32, place: HvPlace) {
        if let Some(held) = self.get_mut(index) {
            held.place = Some(place);
        }
    }

    /// Returns the branches that are to be recorded for the events.
    pub(crate) fn branches(&self) -> u16 {
        self.iter().fold(0, |branches, held| branches | held.event.branches)
    }

    /// Returns whether the recorded branches have to be discarded. It returns true only once.
    pub(crate) fn take_records_anew(&mut self) -> bool {
        core::mem::take(&mut self.records_anew)
    }

    /// Returns the place where an event has overflowed, if it was kept, and discards it.
    pub(crate) fn take_place(&mut self, index: u32) -> Option<HvPlace> {
        self.get_mut(index)?.place.take()
    }

    /// Begins the next period of an event that has overflowed. Returns how many have passed.
    pub(crate) fn next_period(&mut self, index: u32) -> u64 {
        self.get_mut(index).map_or(0, Held::next_period)
    }

    /// Returns whether the hypervisor has to load something for the events.
    pub(crate) fn needs_load(&self) -> bool {
        self.changed && !self.is_empty()
    }

    /// Returns whether any of them interrupts.
    pub(crate) fn any_samples(&self) -> bool {
        self.iter().any(Held::samples)
    }

    /// Handles the interrupt of an overflow, when the events are folded. Returns one bit for each
    /// event that has overflowed. All sampling events have to be armed again, whichever has
    /// overflowed: a counter does not interrupt a second time before it is loaded again.
    pub(crate) fn take_overflows(&mut self) -> u32 {
        self.changed = true;
        let held = self.held.iter().enumerate();
        let overflowed = held.filter(|(_, held)| held.is_some_and(|held| held.has_overflowed()));
        overflowed.map(|(index, _)| 1 << index).sum()
    }

    /// Notes whether the events count, while perf's PMU is enabled.
    pub(crate) fn note_stalled(&mut self) {
        if self.enabled {
            self.stalled = !self.live && !self.is_empty();
        }
    }

    /// Returns what the events need loaded beside `other`, and on which counters. Events that clash
    /// with `other` get other counters.
    ///
    /// # Errors
    ///
    /// `BUSY` if there are not enough counters.
    pub(crate) fn config_beside(&self, other: &Config) -> Result<(Config, Slots), Errno> {
        let (mut all, mut slots) = (*other, [PhysSlot::FIRST; EVENTS_MAX]);
        for (held, place) in self.held.iter().zip(&mut slots) {
            let Some(held) = held else { continue };
            let joined = |slot: PhysSlot| Some((all.joined(&held.config(slot))?, slot));
            let elsewhere = || slots_of(held.event.slots).find_map(joined);
            (all, *place) = joined(held.slot).or_else(elsewhere).ok_or(Errno::BUSY)?;
        }
        Ok((all, slots))
    }

    /// Returns the counters of `loaded` that clash with the events' counters.
    pub(crate) fn clashing(&self, loaded: &Config) -> u32 {
        let clashes = |held: &&Held| !loaded.has_room_for(held.slot, held.evntsel());
        self.iter().filter(clashes).fold(0, |slots, held| slots | held.slot.bit())
    }

    /// Notes that the page is new. What the events need has to be loaded, and until then the events
    /// do not count.
    pub(crate) fn nothing_is_loaded(&mut self) {
        self.changed = true;
    }

    /// Notes that what the events need was loaded on these counters.
    pub(crate) fn loaded_on(&mut self, slots: &Slots) {
        for (held, slot) in self.held.iter_mut().zip(slots) {
            if let Some(held) = held {
                held.slot = *slot;
            }
        }
        self.changed = false;
    }

    /// Chooses a counter for this event: if possible one that another event has and that counts the
    /// same, otherwise one that counts this event already, otherwise one that counts nothing.
    fn choose_counter(
        &self,
        event: &EventConfig,
        loaded: &Config,
        kept: &Config,
    ) -> Option<PhysSlot> {
        let fits = |slot: PhysSlot| {
            let evntsel = event.evntsel(slot);
            // The hypervisor tells the place of a counter once, and so to one event.
            let shares = |held: &Held| {
                held.evntsel() == evntsel && !held.event.is_precise() && !event.is_precise()
            };
            let beside = |held: &Held| held.slot != slot || shares(held);
            kept.has_room_for(slot, evntsel) && self.iter().all(beside)
        };
        let rank = |slot: PhysSlot| match loaded.evntsel(slot) {
            _ if self.iter().any(|held| held.slot == slot) => 0,
            evntsel if evntsel == event.evntsel(slot) => 1,
            0 => 2,
            _ => 3,
        };
        // Of several such counters this takes the last one, since threads ask for the first general
        // counters first.
        slots_of(event.slots)
            .filter(|&slot| fits(slot))
            .min_by_key(|&slot| (rank(slot), core::cmp::Reverse(slot.index())))
    }

    /// Makes all events that count the same share a counter. They may have got different counters
    /// when they were loaded beside what a thread needed then. The events are folded.
    fn share_counters(&mut self) {
        for index in 1..self.end {
            let Some((before, [Some(held), ..])) = self.held.split_at_mut_checked(index) else {
                continue;
            };
            let same = |first: &&Held| {
                held.event.slots & first.slot.bit() != 0
                    && held.event.evntsel(first.slot) == first.evntsel()
                    && !held.event.is_precise()
                    && !first.event.is_precise()
            };
            if let Some(first) = before.iter().flatten().find(same) {
                self.changed |= first.slot != held.slot;
                held.slot = first.slot;
            }
        }
    }

    /// Folds the events, which are not live afterwards.
    pub(crate) fn fold(&mut self, vcpu: &impl Sampler) {
        if core::mem::take(&mut self.live) {
            self.advance(vcpu);
        }
    }

    /// Makes the events live again, if perf's PMU is enabled and what they need is loaded.
    pub(crate) fn revive(&mut self, vcpu: &impl Sampler) {
        if !self.enabled || self.changed || self.is_empty() {
            return;
        }
        let mut now = VcpuSample::default();
        if self.sample(vcpu, &mut now) {
            // The kernel executes now, so an event has not counted the last interrupt of user mode,
            // unless an exception is still to be traced by its signal.
            self.for_each_started(&now, |held, now| (held.start, held.has_gained) = (now, false));
            (self.live, self.stalled) = (true, false);
        } else {
            self.mark_stopped();
        }
    }

    /// Brings the counts of live events up to this moment. They stay live.
    pub(crate) fn advance_live(&mut self, vcpu: &impl Sampler) {
        if self.live {
            self.live = self.advance(vcpu);
        }
    }

    /// Subtracts an interrupt or an exception that has interrupted user mode from the events that
    /// count it. Returns whether it was subtracted from any. The parameter is that of
    /// [`ThreadPmu::subtract_interrupt`](crate::ThreadPmu::subtract_interrupt).
    pub(crate) fn subtract_interrupt(&mut self, vcpu: &impl Sampler, is_counted: bool) -> bool {
        let counts = |held: &Held| held.started && is_counted_by(held.slot, held.evntsel());
        if !self.live || !self.iter().any(counts) {
            return false;
        }
        self.advance_live(vcpu);
        // If the host has stopped the counters, they have not counted the interrupt either.
        self.live
            && self
                .started()
                .map(|held| held.subtract_interrupt(is_counted))
                .filter(|is_new| *is_new)
                .count()
                > 0
    }

    /// Adds what each started event has counted. Returns false if the events do not count any more,
    /// since the host has stopped them.
    fn advance(&mut self, vcpu: &impl Sampler) -> bool {
        let mut now = VcpuSample::default();
        let live = self.sample(vcpu, &mut now);
        let (slots, used) = self.sampled();
        if live || vcpu.sample_stopped(slots.get(..used).unwrap_or_default(), &mut now) {
            self.for_each_started(&now, Held::advance);
        }
        if !live {
            self.mark_stopped();
            let counted = self.held.iter_mut().flatten().filter(|held| held.started);
            counted.for_each(|held| held.stall.note_found());
        }
        live
    }

    /// Notes that the host has stopped the counters: nothing of what is loaded counts any more.
    fn mark_stopped(&mut self) {
        (self.changed, self.stalled) = (true, true);
    }

    /// Samples `Phys*` of each started event, all of one moment. Returns false if they cannot be
    /// read.
    ///
    /// This is not inlined, so that events of the kernel count the same number of its instructions
    /// each time, and that number cancels.
    #[inline(never)]
    fn sample(&self, vcpu: &impl Sampler, now: &mut VcpuSample) -> bool {
        let (slots, used) = self.sampled();
        vcpu.sample(slots.get(..used).unwrap_or_default(), now)
    }

    /// Returns the counters of started events, for one sample of all.
    fn sampled(&self) -> (Slots, usize) {
        let mut slots = [PhysSlot::FIRST; EVENTS_MAX];
        let mut used = 0;
        for (place, held) in slots.iter_mut().zip(self.iter().filter(|held| held.started)) {
            *place = held.slot;
            used += 1;
        }
        (slots, used)
    }

    /// Calls `give` for each started event with its own counter's value.
    fn for_each_started(&mut self, now: &VcpuSample, give: impl Fn(&mut Held, u64)) {
        for (held, now) in self.started().zip(&now.counter) {
            give(held, *now);
        }
    }
}
