// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Accounts of a Xen host's virtual CPUs: how many events each vCPU has executed, and how many the
//! hypervisor has executed while that vCPU was current.

use shared_abi::arch::EVNTSEL_RINGS;
use shared_abi::hypercall::{
    ACCOUNT_UNDIVIDED, ACCOUNTS_MAX, HvAccount, HvAccounting, HvAccounts, OP_ACCOUNTS_READ,
    OP_ACCOUNTS_START, OP_ACCOUNTS_STOP,
};
use zerocopy::FromZeros;

use super::{Driver, Xen, on_any_general_counter};
use crate::error::Error;
use crate::event::Event;

/// The minor version of the driver's interface that has accounts.
const MINOR: u32 = 5;

/// The events of a virtual CPU, and those of the hypervisor while that vCPU was current.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divided {
    /// The vCPU's own events, in its kernel and in its user mode.
    pub executed: u64,
    /// The hypervisor's events while the vCPU was current, for whatever purpose. A switch of vCPUs
    /// counts for the one that is switched in.
    pub hypervisor: u64,
}

/// The events of a virtual CPU since the accounting began, or since the vCPU was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostAccount {
    /// The number of its domain, such as [`IDLE_DOMAIN`](super::IDLE_DOMAIN).
    pub domain: u32,
    /// Its number in that domain. An idle one has the number of its physical CPU.
    pub vcpu: u32,
    /// All of its events.
    pub sum: u64,
    /// The same sum, divided by who has executed the events: the vCPU or the hypervisor. It is
    /// `None` if the processor does not distinguish the domain's kernel from the hypervisor, as
    /// Intel's do not for PVH and HVM domains.
    pub divided: Option<Divided>,
}

impl HostAccount {
    fn new(account: &HvAccount) -> Self {
        let HvAccount { domain, vcpu, flags, executed, hypervisor, .. } = *account;
        let divided = flags & ACCOUNT_UNDIVIDED == 0;
        Self {
            domain,
            vcpu,
            sum: executed.wrapping_add(hypervisor),
            divided: divided.then_some(Divided { executed, hypervisor }),
        }
    }
}

/// The accounts of all virtual CPUs by one event. When this value is dropped, the accounting ends.
/// If the process is killed, the accounting ends by itself ten seconds later.
#[derive(Debug)]
pub struct HostAccounts {
    xen: Xen,
}

impl HostAccounts {
    /// Begins to account an event, in all modes.
    ///
    /// # Errors
    ///
    /// [`Error::NotAccounted`] says why the host keeps no accounts.
    /// [`Error::EventNotAvailable`], and those of [`Xen::driver`].
    pub fn start(xen: Xen, event: Event) -> Result<Self, Error> {
        let mut accounting = wanted(&xen.driver()?, event)?;
        xen.call(OP_ACCOUNTS_START, &mut accounting).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EOPNOTSUPP) => Error::NotAccounted(NO_COUNTERS),
                Some(libc::EBUSY) => Error::NotAccounted(BUSY),
                Some(libc::EPERM) => Error::NotAccounted(NOT_CONTROL),
                _ => Error::kernel("have the host's events accounted")(error),
            }
        })?;
        Ok(Self { xen })
    }

    /// Reads the accounts of all virtual CPUs that there are, in the order of domains and virtual
    /// CPUs, those of the idle domain last. This must be called at least once in ten seconds.
    ///
    /// # Errors
    ///
    /// [`Error::NotAccounted`]: the accounting has ended, because accounts were not read for too
    /// long. [`Error::Malformed`].
    pub fn read(&self) -> Result<Vec<HostAccount>, Error> {
        collect(|asked| {
            self.xen.call(OP_ACCOUNTS_READ, asked).map_err(|error| match error.raw_os_error() {
                Some(libc::ENXIO) => Error::NotAccounted(ENDED),
                _ => Error::kernel("read the host's accounts")(error),
            })
        })
    }
}

impl Drop for HostAccounts {
    fn drop(&mut self) {
        // If this fails, the session has ended by itself.
        let _ = self.xen.call(OP_ACCOUNTS_STOP, &mut ());
    }
}

const NO_COUNTERS: &str = "the driver has kept no counters for this; Xen's option \
                           `perfctr=accounts`, beside those that it has, keeps two from the next \
                           boot on";
const BUSY: &str = "somebody does so already; what was killed is forgotten after ten seconds";
const NOT_CONTROL: &str = "this is not the control domain";
const OLD: &str = "the driver is of an older release, whose interface is below 2.5";
const ENDED: &str = "nobody has read them for ten seconds, so the driver has stopped";
pub(super) const PERF: &str = "Linux's perf counts on a KVM host: `perf stat -a -e \
                               instructions:G,instructions:H` has what virtual machines and what \
                               the host executes";

