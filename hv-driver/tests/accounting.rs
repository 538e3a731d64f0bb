// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests accounts of virtual CPUs against a host whose counters count what it says it executes.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use hv_driver::guest::Rings;
use hv_driver::settings::{HostFacts, Options};
use hv_driver::{
    Account, Driver, Guest, Identity, Pcpu, Pmu, Probe, Registration, ThisCpu, Vcpu, Window,
};
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_USR};
use shared_abi::hypercall::{
    ACCOUNT_UNDIVIDED, ACCOUNTS_LEASE_MS, ACCOUNTS_MAX, HvAccounting, HvAccounts,
};
use shared_abi::read::Counters;
use shared_abi::{Config, CounterConfig, CounterWidth, Errno, VcpuPage};
use zerocopy::FromZeros;

use common::nehalem;

const TICKS_PER_MS: u64 = 1_000;
const LEASE: u64 = ACCOUNTS_LEASE_MS * TICKS_PER_MS;
/// Instructions in both modes.
const INSTRUCTIONS: HvAccounting = HvAccounting { evntsel: 0x43_00c0, reserved: 0 };
const EFER: u32 = 0xc000_0080;
const SVME: u64 = 1 << 12;
const WIDTH: u32 = 48;

/// Who executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Hypervisor,
    /// A PV guest, in either of its modes.
    Pv,
    /// A guest with rings of its own.
    Kernel,
    User,
}
use Who::{Hypervisor, Kernel, Pv, User};

/// The registers of one physical CPU.
struct Hardware {
    registers: RefCell<BTreeMap<u32, u64>>,
    tsc: Cell<u64>,
    /// The first selector and the first counter, and the distance from one to the next.
    banks: (u32, u32, u32),
    writes: Cell<u64>,
    /// The counters that are enabled in a guest and outside it, if the processor loads that when it
    /// enters and leaves the guest.
    at_switch: Cell<Option<(u64, u64)>>,
}

impl Hardware {
    fn held(&self, register: u32) -> u64 {
        self.registers.borrow().get(&register).copied().unwrap_or(0)
    }

    fn selector(&self, counter: u32) -> u64 {
        self.held(self.banks.0 + counter * self.banks.2)
    }

    /// Counts what `who` executes, as the selectors say (APM volume 2, 13.2.1).
    fn executes(&self, who: Who, events: u64) {
        let (ring, is_guest) = match who {
            Hypervisor => (1 << 17, false),
            Pv => (1 << 16, false),
            Kernel => (1 << 17, true),
            User => (1 << 16, true),
        };
        let loaded = |(inside, outside)| if is_guest { inside } else { outside };
        let enabled = self.at_switch.get().map_or(!0, loaded);
        for n in (0..6).filter(|n| enabled >> n & 1 == 1) {
            let selector = self.selector(n);
            let limits = selector >> 40 & 3;
            let limited = match limits {
                0 => true,
                _ if self.held(EFER) & SVME == 0 => false,
                1 => is_guest,
                2 => !is_guest,
                _ => true,
            };
            if selector >> 22 & 1 == 1 && selector & ring != 0 && limited {
                let counter = self.banks.1 + n * self.banks.2;
                let next = (self.held(counter) + events) & ((1 << WIDTH) - 1);
                self.registers.borrow_mut().insert(counter, next);
            }
        }
    }
}

impl Counters for Hardware {
    fn counter(&self, index: u32) -> u64 {
        self.held(self.banks.1 + index * self.banks.2)
    }
    fn clock(&self) -> u64 {
        self.tsc.get()
    }
}

impl Pmu for Hardware {
    fn read_register(&self, register: u32) -> u64 {
        self.held(register)
    }
    fn write_register(&self, register: u32, value: u64) {
        self.writes.set(self.writes.get() + 1);
        self.registers.borrow_mut().insert(register, value);
    }
    fn load_at_switch(&self, inside: u64, outside: u64) {
        self.at_switch.set(Some((inside, outside)));
    }
}

impl Probe for Hardware {
    fn try_read_register(&self, register: u32) -> Option<u64> {
        Some(self.held(register))
    }
    fn try_write_register(&self, register: u32, value: u64) -> bool {
        self.registers.borrow_mut().insert(register, value);
        true
    }
}

