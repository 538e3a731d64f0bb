// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples of the host itself, by hypercalls of the control domain.

use shared_abi::hypercall::{
    HvProfile, HvSample, HvSamples, OP_PROFILE_READ, OP_PROFILE_START, OP_PROFILE_STOP,
    PROFILE_AT_GUESTS, SAMPLES_MAX,
};
use zerocopy::FromZeros;

use crate::raw::{Argument, Refusal};
use crate::xen::Xen;

/// The host's instructions (event C0H) in ring 0.
pub const RING_0_ONLY: u64 = 0x42_00c0;
/// The host's instructions in the other rings.
pub const OUTSIDE_ONLY: u64 = 0x41_00c0;
/// The host's instructions in all rings.
pub const BOTH: u64 = 0x43_00c0;

/// The host's samples, with these flags.
#[derive(Debug)]
pub struct Profile<'a> {
    xen: &'a Xen,
    flags: u64,
}

impl<'a> Profile<'a> {
    /// Returns a profile whose samples of the hypervisor say where the hypervisor was.
    pub fn new(xen: &'a Xen) -> Self {
        Self { xen, flags: 0 }
    }

    /// Returns the same profile, whose samples of the hypervisor say where its guest was left.
    pub fn at_guests(&self) -> Self {
        Self { flags: PROFILE_AT_GUESTS, ..*self }
    }

    /// Returns whether its samples of the hypervisor say where the guest was left.
    pub fn is_at_guests(&self) -> bool {
        self.flags & PROFILE_AT_GUESTS != 0
    }

    /// Begins to sample the physical CPUs in the mask `cpus`.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn start(&self, evntsel: u64, period: u64, cpus: u64) -> Result<(), Refusal> {
        let mut profile = HvProfile { evntsel, period, cpus, flags: self.flags };
        let length = size_of::<HvProfile>() as u32;
        self.xen.perfctr_op(OP_PROFILE_START, Argument::of(&mut profile), length)
    }

    /// Ends sampling.
    ///
    /// # Errors
    ///
    /// Nobody samples.
    pub fn stop(&self) -> Result<(), Refusal> {
        self.xen.perfctr_op(OP_PROFILE_STOP, Argument::Null, 0)
    }

    /// Takes the oldest samples of a physical CPU, which are at most [`SAMPLES_MAX`].
    ///
    /// # Errors
    ///
    /// Nobody samples, or nobody samples this CPU.
    pub fn some(&self, cpu: u32) -> Result<HvSamples, Refusal> {
        let mut samples = HvSamples::new_zeroed();
        samples.cpu = cpu;
        let length = size_of::<HvSamples>() as u32;
        self.xen.perfctr_op(OP_PROFILE_READ, Argument::of(&mut samples), length)?;
        Ok(samples)
    }

    /// Takes all available samples into `to`. Returns how many were lost since the start.
    ///
    /// # Errors
    ///
    /// Those of [`some`](Self::some).
    pub fn take(&self, cpu: u32, to: &mut Vec<HvSample>) -> Result<u64, Refusal> {
        loop {
            let samples = self.some(cpu)?;
            to.extend_from_slice(&samples.sample[..samples.count as usize]);
            if (samples.count as usize) < SAMPLES_MAX {
                return Ok(samples.lost);
            }
        }
    }
}
