// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Accounts for the host's administrator: how many events each virtual CPU has executed itself, and
//! how many the hypervisor has executed meanwhile.
//!
//! Two general counters belong to the host from the boot on, so that starting and stopping changes
//! nothing for guests. One counts only what guests execute, the other one only what the hypervisor
//! executes. Whenever a vCPU stops executing on a physical CPU, what both have counted there since
//! the last such moment is added to its [`Account`]. So what the hypervisor executes to switch to a
//! vCPU is in that vCPU's own account. While nobody wants accounts, both counters are stopped.

use shared_abi::arch::EVNTSEL_RINGS;
use shared_abi::caps::CAPS_GUEST_ONLY;
use shared_abi::config::MODE_COUNTING;
use shared_abi::hypercall::{
    ACCOUNT_UNDIVIDED, ACCOUNTS_LEASE_MS, ACCOUNTS_MAX, HvAccount, HvAccounting, HvAccounts,
};
use shared_abi::{Config, CounterConfig, Errno};

use crate::account::{Account, Accounting, Events};
use crate::arch;
use crate::driver::{AccountSlots, Driver};
use crate::guest::Rings;
use crate::hal::Pmu;
use crate::pcpu::ThisCpu;

/// Counters with fewer bits could wrap twice between two reads.
const WIDTH_MIN: u32 = 40;

impl Driver {
    /// Checks the control domain's request.
    ///
    /// # Errors
    ///
    /// `INVAL` if the event does not count in both modes; `OPNOTSUPP` if the counters are too
    /// narrow; those of [`ConfigError`](shared_abi::ConfigError).
    pub fn accepts_accounting(&self, accounting: &HvAccounting) -> Result<(), Errno> {
        let HvAccounting { evntsel, reserved } = *accounting;
        if reserved != 0 || evntsel & EVNTSEL_RINGS != EVNTSEL_RINGS {
            return Err(Errno::INVAL);
        }
        if self.caps.general_width.bits() < WIDTH_MIN {
            return Err(Errno::OPNOTSUPP);
        }
        // A guest could count the event with its first counter.
        let counter = CounterConfig { evntsel, mode: MODE_COUNTING, ..Default::default() };
        Config::new(&self.caps, &[counter]).map(drop).map_err(|error| error.errno())
    }

    /// Begins a session. The caller holds the glue's lock, and then makes each physical CPU call
    /// [`ThisCpu::account`].
    ///
    /// # Errors
    ///
    /// `BUSY` if another session has not ended.
    pub fn begin_accounts(&self, now: u64, accounting: &HvAccounting) -> Result<(), Errno> {
        if self.session.lease.lasts(now) {
            return Err(Errno::BUSY);
        }
        self.session.begin(accounting.evntsel);
        self.session.lease.renew(now, self.ticks(ACCOUNTS_LEASE_MS));
        Ok(())
    }

    /// Ends the session, and returns whether there was one. The caller holds the glue's lock, and
    /// then makes each physical CPU call [`ThisCpu::account`].
    pub fn end_accounts(&self) -> bool {
        self.session.lease.end()
    }

    /// Begins to answer the control domain. If this returns true, each physical CPU has to call
    /// [`ThisCpu::account`] before the accounts are [added](Self::add_account), and the lease is
    /// renewed. The caller holds the glue's lock.
    ///
    /// # Errors
    ///
    /// `NXIO` if there is no session, or if its lease has ended.
    pub fn wants_accounts(&self, now: u64, answer: &mut HvAccounts) -> Result<bool, Errno> {
        if !self.session.lease.lasts(now) {
            return Err(Errno::NXIO);
        }
        answer.count = 0;
        answer.account = [HvAccount::default(); ACCOUNTS_MAX];
        // The lease is renewed only here, because only here all counters are read, so that none can
        // wrap twice before the lease ends.
        let first = (answer.domain, answer.vcpu) == (0, 0);
        if first {
            self.session.lease.renew(now, self.ticks(ACCOUNTS_LEASE_MS));
        }
        Ok(first)
    }

