// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates the hypervisor around the driver's core: the glue in Xen, and Xen itself.

use std::rc::Rc;

use hv_driver::guest::Rings;
use hv_driver::hypercall::{Caller, Permission, authorize, serve};
use hv_driver::vcpu::GuestMode;
use hv_driver::{Guest, Limits, PolicyChange, Registration, ThisCpu, Vcpu as DriverVcpu};
use shared_abi::hypercall::{
    HOST_OPS, HvAccounting, HvAccounts, HvDomain, HvDomains, HvProfile, HvSamples, HvShow, HvStats,
    OP_GO_ON, OP_LOAD, OP_QUERY, OP_REGISTER, OP_SHOW, OP_STOP, OP_UNREGISTER,
};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::read::Counters;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::{Errno, VcpuPage};

use crate::choice::Action;
use crate::machine::{
    Clock, Counts, Domain, Level, Machine, Nmi, PAGES, RATIO_BITS, Vcpu, without_steps,
};
use crate::model::{SLOTS, Vendor};
use crate::pmu::{Events, OS, OWNER_HOST, Ring, USR};
use crate::shape::decision;
use crate::trace::Step;

/// The physical CPU's PMU as the driver drives it.
struct Hardware<'a>(&'a Machine);

impl Counters for Hardware<'_> {
    fn counter(&self, index: u32) -> u64 {
        self.0.step(Step::Rdpmc(index));
        let cpu = &self.0.cpus[self.0.here.get()];
        let Some((counter, value)) = cpu.pmu.rdpmc(index) else {
            self.0.fail(format!("the driver faults: RDPMC {index:#x}"));
            return 0;
        };
        if cpu.pmu.cost() == Some(counter) {
            self.0.check_cost(counter, value);
        }
        value
    }

    fn clock(&self) -> u64 {
        self.0.step(Step::Rdtsc);
        let tsc = self.0.tsc();
        self.0.cpus[self.0.here.get()].tsc_seen.set(Some(tsc));
        tsc
    }
}

impl hv_driver::Pmu for Hardware<'_> {
    fn read_register(&self, register: u32) -> u64 {
        self.0.step(Step::Rdmsr(register));
        self.0.cpus[self.0.here.get()].pmu.rdmsr(register).unwrap_or_else(|what| {
            self.0.fail(what);
            0
        })
    }

    fn write_register(&self, register: u32, value: u64) {
        self.0.step(Step::Wrmsr(register, value));
        let cpu = &self.0.cpus[self.0.here.get()];
        cpu.taken.set(true);
        let starts_or_stops = cpu.pmu.starts_or_stops(register, value);
        // The driver moves an overflowed counter away from 0.
        let moves_on = value == 1;
        if !cpu.may_program.get() && !starts_or_stops && !moves_on {
            self.0.fail(format!("MSR {register:#x} is written where only reading is allowed"));
        }
        if let Err(what) = cpu.pmu.wrmsr(register, value) {
            self.0.fail(what);
        }
        let domain = cpu.current.get().map(|vcpu| self.0.vcpus[vcpu].domain);
        cpu.pmu.written_for(register, domain.map_or(OWNER_HOST, |domain| 1 << domain));
    }

    fn load_at_switch(&self, inside: u64, outside: u64) {
        self.0.step(Step::Note("load at switch"));
        let vcpu = &self.0.vcpus[self.0.vcpu_here()];
        if !self.0.domains[vcpu.domain].hardware || self.0.shape.model.vendor != Vendor::Intel {
            self.0.fail("the hardware cannot load what enables counters".into());
        }
        // Writes in an interrupt are not checked.
        if !self.0.cpus[self.0.here.get()].interrupted.get() {
            vcpu.at_switch.set(Some((inside, outside)));
        }
    }
}

/// Nothing else happens on a physical CPU that is not up yet, so the probes make no steps.
impl hv_driver::Probe for Hardware<'_> {
    fn try_read_register(&self, register: u32) -> Option<u64> {
        self.0.cpus[self.0.here.get()].pmu.try_rdmsr(register)
    }

    fn try_write_register(&self, register: u32, value: u64) -> bool {
        self.0.cpus[self.0.here.get()].pmu.try_wrmsr(register, value)
    }
}

/// Returns the clock of a vCPU, as it is passed to the driver.
fn clock_of(vcpu: &Vcpu) -> hv_driver::guest::Clock {
    let Clock { ratio, offset } = vcpu.clock.get();
    let scale = if ratio == Clock::NATIVE.ratio { 0 } else { ratio };
    hv_driver::guest::Clock { offset, scale, fraction_bits: RATIO_BITS, reserved: 0 }
}

