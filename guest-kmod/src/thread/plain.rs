// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements short paths for the usual switch: the thread only counts, and its counters are still
//! loaded.
//!
//! They do what [`ThreadPmu::switch_in_otherwise`] and [`ThreadPmu::switch_out_otherwise`] do, for
//! a number of counters that the compiler knows, so that there is no loop. They change only the
//! thread's state, its page and statistics. If anything else is needed they change nothing, and
//! the general functions do the whole switch.

use shared_abi::ThreadPage;
use shared_abi::count::log_thread;

use super::{Running, ThreadPmu};
use crate::hal::Kernel;
use crate::overflow::Signal;
use crate::vcpu::ThisVcpu;

/// A thread and the vCPU on which it is switched, as the code that switches it has them.
pub trait Switch: Sized {
    /// The kernel that switches the thread.
    type Kernel: Kernel;
    /// The overflow that has to be reported to the thread, in the form that the kernel needs. The
    /// default value stands for no overflow.
    type Notice: Default;

    /// Returns the thread's counters, its page, and the vCPU.
    fn parts(&mut self) -> (&mut ThreadPmu, &ThreadPage, ThisVcpu<'_, Self::Kernel>);

    /// Registers the page of the thread's user, if the thread needs that page to be resumed.
    fn show_page(&mut self);

    /// Converts an overflow to the form that the kernel needs.
    fn notice(signal: Option<Signal>) -> Self::Notice;
}

/// Switches the thread in. Returns the overflow to report, if the thread was suspended between the
/// overflow and its interrupt.
///
/// There is a function for each number of counters: one for fewer counters saves fewer registers.
#[inline(always)]
pub fn switch_in<S: Switch>(mut switch: S) -> S::Notice {
    let (pmu, _, cpu) = switch.parts();
    match pmu.plain_counters_in(&cpu) {
        1 => in_plainly::<1, S>(switch),
        2 => in_plainly::<2, S>(switch),
        3 => in_plainly::<3, S>(switch),
        4 => in_plainly::<4, S>(switch),
        _ => in_otherwise(switch),
    }
}

#[inline(never)]
fn in_plainly<const N: usize, S: Switch>(mut switch: S) -> S::Notice {
    let (pmu, page, cpu) = switch.parts();
    if pmu.resume_plainly::<N, _>(page, &cpu) {
        return S::Notice::default();
    }
    in_otherwise(switch)
}

#[inline(never)]
fn in_otherwise<S: Switch>(mut switch: S) -> S::Notice {
    switch.show_page();
    let (pmu, page, mut cpu) = switch.parts();
    S::notice(pmu.switch_in_otherwise(page, &mut cpu))
}

/// Does what [`switch_in`] does, and counts what that costs.
#[inline(always)]
pub fn switch_in_measured<S: Switch>(mut switch: S) -> S::Notice {
    switch.show_page();
    let (pmu, page, mut cpu) = switch.parts();
    S::notice(pmu.switch_in_measured(page, &mut cpu))
}

/// Switches the thread out.
#[inline(always)]
pub fn switch_out<S: Switch>(mut switch: S) {
    match switch.parts().0.plain_counters_out() {
        1 => out_plainly::<1, S>(switch),
        2 => out_plainly::<2, S>(switch),
        3 => out_plainly::<3, S>(switch),
        4 => out_plainly::<4, S>(switch),
        _ => out_otherwise(switch),
    }
}

#[inline(never)]
fn out_plainly<const N: usize, S: Switch>(mut switch: S) {
    let (pmu, page, cpu) = switch.parts();
    if !pmu.suspend_plainly::<N, _>(page, &cpu) {
        out_otherwise(switch);
    }
}

#[inline(never)]
fn out_otherwise<S: Switch>(mut switch: S) {
    let (pmu, page, mut cpu) = switch.parts();
    pmu.switch_out_otherwise(page, &mut cpu);
}

/// A switch by code that has borrowed the parts, and has registered the page that the thread needs.
struct Borrowed<'a, 'b, K> {
    pmu: &'a mut ThreadPmu,
    page: &'a ThreadPage,
    cpu: &'a mut ThisVcpu<'b, K>,
}

impl<K: Kernel> Switch for Borrowed<'_, '_, K> {
    type Kernel = K;
    type Notice = Option<Signal>;

