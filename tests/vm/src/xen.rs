// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes hypercalls of the control domain, through `/dev/xen/privcmd`.
//!
//! Numbers and layouts are those of the public headers of Xen 4.17, and of 4.20 where nothing else
//! is said: `xen.h`, `vcpu.h`, `domctl.h`, `sysctl.h`, `hvm/dm_op.h` and `xenoprof.h`; and of
//! Linux's `xen/privcmd.h` and `xen/gntalloc.h`.
#![expect(unsafe_code, reason = "ioctl takes a pointer")]

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use memmap2::{MmapMut, MmapOptions};
use shared_abi::hypercall::{
    HYPERCALL_NUMBER, HvDomain, HvDomains, HvStats, OP_DOMAIN, OP_DOMAINS, OP_STATS,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::host::{self, Host};
use crate::raw::{Argument, Refusal};

const PRIVCMD_PATH: &str = "/dev/xen/privcmd";

/// The device with memory that the kernel does not move. Xen needs memory that is mapped when Xen
/// accesses it.
const MEMORY_PATH: &str = "/dev/xen/hypercall";
const MEMORY_BYTES: usize = 4096;

/// The folder in which Debian's package `xen-utils-4.17` has its programs.
pub const TOOLS: &str = "/usr/lib/xen-4.17/bin";

/// The number of the domain that may make these hypercalls.
pub const CONTROL_DOMAIN: u16 = 0;

/// At most this many instructions of ring 0 are missing from the counter at each sample of the
/// host: the interrupt's own, between its last read of the counter and the beginning of the next
/// period. As compiled, they are 27 to 32.
pub const UNCOUNTED: u64 = 32;

/// `_IOC(_IOC_NONE, 'P', 0, sizeof(struct privcmd_hypercall))`.
const IOCTL_PRIVCMD_HYPERCALL: u64 = (48 << 16) | (0x50 << 8);

const HYPERVISOR_VCPU_OP: u64 = 24;
const HYPERVISOR_XENOPROF_OP: u64 = 31;
const HYPERVISOR_SYSCTL: u64 = 35;
const HYPERVISOR_DOMCTL: u64 = 36;
const HYPERVISOR_DM_OP: u64 = 41;
const HYPERVISOR_HYPFS_OP: u64 = 42;
const HYPFS_OP_READ: u64 = 1;
const VCPUOP_GET_RUNSTATE_INFO: u64 = 4;
const XENOPROF_GET_BUFFER: u64 = 14;
const DOMCTL_SETVCPUAFFINITY: u32 = 9;
/// The interface versions. A release knows one of them, and answers others with `EACCES` before it
/// looks at the command, whose layout is the same in all. Xen 4.17's is the first, 4.20's the last.
const DOMCTL_INTERFACE_VERSIONS: RangeInclusive<u32> = 0x15..=0x17;
const VCPUAFFINITY_HARD: u32 = 1;
const SYSCTL_SCHEDULER_OP: u32 = 19;
const SYSCTL_INTERFACE_VERSION: u32 = 0x15;
const DMOP_SET_MEM_TYPE: u32 = 12;
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

/// The command, and the map that it points to.
#[derive(Debug, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct SetVcpuAffinityTo {
    command: SetVcpuAffinity,
    pcpus: u64,
}

/// `struct xen_sysctl_credit_schedule`: how long a vCPU executes while others wait for its CPU.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct TimeSlices {
    /// Unit: ms.
    slice_ms: u32,
    /// How long it executes at least, whichever vCPU wakes. Unit: us.
    ratelimit_us: u32,
    /// How long a vCPU stays on the CPU where it has executed. Unit: us.
    migration_delay_us: u32,
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

/// `struct vcpu_runstate_info`: how long a vCPU has been in each state.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct Runstate {
    state: u32,
    padding: u32,
    entry_time_ns: u64,
    running_ns: u64,
    runnable_ns: u64,
    blocked_ns: u64,
    offline_ns: u64,
}

/// `struct xen_hypfs_direntry`, and a number after it.
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

/// `struct xen_dm_op` with its member for `XEN_DMOP_set_mem_type`, and a `struct xen_dm_op_buf`
/// that names it.
#[derive(Debug, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct SetMemoryType {
    operation: u32,
    padding: u32,
    frames: u32,
    memory_type: u16,
    more_padding: u16,
    first: u64,
    /// The union of all operations is 32 bytes.
    rest: [u64; 2],
    buffer_address: u64,
    buffer_bytes: u64,
}

