// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The driver on a PMU made of memory: what it publishes, and which registers it touches.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use hv_driver::guest::{Clock, Rings};
use hv_driver::hypercall::{ARGUMENT_BYTES_MAX, Caller, Permission, authorize, serve};
use hv_driver::vcpu::GuestMode::{self, Kernel, User};
use hv_driver::{
    Driver, Guest, Identity, Left, Limits, Pcpu, Pmu, Policy, Probe, Rate, Registration, Settings,
    ThisCpu, Vcpu, Window,
};
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::config::MODE_SAMPLING;
use shared_abi::hypercall::{
    BRANCHES_KINDS, BRANCHES_USER, DOMAINS_MAX, FEATURE_BRANCHES, FEATURE_COST, FEATURE_ENABLED,
    FEATURE_INTERRUPTS, FEATURE_USER_BRANCHES, HOOK_LOAD, HOOK_SWITCH_FROM, HOOK_SWITCH_TO,
    HOOK_TOGGLE, HvAccounting, HvAccounts, HvBranches, HvClock, HvDomain, HvDomains, HvLoad,
    HvPlace, HvProfile, HvQuery, HvRecord, HvRegister, HvSamples, HvStats, OP_ACCOUNTS_READ,
    OP_ACCOUNTS_START, OP_ACCOUNTS_STOP, OP_BRANCHES, OP_CLOCK, OP_DOMAIN, OP_DOMAINS, OP_GO_ON,
    OP_LOAD, OP_PLACE, OP_PROFILE_READ, OP_PROFILE_START, OP_PROFILE_STOP, OP_QUERY, OP_RECORD,
    OP_REGISTER, OP_SHOW, OP_STATS, OP_STOP, OP_UNREGISTER, PLACE_KERNEL, PLACE_NONE,
};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::read::{Counters, ReadError, sample_vcpu};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_EXECUTING, VCPU_REGISTERED};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{Config, CounterConfig, Errno, PhysSlot, VcpuPage, WireCaps};
use zerocopy::{FromZeros, IntoBytes};

use common::nehalem;

const USER: u64 = 0xc0 | EVNTSEL_USR | EVNTSEL_EN;
const BOTH: u64 = USER | EVNTSEL_OS;
const KERNEL: u64 = 0xc0 | EVNTSEL_OS | EVNTSEL_EN;

const IA32_PMC0: u32 = 0x0c1;
const IA32_PERFEVTSEL0: u32 = 0x186;
const IA32_FIXED_CTR_CTRL: u32 = 0x38d;
const IA32_PERF_GLOBAL_STATUS: u32 = 0x38e;
const IA32_PERF_GLOBAL_CTRL: u32 = 0x38f;
const IA32_PERF_GLOBAL_OVF_CTRL: u32 = 0x390;

const K7_EVNTSEL0: u32 = 0xc001_0000;
const K7_PERFCTR0: u32 = 0xc001_0004;

/// Counters and TSC are moved by the test; register writes are recorded.
#[derive(Default)]
struct FakePmu {
    counters: RefCell<BTreeMap<u32, u64>>,
    enabled: RefCell<u64>,
    /// Intel's general counters that select nothing.
    unselected: Cell<u64>,
    tsc: RefCell<u64>,
    /// RDPMCs.
    reads: Cell<u64>,
    writes: RefCell<Vec<(u32, u64)>>,
    /// What the register that enables counters holds in the guest, and is loaded with at each exit.
    at_switch: Cell<Option<(u64, u64)>>,
    /// What was written while it was probed.
    probed: RefCell<BTreeMap<u32, u64>>,
}

impl FakePmu {
    /// Executes `n` instructions of the guest in ring 3, which every enabled general counter counts
    /// that selects something.
    fn retire(&self, n: u64) {
        let counting = *self.enabled.borrow() & !self.unselected.get();
        (0..4).filter(|index| counting & 1 << index != 0).for_each(|index| self.add(index, n));
        *self.tsc.borrow_mut() += 2 * n;
    }

    fn add(&self, index: u32, n: u64) {
        let mut counters = self.counters.borrow_mut();
        let counter = counters.entry(index).or_default();
        *counter = (*counter + n) & ((1 << 48) - 1);
    }

    /// Makes each of these counters count one event.
    fn count_one(&self, counters: &[u32]) {
        counters.iter().for_each(|&index| self.add(index, 1));
    }

    /// Enters a guest of VMX, executes `n` instructions there, and leaves it.
    fn retire_in_guest(&self, n: u64) {
        let Some((inside, outside)) = self.at_switch.get() else { return self.retire(n) };
        *self.enabled.borrow_mut() = inside;
        self.retire(n);
        *self.enabled.borrow_mut() = outside;
    }

    fn take_writes(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.writes.borrow_mut())
    }
}

impl Counters for FakePmu {
    fn counter(&self, index: u32) -> u64 {
        self.reads.set(self.reads.get() + 1);
        self.counters.borrow().get(&index).copied().unwrap_or(0)
    }
    fn clock(&self) -> u64 {
        *self.tsc.borrow()
    }
}

impl Pmu for FakePmu {
    fn read_register(&self, msr: u32) -> u64 {
        match msr {
            IA32_PERF_GLOBAL_CTRL => *self.enabled.borrow(),
            IA32_PERF_GLOBAL_STATUS => 0x1,
            _ => panic!("the driver reads counters with RDPMC"),
        }
    }
    fn write_register(&self, msr: u32, value: u64) {
        self.writes.borrow_mut().push((msr, value));
        if (IA32_PMC0..IA32_PMC0 + 4).contains(&msr) {
            // The register takes 32 bits and extends their sign to the counter's width.
            let value = value as i32 as u64 & ((1 << 48) - 1);
            self.counters.borrow_mut().insert(msr - IA32_PMC0, value);
        }
        if let Some(n @ 0..4) = msr.checked_sub(IA32_PERFEVTSEL0) {
            let others = self.unselected.get() & !(1 << n);
            self.unselected.set(others | u64::from(value == 0) << n);
        }
        if msr == IA32_PERF_GLOBAL_CTRL {
            *self.enabled.borrow_mut() = value;
        }
        if let Some(n @ 0..4) = msr.checked_sub(K7_EVNTSEL0) {
            let bit = 1 << n;
            let others = *self.enabled.borrow() & !bit;
            *self.enabled.borrow_mut() = others | if value & EVNTSEL_EN != 0 { bit } else { 0 };
        }
        if let Some(n @ 0..4) = msr.checked_sub(K7_PERFCTR0) {
            self.counters.borrow_mut().insert(n, value & ((1 << 48) - 1));
        }
    }
    fn load_at_switch(&self, inside: u64, outside: u64) {
        self.at_switch.set(Some((inside, outside)));
    }
}

impl Probe for FakePmu {
    fn try_read_register(&self, msr: u32) -> Option<u64> {
        Some(self.probed.borrow().get(&msr).copied().unwrap_or(0))
    }
    fn try_write_register(&self, msr: u32, value: u64) -> bool {
        self.probed.borrow_mut().insert(msr, value);
        true
    }
}

/// Makes a physical CPU like the boot CPU, which has come up.
fn come_up(driver: &Driver, pmu: &FakePmu) -> Pcpu {
    let mut pcpu = Pcpu::new();
    ThisCpu { driver, pcpu: &mut pcpu, pmu, number: 0 }.come_up(&driver.boot).unwrap();
    pcpu
}

fn driver() -> Driver {
    driver_that(false)
}

/// Makes the driver of a Nehalem, which may measure its own cost.
fn driver_that(measure_cost: bool) -> Driver {
    Driver::new(&nehalem(), &Settings { measure_cost, ..SETTINGS }).unwrap()
}

const SETTINGS: Settings = Settings::new(RATE);

const RATE: Rate = Rate { window_tsc: 1_000_000, overflows_max: 3 };

fn counter(slot: u32, evntsel: u64) -> CounterConfig {
    CounterConfig { slot, evntsel, ..CounterConfig::default() }
}

fn config(counters: &[CounterConfig]) -> Config {
    Config::new(&driver().caps, counters).unwrap()
}

/// A vCPU with its page, on physical CPU 0.
struct Machine {
    driver: Driver,
    pmu: FakePmu,
    pcpu: Pcpu,
    page: VcpuPage,
    vcpu: Vcpu,
}

/// Returns vCPU 1 of a domain of 64-bit PV guests.
fn pv_of(domain: u64) -> Registration {
    Registration { id: 1, domain, guest: Guest::pv(), allowed: true, window: Window::default() }
}

impl Machine {
    fn new() -> Self {
        Self::with(driver(), Guest::pv())
    }

    fn with(driver: Driver, guest: Guest) -> Self {
        let (pmu, page) = (FakePmu::default(), VcpuPage::default());
        let mut pcpu = come_up(&driver, &pmu);
        let cpu = &mut ThisCpu { driver: &driver, pcpu: &mut pcpu, pmu: &pmu, number: 0 };
        let vcpu = Vcpu::register(cpu, &page, &Registration { guest, ..pv_of(1) }, None);
        Self { driver, pmu, pcpu, page, vcpu }
    }

    fn cpu(&mut self) -> ThisCpu<'_, FakePmu> {
        ThisCpu { driver: &self.driver, pcpu: &mut self.pcpu, pmu: &self.pmu, number: 0 }
    }

    /// Runs `work` on physical CPU `number` with the vCPU.
    fn on<R>(
        &mut self,
        number: u32,
        work: impl FnOnce(&mut Vcpu, &mut ThisCpu<'_, FakePmu>, &VcpuPage) -> R,
    ) -> R {
        let Self { driver, pmu, pcpu, page, vcpu } = self;
        work(vcpu, &mut ThisCpu { driver, pcpu, pmu, number }, page)
    }

    /// Gives the page back and registers it anew.
    fn register_again(&mut self) {
        let window = self.on(0, |vcpu, cpu, page| vcpu.unregister(cpu, page));
        let who = Registration { window, ..pv_of(1) };
        self.vcpu = self.on(0, |_, cpu, page| Vcpu::register(cpu, page, &who, None));
    }

    fn load(&mut self, counters: &[CounterConfig]) {
        let config = Config::new(&self.driver.caps, counters).unwrap();
        self.on(0, |vcpu, cpu, page| vcpu.load(cpu, page, &config));
    }

    fn stop(&mut self) {
        self.on(0, |vcpu, cpu, page| vcpu.stop(cpu, page));
    }

    fn toggle(&mut self, mode: GuestMode) -> bool {
        self.on(0, |vcpu, cpu, page| vcpu.toggle(cpu, page, mode))
    }

    fn interrupt(&mut self) -> bool {
        self.on(0, |vcpu, cpu, page| vcpu.interrupt(cpu, page))
    }

    /// Returns whether an overflow was seen.
    fn switch_from(&mut self) -> bool {
        self.on(0, |vcpu, cpu, page| vcpu.switch_from(cpu, page))
    }

    fn switch_to(&mut self, cpu: u32, mode: GuestMode, allowed: bool) -> bool {
        self.on(cpu, |vcpu, cpu, page| vcpu.switch_to(cpu, page, mode, allowed))
    }

    /// Returns `Phys*` of the TSC and of general counters 0 to 2, through the page alone.
    fn sample(&self) -> (u64, [u64; 3]) {
        let slots = [0, 1, 2].map(|n| PhysSlot::general(n).unwrap());
        let sample = sample_vcpu(&self.page, &self.pmu, &slots).unwrap();
        (sample.tsc, [sample.counter[0], sample.counter[1], sample.counter[2]])
    }
}

#[test]
fn each_mode_is_counted_by_those_who_asked_for_it() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER), counter(1, KERNEL), counter(2, BOTH)]);
    m.pmu.retire(5);
    assert_eq!(m.sample().1, [0, 5, 5]);
    m.toggle(User);
    m.pmu.retire(100);
    assert_eq!(m.sample().1, [100, 5, 105]);
    m.toggle(Kernel);
    m.pmu.retire(7);
    assert_eq!(m.sample(), (224, [100, 12, 112]));
}

#[test]
fn a_change_of_mode_reads_once_what_counts_in_one_of_them() {
    let user = [0, 2].map(|slot| counter(slot, USER));
    let mixed = [counter(0, BOTH), counter(1, USER), counter(2, KERNEL)];
    let sampling = [CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..user[0] }, user[1]];
    for (measures, own) in [(false, 0), (true, 2)] {
        for config in [&user[..], &mixed, &sampling] {
            let mut m = Machine::with(driver_that(measures), Guest::pv());
            m.load(config);
            for mode in [User, Kernel, User] {
                let before = m.pmu.reads.get();
                m.toggle(mode);
                assert_eq!(m.pmu.reads.get() - before, 2 + own);
            }
            let mut total = HvStats::default();
            m.pcpu.stats.add_to(&mut total);
            let hook = total.hook[HOOK_TOGGLE];
            assert_eq!((hook.calls, hook.pmc_reads), (3, 6));
        }
    }
}

#[test]
fn a_mode_that_is_entered_again_goes_on() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER), counter(1, KERNEL)]);
    for mode in [Kernel, User, User] {
        m.toggle(mode);
        m.pmu.retire(10);
    }
    assert_eq!(m.sample().1, [20, 10, 0]);
}

/// Makes the driver of a Nehalem that counts each interrupt as an instruction.
fn driver_that_counts_interrupts() -> Driver {
    Driver::new(&nehalem(), &Settings { counts_interrupts: true, ..SETTINGS }).unwrap()
}

/// A page fault's vector, and the vectors of a device's interrupt and of INT3.
const PAGE_FAULT: u8 = 14;
const DEVICE: u8 = 0x31;
const INT3: u8 = 3;

impl Machine {
    /// Interrupts the guest, which these counters count as an instruction of the guest's.
    fn interrupt_guest(&mut self, vector: u8, counting: &[u32]) {
        self.pmu.count_one(counting);
        self.on(0, |vcpu, cpu, page| vcpu.guest_interrupted(cpu, page, vector));
    }
}

