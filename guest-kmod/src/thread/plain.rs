// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Switches of threads that only count, whose counters are loaded still: what nearly every switch
//! is.
//!
//! What is done is what [`ThreadPmu::switch_in_otherwise`] and [`ThreadPmu::switch_out_otherwise`]
//! do, to nobody but the thread and its page, and for a known number of counters, so that there is
//! no loop.  A switch that finds anything else is left to them, untouched.

use shared_abi::ThreadPage;
use shared_abi::count::log_thread;

use super::{Running, ThreadPmu};
use crate::hal::Kernel;
use crate::overflow::Signal;
use crate::vcpu::Cpu;

/// A thread and the vCPU that it is switched on, as whoever switches it has them.
pub trait Switch: Sized {
    /// The kernel that switches it.
    type Kernel: Kernel;
    /// What the thread is told, in the kernel's form; the default is nothing.
    type Told: Default;

    /// The thread's counters, its page, and the vCPU.
    fn parts(&mut self) -> (&mut ThreadPmu, &ThreadPage, Cpu<'_, Self::Kernel>);

    /// Has the page of the thread's user registered, if the thread needs that to be resumed.
    fn show_page(&mut self);

    /// The kernel's form of what the thread is told.
    fn told(signal: Option<Signal>) -> Self::Told;
}

/// The thread is about to execute on the vCPU.  Gives what to send it, if it was suspended between
/// an overflow and its interrupt.
///
/// Each number of counters has code of its own, in a function of its own: a shorter one has fewer
/// registers to save.
#[inline(always)]
pub fn switch_in<S: Switch>(mut switch: S) -> S::Told {
    let (pmu, _, cpu) = switch.parts();
    match pmu.plainly_in(&cpu) {
        1 => in_plainly::<1, S>(switch),
        2 => in_plainly::<2, S>(switch),
        3 => in_plainly::<3, S>(switch),
        4 => in_plainly::<4, S>(switch),
        _ => in_otherwise(switch),
    }
}

#[inline(never)]
fn in_plainly<const N: usize, S: Switch>(mut switch: S) -> S::Told {
    let (pmu, page, cpu) = switch.parts();
    if pmu.begin::<N, _>(page, &cpu) {
        return S::Told::default();
    }
    in_otherwise(switch)
}

#[inline(never)]
fn in_otherwise<S: Switch>(mut switch: S) -> S::Told {
    switch.show_page();
    let (pmu, page, mut cpu) = switch.parts();
    S::told(pmu.switch_in_otherwise(page, &mut cpu))
}

/// The thread has stopped executing on the vCPU.
#[inline(always)]
pub fn switch_out<S: Switch>(mut switch: S) {
    match switch.parts().0.plainly_out() {
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
    if !pmu.end::<N, _>(page, &cpu) {
        out_otherwise(switch);
    }
}

#[inline(never)]
fn out_otherwise<S: Switch>(mut switch: S) {
    let (pmu, page, mut cpu) = switch.parts();
    pmu.switch_out_otherwise(page, &mut cpu);
}

/// What is switched by somebody who has its parts, where the page that the thread needs is
/// registered.
struct Borrowed<'a, 'b, K> {
    pmu: &'a mut ThreadPmu,
    page: &'a ThreadPage,
    cpu: &'a mut Cpu<'b, K>,
}

impl<K: Kernel> Switch for Borrowed<'_, '_, K> {
    type Kernel = K;
    type Told = Option<Signal>;

    #[inline(always)]
    fn parts(&mut self) -> (&mut ThreadPmu, &ThreadPage, Cpu<'_, K>) {
        let Cpu { number, page, ref mut vcpu, stats, kernel } = *self.cpu;
        (self.pmu, self.page, Cpu { number, page, vcpu, stats, kernel })
    }

    fn show_page(&mut self) {}

    fn told(signal: Option<Signal>) -> Option<Signal> {
        signal
    }
}

impl ThreadPmu {
    /// [`switch_in`] of a thread whose page, if it needs one, is registered.
    pub fn switch_in<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut Cpu<'_, K>,
    ) -> Option<Signal> {
        switch_in(Borrowed { pmu: self, page, cpu })
    }

    /// [`switch_out`].
    pub fn switch_out<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut Cpu<'_, K>) {
        switch_out(Borrowed { pmu: self, page, cpu });
    }

    /// How many counters there are, if nothing has to be loaded and nothing told when the thread is
    /// switched in; else 0.
    #[inline(always)]
    fn plainly_in<K: Kernel>(&self, cpu: &Cpu<'_, K>) -> usize {
        // Neither samples nor has failed what was found loaded.
        let plain = self.running == Running::Suspended && self.loaded == Some(cpu.now());
        if plain { self.order.len() } else { 0 }
    }

    /// The same when it is switched out.
    #[inline(always)]
    fn plainly_out(&self) -> usize {
        let plain = self.running == Running::Active && self.loaded.is_some();
        if plain { self.order.len() } else { 0 }
    }

    /// [`switch_in`](Self::switch_in) of a thread with [so many](Self::plainly_in) counters; false,
    /// and nothing is done, if it is disturbed.
    #[inline(always)]
    fn begin<const N: usize, K: Kernel>(&mut self, page: &ThreadPage, cpu: &Cpu<'_, K>) -> bool {
        let Some(slots) = self.order.first::<N>() else { return false };
        let Some((tsc, counts)) = cpu.try_sample(slots) else { return false };
        cpu.stats.switches_in.add(1);
        self.switches = self.switches.wrapping_add(1);
        self.running = Running::Active;
        self.start.tsc = tsc;
        for (start, count) in self.start.counter.iter_mut().zip(counts) {
            *start = count;
        }
        // What is loaded still was found so when the thread was resumed last: on the same vCPU.
        self.publisher.resumed(page, None, tsc, &counts, false);
        self.publisher.switched(page, self.switches);
        true
    }

    /// [`switch_out`](Self::switch_out) of a thread with [so many](Self::plainly_out) counters,
    /// likewise.
    #[inline(always)]
    fn end<const N: usize, K: Kernel>(&mut self, page: &ThreadPage, cpu: &Cpu<'_, K>) -> bool {
        let Some(slots) = self.order.first::<N>() else { return false };
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