fn mode(kernel: bool) -> GuestMode {
    if kernel { GuestMode::Kernel } else { GuestMode::User }
}

/// Returns the rings in which a hypercall asks each counter to interrupt, if the hypercall changes
/// that.
fn sampled(op: u32, bytes: &[u8]) -> Option<[u64; SLOTS]> {
    let mut rings = [0; SLOTS];
    match op {
        // Unregister, stop.
        2 | 4 => Some(rings),
        // Show: a registration of 16 bytes, then a load.
        18 => sampled(3, bytes.get(16..).unwrap_or_default()),
        // Load: a header of 8 bytes, then 32 for each counter: slot, mode and event select.
        3 => {
            let word = |at: &[u8]| u64::from_le_bytes(at.try_into().expect("8 bytes"));
            for counter in bytes.get(8..).unwrap_or_default().chunks_exact(32) {
                let (head, select) = (word(&counter[..8]), word(&counter[8..16]));
                if let Some(rings) = rings.get_mut(head as u32 as usize)
                    && head >> 32 == 1
                {
                    *rings = select & (USR | OS);
                }
            }
            Some(rings)
        }
        _ => None,
    }
}

impl Machine {
    /// Returns the page that is registered with a vCPU. Its kernel chooses a page that takes the
    /// place of another one only after that.
    pub fn registered_page(&self, index: usize) -> Option<&VcpuPage> {
        self.vcpus[index].registered.borrow().as_ref().map(|(_, page)| self.page(*page))
    }

    /// Returns how often the driver says that it has put a vCPU's overflow off.
    fn throttled(&self, vcpu: usize) -> u64 {
        without_steps(|| self.vcpus[vcpu].page().throttled.load(Relaxed))
    }

    /// Checks that a load puts the next overflow off only if there were many, and notes it.
    fn note_put_off(&self, index: usize, before: u64) {
        let vcpu = &self.vcpus[index];
        let put_off = self.throttled(index) != before;
        let in_page = without_steps(|| vcpu.page().overflows.load(Relaxed));
        let overflows = vcpu.overflows_before.get().wrapping_add(in_page);
        let good = self.domains[vcpu.domain].kind == crate::shape::Kind::Good;
        if put_off && good && overflows < self.shape.overflows_max {
            self.fail(format!("an overflow is put off after {overflows}"));
        }
        vcpu.put_off.set(put_off.then(|| self.events_of(index)));
        vcpu.armed.set(vcpu.counted.get());
    }

    /// Returns all events of a vCPU so far.
    pub fn events_of(&self, index: usize) -> Events {
        let vcpu = &self.vcpus[index];
        let all = [vcpu.user.get(), vcpu.kernel.get(), vcpu.surplus.get()];
        std::array::from_fn(|kind| {
            all.iter().fold(0_u64, |sum, events| sum.wrapping_add(events[kind]))
        })
    }

    /// Checks that the driver's own counter holds what has been executed in ring 0.
    fn check_cost(&self, counter: usize, value: u64) {
        let cpu = &self.cpus[self.here.get()];
        let now = (value, cpu.ring_0_events.get()[0]);
        // Until the driver has taken over the PMU, the counter may hold any value.
        if let Some(before) = cpu.cost_seen.replace(cpu.taken.get().then_some(now)) {
            let (measured, truth) = (now.0.wrapping_sub(before.0), now.1.wrapping_sub(before.1));
            if (measured ^ truth) & self.shape.model.mask(counter) != 0 {
                self.fail(format!("{truth} instructions in ring 0 cost {measured}"));
            }
        }
    }

    /// Runs `entry` in the hypervisor. `may_program` says whether it may program counters.
    /// Starting, stopping and acknowledging sampling ones is always allowed.
    fn in_hypervisor<R>(&self, may_program: bool, entry: impl FnOnce() -> R) -> R {
        self.at_level(Level::Hypervisor, || {
            let cpu = &self.cpus[self.here.get()];
            cpu.may_program.set(may_program);
            cpu.tsc_seen.set(None);
            cpu.cost_seen.set(cpu.cost_seen.get().filter(|_| cpu.taken.get()));
            let result = entry();
            cpu.may_program.set(false);
            result
        })
    }