#[test]
fn an_interrupt_that_the_cpu_counts_is_not_the_guests() {
    let mut m = Machine::with(driver_that_counts_interrupts(), Guest::pv());
    let cycles = 0x3c | EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_EN;
    m.load(&[counter(0, USER), counter(1, KERNEL), counter(2, BOTH), counter(3, cycles)]);
    m.pmu.take_writes();
    let [mut user, mut kernel] = [0, 0];
    for n in [5, 7, 11] {
        for (mode, vector) in [(User, PAGE_FAULT), (Kernel, DEVICE), (Kernel, PAGE_FAULT)] {
            m.toggle(mode);
            // The CPU executes both modes in ring 3, and so counts in each counter.
            m.interrupt_guest(vector, &[0, 1, 2]);
            assert_eq!(m.sample().1, [user, kernel, user + kernel], "{mode:?}");
            m.pmu.retire(n);
            *(if mode == User { &mut user } else { &mut kernel }) += n;
            assert_eq!(m.sample().1, [user, kernel, user + kernel], "{mode:?}");
        }
        assert!(!m.switch_from());
        m.interrupt_guest(DEVICE, &[]);
        assert!(!m.switch_to(1, Kernel, true));
        assert_eq!(m.sample().1, [user, kernel, user + kernel], "after a switch");
    }
    let counters = IA32_PMC0..IA32_PMC0 + 4;
    assert!(!m.pmu.take_writes().iter().any(|(msr, _)| counters.contains(msr)));
}

#[test]
fn the_fixed_counter_of_instructions_counts_interrupts_too() {
    const INSTRUCTIONS: u32 = 1 << 30;
    let mut m = Machine::with(driver_that_counts_interrupts(), Guest::pv());
    let slots = [0, 1].map(|n| PhysSlot::fixed(n).unwrap());
    let rings = EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_EN;
    m.load(&slots.map(|slot| counter(slot.index() as u32, rings)));
    m.pmu.counters.borrow_mut().extend([(INSTRUCTIONS, 90), (INSTRUCTIONS | 1, 90)]);
    m.interrupt_guest(DEVICE, &[INSTRUCTIONS]);
    let sample = sample_vcpu(&m.page, &m.pmu, &slots).unwrap();
    assert_eq!(sample.counter[..2], [90, 90], "fixed counter 1 counts cycles");
}

#[test]
fn an_interrupt_that_the_cpu_does_not_count_changes_nothing() {
    const THRESHOLD: u64 = 1 << 24;
    let tenant = Guest { rings: Rings::Hardware, ..Guest::pv() };
    let branches = 0xc4 | EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_EN;
    let counts = driver_that_counts_interrupts;
    for (driver, guest, evntsel, vector, what) in [
        (driver(), Guest::pv(), BOTH, DEVICE, "not counted"),
        (counts(), tenant, BOTH, DEVICE, "its own kernel is interrupted"),
        (counts(), Guest::pv(), branches, DEVICE, "branches are counted"),
        (counts(), Guest::pv(), BOTH | THRESHOLD, DEVICE, "cycles are counted"),
        (counts(), Guest::pv(), BOTH, INT3, "INT3 is an instruction"),
        (counts(), Guest::pv(), USER, DEVICE, "user mode's counter does not run in the kernel"),
    ] {
        let mut m = Machine::with(driver, guest);
        m.load(&[counter(2, evntsel)]);
        m.pmu.take_writes();
        let stamp = m.page.seq.stamp();
        m.interrupt_guest(vector, &[]);
        assert!(m.page.seq.is_valid(stamp), "{what}");
        assert_eq!(m.pmu.take_writes(), [], "{what}");
    }
}

#[test]
fn a_period_is_not_shortened_by_interrupts() {
    let mut m = Machine::with(driver_that_counts_interrupts(), Guest::pv());
    let sampling = |period| CounterConfig { mode: MODE_SAMPLING, period, ..counter(0, BOTH) };
    for period in [1000, 40] {
        m.load(&[sampling(period)]);
        let start = m.sample().1[0];
        for own in [0, 9, 20, period - 30] {
            m.interrupt_guest(DEVICE, &[0]);
            m.pmu.retire(own);
        }
        assert!(!m.interrupt(), "interrupts bring no period to its end");
        // The counter holds -1. The next interrupt makes it overflow, and the one of that overflow
        // is on its way.
        m.interrupt_guest(PAGE_FAULT, &[0]);
        m.interrupt_guest(DEVICE, &[0]);
        assert!(!m.interrupt(), "the overflow was the interrupt's and not the guest's");
        assert_eq!(m.sample().1[0] - start, period - 1);
        m.pmu.retire(1);
        // The overflow's own interrupt is counted, too.
        m.pmu.take_writes();
        m.interrupt_guest(DEVICE, &[0]);
        assert_eq!(m.pmu.take_writes(), [], "it has overflowed, and would do so again");
        assert!(m.interrupt(), "{period} instructions have retired");
        assert_eq!(m.sample().1[0] - start, period);
        m.interrupt_guest(DEVICE, &[0]);
        m.pmu.retire(3);
        assert!(!m.interrupt());
        assert_eq!(m.sample().1[0] - start, period + 3);
    }
}

#[test]
fn a_vcpu_that_does_not_execute_is_not_charged() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER), counter(2, BOTH)]);
    m.toggle(User);
    m.pmu.retire(10);
    m.switch_from();
    m.pmu.retire(1_000_000);
    m.switch_to(1, User, true);
    m.pmu.retire(3);
    assert_eq!(m.sample(), (26, [13, 0, 13]));
    assert_eq!(m.page.switches.load(Relaxed), 1);
    assert_eq!(m.page.migrations.load(Relaxed), 1);
    m.switch_from();
    m.switch_to(1, User, true);
    assert_eq!(m.page.switches.load(Relaxed), 2);
    assert_eq!(m.page.migrations.load(Relaxed), 1);
}

#[test]
fn a_vcpu_that_was_forbidden_while_it_did_not_execute_gets_the_interrupt_once() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    m.switch_from();
    assert!(!m.switch_to(1, Kernel, true), "nothing has changed");
    m.switch_from();
    assert!(m.switch_to(1, Kernel, false), "its page has changed");
    m.switch_from();
    assert!(!m.switch_to(1, Kernel, false), "its page is as it was");
}

/// Has another hypervisor, with other counts in its counters, take the page that `m`'s vCPU has
/// left.
fn restored(m: &Machine, allowed: bool) -> (Machine, Result<Vcpu, Errno>) {
    let mut other = Machine::new();
    other.pmu.counters.borrow_mut().extend([(0, 12_345), (1, 777), (2, 42)]);
    *other.pmu.tsc.borrow_mut() = 1 << 40;
    let who = Registration { allowed, ..pv_of(9) };
    let vcpu = Left::of(&m.page, &other.driver.caps).map(|left| {
        let mut vcpu = Vcpu::register(&mut other.cpu(), &m.page, &who, Some(&left));
        vcpu.go_on(&mut other.cpu(), &m.page, &left);
        vcpu
    });
    (other, vcpu)
}

#[test]
fn a_restored_vcpu_goes_on_from_its_page() {
    let mut m = Machine::new();
    let sampling = CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(1, BOTH) };
    m.load(&[counter(0, BOTH), sampling, counter(2, USER)]);
    m.pmu.retire(300);
    let sums = m.sample();
    m.switch_from();
    let stamp = m.page.seq.stamp();

    let (mut other, vcpu) = restored(&m, true);
    let mut vcpu = vcpu.unwrap();
    assert!(!m.page.seq.is_valid(stamp), "who was reading starts over");
    std::mem::swap(&mut other.page, &mut m.page);
    assert_eq!(other.sample(), sums, "nothing is lost or counted twice");
    assert_eq!(other.page.switches.load(Relaxed), m.page.switches.load(Relaxed));
    other.pmu.retire(600);
    assert_eq!(other.sample(), (sums.0 + 1_200, [900, 900, 0]));
    assert!(!vcpu.interrupt(&mut other.cpu(), &m.page), "100 are left of its period");
    let (mut m, mut other) = (m, other);
    std::mem::swap(&mut other.page, &mut m.page);
    other.pmu.retire(100);
    assert!(vcpu.interrupt(&mut other.cpu(), &m.page));
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_EXECUTING, VCPU_EXECUTING);
}

#[test]
fn a_page_that_a_restored_vcpu_may_not_use_is_refused() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    assert_eq!(restored(&m, true).1.unwrap_err(), Errno::INVAL, "it executes");
    m.switch_from();
    let page = |change: &dyn Fn(&VcpuPage)| {
        let mut m = Machine::new();
        m.load(&[counter(0, USER)]);
        m.switch_from();
        change(&m.page);
        restored(&m, true).1.map(|_| ())
    };
    assert_eq!(page(&|_| ()), Ok(()));
    assert_eq!(page(&|page| page.magic.store(0, Relaxed)), Err(Errno::INVAL));
    let of = |major: u16, minor: u16| u32::from(major) | u32::from(minor) << 16;
    let version = |abi| move |page: &VcpuPage| page.abi.store(abi, Relaxed);
    assert_eq!(page(&version(of(ABI_MAJOR, 1))), Err(Errno::INVAL), "it says too little");
    assert_eq!(page(&version(of(ABI_MAJOR + 1, 2))), Err(Errno::INVAL));
    assert_eq!(page(&version(of(ABI_MAJOR, ABI_MINOR + 1))), Ok(()));
    assert_eq!(page(&|page| page.flags.store(0, Relaxed)), Err(Errno::INVAL));
    assert_eq!(page(&|page| page.loaded.store(1 << 15, Relaxed)), Err(Errno::INVAL));
    let selects = |evntsel| move |page: &VcpuPage| page.slots[0].evntsel.store(evntsel, Relaxed);
    assert_eq!(page(&selects(USER | 1 << 21)), Err(Errno::PERM));
    assert_eq!(page(&selects(USER & !EVNTSEL_EN)), Err(Errno::INVAL));
    assert_eq!(page(&|page| page.switches.store(u64::MAX, Relaxed)), Ok(()));

    // Who was forbidden has to load anew.
    m.switch_to(0, Kernel, false);
    m.switch_from();
    let (_, vcpu) = restored(&m, true);
    assert!(vcpu.is_ok());
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_DIRECT, 0);
}

#[test]
fn a_page_that_forbids_direct_reads_has_nothing_to_go_on_with() {
    let mut m = Machine::new();
    let sampling = CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(1, BOTH) };
    m.load(&[counter(0, BOTH), sampling]);
    m.switch_from();
    m.page.flags.fetch_and(!VCPU_DIRECT, Relaxed);
    let (mut other, vcpu) = restored(&m, true);
    let mut vcpu = vcpu.unwrap();
    assert_eq!(vcpu.slots(), 0);
    vcpu.revoke(&mut other.cpu(), &m.page);
    let counts = || other.pmu.counters.borrow().clone();
    let before = counts();
    other.pmu.retire(500);
    assert_eq!(counts(), before, "a guest that is forbidden to count goes on counting");
}

#[test]
fn what_was_a_page_is_not_written_to() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    let stamp = m.page.seq.stamp();
    m.pmu.take_writes();
    m.on(0, |vcpu, cpu, _| vcpu.abandon(cpu));
    assert!(m.page.seq.is_valid(stamp));
    assert!(m.pmu.take_writes().contains(&(IA32_PERFEVTSEL0, 0)), "nothing counts any more");
}

#[test]
fn counts_survive_the_wrap_of_the_counter() {
    let mut m = Machine::new();
    m.pmu.counters.borrow_mut().insert(0, (1 << 48) - 4);
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(10);
    assert_eq!(m.sample().1[0], 10);
    m.switch_from();
    m.switch_to(0, Kernel, true);
    assert_eq!(m.sample().1[0], 10);
}

#[test]
fn a_switch_with_the_same_configuration_writes_no_register() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER), counter(16, EVNTSEL_USR | EVNTSEL_EN)]);
    let writes = m.pmu.take_writes();
    assert!(writes.contains(&(IA32_PERFEVTSEL0, USER)));
    assert!(writes.contains(&(IA32_FIXED_CTR_CTRL, 0x2)));
    for _ in 0..10 {
        m.switch_from();
        m.switch_to(0, Kernel, true);
        m.toggle(User);
        m.toggle(Kernel);
    }
    assert_eq!(m.pmu.take_writes(), []);
    let mut total = HvStats::default();
    m.pcpu.stats.add_to(&mut total);
    assert_eq!(total.hook[HOOK_SWITCH_FROM].calls, 10);
    assert_eq!(total.hook[HOOK_SWITCH_TO].msr_writes, 0);
}

#[test]
fn a_vcpu_that_counts_nothing_is_switched_without_a_register() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    m.switch_from();
    let page = VcpuPage::default();
    let mut idle = Vcpu::register(&mut m.cpu(), &page, &pv_of(1), None);
    idle.switch_from(&mut m.cpu(), &page);
    m.pmu.take_writes();
    idle.switch_to(&mut m.cpu(), &page, User, true);
    assert_eq!(m.pmu.take_writes(), []);
}

/// A vCPU of the same domain has let every counter count meanwhile.
#[test]
fn what_samples_in_the_other_mode_stands_still_after_a_switch() {
    let mut m = Machine::new();
    let sampling = CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(0, USER) };
    m.load(&[sampling]);
    m.switch_from();
    let page = VcpuPage::default();
    let mut other = Vcpu::register(&mut m.cpu(), &page, &pv_of(1), None);
    let config = config(&[counter(1, BOTH)]);
    other.load(&mut m.cpu(), &page, &config);
    other.switch_from(&mut m.cpu(), &page);
    m.switch_to(0, Kernel, true);
    assert_eq!(*m.pmu.enabled.borrow() & 1, 0, "it is stopped");
    m.toggle(User);
    assert_eq!(*m.pmu.enabled.borrow() & 1, 1);
}

