// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The page that the hypervisor publishes for each virtual CPU.
//!
//! It is a guest page, registered by hypercall; the hypervisor only ever writes it.  The guest
//! kernel and, read-only, the monitored threads read it under its sequence word.  It says enough
//! for another hypervisor to go on from there, once, after the guest was restored.

use crate::layout::shared_layout;
use crate::limits::{MAX_SLOTS, PAGE_BYTES};
use crate::seq::Seq;
use crate::sync::{AtomicU32, AtomicU64};

/// [`VcpuPage::flags`]: the hypervisor publishes here; otherwise the page means nothing.
pub const VCPU_REGISTERED: u32 = 1 << 0;
/// [`VcpuPage::flags`]: the guest may read counters in its user mode and in its kernel.
pub const VCPU_DIRECT: u32 = 1 << 1;
/// [`VcpuPage::flags`]: the clock that the guest reads is the one that `tsc_start` was read from.
pub const VCPU_TSC: u32 = 1 << 2;

/// [`VcpuPage::flags`]: the vCPU executes.  A guest that executes and finds the bit clear was
/// restored after the hypervisor had written the page.
pub const VCPU_EXECUTING: u32 = 1 << 3;

/// One physical counter as this vCPU sees it.
///
/// `Phys* = sum + ((counter - start) & mask)`, see [`count`](crate::count).
#[derive(Debug, Default)]
#[repr(C)]
pub struct VcpuSlot {
    /// W: hypervisor, R: guest, unit: events.  Counted while the vCPU ran, up to the last fold.
    /// Never goes backwards while the page is registered.
    pub sum: AtomicU64,
    /// W: hypervisor, R: guest, unit: raw counter value.  What the hardware counter held when it
    /// last began to run: when the configuration was loaded, the vCPU was switched in, the guest
    /// entered a mode in which it counts, or after an overflow's interrupt.  For a slot
    /// that interrupts, while the vCPU does not execute: the value from which it goes on.
    pub start: AtomicU64,
    /// W: hypervisor, R: guest.  All bits of the counter's width while it is running for the ring
    /// that executes; 0 while it is not, which makes the formula yield `sum`.
    pub mask: AtomicU64,
    /// W: hypervisor.  Event select of a slot in [`VcpuPage::loaded`], with
    /// [`EVNTSEL_INT`](crate::arch::EVNTSEL_INT) if it interrupts.
    pub evntsel: AtomicU64,
}

shared_layout!(VcpuSlot, "perfctr_vcpu_slot", 32, {
    0 sum: "__u64",
    8 start: "__u64",
    16 mask: "__u64",
    24 evntsel: "__u64",
});

/// The page.
#[derive(Debug)]
#[repr(C)]
pub struct VcpuPage {
    /// W: hypervisor at registration.  [`VCPU_PAGE_MAGIC`](crate::version::VCPU_PAGE_MAGIC).
    pub magic: AtomicU32,
    /// W: hypervisor at registration.  [`ABI_WORD`](crate::version::ABI_WORD).
    pub abi: AtomicU32,
    /// W: hypervisor at registration, unit: bytes of the page that have a meaning.
    pub size_bytes: AtomicU32,
    /// W: hypervisor.  `VCPU_*` bits.
    pub flags: AtomicU32,
    /// W: hypervisor.  Orders everything below, see [`seq`](crate::seq).
    pub seq: Seq,
    /// W: hypervisor at registration.  The vCPU's number in its domain.
    pub vcpu_id: AtomicU32,
    /// W: hypervisor.  One bit per slot that is programmed for this vCPU.
    pub loaded: AtomicU32,
    /// W: hypervisor, unit: TSC ticks.  Time this vCPU has run, up to the last fold.
    pub tsc_sum: AtomicU64,
    /// W: hypervisor, unit: TSC value as the guest reads it.  Sampled when the vCPU was
    /// last switched in, or its page registered.
    pub tsc_start: AtomicU64,
    /// W: hypervisor.  How often a configuration was programmed by hypercall.
    pub generation: AtomicU64,
    /// W: hypervisor.  How often the vCPU was switched in.
    pub switches: AtomicU64,
    /// W: hypervisor.  How often it was switched in on another physical CPU than before.
    pub migrations: AtomicU64,
    /// W: hypervisor.  Overflows that interrupted.
    pub overflows: AtomicU64,
    /// W: hypervisor.  Loads whose overflows were put off, because the vCPU had too many lately.
    pub throttled: AtomicU64,
    /// W: hypervisor.  0.
    pub reserved_head: [AtomicU64; 5],
    /// W: hypervisor.  One slot per physical counter, see [`PhysSlot`](crate::PhysSlot).
    pub slots: [VcpuSlot; MAX_SLOTS],
    /// W: hypervisor.  0.
    pub reserved_tail: [AtomicU64; 400],
}

shared_layout!(VcpuPage, "perfctr_vcpu_page", PAGE_BYTES, {
    0 magic: "__u32",
    4 abi: "__u32",
    8 size_bytes: "__u32",
    12 flags: "__u32",
    16 seq: "__u64",
    24 vcpu_id: "__u32",
    28 loaded: "__u32",
    32 tsc_sum: "__u64",
    40 tsc_start: "__u64",
    48 generation: "__u64",
    56 switches: "__u64",
    64 migrations: "__u64",
    72 overflows: "__u64",
    80 throttled: "__u64",
    88 reserved_head: "__u64" [5],
    128 slots: "struct perfctr_vcpu_slot" [MAX_SLOTS],
    896 reserved_tail: "__u64" [400],
});

impl VcpuPage {
    /// Bytes of the page that have a meaning.
    pub const USED_BYTES: u32 = core::mem::offset_of!(Self, reserved_tail) as u32;
}

impl Default for VcpuPage {
    /// A page of zeroes: not registered.
    fn default() -> Self {
        Self {
            magic: AtomicU32::default(),
            abi: AtomicU32::default(),
            size_bytes: AtomicU32::default(),
            flags: AtomicU32::default(),
            seq: Seq::default(),
            vcpu_id: AtomicU32::default(),
            loaded: AtomicU32::default(),
            tsc_sum: AtomicU64::default(),
            tsc_start: AtomicU64::default(),
            generation: AtomicU64::default(),
            switches: AtomicU64::default(),
            migrations: AtomicU64::default(),
            overflows: AtomicU64::default(),
            throttled: AtomicU64::default(),
            reserved_head: Default::default(),
            slots: Default::default(),
            reserved_tail: core::array::from_fn(|_| AtomicU64::default()),
        }
    }
}