    /// Runs `work` on this physical CPU's state.
    fn on_cpu<'a, R>(&'a self, work: impl FnOnce(&mut ThisCpu<'_, Hardware<'a>>) -> R) -> R {
        let number = self.here.get();
        work(&mut ThisCpu {
            driver: &self.driver,
            pcpu: &mut self.cpus[number].core.borrow_mut(),
            pmu: &Hardware(self),
            number: number as u32,
        })
    }

    /// Lets the driver take over the CPU whose turn it is and which has come up.
    pub fn come_up(&self) {
        let came =
            self.in_hypervisor(true, || self.on_cpu(|cpu| cpu.come_up(&self.shape.model.cpuid())));
        if let Err(refusal) = came {
            self.fail(format!("a physical CPU is refused: {refusal:?}"));
        }
        self.cpus[self.here.get()].pmu.unmask_interrupt();
    }

    /// Takes the idle CPU whose turn it is offline and back, in the hypervisor's own agent. Its
    /// registers lose their values.
    pub fn replug(&self) {
        let cpu = &self.cpus[self.here.get()];
        self.go_down();
        cpu.pmu.reset();
        cpu.taken.set(false);
        cpu.cost_seen.set(None);
        self.come_up();
        cpu.switching.set(false);
    }

    fn go_down(&self) {
        self.in_hypervisor(true, || self.on_cpu(|cpu| cpu.go_down()));
        if self.cpus[self.here.get()].pmu.counts() {
            self.fail("a physical CPU goes down and goes on counting".into());
        }
    }

    /// Switches this CPU to `next`, in the hypervisor's own agent.
    ///
    /// If `failsafe`, the incoming vCPU's segments cannot be loaded, so its kernel is called.
    pub fn switch_vcpu(self: &Rc<Self>, next: Option<usize>, failsafe: bool) {
        self.interrupt_pv_guest();
        self.step(Step::Note("switch"));
        let cpu = &self.cpus[self.here.get()];
        if let Some(late) = cpu.lazy.get() {
            self.switch_from(late);
            cpu.lazy.set(None);
        }
        if let Some(prev) = cpu.current.take() {
            // Xen keeps the previous vCPU loaded while the idle vCPU executes, but its counters
            // stop here.
            self.switch_from(prev);
            self.clock_stops(prev);
            self.take_late_overflow(prev);
            self.check_sums(prev);
            self.vcpus[prev].on.set(None);
        }
        cpu.slice.set(0);
        if let Some(next) = next {
            if failsafe {
                self.call_failsafe(next);
            }
            cpu.current.set(Some(next));
            self.take_late_overflow(next);
            self.switch_to(next);
            self.clock_starts(next);
            self.take_restoration(next);
            self.check_residue();
        }
        cpu.switching.set(false);
    }

    fn switch_from(&self, vcpu: usize) {
        self.in_hypervisor(false, || {
            if let Some((core, page)) = &mut *self.vcpus[vcpu].registered.borrow_mut() {
                self.on_cpu(|cpu| core.switch_from(cpu, self.page(*page)));
            }
        });
    }

    /// Takes back the next instruction, which enters a vCPU's guest and is counted there.
    pub fn take_entry_back(&self, index: usize, kernel: bool) {
        let vcpu = &self.vcpus[index];
        vcpu.disturbances.set(vcpu.disturbances.get() + 1);
        self.in_hypervisor(true, || {
            if let Some((core, page)) = &mut *vcpu.registered.borrow_mut() {
                let page = self.page(*page);
                self.on_cpu(|cpu| core.enter_guest(cpu, page, mode(kernel)));
            }
        });
    }

    /// Takes back an interrupt that has interrupted a vCPU's guest and was counted there.
    pub fn take_interrupt_back(&self, index: usize) {
        const DEVICE: u8 = 0x31;
        let vcpu = &self.vcpus[index];
        vcpu.disturbances.set(vcpu.disturbances.get() + 1);
        self.in_hypervisor(true, || {
            if let Some((core, page)) = &mut *vcpu.registered.borrow_mut() {
                let page = self.page(*page);
                self.on_cpu(|cpu| core.guest_interrupted(cpu, page, DEVICE));
            }
        });
    }

    /// Changes the mode of a vCPU that does not execute yet, because its kernel will be called.
    fn call_failsafe(self: &Rc<Self>, index: usize) {
        let vcpu = &self.vcpus[index];
        vcpu.kernel_mode.set(true);
        let notify = self.in_hypervisor(false, || self.toggle_core(vcpu, true));
        self.notify(index, notify);
        vcpu.busy.set(true);
        let machine = Rc::clone(self);
        let job = move || machine.interrupt(index, Action::Tick);
        self.agents[self.kernel_agent(index)].fiber.borrow_mut().start(Box::new(job));
    }

    fn switch_to(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        vcpu.disturbances.set(vcpu.disturbances.get() + 1);
        if !self.domains[vcpu.domain].allowed.get() {
            vcpu.sampled.set([0; SLOTS]);
            vcpu.set_counts(Counts::Nothing, self.steps.get());
        }
        self.move_clock(index);
        let notify = self.in_hypervisor(true, || match &mut *vcpu.registered.borrow_mut() {
            Some((core, page)) => {
                if self.domains[vcpu.domain].hardware {
                    core.set_clock(clock_of(vcpu));
                }
                let mode = mode(vcpu.kernel_mode.get());
                let allowed = self.driver.allows(&self.domains[vcpu.domain].policy, false);
                let page = self.page(*page);
                self.on_cpu(|cpu| core.switch_to(cpu, page, mode, allowed))
            }
            None => {
                self.on_cpu(|cpu| cpu.run_stranger());
                false
            }
        });
        self.notify(index, notify);
    }

    /// Moves the time-stamp counter of a vCPU that has one of its own. The toolstack may do that,
    /// and so may the vCPU's kernel when it last executed.
    fn move_clock(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        if self.domains[vcpu.domain].hardware {
            let Clock { ratio, offset } = vcpu.clock.get();
            let offset = offset.wrapping_add(self.steps.get().wrapping_mul(0x9e37_79b9_7f4a_7c15));
            vcpu.clock.set(Clock { ratio, offset });
        }
    }

    /// Sends a vCPU the virtual interrupt.
    fn notify(&self, vcpu: usize, notify: bool) {
        let virq = &self.vcpus[vcpu].virq;
        virq.set(virq.get() || notify);
        if notify {
            self.vcpus[vcpu].explain_nmi(Nmi::Changed);
        }
    }

    /// Makes the PMU interrupt this CPU, in the hypervisor's own agent.
    pub fn take_pmi(&self) {
        let cpu = &self.cpus[self.here.get()];
        self.interrupt_pv_guest();
        self.see_to_overflow(cpu.current.get());
        cpu.switching.set(false);
    }

    /// Handles the PMU's interrupt, which comes while this vCPU, if any, is loaded here. Returns
    /// whether the driver sends the vCPU the virtual interrupt.
    pub fn see_to_overflow(&self, current: Option<usize>) -> bool {
        let cpu = &self.cpus[self.here.get()];
        cpu.pmu.take_interrupt();
        if let Some(vcpu) = current.map(|current| &self.vcpus[current]) {
            vcpu.disturbances.set(vcpu.disturbances.get() + 1);
        }
        let notify = self.in_hypervisor(false, || {
            let mut registered = current.map(|vcpu| self.vcpus[vcpu].registered.borrow_mut());
            match registered.as_mut().and_then(|registered| registered.as_mut()) {
                Some((core, page)) => {
                    let page = self.page(*page);
                    self.on_cpu(|cpu| core.interrupt(cpu, page))
                }
                None => {
                    self.on_cpu(|cpu| cpu.acknowledge());
                    false
                }
            }
        });
        if let Some(current) = current {
            self.notify(current, notify);
            if notify {
                self.vcpus[current].explain_nmi(Nmi::Overflow);
            }
        }
        // The local APIC has masked the entry.
        cpu.pmu.unmask_interrupt();
        notify
    }

    /// Starts a vCPU's clock at the time at which the hypervisor last read the clock, or now if it
    /// did not.
    fn clock_starts(&self, vcpu: usize) {
        let seen = self.cpus[self.here.get()].tsc_seen.take();
        self.vcpus[vcpu].tsc_start.set(Some(seen.unwrap_or_else(|| self.tsc())));
    }

    fn clock_stops(&self, vcpu: usize) {
        let seen = self.cpus[self.here.get()].tsc_seen.take();
        let vcpu = &self.vcpus[vcpu];
        if let Some(start) = vcpu.tsc_start.take() {
            let ticks = vcpu.ticks(start, seen.unwrap_or_else(|| self.tsc()));
            vcpu.tsc_sum.set(vcpu.tsc_sum.get().wrapping_add(ticks));
        }
    }

    /// Lets the guest that executes enter its kernel, or leave it.
    pub fn toggle(&self, kernel: bool) {
        if self.is_gone() {
            return;
        }
        let index = self.vcpu_here();
        let vcpu = &self.vcpus[index];
        if self.domains[vcpu.domain].hardware {
            return self.exit_guest(vcpu, kernel);
        }
        let notify = self.in_hypervisor(false, || {
            vcpu.kernel_mode.set(kernel);
            vcpu.disturbances.set(vcpu.disturbances.get() + 1);
            self.toggle_core(vcpu, kernel)
        });
        self.notify(index, notify);
    }

    /// Lets a guest with rings of its own change between them. The interrupt that it takes, or from
    /// which it returns, makes the CPU exit and enter the guest again. The driver does nothing for
    /// that.
    fn exit_guest(&self, vcpu: &Vcpu, kernel: bool) {
        vcpu.kernel_mode.set(kernel);
        self.at_level(Level::Hypervisor, || self.step(Step::Note("exit")));
    }

    fn toggle_core(&self, vcpu: &Vcpu, kernel: bool) -> bool {
        let Some((core, page)) = &mut *vcpu.registered.borrow_mut() else { return false };
        self.on_cpu(|cpu| core.toggle(cpu, self.page(*page), mode(kernel)))
    }

    /// Makes a hypercall of the vCPU that executes.
    pub fn hypercall(&self, op: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        if self.is_gone() {
            return Err(Errno::NODEV);
        }
        let index = self.vcpu_here();
        self.step(Step::Hypercall(op));
        if op == OP_SHOW && self.steps.get().is_multiple_of(3) {
            // The kernel has just noted which page takes the place of another one.
            self.take_nmi(index);
        }
        if self.is_gone() {
            return Err(Errno::NODEV);
        }
        if ![OP_QUERY, OP_GO_ON].contains(&op) {
            self.vcpus[index].explain_nmi(Nmi::Changed);
        }
        let asked = sampled(op, bytes);
        let throttled = self.throttled(index);
        let result = self.in_hypervisor(true, || {
            let caller = &mut Hypercall { machine: self, index };
            authorize(caller, op, bytes.len())?;
            serve(&self.driver, caller, op, bytes).map(drop)
        });
        let reserved = HOST_OPS.contains(&op);
        if reserved && result != Err(Errno::PERM) && !self.is_gone() {
            self.fail(format!(
                "vCPU {index} makes the control domain's hypercall {op}: {result:?}"
            ));
        }
        // The module has read what counted before it loads something else.
        if result.is_ok() || matches!(op, OP_LOAD | OP_SHOW) {
            let loads = op == OP_LOAD || bytes.len() > HvShow::bytes(0);
            self.note_loaded(index, op, result, loads);
        }
        if let (Ok(()), Some(asked)) = (result, asked) {
            self.vcpus[index].sampled.set(asked);
            self.cpus[self.here.get()].slice.set(0);
            self.note_put_off(index, throttled);
        }
        self.check_residue();
        self.check_sums(index);
        result
    }

    /// Notes that a vCPU has loaded another configuration, that this has failed, or that the vCPU
    /// has another page.
    fn note_loaded(&self, index: usize, op: u32, result: Result<(), Errno>, loads: bool) {
        if matches!(op, OP_LOAD | OP_STOP | OP_REGISTER | OP_UNREGISTER | OP_GO_ON | OP_SHOW) {
            let before = self.vcpus[index].counts.get();
            let counts = match (op, result) {
                (OP_LOAD | OP_SHOW, Ok(())) if loads => Counts::All,
                (OP_GO_ON, _) => self.vcpus[index].counted_when_left.get(),
                // The request was not understood, and nothing was done.
                (OP_SHOW, Err(_)) if self.vcpus[index].registered.borrow().is_some() => before,
                (OP_LOAD, Err(_)) if before != Counts::Nothing => Counts::Unclear,
                _ => Counts::Nothing,
            };
            self.vcpus[index].set_counts(counts, self.steps.get());
        }
    }

    fn is_hardware(&self, vcpu: usize) -> bool {
        self.domains[self.vcpus[vcpu].domain].hardware
    }

    /// Destroys a vCPU, which does not execute again under this hypervisor.
    pub fn destroy_vcpu(&self, index: usize) {
        self.vcpus[index].rdpmc_exits.set(self.is_hardware(index));
        self.vcpus[index].at_switch.set(None);
        self.vcpus[index].window.take();
        self.vcpus[index].set_counts(Counts::Nothing, self.steps.get());
        self.put_counters(index);
        if let Some((_, page)) = self.vcpus[index].registered.take() {
            self.unpin(page);
        }
    }

    pub fn new_serial(&self) -> u64 {
        self.serials.set(self.serials.get() + 1);
        self.serials.get()
    }

    /// Starts a domain.
    pub fn create(self: &Rc<Self>, index: usize) {
        let domain = &self.domains[index];
        domain.alive.set(true);
        domain.serial.set(self.new_serial());
        let idle = self.shape.domains[index].idle;
        for thread in domain.threads.clone().rev().skip(idle).rev() {
            self.spawn(thread);
        }
    }

    /// Destroys a domain, none of whose vCPUs executes.
    pub fn destroy(&self, index: usize) {
        let domain = &self.domains[index];
        domain.alive.set(false);
        for vcpu in domain.vcpus.clone() {
            self.destroy_vcpu(vcpu);
            self.retire_agent(self.kernel_agent(vcpu));
        }
        for thread in domain.threads.clone() {
            self.retire_agent(self.thread_agent(thread));
        }
        self.check_unpinned(index);
    }

    /// Saves a suspended domain and restores it on the other host.
    pub fn restore(&self, index: usize) {
        let domain = &self.domains[index];
        for vcpu in domain.vcpus.clone() {
            self.destroy_vcpu(vcpu);
            // The kernel registers the page again before any thread executes.
            self.vcpus[vcpu].online.set(false);
            self.vcpus[vcpu].lost_page.set(true);
            // Interrupts that waited are lost with the machine's event channels.
            self.vcpus[vcpu].virq.set(false);
        }
        self.move_frames(domain);
        domain.host.set(1 - domain.host.get());
        domain.serial.set(self.new_serial());
        domain.suspending.set(false);
        self.check_unpinned(index);
    }

    /// Forbids a domain to count, or allows it again.
    pub fn change_policy(&self, index: usize) {
        let domain = &self.domains[index];
        let allowed = !domain.allowed.get();
        domain.allowed.set(allowed);
        let change = domain.policy.set(&self.driver, false, &decision(allowed));
        if change == PolicyChange::Revoke {
            domain.forbidden.set(domain.forbidden.get() + 1);
            for cpu in &self.cpus {
                let current = cpu.current.get().map(|vcpu| self.vcpus[vcpu].domain);
                cpu.revocation.set(cpu.revocation.get() || current == Some(index));
            }
        }
        // A vCPU that executes is interrupted when its physical CPU has stopped its counters.
        for vcpu in domain.vcpus.clone() {
            // A vCPU that asks before that has the answer already.
            self.vcpus[vcpu].explain_nmi(Nmi::Changed);
            let waits = change == PolicyChange::Revoke && self.vcpus[vcpu].on.get().is_some();
            self.notify(vcpu, change != PolicyChange::Nothing && !waits);
        }
    }

    /// Tells this CPU that a domain has been forbidden, in the hypervisor's own agent.
    pub fn take_revocation(&self) {
        let cpu = &self.cpus[self.here.get()];
        cpu.revocation.set(false);
        cpu.interrupted.set(true);
        if let Some(index) = cpu.current.get() {
            self.revoke(&self.vcpus[index]);
            self.notify(index, true);
        }
        cpu.interrupted.set(false);
        cpu.switching.set(false);
    }

    fn revoke(&self, vcpu: &Vcpu) {
        let domain = &self.domains[vcpu.domain];
        if domain.allowed.get() {
            return;
        }
        vcpu.disturbances.set(vcpu.disturbances.get() + 1);
        vcpu.sampled.set([0; SLOTS]);
        vcpu.set_counts(Counts::Nothing, self.steps.get());
        let registered = &mut *vcpu.registered.borrow_mut();
        let Some((core, page)) = registered.as_mut() else { return };
        let page = self.page(*page);
        self.in_hypervisor(true, || {
            self.on_cpu(|cpu| core.revoke(cpu, page));
        });
        let direct = without_steps(|| page.flags.load(Relaxed)) & 2 != 0;
        if direct && domain.kind == crate::shape::Kind::Good && !self.is_gone() {
            self.fail(format!("vCPU {} of a forbidden domain reads directly", vcpu.id));
        }
    }

    /// Returns whether RDPMC does not fault on a vCPU. For a PV vCPU its CR4.PCE decides that. For
    /// a vCPU with rings of its own, it depends on whether RDPMC exits.
    pub fn may_read(&self, index: usize) -> bool {
        let vcpu = &self.vcpus[index];
        match self.domains[vcpu.domain].hardware {
            true => !vcpu.rdpmc_exits.get(),
            false => vcpu.registered.borrow().is_some(),
        }
    }

    /// Checks that no counter which the guest here could read holds events of anybody else, or
    /// counts by anybody else's selector.
    pub fn check_residue(&self) {
        let cpu = &self.cpus[self.here.get()];
        let Some(current) = cpu.current.get().filter(|&vcpu| self.may_read(vcpu)) else { return };
        let vcpu = &self.vcpus[current];
        for counter in self.shape.model.counters().filter(|&c| cpu.pmu.cost() != Some(c)) {
            let strangers = cpu.pmu.owners(counter) & !(1 << vcpu.domain);
            if strangers != 0 {
                let domain = vcpu.domain;
                self.fail(format!(
                    "domain {domain} can read events of {strangers:#x} in {counter}"
                ));
            }
        }
        self.check_selectors(current);
    }

    /// Checks that the counters that count in this vCPU's time are those that it has loaded, or
    /// that another vCPU of its domain has.
    fn check_selectors(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        if domain.kind != crate::shape::Kind::Good {
            return;
        }
        let ring = if domain.hardware { Ring::GuestsThree } else { Ring::Three };
        let pmu = &self.cpus[self.here.get()].pmu;
        let page = self.registered_page(index).unwrap_or(vcpu.page());
        let loaded = without_steps(|| page.loaded.load(Relaxed));
        pmu.selected_alike(loaded, 1 << vcpu.domain);
        let others = pmu.selected_for_others(ring, 1 << vcpu.domain);
        if others != 0 {
            self.fail(format!("vCPU {} counts what others selected: {others:#x}", vcpu.id));
        }
    }

    /// Checks that the hypervisor has unpinned every page of a domain.
    fn check_unpinned(&self, domain: usize) {
        for vcpu in self.domains[domain].vcpus.clone() {
            if self.vcpus[vcpu].pins.iter().any(|pins| pins.get() != 0) {
                self.fail(format!("the page of vCPU {vcpu} stays pinned"));
            }
        }
    }

    /// Checks at the end, when nothing is under way, that a frame is pinned as often as it is
    /// registered.
    pub fn check_pins(&self) {
        for page in 0..self.vcpus.len() * PAGES {
            let holds = |v: &&crate::machine::Vcpu| {
                v.registered.borrow().as_ref().is_some_and(|(_, registered)| *registered == page)
            };
            let pins = self.pins(page).get();
            if pins as usize != self.vcpus.iter().filter(holds).count() {
                self.fail(format!("page {page} is pinned {pins} times"));
            }
        }
    }
}