#[test]
fn what_counts_in_both_modes_is_not_folded_between_them() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    let before = m.page.slots[0].start.load(Relaxed);
    m.pmu.retire(5);
    m.toggle(User);
    m.pmu.retire(6);
    assert_eq!((m.page.slots[0].start.load(Relaxed), m.sample().1), (before, [11, 0, 0]));
}

#[test]
fn no_guest_counter_counts_in_ring_0() {
    let mut m = Machine::new();
    m.load(&[counter(0, KERNEL), counter(1, BOTH), counter(17, EVNTSEL_OS | EVNTSEL_EN)]);
    let writes = m.pmu.take_writes();
    assert!(writes.contains(&(IA32_PERFEVTSEL0, USER)));
    assert!(writes.contains(&(IA32_PERFEVTSEL0 + 1, USER)));
    assert!(writes.contains(&(IA32_FIXED_CTR_CTRL, 0x20)));
}

#[test]
fn another_observers_events_are_cleared_as_another_domains_are() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    m.toggle(User);
    m.pmu.retire(50);
    m.on(0, |vcpu, cpu, page| vcpu.unregister(cpu, page));
    for (observer, left) in [(0, 50), (7, 0)] {
        let guest = Guest { observer, ..Guest::pv() };
        let page = VcpuPage::default();
        Vcpu::register(&mut m.cpu(), &page, &Registration { guest, ..pv_of(1) }, None);
        assert_eq!(m.pmu.counter(0), left, "observer {observer}");
    }
}

#[test]
fn another_domains_events_are_cleared_before_anyone_can_read_them() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    m.toggle(User);
    m.pmu.retire(50);
    m.switch_from();
    m.cpu().run_stranger();
    m.pmu.retire(999);
    m.pmu.take_writes();
    m.switch_to(0, User, true);
    let cleared: Vec<u32> = m.pmu.take_writes().iter().map(|&(msr, _)| msr).collect();
    assert_eq!(cleared, [IA32_PMC0], "only the counter that was in use");
    assert_eq!(m.pmu.counter(0), 0);
    m.pmu.retire(2);
    assert_eq!(m.sample().1[0], 52);

    // Whichever counter was in use.
    m.load(&[counter(2, USER)]);
    m.pmu.retire(5);
    m.switch_from();
    m.cpu().run_stranger();
    m.switch_to(0, User, true);
    m.pmu.retire(5);
    m.cpu().run_stranger();
    m.switch_from();
    m.switch_to(0, User, true);
    assert_eq!(m.pmu.counter(2), 0);
    m.load(&[counter(0, USER)]);

    // A vCPU of a second domain must not see this one's, nor the other way round.
    let page = VcpuPage::default();
    m.switch_from();
    let mut other = Vcpu::register(&mut m.cpu(), &page, &pv_of(2), None);
    assert_eq!(m.pmu.counter(0), 0);
    m.pmu.retire(77);
    other.switch_from(&mut m.cpu(), &page);
    m.switch_to(0, User, true);
    assert_eq!(m.pmu.counter(0), 0);
    assert_eq!(m.sample().1[0], 52);
}

#[test]
fn two_domains_with_different_events_each_get_their_own() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    m.switch_from();
    let page = VcpuPage::default();
    let mut other = Vcpu::register(&mut m.cpu(), &page, &pv_of(2), None);
    let branches = config(&[counter(0, 0xc4 | EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_EN)]);
    other.load(&mut m.cpu(), &page, &branches);
    other.switch_from(&mut m.cpu(), &page);
    m.pmu.take_writes();
    m.switch_to(0, Kernel, true);
    assert!(m.pmu.take_writes().contains(&(IA32_PERFEVTSEL0, USER)));
}

#[test]
fn a_forbidden_domain_reads_errors_until_it_loads_again() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    m.switch_from();
    m.switch_to(0, Kernel, false);
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_DIRECT, 0);
    assert_eq!(m.page.loaded.load(Relaxed), 0);
    let slots = [PhysSlot::general(0).unwrap()];
    assert_eq!(sample_vcpu(&m.page, &m.pmu, &slots), Err(ReadError::NotDirect));
    m.switch_from();
    m.switch_to(0, Kernel, true);
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_DIRECT, 0, "its configuration is gone");
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(4);
    assert_eq!(m.sample().1[0], 4);
}

#[test]
fn revoking_takes_effect_on_a_vcpu_that_never_switches() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(9);
    m.pmu.take_writes();
    assert!(m.on(0, |vcpu, cpu, page| vcpu.revoke(cpu, page)), "its kernel has to look");
    assert_eq!(m.pmu.take_writes(), [(IA32_PERFEVTSEL0, 0)]);
    let slots = [PhysSlot::general(0).unwrap()];
    assert_eq!(sample_vcpu(&m.page, &m.pmu, &slots), Err(ReadError::NotDirect));
    assert_eq!((m.page.loaded.load(Relaxed), m.page.slots[0].sum.load(Relaxed)), (0, 9));
    assert!(!m.on(0, |vcpu, cpu, page| vcpu.revoke(cpu, page)), "it has been told");
    assert_eq!(m.page.generation.load(Relaxed), 2, "once");
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(4);
    assert_eq!(m.sample().1[0], 13);
}

#[test]
fn a_vcpu_counts_on_after_its_physical_cpu_was_down() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(5);
    m.switch_from();
    m.cpu().go_down();
    m.pmu.counters.borrow_mut().insert(0, 0x1234);
    m.pcpu = come_up(&m.driver, &m.pmu);
    m.pmu.take_writes();
    m.switch_to(0, Kernel, true);
    assert!(m.pmu.take_writes().contains(&(IA32_PERFEVTSEL0, USER)));
    m.pmu.retire(7);
    assert_eq!(m.sample().1[0], 12);
}

#[test]
fn nothing_counts_on_a_physical_cpu_that_differs() {
    let mut m = Machine::with(driver_that(true), Guest::pv());
    m.load(&[counter(0, BOTH)]);
    m.switch_from();
    m.pmu.take_writes();
    let usual = std::mem::take(&mut m.pcpu);
    m.switch_to(1, User, true);
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_DIRECT, 0);
    let slots = [PhysSlot::general(0).unwrap()];
    assert_eq!(sample_vcpu(&m.page, &m.pmu, &slots), Err(ReadError::NotDirect));
    m.toggle(Kernel);
    m.interrupt();
    m.on(1, |_, cpu, _| cpu.acknowledge());
    m.stop();
    m.on(1, |vcpu, cpu, page| vcpu.revoke(cpu, page));
    m.cpu().run_stranger();
    m.switch_from();
    let newcomer = VcpuPage::default();
    Vcpu::register(&mut m.cpu(), &newcomer, &pv_of(2), None).unregister(&mut m.cpu(), &newcomer);
    m.cpu().go_down();
    assert_eq!(m.pmu.take_writes(), [], "no register is touched");
    m.pcpu = usual;
    m.switch_to(0, Kernel, true);
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_DIRECT, 0, "until the guest loads again");
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(7);
    assert_eq!(m.sample().1[0], 7);
}

#[test]
fn a_vcpu_that_counts_nothing_loses_nothing_on_a_physical_cpu_without_counters() {
    let mut m = Machine::with(driver_that(true), Guest::pv());
    let usual = std::mem::take(&mut m.pcpu);
    for ticks in [18, 36] {
        m.switch_from();
        m.pmu.retire(1_000);
        assert!(!m.switch_to(1, Kernel, true), "there is nothing to tell the guest");
        m.pmu.retire(9);
        assert_eq!(sample_vcpu(&m.page, &m.pmu, &[]).map(|sample| sample.tsc), Ok(ticks));
    }
    m.pcpu = usual;
    m.load(&[counter(0, BOTH)]);
    m.switch_from();
    m.pcpu = Default::default();
    assert!(m.switch_to(1, Kernel, true), "it loses what it has loaded");
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_DIRECT, 0);
    m.switch_from();
    assert!(!m.switch_to(1, Kernel, true), "once");
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_DIRECT, 0, "until the guest loads again");
}

#[test]
fn whoever_takes_the_pmu_over_clears_pebs() {
    let cpuid = Identity { features: 1 << 21, ..nehalem() };
    let driver = Driver::new(&cpuid, &SETTINGS).unwrap();
    let m = Machine::with(driver, Guest::pv());
    assert!(m.pmu.take_writes().contains(&(0x3f1, 0)));
    assert!(!Machine::new().pmu.take_writes().iter().any(|write| write.0 == 0x3f1));
}

#[test]
fn stop_keeps_sums_and_unregister_ends_the_page() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(9);
    m.stop();
    m.pmu.retire(9);
    assert_eq!(m.sample().1[0], 9);
    assert_eq!(m.page.loaded.load(Relaxed), 0);
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_REGISTERED, VCPU_REGISTERED);
    m.on(0, |vcpu, cpu, page| vcpu.unregister(cpu, page));
    assert_eq!(m.page.flags.load(Relaxed), 0);
}

#[test]
fn the_hypervisor_never_believes_the_page() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(10);
    // The guest scribbles over everything that it can reach.
    for slot in &m.page.slots {
        slot.sum.store(u64::MAX, Relaxed);
        slot.start.store(u64::MAX, Relaxed);
        slot.mask.store(u64::MAX, Relaxed);
    }
    m.page.loaded.store(u32::MAX, Relaxed);
    m.page.flags.store(0, Relaxed);
    m.pmu.take_writes();
    m.switch_from();
    m.switch_to(0, Kernel, true);
    m.pmu.retire(5);
    assert_eq!(m.sample().1[0], 15);
    assert_eq!(m.pmu.take_writes(), []);
}

#[test]
fn cost_takes_the_last_counter_from_the_guests() {
    assert_eq!((driver_that(true).caps.general, driver_that(true).cost_index()), (3, Some(3)));
    assert_eq!((driver_that(false).caps.general, driver_that(false).cost_index()), (4, None));
}

mod overflows {
    use super::*;

    pub fn sampling(slot: u32, evntsel: u64, period: u64) -> CounterConfig {
        CounterConfig { mode: MODE_SAMPLING, period, ..counter(slot, evntsel) }
    }

    fn loaded(counters: &[CounterConfig]) -> Machine {
        let mut m = Machine::new();
        m.load(counters);
        m.toggle(User);
        m
    }

    #[test]
    fn an_interrupt_after_the_period_tells_the_guest_once() {
        let mut m = loaded(&[sampling(0, USER, 1_000), counter(1, USER)]);
        m.pmu.retire(999);
        assert!(!m.interrupt(), "not yet");
        m.pmu.retire(1);
        m.pmu.take_writes();
        assert!(m.interrupt());
        assert!(m.pmu.take_writes().contains(&(IA32_PERF_GLOBAL_OVF_CTRL, 0x1)));
        m.pmu.retire(10);
        assert!(!m.interrupt() && !m.toggle(Kernel), "once");
        assert_eq!(m.sample().1, [1_010, 1_010, 0]);
        assert_eq!(m.page.overflows.load(Relaxed), 1);
    }