/// Returns AMD's CPU with six counters and SVM.
fn amd() -> Identity {
    Identity {
        vendor: [0x6874_7541, 0x6974_6e65, 0x444d_4163],
        signature: 0x80_0f12,
        extended: 1 << 2 | 1 << 23,
        ..Identity::NONE
    }
}

/// A physical CPU.
struct Core {
    pcpu: Pcpu,
    hardware: Hardware,
}

impl Core {
    fn new(driver: &Driver, cpu: &Identity) -> Self {
        let banks =
            if *cpu == nehalem() { (0x186, 0xc1, 1) } else { (0xc001_0200, 0xc001_0201, 2) };
        let registers = RefCell::new(BTreeMap::from([(EFER, SVME)]));
        let (tsc, writes) = (Cell::new(1), Cell::new(0));
        let hardware = Hardware { registers, tsc, banks, writes, at_switch: Cell::new(None) };
        let mut core = Self { pcpu: Pcpu::new(), hardware };
        core.on(driver, |here| here.come_up(cpu)).unwrap();
        core
    }

    fn on<R>(&mut self, driver: &Driver, work: impl FnOnce(&mut ThisCpu<'_, Hardware>) -> R) -> R {
        work(&mut ThisCpu { driver, pcpu: &mut self.pcpu, pmu: &self.hardware, number: 0 })
    }

    /// Lets a vCPU execute `guest`, and the hypervisor `hypervisor` events, and switches the vCPU
    /// out.
    fn runs(&mut self, driver: &Driver, account: &Account, guest: &[(Who, u64)], hypervisor: u64) {
        let hardware = match guest.first() {
            Some((Kernel | User, _)) => Some(Rings::Hardware),
            Some(_) => Some(Rings::Folded),
            None => None,
        };
        if let Some(rings) = hardware {
            self.on(driver, |here| here.account_next(rings));
        }
        for &(who, events) in guest {
            self.hardware.executes(who, events);
        }
        self.hardware.executes(Hypervisor, hypervisor);
        self.on(driver, |here| here.account(account, hardware.unwrap_or(Rings::Folded)));
    }

    /// Does what each physical CPU does when the control domain asks.
    fn looks(&mut self, driver: &Driver) -> bool {
        self.on(driver, |here| here.account(&Account::default(), Rings::Folded))
    }
}

fn host(cpu: &Identity) -> Driver {
    let facts = HostFacts {
        ticks_per_ms: TICKS_PER_MS,
        owns_all: true,
        can_profile: true,
        can_record: false,
    };
    let options = Options::parse(b"accounts").unwrap();
    Driver::new(cpu, &options.settings(&facts)).unwrap()
}

/// Makes a host of one CPU on which a session has begun.
fn accounting(cpu: &Identity) -> (Driver, Core) {
    let driver = host(cpu);
    let mut core = Core::new(&driver, cpu);
    driver.accepts_accounting(&INSTRUCTIONS).unwrap();
    driver.begin_accounts(1, &INSTRUCTIONS).unwrap();
    assert!(core.looks(&driver));
    (driver, core)
}

/// Asks for the accounts from a vCPU on.
fn asked(domain: u32, vcpu: u32) -> HvAccounts {
    let mut accounts = HvAccounts::new_zeroed();
    (accounts.domain, accounts.vcpu, accounts.count) = (domain, vcpu, 77);
    accounts
}

/// Returns what the control domain reads of one account: executed, hypervisor, flags.
fn read(driver: &Driver, account: &Account, rings: Rings) -> (u64, u64, u32) {
    let mut answer = asked(0, 0);
    answer.count = 0;
    assert!(driver.add_account(&mut answer, account, (3, 1), rings));
    let [first, ..] = answer.account;
    assert_eq!((answer.count, first.domain, first.vcpu), (1, 3, 1));
    (first.executed, first.hypervisor, first.flags)
}

const FOLDED: Rings = Rings::Folded;
const HARDWARE: Rings = Rings::Hardware;

#[test]
fn each_vcpu_has_what_it_executes_and_what_is_executed_meanwhile() {
    for cpu in [nehalem(), amd()] {
        let (driver, mut core) = accounting(&cpu);
        let [first, second, idle] = [1, 2, 3].map(|_| Account::default());
        core.runs(&driver, &first, &[(Pv, 1_000)], 100);
        core.runs(&driver, &idle, &[], 7);
        core.runs(&driver, &second, &[(Pv, 30)], 20);
        core.runs(&driver, &first, &[(Pv, 5)], 1);
        core.runs(&driver, &idle, &[], 3);
        for (account, executed, hypervisor) in
            [(&first, 1_005, 101), (&second, 30, 20), (&idle, 0, 10)]
        {
            assert_eq!(read(&driver, account, FOLDED), (executed, hypervisor, 0));
        }
    }
}

#[test]
fn guests_with_rings_of_their_own_have_their_kernels_events_where_the_cpu_tells_them_apart() {
    let (driver, mut core) = accounting(&amd());
    let [pv, pvh] = [1, 2].map(|_| Account::default());
    for _ in 0..2 {
        core.runs(&driver, &pvh, &[(Kernel, 400), (User, 50), (Kernel, 6)], 11);
        core.runs(&driver, &pv, &[(Pv, 9)], 2);
    }
    assert_eq!(read(&driver, &pvh, HARDWARE), (912, 22, 0));
    assert_eq!(read(&driver, &pv, FOLDED), (18, 4, 0));
}

#[test]
fn where_the_cpu_does_not_tell_kernels_apart_the_account_says_so() {
    let (driver, mut core) = accounting(&nehalem());
    let account = Account::default();
    core.runs(&driver, &account, &[(Kernel, 400), (User, 50)], 11);
    assert_eq!(read(&driver, &account, HARDWARE), (50, 411, ACCOUNT_UNDIVIDED));
}

#[test]
fn accounts_go_on_whatever_a_guest_with_rings_of_its_own_counts_itself() {
    let (driver, mut core) = accounting(&nehalem());
    let (page, account) = (VcpuPage::default(), Account::default());
    let guest = Guest { rings: HARDWARE, ..Guest::pv() };
    let who = Registration { id: 0, domain: 3, guest, allowed: true, window: Window::default() };
    let evntsel = 0xc0 | EVNTSEL_USR | EVNTSEL_EN;
    let own = CounterConfig { evntsel, ..CounterConfig::default() };
    let own = Config::new(&driver.caps, &[own]).unwrap();
    let runs = |core: &mut Core| {
        core.runs(&driver, &account, &[(Kernel, 400), (User, 50)], 11);
        let (executed, hypervisor, _) = read(&driver, &account, HARDWARE);
        [executed, hypervisor, core.hardware.counter(0)]
    };
    // This CPU does not tell the guest's kernel from the hypervisor.
    let mut vcpu = core.on(&driver, |here| Vcpu::register(here, &page, &who, None));
    assert_eq!(runs(&mut core), [50, 411, 0], "it counts nothing");
    core.on(&driver, |here| vcpu.load(here, &page, &own));
    assert_eq!(runs(&mut core), [100, 822, 50], "it counts its user mode");
    core.on(&driver, |here| vcpu.stop(here, &page));
    assert_eq!(runs(&mut core), [150, 1_233, 50], "it has stopped");
}

#[test]
fn counters_are_not_limited_to_guests_where_that_would_stop_them() {
    let driver = host(&amd());
    let mut core = Core::new(&driver, &amd());
    core.hardware.write_register(EFER, 0);
    driver.begin_accounts(1, &INSTRUCTIONS).unwrap();
    assert!(core.looks(&driver));
    let account = Account::default();
    core.runs(&driver, &account, &[(Pv, 8)], 3);
    assert_eq!(read(&driver, &account, FOLDED), (8, 3, 0));
}

#[test]
fn selectors_are_written_only_where_the_kind_of_guest_changes() {
    let (driver, mut core) = accounting(&amd());
    let account = Account::default();
    let mut writes = |guest| {
        let before = core.hardware.writes.get();
        core.runs(&driver, &account, guest, 1);
        core.hardware.writes.get() - before
    };
    // One write clears what a guest has counted.
    assert_eq!(writes(&[(Pv, 1)]), 1);
    assert_eq!(writes(&[]), 0, "nothing was counted");
    assert_eq!(writes(&[(Kernel, 1)]), 2);
    assert_eq!(writes(&[(User, 1)]), 1);
    assert_eq!(writes(&[(Pv, 1)]), 2);
}

#[test]
fn the_next_guest_cannot_read_what_another_has_executed() {
    let (driver, mut core) = accounting(&amd());
    let guest = driver.accounts.unwrap().guest.counter_index();
    core.runs(&driver, &Account::default(), &[(Pv, 1_000)], 1);
    assert_eq!(core.hardware.counter(guest), 0);
    core.hardware.executes(Pv, 4);
    driver.end_accounts();
    assert!(!core.looks(&driver));
    let hypervisor = driver.accounts.unwrap().hypervisor.counter_index();
    assert_eq!([guest, hypervisor].map(|index| core.hardware.counter(index)), [0; 2]);
}

#[test]
fn a_counter_may_wrap_between_two_switches() {
    let (driver, mut core) = accounting(&nehalem());
    let account = Account::default();
    let most = (1 << WIDTH) - 1;
    for _ in 0..3 {
        core.runs(&driver, &account, &[(Pv, most)], most);
    }
    assert_eq!(read(&driver, &account, FOLDED), (3 * most, 3 * most, 0));
}

#[test]
fn narrow_counters_and_single_modes_are_refused() {
    let mut driver = host(&nehalem());
    for evntsel in [0x42_00c0, 0x41_00c0] {
        let one = HvAccounting { evntsel, ..INSTRUCTIONS };
        assert_eq!(driver.accepts_accounting(&one), Err(Errno::INVAL));
    }
    for (bits, expected) in [(39, Err(Errno::OPNOTSUPP)), (40, Ok(()))] {
        driver.caps.general_width = CounterWidth::new(bits).unwrap();
        assert_eq!(driver.accepts_accounting(&INSTRUCTIONS), expected, "{bits} bits");
    }
}

#[test]
fn nothing_is_counted_before_a_session_and_after_it() {
    let driver = host(&amd());
    let mut core = Core::new(&driver, &amd());
    let account = Account::default();
    let before = core.hardware.writes.get();
    core.runs(&driver, &account, &[(Pv, 8)], 3);
    assert!(!core.looks(&driver) && !driver.end_accounts());
    assert_eq!(core.hardware.writes.get(), before, "no register is written");
    driver.begin_accounts(1, &INSTRUCTIONS).unwrap();
    assert_eq!(driver.begin_accounts(1, &INSTRUCTIONS), Err(Errno::BUSY));
    core.looks(&driver);
    core.runs(&driver, &account, &[(Pv, 8)], 3);
    assert!(driver.end_accounts());
    core.runs(&driver, &account, &[(Pv, 16)], 16);
    assert_eq!(read(&driver, &account, FOLDED), (8, 3, 0));
    let slots = driver.accounts.unwrap();
    for slot in [slots.guest, slots.hypervisor] {
        assert_eq!(core.hardware.selector(slot.index() as u32), 0);
    }
    assert_eq!(driver.wants_accounts(1, &mut asked(0, 0)), Err(Errno::NXIO));
    // Another session begins with empty accounts.
    driver.begin_accounts(1, &INSTRUCTIONS).unwrap();
    assert_eq!(read(&driver, &account, FOLDED), (0, 0, 0));
    core.looks(&driver);
    core.runs(&driver, &account, &[(Pv, 2)], 1);
    assert_eq!(read(&driver, &account, FOLDED), (2, 1, 0));
}

#[test]
fn a_cpu_that_has_not_seen_the_end_of_a_session_begins_the_next_one_anew() {
    for cpu in [nehalem(), amd()] {
        let (driver, mut core) = accounting(&cpu);
        let account = Account::default();
        core.runs(&driver, &account, &[(Pv, 8)], 3);
        assert!(driver.end_accounts());
        let branches = HvAccounting { evntsel: 0x43_00c4, ..INSTRUCTIONS };
        driver.begin_accounts(1, &branches).unwrap();
        // What it has counted until now was of the other event.
        core.runs(&driver, &account, &[(Pv, 16)], 16);
        assert_eq!(read(&driver, &account, FOLDED), (0, 0, 0));
        let slots = driver.accounts.unwrap();
        for slot in [slots.guest, slots.hypervisor] {
            assert_eq!(core.hardware.selector(slot.index() as u32) & 0xff, 0xc4);
        }
        core.runs(&driver, &account, &[(Pv, 2)], 1);
        assert_eq!(read(&driver, &account, FOLDED), (2, 1, 0));
    }
}

#[test]
fn what_the_counters_held_before_a_session_is_in_no_account() {
    let driver = host(&amd());
    let mut core = Core::new(&driver, &amd());
    let slots = driver.accounts.unwrap();
    let (_, first, stride) = core.hardware.banks;
    for slot in [slots.guest, slots.hypervisor] {
        core.hardware.write_register(first + slot.index() as u32 * stride, 77_000);
    }
    driver.begin_accounts(1, &INSTRUCTIONS).unwrap();
    core.looks(&driver);
    let account = Account::default();
    core.runs(&driver, &account, &[(Pv, 8)], 3);
    assert_eq!(read(&driver, &account, FOLDED), (8, 3, 0));
}

#[test]
fn a_session_ends_by_itself_unless_the_first_account_is_read() {
    for (from, renews) in [((0, 0), true), ((0, 1), false), ((1, 0), false)] {
        let (driver, mut core) = accounting(&nehalem());
        let half = 1 + LEASE / 2;
        let mut answer = asked(from.0, from.1);
        assert_eq!(driver.wants_accounts(half, &mut answer), Ok(renews));
        assert_eq!(answer.count, 0);
        let later = 1 + LEASE;
        let still = driver.wants_accounts(later, &mut asked(1, 0)).is_ok();
        assert_eq!(still, renews, "from {from:?}");
        // Other CPUs' clocks may be a little ahead.
        core.hardware.tsc.set(later);
        assert!(core.looks(&driver));
        core.hardware.tsc.set(later + 100 * TICKS_PER_MS);
        assert_eq!(core.looks(&driver), renews);
        core.hardware.tsc.set(half + LEASE + 100 * TICKS_PER_MS);
        assert!(!core.looks(&driver));
    }
}

#[test]
fn a_cpu_that_comes_up_takes_part_and_one_that_goes_down_does_not() {
    let (driver, mut core) = accounting(&nehalem());
    let account = Account::default();
    core.runs(&driver, &account, &[(Pv, 5)], 4);
    core.on(&driver, |here| here.go_down());
    core.hardware.executes(Hypervisor, 50);
    assert!(!core.looks(&driver), "its counters are not the driver's");
    core.on(&driver, |here| here.come_up(&nehalem())).unwrap();
    core.hardware.executes(Hypervisor, 50);
    assert!(core.looks(&driver), "it takes part again");
    core.runs(&driver, &account, &[(Pv, 3)], 2);
    assert_eq!(read(&driver, &account, FOLDED), (8, 6, 0));
}

#[test]
fn accounts_are_read_in_batches() {
    let (driver, mut core) = accounting(&nehalem());
    let accounts: Vec<Account> = (0..30).map(|_| Account::default()).collect();
    for (events, account) in (1..).zip(&accounts) {
        core.runs(&driver, account, &[(Pv, events)], 2 * events);
    }
    // Ten domains with three vCPUs each.
    let all = (0..30_u32).map(|n| (n / 3, n % 3)).zip(&accounts);
    let batch = |domain, vcpu| {
        let mut answer = asked(domain, vcpu);
        driver.wants_accounts(1, &mut answer).unwrap();
        let more =
            all.clone().all(|(who, account)| driver.add_account(&mut answer, account, who, FOLDED));
        assert_eq!(more, (answer.count as usize) < ACCOUNTS_MAX);
        let found = answer.account.iter().take(answer.count as usize);
        found.map(|one| (one.domain, one.vcpu, one.executed)).collect::<Vec<_>>()
    };
    let expected: Vec<_> = (0..30_u32).map(|n| (n / 3, n % 3, u64::from(n) + 1)).collect();
    let first = batch(0, 0);
    assert_eq!(first, expected[..ACCOUNTS_MAX]);
    assert_eq!(batch(7, 2), expected[ACCOUNTS_MAX..]);
    assert_eq!(batch(10, 0), []);
}
