// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What perf's PMU does on a vCPU.

use shared_abi::hypercall::HvPlace;
use shared_abi::{Config, Errno, ThreadPage};

use crate::hal::Kernel;
use crate::hypercall;
use crate::perf::event::EventConfig;
use crate::perf::held::Progress;
use crate::perf::sample::Registers;
use crate::thread::ThreadPmu;
use crate::vcpu::Cpu;

impl<K: Kernel> Cpu<'_, K> {
    /// An event comes, with perf's PMU disabled, and does not count yet.  Gives the number by which
    /// it is known on this vCPU.
    ///
    /// `kept` is what the present thread needs loaded.
    ///
    /// # Errors
    ///
    /// `AGAIN` there is no counter for it now, or nothing can be counted here.
    pub fn add_event(&mut self, event: &EventConfig, kept: Option<&Config>) -> Result<u32, Errno> {
        self.may_load().map_err(|_| Errno::AGAIN)?;
        self.vcpu.add_event(event, kept.unwrap_or(&Config::NONE))
    }

    /// An event goes, at `now` by perf's time.  Gives for how long it was stalled since this was
    /// last asked.
    pub fn remove_event(&mut self, index: u32, now: u64) -> u64 {
        let stalled = self.vcpu.events.settle(index, now, now);
        self.vcpu.events.remove(index);
        stalled
    }

    /// An event counts when perf's PMU is enabled; if it samples, it overflows after what is `left`
    /// of its `period`, which is all of it if perf has set another one.
    pub fn start_event(&mut self, index: u32, period: u64, left: i64) {
        self.fold_events();
        self.vcpu.events.start(index, period, left);
    }

    /// An event counts no more, and stays; the others count when perf's PMU is enabled.
    pub fn stop_event(&mut self, index: u32) {
        self.fold_events();
        self.vcpu.events.stop(index);
    }

    /// What an event has counted since this was last asked; `now` by perf's time.
    pub fn progress_of_event(&mut self, index: u32, now: u64) -> Progress {
        let sampler = self.sampler();
        self.vcpu.events.advance_live(&sampler);
        self.vcpu.events.take_progress(index, now)
    }

    /// perf changes what counts: nothing does meanwhile.
    pub fn disable_events(&mut self) {
        self.fold_events();
        self.vcpu.events.enable(false);
    }

    /// perf has changed what counts, or an interrupt came while it counted; `thread` executes if it
    /// has counters.  Gives whether the thread was found to have overflowed meanwhile, see
    /// [`ThreadPmu::tell`].
    pub fn enable_events(&mut self, thread: Option<(&mut ThreadPmu, &ThreadPage)>) -> bool {
        self.fold_events();
        self.vcpu.forget_who_comes();
        self.vcpu.events.enable(true);
        self.revive_events();
        let mut tell = false;
        if self.vcpu.events.needs_load() {
            tell = thread.is_some_and(|(pmu, page)| pmu.load_again(page, self));
        }
        if self.vcpu.events.needs_load() {
            self.load_events();
        }
        self.vcpu.events.note_stalled();
        tell
    }

    /// Whether perf is to be told of each event's stall, by [`settle_event`](Self::settle_event).
    pub fn events_are_unsettled(&mut self) -> bool {
        self.vcpu.events.take_unsettled()
    }

    /// Gives for how long an event was stalled since this was last asked; if it is stalled from now
    /// on, it is so since `began`.  Both by perf's time.
    pub fn settle_event(&mut self, index: u32, began: u64, now: u64) -> u64 {
        self.vcpu.events.settle(index, began, now)
    }

    /// The interrupt of an overflow came: one bit for each event that has overflowed.
    pub fn overflowed_events(&mut self) -> u32 {
        if !self.vcpu.events.any_samples() {
            return 0;
        }
        self.fold_events();
        self.vcpu.events.take_overflows()
    }

    /// The event that has overflowed is to do so again.  Gives how many of its periods have passed.
    pub fn next_period_of_event(&mut self, index: u32) -> u64 {
        self.vcpu.events.next_period(index)
    }

    /// Which registers the sample of an event gets that has overflowed, where `interrupted` is what
    /// its interrupt has stopped, with the mode [`PLACE_NONE`](shared_abi::hypercall::PLACE_NONE)
    /// if none has come.  They are put to its place if they are those that the hypervisor has seen.
    pub fn registers_of_event(&mut self, index: u32, interrupted: &mut HvPlace) -> Registers {
        let Some((event, slot)) = self.vcpu.events.get(index) else {
            return Registers::User;
        };
        if !event.counts_kernel() {
            return Registers::of_user_mode(interrupted);
        }
        self.stats.hypercalls.add(1);
        // The hypervisor tells this once, or may not know it.
        let place = hypercall::place(self.kernel, slot).unwrap_or_default();
        let registers = Registers::of_both_modes(interrupted, &place);
        if registers == Registers::Place {
            *interrupted = place;
        }
        registers
    }
}
