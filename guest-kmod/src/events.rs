// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Linux's perf events on one vCPU.
//!
//! perf adds an event where its task executes, or where its CPU is, and takes it away again.  While
//! it is here it *holds* a counter, beside those that the present thread has of its own, and its
//! count is the sum of what the vCPU's `Phys*` grew by.
//!
//! Events are *live* while what they hold is loaded and each has a `Phys*` to subtract.  They are
//! folded whenever that ends: when perf disables its PMU, when something else is to be loaded, and
//! when the vCPU's page is taken back.  Folding and going live again loses nothing that user mode
//! does, since both happen in the kernel.
//!
//! Events are *stalled* if they are not live although perf's PMU is enabled: the host forbids the
//! domain to count, or has other counters.  perf is not to take that time for time of counting.

use shared_abi::config::{EVNTSEL_EN, EVNTSEL_RINGS, EVNTSEL_USR};
use shared_abi::events::Generic;
use shared_abi::hypercall::HvPlace;
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::read::VcpuSample;
use shared_abi::slot::slots_of;
use shared_abi::{Config, CounterConfig, Errno, PhysSlot, PmuCaps, ThreadPage};

use crate::hal::Kernel;
use crate::hypercall;
use crate::overflow::apart;
use crate::thread::ThreadPmu;
use crate::vcpu::Cpu;

/// As many as counters: perf takes turns if it has more.
const EVENTS_MAX: usize = MAX_COUNTERS;

/// `PERF_TYPE_HARDWARE` and `PERF_TYPE_RAW` of `linux/perf_event.h`.
const TYPE_HARDWARE: u32 = 0;
const TYPE_RAW: u32 = 4;

/// An event that can be counted, and by which counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Wanted {
    /// Event select for a general counter.
    pub general: u64,
    /// Event select for a fixed counter.
    pub fixed: u64,
    /// One bit per counter that counts it.
    pub slots: u32,
    /// It interrupts after a period.
    pub samples: u32,
}

impl Wanted {
    /// What perf asks for: an event of the generic ones or by its select word, in the rings
    /// `EVNTSEL_USR` and `EVNTSEL_OS`. One in neither ring counts nothing, as on perf's own PMUs.
    ///
    /// # Errors
    ///
    /// `NOENT` no such event, and those of a configuration, see [`shared_abi::ConfigError`].
    pub fn new(
        caps: &PmuCaps,
        kind: u32,
        config: u64,
        rings: u64,
        samples: bool,
    ) -> Result<Self, Errno> {
        let (select, fixed) = match kind {
            TYPE_HARDWARE => {
                let event = Generic::from_perf(config).ok_or(Errno::NOENT)?;
                (event.select(caps.vendor), event.fixed())
            }
            TYPE_RAW if config & (EVNTSEL_RINGS | EVNTSEL_EN) == 0 => (Some(config), None),
            TYPE_RAW => return Err(Errno::INVAL),
            _ => return Err(Errno::NOENT),
        };
        let rings = rings & EVNTSEL_RINGS | EVNTSEL_EN;
        let general = select.map_or(0, |select| select | rings);
        let mut wanted = Self { general, fixed: rings, slots: 0, samples: samples.into() };
        let by_fixed = fixed.filter(|&slot| caps.has(slot));
        let general = slots_of(caps.slots()).filter(|slot| slot.fixed_number().is_none());
        let mut refusal = Errno::NOENT;
        for slot in by_fixed.into_iter().chain(general.filter(|_| select.is_some())) {
            let evntsel = wanted.evntsel(slot);
            let counter = CounterConfig { slot: slot.index() as u32, evntsel, ..sampling(samples) };
            match Config::new(caps, &[counter]) {
                Ok(_) => wanted.slots |= slot.bit(),
                Err(error) => refusal = error.errno(),
            }
        }
        if wanted.slots == 0 { Err(refusal) } else { Ok(wanted) }
    }

    /// Whether it counts in any ring.
    const fn counts(&self) -> bool {
        self.fixed & EVNTSEL_RINGS != 0
    }

    /// What its counter is loaded with; if that is not to count, something that a counter may be.
    const fn evntsel(&self, slot: PhysSlot) -> u64 {
        let evntsel = if slot.fixed_number().is_some() { self.fixed } else { self.general };
        if self.counts() { evntsel } else { evntsel | EVNTSEL_USR }
    }
}

/// A counter's mode as it is judged; its period is anything valid.
fn sampling(samples: bool) -> CounterConfig {
    let of = u32::from(samples);
    CounterConfig { mode: of, period: of.into(), ..CounterConfig::default() }
}

/// Each event's counter.
type Slots = [PhysSlot; EVENTS_MAX];

