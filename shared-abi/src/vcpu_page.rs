// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The page that the hypervisor publishes for each virtual CPU.
//!
//! The page belongs to the guest, which registers it by hypercall. The hypervisor only writes it;
//! the guest kernel and the monitored threads only read it, under its sequence word. There is one
//! exception: after the guest was restored, another hypervisor reads the page once, to continue
//! from the counts in it.

use crate::layout::shared_layout;
use crate::limits::{MAX_SLOTS, PAGE_BYTES};
use crate::seq::Seq;
use crate::sync::{AtomicU32, AtomicU64};

/// [`VcpuPage::flags`]: the hypervisor publishes in this page. Without this bit the page has no
/// meaning.
pub const VCPU_REGISTERED: u32 = 1 << 0;
/// [`VcpuPage::flags`]: the guest may read the counters themselves, in user mode and in its kernel.
pub const VCPU_DIRECT: u32 = 1 << 1;
/// [`VcpuPage::flags`]: the guest reads the same clock from which the hypervisor read `tsc_start`.
pub const VCPU_TSC: u32 = 1 << 2;

/// [`VcpuPage::flags`]: the vCPU executes. If the guest kernel finds this bit clear on the vCPU
/// that executes it, the guest was restored after the hypervisor had written the page.
pub const VCPU_EXECUTING: u32 = 1 << 3;

/// What the hypervisor publishes about one physical counter of this vCPU.
///
/// `Phys* = sum + ((counter - start) & mask)`, see [`count`](crate::count).
#[derive(Debug, Default)]
#[repr(C)]
pub struct VcpuSlot {
    /// W: hypervisor, R: guest, unit: events. What was counted while the vCPU ran, up to the last
    /// fold. It never goes backwards while the page is registered.
    pub sum: AtomicU64,
    /// W: hypervisor, R: guest, unit: raw counter value. The value of the hardware counter when it
    /// last began to run. It begins to run when the configuration is loaded, when the vCPU is
    /// switched in, when the guest enters a mode in which the counter counts, and after an
    /// overflow's interrupt. If the slot interrupts and the vCPU does not execute, this is the
    /// value from which the counter will continue.
    pub start: AtomicU64,
    /// W: hypervisor, R: guest. All bits of the counter's width while the counter counts in the
    /// mode in which the guest executes. Otherwise 0, so that the formula yields `sum`.
    pub mask: AtomicU64,
    /// W: hypervisor. The slot's event select, if its bit in [`VcpuPage::loaded`] is set.
    /// [`EVNTSEL_INT`](crate::arch::EVNTSEL_INT) is set in it if the slot interrupts.
    pub evntsel: AtomicU64,
}

shared_layout!(VcpuSlot, "perfctr_vcpu_slot", 32, {
    0 sum: "__u64",
    8 start: "__u64",
    16 mask: "__u64",
    24 evntsel: "__u64",
});

/// The page of one vCPU.
#[derive(Debug)]
#[repr(C)]
pub struct VcpuPage {
    /// W: hypervisor at registration. [`VCPU_PAGE_MAGIC`](crate::version::VCPU_PAGE_MAGIC).
    pub magic: AtomicU32,
    /// W: hypervisor at registration. [`ABI_WORD`](crate::version::ABI_WORD).
    pub abi: AtomicU32,
    /// W: hypervisor at registration, unit: bytes. Size of the part of the page that has a
    /// meaning.
    pub size_bytes: AtomicU32,
    /// W: hypervisor. `VCPU_*` bits.
    pub flags: AtomicU32,
    /// W: hypervisor. The sequence word, which orders `flags` and everything below; see
    /// [`seq`](crate::seq).
    pub seq: Seq,
    /// W: hypervisor at registration. The vCPU's number in its domain.
    pub vcpu_id: AtomicU32,
    /// W: hypervisor. One bit for each slot that is programmed for this vCPU.
    pub loaded: AtomicU32,
    /// W: hypervisor, unit: TSC ticks. The time that this vCPU has run, up to the last fold.
    pub tsc_sum: AtomicU64,
    /// W: hypervisor, unit: TSC value as the guest reads it. The value of the TSC when the vCPU
    /// was last switched in, or when its page was registered.
    pub tsc_start: AtomicU64,
    /// W: hypervisor. Number of hypercalls that programmed a configuration.
    pub generation: AtomicU64,
    /// W: hypervisor. Number of times that the vCPU was switched in.
    pub switches: AtomicU64,
    /// W: hypervisor. Number of times that it was switched in on another physical CPU than before.
    pub migrations: AtomicU64,
    /// W: hypervisor. Number of overflows that interrupted.
    pub overflows: AtomicU64,
    /// W: hypervisor. Number of loads whose overflows the driver put off, because the vCPU had
    /// more overflows in a window than the host allows.
    pub throttled: AtomicU64,
    /// W: hypervisor. Always 0.
    pub reserved_head: [AtomicU64; 5],
    /// W: hypervisor. One slot per physical counter, see [`PhysSlot`](crate::PhysSlot).
    pub slots: [VcpuSlot; MAX_SLOTS],
    /// W: hypervisor. Always 0.
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
    /// Size in bytes of the part of the page that has a meaning.
    pub const USED_BYTES: u32 = core::mem::offset_of!(Self, reserved_tail) as u32;
}

impl Default for VcpuPage {
    /// Returns a page of zeroes, which says that it is not registered.
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
