// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Drives one physical CPU, and knows what its selectors hold, and which owner's events its
//! counters hold.

use shared_abi::PhysSlot;
use shared_abi::arch::EVNTSEL_EN;
use shared_abi::slot::slots_of;

use crate::account::Accounting;
use crate::arch::{
    self, EVNTSEL_OWN_INSTRUCTIONS, Filter, Identity, PreciseRecord, Readable, Refusal, Selectors,
};
use crate::driver::Driver;
use crate::hal::{Pmu, Probe};
use crate::serial::DomainSerial;
use crate::stats::{Metered, Stats};

/// The owner of the events in the counters. Only this owner may read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) domain: DomainSerial,
    /// See [`HvRegister`](shared_abi::hypercall::HvRegister).
    pub(crate) observer: u32,
}

impl Owner {
    const STRANGER: Self = Self { domain: 0, observer: 0 };
}

/// State of a physical CPU's PMU.
#[derive(Debug)]
pub struct Pcpu {
    /// What the selectors hold, or `None` while the PMU does not belong to the driver. The driver
    /// then accesses no register.
    selectors: Option<Selectors>,
    /// Slots whose selectors may hold another value than 0.
    selected: u32,
    /// What the register that enables counters held before the driver took the PMU over.
    global_ctrl: u64,
    /// Whether all counters stopped when one interrupted, before the driver took the PMU over.
    freezes: bool,
    /// Slots that are stopped, whatever their selectors say.
    stopped: u32,
    /// Slots that may have counted since they were last cleared.
    dirty: u32,
    /// The owner of all events in the dirty counters.
    owner: Owner,
    /// Whether branches are recorded at this moment.
    recording: bool,
    /// What the register that controls the recording of branches held, without the bit that
    /// records.
    branch_control: u64,
    /// Slots that may write precise records.
    precise: u32,
    /// The state of accounting on this CPU.
    pub(crate) accounting: Accounting,
    /// The statistics of the driver's work on this CPU.
    pub stats: Stats,
}

impl Pcpu {
    /// Makes the state of a CPU that the driver has not touched.
    pub const fn new() -> Self {
        Self {
            selectors: None,
            selected: 0,
            global_ctrl: 0,
            freezes: false,
            stopped: 0,
            dirty: 0,
            owner: Owner::STRANGER,
            recording: false,
            branch_control: 0,
            precise: 0,
            accounting: Accounting::NONE,
            stats: Stats::new(),
        }
    }

    /// Returns whether the CPU's PMU belongs to the driver. Otherwise nothing counts on it.
    pub const fn counts(&self) -> bool {
        self.selectors.is_some()
    }
}

impl Default for Pcpu {
    fn default() -> Self {
        Self::new()
    }
}

/// The physical CPU that executes the code. Interrupts are disabled as long as this exists.
#[derive(Debug)]
pub struct ThisCpu<'a, P> {
    /// The state that all CPUs share.
    pub driver: &'a Driver,
    /// The CPU's own state.
    pub pcpu: &'a mut Pcpu,
    /// The CPU's PMU.
    pub pmu: &'a P,
    /// The CPU's number.
    pub number: u32,
}

