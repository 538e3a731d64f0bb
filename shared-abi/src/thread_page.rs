// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The page that the guest kernel publishes for each monitored thread.

use crate::layout::shared_layout;
use crate::limits::{MAX_COUNTERS, PAGE_BYTES};
use crate::seq::Seq;
use crate::sync::{AtomicI32, AtomicU32, AtomicU64};

/// [`ThreadPage::state`]: the thread is resumed and its counters count. Without this bit the sums
/// are the counts.
pub const THREAD_ACTIVE: u32 = 1 << 0;
/// [`ThreadPage::state`]: the thread may read its counters and the clock itself. An active thread
/// without this bit asks the kernel. The bit is never set without [`THREAD_ACTIVE`], so a reader
/// needs to test only this bit.
pub const THREAD_DIRECT: u32 = 1 << 1;
/// [`ThreadPage::state`]: the time-stamp counter is counted.
pub const THREAD_TSC: u32 = 1 << 2;
/// [`ThreadPage::state`]: the thread's configuration could not be loaded; `error` says why.
pub const THREAD_FAILED: u32 = 1 << 3;

/// [`ThreadPage::state`]: an overflow has paused the counters until `IOC_RESUME`. The TSC goes on.
pub const THREAD_PAUSED: u32 = 1 << 4;

/// One virtual counter of the thread.
///
/// `Log = sum + (Phys* - start)` while active, `sum` otherwise; see [`count`](crate::count).
#[derive(Debug, Default)]
#[repr(C)]
pub struct ThreadSlot {
    /// W: guest kernel, R: user, unit: events. What was counted up to the last suspension.
    pub sum: AtomicU64,
    /// W: guest kernel, R: user, unit: events of the vCPU. `Phys*` at the last resumption.
    pub start: AtomicU64,
    /// W: guest kernel, R: user. The [`PhysSlot`](crate::PhysSlot) of the physical counter behind
    /// this virtual one.
    pub slot: AtomicU32,
    /// W: guest kernel, R: user. That slot's [index](crate::PhysSlot::counter_index).
    pub counter_index: AtomicU32,
    /// W: guest kernel. Always 0.
    pub reserved: AtomicU64,
}

shared_layout!(ThreadSlot, "perfctr_thread_slot", 32, {
    0 sum: "__u64",
    8 start: "__u64",
    16 slot: "__u32",
    20 counter_index as "rdpmc": "__u32",
    24 reserved: "__u64",
});

/// The page of one thread.
#[derive(Debug)]
#[repr(C)]
pub struct ThreadPage {
    /// W: guest kernel at creation. [`THREAD_PAGE_MAGIC`](crate::version::THREAD_PAGE_MAGIC).
    pub magic: AtomicU32,
    /// W: guest kernel at creation. [`ABI_WORD`](crate::version::ABI_WORD).
    pub abi: AtomicU32,
    /// W: guest kernel at creation, unit: bytes. Size of the part of the page that has a meaning.
    pub size_bytes: AtomicU32,
    /// W: guest kernel. `THREAD_*` bits.
    pub state: AtomicU32,
    /// W: guest kernel. The sequence word, which orders everything else in the page except
    /// `ring_written`; see [`seq`](crate::seq).
    pub seq: Seq,
    /// W: guest kernel. The number of the vCPU on which the thread was last resumed.
    pub vcpu: AtomicU32,
    /// W: guest kernel. Number of virtual counters in use.
    pub counters: AtomicU32,
    /// W: guest kernel, unit: TSC ticks. The time that the thread has executed up to the last
    /// suspension.
    pub tsc_sum: AtomicU64,
    /// W: guest kernel, unit: TSC ticks of the vCPU. `Phys*` of the TSC at the last resumption.
    pub tsc_start: AtomicU64,
    /// W: guest kernel at creation. The thread's id in the kernel.
    pub tid: AtomicU32,
    /// W: guest kernel. Negative error number of the load that failed, if `THREAD_FAILED` is set.
    pub error: AtomicI32,
    /// W: guest kernel. Number of times that the thread was resumed.
    pub switches: AtomicU64,
    /// W: guest kernel. Number of times that it was resumed on another vCPU than before.
    pub migrations: AtomicU64,
    /// W: guest kernel, unit: records. Number of records that were written into the thread's
    /// [`ring`](crate::ring). A reader that has loaded this number finds all of these records
    /// complete. `seq` does not order it.
    pub ring_written: AtomicU64,
    /// W: guest kernel, unit: records. Number of records that were lost because the ring was full.
    pub ring_lost: AtomicU64,
    /// W: guest kernel, unit: interrupts. How many interrupts and exceptions, which the CPU has
    /// counted as instructions, were subtracted from each counter that counts the instructions of
    /// user mode alone. It starts from 0 with every control that preserves no counter.
    pub interrupts: AtomicU64,
    /// W: guest kernel. Always 0.
    pub reserved_head: [AtomicU64; 4],
    /// W: guest kernel. The virtual counters, in the order in which the thread listed them.
    pub slots: [ThreadSlot; MAX_COUNTERS],
    /// W: guest kernel. Always 0.
    pub reserved_tail: [AtomicU64; 424],
}

shared_layout!(ThreadPage, "perfctr_thread_page", PAGE_BYTES, {
    0 magic: "__u32",
    4 abi: "__u32",
    8 size_bytes: "__u32",
    12 state: "__u32",
    16 seq: "__u64",
    24 vcpu: "__u32",
    28 counters: "__u32",
    32 tsc_sum: "__u64",
    40 tsc_start: "__u64",
    48 tid: "__u32",
    52 error: "__s32",
    56 switches: "__u64",
    64 migrations: "__u64",
    72 ring_written: "__u64",
    80 ring_lost: "__u64",
    88 interrupts: "__u64",
    96 reserved_head: "__u64" [4],
    128 slots: "struct perfctr_thread_slot" [MAX_COUNTERS],
    704 reserved_tail: "__u64" [424],
});

impl ThreadPage {
    /// Size in bytes of the part of the page that has a meaning.
    pub const USED_BYTES: u32 = core::mem::offset_of!(Self, reserved_tail) as u32;
}

impl Default for ThreadPage {
    /// Returns a page of zeroes, which belongs to no thread.
    fn default() -> Self {
        Self {
            magic: AtomicU32::default(),
            abi: AtomicU32::default(),
            size_bytes: AtomicU32::default(),
            state: AtomicU32::default(),
            seq: Seq::default(),
            vcpu: AtomicU32::default(),
            counters: AtomicU32::default(),
            tsc_sum: AtomicU64::default(),
            tsc_start: AtomicU64::default(),
            tid: AtomicU32::default(),
            error: AtomicI32::default(),
            switches: AtomicU64::default(),
            migrations: AtomicU64::default(),
            ring_written: AtomicU64::default(),
            ring_lost: AtomicU64::default(),
            interrupts: AtomicU64::default(),
            reserved_head: Default::default(),
            slots: Default::default(),
            reserved_tail: core::array::from_fn(|_| AtomicU64::default()),
        }
    }
}