    #[test]
    fn a_sampling_counter_stands_still_in_the_other_mode() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.pmu.retire(600);
        m.toggle(Kernel);
        m.pmu.retire(100_000);
        assert!(!m.toggle(User));
        m.pmu.retire(399);
        assert!(!m.interrupt());
        m.pmu.retire(1);
        assert!(m.interrupt());
        assert_eq!(m.sample().1[0], 1_000);
    }

    #[test]
    fn without_a_register_for_all_it_is_stopped_by_its_own_select() {
        for guest in [Guest::pv(), Guest { rings: Rings::Hardware, ..Guest::pv() }] {
            let mut m = Machine::with(guests::amd_with_svm(), guest);
            m.load(&[sampling(0, USER, 1_000), counter(1, USER)]);
            m.toggle(User);
            m.pmu.retire(600);
            m.switch_from();
            assert_eq!(*m.pmu.enabled.borrow() & 0b11, 0b10, "the other one need not stop");
            m.pmu.retire(100_000);
            assert!(!m.switch_to(1, User, true));
            m.pmu.retire(300);
            // A configuration that takes the same counter does not inherit that it is stopped.
            m.switch_from();
            let page = VcpuPage::default();
            let other = &mut Vcpu::register(&mut m.cpu(), &page, &pv_of(2), None);
            let config = Config::new(&m.driver.caps, &[counter(0, BOTH)]).unwrap();
            other.load(&mut m.cpu(), &page, &config);
            m.pmu.retire(50);
            other.switch_from(&mut m.cpu(), &page);
            let slot = PhysSlot::general(0).unwrap();
            assert_eq!(sample_vcpu(&page, &m.pmu, &[slot]).unwrap().counter[0], 50);
            assert!(!m.switch_to(0, User, true));
            m.pmu.retire(99);
            assert!(!m.interrupt());
            m.pmu.retire(1);
            assert!(m.interrupt());
            assert_eq!(m.sample().1[..2], [1_000; 2]);
        }
    }

    #[test]
    fn it_keeps_its_distance_across_switches_and_physical_cpus() {
        let mut m = loaded(&[sampling(0, BOTH, 1_000)]);
        m.pmu.retire(600);
        m.switch_from();
        m.pmu.retire(100_000);
        m.pcpu = come_up(&m.driver, &m.pmu);
        m.pmu.counters.borrow_mut().insert(0, 0x1234);
        assert!(!m.switch_to(1, Kernel, true));
        m.pmu.retire(399);
        assert!(!m.interrupt());
        m.pmu.retire(1);
        assert!(m.interrupt());
        assert_eq!(m.sample().1[0], 1_000);
    }

    /// The machine has slept, and nobody has told the driver before that the CPU goes down.
    #[test]
    fn it_is_stopped_after_its_physical_cpu_has_come_up_again() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.switch_from();
        let boot = m.driver.boot;
        m.cpu().come_up(&boot).unwrap();
        m.switch_to(0, Kernel, true);
        assert_eq!(*m.pmu.enabled.borrow() & 1, 0, "it counts user mode only");
        m.toggle(User);
        assert_eq!(*m.pmu.enabled.borrow() & 1, 1);
    }

    #[test]
    fn an_interrupt_that_comes_late_is_not_lost_and_not_doubled() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.pmu.retire(1_003);
        // The vCPU is switched out before the interrupt is taken; another one gets the interrupt.
        m.switch_from();
        let page = VcpuPage::default();
        let mut other = Vcpu::register(&mut m.cpu(), &page, &pv_of(1), None);
        assert!(!other.interrupt(&mut m.cpu(), &page));
        other.switch_from(&mut m.cpu(), &page);
        assert!(m.switch_to(0, User, true), "told when it is back");
        assert!(!m.interrupt());
        assert_eq!(m.sample().1[0], 1_003);
    }

    #[test]
    fn leaving_user_mode_sees_an_overflow_before_its_interrupt() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.pmu.retire(1_000);
        assert!(m.toggle(Kernel));
        assert!(!m.interrupt());
    }

    #[test]
    fn the_page_says_an_overflow_before_the_guest_is_told_of_it() {
        let mut m = loaded(&[sampling(0, USER, 1_000), sampling(1, KERNEL, 400)]);
        let mut modes = Vec::new();
        for (events, mode, notified, overflows) in [
            (999, Kernel, false, 0),
            (399, User, false, 0),
            (1, Kernel, true, 1),
            (5, User, true, 2),
            (5, Kernel, false, 2),
        ] {
            m.pmu.retire(events);
            modes.push(mode);
            let (notifies, published) = (m.toggle(mode), m.page.overflows.load(Relaxed));
            assert_eq!((notifies, published), (notified, overflows), "after {modes:?}");
        }
        assert!(!m.interrupt(), "both were told");
        assert_eq!(m.page.overflows.load(Relaxed), 2);
    }

    fn at(ip: u64) -> HvPlace {
        HvPlace { slot: 99, mode: PLACE_KERNEL, ip, sp: ip + 1, flags: 0x246 }
    }

    fn place_of(m: &mut Machine, n: u32) -> (u32, u64) {
        let place = m.vcpu.take_place(PhysSlot::general(n).unwrap());
        assert_eq!(place.slot, n);
        (place.mode, place.ip)
    }

    const NOWHERE: (u32, u64) = (PLACE_NONE, 0);

    #[test]
    fn each_counters_place_is_told_once() {
        let mut m = loaded(&[sampling(0, USER, 1_000), sampling(1, USER, 2_000)]);
        m.pmu.retire(1_000);
        assert_eq!(place_of(&mut m, 0), NOWHERE, "nobody has seen it");
        assert!(m.interrupt());
        m.vcpu.overflowed_at(&at(0x1000));
        m.pmu.retire(1_000);
        assert!(m.toggle(Kernel), "the other one");
        m.vcpu.overflowed_at(&at(0x2000));
        assert_eq!(place_of(&mut m, 0), (PLACE_KERNEL, 0x1000));
        assert_eq!(place_of(&mut m, 1), (PLACE_KERNEL, 0x2000));
        assert_eq!([0, 1].map(|n| place_of(&mut m, n)), [NOWHERE; 2]);
    }

    #[test]
    fn an_overflow_that_a_switch_finds_was_where_the_vcpu_stopped() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        assert!(!m.switch_from());
        m.switch_to(0, User, true);
        m.pmu.retire(1_000);
        assert!(m.switch_from());
        m.vcpu.overflowed_at(&at(0x1000));
        assert!(m.switch_to(0, User, true));
        assert!(!m.switch_from(), "known already");
        assert_eq!(place_of(&mut m, 0), (PLACE_KERNEL, 0x1000));
    }

    #[test]
    fn what_is_loaded_anew_has_not_overflowed_anywhere() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.pmu.retire(1_000);
        assert!(m.interrupt());
        m.vcpu.overflowed_at(&at(0x1000));
        m.load(&[sampling(0, USER, 1_000)]);
        assert_eq!(place_of(&mut m, 0), NOWHERE);
        m.toggle(User);
        m.pmu.retire(1_000);
        // The load finds it.
        m.load(&[sampling(0, USER, 1_000)]);
        m.vcpu.overflowed_at(&at(0x2000));
        assert_eq!(place_of(&mut m, 0), NOWHERE);
    }

    #[test]
    fn too_many_overflows_are_put_off_and_reported() {
        let mut m = loaded(&[]);
        for _ in 0..RATE.overflows_max {
            m.load(&[sampling(0, BOTH, 1_000)]);
            m.pmu.retire(1_000);
            assert!(m.interrupt());
        }
        assert_eq!(m.page.throttled.load(Relaxed), 0);
        m.load(&[sampling(0, BOTH, 1_000)]);
        assert_eq!(m.page.throttled.load(Relaxed), 1);
        m.pmu.retire(1_000);
        assert!(!m.interrupt(), "put off");
        *m.pmu.tsc.borrow_mut() += RATE.window_tsc;
        m.load(&[sampling(0, BOTH, 1_000)]);
        m.pmu.retire(1_000);
        assert!(m.interrupt(), "a new window");
        assert_eq!(m.sample().1[0], 5_000);
    }

    #[test]
    fn overflows_are_put_off_whatever_page_the_vcpu_registers() {
        let mut m = loaded(&[]);
        for _ in 0..RATE.overflows_max {
            m.load(&[sampling(0, BOTH, 1_000)]);
            m.pmu.retire(1_000);
            assert!(m.interrupt());
            m.register_again();
        }
        m.load(&[sampling(0, BOTH, 1_000)]);
        assert_eq!(m.page.throttled.load(Relaxed), 1);
        m.pmu.retire(1_000);
        assert!(!m.interrupt(), "put off");
        *m.pmu.tsc.borrow_mut() += RATE.window_tsc;
        m.register_again();
        m.load(&[sampling(0, BOTH, 1_000)]);
        m.pmu.retire(1_000);
        assert!(m.interrupt(), "a new window");
    }

    /// Some family 6 CPUs interrupt without end if an overflow is acknowledged while the counter
    /// holds exactly 0.
    #[test]
    fn no_overflow_is_acknowledged_with_the_counter_at_0() {
        let mut m = loaded(&[sampling(0, USER, 1_000), counter(1, USER)]);
        m.pmu.retire(1_000);
        m.pmu.take_writes();
        assert!(m.interrupt());
        let writes: Vec<u32> = m.pmu.take_writes().iter().map(|&(msr, _)| msr).collect();
        assert_eq!(writes, [IA32_PMC0, IA32_PERF_GLOBAL_OVF_CTRL]);
        assert_ne!(m.pmu.counter(0), 0);
        m.pmu.retire(7);
        assert_eq!(m.sample().1, [1_007, 1_007, 0], "and nothing is counted for it");
        // Nor is it brought back to 0 when the vCPU is switched in.
        m.pmu.counters.borrow_mut().insert(0, 0);
        m.switch_from();
        m.switch_to(0, User, true);
        assert_ne!(m.pmu.counter(0), 0);
    }

    /// The status says that counter 0 has overflowed, too: it wrapped, and does not interrupt.
    #[test]
    fn a_counter_that_does_not_interrupt_is_left_alone_at_0() {
        let mut m = loaded(&[counter(0, USER), sampling(1, USER, 1_000)]);
        m.pmu.counters.borrow_mut().insert(0, 0);
        m.pmu.take_writes();
        assert!(!m.interrupt());
        assert_eq!(m.pmu.take_writes(), [(IA32_PERF_GLOBAL_OVF_CTRL, 0x1)]);
        assert_eq!(m.pmu.counter(0), 0);
    }

    /// A counter that counts before it is folded, and is not folded, must not be counted twice.
    #[test]
    fn an_interrupt_folds_what_samples_and_runs_and_nothing_else() {
        let mut m =
            loaded(&[sampling(0, USER, 1_000), counter(1, BOTH), sampling(2, KERNEL, 1_000)]);
        m.pmu.retire(10);
        let started = |m: &Machine| [0, 1, 2].map(|n: usize| m.page.slots[n].start.load(Relaxed));
        let before = started(&m);
        m.interrupt();
        let after = started(&m);
        assert_eq!((after[0].wrapping_sub(before[0]), after[1]), (10, before[1]));
        assert_eq!(m.sample().1, [10, 10, 0]);
    }

    #[test]
    fn a_counter_that_samples_no_more_overflows_no_more() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.pmu.counters.borrow_mut().insert(0, 1 << 47);
        m.load(&[counter(0, USER)]);
        m.toggle(User);
        m.pmu.counters.borrow_mut().insert(0, 7);
        assert!(!m.toggle(Kernel));
        assert_eq!(m.page.overflows.load(Relaxed), 0);
    }

    #[test]
    fn stop_lets_the_counter_count_for_others_again() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.toggle(Kernel);
        m.stop();
        m.load(&[counter(0, BOTH)]);
        m.pmu.retire(5);
        assert_eq!(m.sample().1[0], 5);
    }
}

mod guests {
    use super::*;

    const KERNEL_FIXED: u64 = EVNTSEL_OS | EVNTSEL_EN;

    #[test]
    fn with_rings_of_its_own_the_hardware_tells_them_apart() {
        let mut m = Machine::with(driver(), Guest { rings: Rings::Hardware, ..Guest::pv() });
        m.load(&[counter(0, KERNEL), counter(1, USER), counter(17, KERNEL_FIXED)]);
        let writes = m.pmu.take_writes();
        assert!(writes.contains(&(IA32_PERFEVTSEL0, KERNEL)));
        assert!(writes.contains(&(IA32_PERFEVTSEL0 + 1, USER)));
        assert!(writes.contains(&(IA32_FIXED_CTR_CTRL, 0x10)));
        // Nothing is folded when it changes its mode: the counter goes on.
        m.pmu.retire_in_guest(5);
        assert!(!m.toggle(User));
        m.pmu.retire_in_guest(7);
        assert_eq!(m.sample().1[1], 12);
    }

    fn vmx(measure_cost: bool) -> Machine {
        let guest = Guest { rings: Rings::Hardware, ..Guest::pv() };
        Machine::with(driver_that(measure_cost), guest)
    }

    /// To load a register that is not there ends the host at the guest's exit.
    #[test]
    fn a_refused_cpu_loads_nothing_at_entry_and_exit() {
        for measures in [false, true] {
            let mut m = vmx(measures);
            m.load(&[counter(0, BOTH)]);
            assert_ne!(m.pmu.at_switch.get(), Some((0, 0)), "elsewhere it does");
            m.switch_from();
            m.pcpu = Pcpu::new();
            m.switch_to(1, User, true);
            assert_eq!(m.pmu.at_switch.get(), Some((0, 0)));
        }
    }

    fn sampling(slot: u32, period: u64) -> CounterConfig {
        CounterConfig { mode: MODE_SAMPLING, period, ..counter(slot, BOTH) }
    }

    #[test]
    fn what_the_hypervisor_executes_for_a_guest_of_vmx_is_not_counted() {
        for (measures, own) in [(false, 0), (true, 1 << 3)] {
            let mut m = vmx(measures);
            assert_eq!(m.pmu.at_switch.get(), Some((0, own)), "registered");
            assert_eq!(*m.pmu.enabled.borrow(), own);
            m.load(&[counter(0, BOTH), sampling(1, 1_000), counter(17, KERNEL_FIXED)]);
            assert_eq!(m.pmu.at_switch.get(), Some((0x2_0000_0003, own)));
            for _ in 0..3 {
                m.pmu.retire_in_guest(100);
                m.pmu.retire(1_000_000);
            }
            assert_eq!(m.sample().1, [300, 300, 0]);
            assert!(!m.switch_from());
            m.pmu.retire(1_000_000);
            assert!(!m.switch_to(1, Kernel, true));
            m.pmu.retire(1_000_000);
            m.pmu.retire_in_guest(700);
            // The interrupt comes when the guest has been left for it.
            m.pmu.retire(1_000_000);
            assert!(m.interrupt() && !m.interrupt());
            assert_eq!(m.sample().1, [1_000, 1_000, 0]);
            m.stop();
            assert_eq!(m.pmu.at_switch.get(), Some((0, own)));
        }
    }

    #[test]
    fn a_gate_that_the_host_has_opened_is_closed_again() {
        for (measures, own) in [(false, 0), (true, 1 << 3)] {
            let mut m = vmx(measures);
            m.load(&[counter(0, BOTH), counter(2, KERNEL)]);
            for switched in [false, true, true] {
                m.pmu.retire_in_guest(100);
                // The host's perf handles an interrupt of its own, and ends with this.
                m.pmu.write_register(IA32_PERF_GLOBAL_CTRL, 0x7_0000_000f);
                m.driver.close_gate(&m.pmu);
                assert_eq!(*m.pmu.enabled.borrow(), own);
                m.pmu.retire(1_000_000);
                if switched {
                    m.switch_from();
                    m.pmu.write_register(IA32_PERF_GLOBAL_CTRL, 0x7_0000_000f);
                    m.driver.close_gate(&m.pmu);
                    m.pmu.retire(1_000_000);
                    m.switch_to(0, Kernel, true);
                }
            }
            assert_eq!(m.sample().1, [300, 0, 300]);
            m.pmu.take_writes();
            m.driver.close_gate(&m.pmu);
            assert_eq!(m.pmu.take_writes(), [], "it is closed");
        }
    }

    #[test]
    fn no_gate_is_closed_where_the_counters_stop_by_themselves() {
        let pmu = FakePmu::default();
        *pmu.enabled.borrow_mut() = 0b101;
        amd_with_svm().close_gate(&pmu);
        assert_eq!((pmu.take_writes(), *pmu.enabled.borrow()), (vec![], 0b101));
    }

