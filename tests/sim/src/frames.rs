// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The pages of vCPUs as a guest's memory: each has a number, the frame of its guest.

use std::cell::Cell;
use std::ops::Range;

use shared_abi::VcpuPage;

use crate::machine::{Machine, PAGES};

/// Guest frame number of the first page.
pub const GFN_BASE: u64 = 0x1000;

impl Machine {
    /// The number of a user's page of a vCPU.
    pub fn page_number(&self, vcpu: usize, user: usize) -> usize {
        user * self.vcpus.len() + vcpu
    }

    /// The page with this number.
    pub fn page(&self, number: usize) -> &VcpuPage {
        &self.vcpus[number % self.vcpus.len()].pages[number / self.vcpus.len()]
    }

    /// How often it is registered.
    pub fn pins(&self, number: usize) -> &Cell<u32> {
        &self.vcpus[number % self.vcpus.len()].pins[number / self.vcpus.len()]
    }

    /// It is registered once less.
    pub fn unpin(&self, number: usize) {
        self.pins(number).set(self.pins(number).get() - 1);
    }

    /// Whether it is one of these vCPUs' pages.
    pub fn is_page_of(&self, number: usize, vcpus: &Range<usize>) -> bool {
        number / self.vcpus.len() < PAGES && vcpus.contains(&(number % self.vcpus.len()))
    }
}