impl<P: Pmu> ThisCpu<'_, P> {
    /// Takes over a CPU that comes up, for the first time or again. Its registers may hold
    /// anything.
    ///
    /// # Errors
    ///
    /// Returns how the CPU differs from the boot CPU. Nothing will count on it then.
    pub fn come_up(&mut self, identity: &Identity) -> Result<(), Refusal>
    where
        P: Probe,
    {
        self.pcpu.selectors = None;
        // This comes first, so that everything that counts on the CPU is stopped.
        let found = arch::probe(identity, self.pmu)?;
        self.driver.boot.agrees(identity)?;
        self.clear_readable()?;
        let freezes = arch::keep_counting(self.driver.registers.global.as_ref(), self.pmu)?;
        if let Some(branches) = &self.driver.registers.branches {
            self.pcpu.branch_control = branches.probe(self.pmu)?;
        }
        if let (Some(precise), Some(area)) =
            (&self.driver.registers.precise, self.pmu.record_area())
        {
            precise.probe(self.pmu, area)?;
        }
        self.pcpu.precise = 0;
        self.pcpu.recording = false;
        self.pcpu.global_ctrl = found;
        self.pcpu.freezes = freezes;
        self.take_over();
        Ok(())
    }

    /// Clears the counters that the driver does not use and guests can read.
    fn clear_readable(&self) -> Result<(), Refusal>
    where
        P: Probe,
    {
        let mut stops =
            self.driver.registers.readable.into_iter().flatten().flat_map(Readable::stops);
        match stops.find(|&register| !self.pmu.try_write_register(register, 0)) {
            Some(register) => Err(Refusal::Register(register)),
            None => Ok(()),
        }
    }

    /// Reads a counter for a vCPU that may read counters, if its guest must not execute the
    /// instruction itself. `index` is the index of the vCPU's instruction. Returns `None` if there
    /// is no such counter.
    ///
    /// While the PMU does not belong to the driver, the counters hold what the host counts. The
    /// guest counts nothing then, and reads 0.
    pub fn read_for_guest(&self, index: u32) -> Option<u64> {
        let slot = PhysSlot::from_counter_index(index)?;
        let exists = self.driver.caps.slots() & slot.bit() != 0;
        exists.then(|| match self.pcpu.counts() {
            true => self.pmu.counter(slot.counter_index()),
            false => 0,
        })
    }

    /// Gives back a CPU that goes down. Its registers get the values that they had when it came up,
    /// except that nothing counts.
    pub fn go_down(&mut self) {
        self.record(false);
        if self.pcpu.selectors.take().is_some() {
            self.stop_all();
            if let Some(global) = &self.driver.registers.global {
                self.pmu.write_register(global.ctrl, self.pcpu.global_ctrl);
            }
            if self.pcpu.freezes {
                arch::freeze_again(self.pmu);
            }
            if let Some(precise) = &self.driver.registers.precise {
                precise.give_back(self.pmu);
            }
            // From now on the counters hold what others count.
            (self.pcpu.stopped, self.pcpu.dirty) = (0, 0);
            self.pcpu.accounting = Accounting::NONE;
        }
    }

    /// Notes that a stranger executes here now, so that counters that count hold its events, too.
    pub fn run_stranger(&mut self) {
        self.pcpu.owner = Owner::STRANGER;
    }

    /// Acknowledges every overflow, so that the next one interrupts again.
    ///
    /// Some family 6 CPUs interrupt without end if the overflow is acknowledged while the counter
    /// holds 0. So the counter is set to 1. This loses no count, because no stretch of counting
    /// has begun from the counter's value.
    #[inline(always)]
    pub fn acknowledge(&self) {
        if let (Some(global), Some(held)) = (&self.driver.registers.global, &self.pcpu.selectors) {
            let status = self.pmu.read_register(global.status);
            let interrupting = |slot: &PhysSlot| held.interrupts(*slot);
            for slot in slots_of(arch::slots_of_global(status)).filter(interrupting) {
                if self.pmu.counter(slot.counter_index()) == 0 {
                    self.pmu.write_register(self.driver.registers.counter(slot), 1);
                }
            }
            self.pmu.write_register(global.acknowledge, status);
        }
    }

    /// Discards the branches that were recorded here. From the next call of
    /// [`record`](Self::record) on, the CPU records those that `filter` selects.
    ///
    /// This function is not inlined, so that vCPUs that record nothing do not save registers for
    /// it.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_records(&self, filter: Filter) {
        if let Some(branches) = &self.driver.registers.branches {
            branches.begin(self.pmu, filter);
        }
    }

    /// Starts or stops the recording of branches.
    #[inline(always)]
    pub(crate) fn record(&mut self, on: bool) {
        if self.pcpu.recording != on {
            self.pcpu.recording = on;
            self.write_recording(on);
        }
    }

    /// Starts the recording again, if it is to be on at this moment: the CPU itself stops it at
    /// each debug exception.
    pub(crate) fn go_on_recording(&self) {
        if self.pcpu.recording {
            self.write_recording(true);
        }
    }

    fn write_recording(&self, on: bool) {
        if let Some(branches) = &self.driver.registers.branches {
            branches.enable(self.pmu, self.pcpu.branch_control, on);
        }
    }

    /// Lets exactly these slots write precise records. Other ones forget that a record is due.
    #[inline(always)]
    pub(crate) fn write_records(&mut self, slots: u32) {
        if self.pcpu.precise != slots && self.pcpu.counts() {
            self.enable_records(slots);
        }
    }

    /// This function is not inlined, so that vCPUs without precise records do not save registers
    /// for it.
    #[cold]
    #[inline(never)]
    fn enable_records(&mut self, slots: u32) {
        self.pcpu.precise = slots;
        if let Some(precise) = &self.driver.registers.precise {
            precise.enable(self.pmu, slots);
        }
    }

    /// Returns the slots that may write precise records.
    #[inline(always)]
    pub(crate) const fn writing_records(&self) -> u32 {
        self.pcpu.precise
    }

    /// Calls `each` with each record that was written since the last call, and clears them.
    pub(crate) fn take_records(&self, each: impl FnMut(PreciseRecord)) {
        if let (Some(precise), Some(area)) =
            (&self.driver.registers.precise, self.pmu.record_area())
        {
            precise.take(area, each);
        }
    }

    /// Runs `entry`, whose kind is `hook` (`HOOK_*`), and adds its work to the statistics.
    pub(crate) fn enter(
        &mut self,
        hook: usize,
        entry: impl FnOnce(&mut ThisCpu<'_, Metered<'_, P>>),
    ) {
        let (metered, before) = (Metered::new(self.pmu), self.own_cost());
        entry(&mut self.metered(&metered));
        self.add_work(hook, before, &metered);
    }

    /// Returns what the counter of the driver's own cost holds now, or 0 if there is none.
    #[inline(always)]
    pub(crate) fn own_cost(&self) -> u64 {
        let cost = self.driver.cost_index().filter(|_| self.pcpu.counts());
        cost.map_or(0, |index| self.pmu.counter(index))
    }

    /// Returns this CPU with a PMU that counts the accesses to itself.
    #[inline(always)]
    pub(crate) fn metered<'a>(
        &'a mut self,
        pmu: &'a Metered<'a, P>,
    ) -> ThisCpu<'a, Metered<'a, P>> {
        ThisCpu { driver: self.driver, pcpu: self.pcpu, pmu, number: self.number }
    }

    /// Adds the work of a hook to the statistics. `before` is [`own_cost`](Self::own_cost) from
    /// before the work.
    #[inline(always)]
    pub(crate) fn add_work(&mut self, hook: usize, before: u64, metered: &Metered<'_, P>) {
        let cost = self.own_cost().wrapping_sub(before);
        self.pcpu.stats.entered(hook, cost, metered);
    }

    /// Clears the events of every other owner than `owner` from the counters. Returns whether
    /// another owner has run here, whose selectors may still be in force.
    ///
    /// A vCPU with a page can read every counter. So the caller must call this before the vCPU
    /// returns to its guest, and also [`program`](Self::program) if the result is true. This
    /// function writes one register for each counter that was in use, and only after another owner
    /// has run here.
    pub(crate) fn admit(&mut self, owner: Owner) -> bool {
        if self.pcpu.owner == owner {
            return false;
        }
        if self.pcpu.dirty != 0 {
            for slot in slots_of(self.pcpu.dirty) {
                self.pmu.write_register(self.driver.registers.counter(slot), 0);
            }
            self.pcpu.stats.residue_cleared();
            self.pcpu.dirty = self.counting();
        }
        self.pcpu.owner = owner;
        true
    }

    /// Puts every register of the PMU into a known state.
    fn take_over(&mut self) {
        let Driver { caps, registers, cost, .. } = self.driver;
        self.stop_all();
        if let Some(records) = registers.record_enable {
            self.pmu.write_register(records, 0);
        }
        if let Some(evntsel) = cost.and_then(|slot| registers.evntsel(slot)) {
            self.pmu.write_register(evntsel, EVNTSEL_OWN_INSTRUCTIONS);
        }
        if let Some(global) = &registers.global {
            self.pmu.write_register(global.ctrl, self.driver.enable_except(0));
        }
        self.pcpu.stopped = 0;
        self.pcpu.selectors = Some(Selectors::NONE);
        self.pcpu.dirty = caps.slots();
        self.pcpu.owner = Owner::STRANGER;
    }

    /// Clears every selector, those for guests and those of the driver and of the host.
    fn stop_all(&self) {
        let Driver { caps, registers, cost, profile, .. } = self.driver;
        let accounts = self.driver.account_slots();
        for slot in slots_of(caps.slots()).chain(*cost).chain(*profile).chain(accounts) {
            if let Some(evntsel) = registers.evntsel(slot) {
                self.pmu.write_register(evntsel, 0);
            }
        }
        if let Some(fixed) = &registers.fixed {
            self.pmu.write_register(fixed.ctrl, 0);
        }
    }

    /// Programs the selectors, in which only those of `slots` are not 0, and then calls `preset`,
    /// which writes the counters that interrupt. Only registers that hold another value are
    /// written.
    pub(crate) fn program(&mut self, wanted: &Selectors, slots: u32, preset: impl FnOnce(&Self)) {
        let Some(held) = &mut self.pcpu.selectors else { return };
        let registers = &self.driver.registers;
        let mut changed = false;
        // All other selectors hold 0, and keep it.
        for slot in slots_of(self.pcpu.selected | slots) {
            let (held, wanted) =
                (held.evntsel.get_mut(slot.index()), wanted.evntsel.get(slot.index()));
            let (Some(held), Some(&wanted)) = (held, wanted) else { continue };
            let stale = *held != wanted;
            if stale && let Some(register) = registers.evntsel(slot) {
                self.pmu.write_register(register, wanted);
                *held = wanted;
                changed = true;
                if registers.global.is_none() {
                    self.pcpu.stopped &= !slot.bit();
                }
            }
        }
        self.pcpu.selected = slots;
        if let Some(fixed) = &registers.fixed
            && held.fixed_ctrl != wanted.fixed_ctrl
        {
            self.pmu.write_register(fixed.ctrl, wanted.fixed_ctrl);
            held.fixed_ctrl = wanted.fixed_ctrl;
            changed = true;
        }
        preset(self);
        if changed {
            self.pcpu.dirty |= self.counting();
            self.forget_overflows(wanted.interrupting());
        }
    }

    /// Acknowledges overflows of these slots from before they interrupt. A counter that has
    /// wrapped has set its status bit, and the set bit would suppress the interrupt of its next
    /// overflow.
    fn forget_overflows(&self, slots: u32) {
        if let Some(global) = &self.driver.registers.global
            && slots != 0
        {
            let bits = arch::global_bits(slots & self.driver.caps.slots());
            self.pmu.write_register(global.acknowledge, bits);
        }
    }

    /// Stops the slots in `stopped`, and lets the others count if their selectors say so.
    ///
    /// Sampling slots are stopped in this way, so that they keep their distance to the overflow.
    /// Slots that the hardware starts in the guest are stopped in this way, too. If anything
    /// changes, this writes one register, or one for each slot on a CPU without a register that
    /// enables all counters.
    #[inline(always)]
    pub(crate) fn enable_except(&mut self, stopped: u32) {
        if self.pcpu.stopped == stopped || !self.pcpu.counts() {
            return;
        }
        if let Some(global) = &self.driver.registers.global {
            self.pmu.write_register(global.ctrl, self.driver.enable_except(stopped));
        } else {
            self.enable_singly(stopped);
        }
        self.pcpu.stopped = stopped;
    }

    /// Does what [`enable_except`](Self::enable_except) does by the enable bit of each selector.
    fn enable_singly(&self, stopped: u32) {
        let Some(held) = &self.pcpu.selectors else { return };
        for slot in slots_of(self.pcpu.stopped ^ stopped) {
            let selected = held.evntsel.get(slot.index());
            if let (Some(register), Some(&evntsel)) =
                (self.driver.registers.evntsel(slot), selected)
            {
                let stops = stopped & slot.bit() != 0;
                self.pmu
                    .write_register(register, if stops { evntsel & !EVNTSEL_EN } else { evntsel });
            }
        }
    }

    /// Slots whose selectors let them count.
    fn counting(&self) -> u32 {
        self.pcpu.selectors.as_ref().map_or(0, Selectors::counting)
    }
}