/// `enum hvmmem_type_t`: the kind of memory that a frame is for a PVH or HVM domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum MemoryType {
    /// Plain memory.
    Writable = 0,
    /// Memory that the domain can only read.
    ReadOnly = 1,
    /// No memory: the device model handles accesses. A frame stays this for good.
    DeviceModel = 2,
}

/// A name in Xen's own file system, and the data that is read there.
#[derive(Debug, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct HypfsRead {
    path: [u8; 48],
    entry: HypfsEntry,
}

/// The interface to the hypervisor.
#[derive(Debug)]
pub struct Xen {
    privcmd: File,
    memory: Mutex<MmapMut>,
    /// The scheduler's time slices before they were shortened.
    usual_slices: Mutex<Option<TimeSlices>>,
}

impl Xen {
    /// Opens `/dev/xen/privcmd` and `/dev/xen/hypercall`.
    ///
    /// # Errors
    ///
    /// This is not Xen's control domain.
    pub fn open() -> io::Result<Self> {
        let open = |path| File::options().read(true).write(true).open(path);
        let privcmd = open(PRIVCMD_PATH)?;
        // SAFETY: the device gives each process that maps it pages of its own.
        let memory = unsafe { MmapOptions::new().len(MEMORY_BYTES).map_mut(&open(MEMORY_PATH)?)? };
        Ok(Self { privcmd, memory: Mutex::new(memory), usual_slices: Mutex::default() })
    }

    /// Lets a vCPU of a domain run on the physical CPUs in the mask `pcpus` only.
    ///
    /// # Errors
    ///
    /// `ESRCH` if there is no such domain, `EINVAL` if there is no such vCPU or none of the CPUs is
    /// online, `EACCES` if this Xen has none of these interfaces.
    pub fn set_affinity(&self, domain: u16, vcpu: u32, pcpus: u64) -> Result<(), Refusal> {
        DOMCTL_INTERFACE_VERSIONS
            .map(|version| self.set_affinity_by(version, domain, vcpu, pcpus))
            .find(|result| *result != Err(Refusal::EACCES))
            .unwrap_or(Err(Refusal::EACCES))
    }

    fn set_affinity_by(
        &self,
        interface_version: u32,
        domain: u16,
        vcpu: u32,
        pcpus: u64,
    ) -> Result<(), Refusal> {
        let mut to = SetVcpuAffinityTo {
            command: SetVcpuAffinity {
                command: DOMCTL_SETVCPUAFFINITY,
                interface_version,
                domain,
                padding: [0; 3],
                vcpu,
                flags: VCPUAFFINITY_HARD,
                hard: Bitmap { address: 0, bits: u64::BITS, padding: 0 },
                soft: Bitmap::default(),
                rest: [0; 11],
            },
            pcpus,
        };
        self.call_with(&mut to, |to, address| {
            to.command.hard.address = address + offset_of!(SetVcpuAffinityTo, pcpus) as u64;
            (HYPERVISOR_DOMCTL, [address, 0, 0, 0, 0])
        })
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
        self.call_with(&mut command, |_, address| (HYPERVISOR_SYSCTL, [address, 0, 0, 0, 0]))?;
        Ok(command.slices)
    }

    /// Changes the type of memory of a frame of a PVH or HVM domain.
    ///
    /// # Errors
    ///
    /// There is no such domain, or its frame cannot become that.
    pub fn set_memory_type(
        &self,
        domain: u16,
        frame: u64,
        memory_type: MemoryType,
    ) -> Result<(), Refusal> {
        let mut set = SetMemoryType {
            operation: DMOP_SET_MEM_TYPE,
            padding: 0,
            frames: 1,
            memory_type: memory_type as u16,
            more_padding: 0,
            first: frame,
            rest: [0; 2],
            buffer_address: 0,
            buffer_bytes: offset_of!(SetMemoryType, buffer_address) as u64,
        };
        self.call_with(&mut set, |set, address| {
            set.buffer_address = address;
            let buffer = address + offset_of!(SetMemoryType, buffer_address) as u64;
            (HYPERVISOR_DM_OP, [domain.into(), 1, buffer, 0, 0])
        })
    }