/// Asks for accounts until there are no more.
fn collect(
    mut ask: impl FnMut(&mut HvAccounts) -> Result<(), Error>,
) -> Result<Vec<HostAccount>, Error> {
    let mut all: Vec<HostAccount> = Vec::new();
    let mut from = (0, 0);
    loop {
        let mut asked = HvAccounts::new_zeroed();
        (asked.domain, asked.vcpu) = from;
        ask(&mut asked)?;
        let some = asked.account.get(..asked.count as usize);
        let some = some.ok_or(Error::Malformed("number of accounts of the host"))?;
        for account in some {
            if (account.domain, account.vcpu) < from || account.vcpu == u32::MAX {
                return Err(Error::Malformed("order of accounts of the host"));
            }
            from = (account.domain, account.vcpu + 1);
            all.push(HostAccount::new(account));
        }
        if some.len() < ACCOUNTS_MAX {
            return Ok(all);
        }
    }
}

/// Returns the argument of the request to the driver to account this event.
fn wanted(driver: &Driver, event: Event) -> Result<HvAccounting, Error> {
    if driver.abi.1 < MINOR {
        return Err(Error::NotAccounted(OLD));
    }
    if event.period() != 0 {
        return Err(Error::unavailable(event, "accounts are no samples, and have no period"));
    }
    let counter = on_any_general_counter(driver, event)?;
    if counter.evntsel & EVNTSEL_RINGS != EVNTSEL_RINGS {
        return Err(Error::unavailable(event, "an account has the events of all modes together"));
    }
    Ok(HvAccounting { evntsel: counter.evntsel, reserved: 0 })
}

#[cfg(test)]
mod tests {
    use shared_abi::caps::{CAPS_SAMPLING, VENDOR_INTEL};
    use shared_abi::{CounterWidth, PmuCaps};

    use super::*;

    fn account(domain: u32, vcpu: u32) -> HvAccount {
        let (executed, hypervisor) = (u64::from(domain) * 100 + u64::from(vcpu), 7);
        HvAccount { domain, vcpu, flags: 0, reserved: 0, executed, hypervisor }
    }

    /// Answers as the driver does if it has these accounts.
    fn answer(asked: &mut HvAccounts, all: &[HvAccount]) {
        let from = (asked.domain, asked.vcpu);
        let wanted = all.iter().filter(|one| (one.domain, one.vcpu) >= from);
        for (to, account) in asked.account.iter_mut().zip(wanted) {
            *to = *account;
            asked.count += 1;
        }
    }

    #[test]
    fn all_batches_are_read() {
        for number in [0, 1, ACCOUNTS_MAX, ACCOUNTS_MAX + 1, 3 * ACCOUNTS_MAX] {
            let all: Vec<_> = (0..number as u32).map(|n| account(n / 4, n % 4)).collect();
            let mut calls = 0;
            let read = collect(|asked| {
                calls += 1;
                answer(asked, &all);
                Ok(())
            });
            assert_eq!(read.unwrap(), all.iter().map(HostAccount::new).collect::<Vec<_>>());
            assert_eq!(calls, number / ACCOUNTS_MAX + 1, "of {number}");
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        let refused = |count: u32, first: HvAccount| {
            let read = collect(|asked| {
                asked.count = count;
                asked.account = [first; ACCOUNTS_MAX];
                Ok(())
            });
            read.unwrap_err().to_string()
        };
        assert!(refused(ACCOUNTS_MAX as u32 + 1, account(1, 1)).contains("number of accounts"));
        assert!(refused(2, account(1, 1)).contains("order of accounts"), "twice the same");
        assert!(refused(1, account(1, u32::MAX)).contains("order of accounts"));
    }

    #[test]
    fn one_that_is_not_divided_has_its_sum_only() {
        let undivided = HvAccount { flags: ACCOUNT_UNDIVIDED, ..account(3, 2) };
        let expected = HostAccount { domain: 3, vcpu: 2, sum: 309, divided: None };
        assert_eq!(HostAccount::new(&undivided), expected);
        let divided = Some(Divided { executed: 302, hypervisor: 7 });
        assert_eq!(HostAccount::new(&account(3, 2)), HostAccount { divided, ..expected });
    }

    fn driver() -> Driver {
        let width = CounterWidth::new(48).unwrap();
        let caps = PmuCaps {
            vendor: VENDOR_INTEL,
            features: CAPS_SAMPLING,
            version: 2,
            general: 2,
            fixed: 3,
            general_width: width,
            fixed_width: width,
        };
        Driver { abi: (2, MINOR), allows: true, caps }
    }

    #[test]
    fn the_driver_is_asked_for_a_general_counters_event_in_all_modes() {
        let both = HvAccounting { evntsel: 0x43_00c0, reserved: 0 };
        assert_eq!(wanted(&driver(), Event::raw(0xc0).unverified()).unwrap(), both);
        // Instructions also have a fixed counter, but the host's own counter is a general one.
        assert_eq!(wanted(&driver(), Event::INSTRUCTIONS.unverified()).unwrap(), both);
    }

    #[test]
    fn what_the_driver_would_refuse_is_refused_with_a_reason() {
        let event = Event::raw(0xc0).unverified();
        let refused = |driver: &Driver, event| wanted(driver, event).unwrap_err().to_string();
        let old = Driver { abi: (2, MINOR - 1), ..driver() };
        assert_eq!(refused(&old, event), format!("the host keeps no accounts: {OLD}"));
        for mode in [event.user(), event.kernel()] {
            assert!(refused(&driver(), mode).contains("all modes together"), "{mode}");
        }
        assert!(refused(&driver(), event.every(20_000)).contains("no period"));
    }
}