/// One event that is here.
#[derive(Clone, Copy, Debug)]
struct Held {
    wanted: Wanted,
    slot: PhysSlot,
    /// It counts; perf may keep one here that does not.
    started: bool,
    /// What perf has not been told of.
    count: u64,
    /// Its counter's `Phys*` when it went live or was last advanced.
    start: u64,
    /// Events between overflows, if it samples.
    period: u64,
    /// Events to the next one; below 1 if that is to be told.
    left: i64,
}

impl Held {
    /// One that does not count yet.
    const fn new(wanted: &Wanted, slot: PhysSlot) -> Self {
        let (count, start, period) = (0, 0, 0);
        Self { wanted: *wanted, slot, started: false, count, start, period, left: i64::MAX }
    }

    /// What it needs loaded, on this counter.
    fn config(&self, slot: PhysSlot) -> Config {
        let samples = self.wanted.samples != 0 && self.started;
        let distance = samples.then(|| apart(self.left.max(1).unsigned_abs(), self.period));
        Config::one(slot, self.wanted.evntsel(slot), distance)
    }

    /// Its counter's `Phys*` is `now`.
    fn advance(&mut self, now: u64) {
        let more = now.wrapping_sub(self.start);
        self.start = now;
        self.count = self.count.wrapping_add(more);
        self.left = self.left.wrapping_sub_unsigned(more);
    }
}

/// What perf is told of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Progress {
    /// Counted since perf was last told.
    pub count: u64,
    /// Events to the next overflow, if it samples; below 1 if it has overflowed.
    pub left: i64,
}

/// Whether the events of a group can be at once on a vCPU that has nothing else.  perf adds them
/// together or not at all, so another group would never count.
pub fn fit(group: &[Wanted]) -> bool {
    let mut events = Events::default();
    let nothing = Config::default();
    group.len() <= events.held.len()
        && group.iter().enumerate().all(|(index, wanted)| {
            let slot = events.choose(wanted, &nothing, &nothing);
            if let (Some(place), Some(slot)) = (events.held.get_mut(index), slot) {
                *place = Some(Held::new(wanted, slot));
            }
            slot.is_some()
        })
}

/// The events that are on one vCPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    held: [Option<Held>; EVENTS_MAX],
    /// perf's PMU is enabled.
    enabled: bool,
    /// Each that is started has a `Phys*` to subtract.
    live: bool,
    /// Something has come that is not loaded, or a distance has changed, or the host has stopped
    /// what was.
    changed: bool,
    /// They were not live when they should have been.
    stalled: bool,
}

impl Events {
    pub(crate) fn none(&self) -> bool {
        self.all().next().is_none()
    }

    fn all(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().flatten()
    }

    fn started(&mut self) -> impl Iterator<Item = &mut Held> {
        self.held.iter_mut().flatten().filter(|held| held.started)
    }

    fn at(&mut self, index: usize) -> Option<&mut Held> {
        self.held.get_mut(index)?.as_mut()
    }

    /// Whether something is to be loaded for them.
    fn wait(&self) -> bool {
        self.changed && !self.none()
    }

    /// Notes whether they count, while perf's PMU is enabled.
    pub(crate) fn judge(&mut self) {
        if self.enabled {
            self.stalled = !self.live && !self.none();
        }
    }

    /// They have been sampled to the end: nothing of what is loaded counts any more.
    fn stop(&mut self) {
        (self.changed, self.stalled) = (true, true);
    }

    fn samples(&self) -> bool {
        self.all().any(|held| held.wanted.samples != 0)
    }

    /// What all of them need loaded, beside `other`, and on which counters: those that clash with
    /// it go to other ones.
    ///
    /// # Errors
    ///
    /// `BUSY` there are not enough.
    pub(crate) fn beside(&self, other: &Config) -> Result<(Config, Slots), Errno> {
        let (mut all, mut slots) = (*other, [PhysSlot::FIRST; EVENTS_MAX]);
        for (held, place) in self.held.iter().zip(&mut slots) {
            let Some(held) = held else { continue };
            let fits = |slot: PhysSlot| Some((all.joined(&held.config(slot))?, slot));
            let stays = fits(held.slot);
            let goes = || slots_of(held.wanted.slots).find_map(fits);
            (all, *place) = stays.or_else(goes).ok_or(Errno::BUSY)?;
        }
        Ok((all, slots))
    }

    /// What they need was loaded on these counters.
    pub(crate) fn loaded_on(&mut self, slots: &Slots) {
        for (held, slot) in self.held.iter_mut().zip(slots) {
            if let Some(held) = held {
                held.slot = *slot;
            }
        }
        self.changed = false;
    }

