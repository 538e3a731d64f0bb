// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts how many non-maskable interrupts the host has received, and how many of them its counters
//! have raised at most.

use std::fmt;

use anyhow::Result;
use perfctr::rdpmc::Hardware;
use shared_abi::read::Counters;
use vm_tests::emulated::RAISED;
use vm_tests::interrupts::{Interrupt, received};
use vm_tests::threads::{SELF, run_on};

/// How many NMIs all of the host's CPUs have received, and how many interrupts counters raised.
#[derive(Debug)]
pub struct Nmis {
    received: u64,
    raised: u64,
}

/// Counts the interrupts until now. No counter may interrupt any more.
pub fn count(cpus: &[usize]) -> Result<Nmis> {
    let received = received(Interrupt::Nmi)?;
    let mut raised = 0;
    for cpu in cpus {
        run_on(SELF, &[*cpu])?;
        raised += Hardware.counter(RAISED);
    }
    Ok(Nmis { received, raised })
}

/// The suite `kvm` reads this from the console.
impl fmt::Display for Nmis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the host's NMIs: {} received, {} raised by counters", self.received, self.raised)
    }
}
