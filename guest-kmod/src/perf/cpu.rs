// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What perf's PMU does on a vCPU.

use shared_abi::hypercall::HvPlace;
use shared_abi::{Config, Errno, ThreadPage};

use crate::hal::Kernel;
use crate::hypercall;
use crate::perf::event::EventConfig;
use crate::perf::held::Progress;
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
        let loaded = self.vcpu.loaded();
        self.vcpu.events.add(event, &loaded, &kept.copied().unwrap_or_default())
    }

    /// An event goes.  What it counts stays loaded, since the event often comes back.
    pub fn remove_event(&mut self, index: u32) {
        self.vcpu.events.remove(index);
    }

    /// An event counts when perf's PMU is enabled; if it samples, it overflows after `left` events
    /// and then every `period`.
    pub fn start_event(&mut self, index: u32, period: u64, left: i64) {
        self.fold_events();
        self.vcpu.events.start(index, period, left);
    }

    /// An event counts no more, and stays; the others count when perf's PMU is enabled.
    pub fn stop_event(&mut self, index: u32) {
        self.fold_events();
        self.vcpu.events.stop(index);
    }

    /// What an event has counted since this was last asked.
    pub fn progress_of_event(&mut self, index: u32) -> Progress {
        let sampler = self.sampler();
        self.vcpu.events.advance_live(&sampler);
        self.vcpu.events.take_progress(index)
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

    /// Whether nothing is counted where perf has its PMU enabled and events here.
    pub fn events_are_stalled(&self) -> bool {
        self.vcpu.events.are_stalled()
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

    /// Where an event has overflowed, once; [`PLACE_NONE`](shared_abi::hypercall::PLACE_NONE) if
    /// the hypervisor does not know.
    pub fn place_of_event(&mut self, index: u32) -> HvPlace {
        let Some(slot) = self.vcpu.events.slot(index) else {
            return HvPlace::default();
        };
        self.stats.hypercalls.add(1);
        hypercall::place(self.kernel, slot).unwrap_or_default()
    }
}
