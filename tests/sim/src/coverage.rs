// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Records in which features a run differs from other runs.
//!
//! A feature is a pair of consecutive steps of one agent, together with the actions that happened
//! to the machine between them and a few facts about it.

use std::cell::{Cell, RefCell};
use std::mem::offset_of;

use shared_abi::limits::PAGE_BYTES;
use shared_abi::sync::simulated::Access;
use shared_abi::thread_page::{ThreadPage, ThreadSlot};
use shared_abi::vcpu_page::{VcpuPage, VcpuSlot};

use crate::choice::Action;
use crate::machine::Machine;
use crate::search::Object;
use crate::trace::Step;

/// The number of bits of a feature.
const BITS: u32 = 18;

/// The features of a run.
#[derive(Debug, Default)]
pub struct Coverage {
    seen: RefCell<Vec<u64>>,
    last: RefCell<Vec<u64>>,
    between: Cell<u64>,
}

impl Coverage {
    /// Makes the coverage of a machine with this many agents. It stays empty unless it is wanted.
    pub fn new(wanted: bool, agents: usize) -> Self {
        if !wanted {
            return Self::default();
        }
        Self {
            seen: RefCell::new(vec![0; 1 << (BITS - 6)]),
            last: RefCell::new(vec![0; agents]),
            between: Cell::new(0),
        }
    }

    /// Records that something happens to the machine.
    pub fn happens(&self, action: Action) {
        let before = self.between.get();
        self.between.set(before.wrapping_mul(31).wrapping_add(action.code() + 1));
    }

    /// Adds these features to `all`. Returns how many were new.
    pub fn add_to(&self, all: &mut Vec<u64>) -> u64 {
        let seen = self.seen.borrow();
        all.resize(seen.len(), 0);
        let mut new = 0;
        for (all, seen) in all.iter_mut().zip(&*seen) {
            new += u64::from((seen & !*all).count_ones());
            *all |= seen;
        }
        new
    }
}

/// Returns a place in a page, which is the same for all slots.
fn place(offset: usize, slots: usize, slot: usize) -> u64 {
    let field = if offset < slots { offset } else { slots + (offset - slots) % slot };
    field as u64
}

impl Machine {
    /// Returns a number for the kind of a step.
    fn kind_of(&self, step: Step) -> u64 {
        match step {
            Step::Page(address, access) => {
                let (page, place) = match self.page_at(address) {
                    Some(Object::VcpuPage(index)) => {
                        let offset =
                            (address - (&raw const self.vcpus[index].pages).addr()) % PAGE_BYTES;
                        (1, place(offset, offset_of!(VcpuPage, slots), size_of::<VcpuSlot>()))
                    }
                    Some(Object::Thread(index)) => {
                        let offset = address - (&raw const self.threads[index].page).addr();
                        (2, place(offset, offset_of!(ThreadPage, slots), size_of::<ThreadSlot>()))
                    }
                    _ => (3, 0),
                };
                page << 16 | place << 1 | u64::from(access == Access::Store)
            }
            Step::Rdpmc(index) => 4 << 16 | u64::from(index >> 30),
            Step::Rdtsc => 5 << 16,
            Step::Rdmsr(register) => 6 << 16 | u64::from(register & 0xffff),
            Step::Wrmsr(register, value) => {
                7 << 16 | u64::from(register & 0xffff) << 1 | u64::from(value == 0)
            }
            Step::Hypercall(op) => 8 << 16 | u64::from(op),
            Step::Note(note) => {
                9 << 16 | note.bytes().fold(0, |all: u64, b| all.wrapping_mul(7) + u64::from(b))
            }
        }
    }

    /// Records a step of the present agent.
    pub fn cover(&self, step: Step) {
        let mut last = self.coverage.last.borrow_mut();
        let Some(last) = self.agent.get().and_then(|agent| last.get_mut(agent)) else { return };
        let cpu = &self.cpus[self.here.get()];
        let vcpu = cpu.current.get().map(|vcpu| &self.vcpus[vcpu]);
        let thread = vcpu.and_then(|vcpu| vcpu.current.get()).map(|thread| &self.threads[thread]);
        let facts = [
            cpu.pmu.interrupts(),
            vcpu.is_some_and(|vcpu| vcpu.virq.get()),
            vcpu.is_some_and(|vcpu| vcpu.put_off.get().is_some()),
            vcpu.is_some_and(|vcpu| vcpu.sampled.get() != [0; crate::model::SLOTS]),
            vcpu.is_some_and(|vcpu| !self.domains[vcpu.domain].allowed.get()),
            thread.is_some_and(|thread| thread.signal.get().is_some()),
            thread.is_some_and(|thread| thread.failures.get() > 0),
        ];
        let facts = facts.iter().fold(0, |all, &fact| all << 1 | u64::from(fact));
        let kind = self.kind_of(step) << 7 | facts;
        let between = self.coverage.between.take();
        let mut feature = last.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ kind;
        feature = (feature ^ between << 40).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> (64 - BITS);
        self.coverage.seen.borrow_mut()[(feature >> 6) as usize] |= 1 << (feature & 63);
        *last = kind;
    }
}
