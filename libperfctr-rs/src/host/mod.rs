// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hypervisor, for administrators of a host: which guests may count, and with what.

mod kvm;
mod xen;

use shared_abi::PmuCaps;
use shared_abi::hypercall::{FEATURE_ENABLED, HvQuery};
use shared_abi::version::ABI_MAJOR;

use crate::error::Error;
use kvm::Kvm;
pub use xen::Xen;

/// The hypervisor's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Driver {
    /// Major and minor of its interface.
    pub abi: (u32, u32),
    /// Whether the calling domain may count; a Linux host of KVM's is none, and may not.
    pub allows: bool,
    /// The counters that guests may use.
    pub caps: PmuCaps,
}

impl Driver {
    fn new(query: &HvQuery) -> Result<Self, Error> {
        if query.abi_major != u32::from(ABI_MAJOR) {
            return Err(Error::Version { found: query.abi_major, expected: ABI_MAJOR.into() });
        }
        Ok(Self {
            abi: (query.abi_major, query.abi_minor),
            allows: query.features & FEATURE_ENABLED != 0,
            caps: PmuCaps::from_wire(&query.caps).ok_or(Error::Malformed("capabilities"))?,
        })
    }
}

/// A virtual machine of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Domain {
    /// Its number: that of the process that has made it.
    pub id: u32,
    /// Whether it may count.
    pub allowed: bool,
}

/// The way to a host's driver, whichever hypervisor that is in.
#[derive(Debug)]
pub struct Host(Hypervisor);

#[derive(Debug)]
enum Hypervisor {
    Xen(Xen),
    Kvm(Kvm),
}

impl Host {
    /// Opens what is here: Xen's devices, or else the parameters of KVM's module.
    ///
    /// # Errors
    ///
    /// [`Error::NoHost`]: neither is here. [`Error::Kernel`]: the caller may not make hypercalls.
    pub fn open() -> Result<Self, Error> {
        if let Some(kvm) = Kvm::find() {
            return Ok(Self(Hypervisor::Kvm(kvm)));
        }
        if !Xen::is_here() {
            return Err(Error::NoHost { xen: xen::PRIVCMD, kvm: kvm::OPTION });
        }
        Xen::open().map(|xen| Self(Hypervisor::Xen(xen)))
    }

    /// What the driver says of itself.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `ENOSYS` there is no driver, `ENODEV` it is off. [`Error::Version`],
    /// [`Error::Malformed`].
    pub fn driver(&self) -> Result<Driver, Error> {
        match &self.0 {
            Hypervisor::Xen(xen) => xen.driver(),
            Hypervisor::Kvm(kvm) => kvm.driver(),
        }
    }

    /// Lets a virtual machine count, or forbids it; one that is forbidden stops at once.  Xen's
    /// are called by their domain numbers, KVM's by the process that has made them.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `ESRCH` there is no such machine, `EPERM` this is no control domain,
    /// `EACCES` the caller is not root, and those of [`driver`](Self::driver).
    pub fn allow(&self, id: u32, allowed: bool) -> Result<(), Error> {
        match &self.0 {
            Hypervisor::Xen(xen) => xen.allow(id, allowed),
            Hypervisor::Kvm(kvm) => kvm.allow(id, allowed),
        }
    }

    /// The virtual machines that there are; `None` on Xen, whose toolstack lists them and whose
    /// driver tells nobody what it lets each of them do.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: as for [`allow`](Self::allow), `E2BIG` there are more than fit in an
    /// answer. [`Error::Malformed`].
    pub fn domains(&self) -> Result<Option<Vec<Domain>>, Error> {
        match &self.0 {
            Hypervisor::Xen(_) => Ok(None),
            Hypervisor::Kvm(kvm) => kvm.domains().map(Some),
        }
    }
}