/// The vCPU that executes, in a hypercall.
struct Hypercall<'a> {
    machine: &'a Machine,
    index: usize,
}

impl Hypercall<'_> {
    fn vcpu(&self) -> &Vcpu {
        &self.machine.vcpus[self.index]
    }

    fn domain(&self) -> &Domain {
        &self.machine.domains[self.vcpu().domain]
    }
}

impl<'a> Caller for Hypercall<'a> {
    type Pmu<'p> = Hardware<'a>;

    fn permits(&self, permission: Permission) -> Result<(), Errno> {
        // None of the domains here is the control domain.
        if permission == Permission::ControlHost { Err(Errno::PERM) } else { Ok(()) }
    }

    fn limits(&self) -> Option<Limits> {
        self.machine.driver.limits(&self.domain().policy, false)
    }

    fn machine(&self) -> u64 {
        self.domain().serial.get()
    }

    fn guest(&self) -> Option<Guest> {
        Some(match self.domain().hardware {
            true => Guest { rings: Rings::Hardware, observer: 0, clock: clock_of(self.vcpu()) },
            false => Guest::pv(),
        })
    }

    fn on_cpu<R>(&mut self, work: impl FnOnce(&mut ThisCpu<'_, Hardware<'a>>) -> R) -> R {
        self.machine.on_cpu(work)
    }

