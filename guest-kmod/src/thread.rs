// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Operates the counters of one thread.
//!
//! Their thread operates them, with interrupts disabled, in an ioctl or while it is being switched;
//! a tracer may do so while the thread is asleep. All others only read the thread's page.

use shared_abi::count::log_thread;
use shared_abi::ioctl::{Control, Sums};
use shared_abi::read::VcpuSample;
use shared_abi::ring::RingRequest;
use shared_abi::slot::bits_of;
use shared_abi::{Config, Errno, PhysSlot, PmuCaps, ThreadPage};

use crate::cost;
use crate::hal::Kernel;
use crate::ioctl::{Order, Request};
use crate::overflow::{Overflows, Signal};
use crate::publish::Publisher;
use crate::ring::Ring;
use crate::surplus::Surplus;
use crate::vcpu::{Counting, Loaded, ThisVcpu};

mod plain;

pub use plain::{Switch, switch_in, switch_in_measured, switch_out};

/// The state of the counters.
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
    /// The reason for which some time of the thread was not counted. From then on readers get no
    /// numbers, until a control starts the counters anew.
    failure: Option<Errno>,
    config: Config,
    tsc: bool,
    order: Order,
    /// `Sum_thread`.
    sums: Sums,
    /// `Start*_thread`.
    start: VcpuSample,
    /// The sample of the last suspension. It is kept here so that no switch has to clear one.
    end: VcpuSample,
    overflows: Overflows,
    surplus: Surplus,
    has_ring: bool,
    /// The state of the vCPU on which its configuration was found loaded, if it does not sample.
    loaded: Option<Loaded>,
    vcpu: Option<u32>,
    switches: u64,
    migrations: u64,
    publisher: Publisher,
    /// A counter of all instructions, if there is one.
    cost_slot: Option<PhysSlot>,
}

