// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Keeps the configuration and the sums of one virtual CPU, and is its state machine.
//!
//! While the vCPU executes, a counter of its configuration that counts in the guest's present mode
//! is *running*: `start` is what the hardware held when it began to run. It is *folded* (`sum +=
//! now - start`) when the vCPU is switched out, when the guest leaves the mode, and when the
//! configuration changes. The driver never writes a counter that only accumulates (a-mode).

use shared_abi::arch::{CLOCK_MASK, EVNTSEL_OS, EVNTSEL_USR, is_instruction};
use shared_abi::count::phys_star;
use shared_abi::hypercall::{
    HOOK_INTERRUPT, HOOK_LOAD, HOOK_SWITCH_FROM, HOOK_SWITCH_TO, HOOK_TOGGLE, HvBranches, HvPlace,
};
use shared_abi::read::Counters;
use shared_abi::slot::slots_of;
use shared_abi::{Config, PhysSlot, VcpuPage};

use crate::arch::{self, Filter, Selectors};
use crate::branches::Branches;
use crate::driver::Driver;
use crate::guest::{Clock, Gate, Guest, Rings};
use crate::hal::Pmu;
use crate::pcpu::{Owner, ThisCpu};
use crate::publish::{self, Left, Publisher, State};
use crate::sampling::{Sampling, Surplus, Window};
use crate::serial::DomainSerial;
use crate::settings::Rate;
use crate::shares::Shares;
use crate::stats::Metered;

/// A mode of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestMode {
    /// The guest's user mode.
    User,
    /// The guest's kernel.
    Kernel,
}

/// The work that a change of the guest's mode takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToggleWork {
    /// There is nothing to do.
    Nothing,
    /// Counters are read, and no register is written.
    Usual,
    /// There are sampling counters or recorded branches of one mode, or the driver measures itself.
    Unusual,
}

/// The vCPU that registers a page.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// The vCPU's number in its domain.
    pub id: u32,
    /// The serial of its domain.
    pub domain: DomainSerial,
    /// The kind of guest.
    pub guest: Guest,
    /// Whether the host allows the domain to count.
    pub allowed: bool,
    /// What [`Vcpu::unregister`] has returned for the vCPU's page before, if it had one.
    pub window: Window,
}

/// A vCPU with a registered page.
#[derive(Debug)]
pub struct Vcpu {
    owner: Owner,
    rings: Rings,
    gate: Gate,
    /// Slots that are stopped whenever the hypervisor executes, because the hardware starts them
    /// when the guest is entered.
    outside: u32,
    clock: Clock,
    config: Config,
    selectors: Selectors,
    /// Slots of the configuration that count in user mode, and in kernel mode.
    counts_user: u32,
    counts_kernel: u32,
    /// Slots that count an entry into user mode, and into kernel mode, as an event of the guest's.
    counts_entry_user: u32,
    counts_entry_kernel: u32,
    /// Slots that count interrupts and exceptions as instructions. The driver subtracts each one.
    counts_interrupts: u32,
    /// Slots that count in only one of the two modes, and must be folded when the guest leaves it.
    gated: u32,
    /// The number of gated slots. Each is read once at a change of mode.
    gated_reads: u64,
    /// Whether there are gated slots, none of them samples, no branches are recorded in one mode
    /// only, and the driver does not measure its own cost.
    plain: bool,
    /// Slots that count at this moment.
    running: u32,
    sampling: Sampling,
    /// How many overflows may interrupt in a window, if the host allows more.
    overflows_max: u64,
    branches: Branches,
    /// Whether branches or places of overflows may be recorded.
    records: bool,
    shares: Shares,
    state: State,
    publisher: Publisher,
    /// The physical CPU on which the vCPU was last switched in.
    last_cpu: u32,
}

