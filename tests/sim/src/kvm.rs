// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates what is different if the host is Linux with KVM: overflows come by a non-maskable
//! interrupt, whose work waits until interrupts are next enabled, and a guest is saved, or
//! migrated, in the middle of anything
//! (`docs/adr/0023-restored-guests-of-kvm-go-on-from-their-pages.md`).

use guest_kmod::hal::Hypervisor;
use hv_driver::Left;
use shared_abi::hypercall::HvQuery;
use shared_abi::{Errno, VcpuPage};

use crate::machine::{Machine, is_listening, set_listening, without_steps};
use crate::shape::Kind;

/// The hypervisor beneath a vCPU that was restored. Nothing happens while the vCPU's kernel looks
/// at the page, but anything may happen during a hypercall.
struct Beneath<'a> {
    machine: &'a Machine,
    /// Whether accesses to pages are steps.
    listening: bool,
}

impl Hypervisor for Beneath<'_> {
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let before = is_listening();
        set_listening(self.listening);
        let answer = self.machine.hypercall(op, argument);
        set_listening(before);
        answer
    }
}

impl Machine {
    /// Handles an overflow that came while a vCPU's thread on the host left the guest, or was about
    /// to enter it: the vCPU's counters are not loaded now.
    pub fn take_late_overflow(&self, index: usize) {
        let cpu = &self.cpus[self.here.get()];
        // It may also be handled a little later, when the next vCPU executes.
        if self.shape.kvm && cpu.pmu.interrupts() && self.steps.get() & 1 == 0 {
            let virq = &self.vcpus[index].virq;
            let before = virq.get();
            self.see_to_overflow(Some(index));
            if virq.get() != before {
                self.fail(format!("vCPU {index} is told of an overflow while it does not execute"));
            }
        }
    }

    /// Returns whether a domain can be moved to another process, on this host or the other one:
    /// none of its vCPUs executes, whatever they are in the middle of, and its new host will let it
    /// count.
    pub fn can_move(&self, index: usize) -> bool {
        let domain = &self.domains[index];
        let off = self.vcpus[domain.vcpus.clone()].iter().all(|vcpu| vcpu.on.get().is_none());
        self.shape.kvm && domain.kind != Kind::Stranger && domain.allowed.get() && off
    }

    /// Moves a domain to another process. What its pages say is moved with it, and nothing else of
    /// the driver.
    pub fn move_to_another(&self, index: usize) {
        let domain = &self.domains[index];
        for vcpu in domain.vcpus.clone() {
            let left = &self.vcpus[vcpu];
            if !left.restored.replace(true) {
                left.counted_when_left.set(left.counts.get());
            }
            self.destroy_vcpu(vcpu);
        }
        let other = 1 - domain.host.get();
        if self.cpus.iter().any(|cpu| cpu.host == other) {
            domain.host.set(other);
        }
        domain.serial.set(self.new_serial());
    }

    /// Returns whether one of its vCPUs has not executed since the domain was moved.
    pub fn is_restored(&self, index: usize) -> bool {
        self.vcpus[self.domains[index].vcpus.clone()].iter().any(|vcpu| vcpu.restored.get())
    }

    /// Has a restored vCPU take the interrupt that it gets before it executes anything else.
    pub fn take_restoration(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        let first = self.domains[vcpu.domain].answer.get();
        // A kernel without the module has no use for the interrupt.
        if let Some(before) = first.filter(|_| vcpu.restored.get()) {
            self.interrupt_restored(index, &before);
        }
        vcpu.restored.set(false);
    }

    fn interrupt_restored(&self, index: usize, before: &HvQuery) {
        let vcpu = &self.vcpus[index];
        let host = Beneath { machine: self, listening: is_listening() };
        let ours = without_steps(|| vcpu.restoration.interrupted(&host, before, vcpu.page()));
        // Threads look which counters have overflowed, which only the driver before knew.
        vcpu.virq.set(vcpu.virq.get() || ours);
        if vcpu.restoration.wants_look() {
            self.look_again(index, before);
        }
    }

    /// Has the vCPU's kernel look whether it may still count. If not, it registers its page anew
    /// later.
    fn look_again(&self, index: usize, before: &HvQuery) {
        let vcpu = &self.vcpus[index];
        let host = Beneath { machine: self, listening: is_listening() };
        let refused = vcpu.restoration.looks(&host, before, vcpu.online.get());
        vcpu.restoration.looked();
        let good = self.domains[vcpu.domain].kind == Kind::Good && !self.is_gone();
        if refused && good && vcpu.online.get() {
            self.fail(format!("vCPU {index} cannot go on"));
        }
        if refused {
            vcpu.online.set(false);
            vcpu.lost_page.set(true);
        }
    }

    /// Returns what a vCPU's page says to continue from. Nobody writes there but a hostile kernel.
    pub fn left_in(&self, page: &VcpuPage) -> Result<Left, Errno> {
        let left = without_steps(|| Left::of(page, &self.driver.caps))?;
        let counts = self.cpus[self.here.get()].core.borrow().counts();
        if counts { Ok(left) } else { Err(Errno::NODEV) }
    }
}
