// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Carries out perf's callbacks on the vCPU that executes them, in the right order.
//!
//! perf keeps the state of each event: a count, times, and the rest of a period. [`LocalEvents`]
//! gives access to this state; the module's glue and the simulator both implement it.

use shared_abi::hypercall::HvPlace;
use shared_abi::slot::bits_of;
use shared_abi::{Config, Errno};

use crate::local::LocalVcpu;
use crate::perf::event::EventConfig;
use crate::perf::held::{EVENTS_MAX, Progress};
use crate::perf::sample::Registers;

/// A time of an event, by perf's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum EventTime {
    /// The time at which perf added the event.
    Added = 0,
    /// The time up to which perf's books say how long the event has run.
    Booked = 1,
    /// The present time.
    Now = 2,
}

/// The vCPU that executes this, and perf's state of the events that are on it. An event has the
/// number that [`add_event`](Self::add_event) has returned.
pub trait LocalEvents: LocalVcpu {
    /// Returns a time of an event.
    fn time(&mut self, index: u32, which: EventTime) -> u64;

    /// Adds to perf's books what an event has counted, and for how long it was stalled.
    fn book_progress(&mut self, index: u32, progress: &Progress);

    /// Subtracts this from the time for which perf believes that the event has run.
    fn book_stall(&mut self, index: u32, stalled: u64);

    /// Makes perf take a sample of an event, of which so many periods have passed. `place` is the
    /// overflow's place if the sample gets [`Registers::Place`].
    ///
    /// perf may stop and read events meanwhile, so nothing of the vCPU is borrowed then.
    fn sample(&mut self, index: u32, registers: Registers, place: &HvPlace, periods: u64);

    /// Makes the kernel report the overflow as soon as perf's locks are free. perf holds the locks
    /// now, so that no signal can be sent.
    fn report_later(&mut self);

    /// Adds an event, which does not count yet. Returns its number.
    ///
    /// If the registered page may not show the event, perf's page is registered in its place; see
    /// [`Vcpu::event_needs_page`](crate::Vcpu::event_needs_page). `own` is the observer of the
    /// present thread's counters, and `kept` is what they need loaded, if it has any that count.
    /// `is_wide` says whether the event counts every thread that executes.
    ///
    /// # Errors
    ///
    /// Those of [`ThisVcpu::add_event`](crate::ThisVcpu::add_event).
    fn add_event(
        &mut self,
        event: &EventConfig,
        own: Option<u32>,
        kept: Option<&Config>,
        is_wide: bool,
    ) -> Result<u32, Errno> {
        let present = self.executing();
        if self.with_state(|vcpu| vcpu.event_needs_page(&present, own, is_wide)) {
            // If the hypervisor refuses the page, the event is refused, too.
            let _ = self.show_perfs(&present);
        }
        self.with_cpu(|cpu| {
            let index = cpu.add_event(event, kept)?;
            if is_wide {
                cpu.vcpu.wide_event_comes();
            }
            Ok(index)
        })
    }

    /// Stops an event. If `is_unread`, perf's state lacks what the event has counted last.
    fn stop_event(&mut self, index: u32, is_unread: bool) {
        self.with_cpu(|cpu| cpu.stop_event(index));
        if !is_unread {
            return;
        }
        self.read_event(index);
        if self.with_state(|vcpu| vcpu.events.is_due(index)) {
            // It has overflowed, and its interrupt has not come yet.
            self.report_event(index, &HvPlace::default());
            self.read_event(index);
            self.report_later();
        }
    }

    /// Removes an event, which is stopped first; see [`stop_event`](Self::stop_event).
    ///
    /// # Errors
    ///
    /// Those of [`hide`](LocalVcpu::hide), if the page had to be unregistered; see
    /// [`Vcpu::event_goes`](crate::Vcpu::event_goes). The event is removed all the same.
    fn remove_event(&mut self, index: u32, is_unread: bool, is_wide: bool) -> Result<(), Errno> {
        self.stop_event(index, is_unread);
        let now = self.time(index, EventTime::Booked);
        let stalled = self.with_cpu(|cpu| cpu.remove_event(index, now));
        self.book_stall(index, stalled);
        let present = self.executing();
        if self.with_state(|vcpu| vcpu.event_goes(&present, is_wide)) {
            self.hide()
        } else {
            Ok(())
        }
    }