    /// A counter for this event: rather one that counts it already, then one that counts nothing.
    fn choose(&self, wanted: &Wanted, loaded: &Config, kept: &Config) -> Option<PhysSlot> {
        let config = |slot| Config::one(slot, wanted.evntsel(slot), None);
        let fits = |slot: PhysSlot| {
            let beside = |held: &Held| held.config(held.slot).joined(&config(slot)).is_some();
            kept.joined(&config(slot)).is_some() && self.all().all(beside)
        };
        let rank = |slot: PhysSlot| match loaded.evntsel(slot) {
            evntsel if evntsel == wanted.evntsel(slot) => 0,
            0 => 1,
            _ => 2,
        };
        // Of equals the last: general counters are what others ask for first.
        slots_of(wanted.slots)
            .filter(|&slot| fits(slot))
            .min_by_key(|&slot| (rank(slot), core::cmp::Reverse(slot.index())))
    }

    /// Which they are, for one sample of all.
    fn sampled(&self) -> (Slots, usize) {
        let mut slots = [PhysSlot::FIRST; EVENTS_MAX];
        let mut used = 0;
        for (place, held) in slots.iter_mut().zip(self.all().filter(|held| held.started)) {
            *place = held.slot;
            used += 1;
        }
        (slots, used)
    }
}