    /// Adds the account of vCPU `vcpu` of `domain`, if it is asked for. Returns whether there is
    /// room for another one. The caller passes all vCPUs in their order.
    pub fn add_account(
        &self,
        answer: &mut HvAccounts,
        account: &Account,
        (domain, vcpu): (u32, u32),
        rings: Rings,
    ) -> bool {
        if (domain, vcpu) < (answer.domain, answer.vcpu) {
            return true;
        }
        let Some(to) = answer.account.get_mut(answer.count as usize) else { return false };
        let Events { executed, hypervisor } = account.events_of(self.session.number());
        let divided = rings == Rings::Folded || self.caps.can(CAPS_GUEST_ONLY);
        let flags = if divided { 0 } else { ACCOUNT_UNDIVIDED };
        *to = HvAccount { domain, vcpu, flags, reserved: 0, executed, hypervisor };
        answer.count += 1;
        (answer.count as usize) < ACCOUNTS_MAX
    }
}

impl<P: Pmu> ThisCpu<'_, P> {
    /// Adds what was counted here since the last call to the account of the vCPU that is current, a
    /// guest with these `rings`. If a session has begun, this begins to count; if it has ended,
    /// this stops. Returns whether the CPU counts, so that the caller has to call this at the next
    /// switch.
    pub fn account(&mut self, current: &Account, rings: Rings) -> bool {
        let (Some(slots), true) = (self.driver.accounts, self.pcpu.counts()) else { return false };
        let now = self.pmu.clock();
        let session = &self.driver.session;
        let (lasts, number) = (self.driver.lets_cpu_go_on(&session.lease, now), session.number());
        if !lasts {
            self.stop_accounts(slots);
        } else if self.pcpu.accounting.session == number {
            let events = self.take_events(slots);
            current.add(number, events);
        } else {
            self.begin_accounts(slots, number, rings);
        }
        lasts
    }

    /// Prepares the guests' counter for the next guest, which has these `rings`.
    pub fn account_next(&mut self, rings: Rings) {
        let Accounting { session, rings: held, limited, .. } = self.pcpu.accounting;
        if session != 0 && limited && rings != held {
            self.select_guest(rings);
        }
    }

    fn begin_accounts(&mut self, slots: AccountSlots, session: u64, rings: Rings) {
        self.stop_accounts(slots);
        let limited = arch::can_limit_selectors(&self.driver.caps, self.pmu);
        self.pmu.write_register(self.driver.registers.counter(slots.guest), 0);
        let hypervisor = self.pmu.counter(slots.hypervisor.counter_index());
        self.pcpu.accounting = Accounting { session, hypervisor, rings, limited };
        self.select_guest(rings);
        if let Some(evntsel) = self.driver.registers.evntsel(slots.hypervisor) {
            let selector = arch::of_hypervisor(self.driver.session.evntsel(), limited);
            self.pmu.write_register(evntsel, selector);
        }
    }

    fn select_guest(&mut self, rings: Rings) {
        let Some(slots) = self.driver.accounts else { return };
        self.pcpu.accounting.rings = rings;
        if let Some(evntsel) = self.driver.registers.evntsel(slots.guest) {
            let limited = self.pcpu.accounting.limited;
            let selector = arch::of_guest(self.driver.session.evntsel(), rings, limited);
            self.pmu.write_register(evntsel, selector);
        }
    }

    fn stop_accounts(&mut self, AccountSlots { guest, hypervisor }: AccountSlots) {
        if self.pcpu.accounting.session == 0 {
            return;
        }
        self.pcpu.accounting = Accounting::NONE;
        for slot in [guest, hypervisor] {
            if let Some(evntsel) = self.driver.registers.evntsel(slot) {
                self.pmu.write_register(evntsel, 0);
            }
            // After this, guests that can read counters learn nothing from it.
            self.pmu.write_register(self.driver.registers.counter(slot), 0);
        }
    }

    /// Returns what was counted since the last call.
    fn take_events(&mut self, AccountSlots { guest, hypervisor }: AccountSlots) -> Events {
        let mask = self.driver.caps.general_width.mask();
        let [executed, now] =
            [guest, hypervisor].map(|slot| self.pmu.counter(slot.counter_index()) & mask);
        if executed != 0 {
            // No guest executes now, so no event is lost. The next guest may be able to read the
            // counter, and must not see another guest's count.
            self.pmu.write_register(self.driver.registers.counter(guest), 0);
        }
        let before = core::mem::replace(&mut self.pcpu.accounting.hypervisor, now);
        Events { executed, hypervisor: now.wrapping_sub(before) & mask }
    }
}
