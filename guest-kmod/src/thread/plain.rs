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

impl ThreadPmu {
    /// [`switch_in`](Self::switch_in), if there is nothing to load and nothing to tell; else false.
    #[inline(always)]
    pub fn switch_in_plainly<K: Kernel>(&mut self, page: &ThreadPage, cpu: &Cpu<'_, K>) -> bool {
        // Neither samples nor has failed what was found loaded.
        if self.running != Running::Suspended || self.loaded != Some(cpu.now()) {
            return false;
        }
        match self.order.len() {
            1 => self.begin::<1, K>(page, cpu),
            2 => self.begin::<2, K>(page, cpu),
            3 => self.begin::<3, K>(page, cpu),
            4 => self.begin::<4, K>(page, cpu),
            _ => false,
        }
    }

    /// [`switch_out`](Self::switch_out), likewise.
    #[inline(always)]
    pub fn switch_out_plainly<K: Kernel>(&mut self, page: &ThreadPage, cpu: &Cpu<'_, K>) -> bool {
        if self.running != Running::Active || self.loaded.is_none() {
            return false;
        }
        match self.order.len() {
            1 => self.end::<1, K>(page, cpu),
            2 => self.end::<2, K>(page, cpu),
            3 => self.end::<3, K>(page, cpu),
            4 => self.end::<4, K>(page, cpu),
            _ => false,
        }
    }

    #[inline(always)]
    fn begin<const N: usize, K: Kernel>(&mut self, page: &ThreadPage, cpu: &Cpu<'_, K>) -> bool {
        let Some(slots) = self.order.slots().first_chunk::<N>() else { return false };
        let Some((tsc, counts)) = cpu.try_sample(slots) else { return false };
        cpu.stats.switches_in.add(1);
        self.switches = self.switches.wrapping_add(1);
        self.running = Running::Active;
        self.start.tsc = tsc;
        for (start, count) in self.start.counter.iter_mut().zip(counts) {
            *start = count;
        }
        self.publisher.resumed(page, cpu.number, N, &self.start, false);
        self.publisher.switched(page, self.switches, self.migrations);
        true
    }

    #[inline(always)]
    fn end<const N: usize, K: Kernel>(&mut self, page: &ThreadPage, cpu: &Cpu<'_, K>) -> bool {
        let Some(slots) = self.order.slots().first_chunk::<N>() else { return false };
        let Some((tsc, counts)) = cpu.try_sample(slots) else { return false };
        cpu.stats.switches_out.add(1);
        self.running = Running::Suspended;
        if self.tsc {
            self.sums.tsc = log_thread(self.sums.tsc, self.start.tsc, tsc);
        }
        let intervals = self.start.counter.iter().zip(counts);
        for (sum, (start, count)) in self.sums.counter.iter_mut().zip(intervals) {
            *sum = log_thread(*sum, *start, count);
        }
        self.publisher.suspended(page, N, &self.sums);
        true
    }
}
