// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Access to the driver in Xen by hypercalls.
#![expect(unsafe_code, reason = "a hypercall's ioctl takes a pointer, and its argument is mapped")]

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use memmap2::{MmapMut, MmapOptions};
use shared_abi::hypercall::{
    HOOK_INTERRUPT, HYPERCALL_NUMBER, HvDomain, HvQuery, HvStats, OP_DOMAIN, OP_QUERY, OP_STATS,
};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::symbols::{self, Symbol};
use super::{Driver, Limits};
use crate::error::Error;

pub(super) const PRIVCMD: &str = "/dev/xen/privcmd";
/// Memory that the kernel does not move. Xen can access the memory only while it is mapped.
const MEMORY: &str = "/dev/xen/hypercall";
const MEMORY_BYTES: usize = 4096;

/// `IOCTL_PRIVCMD_HYPERCALL` of Linux's `xen/privcmd.h`.
const IOCTL_PRIVCMD_HYPERCALL: libc::c_ulong = (48 << 16) | (0x50 << 8);

/// `struct privcmd_hypercall`.
#[repr(C)]
struct Hypercall {
    number: u64,
    arguments: [u64; 5],
}

/// Access to the driver in the hypervisor of the calling domain.
///
/// The administrator of any domain may ask whether that domain may count. Only the control
/// domain's administrator may change that.
#[derive(Debug)]
pub struct Xen {
    privcmd: File,
    memory: Mutex<MmapMut>,
}

impl Xen {
    /// Returns whether this is a domain of Xen's whose kernel lets programs make hypercalls.
    pub fn is_here() -> bool {
        Path::new(PRIVCMD).exists()
    }

    /// Opens Xen's devices.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if this is not a domain of Xen, or if the caller may not make hypercalls.
    pub fn open() -> Result<Self, Error> {
        let open = |path| File::options().read(true).write(true).open(path);
        let opened = open(PRIVCMD).and_then(|privcmd| {
            let memory = open(MEMORY)?;
            // SAFETY: the device gives each caller that maps it pages of its own.
            let memory = unsafe { MmapOptions::new().len(MEMORY_BYTES).map_mut(&memory)? };
            Ok(Self { privcmd, memory: Mutex::new(memory) })
        });
        opened.map_err(Error::kernel("ask Xen (as root of one of its domains)"))
    }

    /// Asks the driver what it can do, and whether the calling domain may count.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `ENOSYS` if there is no driver, `ENODEV` if it is off, `EPROTO` if it
    /// speaks another version of the interface.
    pub fn driver(&self) -> Result<Driver, Error> {
        let mut query = HvQuery {
            abi_major: ABI_MAJOR.into(),
            abi_minor: ABI_MINOR.into(),
            ..HvQuery::default()
        };
        self.call(OP_QUERY, &mut query).map_err(Error::kernel("ask the driver what it has"))?;
        Driver::new(&query)
    }

    /// Lets a domain count, or forbids it. A domain that is forbidden to count stops at once.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `ESRCH` if there is no such domain, `EPERM` if this is not the control
    /// domain, and those of [`driver`](Self::driver).
    pub fn allow(&self, domid: u32, allowed: bool) -> Result<(), Error> {
        let enabled = allowed.into();
        self.decide(HvDomain { domid, enabled, ..HvDomain::default() })
    }

    pub(super) fn allow_within(&self, domid: u32, limits: Limits) -> Result<(), Error> {
        let Limits { counters: counters_max, overflows_per_ms } = limits;
        self.decide(HvDomain { domid, enabled: 1, counters_max, overflows_per_ms })
    }

    fn decide(&self, mut wanted: HvDomain) -> Result<(), Error> {
        self.call(OP_DOMAIN, &mut wanted).map_err(Error::kernel("change what a domain may do"))
    }

    /// Asks the driver how many interrupts of counters it has handled since the host has booted, on
    /// all physical CPUs, including those without a reason.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `EPERM` if this is not the control domain, and those of
    /// [`driver`](Self::driver).
    pub fn interrupts(&self) -> Result<u64, Error> {
        let mut stats = HvStats::default();
        let asked = self.call(OP_STATS, &mut stats);
        asked.map_err(Error::kernel("ask the driver what it has done"))?;
        Ok(stats.hook[HOOK_INTERRUPT].calls)
    }

    /// Asks Xen for its own symbols of functions, in the order of their addresses.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `EPERM` if this is not the control domain. [`Error::Malformed`].
    pub fn symbols(&self) -> Result<Vec<Symbol>, Error> {
        symbols::all(|question| {
            self.hypercall(symbols::PLATFORM_OP, question, |question, address| {
                question.is_at(address);
                [address, 0, 0, 0, 0]
            })
        })
    }

    /// Makes the driver's hypercall with a copy of `value` in memory where Xen finds it.
    pub(super) fn call<T: IntoBytes + FromBytes + Immutable>(
        &self,
        op: u32,
        value: &mut T,
    ) -> io::Result<()> {
        self.hypercall(HYPERCALL_NUMBER.into(), value, |_, address| {
            [op.into(), address, size_of::<T>() as u64, 0, 0]
        })
    }

    /// Makes a hypercall with a copy of `value` in memory where Xen finds it. Given the copy's
    /// address, `arguments` returns the hypercall's arguments, and may still change the value.
    fn hypercall<T: IntoBytes + FromBytes + Immutable>(
        &self,
        number: u64,
        value: &mut T,
        arguments: impl FnOnce(&mut T, u64) -> [u64; 5],
    ) -> io::Result<()> {
        const { assert!(size_of::<T>() <= MEMORY_BYTES) };
        // A thread that panicked under the lock cannot have left this memory in a harmful state.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let address = memory.as_mut_ptr() as u64;
        let mut hypercall = Hypercall { number, arguments: arguments(value, address) };
        memory
            .get_mut(..size_of::<T>())
            .ok_or(ErrorKind::OutOfMemory)?
            .copy_from_slice(value.as_bytes());
        let privcmd = self.privcmd.as_raw_fd();
        // SAFETY: the hypercall reads and writes at most `size_of::<T>()` bytes of our mapping,
        // which has room for them, and nobody has a reference to the mapping meanwhile.
        let result = unsafe { libc::ioctl(privcmd, IOCTL_PRIVCMD_HYPERCALL, &raw mut hypercall) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let answer = memory.get(..size_of::<T>()).ok_or(ErrorKind::OutOfMemory)?;
        value.as_mut_bytes().copy_from_slice(answer);
        Ok(())
    }
}