impl Vcpu {
    /// Registers `page` for the calling vCPU. The guest is in its kernel. With `left`, the counts
    /// begin with what another hypervisor has left in the page; otherwise they begin with 0.
    pub fn register<P: Pmu>(
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        who: &Registration,
        left: Option<&Left>,
    ) -> Self {
        let caps = &cpu.driver.caps;
        let shares = Shares::new(caps, left);
        let mut state = left.map_or(State::NEW, |left| left.state);
        // A vCPU that was forbidden to count before has to load anew.
        state.direct &= who.allowed;
        state.tsc_start = who.guest.clock.guest(cpu.pmu.clock());
        let mut publisher = Publisher::continuing(left.map_or(0, |left| left.writes));
        let gate = Gate::new(caps, who.guest.rings);
        let owner = Owner { domain: who.domain, observer: who.guest.observer };
        if cpu.admit(owner) {
            cpu.program(&Selectors::NONE, 0, |_| ());
        }
        publisher.register(page, who.id, &state, shares.sums());
        let outside = if gate == Gate::Entry { caps.slots() } else { 0 };
        close(cpu, outside, 0);
        // This comes last, so that the value is built in place: hypervisors' stacks have no room
        // for two.
        Self {
            owner,
            rings: who.guest.rings,
            gate,
            outside,
            clock: who.guest.clock,
            config: Config::default(),
            selectors: Selectors::NONE,
            counts_user: 0,
            counts_kernel: 0,
            counts_entry_user: 0,
            counts_entry_kernel: 0,
            counts_interrupts: 0,
            gated: 0,
            gated_reads: 0,
            plain: false,
            running: 0,
            sampling: Sampling::new(who.window),
            overflows_max: u64::MAX,
            branches: Branches::NONE,
            records: false,
            shares,
            state,
            publisher,
            last_cpu: cpu.number,
        }
    }

