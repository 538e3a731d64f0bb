// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Treats the pages of vCPUs as a guest's memory: each page has a number, and a frame of its guest.
//! A guest without rings of its own knows the machine's frames, which are other ones after a
//! restore.

use std::cell::Cell;

use shared_abi::VcpuPage;

use crate::machine::{Domain, Machine, PAGES};

/// Guest frame number of the first page.
pub const GFN_BASE: u64 = 0x1000;

impl Machine {
    /// Returns the number of the page of a vCPU for a user.
    pub fn page_number(&self, vcpu: usize, user: usize) -> usize {
        user * self.vcpus.len() + vcpu
    }

    /// Returns the page with this number.
    pub fn page(&self, number: usize) -> &VcpuPage {
        &self.vcpus[number % self.vcpus.len()].pages[number / self.vcpus.len()]
    }

    /// Returns how often the page is registered.
    pub fn pins(&self, number: usize) -> &Cell<u32> {
        &self.vcpus[number % self.vcpus.len()].pins[number / self.vcpus.len()]
    }

    /// Notes that the page has one registration less.
    pub fn unpin(&self, number: usize) {
        self.pins(number).set(self.pins(number).get() - 1);
    }

    /// Gives a domain's pages other frames: each gets the frame that another user's page of the
    /// same vCPU had before.
    pub fn move_frames(&self, domain: &Domain) {
        if !domain.hardware {
            domain.frames_moved.set((domain.frames_moved.get() + 1) % PAGES);
        }
    }

    /// Returns the guest frame number that a vCPU's page has now.
    pub fn gfn_of(&self, vcpu: usize, page: &VcpuPage) -> u64 {
        let user = self.vcpus[vcpu].pages.iter().position(|own| std::ptr::eq(own, page));
        let moved = self.domains[self.vcpus[vcpu].domain].frames_moved.get();
        let place = (user.expect("a page of the vCPU's") + moved) % PAGES;
        GFN_BASE + self.page_number(vcpu, place) as u64
    }

    /// Returns the number of the page that a domain has at a frame, if there is one.
    pub fn page_at_gfn(&self, domain: &Domain, gfn: u64) -> Option<usize> {
        let frame = gfn.checked_sub(GFN_BASE)? as usize;
        let (place, vcpu) = (frame / self.vcpus.len(), frame % self.vcpus.len());
        let user = (place + PAGES - domain.frames_moved.get()) % PAGES;
        let own = place < PAGES && domain.vcpus.contains(&vcpu);
        own.then(|| self.page_number(vcpu, user))
    }
}
