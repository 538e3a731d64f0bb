// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hypervisor around the driver's core: what the glue in Xen does, and Xen itself.

use std::rc::Rc;

use hv_driver::hypercall::{Request, decode};
use hv_driver::msr;
use hv_driver::vcpu::GuestMode;
use shared_abi::limits::MAX_SLOTS;
use shared_abi::read::Counters;
use shared_abi::slot::slots_of;
use shared_abi::{Config, Errno, PhysSlot, planted};

use crate::machine::{Level, Machine};
use crate::trace::Step;

/// Guest frame number of a vCPU's page, by the vCPU's place in the machine.
pub const GFN_BASE: u64 = 0x1000;

/// The physical CPU's PMU as the driver drives it.
struct Hardware<'a>(&'a Machine);

impl Counters for Hardware<'_> {
    fn rdpmc(&self, index: u32) -> u64 {
        self.0.step(Step::Rdpmc(index));
        let slot = PhysSlot::from_rdpmc(index).expect("the driver reads counters that exist");
        self.0.cpus[self.0.here.get()].pmu.counter(slot)
    }

    fn rdtsc(&self) -> u64 {
        self.0.step(Step::Rdtsc);
        let tsc = self.0.tsc();
        self.0.cpus[self.0.here.get()].tsc_seen.set(Some(tsc));
        tsc
    }
}

impl hv_driver::Pmu for Hardware<'_> {
    fn rdmsr(&self, register: u32) -> u64 {
        self.0.step(Step::Rdmsr(register));
        if register != msr::IA32_PERF_GLOBAL_STATUS {
            self.0.fail(format!("MSR {register:#x} is read"));
        }
        self.0.cpus[self.0.here.get()].pmu.status()
    }

    fn wrmsr(&self, register: u32, value: u64) {
        self.0.step(Step::Wrmsr(register, value));
        let cpu = &self.0.cpus[self.0.here.get()];
        let starts_or_stops =
            matches!(register, msr::IA32_PERF_GLOBAL_CTRL | msr::IA32_PERF_GLOBAL_OVF_CTRL);
        if !cpu.may_program.get() && !starts_or_stops {
            self.0.fail(format!("MSR {register:#x} is written where only reading is allowed"));
        }
        if let Err(what) = cpu.pmu.wrmsr(register, value) {
            self.0.fail(what);
        }
    }
}

fn mode(kernel: bool) -> GuestMode {
    if kernel { GuestMode::Kernel } else { GuestMode::User }
}

impl Machine {
    /// Runs `entry` in the hypervisor, which may or may not program counters; starting, stopping
    /// and acknowledging sampling ones is always allowed.
    fn in_hypervisor<R>(&self, may_program: bool, entry: impl FnOnce() -> R) -> R {
        self.at_level(Level::Hypervisor, || {
            let cpu = &self.cpus[self.here.get()];
            cpu.may_program.set(may_program);
            cpu.tsc_seen.set(None);
            let result = entry();
            cpu.may_program.set(false);
            result
        })
    }

    /// Switches this CPU to `next`, in the hypervisor's own agent.
    pub fn switch_vcpu(&self, next: Option<usize>) {
        self.step(Step::Note("switch"));
        let cpu = &self.cpus[self.here.get()];
        if let Some(late) = cpu.lazy.get() {
            self.switch_from(late);
            cpu.lazy.set(None);
        }
        if let Some(prev) = cpu.current.take() {
            // Xen keeps the idle vCPU's predecessor loaded, but its counters stop here.
            if planted!(LazyIdleNotFolded, true, next.is_some()) {
                self.switch_from(prev);
            } else {
                cpu.lazy.set(Some(prev));
            }
            self.clock_stops(prev);
            self.check_sums(prev);
            self.vcpus[prev].on.set(None);
        }
        if let Some(next) = next {
            self.switch_to(next);
            self.clock_starts(next);
            cpu.current.set(Some(next));
            self.check_residue();
        }
        cpu.switching.set(false);
    }

    fn switch_from(&self, vcpu: usize) {
        self.in_hypervisor(false, || {
            if let Some((core, page)) = &mut *self.vcpus[vcpu].registered.borrow_mut() {
                let pcpu = &mut self.cpus[self.here.get()].core.borrow_mut();
                core.switch_from(&self.driver, pcpu, &Hardware(self), &self.vcpus[*page].page);
            }
        });
    }