    /// Brings perf's state of an event up to date.
    fn read_event(&mut self, index: u32) {
        let now = self.time(index, EventTime::Booked);
        let progress = self.with_cpu(|cpu| cpu.progress_of_event(index, now));
        self.book_progress(index, &progress);
    }

    /// Begins the next period of an event that has overflowed, and makes perf take a sample.
    /// `interrupted` is the place that the interrupt has stopped, or has the mode
    /// [`PLACE_NONE`](shared_abi::hypercall::PLACE_NONE) if none has come.
    fn report_event(&mut self, index: u32, interrupted: &HvPlace) {
        let mut place = *interrupted;
        let registers = self.with_cpu(|cpu| cpu.registers_of_event(index, &mut place));
        let periods = self.with_cpu(|cpu| cpu.next_period_of_event(index));
        if periods != 0 {
            self.sample(index, registers, &place, periods);
        }
    }

    /// Makes events count again when perf enables its PMU. `enable` calls
    /// [`ThisVcpu::enable_events`](crate::ThisVcpu::enable_events) with the present thread's
    /// counters, and returns that function's result.
    ///
    /// # Errors
    ///
    /// Those of [`show_for_events`](LocalVcpu::show_for_events). The events stand still then.
    fn enable_events(&mut self, enable: impl FnOnce(&mut Self) -> bool) -> Result<(), Errno> {
        let shown = self.show_for_events();
        self.continue_events(false, enable);
        shown
    }

    /// Handles the interrupt of an overflow, or one by which the host says that it has allowed or
    /// forbidden the domain to count. Returns whether any event has overflowed. The parameters
    /// are those of [`report_event`](Self::report_event) and
    /// [`enable_events`](Self::enable_events).
    fn interrupt_events(
        &mut self,
        interrupted: &HvPlace,
        enable: impl FnOnce(&mut Self) -> bool,
    ) -> bool {
        let overflowed = self.with_cpu(|cpu| cpu.overflowed_events());
        for index in bits_of(overflowed) {
            self.read_event(index);
            self.report_event(index, interrupted);
        }
        self.continue_events(true, enable);
        overflowed != 0
    }

    /// Makes events continue after the vCPU has lost its page, because another vCPU has called this
    /// one, or because the machine slept or was restored.
    ///
    /// # Errors
    ///
    /// Those of [`show_for_events`](LocalVcpu::show_for_events). perf's time of the events stands
    /// still then.
    fn page_changed(&mut self) -> Result<(), Errno> {
        let shown = self.show_for_events();
        self.settle_events(true);
        shown
    }

    /// Makes events count, and tells perf of their stalls; see
    /// [`settle_events`](Self::settle_events) and [`enable_events`](Self::enable_events).
    fn continue_events(&mut self, has_counted: bool, enable: impl FnOnce(&mut Self) -> bool) {
        if enable(self) {
            self.report_later();
        }
        self.settle_events(has_counted);
    }

    /// Tells perf of stalls, since perf believes that each event here counts. `has_counted` says
    /// whether an event that stops counting has counted until now. If not, it has not counted since
    /// perf added it.
    fn settle_events(&mut self, has_counted: bool) {
        if !self.with_state(|vcpu| vcpu.events.take_unsettled()) {
            return;
        }
        for index in 0..EVENTS_MAX as u32 {
            if self.with_state(|vcpu| vcpu.events.get(index).is_none()) {
                continue;
            }
            let now = self.time(index, EventTime::Now);
            let began = if has_counted { now } else { self.time(index, EventTime::Added) };
            let stalled = self.with_state(|vcpu| vcpu.events.settle(index, began, now));
            self.book_stall(index, stalled);
        }
    }
}