    #[test]
    fn an_exit_without_a_switch_costs_nothing_and_a_switch_no_register() {
        let mut m = vmx(false);
        m.load(&[counter(0, BOTH)]);
        m.pmu.take_writes();
        m.pmu.at_switch.take();
        m.toggle(User);
        m.switch_from();
        m.switch_to(0, User, true);
        assert_eq!(m.pmu.take_writes(), []);
        assert_eq!(m.pmu.at_switch.get(), None, "what was asked for stays");
    }

    #[test]
    fn guests_of_vmx_and_pv_guests_take_turns() {
        let mut m = vmx(false);
        m.load(&[counter(0, BOTH)]);
        m.pmu.retire_in_guest(10);
        m.switch_from();
        let page = VcpuPage::default();
        let slot = PhysSlot::general(0).unwrap();
        let pv = &mut Vcpu::register(&mut m.cpu(), &page, &pv_of(2), None);
        pv.load(&mut m.cpu(), &page, &config(&[counter(0, BOTH)]));
        for _ in 0..2 {
            assert_eq!(*m.pmu.enabled.borrow() & 1, 1);
            m.pmu.retire(7);
            pv.switch_from(&mut m.cpu(), &page);
            m.pmu.take_writes();
            m.switch_to(0, Kernel, true);
            let writes = m.pmu.take_writes();
            let place = |register| writes.iter().position(|&(msr, _)| msr == register);
            let (closed, selected) = (place(IA32_PERF_GLOBAL_CTRL), place(IA32_PERFEVTSEL0));
            assert!(closed < selected && closed.is_some(), "{writes:x?}");
            m.pmu.retire(1_000);
            m.pmu.retire_in_guest(10);
            m.switch_from();
            let writes = {
                pv.switch_to(&mut m.cpu(), &page, Kernel, true);
                m.pmu.take_writes()
            };
            let place = |register| writes.iter().position(|&(msr, _)| msr == register);
            assert!(place(IA32_PERFEVTSEL0) < place(IA32_PERF_GLOBAL_CTRL), "{writes:x?}");
        }
        assert_eq!(sample_vcpu(&page, &m.pmu, &[slot]).unwrap().counter[0], 14);
        pv.switch_from(&mut m.cpu(), &page);
        m.switch_to(0, Kernel, true);
        assert_eq!(m.sample().1[0], 30);
    }

    #[test]
    fn a_guest_of_vmx_that_counts_nothing_leaves_counters_stopped_as_the_driver_knows() {
        let mut m = vmx(false);
        m.switch_from();
        let page = VcpuPage::default();
        let slot = PhysSlot::general(0).unwrap();
        let pv = &mut Vcpu::register(&mut m.cpu(), &page, &pv_of(2), None);
        pv.load(&mut m.cpu(), &page, &config(&[counter(0, BOTH)]));
        pv.switch_from(&mut m.cpu(), &page);
        m.switch_to(0, Kernel, true);
        m.pmu.retire_in_guest(10);
        m.switch_from();
        pv.switch_to(&mut m.cpu(), &page, Kernel, true);
        m.pmu.retire(5);
        assert_eq!(sample_vcpu(&page, &m.pmu, &[slot]).unwrap().counter[0], 5);
    }

    #[test]
    fn a_guest_of_vmx_that_is_forbidden_is_entered_with_all_counters_stopped() {
        for revoked in [true, false] {
            let mut m = vmx(false);
            m.load(&[counter(0, BOTH)]);
            match revoked {
                true => assert!(m.on(0, |vcpu, cpu, page| vcpu.revoke(cpu, page))),
                false => {
                    m.switch_from();
                    m.switch_to(0, Kernel, false);
                }
            }
            assert_eq!(m.pmu.at_switch.get(), Some((0, 0)));
            m.on(0, |vcpu, cpu, _| vcpu.abandon(cpu));
            assert_eq!((m.pmu.at_switch.get(), *m.pmu.enabled.borrow()), (Some((0, 0)), 0));
        }
    }

    #[test]
    fn what_may_have_been_ignored_is_asked_for_again() {
        let mut m = vmx(false);
        m.load(&[counter(0, BOTH)]);
        let before = m.pmu.at_switch.get();
        m.on(0, |vcpu, cpu, page| vcpu.revoke(cpu, page));
        m.pmu.at_switch.set(before);
        m.switch_from();
        m.switch_to(0, Kernel, true);
        assert_eq!(m.pmu.at_switch.get(), Some((0, 0)));
    }

    #[test]
    fn on_a_cpu_that_cannot_count_no_register_is_written_for_a_guest_of_vmx() {
        let mut m = vmx(false);
        m.load(&[counter(0, BOTH)]);
        m.switch_from();
        m.pcpu = Pcpu::new();
        m.pmu.take_writes();
        m.switch_to(1, Kernel, true);
        m.on(1, |vcpu, cpu, _| vcpu.abandon(cpu));
        assert_eq!((m.pmu.take_writes(), m.pmu.at_switch.get()), (vec![], Some((0, 0))));
    }

    /// Makes the driver of the same family without SVM, whose selectors know no guests.
    pub fn amd_without_svm() -> Driver {
        Driver::new(&Identity { extended: 0, ..amd_with_svm().boot }, &SETTINGS).unwrap()
    }

    /// Makes a guest of SVM on a CPU that may count VMRUN there. The guest counts user mode's
    /// instructions, the kernel's branches, both modes' instructions, and cycles.
    fn entered(counts_entries: bool) -> Machine {
        let guest = Guest { rings: Rings::Hardware, ..Guest::pv() };
        let mut m = Machine::with(amd_that(counts_entries), guest);
        let branches = 0xc2 | EVNTSEL_OS | EVNTSEL_EN;
        let cycles = 0x76 | EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_EN;
        m.load(&[counter(0, USER), counter(1, branches), counter(2, BOTH), counter(3, cycles)]);
        m
    }

    impl Machine {
        /// Enters the guest by an instruction that these counters count.
        fn enter(&mut self, mode: GuestMode, counting: &[u32]) {
            self.on(0, |vcpu, cpu, page| vcpu.enter_guest(cpu, page, mode));
            self.pmu.count_one(counting);
        }

        /// Returns `Phys*` of general counters 0 to 3.
        fn counts(&self) -> [u64; 4] {
            let slots = [0, 1, 2, 3].map(|n| PhysSlot::general(n).unwrap());
            sample_vcpu(&self.page, &self.pmu, &slots).unwrap().counter[..4].try_into().unwrap()
        }
    }

    #[test]
    fn an_entry_that_the_cpu_counts_is_not_the_guests() {
        let mut m = entered(true);
        m.pmu.take_writes();
        let mut truth = 0;
        for n in [5, 7, 11] {
            for (mode, counting) in [(User, [0, 2]), (Kernel, [1, 2]), (Kernel, [1, 2])] {
                m.enter(mode, &counting);
                assert_eq!(m.counts(), [truth; 4], "{mode:?}");
                m.pmu.retire(n);
                truth += n;
                assert_eq!(m.counts(), [truth; 4], "{mode:?}");
            }
            assert!(!m.switch_from());
            assert!(!m.switch_to(1, User, true));
            assert_eq!(m.counts(), [truth; 4], "after a switch");
        }
        m.stop();
        let (stamp, writes) = (m.page.seq.stamp(), m.pmu.take_writes());
        assert!(!writes.iter().any(|(msr, _)| (K7_PERFCTR0..K7_PERFCTR0 + 4).contains(msr)));
        m.enter(User, &[]);
        assert!(m.page.seq.is_valid(stamp), "nothing counts, so nothing is taken back");
    }

    #[test]
    fn an_entry_that_the_cpu_does_not_count_is_none_of_the_drivers_business() {
        const THRESHOLD: u64 = 1 << 24;
        let guest = Guest { rings: Rings::Hardware, ..Guest::pv() };
        let intel = Driver::new(&nehalem(), &Settings { counts_entries: true, ..SETTINGS });
        assert!(!intel.unwrap().counts_entries, "Intel's do not");
        let settings = Settings { counts_entries: true, all_events: true, ..SETTINGS };
        let any_event = Driver::new(&amd_that(true).boot, &settings).unwrap();
        for (mut m, evntsel, what) in [
            (Machine::with(any_event, guest), BOTH | 1 << 32, "event 0x1c0 is another one"),
            (entered(false), BOTH, "not counted"),
            (Machine::with(amd_that(true), Guest::pv()), BOTH, "a PV guest is not entered so"),
            (Machine::with(amd_that(true), guest), BOTH | THRESHOLD, "cycles are counted"),
        ] {
            m.load(&[counter(2, evntsel)]);
            m.pmu.take_writes();
            let stamp = m.page.seq.stamp();
            for mode in [User, Kernel, User] {
                m.enter(mode, &[]);
            }
            assert!(m.page.seq.is_valid(stamp), "{what}");
            assert_eq!(m.pmu.take_writes(), [], "{what}");
        }
    }

    #[test]
    fn a_period_is_of_the_guests_own_instructions() {
        let guest = Guest { rings: Rings::Hardware, ..Guest::pv() };
        let mut m = Machine::with(amd_that(true), guest);
        let sampling = |period| CounterConfig { mode: MODE_SAMPLING, period, ..counter(0, USER) };
        for period in [1000, 40] {
            m.load(&[sampling(period)]);
            let start = m.sample().1[0];
            for own in [0, 9, 20, period - 30] {
                m.enter(User, &[0]);
                m.pmu.retire(own);
                m.enter(Kernel, &[]);
            }
            assert!(!m.interrupt(), "entries bring no period to its end");
            m.enter(User, &[0]);
            m.pmu.retire(1);
            m.pmu.take_writes();
            m.enter(User, &[0]);
            assert_eq!(m.pmu.take_writes(), [], "at 0 it would overflow once more");
            assert!(m.interrupt(), "{period} instructions have retired");
            assert_eq!(m.sample().1[0] - start, period);
            // It goes on beyond its period, and does not overflow again.
            for own in [0, 3] {
                m.enter(User, &[0]);
                m.pmu.retire(own);
                assert!(!m.interrupt());
            }
            assert_eq!(m.sample().1[0] - start, period + 3);
        }
    }

    pub fn amd_with_svm() -> Driver {
        amd_that(false)
    }

    fn amd_that(counts_entries: bool) -> Driver {
        let spelled = |text: &[u8; 4]| u32::from_le_bytes(*text);
        let cpuid = Identity {
            vendor: [spelled(b"Auth"), spelled(b"enti"), spelled(b"cAMD")],
            signature: 0x0080_0f12,
            extended: 1 << 2,
            ..Identity::NONE
        };
        Driver::new(&cpuid, &Settings { counts_entries, ..SETTINGS }).unwrap()
    }

    #[test]
    fn selectors_are_limited_to_guests_where_the_hardware_can() {
        let driver = amd_with_svm;
        let mut m = Machine::with(driver(), Guest { rings: Rings::Hardware, ..Guest::pv() });
        m.load(&[counter(0, BOTH)]);
        assert!(m.pmu.take_writes().contains(&(0xc001_0000, BOTH | 1 << 40)));
        let mut m = Machine::with(driver(), Guest::pv());
        m.load(&[counter(0, BOTH)]);
        assert!(m.pmu.take_writes().contains(&(0xc001_0000, USER)));
    }

    #[test]
    fn time_is_told_in_the_guests_own() {
        let clock = Clock { offset: 1_000, scale: 1 << 31, fraction_bits: 32, reserved: 0 };
        let mut m = Machine::with(driver(), Guest { clock, ..Guest::pv() });
        assert_eq!(m.page.tsc_start.load(Relaxed), 1_000);
        m.pmu.retire(50);
        m.switch_from();
        assert_eq!(m.page.tsc_sum.load(Relaxed), 50, "half of 100 ticks of the host");
    }

    #[test]
    fn a_guest_that_sets_its_time_loses_none() {
        let clock = Clock { offset: 1_000, ..Clock::native() };
        let mut m = Machine::with(driver(), Guest { clock, ..Guest::pv() });
        m.pmu.retire(50);
        m.switch_from();
        m.on(0, |vcpu, _, _| vcpu.set_clock(Clock { offset: 7, ..clock }));
        m.switch_to(0, Kernel, true);
        assert_eq!(m.page.tsc_start.load(Relaxed), 107);
        m.pmu.retire(50);
        m.switch_from();
        assert_eq!(m.page.tsc_sum.load(Relaxed), 200);
    }
}

mod requests {
    use super::*;

    fn load_bytes(counters: &[CounterConfig]) -> Vec<u8> {
        let mut load = HvLoad::new_zeroed();
        load.counters = counters.len() as u32;
        load.counter[..counters.len()].copy_from_slice(counters);
        load.as_bytes()[..HvLoad::bytes(counters.len())].to_vec()
    }

    /// A domain that calls, with everything that the hypervisor was asked to do.
    struct Domain {
        machine: Machine,
        registered: bool,
        allowed: bool,
        limits: Limits,
        control: bool,
        guest: Option<Guest>,
        counters: Result<(), Errno>,
        /// Whether the caller needs counters, and how often it has begun to.
        needs: bool,
        begun: u32,
        /// Whether a frame can be registered.
        frame: Result<(), Errno>,
        /// The number of the host's domains.
        others: u32,
        done: Vec<String>,
    }

    impl Domain {
        fn new() -> Self {
            Self {
                machine: Machine::new(),
                registered: true,
                allowed: true,
                limits: Limits::NONE,
                control: true,
                guest: Some(Guest::pv()),
                counters: Ok(()),
                needs: false,
                begun: 0,
                frame: Ok(()),
                others: 2,
                done: Vec::new(),
            }
        }

        /// Makes a hypercall. Returns its result, and whether the argument is copied back.
        fn call(&mut self, op: u32, bytes: &mut [u8]) -> Result<bool, Errno> {
            authorize(self, op, bytes.len())?;
            serve(&driver(), self, op, bytes)
        }
    }

