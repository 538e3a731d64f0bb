// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Does the work of perf's PMU on a vCPU.

use shared_abi::hypercall::{HvBranches, HvPlace, PLACE_PRECISE};
use shared_abi::{Config, Errno, PhysSlot, ThreadPage};

use crate::hal::Kernel;
use crate::hypercall;
use crate::perf::branches::BranchStack;
use crate::perf::event::EventConfig;
use crate::perf::held::Progress;
use crate::perf::sample::Registers;
use crate::thread::ThreadPmu;
use crate::vcpu::ThisVcpu;

impl<K: Kernel> ThisVcpu<'_, K> {
    /// Adds an event, with perf's PMU disabled. It does not count yet. Returns the event's number
    /// on this vCPU.
    ///
    /// `kept` is what the present thread needs loaded.
    ///
    /// # Errors
    ///
    /// `AGAIN` if there is no counter for it now, or nothing can be counted here.
    pub fn add_event(&mut self, event: &EventConfig, kept: Option<&Config>) -> Result<u32, Errno> {
        self.may_load().map_err(|_| Errno::AGAIN)?;
        let added = self.vcpu.add_event(event, kept.unwrap_or(&Config::NONE));
        self.note_events();
        added
    }

    /// Publishes for C what events there are.
    fn note_events(&self) {
        let events = &self.vcpu.events;
        self.shown.note_events(!events.is_empty(), events.branches() != 0);
    }

    /// Removes an event, at `now` by perf's time. Returns for how long it was stalled since the
    /// last call that returned this time.
    pub fn remove_event(&mut self, index: u32, now: u64) -> u64 {
        let stalled = self.vcpu.events.settle_removed(index, now);
        self.vcpu.events.remove(index);
        self.note_events();
        stalled
    }

    /// Starts an event, which counts when perf's PMU is enabled. If it samples, it overflows after
    /// the rest of its period, `left`, or after a whole `period` if perf has set a period that is
    /// shorter than this rest. Returns how many events its present period has: `present` if that
    /// one goes on.
    pub fn start_event(&mut self, index: u32, period: u64, left: i64, present: u64) -> u64 {
        self.fold_events();
        if self.vcpu.events.start(index, period, left) { present } else { period }
    }

    /// Stops an event, which stays. The others count when perf's PMU is enabled. It has no effect
    /// if the event is stopped.
    pub fn stop_event(&mut self, index: u32) {
        if self.vcpu.events.is_started(index) {
            self.fold_events();
            self.vcpu.events.stop(index);
        }
    }

    /// Returns what an event has counted since the last call. `now` is perf's time.
    pub fn progress_of_event(&mut self, index: u32, now: u64) -> Progress {
        let sampler = self.sampler();
        self.vcpu.events.advance_live(&sampler);
        self.vcpu.events.take_progress(index, now)
    }

    /// Stops all events while perf changes what counts.
    pub fn disable_events(&mut self) {
        self.fold_events();
        self.vcpu.events.enable(false);
    }

    /// Makes events count again after perf has changed what counts, or after an interrupt that came
    /// while they counted. `thread` is the executing thread, if it has counters. Returns whether
    /// the thread was found to have overflowed meanwhile, see [`ThreadPmu::report`].
    pub fn enable_events(&mut self, thread: Option<(&mut ThreadPmu, &ThreadPage)>) -> bool {
        self.fold_events();
        self.vcpu.forget_who_comes();
        self.vcpu.events.enable(true);
        self.revive_events();
        let mut overflowed = false;
        if self.vcpu.events.needs_load() {
            overflowed = thread.is_some_and(|(pmu, page)| pmu.load_again(page, self));
        }
        if self.vcpu.events.needs_load() {
            self.load_events();
        }
        self.vcpu.events.note_stalled();
        self.update_records();
        overflowed
    }

    /// Makes the hypervisor record the branches that the events want. If it refuses, their samples
    /// have none.
    fn update_records(&mut self) {
        let wanted = self.vcpu.events.branches().into();
        if self.vcpu.events.take_records_anew() || wanted != self.vcpu.recorded {
            self.record(wanted);
        }
    }

    /// Discards the branches of the present thread, because another thread is about to execute.
    pub fn forget_records(&mut self) {
        if self.vcpu.recorded != 0 {
            self.record(self.vcpu.recorded);
        }
    }

    fn record(&mut self, filter: u32) {
        self.stats.hypercalls.add(1);
        let recorded = hypercall::record(self.kernel, filter);
        self.vcpu.recorded = if recorded.is_ok() { filter } else { 0 };
    }

    /// Fills in the branches before the overflow of an event. This asks the hypervisor if the event
    /// wants branches. The hypervisor answers once, and may have none.
    pub fn branches_of_event(&self, index: u32, stack: &mut BranchStack) {
        let mut answer = HvBranches::default();
        if let Some((event, slot)) = self.vcpu.events.get(index)
            && event.branches != 0
        {
            answer.slot = slot.index() as u32;
            self.stats.hypercalls.add(1);
            if hypercall::branches(self.kernel, &mut answer).is_err() {
                answer.count = 0;
            }
        }
        stack.fill(&answer);
    }

    /// Subtracts an interrupt or an exception that has interrupted user mode from the events that
    /// count it as an instruction. Returns whether it was subtracted from any. The parameter is the
    /// one of [`ThreadPmu::subtract_interrupt`].
    pub fn subtract_interrupt_from_events(&mut self, is_counted: bool) -> bool {
        let sampler = self.sampler();
        self.vcpu.events.subtract_interrupt(&sampler, is_counted)
    }

    /// Handles the interrupt of an overflow. Returns one bit for each event that has overflowed.
    pub fn overflowed_events(&mut self) -> u32 {
        if !self.vcpu.events.any_samples() {
            return 0;
        }
        self.fold_events();
        self.vcpu.events.take_overflows()
    }

    /// Begins the next period of an event that has overflowed. Returns how many of its periods have
    /// passed.
    pub fn next_period_of_event(&mut self, index: u32) -> u64 {
        self.vcpu.events.next_period(index)
    }

    /// Keeps the places of events that have overflowed and have no sample yet. The hypervisor
    /// discards the places when it gives the page back, which happens before perf removes the
    /// events of a thread that is switched out.
    pub(crate) fn keep_places(&mut self) {
        while let Some((index, slot)) = self.vcpu.events.without_place() {
            let place = self.ask_place(slot);
            self.vcpu.events.keep_place(index, place);
        }
    }

    /// Asks the hypervisor where a counter has overflowed. The hypervisor answers once, and may not
    /// know the place.
    fn ask_place(&self, slot: PhysSlot) -> HvPlace {
        self.stats.hypercalls.add(1);
        hypercall::place(self.kernel, slot).unwrap_or_default()
    }

    /// Returns which registers the sample of an event that has overflowed gets. `interrupted` is
    /// the place that its interrupt has stopped, with the mode
    /// [`PLACE_NONE`](shared_abi::hypercall::PLACE_NONE) if none has come. It is set to the
    /// overflow's place if the sample gets the registers that the hypervisor has seen.
    pub fn registers_of_event(&mut self, index: u32, interrupted: &mut HvPlace) -> Registers {
        let Some((event, slot)) = self.vcpu.events.get(index) else {
            return Registers::User;
        };
        if !event.asks_for_place() {
            return Registers::of_user_mode(interrupted);
        }
        let (is_precise, counts_kernel) = (event.is_precise(), event.counts_kernel());
        let kept = self.vcpu.events.take_place(index);
        let mut place = kept.unwrap_or_else(|| self.ask_place(slot));
        let registers = Registers::by_place(is_precise, counts_kernel, interrupted, &place);
        place.mode &= !PLACE_PRECISE;
        if matches!(registers, Registers::Place | Registers::Precise) {
            *interrupted = place;
        }
        registers
    }
}