    fn on_vcpu<R, W>(&mut self, work: W) -> Option<R>
    where
        W: FnOnce(&mut ThisCpu<'_, Hardware<'a>>, &mut DriverVcpu, &VcpuPage, Option<Limits>) -> R,
    {
        let limits = self.limits();
        let registered = &mut *self.vcpu().registered.borrow_mut();
        let (core, page) = registered.as_mut()?;
        let page = self.machine.page(*page);
        Some(self.machine.on_cpu(|cpu| work(cpu, core, page, limits)))
    }

    fn take_counters(&mut self) -> Result<(), Errno> {
        // A vCPU that is forbidden to count, or has no page, gets the error for that instead.
        if self.vcpu().registered.borrow().is_none() || self.limits().is_none() {
            return Ok(());
        }
        self.machine.take_counters(self.index)
    }

    fn put_counters(&mut self) {
        self.machine.put_counters(self.index);
    }

    fn register(&mut self, gfn: u64, guest: &Guest, goes_on: bool) -> Result<(), Errno> {
        let (machine, vcpu, domain) = (self.machine, self.vcpu(), self.domain());
        let page = machine.page_at_gfn(domain, gfn).ok_or(Errno::INVAL)?;
        let page_of = machine.page(page);
        let left = if goes_on { Some(machine.left_in(page_of)?) } else { None };
        if goes_on {
            machine.take_counters(self.index)?;
        }
        let pins = machine.pins(page);
        pins.set(pins.get() + 1);
        let who = Registration {
            id: vcpu.id,
            domain: domain.serial.get(),
            guest: *guest,
            allowed: self.limits().is_some(),
            window: vcpu.window.get(),
        };
        let core = machine.on_cpu(|cpu| {
            let mut core = DriverVcpu::register(cpu, page_of, &who, left.as_ref());
            machine.clock_starts(self.index);
            if let Some(left) = &left {
                core.go_on(cpu, page_of, left);
            }
            core
        });
        *vcpu.registered.borrow_mut() = Some((core, page));
        vcpu.rdpmc_exits.set(false);
        vcpu.disturbances.set(vcpu.disturbances.get() + 2);
        let good = domain.kind == crate::shape::Kind::Good;
        if goes_on && good && vcpu.observer.get() != guest.observer {
            let observer = guest.observer;
            machine.fail(format!("vCPU {} goes on for observer {observer}", self.index));
        }
        vcpu.observer.set(guest.observer);
        if !goes_on {
            vcpu.overflows_seen.set(None);
            // The hypervisor's count starts at 0 from now on.
            vcpu.tsc_sum.set(0);
            vcpu.sums.set([0; MAX_SLOTS]);
        } else if domain.kind == crate::shape::Kind::Hostile {
            // The vCPU's page may have any content.
            vcpu.sampled.set([USR | OS; SLOTS]);
        }
        Ok(())
    }