impl<K: Kernel> Cpu<'_, K> {
    /// An event comes, with perf's PMU disabled, and does not count yet.  Gives by what number it
    /// is known here.
    ///
    /// `kept` is what the present thread needs loaded.
    ///
    /// # Errors
    ///
    /// `AGAIN` there is no counter for it now, or nothing can be counted here.
    pub fn add_event(&mut self, wanted: &Wanted, kept: Option<&Config>) -> Result<u32, Errno> {
        self.may_load().map_err(|_| Errno::AGAIN)?;
        let kept = kept.copied().unwrap_or_default();
        let loaded = self.vcpu.loaded();
        let events = &mut self.vcpu.events;
        let free = events.held.iter().position(Option::is_none).ok_or(Errno::AGAIN)?;
        let slot = events.choose(wanted, &loaded, &kept).ok_or(Errno::AGAIN)?;
        if let Some(place) = events.held.get_mut(free) {
            *place = Some(Held::new(wanted, slot));
        }
        events.changed |= loaded.evntsel(slot) != wanted.evntsel(slot);
        Ok(free as u32)
    }

    /// An event goes.  What it counts stays loaded, since it often comes back.
    pub fn remove_event(&mut self, index: u32) {
        if let Some(place) = self.vcpu.events.held.get_mut(index as usize) {
            *place = None;
        }
    }

    /// An event counts when perf's PMU is enabled; if it samples, it overflows after `left` events
    /// and then every `period`.
    pub fn start_event(&mut self, index: u32, period: u64, left: i64) {
        self.fold_events();
        let events = &mut self.vcpu.events;
        if let Some(held) = events.at(index as usize) {
            held.started = held.wanted.counts();
            (held.period, held.left) = (period, left);
            events.changed |= held.started && held.wanted.samples != 0;
        }
    }

    /// An event counts no more, and stays; the others count when perf's PMU is enabled.
    pub fn stop_event(&mut self, index: u32) {
        self.fold_events();
        if let Some(held) = self.vcpu.events.at(index as usize) {
            held.started = false;
        }
    }

    /// What an event has counted since this was last asked.
    pub fn progress_of_event(&mut self, index: u32) -> Progress {
        if self.vcpu.events.live {
            self.vcpu.events.live = self.advance_events();
        }
        let Some(held) = self.vcpu.events.at(index as usize) else {
            return Progress::default();
        };
        Progress { count: core::mem::take(&mut held.count), left: held.left }
    }

    /// perf changes what counts: nothing does meanwhile.
    pub fn disable_events(&mut self) {
        self.fold_events();
        self.vcpu.events.enabled = false;
    }

    /// perf has changed what counts, or an interrupt came while it counted; `thread` executes if it
    /// has counters.  Gives whether the thread was found to have overflowed meanwhile, see
    /// [`ThreadPmu::tell`].
    pub fn enable_events(&mut self, thread: Option<(&mut ThreadPmu, &ThreadPage)>) -> bool {
        self.fold_events();
        self.vcpu.events.enabled = true;
        self.revive_events();
        let mut tell = false;
        if self.vcpu.events.wait() {
            tell = thread.is_some_and(|(pmu, page)| pmu.load_again(page, self));
        }
        if self.vcpu.events.wait() {
            self.load_events();
        }
        self.vcpu.events.judge();
        tell
    }

    /// Whether nothing is counted where perf has its PMU enabled and events here.
    pub fn events_are_stalled(&self) -> bool {
        self.vcpu.events.stalled
    }

    /// Loads what events need, beside nothing that a thread needs.
    pub(crate) fn load_events(&mut self) {
        let mut clashing = 0;
        let loaded = self.vcpu.loaded();
        for held in self.vcpu.events.all() {
            if loaded.joined(&held.config(held.slot)).is_none() {
                clashing |= held.slot.bit();
            }
        }
        // Without numbers they do not grow, and the reason comes back with the next load.
        let _ = self.replace(&loaded.only_counting_without(clashing));
    }

    /// The interrupt of an overflow came: one bit per event that has overflowed.
    pub fn overflowed_events(&mut self) -> u32 {
        if !self.vcpu.events.samples() {
            return 0;
        }
        self.fold_events();
        // Its counter does not interrupt again until it is loaded again.
        self.vcpu.events.changed = true;
        let all = self.vcpu.events.held.iter().enumerate();
        let overflowed = all.filter(|(_, held)| {
            held.is_some_and(|held| held.started && held.wanted.samples != 0 && held.left <= 0)
        });
        overflowed.map(|(index, _)| 1 << index).sum()
    }

    /// The event that has overflowed is to do so again.  Gives how many of its periods have passed.
    pub fn next_period_of_event(&mut self, index: u32) -> u64 {
        let Some(held) = self.vcpu.events.at(index as usize) else {
            return 0;
        };
        let Some(more) = held.left.min(0).unsigned_abs().checked_div(held.period) else {
            return 0;
        };
        let passed = more.wrapping_add(1);
        held.left = held.left.wrapping_add_unsigned(passed.wrapping_mul(held.period));
        passed
    }

    /// Where an event has overflowed, once; [`PLACE_NONE`](shared_abi::hypercall::PLACE_NONE) if
    /// the hypervisor does not know.
    pub fn place_of_event(&mut self, index: u32) -> HvPlace {
        let Some(held) = self.vcpu.events.at(index as usize) else {
            return HvPlace::default();
        };
        self.stats.hypercalls.add(1);
        hypercall::place(self.kernel, held.slot).unwrap_or_default()
    }

    /// Events are not live from now on.
    pub(crate) fn fold_events(&mut self) {
        if core::mem::take(&mut self.vcpu.events.live) {
            self.advance_events();
        }
    }

    /// Events are live again, if perf's PMU is enabled and what they need is loaded.
    pub(crate) fn revive_events(&mut self) {
        let events = &self.vcpu.events;
        if !events.enabled || events.changed || events.none() {
            return;
        }
        let mut now = VcpuSample::default();
        if self.sample_events(&mut now) {
            self.show_events(&now, |held, now| held.start = now);
            (self.vcpu.events.live, self.vcpu.events.stalled) = (true, false);
        } else {
            self.vcpu.events.stop();
        }
    }

    /// Adds what each event that is started has counted; false if it counts no more, since the host
    /// has stopped it.
    fn advance_events(&mut self) -> bool {
        let mut now = VcpuSample::default();
        let live = self.sample_events(&mut now);
        let (slots, used) = self.vcpu.events.sampled();
        if live || self.sample_stopped(slots.get(..used).unwrap_or_default(), &mut now) {
            self.show_events(&now, Held::advance);
        }
        if !live {
            self.vcpu.events.stop();
        }
        live
    }

    /// `Phys*` of each event that is started, all of one moment; false if they cannot be read.
    ///
    /// Not inlined, so that events of the kernel count the same of this each time, and it cancels.
    #[inline(never)]
    fn sample_events(&self, now: &mut VcpuSample) -> bool {
        let (slots, used) = self.vcpu.events.sampled();
        self.sample(slots.get(..used).unwrap_or_default(), now).is_ok()
    }

    /// Shows each of these events its own.
    fn show_events(&mut self, now: &VcpuSample, show: impl Fn(&mut Held, u64)) {
        for (held, now) in self.vcpu.events.started().zip(&now.counter) {
            show(held, *now);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::testing::{BRANCHES, INSTRUCTIONS, Machine, counter};
    use shared_abi::config::{EVNTSEL_OS, MODE_SAMPLING};
    use shared_abi::hypercall::{OP_LOAD, OP_PLACE, OP_REGISTER, OP_UNREGISTER, PLACE_KERNEL};
    use std::vec::Vec;

    const USER: u64 = EVNTSEL_USR;

    fn wanted(select: u64, samples: bool) -> Wanted {
        Wanted::new(&Machine::caps(), TYPE_RAW, select, USER, samples).unwrap()
    }

    impl Machine {
        /// perf schedules these in on a vCPU.
        fn schedule(&self, vcpu: usize, wanted: &[(Wanted, i64)]) -> Vec<Result<u32, Errno>> {
            self.on(vcpu, |cpu| {
                cpu.disable_events();
                let added = wanted.iter().map(|(wanted, left)| {
                    let index = cpu.add_event(wanted, None)?;
                    cpu.start_event(index, left.unsigned_abs(), *left);
                    Ok(index)
                });
                let added = added.collect();
                assert!(!cpu.enable_events(None), "nobody is to be told");
                added
            })
        }

        fn progress(&self, vcpu: usize, index: u32) -> Progress {
            self.on(vcpu, |cpu| cpu.progress_of_event(index))
        }
    }

    #[test]
    fn events_are_asked_for_as_perf_does() {
        let caps = Machine::caps();
        let new = |kind, config| Wanted::new(&caps, kind, config, USER, false);
        let instructions = new(TYPE_HARDWARE, Generic::Instructions.perf()).unwrap();
        assert_eq!((instructions.general, instructions.fixed), (INSTRUCTIONS, USER | EVNTSEL_EN));
        assert_eq!(instructions.slots, 0b1_0000_0000_0000_1111);
        let reference = new(TYPE_HARDWARE, Generic::ReferenceCycles.perf()).unwrap();
        assert_eq!((reference.general, reference.slots), (0, 1 << 18), "a fixed counter's alone");
        assert_eq!(new(TYPE_RAW, 0xc4).unwrap().general, BRANCHES);
        assert_eq!(new(TYPE_HARDWARE, 7), Err(Errno::NOENT), "no CPU has it");
        assert_eq!(new(TYPE_HARDWARE, u64::MAX), Err(Errno::NOENT));
        assert_eq!(new(3, 0), Err(Errno::NOENT), "another type");
        assert_eq!(new(TYPE_RAW, 0x01_b7), Err(Errno::PERM), "another core's");
        assert_eq!(new(TYPE_RAW, 0xc0 | EVNTSEL_OS), Err(Errno::INVAL), "rings are perf's to say");
        assert_eq!(new(TYPE_RAW, 0xc0 | 1 << 40), Err(Errno::INVAL));
        assert_eq!(Wanted::new(&caps, TYPE_RAW, 0x01_b7, 0, false), Err(Errno::PERM));
    }

    #[test]
    fn an_event_in_neither_ring_counts_nothing() {
        let machine = Machine::new();
        for samples in [false, true] {
            let nowhere = Wanted::new(&Machine::caps(), TYPE_RAW, 0xc0, 0, samples).unwrap();
            let of = [(nowhere, 100), (wanted(0xc4, false), 0)];
            assert_eq!(machine.schedule(0, &of), [Ok(0), Ok(1)]);
            machine.execute(0, 1_000, 100);
            assert_eq!(machine.progress(0, 0), Progress { count: 0, left: 100 });
            assert_eq!(machine.progress(0, 1).count, 100, "the other one does");
            machine.on(0, |cpu| {
                assert_eq!(cpu.overflowed_events(), 0);
                cpu.disable_events();
                (cpu.remove_event(0), cpu.remove_event(1))
            });
        }
    }

    #[test]
    fn an_event_counts_where_it_is_and_when_it_is_started() {
        let machine = Machine::new();
        machine.execute(0, 100, 10);
        let of = [(wanted(0xc0, false), 0), (wanted(0xc4, false), 0)];
        assert_eq!(machine.schedule(0, &of), [Ok(0), Ok(1)]);
        assert_eq!(machine.take_hypercalls(), [(0, OP_LOAD)], "one for both");
        machine.execute(0, 1_000, 100);
        machine.preempt_vcpu(0);
        assert_eq!([0, 1].map(|n| machine.progress(0, n).count), [1_000, 100]);
        machine.execute(0, 5, 1);
        machine.on(0, |cpu| {
            cpu.disable_events();
            cpu.stop_event(1);
            cpu.enable_events(None);
        });
        machine.execute(0, 7, 2);
        assert_eq!([0, 1].map(|n| machine.progress(0, n).count), [12, 1]);
        machine.on(0, |cpu| (cpu.disable_events(), cpu.remove_event(0), cpu.remove_event(1)));
        assert_eq!(machine.schedule(0, &of[..1]), [Ok(0)]);
        machine.execute(0, 3, 0);
        assert_eq!(machine.progress(0, 0).count, 3);
        assert_eq!(machine.take_hypercalls(), [], "it was still loaded");
    }

    #[test]
    fn nothing_counts_while_perf_has_disabled_its_pmu() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        machine.on(0, |cpu| cpu.disable_events());
        machine.execute(0, 1_000, 0);
        assert_eq!(machine.progress(0, 0).count, 0);
        machine.on(0, |cpu| cpu.enable_events(None));
        machine.execute(0, 10, 0);
        assert_eq!(machine.progress(0, 0).count, 10);
    }

    #[test]
    fn there_is_no_counter_for_too_many() {
        let machine = Machine::new();
        let kinds = [0xc0, 0xc4, 0xc0 | 1 << 24, 0xc4 | 1 << 24, 0xc0 | 2 << 24];
        let of = kinds.map(|select| (wanted(select, false), 0));
        let added = machine.schedule(0, &of);
        assert_eq!(added, [Ok(0), Ok(1), Ok(2), Ok(3), Err(Errno::AGAIN)], "4 general counters");
        let same = machine.schedule(0, &of[..1]);
        assert_eq!(same, [Ok(4)], "the same event needs none of its own");
        machine.on(0, |cpu| cpu.refuse(Errno::NODEV));
        assert_eq!(machine.schedule(0, &of[..1]), [Err(Errno::AGAIN)]);
    }

    #[test]
    fn a_group_fits_if_all_of_it_has_counters() {
        let kinds = [0xc0, 0xc4, 0xc0 | 1 << 24, 0xc4 | 1 << 24, 0xc0 | 2 << 24];
        let group = kinds.map(|select| wanted(select, false));
        assert!(fit(&[]) && fit(&group[..4]), "4 general counters");
        assert!(!fit(&group));
        let [one, two, three, four, _] = group;
        assert!(fit(&[one, two, three, four, one]), "the same event needs none of its own");
        assert!(!fit(&[one; EVENTS_MAX + 1]), "perf has no more here at once");
    }

    #[test]
    fn events_go_on_when_the_page_is_another_users() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        machine.execute(0, 1_000, 0);
        machine.take_hypercalls();
        machine.on(0, |cpu| {
            cpu.unregister().unwrap();
            cpu.register(2, 7).unwrap();
        });
        assert_eq!(machine.take_hypercalls(), [(0, OP_UNREGISTER), (0, OP_REGISTER), (0, OP_LOAD)]);
        machine.execute(0, 50, 0);
        assert_eq!(machine.progress(0, 0).count, 1_050);
    }

    #[test]
    fn events_and_threads_count_beside_each_other() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        let held = machine.programmed(0).slots();
        machine.execute(0, 100, 10);
        let thread = machine.thread();
        // The thread wants all general counters, and the event's for something else.
        thread.start(&[0, 1, 2].map(|slot| counter(slot, BRANCHES)));
        thread.execute(1_000);
        assert_eq!(held, 1 << 3, "the last one is asked for least");
        assert_eq!(machine.programmed(0).slots(), 0b1111);
        thread.start(&[counter(3, BRANCHES)]);
        thread.execute(1_000);
        assert_eq!(machine.progress(0, 0).count, 2_100, "on another counter by now");
        assert_eq!(thread.read().unwrap().counter[0], 100);
        let all = [0, 1, 2, 3].map(|slot| counter(slot, BRANCHES));
        assert_eq!(thread.control(&crate::testing::control(&all)), Err(Errno::BUSY));
        thread.execute(1_000);
        assert_eq!(thread.read().unwrap().counter[0], 200, "it goes on as before");
        assert_eq!(machine.progress(0, 0).count, 1_000);
        let shared = [counter(3, BRANCHES), counter(0, INSTRUCTIONS)];
        thread.start(&shared);
        thread.execute(10);
        assert_eq!(thread.read().unwrap().counter[..2], [1, 10]);
    }

    #[test]
    fn an_event_comes_while_a_thread_counts() {
        let machine = Machine::new();
        let thread = machine.thread();
        let sampling =
            CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(0, INSTRUCTIONS) };
        let mut control = crate::testing::control(&[sampling, counter(3, BRANCHES)]);
        control.signal = 27;
        thread.control(&control).unwrap();
        thread.execute(400);
        machine.on(0, |cpu| {
            let mut pmu = thread.pmu.borrow_mut();
            cpu.disable_events();
            let same = cpu.add_event(&wanted(0xc0, false), pmu.needs()).unwrap();
            cpu.start_event(same, 0, 0);
            machine.take_hypercalls();
            assert!(!cpu.enable_events(Some((&mut pmu, &thread.page))));
            assert_eq!(machine.take_hypercalls(), [], "the thread's own counter counts it");
            cpu.disable_events();
            let other = cpu.add_event(&wanted(0xc0 | 1 << 24, false), pmu.needs()).unwrap();
            cpu.start_event(other, 0, 0);
            let tell = cpu.enable_events(Some((&mut pmu, &thread.page)));
            assert!(!tell, "nothing has overflowed");
        });
        let programmed = machine.programmed(0);
        let general = |n| PhysSlot::general(n).unwrap();
        assert_eq!(programmed.evntsel(general(0)), INSTRUCTIONS);
        assert_eq!(programmed.period(general(0)), 600, "what is left of the thread's period");
        assert_eq!(programmed.evntsel(general(3)), BRANCHES);
        thread.execute(100);
        assert_eq!([0, 1].map(|n| machine.progress(0, n).count), [100, 100]);
        assert_eq!(thread.read().unwrap().counter[..2], [500, 50]);
    }

    #[test]
    fn an_event_leaves_room_for_a_thread_that_is_being_switched_in() {
        let machine = Machine::new();
        let thread = machine.thread();
        thread.start(&[0, 1, 2, 3].map(|slot| counter(slot, BRANCHES)));
        thread.execute(100);
        thread.switch_out();
        machine.on(0, |cpu| {
            cpu.disable_events();
            let thread = thread.pmu.borrow();
            let added = cpu.add_event(&wanted(0xc0 | 1 << 24, false), thread.needs());
            assert_eq!(added, Err(Errno::AGAIN));
            cpu.enable_events(None);
        });
        thread.switch_in(0);
        thread.execute(100);
        assert_eq!(thread.read().unwrap().counter[..4], [20; 4]);
    }

    #[test]
    fn what_cannot_interrupt_is_not_sampled() {
        let mut caps = Machine::caps();
        caps.features = 0;
        let new = |samples| Wanted::new(&caps, TYPE_RAW, 0xc0, USER, samples);
        assert_eq!(new(true), Err(Errno::OPNOTSUPP));
        assert!(new(false).is_ok());
    }

    /// A thread has left this loaded.
    fn left_behind(machine: &Machine, counters: &[CounterConfig]) {
        let thread = machine.thread();
        thread.start(counters);
        thread.stop();
        machine.take_hypercalls();
    }

    #[test]
    fn what_counts_it_already_is_taken() {
        let machine = Machine::new();
        left_behind(&machine, &[counter(1, INSTRUCTIONS)]);
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        assert_eq!(machine.take_hypercalls(), []);
        machine.execute(0, 10, 1);
        assert_eq!(machine.progress(0, 0).count, 10);
    }

    #[test]
    fn a_free_counter_is_taken_rather_than_one_in_use() {
        let machine = Machine::new();
        left_behind(&machine, &[counter(3, BRANCHES)]);
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        assert_eq!(machine.programmed(0).slots(), 0b1100);
    }

    #[test]
    fn what_nobody_needs_makes_room() {
        let machine = Machine::new();
        left_behind(&machine, &[0, 1, 2, 3].map(|slot| counter(slot, BRANCHES)));
        machine.schedule(0, &[(wanted(0xc0, false), 0), (wanted(0xc0 | 1 << 24, false), 0)]);
        machine.execute(0, 10, 1);
        assert_eq!([0, 1].map(|n| machine.progress(0, n).count), [10, 10]);
        assert_eq!(machine.programmed(0).slots(), 0b1111, "the others stay");
    }

    #[test]
    fn what_could_not_be_loaded_counts_nothing() {
        let machine = Machine::new();
        left_behind(&machine, &[0, 1, 2, 3].map(|slot| counter(slot, BRANCHES)));
        machine.refuse(Some(Errno::PERM));
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        machine.execute(0, 1_000, 100);
        assert_eq!(machine.progress(0, 0).count, 0);
    }

    #[test]
    fn a_thread_that_begins_does_not_enable_perf() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        machine.on(0, |cpu| cpu.disable_events());
        let thread = machine.thread();
        thread.start(&[counter(0, BRANCHES)]);
        thread.execute(1_000);
        assert_eq!(machine.progress(0, 0).count, 0);
    }

    #[test]
    fn what_was_counted_before_the_domain_was_saved_stays() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        machine.execute(0, 1_000, 0);
        machine.preempt_vcpu(0);
        machine.on(0, |cpu| {
            cpu.unregister().unwrap();
            cpu.register(2, 7).unwrap();
            assert!(!cpu.events_are_stalled());
        });
        machine.execute(0, 50, 0);
        assert_eq!(machine.progress(0, 0).count, 1_050);
    }

    #[test]
    fn events_are_stalled_while_the_host_forbids() {
        let machine = Machine::new();
        let stalled = || machine.on(0, |cpu| cpu.events_are_stalled());
        machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
        assert!(!stalled(), "there are none");
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        machine.execute(0, 1_000, 0);
        assert!(!stalled());
        machine.revoke(0);
        machine.refuse(Some(Errno::PERM));
        // The interrupt says so.
        machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
        assert!(stalled());
        machine.execute(0, 1_000, 0);
        assert_eq!(machine.progress(0, 0).count, 1_000, "what was counted before");
        machine.on(0, |cpu| (cpu.disable_events(), assert!(!cpu.enable_events(None))));
        assert!(stalled(), "also what comes anew");
        machine.refuse(None);
        machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
        assert!(!stalled());
        machine.execute(0, 7, 0);
        assert_eq!(machine.progress(0, 0).count, 7);
    }

    #[test]
    fn events_are_stalled_where_there_is_no_page() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        machine.execute(0, 1_000, 0);
        machine.on(0, |cpu| {
            cpu.unregister().unwrap();
            cpu.refuse(Errno::STALE);
            assert!(cpu.events_are_stalled());
        });
        assert_eq!(machine.progress(0, 0).count, 1_000);
    }

    #[test]
    fn an_interrupt_concerns_only_what_samples() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, false), 0)]);
        machine.take_hypercalls();
        machine.execute(0, 1_000, 0);
        machine.on(0, |cpu| {
            assert_eq!(cpu.overflowed_events(), 0);
            cpu.enable_events(None);
        });
        assert_eq!(machine.take_hypercalls(), []);
        machine.execute(0, 7, 0);
        assert_eq!(machine.progress(0, 0).count, 1_007, "nothing is lost by it");
        let two = [(wanted(0xc4, true), 1_000), (wanted(0xc0 | 1 << 24, true), 1_000)];
        assert_eq!(machine.schedule(0, &two), [Ok(1), Ok(2)]);
        machine.execute(0, 1_000, 1_000);
        machine.on(0, |cpu| assert_eq!(cpu.overflowed_events(), 0b110));
    }

    #[test]
    fn an_events_place_is_that_of_its_counter() {
        let machine = Machine::new();
        machine.place.set(HvPlace { mode: PLACE_KERNEL, ip: 0x1000, ..HvPlace::default() });
        assert_eq!(machine.schedule(0, &[(wanted(0xc0, true), 5_000)]), [Ok(0)]);
        machine.take_hypercalls();
        let place = machine.on(0, |cpu| cpu.place_of_event(0));
        let expected = HvPlace { slot: 3, mode: PLACE_KERNEL, ip: 0x1000, ..HvPlace::default() };
        assert_eq!(place, expected);
        assert_eq!(machine.take_hypercalls(), [(0, OP_PLACE)]);
        machine.on(0, |cpu| assert_eq!(cpu.place_of_event(1), HvPlace::default(), "no event"));
        assert_eq!(machine.take_hypercalls(), []);
        machine.refuse(Some(Errno::INVAL));
        machine.on(0, |cpu| assert_eq!(cpu.place_of_event(0), HvPlace::default(), "no such call"));
    }

    #[test]
    fn short_periods_leave_room_between_interrupts() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, true), 30)]);
        let slot = PhysSlot::general(3).unwrap();
        assert_eq!(machine.programmed(0).period(slot), 1_020, "the first multiple beyond");
        machine.execute(0, 1_020, 0);
        machine.on(0, |cpu| {
            assert_eq!(cpu.overflowed_events(), 0b1);
            assert_eq!(cpu.next_period_of_event(0), 34);
        });
    }

    #[test]
    fn every_period_of_an_event_is_told() {
        let machine = Machine::new();
        machine.schedule(0, &[(wanted(0xc0, true), 1_000), (wanted(0xc4, false), 0)]);
        let slot = PhysSlot::general(3).unwrap();
        assert_eq!(machine.programmed(0).period(slot), 1_000);
        machine.execute(0, 900, 90);
        machine.on(0, |cpu| assert_eq!(cpu.overflowed_events(), 0, "it was another's"));
        machine.on(0, |cpu| cpu.load_events());
        assert_eq!(machine.programmed(0).period(slot), 100);
        machine.execute(0, 2_150, 0);
        machine.on(0, |cpu| {
            assert_eq!(cpu.overflowed_events(), 0b1);
            assert_eq!(cpu.next_period_of_event(0), 3);
            assert_eq!(cpu.next_period_of_event(1), 0, "that one does not sample");
            cpu.enable_events(None);
        });
        assert_eq!(machine.programmed(0).period(slot), 950);
        assert_eq!(machine.progress(0, 0), Progress { count: 3_050, left: 950 });
        // It is told late, and never forgotten.
        machine.execute(0, 950, 0);
        assert_eq!(machine.progress(0, 0).left, 0);
        machine.on(0, |cpu| cpu.load_events());
        assert_eq!(machine.programmed(0).period(slot), 1, "at the next event");
    }
}
