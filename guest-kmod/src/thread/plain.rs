// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Switches of threads that only count, whose counters are loaded still: what nearly every switch
//! is.
//!
//! What is done is what [`ThreadPmu::switch_in`] and [`ThreadPmu::switch_out`] do, to nobody but
//! the thread and its page, and for a known number of counters, so that there is no loop.  A switch
//! that finds anything else is left to them, untouched.

use shared_abi::ThreadPage;
use shared_abi::count::log_thread;

use super::{Running, ThreadPmu};
use crate::hal::Kernel;
use crate::vcpu::Cpu;

/// The value of an expression of a constant, which is the value of a number of counters that has
/// code of its own; of another expression for all other numbers.
#[macro_export]
macro_rules! for_number {
    ($number:expr, $n:ident => $one:expr, else $other:expr) => {
        match $number {
            1 => {
                const $n: usize = 1;
                $one
            }
            2 => {
                const $n: usize = 2;
                $one
            }
            3 => {
                const $n: usize = 3;
                $one
            }
            4 => {
                const $n: usize = 4;
                $one
            }
            _ => $other,
        }
    };
}

impl ThreadPmu {
    /// How many counters there are, if nothing has to be loaded and nothing told when the thread is
    /// switched in; else 0.
    #[inline(always)]
    pub fn plainly_in<K: Kernel>(&self, cpu: &Cpu<'_, K>) -> usize {
        // Neither samples nor has failed what was found loaded.
        let plain = self.running == Running::Suspended && self.loaded == Some(cpu.now());
        if plain { self.order.len() } else { 0 }
    }

    /// The same when it is switched out.
    #[inline(always)]
    pub fn plainly_out(&self) -> usize {
        let plain = self.running == Running::Active && self.loaded.is_some();
        if plain { self.order.len() } else { 0 }
    }

    /// [`switch_in`](Self::switch_in) of a thread with [so many](Self::plainly_in) counters; false,
    /// and nothing is done, if it is disturbed.
    #[inline(always)]
    pub fn begin<const N: usize, K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &Cpu<'_, K>,
    ) -> bool {
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
    pub fn end<const N: usize, K: Kernel>(&mut self, page: &ThreadPage, cpu: &Cpu<'_, K>) -> bool {
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