    impl Caller for Domain {
        type Pmu<'a> = FakePmu;

        fn permits(&self, permission: Permission) -> Result<(), Errno> {
            let refused = permission == Permission::ControlHost && !self.control;
            if refused { Err(Errno::PERM) } else { Ok(()) }
        }
        fn limits(&self) -> Option<Limits> {
            self.allowed.then_some(self.limits)
        }
        fn machine(&self) -> u64 {
            7
        }
        fn guest(&self) -> Option<Guest> {
            self.guest
        }
        fn on_cpu<R>(&mut self, work: impl FnOnce(&mut ThisCpu<'_, FakePmu>) -> R) -> R {
            work(&mut self.machine.cpu())
        }
        fn on_vcpu<R, W>(&mut self, work: W) -> Option<R>
        where
            W: FnOnce(&mut ThisCpu<'_, FakePmu>, &mut Vcpu, &VcpuPage, Option<Limits>) -> R,
        {
            let limits = self.limits();
            let work = |vcpu: &mut Vcpu, cpu: &mut ThisCpu<'_, FakePmu>, page: &VcpuPage| {
                work(cpu, vcpu, page, limits)
            };
            self.registered.then(|| self.machine.on(0, work))
        }
        fn take_counters(&mut self) -> Result<(), Errno> {
            self.counters?;
            self.begun += u32::from(!self.needs);
            self.needs = true;
            Ok(())
        }
        fn put_counters(&mut self) {
            self.needs = false;
        }
        fn register(&mut self, gfn: u64, guest: &Guest, goes_on: bool) -> Result<(), Errno> {
            if goes_on {
                self.take_counters()?;
            }
            self.frame?;
            self.registered = true;
            let how = if goes_on { "go on with" } else { "register" };
            self.done.push(format!("{how} {gfn:#x} for {}", guest.observer));
            Ok(())
        }
        fn unregister(&mut self) {
            self.machine.on(0, |vcpu, cpu, page| vcpu.unregister(cpu, page));
            self.registered = false;
            self.done.push("unregister".into());
        }
        fn set_policy(&mut self, wanted: &HvDomain) -> Result<(), Errno> {
            let HvDomain { domid, enabled, counters_max, overflows_per_ms } = wanted;
            let limits = format!("{counters_max} {overflows_per_ms}");
            self.done.push(format!("policy {domid} {enabled} {limits}"));
            Ok(())
        }
        fn list_domains(&mut self, answer: &mut HvDomains) {
            let policy = Policy::default();
            for domid in 0..self.others {
                driver().add_domain(answer, &policy, domid, domid == 0);
            }
        }
        fn clock(&mut self, domain: u32, vcpu: u32) -> Result<Clock, Errno> {
            match vcpu {
                0..2 => {
                    Ok(Clock { offset: domain.into(), scale: 3, fraction_bits: vcpu, reserved: 0 })
                }
                _ => Err(Errno::SRCH),
            }
        }
        fn add_stats(&mut self, total: &mut HvStats) {
            self.machine.pcpu.stats.add_to(total);
        }
        fn start_profile(&mut self, profile: &HvProfile) -> Result<(), Errno> {
            self.done.push(format!("profile {:#x} every {}", profile.evntsel, profile.period));
            Ok(())
        }
        fn take_samples(&mut self, samples: &mut HvSamples) -> Result<(), Errno> {
            (samples.count, samples.lost) = (1, 5);
            samples.sample[0].ip = u64::from(samples.cpu) + 70;
            Ok(())
        }
        fn stop_profile(&mut self) -> Result<(), Errno> {
            self.done.push("profile no more".into());
            Ok(())
        }
        fn start_accounts(&mut self, accounting: &HvAccounting) -> Result<(), Errno> {
            self.done.push(format!("account {:#x}", accounting.evntsel));
            Ok(())
        }
        fn read_accounts(&mut self, accounts: &mut HvAccounts) -> Result<(), Errno> {
            accounts.count = 1;
            accounts.account[0].executed = u64::from(accounts.domain) + 70;
            Ok(())
        }
        fn stop_accounts(&mut self) -> Result<(), Errno> {
            self.done.push("account no more".into());
            Ok(())
        }
    }

    fn refused_by(domain: &mut Domain, op: u32, bytes: &[u8]) -> Errno {
        let mut copy = bytes.to_vec();
        let errno = domain.call(op, &mut copy).unwrap_err();
        assert_eq!(copy, bytes, "a refused argument is unchanged");
        assert!(domain.done.is_empty(), "{:?}", domain.done);
        errno
    }

    fn refused(op: u32, bytes: &[u8]) -> Errno {
        refused_by(&mut Domain::new(), op, bytes)
    }

    #[test]
    fn the_handshake_answers_and_refuses() {
        let mut query = HvQuery { abi_major: ABI_MAJOR.into(), abi_minor: 7, ..HvQuery::default() };
        assert_eq!(Domain::new().call(OP_QUERY, query.as_mut_bytes()), Ok(true));
        assert_eq!((query.abi_major, query.abi_minor), (ABI_MAJOR.into(), ABI_MINOR.into()));
        assert_eq!(query.caps, WireCaps::from(&driver().caps));
        assert_eq!((query.features, query.machine), (FEATURE_ENABLED, 7));
        let mut forbidden = Domain { allowed: false, ..Domain::new() };
        assert_eq!(forbidden.call(OP_QUERY, query.as_mut_bytes()), Ok(true));
        assert_eq!(query.features, 0);
        let measured = &mut Domain::new();
        assert_eq!(serve(&driver_that(true), measured, OP_QUERY, query.as_mut_bytes()), Ok(true));
        assert_eq!(query.features, FEATURE_ENABLED | FEATURE_COST);
        query.abi_major += 1;
        assert_eq!(refused(OP_QUERY, query.as_bytes()), Errno::PROTO);
        assert_eq!(refused(OP_QUERY, &query.as_bytes()[1..]), Errno::INVAL);
    }

    #[test]
    fn a_guest_with_a_kernel_of_its_own_is_told_that_it_has_to_subtract_interrupts() {
        let tenant = Guest { rings: Rings::Hardware, ..Guest::pv() };
        for (driver, guest, is_told) in [
            (driver(), tenant, false),
            (driver_that_counts_interrupts(), tenant, true),
            (driver_that_counts_interrupts(), Guest::pv(), false),
        ] {
            let mut query = HvQuery { abi_major: ABI_MAJOR.into(), ..HvQuery::default() };
            let mut domain = Domain { guest: Some(guest), ..Domain::new() };
            assert_eq!(serve(&driver, &mut domain, OP_QUERY, query.as_mut_bytes()), Ok(true));
            assert_eq!(query.features & FEATURE_INTERRUPTS != 0, is_told, "{guest:?}");
        }
    }

    #[test]
    fn a_load_is_exactly_as_long_as_it_says() {
        let counters = [counter(0, USER), counter(16, EVNTSEL_USR | EVNTSEL_EN)];
        let mut bytes = load_bytes(&counters);
        let mut domain = Domain::new();
        assert_eq!(domain.call(OP_LOAD, &mut bytes), Ok(false));
        assert_eq!(domain.machine.page.loaded.load(Relaxed), 1 | 1 << 16);
        for length in 0..bytes.len() {
            assert_eq!(refused(OP_LOAD, &bytes[..length]), Errno::INVAL);
        }
        bytes.push(0);
        assert_eq!(refused(OP_LOAD, &bytes), Errno::INVAL);
        let mut reserved = load_bytes(&counters);
        reserved[4] = 1;
        assert_eq!(refused(OP_LOAD, &reserved), Errno::INVAL);
        let mut absurd = load_bytes(&counters);
        absurd[..4].fill(0xff);
        assert_eq!(refused(OP_LOAD, &absurd), Errno::INVAL);
    }

    #[test]
    fn nothing_is_loaded_while_the_host_needs_the_counters_itself() {
        let mut domain = Domain { counters: Err(Errno::BUSY), ..Domain::new() };
        let bytes = load_bytes(&[counter(1, USER)]);
        for _ in 0..2 {
            assert_eq!(refused_by(&mut domain, OP_LOAD, &bytes), Errno::BUSY);
            assert_eq!(domain.machine.page.loaded.load(Relaxed), 0);
        }
        domain.counters = Ok(());
        assert_eq!(domain.call(OP_LOAD, &mut bytes.clone()), Ok(false));
        assert_eq!(domain.machine.page.loaded.load(Relaxed), 1 << 1);
    }

    #[test]
    fn a_load_is_validated() {
        let any_thread = counter(0, USER | 1 << 21);
        assert_eq!(refused(OP_LOAD, &load_bytes(&[any_thread])), Errno::PERM);
        assert_eq!(refused(OP_LOAD, &load_bytes(&[counter(9, USER)])), Errno::INVAL);
        let no_mode = CounterConfig { mode: 3, ..counter(0, USER) };
        assert_eq!(refused(OP_LOAD, &load_bytes(&[no_mode])), Errno::OPNOTSUPP);
    }

    fn show_bytes(counters: &[CounterConfig]) -> Vec<u8> {
        let register = HvRegister { gfn: 0x1234, observer: 7, reserved: 0 };
        [register.as_bytes(), &load_bytes(counters)].concat()
    }

    #[test]
    fn another_page_is_shown_with_its_configuration_by_one_call() {
        for registered in [true, false] {
            let mut domain = Domain { registered, ..Domain::new() };
            let counters = [counter(2, USER)];
            assert_eq!(domain.call(OP_SHOW, &mut show_bytes(&counters)), Ok(false));
            let all = ["unregister", "register 0x1234 for 7"];
            assert_eq!(domain.done, all[usize::from(!registered)..]);
            assert_eq!(domain.machine.page.loaded.load(Relaxed), 1 << 2);
            // perf's counters are not asked for where nothing is to be counted.
            domain.counters = Err(Errno::BUSY);
            assert_eq!(domain.call(OP_SHOW, &mut show_bytes(&[])), Ok(false));
            assert_eq!(domain.machine.page.loaded.load(Relaxed), 0);
        }
    }

    #[test]
    fn users_who_take_turns_keep_the_counters() {
        let mut domain = Domain::new();
        for _ in 0..1_000 {
            for slot in [2, 3] {
                let bytes = &mut show_bytes(&[counter(slot, USER)]);
                assert_eq!(domain.call(OP_SHOW, bytes), Ok(false));
                assert!(domain.needs);
            }
        }
        assert_eq!(domain.begun, 1, "at the first turn");
        assert_eq!(domain.call(OP_SHOW, &mut show_bytes(&[])), Ok(false));
        assert!(!domain.needs, "a page alone needs no counter");
        assert_eq!(domain.call(OP_LOAD, &mut load_bytes(&[counter(2, USER)])), Ok(false));
        assert!(domain.needs);
        assert_eq!(domain.call(OP_UNREGISTER, &mut []), Ok(false));
        assert!(!domain.needs);
    }

    #[test]
    fn a_frame_that_is_refused_needs_no_counters() {
        let loaded = || {
            let mut domain = Domain::new();
            assert_eq!(domain.call(OP_LOAD, &mut load_bytes(&[counter(2, USER)])), Ok(false));
            domain.frame = Err(Errno::INVAL);
            domain
        };
        let register = HvRegister { gfn: 0x1234, observer: 7, reserved: 0 };
        let shown = show_bytes(&[counter(2, USER)]);
        let bare = Domain { registered: false, frame: Err(Errno::INVAL), ..Domain::new() };
        for (mut domain, op, bytes) in
            [(bare, OP_GO_ON, register.as_bytes()), (loaded(), OP_SHOW, &shown)]
        {
            assert_eq!(domain.call(op, &mut bytes.to_vec()), Err(Errno::INVAL));
            assert!(!domain.registered && !domain.needs && domain.begun == 1, "{op}");
        }
    }

    #[test]
    fn a_page_that_cannot_be_shown_leaves_none_registered() {
        let bytes = show_bytes(&[counter(3, USER)]);
        let [old, new] = ["unregister", "register 0x1234 for 7"];
        let forbidden = Domain { allowed: false, ..Domain::new() };
        let busy = Domain { counters: Err(Errno::BUSY), ..Domain::new() };
        let limits = Limits { slots: driver().caps.first(3), ..Limits::NONE };
        let limited = Domain { limits, ..Domain::new() };
        for (mut domain, errno, done) in [
            (forbidden, Errno::PERM, &[old][..]),
            (busy, Errno::BUSY, &[old, new, old]),
            (limited, Errno::STALE, &[old, new, old]),
        ] {
            assert_eq!(domain.call(OP_SHOW, &mut bytes.clone()), Err(errno));
            assert!(!domain.registered && !domain.needs);
            assert_eq!(domain.done, done);
        }
        // A request that is not understood does nothing.
        for length in 0..bytes.len() {
            assert_eq!(refused(OP_SHOW, &bytes[..length]), Errno::INVAL);
        }
        let mut reserved = bytes.clone();
        reserved[12] = 1;
        assert_eq!(refused(OP_SHOW, &reserved), Errno::INVAL);
        let any_thread = counter(0, USER | 1 << 21);
        assert_eq!(refused(OP_SHOW, &show_bytes(&[any_thread])), Errno::PERM);
    }