    fn unregister(&mut self) {
        let kept = self.on_vcpu(|cpu, vcpu, page, _| {
            let window = vcpu.unregister(cpu, page);
            (window, without_steps(|| page.overflows.load(Relaxed)))
        });
        if let Some((window, overflows)) = kept {
            let vcpu = self.vcpu();
            vcpu.window.set(window);
            vcpu.overflows_before.update(|before| before.wrapping_add(overflows));
        }
        let exits = self.domain().hardware;
        self.vcpu().set_counts(Counts::Nothing, self.machine.steps.get());
        self.vcpu().rdpmc_exits.set(exits);
        self.vcpu().at_switch.set(None);
        if let Some((_, page)) = self.vcpu().registered.take() {
            self.machine.unpin(page);
        }
    }

    fn set_policy(&mut self, _: &HvDomain) -> Result<(), Errno> {
        Err(Errno::SRCH)
    }

    fn list_domains(&mut self, _: &mut HvDomains) {
        unreachable!("no domain here may ask")
    }

    fn clock(&mut self, _: u32, _: u32) -> Result<hv_driver::guest::Clock, Errno> {
        unreachable!("no domain here may ask")
    }

    fn add_stats(&mut self, total: &mut HvStats) {
        for cpu in &self.machine.cpus {
            cpu.core.borrow().stats.add_to(total);
        }
    }

    fn start_profile(&mut self, _: &HvProfile) -> Result<(), Errno> {
        unreachable!("no counter is the host's own")
    }

    fn take_samples(&mut self, _: &mut HvSamples) -> Result<(), Errno> {
        unreachable!("no counter is the host's own")
    }

    fn stop_profile(&mut self) -> Result<(), Errno> {
        unreachable!("no counter is the host's own")
    }

    fn start_accounts(&mut self, _: &HvAccounting) -> Result<(), Errno> {
        unreachable!("no counter is the host's own")
    }

    fn read_accounts(&mut self, _: &mut HvAccounts) -> Result<(), Errno> {
        unreachable!("no counter is the host's own")
    }

    fn stop_accounts(&mut self) -> Result<(), Errno> {
        unreachable!("no counter is the host's own")
    }
}
