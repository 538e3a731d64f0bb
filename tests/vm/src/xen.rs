// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Hypercalls of the control domain, through `/dev/xen/privcmd`.
//!
//! Numbers and layouts are those of Xen 4.17's public headers `xen.h`, `vcpu.h`, `domctl.h`,
//! `sysctl.h` and `xenoprof.h`, and of Linux's `xen/privcmd.h`.
#![expect(unsafe_code, reason = "ioctl takes a pointer")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use shared_abi::hypercall::{HYPERCALL_NUMBER, HvDomain, HvStats, OP_DOMAIN, OP_STATS};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::raw::{Argument, Refusal};

const PRIVCMD_PATH: &str = "/dev/xen/privcmd";

/// Where Debian's package `xen-utils-4.17` has its programs.
pub const TOOLS: &str = "/usr/lib/xen-4.17/bin";

/// The number of the domain that may make these hypercalls.
pub const CONTROL_DOMAIN: u16 = 0;

/// `_IOC(_IOC_NONE, 'P', 0, sizeof(struct privcmd_hypercall))`.
const IOCTL_PRIVCMD_HYPERCALL: u64 = (48 << 16) | (0x50 << 8);

const HYPERVISOR_VCPU_OP: u64 = 24;
const HYPERVISOR_XENOPROF_OP: u64 = 31;
const HYPERVISOR_SYSCTL: u64 = 35;
const HYPERVISOR_DOMCTL: u64 = 36;
const HYPERVISOR_HYPFS_OP: u64 = 42;
const HYPFS_OP_READ: u64 = 1;
const VCPUOP_GET_RUNSTATE_INFO: u64 = 4;
const XENOPROF_GET_BUFFER: u64 = 14;
const DOMCTL_SETVCPUAFFINITY: u32 = 9;
const DOMCTL_INTERFACE_VERSION: u32 = 0x15;
const VCPUAFFINITY_HARD: u32 = 1;
const SYSCTL_SCHEDULER_OP: u32 = 19;
const SYSCTL_INTERFACE_VERSION: u32 = 0x15;
const SCHEDULER_CREDIT: u32 = 5;
const SCHEDOP_PUTINFO: u32 = 0;
const SCHEDOP_GETINFO: u32 = 1;

/// `struct privcmd_hypercall`.
#[repr(C)]
struct Hypercall {
    number: u64,
    arguments: [u64; 5],
}

/// `struct xenctl_bitmap`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct Bitmap {
    address: u64,
    bits: u32,
    padding: u32,
}

/// `struct xen_domctl` with its member for `DOMCTL_SETVCPUAFFINITY`.
#[derive(Debug, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct SetVcpuAffinity {
    command: u32,
    interface_version: u32,
    domain: u16,
    padding: [u16; 3],
    vcpu: u32,
    flags: u32,
    hard: Bitmap,
    soft: Bitmap,
    /// The union of all commands is 128 bytes.
    rest: [u64; 11],
}

const _: () = assert!(size_of::<SetVcpuAffinity>() == 16 + 128);

/// `struct xen_sysctl_credit_schedule`: how long a vCPU executes that others wait for.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct TimeSlices {
    /// Unit: ms.
    pub slice_ms: u32,
    /// How long at least, whoever wakes.  Unit: us.
    pub ratelimit_us: u32,
    /// How long a vCPU is left where it has executed.  Unit: us.
    pub migration_delay_us: u32,
}

/// `struct xen_sysctl` with its member for the credit scheduler of the first CPU pool.
#[derive(Debug, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct SchedulerOp {
    command: u32,
    interface_version: u32,
    pool: u32,
    scheduler: u32,
    operation: u32,
    padding: u32,
    slices: TimeSlices,
    /// The union of all commands is 128 bytes.
    rest: [u32; 25],
}

const _: () = assert!(size_of::<SchedulerOp>() == 8 + 128);

/// `struct vcpu_runstate_info`: how long a vCPU has been in which state.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct Runstate {
    state: u32,
    padding: u32,
    entry_time_ns: u64,
    /// Unit: ns.  On a physical CPU.
    pub running_ns: u64,
    /// Unit: ns.  Waiting for a physical CPU.
    pub runnable_ns: u64,
    /// Unit: ns.  Idle.
    pub blocked_ns: u64,
    /// Unit: ns.  Paused, or not up.
    pub offline_ns: u64,
}

/// `struct xen_hypfs_direntry`, and a number behind it.
#[derive(Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct HypfsEntry {
    kind: u8,
    encoding: u8,
    padding: u16,
    content_bytes: u32,
    write_bytes_max: u32,
    content: u32,
}

/// The way to the hypervisor.
#[derive(Debug)]
pub struct Xen(File);

impl Xen {
    /// Opens `/dev/xen/privcmd`.
    ///
    /// # Errors
    ///
    /// This is not Xen's control domain.
    pub fn open() -> io::Result<Self> {
        File::options().read(true).write(true).open(PRIVCMD_PATH).map(Self)
    }

