// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The counters of one thread.
//!
//! Only their thread operates them, with interrupts disabled: it calls in by ioctl, or is being
//! switched.  Everybody else reads the thread's page.

use shared_abi::count::log_thread;
use shared_abi::ioctl::{Control, Sums};
use shared_abi::read::VcpuSample;
use shared_abi::{Config, Errno, PhysSlot, PmuCaps, ThreadPage, planted};

use crate::cost;
use crate::hal::Kernel;
use crate::ioctl::{Order, Request};
use crate::publish::Publisher;
use crate::vcpu::{Counting, Cpu};

/// What the counters do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    /// Nothing is to be counted.
    Stopped,
    /// The thread is switched out, or is in the middle of an ioctl.
    Suspended,
    /// Sums grow with the vCPU's counters.
    Active,
}

/// The counters of one thread.
#[derive(Debug)]
pub struct ThreadPmu {
    running: Running,
    /// Why some time of the thread was not counted.  From then on there are no numbers, until a
    /// control starts anew.
    failure: Option<Errno>,
    config: Config,
    tsc: bool,
    order: Order,
    /// `Sum_thread`.
    sums: Sums,
    /// `Start*_thread`.
    start: VcpuSample,
    vcpu: Option<u32>,
    switches: u64,
    migrations: u64,
    publisher: Publisher,
    /// A counter of all instructions, if there is one.
    cost_slot: Option<PhysSlot>,
}

impl ThreadPmu {
    /// The stopped counters of thread `tid`, published in its zeroed page.
    pub fn new(page: &ThreadPage, tid: u32) -> Self {
        let mut publisher = Publisher::default();
        publisher.create(page, tid);
        Self {
            running: Running::Stopped,
            failure: None,
            config: Config::default(),
            tsc: false,
            order: Order::EMPTY,
            sums: Sums::default(),
            start: VcpuSample::default(),
            vcpu: None,
            switches: 0,
            migrations: 0,
            publisher,
            cost_slot: None,
        }
    }