    /// Returns how long a vCPU of the calling domain has been in which state.
    ///
    /// # Errors
    ///
    /// There is no such vCPU.
    pub fn runstate(&self, vcpu: u32) -> Result<host::Runstate, Refusal> {
        let mut info = Runstate::default();
        self.call_with(&mut info, |_, address| {
            (HYPERVISOR_VCPU_OP, [VCPUOP_GET_RUNSTATE_INFO, vcpu.into(), address, 0, 0])
        })?;
        let Runstate { running_ns, runnable_ns, .. } = info;
        Ok(host::Runstate { running_ns, runnable_ns })
    }

    /// Asks for the buffer of Xen's own profiler, by which that profiler takes the counters.
    ///
    /// # Errors
    ///
    /// `EBUSY` if somebody else has the counters.
    pub fn xenoprof_get_buffer(&self) -> Result<(), Refusal> {
        // `struct xenoprof_get_buffer`.
        let mut argument = [0_u64; 3];
        self.call_with(&mut argument, |_, address| {
            (HYPERVISOR_XENOPROF_OP, [XENOPROF_GET_BUFFER, address, 0, 0, 0])
        })
    }

    /// Makes the driver's own hypercall, with any operation and any argument.
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
        let call = |address| (HYPERCALL_NUMBER.into(), [op.into(), address, length.into(), 0, 0]);
        match argument {
            Argument::Bytes(bytes) => self.call_with(bytes, |_, address| call(address)),
            _ => self.call(call(argument.address())),
        }
    }

    /// Allows a domain to count, or forbids it.
    ///
    /// # Errors
    ///
    /// There is no such domain.
    pub fn allow(&self, domain: u16, enabled: bool) -> Result<(), Refusal> {
        let (domid, enabled) = (domain.into(), enabled.into());
        self.decide(HvDomain { domid, enabled, ..HvDomain::default() })
    }

    /// Allows a domain to count within limits, or forbids it.
    ///
    /// # Errors
    ///
    /// There is no such domain, or what is wanted makes no sense.
    pub fn decide(&self, mut wanted: HvDomain) -> Result<(), Refusal> {
        self.perfctr_op(OP_DOMAIN, Argument::of(&mut wanted), size_of::<HvDomain>() as u32)
    }

    /// Returns the host's domains, if they fit in one answer.
    ///
    /// # Errors
    ///
    /// This is not the control domain.
    pub fn domains(&self) -> Result<Vec<HvDomain>, Refusal> {
        let mut answer = HvDomains::new_zeroed();
        let length = size_of::<HvDomains>() as u32;
        self.perfctr_op(OP_DOMAINS, Argument::of(&mut answer), length)?;
        Ok(answer.domain[..answer.count as usize].to_vec())
    }

    /// Returns what the driver has done since boot.
    ///
    /// # Errors
    ///
    /// There is no driver, or it is off.
    pub fn stats(&self) -> Result<HvStats, Refusal> {
        let mut stats = HvStats::default();
        self.perfctr_op(OP_STATS, Argument::of(&mut stats), size_of::<HvStats>() as u32)?;
        Ok(stats)
    }

    /// Returns a numeric parameter in Xen's own file system.
    ///
    /// # Errors
    ///
    /// There is no such parameter.
    pub fn parameter(&self, path: &str) -> Result<u32, Refusal> {
        let mut read = HypfsRead { path: [0; 48], entry: HypfsEntry::default() };
        // The length includes the 0 after the name.
        let bytes = path.len() + 1;
        assert!(bytes <= read.path.len(), "{path} is too long");
        read.path[..path.len()].copy_from_slice(path.as_bytes());
        self.call_with(&mut read, |_, address| {
            let (entry, length) = (offset_of!(HypfsRead, entry), size_of::<HypfsEntry>());
            let arguments =
                [HYPFS_OP_READ, address, bytes as u64, address + entry as u64, length as u64];
            (HYPERVISOR_HYPFS_OP, arguments)
        })?;
        Ok(read.entry.content)
    }

    /// Makes a hypercall with a copy of `value` in memory where Xen finds it. `call` gets the
    /// address of that copy.
    fn call_with<T: IntoBytes + FromBytes + Immutable + ?Sized>(
        &self,
        value: &mut T,
        call: impl FnOnce(&mut T, u64) -> (u64, [u64; 5]),
    ) -> Result<(), Refusal> {
        // A thread that has panicked leaves no state here that matters.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let call = call(value, memory.as_ptr() as u64);
        let copy = &mut memory[..size_of_val(value)];
        copy.copy_from_slice(value.as_bytes());
        let result = self.call(call);
        value.as_mut_bytes().copy_from_slice(copy);
        result
    }

    fn call(&self, (number, arguments): (u64, [u64; 5])) -> Result<(), Refusal> {
        let mut hypercall = Hypercall { number, arguments };
        let privcmd = self.privcmd.as_raw_fd();
        // SAFETY: the callers above pass memory of ours that is as large as the operation needs, or
        // addresses that belong to nobody.
        let result = unsafe { libc::ioctl(privcmd, IOCTL_PRIVCMD_HYPERCALL, &raw mut hypercall) };
        Refusal::result(result).map(drop)
    }
}