    #[test]
    fn the_others_have_fixed_arguments() {
        let register = HvRegister { gfn: 0x1234, observer: 7, reserved: 0 };
        let mut domain = Domain { registered: false, ..Domain::new() };
        assert_eq!(domain.call(OP_REGISTER, &mut register.as_bytes().to_vec()), Ok(false));
        assert_eq!(domain.done, ["register 0x1234 for 7"]);
        let bad = HvRegister { reserved: 1, ..register };
        assert_eq!(refused(OP_REGISTER, bad.as_bytes()), Errno::INVAL);
        assert_eq!(refused(OP_REGISTER, &[]), Errno::INVAL);
        for bad in [[1u32, 2, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [1, u32::MAX, 0, 0]] {
            assert_eq!(refused(OP_DOMAIN, bad.as_bytes()), Errno::INVAL);
        }
        let mut domain = Domain::new();
        for decision in [[5u32, 1, 0, 0], [6, 1, 2, 9], [7, 0, 0, 0]] {
            assert_eq!(domain.call(OP_DOMAIN, { decision }.as_mut_bytes()), Ok(false));
        }
        assert_eq!(domain.done, ["policy 5 1 0 0", "policy 6 1 2 9", "policy 7 0 0 0"]);
        for op in [OP_UNREGISTER, OP_STOP] {
            assert_eq!(refused(op, &[0]), Errno::INVAL);
        }
        assert_eq!(refused(OP_STATS, &[0; 8]), Errno::INVAL);
        assert_eq!(refused(OP_DOMAINS, &[0; 8]), Errno::INVAL);
        assert_eq!(refused(OP_CLOCK, &[0; 8]), Errno::INVAL);
        assert_eq!(refused(OP_LOAD, &vec![0; ARGUMENT_BYTES_MAX + 1]), Errno::INVAL);
        let length = |bytes| authorize(&mut Domain::new(), OP_LOAD, bytes);
        assert_eq!(length(ARGUMENT_BYTES_MAX), Ok(()));
        assert_eq!(length(ARGUMENT_BYTES_MAX + 1), Err(Errno::INVAL));
        assert_eq!(length(usize::MAX), Err(Errno::INVAL));
        for slot in [MAX_SLOTS as u32, u32::MAX] {
            assert_eq!(
                refused(OP_PLACE, HvPlace { slot, ..HvPlace::default() }.as_bytes()),
                Errno::INVAL
            );
        }
        assert_eq!(refused(OP_PLACE, &[0; 8]), Errno::INVAL);
        assert_eq!(refused(8, &[]), Errno::INVAL);
        assert_eq!(refused(u32::MAX, &[]), Errno::INVAL);
    }

    #[test]
    fn a_domain_with_a_limit_has_the_first_counters_only() {
        let limits = Limits { slots: driver().caps.first(5), ..Limits::NONE };
        let mut domain = Domain { limits, ..Domain::new() };
        let mut query = HvQuery { abi_major: ABI_MAJOR.into(), ..HvQuery::default() };
        assert_eq!(domain.call(OP_QUERY, query.as_mut_bytes()), Ok(true));
        assert_eq!((query.caps.general, query.caps.fixed), (4, 1));
        let fixed = |slot| counter(slot, EVNTSEL_USR | EVNTSEL_EN);
        assert_eq!(
            domain.call(OP_LOAD, &mut load_bytes(&[counter(3, USER), fixed(16)])),
            Ok(false)
        );
        // It is told what a domain is told that was restored on a host with fewer counters.
        for beyond in [&[fixed(17)][..], &[counter(0, USER), fixed(18)]] {
            assert_eq!(refused_by(&mut domain, OP_LOAD, &load_bytes(beyond)), Errno::STALE);
            assert_eq!(domain.machine.page.loaded.load(Relaxed), 1 << 3 | 1 << 16, "as before");
        }
    }

    #[test]
    fn a_domain_has_its_own_rate_or_the_hosts_whichever_is_lower() {
        let host = driver().rate.overflows_max;
        for (own, put_off_after) in [(2, 2), (host + 3, host), (u64::MAX, host)] {
            let limits = Limits { overflows_max: own, ..Limits::NONE };
            let mut domain = Domain { limits, ..Domain::new() };
            let mut overflows = 0;
            loop {
                domain.call(OP_LOAD, &mut load_bytes(&[overflows::sampling(0, BOTH, 1)])).unwrap();
                if domain.machine.page.throttled.load(Relaxed) != 0 {
                    break;
                }
                domain.machine.pmu.retire(1);
                assert!(domain.machine.interrupt());
                overflows += 1;
            }
            assert_eq!(overflows, put_off_after, "{own} of {host}");
        }
    }

    #[test]
    fn any_number_of_domains_is_listed_by_answers_of_one_size() {
        for others in [0, 1, DOMAINS_MAX as u32, DOMAINS_MAX as u32 + 1, 1_000] {
            let mut domain = Domain { others, ..Domain::new() };
            let (mut listed, mut first) = (Vec::new(), 0);
            loop {
                // What the caller has left in the other fields is not read.
                let mut answer = HvDomains { first, count: 7, ..HvDomains::new_zeroed() };
                assert_eq!(domain.call(OP_DOMAINS, answer.as_mut_bytes()), Ok(true));
                listed.extend_from_slice(&answer.domain[..answer.count as usize]);
                if (answer.count as usize) < DOMAINS_MAX {
                    break;
                }
                first = listed.last().unwrap().domid + 1;
            }
            let all = (0..others).map(|domid| (domid, u32::from(domid == 0)));
            assert!(all.eq(listed.iter().map(|d| (d.domid, d.enabled))), "{others}: {listed:?}");
        }
    }

    #[test]
    fn the_control_domain_learns_which_counter_a_virtual_cpu_reads() {
        let mut domain = Domain::new();
        let clock = HvClock { domain: 7, vcpu: 1, ..HvClock::default() };
        // What the caller has left in the other fields is not read.
        let mut asked = HvClock { offset: 9, reserved: 9, ..clock };
        assert_eq!(domain.call(OP_CLOCK, asked.as_mut_bytes()), Ok(true));
        assert_eq!(asked, HvClock { offset: 7, scale: 3, fraction_bits: 1, ..clock });
        let absent = HvClock { vcpu: 2, ..clock };
        assert_eq!(refused_by(&mut domain, OP_CLOCK, absent.as_bytes()), Errno::SRCH);
    }

    #[test]
    fn what_the_caller_is_decides_what_it_gets() {
        let register = HvRegister::default();
        let mut unregistered = Domain { registered: false, ..Domain::new() };
        let load = load_bytes(&[counter(0, USER)]);
        let place = HvPlace::default();
        let place = place.as_bytes();
        let operations =
            [(OP_UNREGISTER, &[][..]), (OP_STOP, &[]), (OP_LOAD, &load), (OP_PLACE, place)];
        for (op, bytes) in operations {
            assert_eq!(refused_by(&mut unregistered, op, bytes), Errno::NXIO);
        }
        assert_eq!(refused(OP_REGISTER, register.as_bytes()), Errno::EXIST);
        let mut forbidden = Domain { allowed: false, ..Domain::new() };
        for (op, bytes) in [(OP_REGISTER, register.as_bytes()), (OP_LOAD, &load)] {
            assert_eq!(refused_by(&mut forbidden, op, bytes), Errno::PERM);
        }
        assert_eq!(forbidden.call(OP_STOP, &mut []), Ok(false));
        let mut other = Domain { guest: None, registered: false, ..Domain::new() };
        assert_eq!(refused_by(&mut other, OP_REGISTER, register.as_bytes()), Errno::OPNOTSUPP);
    }

    #[test]
    fn a_guest_with_rings_of_its_own_counts_only_where_the_hypervisor_would_not_be_counted() {
        let guest = Some(Guest { rings: Rings::Hardware, ..Guest::pv() });
        let register = HvRegister { gfn: 7, observer: 3, reserved: 0 };
        for (driver, answer) in [
            (guests::amd_without_svm(), Err(Errno::OPNOTSUPP)),
            (guests::amd_with_svm(), Ok(false)),
            // VMX loads the register.
            (driver(), Ok(false)),
        ] {
            let mut domain = Domain { guest, registered: false, ..Domain::new() };
            let bytes = &mut register.as_bytes().to_vec();
            assert_eq!(serve(&driver, &mut domain, OP_REGISTER, bytes), answer);
            let done: &[_] = if answer.is_ok() { &["register 0x7 for 3"] } else { &[] };
            assert_eq!(domain.done, done);
        }
    }

    #[test]
    fn a_place_is_copied_back() {
        let mut domain = Domain::new();
        let mut place = HvPlace { slot: 3, mode: 7, ip: 7, sp: 7, flags: 7 };
        assert_eq!(domain.call(OP_PLACE, place.as_mut_bytes()), Ok(true));
        assert_eq!(place, HvPlace { slot: 3, ..HvPlace::default() });
    }

    #[test]
    fn a_caller_without_permission_is_refused_before_its_argument_is_looked_at() {
        let mut tenant = Domain { control: false, ..Domain::new() };
        for (op, bytes) in [
            (OP_DOMAIN, &[1; 3][..]),
            (OP_STATS, &[]),
            (OP_DOMAINS, &[]),
            (OP_CLOCK, &[]),
            (OP_DOMAIN, &[9; 900]),
            (OP_PROFILE_START, &[]),
            (OP_PROFILE_READ, &[]),
            (OP_PROFILE_STOP, &[]),
            (OP_ACCOUNTS_START, &[]),
            (OP_ACCOUNTS_READ, &[]),
            (OP_ACCOUNTS_STOP, &[]),
        ] {
            assert_eq!(refused_by(&mut tenant, op, bytes), Errno::PERM);
        }
    }

    /// Makes a domain on a host that lets guests record branches.
    fn recording() -> (Driver, Domain) {
        let driver = || {
            let identity = Identity { perf_capabilities: 3, ..nehalem() };
            Driver::new(&identity, &Settings { branches: true, ..SETTINGS }).unwrap()
        };
        let machine = Machine::with(driver(), Guest::pv());
        (driver(), Domain { machine, ..Domain::new() })
    }

    const RECORD: HvRecord = HvRecord { filter: BRANCHES_USER | BRANCHES_KINDS, reserved: 0 };

    #[test]
    fn branches_are_recorded_as_the_guest_asks() {
        let (driver, mut domain) = recording();
        domain.machine.pmu.take_writes();
        let mut asked = HvBranches { slot: 2, count: 9, ..HvBranches::default() };
        assert_eq!(serve(&driver, &mut domain, OP_RECORD, { RECORD }.as_mut_bytes()), Ok(false));
        // MSR_LBR_SELECT: not what ends in ring 0, and no far branches.
        assert!(domain.machine.pmu.take_writes().contains(&(0x1c8, 0x101)));
        assert_eq!(serve(&driver, &mut domain, OP_BRANCHES, asked.as_mut_bytes()), Ok(true));
        assert_eq!(asked, HvBranches { slot: 2, ..HvBranches::default() });
    }

    #[test]
    fn what_is_wrong_with_a_request_for_branches_is_said() {
        let (driver, mut domain) = recording();
        let mut refused = |op, bytes: &[u8]| {
            let done = serve(&driver, &mut domain, op, &mut bytes.to_vec());
            assert_eq!(done, Err(Errno::INVAL), "{op}, {bytes:?}");
        };
        for wrong in [
            HvRecord { filter: BRANCHES_USER, ..RECORD },
            HvRecord { filter: BRANCHES_KINDS, ..RECORD },
            HvRecord { filter: 1 << 8 | RECORD.filter, ..RECORD },
            HvRecord { reserved: 1, ..RECORD },
        ] {
            refused(OP_RECORD, wrong.as_bytes());
        }
        refused(OP_RECORD, &RECORD.as_bytes()[1..]);
        let slot = MAX_SLOTS as u32;
        refused(OP_BRANCHES, HvBranches { slot, ..HvBranches::default() }.as_bytes());
        refused(OP_BRANCHES, &[0; 8]);
    }

    #[test]
    fn branches_are_for_pv_guests_that_may_count_on_a_host_that_records_them() {
        let asked = |driver: &Driver, domain: &mut Domain| {
            let mut branches = HvBranches::default();
            let mut query = HvQuery { abi_major: u32::from(ABI_MAJOR), ..HvQuery::default() };
            assert_eq!(serve(driver, domain, OP_QUERY, query.as_mut_bytes()), Ok(true));
            (
                serve(driver, domain, OP_RECORD, { RECORD }.as_mut_bytes()),
                serve(driver, domain, OP_BRANCHES, branches.as_mut_bytes()),
                query.features & (FEATURE_BRANCHES | FEATURE_USER_BRANCHES) == FEATURE_BRANCHES,
            )
        };
        let unsupported = (Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP), false);
        assert_eq!(asked(&driver(), &mut Domain::new()), unsupported, "not switched on");

        let (driver, mut domain) = recording();
        assert_eq!(asked(&driver, &mut domain), (Ok(false), Ok(true), true));
        domain.allowed = false;
        assert_eq!(asked(&driver, &mut domain), (Err(Errno::PERM), Ok(true), true));
        domain.registered = false;
        assert_eq!(asked(&driver, &mut domain), (Err(Errno::NXIO), Err(Errno::NXIO), true));

        let (driver, _) = recording();
        let guest = Guest { rings: Rings::Hardware, ..Guest::pv() };
        let machine = Machine::with(recording().0, guest);
        let mut other = Domain { machine, guest: Some(guest), ..Domain::new() };
        assert_eq!(asked(&driver, &mut other), unsupported, "rings of its own");

        let (driver, mut domain) = recording();
        domain.machine.pcpu = Pcpu::new();
        assert_eq!(asked(&driver, &mut domain).0, Err(Errno::NODEV), "not the driver's CPU");
    }

    /// Makes a hypercall on a host that keeps a counter for samples of itself.
    fn sampling(op: u32, bytes: &mut [u8]) -> (Result<bool, Errno>, Vec<String>) {
        let driver = Driver::new(&nehalem(), &Settings { profile: true, ..SETTINGS }).unwrap();
        let mut domain = Domain::new();
        let result = serve(&driver, &mut domain, op, bytes);
        (result, domain.done)
    }

    const PROFILE: HvProfile = HvProfile { evntsel: BOTH, period: 10_000, cpus: 1, flags: 0 };

