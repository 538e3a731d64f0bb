// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hypervisor's driver, by which a host's administrator decides which guests may count.

mod accounts;
mod kvm;
mod samples;
mod symbols;
mod xen;

use shared_abi::hypercall::{FEATURE_ENABLED, HvQuery};
use shared_abi::version::ABI_MAJOR;
use shared_abi::{CounterConfig, PhysSlot, PmuCaps};

use crate::error::Error;
use crate::event::Event;
use crate::provider::{known, place};
pub use accounts::{Divided, HostAccount, HostAccounts};
use kvm::Kvm;
pub use samples::{HostSample, HostSamples, IDLE_DOMAIN, Mode, Places};
pub use symbols::Symbol;
pub use xen::Xen;

/// What the hypervisor's driver says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Driver {
    /// Major and minor version of its interface.
    pub abi: (u32, u32),
    /// Whether the calling domain may count.  This is false on a host with KVM, which is not a
    /// domain.
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

/// Returns how a counter of the host's own is to count this event. Such a counter is a general one,
/// and what it can count, any other can.
fn on_any_general_counter(driver: &Driver, event: Event) -> Result<CounterConfig, Error> {
    known::check(&[event])?;
    let first = PhysSlot::general(0).ok_or(Error::Malformed("capabilities"))?;
    let placed = place::place(&driver.caps, &[event.on(first)])?;
    let [counter] = *placed else { return Err(Error::Malformed("list of events")) };
    Ok(counter)
}

/// A virtual machine of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Domain {
    /// Its number, which is that of the process that has made it.
    pub id: u32,
    /// Whether it may count.
    pub allowed: bool,
}

/// Access to a host's driver, in either hypervisor.
#[derive(Debug)]
pub struct Host(Hypervisor);

#[derive(Debug)]
enum Hypervisor {
    Xen(Xen),
    Kvm(Kvm),
}

impl Host {
    /// Opens Xen's devices, or else the parameters of KVM's module.
    ///
    /// # Errors
    ///
    /// [`Error::NoHost`]: the machine has neither. [`Error::Kernel`]: the caller may not make
    /// hypercalls.
    pub fn open() -> Result<Self, Error> {
        if let Some(kvm) = Kvm::find() {
            return Ok(Self(Hypervisor::Kvm(kvm)));
        }
        if !Xen::is_here() {
            return Err(Error::NoHost { xen: xen::PRIVCMD, kvm: kvm::OPTION });
        }
        Xen::open().map(|xen| Self(Hypervisor::Xen(xen)))
    }

    /// Asks the driver what it can do.
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

    /// Lets a virtual machine count, or forbids it.  A machine that is forbidden to count stops at
    /// once.  `id` is the domain's number on Xen, and the number of the process that has made the
    /// machine on KVM.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `ESRCH` if there is no such machine, `EPERM` if this is no control
    /// domain, `EACCES` if the caller is not root; and those of [`driver`](Self::driver).
    pub fn allow(&self, id: u32, allowed: bool) -> Result<(), Error> {
        match &self.0 {
            Hypervisor::Xen(xen) => xen.allow(id, allowed),
            Hypervisor::Kvm(kvm) => kvm.allow(id, allowed),
        }
    }

    /// Lists the virtual machines.  Returns `None` on Xen: its toolstack lists the domains, and its
    /// driver has no request that says which of them may count.
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

    /// Has an event accounted to the virtual CPUs that execute it.  This is for Xen.
    ///
    /// # Errors
    ///
    /// Those of [`HostAccounts::start`].  [`Error::NotAccounted`]: this is a KVM host.
    pub fn accounts(self, event: Event) -> Result<HostAccounts, Error> {
        match self.0 {
            Hypervisor::Xen(xen) => HostAccounts::start(xen, event),
            Hypervisor::Kvm(_) => Err(Error::NotAccounted(accounts::PERF)),
        }
    }
}