    #[inline(always)]
    fn parts(&mut self) -> (&mut ThreadPmu, &ThreadPage, ThisVcpu<'_, K>) {
        let ThisVcpu { number, page, ref mut vcpu, shown, stats, kernel } = *self.cpu;
        (self.pmu, self.page, ThisVcpu { number, page, vcpu, shown, stats, kernel })
    }

    fn show_page(&mut self) {}

    fn notice(signal: Option<Signal>) -> Option<Signal> {
        signal
    }
}

impl ThreadPmu {
    /// Does what [`switch_in`] does, for a thread whose page, if it needs one, is registered.
    pub fn switch_in<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut ThisVcpu<'_, K>,
    ) -> Option<Signal> {
        switch_in(Borrowed { pmu: self, page, cpu })
    }

    /// Does what [`switch_out`] does.
    pub fn switch_out<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut ThisVcpu<'_, K>) {
        switch_out(Borrowed { pmu: self, page, cpu });
    }

    /// Returns the number of counters if the thread can be resumed by
    /// [`resume_plainly`](Self::resume_plainly): nothing has to be loaded, and there is nothing to
    /// tell the thread. Otherwise returns 0.
    #[inline(always)]
    fn plain_counters_in<K: Kernel>(&self, cpu: &ThisVcpu<'_, K>) -> usize {
        // Counters that sample, or have failed, are never noted as loaded.
        let plain = self.running == Running::Suspended && self.loaded == Some(cpu.loaded());
        if plain { self.order.len() } else { 0 }
    }

    /// Returns the number of counters if the thread can be suspended by
    /// [`suspend_plainly`](Self::suspend_plainly), or 0.
    #[inline(always)]
    fn plain_counters_out(&self) -> usize {
        let plain = self.running == Running::Active && self.loaded.is_some();
        if plain { self.order.len() } else { 0 }
    }

    /// Resumes the thread, which has `N` counters as [`plain_counters_in`](Self::plain_counters_in)
    /// has found. Returns false, and changes nothing, if reading the counters was disturbed.
    #[inline(always)]
    fn resume_plainly<const N: usize, K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &ThisVcpu<'_, K>,
    ) -> bool {
        let Some(slots) = self.order.used::<N>() else { return false };
        let Some((tsc, counts)) = cpu.try_sample(slots) else { return false };
        cpu.stats.switches_in.add(1);
        self.switches = self.switches.wrapping_add(1);
        self.running = Running::Active;
        self.start.tsc = tsc;
        for (start, count) in self.start.counter.iter_mut().zip(counts) {
            *start = count;
        }
        // The same vCPU still has these counters loaded, so its number is published already.
        self.publisher.resumed(page, None, tsc, &counts, false);
        self.publisher.switched(page, self.switches);
        true
    }

    /// Suspends the thread, which has `N` counters as
    /// [`plain_counters_out`](Self::plain_counters_out) has found. Returns false, and changes
    /// nothing, if reading the counters was disturbed.
    #[inline(always)]
    fn suspend_plainly<const N: usize, K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &ThisVcpu<'_, K>,
    ) -> bool {
        let Some(slots) = self.order.used::<N>() else { return false };
        let Some((tsc, mut counts)) = cpu.try_sample(slots) else { return false };
        cpu.stats.switches_out.add(1);
        self.running = Running::Suspended;
        if self.tsc {
            self.sums.tsc = log_thread(self.sums.tsc, self.start.tsc, tsc);
        }
        let sums = self.sums.counter.iter_mut().zip(&self.start.counter);
        for (count, (sum, start)) in counts.iter_mut().zip(sums) {
            *count = log_thread(*sum, *start, *count);
            *sum = *count;
        }
        self.publisher.suspended(page, self.sums.tsc, &counts);
        true
    }
}