    /// Lets a vCPU of a domain run on the physical CPUs in the mask `pcpus` only.
    ///
    /// # Errors
    ///
    /// `ESRCH` there is no such domain, `EINVAL` no such vCPU, or none of the CPUs is online.
    pub fn set_affinity(&self, domain: u16, vcpu: u32, pcpus: u64) -> Result<(), Refusal> {
        let mut map = pcpus;
        // A new map may be read back; the soft one is not asked for.
        let hard = Bitmap { address: &raw mut map as u64, bits: u64::BITS, padding: 0 };
        let mut command = SetVcpuAffinity {
            command: DOMCTL_SETVCPUAFFINITY,
            interface_version: DOMCTL_INTERFACE_VERSION,
            domain,
            padding: [0; 3],
            vcpu,
            flags: VCPUAFFINITY_HARD,
            hard,
            soft: Bitmap::default(),
            rest: [0; 11],
        };
        self.call(HYPERVISOR_DOMCTL, [&raw mut command as u64, 0, 0, 0, 0])
    }

    /// The credit scheduler's time slices.
    ///
    /// # Errors
    ///
    /// There is another scheduler.
    pub fn time_slices(&self) -> Result<TimeSlices, Refusal> {
        self.schedule(SCHEDOP_GETINFO, TimeSlices::default())
    }

    /// Gives the credit scheduler others.
    ///
    /// # Errors
    ///
    /// They are out of range, or there is another scheduler.
    pub fn set_time_slices(&self, slices: TimeSlices) -> Result<(), Refusal> {
        self.schedule(SCHEDOP_PUTINFO, slices).map(drop)
    }

    fn schedule(&self, operation: u32, slices: TimeSlices) -> Result<TimeSlices, Refusal> {
        let mut command = SchedulerOp {
            command: SYSCTL_SCHEDULER_OP,
            interface_version: SYSCTL_INTERFACE_VERSION,
            pool: 0,
            scheduler: SCHEDULER_CREDIT,
            operation,
            padding: 0,
            slices,
            rest: [0; 25],
        };
        self.call(HYPERVISOR_SYSCTL, [&raw mut command as u64, 0, 0, 0, 0])?;
        Ok(command.slices)
    }

    /// What a vCPU of the calling domain has done with its time.
    ///
    /// # Errors
    ///
    /// There is no such vCPU.
    pub fn runstate(&self, vcpu: u32) -> Result<Runstate, Refusal> {
        let mut info = Runstate::default();
        let arguments = [VCPUOP_GET_RUNSTATE_INFO, vcpu.into(), &raw mut info as u64, 0, 0];
        self.call(HYPERVISOR_VCPU_OP, arguments)?;
        Ok(info)
    }

    /// Asks for the buffer of Xen's own profiler, which is how that one takes the counters.
    ///
    /// # Errors
    ///
    /// `EBUSY` somebody else has them.
    pub fn xenoprof_get_buffer(&self) -> Result<(), Refusal> {
        // `struct xenoprof_get_buffer`.
        let mut argument = [0_u64; 3];
        let address = argument.as_mut_ptr() as u64;
        self.call(HYPERVISOR_XENOPROF_OP, [XENOPROF_GET_BUFFER, address, 0, 0, 0])
    }

    /// The driver's own hypercall, with any operation and any argument.
    ///
    /// # Errors
    ///
    /// The driver's refusal.
    pub fn perfctr_op(
        &self,
        op: u32,
        mut argument: Argument<'_>,
        length: u32,
    ) -> Result<(), Refusal> {
        let address = argument.address();
        self.call(HYPERCALL_NUMBER.into(), [op.into(), address, length.into(), 0, 0])
    }

    /// Allows a domain to count, or forbids it.
    ///
    /// # Errors
    ///
    /// There is no such domain.
    pub fn allow(&self, domain: u16, enabled: bool) -> Result<(), Refusal> {
        let mut argument = HvDomain { domid: domain.into(), enabled: enabled.into(), reserved: 0 };
        self.perfctr_op(OP_DOMAIN, Argument::of(&mut argument), size_of::<HvDomain>() as u32)
    }

    /// What the driver has done since boot.
    ///
    /// # Errors
    ///
    /// There is no driver, or it is off.
    pub fn stats(&self) -> Result<HvStats, Refusal> {
        let mut stats = HvStats::default();
        self.perfctr_op(OP_STATS, Argument::of(&mut stats), size_of::<HvStats>() as u32)?;
        Ok(stats)
    }

    /// A numeric parameter in Xen's own file system.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn parameter(&self, path: &str) -> Result<u32, Refusal> {
        let path = format!("{path}\0");
        let mut entry = HypfsEntry::default();
        let length = size_of::<HypfsEntry>() as u64;
        let (place, bytes) = (path.as_ptr() as u64, path.len() as u64);
        let arguments = [HYPFS_OP_READ, place, bytes, &raw mut entry as u64, length];
        self.call(HYPERVISOR_HYPFS_OP, arguments)?;
        Ok(entry.content)
    }

    /// The hypervisor finds only memory that is mapped now; callers pass what they have just
    /// written, and the guest has no swap.
    fn call(&self, number: u64, arguments: [u64; 5]) -> Result<(), Refusal> {
        let mut hypercall = Hypercall { number, arguments };
        // SAFETY: the callers above pass memory of theirs that is as large as the operation needs,
        // or addresses that are nobody's.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), IOCTL_PRIVCMD_HYPERCALL, &raw mut hypercall) };
        Refusal::result(result).map(drop)
    }
}