    fn switch_to(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let here = self.here.get();
        let notify = self.in_hypervisor(true, || {
            let pcpu = &mut self.cpus[here].core.borrow_mut();
            match &mut *vcpu.registered.borrow_mut() {
                Some((core, page)) => core.switch_to(
                    &self.driver,
                    pcpu,
                    &Hardware(self),
                    &self.vcpus[*page].page,
                    here as u32,
                    mode(vcpu.kernel_mode.get()),
                    self.domains[vcpu.domain].allowed.get(),
                ),
                None => {
                    pcpu.run_stranger();
                    false
                }
            }
        });
        self.notify(index, planted!(OverflowOfOthersDropped, notify, false));
    }

    /// Sends a vCPU the virtual interrupt.
    fn notify(&self, vcpu: usize, notify: bool) {
        let virq = &self.vcpus[vcpu].virq;
        virq.set(virq.get() || notify);
    }

    /// The PMU interrupts this CPU, in the hypervisor's own agent.
    pub fn take_pmi(&self) {
        let cpu = &self.cpus[self.here.get()];
        cpu.pmu.take_interrupt();
        let current = cpu.current.get();
        let notify = self.in_hypervisor(false, || {
            let pcpu = &mut cpu.core.borrow_mut();
            let mut registered = current.map(|vcpu| self.vcpus[vcpu].registered.borrow_mut());
            match registered.as_mut().and_then(|registered| registered.as_mut()) {
                Some((core, page)) => {
                    let page = &self.vcpus[*page].page;
                    core.interrupt(&self.driver, pcpu, &Hardware(self), page)
                }
                None => {
                    pcpu.acknowledge(&Hardware(self), &self.driver.caps);
                    false
                }
            }
        });
        if let Some(current) = current {
            self.notify(current, notify);
        }
        // The local APIC has masked the entry.
        if planted!(InterruptStaysMasked, true, notify) {
            cpu.pmu.unmask_interrupt();
        }
        cpu.switching.set(false);
    }

    /// A vCPU's clock starts when the hypervisor last looked, or now if it did not.
    fn clock_starts(&self, vcpu: usize) {
        let seen = self.cpus[self.here.get()].tsc_seen.take();
        self.vcpus[vcpu].tsc_start.set(Some(seen.unwrap_or_else(|| self.tsc())));
    }

    fn clock_stops(&self, vcpu: usize) {
        let seen = self.cpus[self.here.get()].tsc_seen.take();
        let vcpu = &self.vcpus[vcpu];
        if let Some(start) = vcpu.tsc_start.take() {
            let ticks = seen.unwrap_or_else(|| self.tsc()).wrapping_sub(start);
            vcpu.tsc_sum.set(vcpu.tsc_sum.get().wrapping_add(ticks));
        }
    }

    /// The guest that executes goes into its kernel, or leaves it.
    pub fn toggle(&self, kernel: bool) {
        if self.is_gone() {
            return;
        }
        let index = self.vcpu_here();
        let vcpu = &self.vcpus[index];
        let notify = self.in_hypervisor(false, || {
            vcpu.kernel_mode.set(kernel);
            if planted!(ToggleIgnored, true, false)
                && let Some((core, page)) = &mut *vcpu.registered.borrow_mut()
            {
                let pcpu = &mut self.cpus[self.here.get()].core.borrow_mut();
                let page = &self.vcpus[*page].page;
                core.toggle(&self.driver, pcpu, &Hardware(self), page, mode(kernel))
            } else {
                false
            }
        });
        self.notify(index, notify);
    }

    /// The hypercall of the vCPU that executes.
    pub fn hypercall(&self, op: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.step(Step::Hypercall(op));
        if self.is_gone() {
            return Err(Errno::NODEV);
        }
        let index = self.vcpu_here();
        let result = self.in_hypervisor(true, || {
            let allowed = self.domains[self.vcpus[index].domain].allowed.get();
            self.cpus[self.here.get()].core.borrow_mut().stats.hypercall();
            let request = decode(&self.driver, op, bytes, allowed)?;
            self.serve(index, request)
        });
        self.check_residue();
        self.check_sums(index);
        result
    }

    fn serve(&self, index: usize, request: Request) -> Result<(), Errno> {
        match request {
            Request::Query => Ok(()),
            Request::Register { gfn } => self.register(index, gfn),
            Request::Unregister => self.unregister(index),
            Request::Load(config) => self.load(index, &config),
            Request::Stop => {
                let registered = &mut *self.vcpus[index].registered.borrow_mut();
                let (core, page) = registered.as_mut().ok_or(Errno::NXIO)?;
                let pcpu = &mut self.cpus[self.here.get()].core.borrow_mut();
                core.stop(&self.driver, pcpu, &Hardware(self), &self.vcpus[*page].page);
                Ok(())
            }
            // No domain here is the control domain.
            Request::Domain { .. } | Request::Stats => Err(Errno::PERM),
        }
    }