    #[test]
    fn the_host_is_sampled_as_the_control_domain_asks() {
        let started = sampling(OP_PROFILE_START, { PROFILE }.as_mut_bytes());
        assert_eq!(started, (Ok(false), vec![format!("profile {BOTH:#x} every 10000")]));
        let stopped = sampling(OP_PROFILE_STOP, &mut []);
        assert_eq!(stopped, (Ok(false), vec!["profile no more".into()]));
        let mut samples = HvSamples::new_zeroed();
        samples.cpu = 3;
        assert_eq!(sampling(OP_PROFILE_READ, samples.as_mut_bytes()).0, Ok(true));
        assert_eq!((samples.cpu, samples.count, samples.lost), (3, 1, 5));
        assert_eq!(samples.sample[0].ip, 73);
    }

    #[test]
    fn what_is_wrong_with_a_profile_is_said() {
        for (profile, errno) in [
            (HvProfile { period: 9_999, ..PROFILE }, Errno::INVAL),
            (HvProfile { period: 1 << 31, ..PROFILE }, Errno::INVAL),
            (HvProfile { cpus: 0, ..PROFILE }, Errno::INVAL),
            (HvProfile { flags: 2, ..PROFILE }, Errno::INVAL),
            (HvProfile { evntsel: BOTH | 1 << 20, ..PROFILE }, Errno::PERM),
            (HvProfile { evntsel: BOTH | 1 << 21, ..PROFILE }, Errno::PERM),
            (HvProfile { evntsel: 0x40_00c0, ..PROFILE }, Errno::INVAL),
        ] {
            let refused = sampling(OP_PROFILE_START, { profile }.as_mut_bytes());
            assert_eq!(refused, (Err(errno), vec![]), "{profile:?}");
        }
        for (op, bytes) in [
            (OP_PROFILE_START, &[1; 31][..]),
            (OP_PROFILE_READ, &[1; 16]),
            (OP_PROFILE_STOP, &[1; 8]),
        ] {
            assert_eq!(sampling(op, &mut bytes.to_vec()), (Err(Errno::INVAL), vec![]), "{op}");
        }
    }

    #[test]
    fn a_host_without_a_counter_of_its_own_is_not_sampled() {
        let mut domain = Domain::new();
        let mut asked = HvSamples::new_zeroed();
        for (op, bytes) in [
            (OP_PROFILE_START, { PROFILE }.as_mut_bytes()),
            (OP_PROFILE_READ, asked.as_mut_bytes()),
            (OP_PROFILE_STOP, &mut []),
        ] {
            assert_eq!(refused_by(&mut domain, op, bytes), Errno::OPNOTSUPP, "{op}");
        }
    }

    /// Makes a hypercall on a host that keeps counters for accounts.
    fn accounting(op: u32, bytes: &mut [u8]) -> (Result<bool, Errno>, Vec<String>) {
        let driver = Driver::new(&nehalem(), &Settings { accounts: true, ..SETTINGS }).unwrap();
        let mut domain = Domain::new();
        let result = serve(&driver, &mut domain, op, bytes);
        (result, domain.done)
    }

    const ACCOUNTING: HvAccounting = HvAccounting { evntsel: BOTH, reserved: 0 };

    #[test]
    fn events_are_accounted_as_the_control_domain_asks() {
        let started = accounting(OP_ACCOUNTS_START, { ACCOUNTING }.as_mut_bytes());
        assert_eq!(started, (Ok(false), vec![format!("account {BOTH:#x}")]));
        let stopped = accounting(OP_ACCOUNTS_STOP, &mut []);
        assert_eq!(stopped, (Ok(false), vec!["account no more".into()]));
        let mut accounts = HvAccounts::new_zeroed();
        accounts.domain = 3;
        assert_eq!(accounting(OP_ACCOUNTS_READ, accounts.as_mut_bytes()).0, Ok(true));
        assert_eq!((accounts.count, accounts.account[0].executed), (1, 73));
    }

    #[test]
    fn what_is_wrong_with_accounts_is_said() {
        for (asked, errno) in [
            (HvAccounting { reserved: 1, ..ACCOUNTING }, Errno::INVAL),
            (HvAccounting { evntsel: BOTH & !(1 << 16), ..ACCOUNTING }, Errno::INVAL),
            (HvAccounting { evntsel: BOTH & !(1 << 17), ..ACCOUNTING }, Errno::INVAL),
            (HvAccounting { evntsel: BOTH & !(1 << 22), ..ACCOUNTING }, Errno::INVAL),
            (HvAccounting { evntsel: BOTH | 1 << 20, ..ACCOUNTING }, Errno::PERM),
            (HvAccounting { evntsel: BOTH | 1 << 21, ..ACCOUNTING }, Errno::PERM),
            // Intel's event of other cores.
            (HvAccounting { evntsel: BOTH & !0xff | 0xb7, ..ACCOUNTING }, Errno::PERM),
        ] {
            let refused = accounting(OP_ACCOUNTS_START, { asked }.as_mut_bytes());
            assert_eq!(refused, (Err(errno), vec![]), "{asked:?}");
        }
        let mut accounts = HvAccounts::new_zeroed();
        accounts.reserved = 1;
        for (op, bytes) in [
            (OP_ACCOUNTS_START, &[1; 15][..]),
            (OP_ACCOUNTS_READ, &[0; 16]),
            (OP_ACCOUNTS_READ, accounts.as_bytes()),
            (OP_ACCOUNTS_STOP, &[1; 8]),
        ] {
            assert_eq!(accounting(op, &mut bytes.to_vec()), (Err(Errno::INVAL), vec![]), "{op}");
        }
    }

    #[test]
    fn a_host_without_counters_of_its_own_keeps_no_accounts() {
        let mut domain = Domain::new();
        let mut asked = HvAccounts::new_zeroed();
        for (op, bytes) in [
            (OP_ACCOUNTS_START, { ACCOUNTING }.as_mut_bytes()),
            (OP_ACCOUNTS_READ, asked.as_mut_bytes()),
            (OP_ACCOUNTS_STOP, &mut []),
        ] {
            assert_eq!(refused_by(&mut domain, op, bytes), Errno::OPNOTSUPP, "{op}");
        }
    }

    #[test]
    fn guests_have_one_counter_less_where_the_host_keeps_one() {
        let of = |measure_cost, profile| {
            let settings = Settings { measure_cost, profile, ..SETTINGS };
            let driver = Driver::new(&nehalem(), &settings).unwrap();
            (driver.caps.general, driver.profile.map(|slot| slot.index()))
        };
        assert_eq!([of(false, false), of(false, true)], [(4, None), (3, Some(3))]);
        assert_eq!([of(true, false), of(true, true)], [(3, None), (2, Some(2))]);
        let accounts = Settings { profile: true, accounts: true, ..SETTINGS };
        let driver = Driver::new(&nehalem(), &accounts).unwrap();
        let slots = driver.accounts.map(|slots| [slots.guest.index(), slots.hypervisor.index()]);
        assert_eq!((driver.caps.general, slots), (1, Some([2, 1])));
        let two = Identity { perfmon: [0x0730_0203, 0, 0, 3 | 40 << 5], ..nehalem() };
        let refused = Driver::new(&two, &Settings { accounts: true, ..SETTINGS });
        assert_eq!(refused.unwrap_err(), hv_driver::Refusal::NoCounters);
        let one = Identity { perfmon: [0x0730_0103, 0, 0, 3 | 40 << 5], ..nehalem() };
        let refused = Driver::new(&one, &Settings { profile: true, ..SETTINGS });
        assert_eq!(refused.unwrap_err(), hv_driver::Refusal::NoCounters);
    }

    #[test]
    fn a_domains_number_is_not_truncated() {
        let (mut domain, mut argument) = (Domain::new(), [0x1_0001u32, 1, 0, 0]);
        assert_eq!(domain.call(OP_DOMAIN, argument.as_mut_bytes()), Ok(false));
        assert_eq!(domain.done, ["policy 65537 1 0 0"]);
    }

    #[test]
    fn on_a_cpu_that_is_not_the_drivers_nothing_is_loaded() {
        let mut domain = Domain::new();
        domain.machine.pcpu = Pcpu::new();
        assert_eq!(
            refused_by(&mut domain, OP_LOAD, &load_bytes(&[counter(0, USER)])),
            Errno::NODEV
        );
        assert_eq!(domain.machine.page.loaded.load(Relaxed), 0);
    }

    #[test]
    fn a_page_that_is_taken_back_is_forgotten() {
        let mut domain = Domain::new();
        assert_eq!(domain.call(OP_UNREGISTER, &mut []), Ok(false));
        assert!(!domain.registered, "it is not pinned any more");
        assert_eq!(domain.call(OP_UNREGISTER, &mut []), Err(Errno::NXIO));
        assert_eq!(domain.done, ["unregister"]);
    }

    #[test]
    fn statistics_are_copied_back() {
        let mut stats = HvStats::default();
        let mut domain = Domain::new();
        assert_eq!(domain.call(OP_LOAD, &mut load_bytes(&[counter(0, USER)])), Ok(false));
        assert_eq!(domain.call(OP_STATS, stats.as_mut_bytes()), Ok(true));
        assert_eq!((stats.hypercalls, stats.hook[HOOK_LOAD].calls), (2, 1));
    }
}

/// Makes a vCPU of domain 2 that has registered a page and loaded nothing, and does not execute.
fn registered_beside(m: &mut Machine, page: &VcpuPage) -> Vcpu {
    let mut other = Vcpu::register(&mut m.cpu(), page, &pv_of(2), None);
    other.switch_from(&mut m.cpu(), page);
    other
}

/// Returns by how much counter 0 grows while the vCPU here executes 77 instructions.
fn counter_0_moves_by(m: &Machine) -> u64 {
    let before = m.pmu.counter(0);
    m.pmu.retire(77);
    m.pmu.counter(0) - before
}

/// A domain that executes RDPMC must not learn which of another domain's events happen.
#[test]
fn a_domain_that_counts_nothing_does_not_count_what_another_one_selected() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    m.toggle(User);
    assert_eq!(counter_0_moves_by(&m), 77, "its own");
    m.switch_from();
    let page = VcpuPage::default();
    let mut other = registered_beside(&mut m, &page);
    for _ in 0..2 {
        m.switch_to(0, User, true);
        assert_eq!(counter_0_moves_by(&m), 77, "its own");
        m.switch_from();
        m.pmu.take_writes();
        other.switch_to(&mut m.cpu(), &page, User, true);
        assert_eq!(counter_0_moves_by(&m), 0, "another domain's");
        assert!(m.pmu.take_writes().contains(&(IA32_PERFEVTSEL0, 0)));
        other.switch_from(&mut m.cpu(), &page);
    }
}

#[test]
fn a_domain_that_registers_does_not_count_what_another_one_selected() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    m.switch_from();
    m.on(0, |_, cpu, _| cpu.run_stranger());
    let page = VcpuPage::default();
    Vcpu::register(&mut m.cpu(), &page, &pv_of(2), None);
    assert_eq!(counter_0_moves_by(&m), 0);
}

/// Nothing is written where nobody else could have selected anything.
#[test]
fn selectors_stay_while_the_same_domain_executes() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    m.switch_from();
    let page = VcpuPage::default();
    let mut sibling = Vcpu::register(&mut m.cpu(), &page, &pv_of(1), None);
    for _ in 0..2 {
        sibling.switch_from(&mut m.cpu(), &page);
        m.switch_to(0, User, true);
        m.switch_from();
        m.pmu.take_writes();
        sibling.switch_to(&mut m.cpu(), &page, User, true);
        assert_eq!(m.pmu.take_writes(), []);
    }
}

#[test]
fn a_forbidden_domain_counts_neither_what_it_nor_what_another_one_selected() {
    for after_another in [false, true] {
        let mut m = Machine::new();
        let page = VcpuPage::default();
        m.load(&[counter(0, USER)]);
        m.switch_from();
        let mut other = registered_beside(&mut m, &page);
        other.switch_to(&mut m.cpu(), &page, User, true);
        other.load(&mut m.cpu(), &page, &config(&[counter(1, USER)]));
        other.switch_from(&mut m.cpu(), &page);
        if after_another {
            m.switch_to(0, User, true);
            m.switch_from();
        }
        m.pmu.take_writes();
        other.switch_to(&mut m.cpu(), &page, User, false);
        let before = [0, 1].map(|index| m.pmu.counter(index));
        m.pmu.retire(77);
        assert_eq!([0, 1].map(|index| m.pmu.counter(index)), before, "{after_another}");
    }
}

/// Between the switch of a vCPU's thread and its own, an interrupt finds it current.
#[test]
fn a_guest_learns_of_an_overflow_when_its_vcpu_is_switched_in_and_not_before() {
    let mut m = Machine::new();
    let sampling = CounterConfig { mode: MODE_SAMPLING, period: 10, ..counter(0, BOTH) };
    for overflows in 1..=2 {
        m.load(&[sampling]);
        m.pmu.retire(20);
        assert!(m.switch_from(), "it was seen");
        assert_eq!(m.page.overflows.load(Relaxed), overflows);
        let stamp = m.page.seq.stamp();
        m.pmu.take_writes();
        assert!(!m.interrupt());
        assert!(m.pmu.take_writes().contains(&(IA32_PERF_GLOBAL_OVF_CTRL, 1)));
        assert_eq!(m.page.seq.stamp(), stamp, "nothing is written");
        assert!(m.switch_to(0, User, true));
        assert!(!m.switch_to(0, User, true), "once");
    }
}

#[test]
fn nothing_is_written_to_a_page_that_was_given_back() {
    let mut m = Machine::new();
    m.load(&[CounterConfig { mode: MODE_SAMPLING, period: 10, ..counter(0, BOTH) }]);
    m.pmu.retire(20);
    m.on(0, |vcpu, cpu, page| vcpu.unregister(cpu, page));
    let stamp = m.page.seq.stamp();
    assert!(!m.interrupt());
    m.on(0, |vcpu, cpu, page| vcpu.revoke(cpu, page));
    assert_eq!((m.page.flags.load(Relaxed), m.page.seq.stamp()), (0, stamp));
}
