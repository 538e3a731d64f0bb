// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What is different where the host is Linux with KVM: overflows come by a non-maskable interrupt,
//! whose work waits until interrupts are next enabled, and a guest is saved, or migrated, in the
//! middle of anything (`docs/adr/0023-restored-guests-of-kvm-go-on-from-their-pages.md`).

use guest_kmod::handshake::{caps, handshake};
use hv_driver::Left;
use shared_abi::hypercall::{HvRegister, OP_GO_ON, OP_REGISTER, OP_UNREGISTER};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_EXECUTING, VCPU_REGISTERED};
use shared_abi::{Errno, VcpuPage};
use zerocopy::{FromBytes, IntoBytes};

use crate::guest::Linux;
use crate::machine::{Machine, unheard};
use crate::shape::Kind;

impl Machine {
    /// A vCPU's thread on the host has left the guest, or is about to enter it; an overflow that
    /// came meanwhile is seen to now, while its counters are not loaded.
    pub fn take_late_overflow(&self, index: usize) {
        let cpu = &self.cpus[self.here.get()];
        // Or a little later, when the next one executes.
        if self.shape.kvm && cpu.pmu.interrupts() && self.steps.get() & 1 == 0 {
            let virq = &self.vcpus[index].virq;
            let before = virq.get();
            self.see_to_overflow(Some(index));
            if virq.get() != before {
                self.fail(format!("vCPU {index} is told of an overflow while it does not execute"));
            }
        }
    }

    /// Whether a domain can be given to another process, on this host or the other one: none of its
    /// vCPUs executes, whatever they are in the middle of, and its new host will let it count.
    pub fn can_move(&self, index: usize) -> bool {
        let domain = &self.domains[index];
        let off = self.vcpus[domain.vcpus.clone()].iter().all(|vcpu| vcpu.on.get().is_none());
        self.shape.kvm && domain.kind != Kind::Stranger && domain.allowed.get() && off
    }

    /// Gives it to another process.  What its pages say comes along, and nothing else of the
    /// driver.
    pub fn move_to_another(&self, index: usize) {
        let domain = &self.domains[index];
        for vcpu in domain.vcpus.clone() {
            self.destroy_vcpu(vcpu);
            self.vcpus[vcpu].restored.set(true);
        }
        let other = 1 - domain.host.get();
        if self.cpus.iter().any(|cpu| cpu.host == other) {
            domain.host.set(other);
        }
        domain.serial.set(self.new_serial());
    }

    /// Whether one of its vCPUs has not executed since it was given away.
    pub fn is_restored(&self, index: usize) -> bool {
        self.vcpus[self.domains[index].vcpus.clone()].iter().any(|vcpu| vcpu.restored.get())
    }

    /// What the guest's kernel keeps in mind of a hypercall that it is about to make.
    pub fn note_wish(&self, index: usize, op: u32, bytes: &[u8]) {
        if op == OP_REGISTER {
            self.vcpus[index].wanted.set(HvRegister::read_from_bytes(bytes).ok());
        }
    }

    /// And of one that it has made.
    pub fn note_answer(&self, index: usize, op: u32, result: Result<(), Errno>) {
        let kept = match op {
            OP_REGISTER => result.is_ok(),
            OP_UNREGISTER => !matches!(result, Ok(()) | Err(Errno::NXIO)),
            _ => true,
        };
        if !kept {
            self.vcpus[index].wanted.set(None);
        }
    }

    /// The interrupt that a restored vCPU takes before it executes anything else.
    pub fn take_restoration(&self, index: usize) {
        let vcpu = &self.vcpus[index];
        if !vcpu.restored.get() {
            return;
        }
        let flags = unheard(|| vcpu.page.flags.load(Relaxed));
        let is_left = flags & (VCPU_REGISTERED | VCPU_EXECUTING) == VCPU_REGISTERED;
        if let Some(wanted) = vcpu.wanted.get().filter(|_| is_left) {
            self.go_on_from_page(index, wanted);
        }
        vcpu.restored.set(false);
    }

    /// Its kernel has the hypervisor that is here now go on from the page.
    fn go_on_from_page(&self, index: usize, mut wanted: HvRegister) {
        let vcpu = &self.vcpus[index];
        let domain = &self.domains[vcpu.domain];
        let went_on = handshake(&Linux::here(self)).and_then(|answer| {
            if caps(&answer) != domain.caps.get() {
                return Err(Errno::STALE);
            }
            self.hypercall(OP_GO_ON, wanted.as_mut_bytes())
        });
        match went_on {
            // Threads look what has overflowed, which only the driver before knew.
            Ok(()) => vcpu.virq.set(true),
            Err(errno) if domain.kind == Kind::Good && !self.is_gone() => {
                self.fail(format!("vCPU {index} cannot go on: {errno:?}"));
            }
            Err(_) => vcpu.online.set(false),
        }
    }

    /// What a vCPU's page says to go on from.  Nobody writes there but a hostile kernel.
    pub fn left_in(&self, page: &VcpuPage) -> Result<Left, Errno> {
        let left = unheard(|| Left::of(page, &self.driver.caps))?;
        let counts = self.cpus[self.here.get()].core.borrow().counts();
        if counts { Ok(left) } else { Err(Errno::NODEV) }
    }
}