    fn load(&self, index: usize, config: &Config) -> Result<(), Errno> {
        let vcpu = &self.vcpus[index];
        let registered = &mut *vcpu.registered.borrow_mut();
        let (core, page) = registered.as_mut().ok_or(Errno::NXIO)?;
        if !self.domains[vcpu.domain].allowed.get() {
            return Err(Errno::PERM);
        }
        let pcpu = &mut self.cpus[self.here.get()].core.borrow_mut();
        core.load(&self.driver, pcpu, &Hardware(self), &self.vcpus[*page].page, config);
        Ok(())
    }

    fn register(&self, index: usize, gfn: u64) -> Result<(), Errno> {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        if !domain.allowed.get() {
            return Err(Errno::PERM);
        }
        if vcpu.registered.borrow().is_some() {
            return Err(Errno::EXIST);
        }
        let page = gfn.checked_sub(GFN_BASE).map(|page| page as usize);
        let page = page.filter(|page| domain.vcpus.contains(page)).ok_or(Errno::INVAL)?;
        self.vcpus[page].pins.set(self.vcpus[page].pins.get() + 1);
        let pcpu = &mut self.cpus[self.here.get()].core.borrow_mut();
        let core = hv_driver::Vcpu::register(
            &self.driver,
            pcpu,
            &Hardware(self),
            &self.vcpus[page].page,
            vcpu.id,
            domain.serial.get(),
            self.here.get() as u32,
        );
        *vcpu.registered.borrow_mut() = Some((core, page));
        // What the hypervisor counts from now on starts at 0.
        vcpu.tsc_sum.set(0);
        vcpu.sums.set([0; MAX_SLOTS]);
        self.clock_starts(index);
        Ok(())
    }

    fn unregister(&self, index: usize) -> Result<(), Errno> {
        let registered = self.vcpus[index].registered.take();
        let (mut core, page) = registered.ok_or(Errno::NXIO)?;
        let pcpu = &mut self.cpus[self.here.get()].core.borrow_mut();
        core.unregister(&self.driver, pcpu, &Hardware(self), &self.vcpus[page].page);
        self.vcpus[page].pins.set(self.vcpus[page].pins.get() - 1);
        Ok(())
    }

    /// The vCPU does not execute again under this hypervisor.
    fn destroy_vcpu(&self, index: usize) {
        if let Some((_, page)) = self.vcpus[index].registered.take() {
            let unpinned = planted!(FrameStaysPinned, 1, 0);
            self.vcpus[page].pins.set(self.vcpus[page].pins.get() - unpinned);
        }
    }

    fn new_serial(&self) -> u64 {
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
            // Its kernel registers the page again before any thread executes.
            self.vcpus[vcpu].online.set(planted!(NotRegisteredAgain, false, true));
        }
        domain.host.set(1 - domain.host.get());
        domain.serial.set(self.new_serial());
        domain.suspending.set(false);
        self.check_unpinned(index);
    }

    /// Forbids a domain, or allows it again.
    pub fn change_policy(&self, index: usize) {
        let domain = &self.domains[index];
        if domain.allowed.replace(!domain.allowed.get()) {
            domain.forbidden.set(domain.forbidden.get() + 1);
        }
    }

    /// No counter that the guest here could read holds events of anybody else.
    pub fn check_residue(&self) {
        let cpu = &self.cpus[self.here.get()];
        let Some(vcpu) = cpu.current.get().map(|vcpu| &self.vcpus[vcpu]) else { return };
        if vcpu.registered.borrow().is_none() {
            return;
        }
        for slot in slots_of(self.driver.caps.slots()) {
            let strangers = cpu.pmu.owners(slot) & !(1 << vcpu.domain);
            if strangers != 0 {
                let (slot, domain) = (slot.index(), vcpu.domain);
                self.fail(format!("domain {domain} can read events of {strangers:#x} in {slot}"));
            }
        }
    }

    /// The hypervisor has let go of every page of a domain.
    fn check_unpinned(&self, domain: usize) {
        for vcpu in self.domains[domain].vcpus.clone() {
            if self.vcpus[vcpu].pins.get() != 0 {
                self.fail(format!("the page of vCPU {vcpu} stays pinned"));
            }
        }
    }

    /// At the end, when nothing is under way: a frame is pinned as often as it is registered.
    pub fn check_pins(&self) {
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            let holds = |v: &&crate::machine::Vcpu| {
                v.registered.borrow().as_ref().is_some_and(|(_, page)| *page == index)
            };
            if vcpu.pins.get() as usize != self.vcpus.iter().filter(holds).count() {
                self.fail(format!("page {index} is pinned {} times", vcpu.pins.get()));
            }
        }
    }
}
