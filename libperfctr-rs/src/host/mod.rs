// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hypervisor's driver, by which a host's administrator decides which guests may count.

mod accounts;
mod clock;
mod kvm;
mod samples;
mod symbols;
mod xen;

use std::io;

use shared_abi::hypercall::{DOMAINS_MAX, FEATURE_ENABLED, HvDomains, HvQuery, OP_DOMAINS};
use shared_abi::version::ABI_MAJOR;
use shared_abi::{CounterConfig, PhysSlot, PmuCaps};
use zerocopy::FromZeros;

use crate::error::Error;
use crate::event::Event;
use crate::provider::{known, place};
pub use accounts::{Divided, HostAccount, HostAccounts};
pub use clock::DomainClock;
use kvm::Kvm;
pub use samples::{HostSample, HostSamples, IDLE_DOMAIN, Mode, Places};
pub use symbols::Symbol;
pub use xen::Xen;

/// What the hypervisor's driver reports about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Driver {
    /// Major and minor version of its interface.
    pub abi: (u32, u32),
    /// Whether the calling domain may count. This is false on a host with KVM, which is not a
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

/// Returns the event select for the host's own counter of this event. Such a counter is a general
/// one, and all general counters can count the same events.
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
    /// The domain's number on Xen, and the number of the process that has made the machine on KVM.
    pub id: u32,
    /// Whether it may count.
    pub allowed: bool,
    /// The limits that the host has set for it alone.
    pub limits: Limits,
}

/// The limits within which the host lets a single virtual machine count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers write limits down, and add `..default()`")]
pub struct Limits {
    /// The most counters that each virtual CPU may have loaded, or 0 for as many as there are. The
    /// machine gets the general counters first, and then the fixed ones.
    pub counters: u32,
    /// The most overflows of each virtual CPU that interrupt in a millisecond, or 0 for as many as
    /// the host lets any machine have.
    pub overflows_per_ms: u32,
}

const LISTING: &str = "list virtual machines";

impl Domain {
    /// Makes the description of a virtual machine.
    pub const fn new(id: u32, allowed: bool, limits: Limits) -> Self {
        Self { id, allowed, limits }
    }

    /// Asks repeatedly for the virtual machines after the last one of the answer, until there are
    /// no more.
    fn all(ask: impl Fn(&mut HvDomains) -> io::Result<()>) -> Result<Vec<Self>, Error> {
        let (mut all, mut next) = (Vec::new(), 0);
        loop {
            let mut answer = HvDomains { first: next, ..HvDomains::new_zeroed() };
            ask(&mut answer).map_err(Error::kernel(LISTING))?;
            let count = answer.count as usize;
            let domains = answer.domain.get(..count).ok_or(Error::Malformed("list of domains"))?;
            for domain in domains {
                if domain.domid < next {
                    return Err(Error::Malformed("list of domains"));
                }
                let limits = Limits {
                    counters: domain.counters_max,
                    overflows_per_ms: domain.overflows_per_ms,
                };
                all.push(Self::new(domain.domid, domain.enabled != 0, limits));
                let Some(after) = domain.domid.checked_add(1) else { return Ok(all) };
                next = after;
            }
            if count < DOMAINS_MAX {
                return Ok(all);
            }
        }
    }
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
    /// [`Error::NoHost`] if the machine has neither, [`Error::Kernel`] if the caller may not make
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
    /// [`Error::Kernel`]: `ENOSYS` if there is no driver, `ENODEV` if it is off.
    /// [`Error::Version`], [`Error::Malformed`].
    pub fn driver(&self) -> Result<Driver, Error> {
        match &self.0 {
            Hypervisor::Xen(xen) => xen.driver(),
            Hypervisor::Kvm(kvm) => kvm.driver(),
        }
    }

    /// Lets a virtual machine count, or forbids it. A machine that is forbidden to count stops at
    /// once. `id` is the domain's number on Xen, and the number of the process that has made the
    /// machine on KVM.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: `ESRCH` if there is no such machine, `EPERM` if this is not a control
    /// domain, `EACCES` if the caller is not root; and those of [`driver`](Self::driver).
    pub fn allow(&self, id: u32, allowed: bool) -> Result<(), Error> {
        match &self.0 {
            Hypervisor::Xen(xen) => xen.allow(id, allowed),
            Hypervisor::Kvm(kvm) if allowed => kvm.allow_within(id, Limits::default()),
            Hypervisor::Kvm(kvm) => kvm.forbid(id),
        }
    }

    /// Lets a virtual machine count within limits of its own, in place of those that it had.
    ///
    /// The guest's kernel module learns of a limit of counters when it is loaded. A guest that
    /// loads more later gets `ESTALE`, until its module is loaded anew.
    ///
    /// # Errors
    ///
    /// Those of [`allow`](Self::allow); `EINVAL` if there are limits, and the driver's ABI is older
    /// than 2.8.
    pub fn allow_within(&self, id: u32, limits: Limits) -> Result<(), Error> {
        match &self.0 {
            Hypervisor::Xen(xen) => xen.allow_within(id, limits),
            Hypervisor::Kvm(kvm) => kvm.allow_within(id, limits),
        }
    }

    /// Lists the virtual machines in the order of their numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]: the errors of [`allow`](Self::allow), and `EINVAL` if the driver's ABI is
    /// older than 2.8. [`Error::Malformed`].
    pub fn domains(&self) -> Result<Vec<Domain>, Error> {
        match &self.0 {
            Hypervisor::Xen(xen) => Domain::all(|answer| xen.call(OP_DOMAINS, answer)),
            Hypervisor::Kvm(kvm) => kvm.domains(),
        }
    }

    /// Returns whether the host's hypervisor is Xen.
    pub fn is_xen(&self) -> bool {
        matches!(self.0, Hypervisor::Xen(_))
    }

    /// Begins to account an event to the virtual CPUs that execute it. This is for Xen.
    ///
    /// # Errors
    ///
    /// Those of [`HostAccounts::start`]. [`Error::NotAccounted`]: this is a KVM host.
    pub fn accounts(self, event: Event) -> Result<HostAccounts, Error> {
        match self.0 {
            Hypervisor::Xen(xen) => HostAccounts::start(xen, event),
            Hypervisor::Kvm(_) => Err(Error::NotAccounted(accounts::PERF)),
        }
    }
}