    /// Continues from what the vCPU counted before its guest was restored. The vCPU has just
    /// registered the page with the same `left`.
    pub fn go_on<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>, page: &VcpuPage, left: &Left) {
        self.replace(cpu, page, &left.config, GuestMode::Kernel);
    }

    /// Unregisters the page of the calling vCPU. Returns what its next registration needs.
    ///
    /// The page belongs to the guest again. Until the hypervisor has forgotten this vCPU's state,
    /// an interrupt or a revocation may still call the driver, but writes nothing to the page.
    pub fn unregister<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>, page: &VcpuPage) -> Window {
        self.stop(cpu, page);
        self.record(cpu, Filter::NONE);
        self.state.executing = false;
        self.state.direct = false;
        self.publisher.unregister(page);
        self.sampling.window
    }

    /// Drops the state of the vCPU, which is switched in, for example because its guest is reset.
    /// Its page is no longer registered, and the driver does not write to it.
    pub fn abandon<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>) {
        cpu.pmu.expect_interrupts(0, self.sampling.armed() != 0);
        self.record(cpu, Filter::NONE);
        cpu.write_records(0);
        self.configure(cpu.driver, &Config::default());
        load_at_switch(cpu, self.outside, 0);
        cpu.enter(HOOK_LOAD, |cpu| cpu.program(&self.selectors, 0, |_| ()));
        cpu.run_stranger();
    }

    /// Programs `config` for the calling vCPU in place of the present configuration. The guest is
    /// in its kernel.
    ///
    /// The caller has checked that the host allows its domain to count, and that the CPU counts.
    pub fn load<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>, page: &VcpuPage, config: &Config) {
        self.state.direct = true;
        self.replace(cpu, page, config, GuestMode::Kernel);
    }

    /// Sets the domain's own limit of overflows in a window, which takes effect at the next load.
    pub fn limit_overflows(&mut self, overflows_max: u64) {
        self.overflows_max = overflows_max;
    }

    /// Returns the slots that the vCPU has loaded.
    #[inline(always)]
    pub const fn slots(&self) -> u32 {
        self.config.slots()
    }

    /// Stops counting for the calling vCPU. The guest is in its kernel. The sums stay.
    pub fn stop<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>, page: &VcpuPage) {
        self.replace(cpu, page, &Config::default(), GuestMode::Kernel);
    }

    /// Stops the vCPU's counters, because the host forbids its domain to count. The page does not
    /// allow direct reads until the guest loads again. Returns whether it has allowed them.
    pub fn revoke<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>, page: &VcpuPage) -> bool {
        let could_read = self.state.direct;
        if could_read {
            self.state.direct = false;
            self.record(cpu, Filter::NONE);
            self.replace(cpu, page, &Config::default(), GuestMode::Kernel);
        }
        could_read
    }

    /// Returns whether the vCPU's branches can be recorded as the filter says.
    pub fn can_record(&self, driver: &Driver, filter: Filter) -> bool {
        let recorded = driver.modes_recorded(self.rings);
        recorded != 0 && filter.modes() & !recorded == 0
    }

    /// Discards the branches that were recorded for the calling vCPU, and records from now on those
    /// that `filter` selects. The guest is in its kernel.
    pub fn record<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>, filter: Filter) {
        self.branches.select(filter, self.rings);
        self.records = self.may_record();
        self.plain = self.is_plain(cpu.driver);
        cpu.enter(HOOK_LOAD, |cpu| self.branches.begin(cpu, true));
    }

    /// Returns whether the processor can store the places that the configuration wants stored. It
    /// must not do so while a guest with rings of its own executes, since the guest's page tables
    /// would say where.
    pub fn can_place(&self, driver: &Driver, config: &Config) -> bool {
        self.precise_slots(driver, config) == config.precise()
    }

    fn precise_slots(&self, driver: &Driver, config: &Config) -> u32 {
        match self.rings {
            Rings::Folded => driver.precise_slots(config),
            Rings::Hardware => 0,
        }
    }

    fn replace<P: Pmu>(
        &mut self,
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        config: &Config,
        mode: GuestMode,
    ) {
        cpu.enter(HOOK_LOAD, |cpu| {
            let _writing = self.publisher.begin(page);
            let (sampled, overflows) = (self.sampling.slots(), self.state.overflows);
            self.stop_records(cpu, u32::MAX);
            self.fold(cpu.pmu, page, self.running);
            self.read_records(cpu);
            let changes = self.configure(cpu.driver, config);
            load_at_switch(cpu, self.outside, config.slots());
            self.arm(cpu);
            cpu.program(&self.selectors, config.slots(), |cpu| self.sampling.restore(cpu));
            self.run(cpu.pmu, page, mode);
            if sampled | self.sampling.slots() != 0 {
                let seen = self.state.overflows != overflows;
                cpu.pmu.expect_interrupts(self.sampling.armed(), seen);
            }
            self.let_count(cpu);
            self.state.generation = self.state.generation.wrapping_add(1);
            if changes {
                publish::selected(page, &self.config);
            }
            publish::state(page, &self.state);
        });
    }

    /// Switches the vCPU out of this physical CPU.
    ///
    /// If an overflow is seen here, the guest gets its interrupt when the vCPU is switched in
    /// again. Returns whether an overflow was seen; the caller then calls
    /// [`overflowed_at`](Self::overflowed_at).
    pub fn switch_from<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>, page: &VcpuPage) -> bool {
        cpu.enter(HOOK_SWITCH_FROM, |cpu| {
            let _writing = self.publisher.begin(page);
            let overflows = self.state.overflows;
            self.stop_records(cpu, u32::MAX);
            self.fold(cpu.pmu, page, self.running);
            self.branches.read(cpu, self.sampling.unplaced());
            self.read_records(cpu);
            cpu.record(false);
            if self.sampling.slots() != 0 {
                cpu.enable_except(self.stopped());
                let seen = self.state.overflows != overflows;
                cpu.pmu.expect_interrupts(0, seen);
                if seen {
                    // The overflow's interrupt may come too late to acknowledge it before another
                    // vCPU's overflow, which would then not interrupt.
                    cpu.acknowledge();
                }
                self.sampling.hold(cpu.pmu, |slot, raw| publish::held(page, slot, raw));
            }
            let now = self.clock.guest(cpu.pmu.clock());
            let State { tsc_sum, tsc_start, .. } = self.state;
            self.state.tsc_sum = phys_star(tsc_sum, tsc_start, CLOCK_MASK, now);
            self.state.executing = false;
            publish::switched_out(page, &self.state);
        });
        self.sampling.unplaced() != 0
    }

    /// Switches the vCPU in on this physical CPU, in `mode`. `allowed` says whether the host
    /// allows its domain to count with what the vCPU has loaded. Returns whether to send the guest
    /// the virtual interrupt: for an overflow, or because its page does not allow direct reads any
    /// more.
    pub fn switch_to<P: Pmu>(
        &mut self,
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        mode: GuestMode,
        allowed: bool,
    ) -> bool {
        let could_read = self.state.direct;
        cpu.enter(HOOK_SWITCH_TO, |cpu| {
            let _writing = self.publisher.begin(page);
            let after_others = cpu.admit(self.owner);
            let selected = self.config.slots() != 0;
            if !allowed || self.needs_pmu() && !cpu.pcpu.counts() {
                // The page does not allow direct reads until the guest loads again.
                self.state.direct = false;
                self.branches.select(Filter::NONE, self.rings);
                self.configure(cpu.driver, &Config::default());
            }
            if self.outside != 0 {
                close(cpu, self.outside, self.config.slots());
            }
            let moved = cpu.number != self.last_cpu;
            // The driver clears other vCPUs' selectors also for a vCPU that counts nothing: it can
            // read raw counters, and would learn which of the selected events happen in its own
            // time.
            if selected || after_others {
                let slots = self.config.slots();
                cpu.program(&self.selectors, slots, |cpu| self.sampling.restore(cpu));
            }
            self.state.switches = self.state.switches.wrapping_add(1);
            self.state.migrations = self.state.migrations.wrapping_add(u64::from(moved));
            self.last_cpu = cpu.number;
            self.state.executing = true;
            self.state.tsc_start = self.clock.guest(cpu.pmu.clock());
            self.run(cpu.pmu, page, mode);
            if self.sampling.slots() != 0 {
                cpu.pmu.expect_interrupts(self.sampling.armed(), false);
            }
            if self.config.slots() != 0 {
                self.let_count(cpu);
            }
            self.branches.begin(cpu, mode == GuestMode::Kernel);
            publish::switched_in(page, &self.state);
        });
        // As where a vCPU is revoked, the interrupt makes the guest look at its page.
        self.sampling.take_notify() | (could_read && !self.state.direct)
    }

    /// Returns whether the vCPU loses anything on a CPU whose PMU the driver does not have. A vCPU
    /// that counts nothing still reads its time-stamp counter there.
    const fn needs_pmu(&self) -> bool {
        self.config.slots() != 0 || !self.branches.is_none()
    }

    /// Prepares for the next instruction, which enters the guest in `mode`. If the CPU counts this
    /// instruction as the guest's, this subtracts it from the guest's counts.
    #[inline(always)]
    pub fn enter_guest<P: Pmu>(
        &mut self,
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        mode: GuestMode,
    ) {
        let counts = match mode {
            GuestMode::User => self.counts_entry_user,
            GuestMode::Kernel => self.counts_entry_kernel,
        };
        if counts & self.running != 0 {
            self.take_back(cpu, page, counts & self.running, Surplus::Coming);
        }
    }

    /// Handles an interrupt or an exception with this vector, by which the CPU has just left a
    /// guest with [`Rings::Folded`]. If the CPU has counted it as an instruction of the guest's,
    /// this subtracts it from the guest's counts.
    #[inline(always)]
    pub fn guest_interrupted<P: Pmu>(
        &mut self,
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        vector: u8,
    ) {
        let counted = self.counts_interrupts & self.running;
        if counted != 0 && !is_instruction(vector) {
            self.take_back(cpu, page, counted, Surplus::Counted);
        }
    }

    /// Subtracts one event from each of these slots, which are running.
    #[inline(never)]
    fn take_back<P: Pmu>(
        &mut self,
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        slots: u32,
        surplus: Surplus,
    ) {
        let _writing = self.publisher.begin(page);
        for slot in slots_of(slots) {
            let samples = self.sampling.slots() & slot.bit() != 0;
            if !samples || !self.sampling.take_back(cpu, slot, self.shares.mask(slot), surplus) {
                self.shares.take_back(page, slot);
            }
        }
    }

    /// Sets how the guest reads its time-stamp counter. The guest does not execute now. The guest
    /// or its host may have moved that counter since the vCPU was last switched in.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// Handles the guest's change to `mode` from the other mode. Returns whether to send it the
    /// virtual interrupt.
    #[inline(always)]
    pub fn toggle<P: Pmu>(
        &mut self,
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        mode: GuestMode,
    ) -> bool {
        match self.work_of_toggle() {
            ToggleWork::Nothing => false,
            ToggleWork::Usual => {
                cpu.pcpu.stats.toggled(self.gated_reads);
                self.change_mode(cpu.pmu, page, mode);
                self.sampling.take_notify()
            }
            ToggleWork::Unusual => self.toggle_otherwise(cpu, page, mode),
        }
    }

    /// Returns the work that the next change of the guest's mode takes.
    #[inline(always)]
    pub fn work_of_toggle(&self) -> ToggleWork {
        // Before the switch is complete the hypervisor may change the mode of the incoming vCPU;
        // `switch_to` learns the final one.
        if !self.state.executing {
            ToggleWork::Nothing
        } else if self.plain {
            ToggleWork::Usual
        } else if self.gated != 0 || self.branches.is_gated() {
            ToggleWork::Unusual
        } else {
            ToggleWork::Nothing
        }
    }

    /// Handles the guest's change to `mode` if its work is [`ToggleWork::Unusual`]. Returns whether
    /// to send the guest the virtual interrupt.
    #[inline(always)]
    pub fn toggle_otherwise<P: Pmu>(
        &mut self,
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        mode: GuestMode,
    ) -> bool {
        // This is what `ThisCpu::enter` does, without a call, since modes change often.
        let (metered, before) = (Metered::new(cpu.pmu), cpu.own_cost());
        self.toggle_metered(&mut cpu.metered(&metered), page, mode);
        cpu.add_work(HOOK_TOGGLE, before, &metered);
        self.sampling.take_notify()
    }

    /// Does the work of [`toggle_otherwise`](Self::toggle_otherwise). The driver's statistics
    /// contain what this costs.
    #[inline(always)]
    fn toggle_metered<P: Pmu>(
        &mut self,
        cpu: &mut ThisCpu<'_, P>,
        page: &VcpuPage,
        mode: GuestMode,
    ) {
        if self.sampling.slots() & self.gated == 0 {
            self.branches.change_mode(cpu, mode == GuestMode::Kernel);
            return self.change_mode(cpu.pmu, page, mode);
        }
        let _writing = self.publisher.begin(page);
        let (overflows, records) = (self.state.overflows, self.records);
        if records {
            self.stop_records(cpu, self.gated);
        }
        self.fold(cpu.pmu, page, self.running & self.gated);
        if records {
            self.read_records(cpu);
            self.branches.read(cpu, self.sampling.unplaced());
            self.branches.change_mode(cpu, mode == GuestMode::Kernel);
        }
        self.run(cpu.pmu, page, mode);
        self.let_count(cpu);
        // Nothing else of the state changes here, and modes change often.
        if self.state.overflows != overflows {
            publish::state(page, &self.state);
        }
    }

    /// Folds the slots that only count in the mode that is left, and starts those that only count
    /// in `mode`.
    #[inline(always)]
    fn change_mode(&mut self, pmu: &impl Pmu, page: &VcpuPage, mode: GuestMode) {
        let wanted = self.counts_in(mode);
        let left = self.running & !wanted;
        let entered = wanted & !self.running;
        self.running = wanted;
        let _writing = self.publisher.begin(page);
        for slot in slots_of(left) {
            self.shares.fold(pmu, page, slot);
        }
        for slot in slots_of(entered) {
            self.shares.start(pmu, page, slot);
        }
    }

    /// Handles an interrupt of the PMU, which comes while this vCPU is current. Returns whether to
    /// send the guest the virtual interrupt. This is false if the overflow was another vCPU's, or
    /// was seen before.
    ///
    /// The hypervisor may make a vCPU current before it is switched in. The result is then false:
    /// the interrupt belongs to another vCPU, and the guest's registers may not be loaded yet, so
    /// that the place is not known. [`switch_to`](Self::switch_to) reports an overflow that was
    /// seen.
    pub fn interrupt<P: Pmu>(&mut self, cpu: &mut ThisCpu<'_, P>, page: &VcpuPage) -> bool {
        if !self.state.executing {
            cpu.enter(HOOK_INTERRUPT, |cpu| cpu.acknowledge());
            return false;
        }
        cpu.enter(HOOK_INTERRUPT, |cpu| {
            let _writing = self.publisher.begin(page);
            let slots = self.sampling.slots();
            let sampling = self.running & slots;
            self.fold(cpu.pmu, page, sampling);
            cpu.acknowledge();
            if self.records {
                self.read_records(cpu);
                self.branches.read(cpu, self.sampling.unplaced());
                cpu.go_on_recording();
            }
            cpu.pmu.expect_interrupts(self.sampling.armed(), false);
            self.start(cpu.pmu, page, sampling);
            publish::state(page, &self.state);
        });
        self.sampling.take_notify()
    }

    /// Notes `place` as the place of each overflow that was seen since the last call. The caller
    /// calls this as soon as an overflow is seen.
    pub fn overflowed_at(&mut self, place: &HvPlace) {
        self.sampling.place(place, &self.config);
    }

    /// Returns the place where a counter has overflowed since it was loaded, if the guest has not
    /// asked for it before.
    pub fn take_place(&mut self, slot: PhysSlot) -> HvPlace {
        self.sampling.take_place(slot)
    }

    /// Returns the branches that were taken before the counter overflowed since it was loaded, if
    /// the guest has not asked for them before.
    pub fn take_branches(&mut self, slot: PhysSlot) -> HvBranches {
        self.branches.take(slot)
    }

    /// Sets what the vCPU counts. Returns whether anything but distances to overflows has changed.
    #[inline(always)]
    fn configure(&mut self, driver: &Driver, config: &Config) -> bool {
        // Most loads only set new distances, and loads are frequent.
        let changes = !config.differs_only_in_distances(&self.config);
        if changes {
            self.select(driver, config);
        } else {
            self.config.take_distances(config);
        }
        self.sampling.forget_overflows();
        self.branches.forget_overflows();
        changes
    }

    /// Sets the configuration, its selectors, and which of its slots count when.
    #[inline(never)]
    fn select(&mut self, driver: &Driver, config: &Config) {
        let precise = self.precise_slots(driver, config);
        self.config = *config;
        self.state.loaded = config.slots();
        self.sampling.configure(config.sampling(), precise);
        self.selectors.select(config, self.rings, self.gate, precise);
        let [user, kernel] = [EVNTSEL_USR, EVNTSEL_OS].map(|ring| config.slots_in_ring(ring));
        (self.counts_user, self.counts_kernel) = match self.rings {
            Rings::Folded => (user, kernel),
            Rings::Hardware => (config.slots(), config.slots()),
        };
        let (entries, interrupts) = match self.rings {
            Rings::Hardware if driver.counts_entries => (arch::entry_slots(config), 0),
            Rings::Folded if driver.counts_interrupts => (0, arch::instruction_slots(config)),
            _ => (0, 0),
        };
        self.counts_interrupts = interrupts;
        (self.counts_entry_user, self.counts_entry_kernel) = (entries & user, entries & kernel);
        self.gated = self.counts_user ^ self.counts_kernel;
        self.gated_reads = u64::from(self.gated.count_ones());
        self.records = self.may_record();
        self.plain = self.is_plain(driver);
    }

    /// Returns whether the processor may record anything for the vCPU; see the field `records`.
    const fn may_record(&self) -> bool {
        self.sampling.precise() != 0 || !self.branches.is_none()
    }

    /// Returns whether a change of the guest's mode is simple; see the field of that name.
    fn is_plain(&self, driver: &Driver) -> bool {
        let samples = self.gated & self.sampling.slots() != 0;
        self.gated != 0 && !samples && !self.branches.is_gated() && driver.cost.is_none()
    }

    /// Folds, stops and publishes the slots in `mask`, which are running.
    #[inline(always)]
    fn fold(&mut self, pmu: &impl Pmu, page: &VcpuPage, mask: u32) {
        for slot in slots_of(mask) {
            let raw = self.shares.fold(pmu, page, slot);
            if self.sampling.notice(slot, self.shares.mask(slot), raw) {
                self.state.overflows = self.state.overflows.wrapping_add(1);
            }
        }
        self.running &= !mask;
    }

    /// Starts every slot that counts in `mode` and is not running.
    #[inline(always)]
    fn run(&mut self, pmu: &impl Pmu, page: &VcpuPage, mode: GuestMode) {
        self.start(pmu, page, self.counts_in(mode) & !self.running);
    }

    /// Slots that count in `mode`.
    #[inline(always)]
    const fn counts_in(&self, mode: GuestMode) -> u32 {
        match mode {
            GuestMode::User => self.counts_user,
            GuestMode::Kernel => self.counts_kernel,
        }
    }

    /// Starts and publishes the slots in `mask`, which are not running.
    #[inline(always)]
    fn start(&mut self, pmu: &impl Pmu, page: &VcpuPage, mask: u32) {
        for slot in slots_of(mask) {
            self.shares.start(pmu, page, slot);
        }
        self.running |= mask;
    }

    /// Returns the slots that must not count now. These are sampling slots, which would otherwise
    /// overflow while another vCPU executes, and slots that the hardware starts.
    #[inline(always)]
    const fn stopped(&self) -> u32 {
        self.sampling.slots() & !self.running | self.outside
    }

    /// Lets exactly those slots count that are not stopped, and lets the running ones of them write
    /// precise records that are to.
    #[inline(always)]
    fn let_count<P: Pmu>(&self, cpu: &mut ThisCpu<'_, P>) {
        cpu.enable_except(self.stopped());
        if self.sampling.precise() != 0 {
            cpu.write_records(self.sampling.precise() & self.running);
        }
    }

    /// Lets these slots write no precise records any more. While the vCPU executes, only its own
    /// slots write any.
    #[inline(always)]
    fn stop_records<P: Pmu>(&self, cpu: &mut ThisCpu<'_, P>, slots: u32) {
        if self.sampling.precise() != 0 {
            cpu.write_records(cpu.writing_records() & !slots);
        }
    }

    /// Reads and clears the precise records of the overflows that were just seen.
    #[inline(always)]
    fn read_records<P: Pmu>(&mut self, cpu: &ThisCpu<'_, P>) {
        if self.sampling.precise() != 0 {
            self.sampling.read_records(cpu, self.counts_user, self.counts_kernel);
        }
    }

    /// Presets the sampling counters, if there are any.
    fn arm<P: Pmu>(&mut self, cpu: &ThisCpu<'_, P>) {
        if self.sampling.slots() == 0 {
            return;
        }
        let Rate { window_tsc, overflows_max } = cpu.driver.rate;
        let overflows_max = overflows_max.min(self.overflows_max);
        let rate = Rate { window_tsc, overflows_max };
        let put_off = self.sampling.arm(cpu.pmu.clock(), &rate, &self.config, &self.shares);
        self.state.throttled = self.state.throttled.wrapping_add(u64::from(put_off));
    }
}

/// Stops the slots in `outside` until the guest is entered, since their selectors would also let
/// them count the hypervisor.
fn close<P: Pmu>(cpu: &mut ThisCpu<'_, P>, outside: u32, inside: u32) {
    if outside != 0 && cpu.pcpu.counts() {
        cpu.enable_except(outside);
    }
    if inside == 0 {
        load_at_switch(cpu, outside, inside);
    }
}

/// Makes the hardware start the slots in `inside` when it enters the guest, if it has to stop any
/// slots `outside`.
///
/// If the PMU is not the driver's, both values are 0, and the hypervisor then makes the hardware
/// load nothing. Such a CPU may not have the register, and could not enter the guest if it had to
/// load it.
fn load_at_switch<P: Pmu>(cpu: &ThisCpu<'_, P>, outside: u32, inside: u32) {
    if outside == 0 {
        return;
    }
    let (inside, outside) = match cpu.pcpu.counts() {
        true => {
            (arch::global_bits(inside | cpu.driver.host_bits()), cpu.driver.enable_except(outside))
        }
        false => (0, 0),
    };
    cpu.pmu.load_at_switch(inside, outside);
}