impl ThreadPmu {
    /// Makes the stopped counters of thread `tid`, published in its zeroed page.
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
            end: VcpuSample::default(),
            overflows: Overflows::NONE,
            surplus: Surplus::default(),
            has_ring: false,
            loaded: None,
            vcpu: None,
            switches: 0,
            migrations: 0,
            publisher,
            cost_slot: None,
        }
    }

    /// Does [`switch_in`](Self::switch_in) where [`resume_plainly`](Self::resume_plainly) does not
    /// suffice.
    #[inline(always)]
    fn switch_in_otherwise<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut ThisVcpu<'_, K>,
    ) -> Option<Signal> {
        if self.running != Running::Suspended {
            return None;
        }
        cpu.stats.switches_in.add(1);
        self.switches = self.switches.wrapping_add(1);
        if self.vcpu.is_some_and(|vcpu| vcpu != cpu.number) {
            cpu.stats.migrations.add(1);
            self.migrations = self.migrations.wrapping_add(1);
            self.publisher.migrated(page, self.migrations);
        }
        let signal = self.overflows.report();
        if signal.is_some() {
            cpu.stats.overflows_pending.add(1);
        }
        self.resume(page, cpu);
        self.publisher.switched(page, self.switches);
        signal
    }

    /// Does [`switch_out`](Self::switch_out) where [`suspend_plainly`](Self::suspend_plainly) does
    /// not suffice.
    #[inline(always)]
    fn switch_out_otherwise<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut ThisVcpu<'_, K>) {
        if self.running != Running::Active {
            return;
        }
        cpu.stats.switches_out.add(1);
        self.suspend(page, cpu);
    }

    /// Does [`switch_in`](Self::switch_in), and counts what it costs.
    pub fn switch_in_measured<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut ThisVcpu<'_, K>,
    ) -> Option<Signal> {
        let probe = cost::Probe::start(self.cost_slot, cpu);
        let signal = self.switch_in(page, cpu);
        if let (Running::Active, Some(instructions)) = (self.running, probe.finish(cpu)) {
            cpu.stats.switch_in_calls.add(1);
            cpu.stats.switch_in_instructions.add(instructions);
        }
        signal
    }

    /// Handles the virtual interrupt of an overflow that came while the thread executes on `cpu`.
    /// Returns what to report to the thread, or nothing if the overflow was not its own. Unless the
    /// report is by records, the thread's counters are paused then.
    ///
    /// An interrupt that no count confirms may still have used up the armed distance: the kernel's
    /// own events between a load and the thread's resumption bring a counter that counts them to
    /// its overflow before the thread has had its period. So every interrupt arms anew.
    pub fn interrupt<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut ThisVcpu<'_, K>,
    ) -> Option<Signal> {
        if self.running != Running::Active || self.overflows.paused() || !self.overflows.any() {
            return None;
        }
        let probe = cost::Probe::start(self.cost_slot, cpu);
        self.suspend(page, cpu);
        let signal = self.overflows.report();
        cpu.stats.overflows.add(u64::from(signal.is_some()));
        self.resume(page, cpu);
        if let (Some(_), Some(instructions)) = (signal, probe.finish(cpu)) {
            cpu.stats.interrupt_calls.add(1);
            cpu.stats.interrupt_instructions.add(instructions);
        }
        signal
    }

    /// Subtracts the interrupt or the exception by which the thread has left user mode, because the
    /// CPU has counted it as an instruction; see [`surplus`](crate::surplus). Returns true if this
    /// call has subtracted it. It returns false if an earlier call has, or if there is nothing to
    /// subtract.
    ///
    /// `is_counted` is false if the thread has left user mode by an instruction, which the CPU
    /// counts once. From then on, nothing is subtracted until the thread has executed in user mode
    /// again.
    ///
    /// This adds one to the starts of the counters. It does not change the sums, because other
    /// threads read the sums alone. A start does not exceed its counter, because the counter has
    /// counted the interrupt. If the counter samples, its overflow comes one instruction early for
    /// each interrupt of the period. The count then shows that the period has not ended, and the
    /// counter is armed for the rest; see [`interrupt`](Self::interrupt).
    pub fn subtract_interrupt<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &ThisVcpu<'_, K>,
        is_counted: bool,
    ) -> bool {
        if self.running != Running::Active {
            return false;
        }
        let Some(first) = self.surplus.first() else { return false };
        let Some(slot) = live(&self.order, &self.overflows).get(first..=first) else {
            return false;
        };
        // If the counters cannot be read, the next suspension finds that out, too.
        if cpu.sample(slot, &mut self.end).is_err() {
            return false;
        }
        let (sum, start) = (self.sums.counter.get(first), self.start.counter.get(first));
        let (Some(&sum), Some(&start), [now, ..]) = (sum, start, self.end.counter) else {
            return false;
        };
        if !self.surplus.note(log_thread(sum, start, now), is_counted) {
            return false;
        }
        for index in bits_of(self.surplus.counters()) {
            if let Some(start) = self.start.counter.get_mut(index as usize) {
                *start = start.wrapping_add(1);
            }
        }
        self.publisher.subtracted(page, self.surplus.counters(), &self.start.counter);
        true
    }

    /// Returns the configuration that the thread needs while it executes. perf adds its events
    /// before the configuration of a thread that is switched in is loaded, and must leave room for
    /// it.
    pub fn needs(&self) -> Option<&Config> {
        let counts = self.running != Running::Stopped && self.failure.is_none();
        (counts && !self.overflows.paused()).then_some(&self.config)
    }

    /// Loads everything again, since perf's events beside the thread's counters have changed.
    /// Returns whether the thread was found to have overflowed meanwhile, see
    /// [`report`](Self::report).
    pub fn load_again<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut ThisVcpu<'_, K>) -> bool {
        if self.running != Running::Active {
            return false;
        }
        self.suspend(page, cpu);
        cpu.forget_loaded();
        self.resume(page, cpu);
        self.has_report()
    }

    /// Returns whether [`report`](Self::report) finds anything to report.
    #[inline(always)]
    pub fn has_report(&self) -> bool {
        self.overflows.pending()
    }

    /// Returns what to report to the thread at the end of an ioctl, if an overflow that was not
    /// reported yet was noticed there, or before its counters were stopped.
    pub fn report<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut ThisVcpu<'_, K>,
    ) -> Option<Signal> {
        if self.overflows.recorded() {
            self.overflows.report()
        } else if self.overflows.pending() {
            self.interrupt(page, cpu)
        } else {
            None
        }
    }

    /// Executes `IOC_RESUME` for the thread itself: counters that an overflow has paused continue.
    ///
    /// # Errors
    ///
    /// `PERM` if they are not paused.
    pub fn go_on<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut ThisVcpu<'_, K>,
    ) -> Result<(), Errno> {
        if !self.overflows.paused() {
            return Err(Errno::PERM);
        }
        let probe = cost::Probe::start(self.cost_slot, cpu);
        self.suspend(page, cpu);
        self.overflows.go_on();
        self.resume(page, cpu);
        if let Some(instructions) = probe.finish(cpu) {
            cpu.stats.go_on_calls.add(1);
            cpu.stats.go_on_instructions.add(instructions);
        }
        Ok(())
    }

    /// Notes that an overflow could not be reported to the thread: its counters continue, and the
    /// next overflow is reported.
    pub fn signal_lost<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut ThisVcpu<'_, K>) {
        cpu.stats.signals_lost.add(1);
        // The counters are paused, unless the thread has stopped them meanwhile.
        let _ = self.go_on(page, cpu);
    }

    /// Does [`go_on`](Self::go_on) for the tracer of a thread that is asleep.
    ///
    /// # Errors
    ///
    /// `PERM` if they are not paused.
    pub fn go_on_asleep(&mut self) -> Result<(), Errno> {
        if self.overflows.go_on() { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Does what [`switch_out`](Self::switch_out) does, and counts what that costs.
    pub fn switch_out_measured<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut ThisVcpu<'_, K>) {
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

    /// Serves `IOC_RING` by the thread itself.
    ///
    /// # Errors
    ///
    /// `BUSY` if the thread counts; those of [`Ring::begin`].
    pub fn begin_ring(&mut self, ring: &Ring, request: &RingRequest) -> Result<(), Errno> {
        if self.counts() {
            return Err(Errno::BUSY);
        }
        ring.begin(request)?;
        self.has_ring = true;
        Ok(())
    }

    /// Returns what counter `index` and the TSC had counted when an overflow was last noticed.
    pub fn counted(&self, index: usize) -> (u64, u64) {
        (self.sums.counter.get(index).copied().unwrap_or(0), self.sums.tsc)
    }

    /// Returns whether anything is to be counted.
    pub fn counts(&self) -> bool {
        self.running != Running::Stopped
    }

    /// Returns whether its user's page has to be registered where the thread executes, after a
    /// request of the thread itself or of its tracer, while it is asleep. `before` says whether it
    /// had to be before.
    pub fn needs_page(&self, is_asleep: bool, before: bool) -> bool {
        // A thread that is asleep may be in the middle of a read, which needs the page.
        self.counts() || is_asleep && before
    }

    /// Serves `IOC_CONTROL` by the thread itself.
    ///
    /// # Errors
    ///
    /// Those of the table in [`shared_abi::ioctl`]; the counters continue as before then. If the
    /// counters have failed and some of their sums are to be preserved, the reason of the failure.
    pub fn control<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut ThisVcpu<'_, K>,
        counting: &Counting,
        caps: &PmuCaps,
        control: &Control,
    ) -> Result<(), Errno> {
        // Judged where it is made: it is large, and each copy of it would be on the stack below.
        let request = Request::new(caps, control);
        let request = self.feasible(&request)?;
        if !request.counts() {
            self.stop(page, cpu, counting);
            return Ok(());
        }
        // The sums are folded before the load, because the load ends the old configuration.
        self.suspend(page, cpu);
        self.check_kept(request)?;
        let loaded = cpu.load(&request.config);
        if loaded.is_ok() {
            self.start_anew(page, counting, request);
        }
        self.resume(page, cpu);
        loaded
    }

    /// Serves `IOC_CONTROL` by the tracer of a thread that is asleep. The configuration is loaded
    /// when the thread is switched in. If the hypervisor refuses it then, readers get only the
    /// error.
    ///
    /// # Errors
    ///
    /// Those of [`control`](Self::control), except the hypervisor's.
    #[inline(never)]
    pub fn control_asleep(
        &mut self,
        page: &ThreadPage,
        counting: &Counting,
        caps: &PmuCaps,
        control: &Control,
    ) -> Result<(), Errno> {
        // Judged where it is made: it is large, and each copy of it would be on the stack below.
        let request = Request::new(caps, control);
        let request = self.feasible(&request)?;
        if !request.counts() {
            self.stop_asleep(page, counting);
            return Ok(());
        }
        self.check_kept(request)?;
        self.start_anew(page, counting, request);
        Ok(())
    }

    /// Stops counting: by an empty `IOC_CONTROL`, by `IOC_UNLINK`, and at the thread's end.
    pub fn stop<K: Kernel>(
        &mut self,
        page: &ThreadPage,
        cpu: &mut ThisVcpu<'_, K>,
        counting: &Counting,
    ) {
        self.suspend(page, cpu);
        self.stop_asleep(page, counting);
    }

    /// Does what [`stop`](Self::stop) does, for the tracer of a thread that is asleep.
    pub fn stop_asleep(&mut self, page: &ThreadPage, counting: &Counting) {
        counting.counting_changed(self.running != Running::Stopped, false);
        self.running = Running::Stopped;
        self.overflows.stop();
        self.tsc = false;
        if self.failure.is_none() {
            self.publisher.configured(page, self.order.slots(), self.tsc, &self.sums);
        }
    }

    /// Marks the thread, which executes on `cpu`, as not counted, because CPU-wide counting begins.
    /// Its readers get `BUSY` from now on.
    pub(crate) fn give_way<K: Kernel>(&mut self, page: &ThreadPage, cpu: &ThisVcpu<'_, K>) {
        self.suspend(page, cpu);
        if self.running == Running::Suspended {
            self.fail(page, Errno::BUSY);
        }
    }

    /// Serves `IOC_READ` by the thread itself: fills in its sums up to now. It advances them in
    /// place, because a copy of them would cost a tenth of the whole request.
    ///
    /// # Errors
    ///
    /// Returns why there are no numbers. `sums` may have changed then.
    pub fn read<K: Kernel>(&self, cpu: &ThisVcpu<'_, K>, sums: &mut Sums) -> Result<(), Errno> {
        if let Some(errno) = self.failure {
            return Err(errno);
        }
        *sums = self.sums;
        if self.running == Running::Active {
            let live = live(&self.order, &self.overflows);
            let mut now = VcpuSample::default();
            cpu.sample(live, &mut now)?;
            advance(sums, self.tsc, live.len(), &self.start, &now);
        }
        Ok(())
    }

    /// Loads the thread's configuration, unless it is loaded already.
    #[inline(always)]
    fn load<K: Kernel>(&mut self, cpu: &mut ThisVcpu<'_, K>) -> Result<(), Errno> {
        if cpu.is_still_loaded(self.loaded) { Ok(()) } else { self.load_anew(cpu) }
    }

    /// Loads the configuration, with each sampling counter's distance to its next overflow.
    #[inline(never)]
    fn load_anew<K: Kernel>(&mut self, cpu: &mut ThisVcpu<'_, K>) -> Result<(), Errno> {
        self.loaded = None;
        if self.overflows.paused() {
            return cpu.load_beside(&Config::NONE);
        }
        if !self.overflows.any() {
            cpu.load_beside(&self.config)?;
            self.loaded = Some(cpu.loaded());
            return Ok(());
        }
        // This changes the periods in place: nobody else uses them, and a copy would be on the
        // stack.
        for (index, &slot) in self.order.slots().iter().enumerate() {
            let evntsel = self.config.evntsel(slot);
            if let Some(events) = self.overflows.armed(index, evntsel, &self.sums) {
                self.config.set_period(slot, events);
            }
        }
        // Nothing is joined with a configuration that samples.
        cpu.load(&self.config)
    }

    /// Returns the valid request in a control, if this thread can carry it out.
    fn feasible<'a>(&self, asked: &'a Result<Request, Errno>) -> Result<&'a Request, Errno> {
        match asked {
            Ok(request) if request.overflows.recorded() && !self.has_ring => Err(Errno::NXIO),
            Ok(request) => Ok(request),
            Err(errno) => Err(*errno),
        }
    }

    /// Sums of counters that have failed cannot be kept.
    fn check_kept(&self, request: &Request) -> Result<(), Errno> {
        let keeps = request.preserve != 0 || request.keep_tsc;
        match self.failure {
            Some(errno) if keeps => Err(errno),
            _ => Ok(()),
        }
    }

    /// Begins the periods of the counters that `request` asks for. The sums were `stopped` when
    /// they were set last.
    fn begin_periods(&mut self, request: &Request, stopped: &Sums) {
        let mut before = core::mem::replace(&mut self.overflows, request.overflows);
        before.stop();
        if request.keep_period && self.failure.is_none() && self.counts_the_same(request, &before) {
            self.overflows.go_on_from(&before, stopped, &self.sums);
        } else {
            self.overflows.begin(&self.sums);
        }
    }

    /// Returns whether `request` asks for the counters that were set last, which sampled as
    /// `before`.
    fn counts_the_same(&self, request: &Request, before: &Overflows) -> bool {
        let (one, two) = (self.order.slots(), request.order.slots());
        one.len() == two.len()
            && one.iter().zip(two).all(|(one, two)| one.index() == two.index())
            && self.config.includes(&request.config)
            && request.overflows.like(before)
    }

    fn start_anew(&mut self, page: &ThreadPage, counting: &Counting, request: &Request) {
        counting.counting_changed(self.running != Running::Stopped, true);
        let stopped = self.sums;
        let had_tsc = self.tsc && self.failure.is_none();
        if !(had_tsc && request.tsc || request.keep_tsc) {
            self.sums.tsc = 0;
        }
        for (index, sum) in self.sums.counter.iter_mut().enumerate() {
            if request.preserve & (1 << index) == 0 {
                *sum = 0;
            }
        }
        self.begin_periods(request, &stopped);
        self.failure = None;
        self.order = request.order;
        self.config = request.config;
        self.loaded = None;
        self.tsc = request.tsc;
        self.cost_slot = cost::instruction_counter(&request.config);
        self.surplus = Surplus::begin(&request.config, &request.order, &self.sums.counter);
        if request.preserve == 0 {
            self.publisher.nothing_subtracted(page);
        }
        self.running = Running::Suspended;
        self.publisher.configured(page, self.order.slots(), self.tsc, &self.sums);
    }

    #[inline(always)]
    fn resume<K: Kernel>(&mut self, page: &ThreadPage, cpu: &mut ThisVcpu<'_, K>) {
        if self.running != Running::Suspended || self.failure.is_some() {
            return;
        }
        // `Start*` is sampled after the hypercall, so that no thread counts the hypercall's events.
        let started = self.load(cpu).and_then(|()| self.sample_start(cpu));
        match started {
            Ok(()) => {
                self.vcpu = Some(cpu.number);
                self.running = Running::Active;
                let paused = self.overflows.paused();
                let live = live(&self.order, &self.overflows).len();
                let counts = self.start.counter.get(..live).unwrap_or_default();
                let vcpu = Some(cpu.number);
                self.publisher.resumed(page, vcpu, self.start.tsc, counts, paused);
            }
            // A vCPU without a page is going offline. The kernel moves the thread away before it
            // executes anything of its own, so nothing is lost.
            Err(Errno::NXIO) => self.publisher.failed(page, Errno::NXIO),
            Err(errno) => self.fail(page, errno),
        }
    }

    #[inline(always)]
    fn sample_start<K: Kernel>(&mut self, cpu: &ThisVcpu<'_, K>) -> Result<(), Errno> {
        cpu.sample(live(&self.order, &self.overflows), &mut self.start)
    }

    #[inline(always)]
    fn suspend<K: Kernel>(&mut self, page: &ThreadPage, cpu: &ThisVcpu<'_, K>) {
        if self.running != Running::Active {
            return;
        }
        self.running = Running::Suspended;
        let live = live(&self.order, &self.overflows);
        match cpu.sample(live, &mut self.end) {
            Ok(()) => {
                advance(&mut self.sums, self.tsc, live.len(), &self.start, &self.end);
                if self.overflows.any() {
                    cpu.stats.overflows_merged.add(self.overflows.notice(&self.sums));
                }
                let counts = self.sums.counter.get(..self.order.len()).unwrap_or_default();
                self.publisher.suspended(page, self.sums.tsc, counts);
            }
            Err(errno) => self.fail(page, errno),
        }
    }

    fn fail(&mut self, page: &ThreadPage, errno: Errno) {
        self.loaded = None;
        self.failure = Some(errno);
        self.publisher.failed(page, errno);
    }
}

/// Counters that count now.
#[inline(always)]
fn live<'a>(order: &'a Order, overflows: &Overflows) -> &'a [PhysSlot] {
    if overflows.paused() { &[] } else { order.slots() }
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