/// The control domain is its own host.
impl Host for Xen {
    fn set_affinity(&self, vcpu: u32, pcpus: u64) -> Result<(), Refusal> {
        self.set_affinity(CONTROL_DOMAIN, vcpu, pcpus)
    }

    fn preempt_often(&self, often: bool) -> Result<(), Refusal> {
        let mut usual = self.usual_slices.lock().unwrap_or_else(PoisonError::into_inner);
        if often {
            let before = self.schedule(SCHEDOP_GETINFO, TimeSlices::default())?;
            let short = TimeSlices { slice_ms: 1, ratelimit_us: 100, ..before };
            self.schedule(SCHEDOP_PUTINFO, short)?;
            usual.get_or_insert(before);
        } else if let Some(before) = usual.take() {
            self.schedule(SCHEDOP_PUTINFO, before)?;
        }
        Ok(())
    }

    fn runstate(&self, vcpu: u32) -> Result<host::Runstate, Refusal> {
        self.runstate(vcpu)
    }

    fn allow(&self, enabled: bool) -> Result<(), Refusal> {
        self.allow(CONTROL_DOMAIN, enabled)
    }

    fn stats(&self) -> Result<HvStats, Refusal> {
        self.stats()
    }

    fn perfctr_op(&self, op: u32, argument: Argument<'_>, length: u32) -> Result<(), Refusal> {
        self.perfctr_op(op, argument, length)
    }

    fn xen(&self) -> Option<&Xen> {
        Some(self)
    }
}

/// Linux's device for pages that other domains may map.
const GNTALLOC_PATH: &str = "/dev/xen/gntalloc";
/// `_IOC(_IOC_NONE, 'G', 5, sizeof(struct ioctl_gntalloc_alloc_gref))`.
const IOCTL_GNTALLOC_ALLOC_GREF: u64 = (24 << 16) | (0x47 << 8) | 5;
const GNTALLOC_FLAG_WRITABLE: u16 = 1;

/// `struct ioctl_gntalloc_alloc_gref`.
#[derive(Debug)]
#[repr(C)]
struct AllocGref {
    domain: u16,
    flags: u16,
    count: u32,
    index: u64,
    reference: u32,
}

const _: () = assert!(size_of::<AllocGref>() == 24);

/// A page of this domain that another one may map and write to, until this is dropped.
#[derive(Debug)]
pub struct Grant {
    /// The open device keeps the page.
    _device: File,
    reference: u32,
}

impl Grant {
    /// Gets a page that this domain may map.
    ///
    /// # Errors
    ///
    /// The device is not there, or has no page.
    pub fn new(domain: u16) -> io::Result<Self> {
        let device = File::options().read(true).write(true).open(GNTALLOC_PATH)?;
        let mut wanted =
            AllocGref { domain, flags: GNTALLOC_FLAG_WRITABLE, count: 1, index: 0, reference: 0 };
        let device_fd = device.as_raw_fd();
        // SAFETY: the structure is as large as the request's number says.
        let result = unsafe { libc::ioctl(device_fd, IOCTL_GNTALLOC_ALLOC_GREF, &raw mut wanted) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { _device: device, reference: wanted.reference })
    }

    /// Returns the reference by which the other domain maps it.
    pub const fn reference(&self) -> u32 {
        self.reference
    }
}