    /// The thread is about to execute on `cpu`.
    #[inline(always)]
    pub fn switch_in<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut Cpu<'_, K>) {
        if self.running != Running::Suspended {
            return;
        }
        cpu.stats.switches_in.add(1);
        self.switches = self.switches.wrapping_add(1);
        if self.vcpu.is_some_and(|vcpu| vcpu != cpu.number) {
            cpu.stats.migrations.add(1);
            self.migrations = self.migrations.wrapping_add(1);
        }
        self.resume(page, cpu);
        self.publisher.switched(page, self.switches, self.migrations);
    }

    /// The thread has stopped executing on `cpu`.
    #[inline(always)]
    pub fn switch_out<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut Cpu<'_, K>) {
        if self.running != Running::Active {
            return;
        }
        cpu.stats.switches_out.add(1);
        self.suspend(page, cpu);
    }

    /// [`switch_in`](Self::switch_in), counting what it costs.
    pub fn switch_in_measured<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut Cpu<'_, K>) {
        let probe = cost::Probe::start(self.cost_slot, cpu);
        self.switch_in(page, cpu);
        if let (Running::Active, Some(instructions)) = (self.running, probe.finish(cpu)) {
            cpu.stats.switch_in_calls.add(1);
            cpu.stats.switch_in_instructions.add(instructions);
        }
    }

    /// [`switch_out`](Self::switch_out), counting what it costs.
    pub fn switch_out_measured<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut Cpu<'_, K>) {
        if self.running != Running::Active {
            return;
        }
        let probe = cost::Probe::start(self.cost_slot, cpu);
        self.switch_out(page, cpu);
        if let Some(instructions) = probe.finish(cpu) {
            cpu.stats.switch_out_calls.add(1);
            cpu.stats.switch_out_instructions.add(instructions);
        }
    }

    /// `IOC_CONTROL` by the thread itself.
    ///
    /// # Errors
    ///
    /// See the table in [`shared_abi::ioctl`]; the counters go on as before then.  If they have
    /// failed and some of their sums are to be preserved: the reason of the failure.
    pub fn control<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut Cpu<'_, K>,
        counting: &Counting,
        caps: &PmuCaps,
        control: &Control,
    ) -> Result<(), Errno> {
        let request = Request::new(caps, control)?;
        if !request.counts() {
            self.stop(page, cpu, counting);
            return Ok(());
        }
        // Sums are folded before the load, which ends the old configuration.
        self.suspend(page, cpu);
        if let (Some(errno), true) = (self.failure, request.preserve != 0) {
            return Err(errno);
        }
        let loaded = cpu.load(&request.config);
        if loaded.is_ok() {
            counting.moved(self.running != Running::Stopped, true);
            self.start_anew(page, &request);
        }
        self.resume(page, cpu);
        loaded
    }

    /// Stops counting: by an empty `IOC_CONTROL`, by `IOC_UNLINK`, and at the thread's end.
    pub fn stop<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut Cpu<'_, K>,
        counting: &Counting,
    ) {
        self.suspend(page, cpu);
        counting.moved(self.running != Running::Stopped, false);
        self.running = Running::Stopped;
        self.tsc = false;
        if self.failure.is_none() {
            self.publisher.configured(page, self.order.slots(), self.tsc, &self.sums);
        }
    }

    /// `IOC_READ` by the thread itself: its sums up to now.
    ///
    /// # Errors
    ///
    /// Why there are no numbers.
    pub fn read<K: Kernel>(&self, cpu: &Cpu<'_, K>) -> Result<Sums, Errno> {
        match (self.failure, self.running) {
            (Some(errno), _) => Err(errno),
            (None, Running::Active) => {
                let now = cpu.sample(self.order.slots())?;
                let mut sums = self.sums;
                advance(&mut sums, self.tsc, self.order.len(), &self.start, &now);
                Ok(sums)
            }
            (None, _) => Ok(self.sums),
        }
    }

    fn start_anew(&mut self, page: &ThreadPage, request: &Request) {
        let had_tsc = self.tsc && self.failure.is_none();
        if !(had_tsc && request.tsc) {
            self.sums.tsc = 0;
        }
        for (index, sum) in self.sums.counter.iter_mut().enumerate() {
            if planted!(PreserveAllOrNone, request.preserve & (1 << index), request.preserve) == 0 {
                *sum = 0;
            }
        }
        self.failure = None;
        self.order = planted!(
            OrderOfFirst,
            request.order,
            if request.config == self.config { self.order } else { request.order }
        );
        self.config = request.config;
        self.tsc = request.tsc;
        self.cost_slot = cost::instruction_counter(&request.config);
        self.running = Running::Suspended;
        self.publisher.configured(page, self.order.slots(), self.tsc, &self.sums);
    }

    #[inline(always)]
    fn resume<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut Cpu<'_, K>) {
        if self.running != Running::Suspended || self.failure.is_some() {
            return;
        }
        // Start* comes after the hypercall, whose events are nobody's.
        let start = planted!(
            StartBeforeHypercall,
            cpu.load(&self.config).and_then(|()| cpu.sample(self.order.slots())),
            cpu.sample(self.order.slots()).and_then(|now| cpu.load(&self.config).map(|()| now))
        );
        match start {
            Ok(start) => {
                self.start = start;
                self.vcpu = Some(cpu.number);
                self.running = Running::Active;
                self.publisher.resumed(page, cpu.number, self.order.len(), &start);
            }
            // A vCPU without a page is going offline.  The kernel moves the thread away before it
            // executes anything of its own, so nothing is lost.
            Err(Errno::NXIO) => self.publisher.failed(page, Errno::NXIO),
            Err(errno) => self.fail(page, errno),
        }
    }

    #[inline(always)]
    fn suspend<K: Kernel>(&mut self, page: &ThreadPage, cpu: &Cpu<'_, K>) {
        if self.running != Running::Active {
            return;
        }
        self.running = Running::Suspended;
        match cpu.sample(self.order.slots()) {
            Ok(now) => {
                advance(&mut self.sums, self.tsc, self.order.len(), &self.start, &now);
                self.publisher.suspended(page, self.order.len(), &self.sums);
            }
            Err(errno) => self.fail(page, errno),
        }
    }

    fn fail(&mut self, page: &ThreadPage, errno: Errno) {
        self.failure = planted!(FailureForgotten, Some(errno), None);
        self.publisher.failed(page, errno);
    }
}

/// Adds what was counted between two samples to the sums: they become `Log_thread`.
#[inline(always)]
fn advance(sums: &mut Sums, tsc: bool, used: usize, start: &VcpuSample, now: &VcpuSample) {
    if tsc {
        sums.tsc = log_thread(sums.tsc, start.tsc, now.tsc);
    }
    let intervals = start.counter.iter().zip(&now.counter);
    for (sum, (start, now)) in sums.counter.iter_mut().zip(intervals).take(used) {
        *sum = log_thread(*sum, *start, *now);
    }
}

#[cfg(test)]
mod tests;
