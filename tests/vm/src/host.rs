// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Asks the host of this guest for what tests need: to move the guest's vCPUs, to let the guest
//! count or forbid it, and to report how long vCPUs have run and what the driver has done.
//!
//! Xen's control domain is its own host ([`xen`](crate::xen)); a guest of KVM asks a program there
//! ([`kvm`](crate::kvm)).

use anyhow::{Context, Result};
use shared_abi::hypercall::{HOOK_SWITCH_TO, HvStats};

use crate::kvm::Kvm;
use crate::raw::{Argument, Refusal};
use crate::xen::Xen;

/// How long a vCPU has been in each state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runstate {
    /// The time on a physical CPU. Unit: ns.
    pub running_ns: u64,
    /// The time of waiting for a physical CPU. Unit: ns.
    pub runnable_ns: u64,
}

/// What the calling guest can ask of its host.
pub trait Host: Sync {
    /// Lets a vCPU run on the physical CPUs in the mask `pcpus` only.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such vCPU, or if none of the CPUs is online.
    fn set_affinity(&self, vcpu: u32, pcpus: u64) -> Result<(), Refusal>;

    /// Makes waiting vCPUs get a physical CPU as soon as possible, or undoes that.
    ///
    /// # Errors
    ///
    /// The scheduler's error.
    fn preempt_often(&self, often: bool) -> Result<(), Refusal>;

    /// Returns how long a vCPU has been in each state.
    ///
    /// # Errors
    ///
    /// There is no such vCPU.
    fn runstate(&self, vcpu: u32) -> Result<Runstate, Refusal>;

    /// Allows the guest to count, or forbids it.
    ///
    /// # Errors
    ///
    /// There is no driver.
    fn allow(&self, enabled: bool) -> Result<(), Refusal>;

    /// Returns what the driver has done since it began.
    ///
    /// # Errors
    ///
    /// There is no driver, or it is off.
    fn stats(&self) -> Result<HvStats, Refusal>;

    /// Returns how often the driver has switched vCPUs in.
    ///
    /// # Errors
    ///
    /// There is no driver, or it is off.
    fn switches(&self) -> Result<u64, Refusal> {
        Ok(self.stats()?.hook[HOOK_SWITCH_TO].calls)
    }

    /// Makes the driver's own hypercall, with any operation and any argument.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    fn perfctr_op(&self, op: u32, argument: Argument<'_>, length: u32) -> Result<(), Refusal>;

    /// Returns the hypervisor if the guest is Xen's control domain, which controls its host. No
    /// other guest may.
    fn xen(&self) -> Option<&Xen>;
}

/// Returns the calling guest's host.
///
/// # Errors
///
/// The guest is neither Xen's control domain, nor in a machine of KVM's that the testbed has
/// started.
pub fn host() -> Result<Box<dyn Host>> {
    if let Ok(xen) = Xen::open() {
        return Ok(Box::new(xen));
    }
    let kvm = Kvm::open().context("this is neither Xen's control domain nor a guest of KVM")?;
    Ok(Box::new(kvm))
}
