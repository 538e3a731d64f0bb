// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests branch records against a processor that records what the test says it takes.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use hv_driver::arch::Filter;
use hv_driver::guest::{Clock, Rings};
use hv_driver::vcpu::GuestMode::{self, Kernel, User};
use hv_driver::{
    Driver, Guest, Identity, Pcpu, Pmu, Probe, Rate, Refusal, Registration, Settings, ThisCpu,
    Vcpu, Window,
};
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::config::MODE_SAMPLING;
use shared_abi::hypercall::{
    BRANCH_MISPREDICTED, BRANCHES_CONDITIONAL, BRANCHES_KERNEL, BRANCHES_KINDS, BRANCHES_MAX,
    BRANCHES_MODES, BRANCHES_RETURNS, BRANCHES_USER, HvPlace,
};
use shared_abi::read::Counters;
use shared_abi::{Config, CounterConfig, PhysSlot, VcpuPage};

/// SDM volume 4, table of Nehalem's registers.
const DEBUGCTL: u32 = 0x1d9;
const SELECT: u32 = 0x1c8;
const TOS: u32 = 0x1c9;
const FROM: u32 = 0x680;
const TO: u32 = 0x6c0;
const GLOBAL_STATUS: u32 = 0x38e;
const GLOBAL_STATUS_AMD: u32 = 0xc000_0300;

/// Kinds of branches, by the bits of [`SELECT`] that leave them out.
const JCC: u64 = 1 << 2;
const RETURN: u64 = 1 << 5;
const FAR: u64 = 1 << 8;

/// Addresses of a program, of its PV kernel, and of Xen.
const PROGRAM: u64 = 0x40_0000;
const LINUX: u64 = 0xffff_ffff_8100_0000;
const XEN: u64 = 0xffff_82d0_4020_0000;

const FIRMWARES: u64 = 1 << 14;
const PERIOD: u64 = 1_000;

/// The first counter's register, on Intel's processors and on AMD's, where every other register is
/// a counter's.
const COUNTER: u32 = 0xc1;
const COUNTER_AMD: u32 = 0xc001_0201;

/// APM volume 2, appendix A, and CPUID leaf 0x80000022.
const EXTENSION: u32 = 0xc000_010f;
const SELECT_AMD: u32 = 0xc000_010e;
const PAIRS_AMD: u32 = 0xc001_0300;
const VALID: u64 = 1 << 63;

/// The registers of one physical CPU, and its first two counters.
struct Hardware {
    is_amd: bool,
    /// The number of AMD's pairs.
    pairs: u32,
    registers: RefCell<BTreeMap<u32, u64>>,
    counters: [Cell<u64>; 2],
    /// The register that faults.
    missing: Option<u32>,
    /// Accesses to the registers of records since the test has set this to 0.
    accesses: Cell<u32>,
}

impl Hardware {
    fn of(identity: &Identity) -> Self {
        let left = [(DEBUGCTL, FIRMWARES | 1), (EXTENSION, FIRMWARES | 1 << 6)];
        Self {
            is_amd: identity.vendor != nehalem().vendor,
            pairs: 16,
            registers: RefCell::new(left.into()),
            counters: [Cell::new(0), Cell::new(0)],
            missing: None,
            accesses: Cell::new(0),
        }
    }

    fn held(&self, register: u32) -> u64 {
        self.registers.borrow().get(&register).copied().unwrap_or(0)
    }

    fn note(&self, register: u32) {
        let is_of_records = matches!(register, DEBUGCTL | SELECT | TOS | EXTENSION | SELECT_AMD)
            || (FROM..TO + 16).contains(&register)
            || (PAIRS_AMD..PAIRS_AMD + 128).contains(&register);
        self.accesses.set(self.accesses.get() + u32::from(is_of_records));
    }

    /// Takes a branch that ends in this ring.
    fn takes(&self, from: u64, to: u64, kind: u64, ring: u32) {
        if self.is_amd {
            return self.takes_on_amd(from, to, kind, ring);
        }
        let left_out = kind | if ring == 0 { 1 } else { 2 };
        if self.held(DEBUGCTL) & 1 == 0 || self.held(SELECT) & left_out != 0 {
            return;
        }
        let latest = (self.held(TOS) as u32 + 1) % 16;
        let mut registers = self.registers.borrow_mut();
        registers.insert(TOS, latest.into());
        // The highest bit says whether the branch was mispredicted.
        registers.insert(FROM + latest, from & !(1 << 63));
        registers.insert(TO + latest, to);
    }

    /// Takes a branch, as AMD's processors record it: all earlier ones move to the next pair.
    fn takes_on_amd(&self, from: u64, to: u64, kind: u64, ring: u32) {
        let left_out = kind | if ring == 0 { 1 } else { 2 };
        if self.held(EXTENSION) & 1 << 6 == 0 || self.held(SELECT_AMD) & left_out != 0 {
            return;
        }
        for n in (2..2 * self.pairs).rev() {
            let earlier = self.held(PAIRS_AMD + n - 2);
            self.registers.borrow_mut().insert(PAIRS_AMD + n, earlier);
        }
        let mut registers = self.registers.borrow_mut();
        registers.insert(PAIRS_AMD, from & !(1 << 63));
        registers.insert(PAIRS_AMD + 1, to & !(7 << 61) | VALID);
    }

    /// Returns how many of AMD's pairs have a branch.
    fn valid(&self) -> usize {
        let is_valid = |n: &u32| self.held(PAIRS_AMD + 2 * n + 1) & VALID != 0;
        (0..self.pairs).filter(is_valid).count()
    }

    /// Takes `n` branches of a loop at `base`, each from another place.
    fn loops(&self, base: u64, n: u64) {
        for i in 0..n {
            self.takes(base + 16 * i, base, JCC, 3);
        }
    }

    /// Enters Xen from `from`, does something there, and goes on at `to`.
    fn xen(&self, from: u64, to: u64) {
        self.takes(from, XEN, FAR, 0);
        self.takes(XEN + 8, XEN + 64, JCC, 0);
        self.takes(XEN + 80, XEN + 16, RETURN, 0);
        self.takes(XEN + 32, to, FAR, 3);
    }
}

impl Counters for Hardware {
    fn counter(&self, index: u32) -> u64 {
        self.counters.get(index as usize).map_or(0, Cell::get)
    }
    fn clock(&self) -> u64 {
        0
    }
}

impl Pmu for Hardware {
    fn read_register(&self, register: u32) -> u64 {
        self.note(register);
        if matches!(register, GLOBAL_STATUS | GLOBAL_STATUS_AMD) { 1 } else { self.held(register) }
    }
    fn write_register(&self, register: u32, value: u64) {
        self.note(register);
        let (first, stride) = if self.is_amd { (COUNTER_AMD, 2) } else { (COUNTER, 1) };
        let counters = self.counters.iter().zip((first..).step_by(stride));
        for (counter, _) in counters.filter(|(_, its)| *its == register) {
            let extended = if self.is_amd { value } else { value as i32 as u64 };
            counter.set(extended & ((1 << 48) - 1));
        }
        self.registers.borrow_mut().insert(register, value);
    }
    fn load_at_switch(&self, _: u64, _: u64) {}
}

impl Probe for Hardware {
    fn try_read_register(&self, register: u32) -> Option<u64> {
        (self.missing != Some(register)).then(|| self.held(register))
    }
    fn try_write_register(&self, register: u32, value: u64) -> bool {
        self.registers.borrow_mut().insert(register, value);
        self.missing != Some(register)
    }
}

/// Returns a Nehalem that says in which format it records branches.
fn nehalem() -> Identity {
    Identity { perf_capabilities: 3, ..common::nehalem() }
}

/// Returns a CPU of AMD's that records branches.
fn zen4() -> Identity {
    Identity {
        vendor: [0x6874_7541, 0x6974_6e65, 0x444d_4163],
        signature: 0x00a1_0f11,
        extended: 1 << 23 | 1 << 2,
        perfmon_amd: [3, 6 | 16 << 4],
        ..Identity::NONE
    }
}

const SETTINGS: Settings =
    Settings { branches: true, ..Settings::new(Rate { window_tsc: 1_000, overflows_max: 1_000 }) };

/// A vCPU with its page.
struct Guests {
    page: VcpuPage,
    vcpu: Vcpu,
}

struct Host {
    driver: Driver,
    pcpu: Pcpu,
    hardware: Hardware,
}

impl Host {
    fn new() -> Self {
        Self::of(&nehalem())
    }

    fn of(identity: &Identity) -> Self {
        let driver = Driver::new(identity, &SETTINGS).unwrap();
        let mut host = Self { driver, pcpu: Pcpu::new(), hardware: Hardware::of(identity) };
        let boot = host.driver.boot;
        host.cpu().come_up(&boot).unwrap();
        host
    }

    fn cpu(&mut self) -> ThisCpu<'_, Hardware> {
        ThisCpu { driver: &self.driver, pcpu: &mut self.pcpu, pmu: &self.hardware, number: 0 }
    }

    /// Has vCPU 0 of this domain register its page, and load a counter that samples both modes.
    fn guest(&mut self, domain: u64) -> Guests {
        self.guest_of(domain, Guest::pv())
    }

    fn guest_of(&mut self, domain: u64, guest: Guest) -> Guests {
        let page = VcpuPage::default();
        let who = Registration { id: 0, domain, guest, allowed: true, window: Window::default() };
        let vcpu = Vcpu::register(&mut self.cpu(), &page, &who, None);
        let mut guest = Guests { page, vcpu };
        guest.load(self);
        guest
    }
}

/// Returns a counter that samples.
fn counter(slot: u32, evntsel: u64) -> CounterConfig {
    let (mode, period) = (MODE_SAMPLING, PERIOD);
    CounterConfig { slot, evntsel, mode, period, ..CounterConfig::default() }
}

impl Guests {
    fn load(&mut self, host: &mut Host) {
        self.load_modes(host, EVNTSEL_USR | EVNTSEL_OS);
    }

    /// Loads a counter that samples these modes.
    fn load_modes(&mut self, host: &mut Host, modes: u64) {
        let evntsel = 0xc0 | modes | EVNTSEL_EN;
        self.load_counters(host, &[counter(0, evntsel)]);
    }

    fn load_counters(&mut self, host: &mut Host, counters: &[CounterConfig]) {
        let config = Config::new(&host.driver.caps, counters).unwrap();
        self.vcpu.load(&mut host.cpu(), &self.page, &config);
    }

    fn record(&mut self, host: &mut Host, filter: u32) {
        self.vcpu.record(&mut host.cpu(), Filter::new(filter).unwrap());
    }

    fn toggle(&mut self, host: &mut Host, mode: GuestMode) {
        self.vcpu.toggle(&mut host.cpu(), &self.page, mode);
    }

    fn switch_from(&mut self, host: &mut Host) -> bool {
        self.vcpu.switch_from(&mut host.cpu(), &self.page)
    }

    fn switch_to(&mut self, host: &mut Host, allowed: bool) {
        self.vcpu.switch_to(&mut host.cpu(), &self.page, User, allowed);
    }

    /// Has the first counter overflow and interrupt.
    fn overflows(&mut self, host: &mut Host) {
        self.overflows_at(host, 0);
    }

    fn overflows_at(&mut self, host: &mut Host, counter: usize) {
        host.hardware.counters[counter].set(7);
        assert!(self.vcpu.interrupt(&mut host.cpu(), &self.page));
        self.vcpu.overflowed_at(&HvPlace::default());
    }

    /// Returns what the guest is given: source, target and flags of each branch.
    fn asks(&mut self) -> Vec<(u64, u64, u64)> {
        self.asks_for(PhysSlot::FIRST)
    }

    fn asks_for(&mut self, slot: PhysSlot) -> Vec<(u64, u64, u64)> {
        let answer = self.vcpu.take_branches(slot);
        let (given, others) = answer.branch.split_at(answer.count as usize);
        assert!(others.iter().all(|branch| (branch.from, branch.to) == (0, 0)), "nothing else");
        given.iter().map(|branch| (branch.from, branch.to, branch.flags)).collect()
    }
}

/// Returns the last `n` branches of [`Hardware::loops`] of `all`, the latest first.
fn looped(base: u64, all: u64, n: u64) -> Vec<(u64, u64, u64)> {
    (all - n..all).rev().map(|i| (base + 16 * i, base, 0)).collect()
}

const ALL: u32 = BRANCHES_MODES | BRANCHES_KINDS;

#[test]
fn branches_wait_for_their_guest_until_the_next_overflow() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    guest.toggle(host, User);
    host.hardware.loops(PROGRAM, 20);
    guest.overflows(host);
    // The counters are folded again, and find nothing.
    guest.toggle(host, Kernel);
    guest.switch_from(host);
    guest.switch_to(host, true);
    guest.toggle(host, User);
    assert_eq!(guest.asks(), looped(PROGRAM, 20, BRANCHES_MAX as u64));
    assert_eq!(guest.asks(), [], "once");
}

#[test]
fn a_sample_has_the_last_branches_before_it_with_xen_between_them() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    guest.toggle(host, User);
    host.hardware.loops(PROGRAM, 20);
    host.hardware.xen(PROGRAM + 3, PROGRAM + 3);
    host.hardware.takes(PROGRAM + 0x800, PROGRAM + 0x900, RETURN, 3);
    host.hardware.xen(PROGRAM + 4, PROGRAM + 4);
    guest.overflows(host);
    let mut expected = vec![(PROGRAM + 0x800, PROGRAM + 0x900, 0)];
    expected.extend(looped(PROGRAM, 20, BRANCHES_MAX as u64 - 1));
    assert_eq!(guest.asks(), expected);
    assert_eq!(guest.asks(), [], "once");
}

#[test]
fn a_program_keeps_its_branches_while_its_kernel_executes_and_does_not_see_the_kernels() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, BRANCHES_USER | BRANCHES_KINDS);
    host.hardware.loops(LINUX, 5);
    guest.toggle(host, User);
    host.hardware.loops(PROGRAM, 3);
    guest.toggle(host, Kernel);
    host.hardware.loops(LINUX, 40);
    guest.overflows(host);
    assert_eq!(guest.asks(), looped(PROGRAM, 3, 3));
    guest.load(host);
    guest.toggle(host, User);
    host.hardware.loops(PROGRAM + 0x1000, 2);
    guest.overflows(host);
    let expected = [looped(PROGRAM + 0x1000, 2, 2), looped(PROGRAM, 3, 3)].concat();
    assert_eq!(guest.asks(), expected, "the older ones are still there");
}

#[test]
fn a_counter_of_user_mode_leaves_the_kernels_branches_out_too() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.load_modes(host, EVNTSEL_USR);
    guest.record(host, BRANCHES_USER | BRANCHES_KINDS);
    guest.toggle(host, User);
    host.hardware.loops(PROGRAM, 3);
    guest.toggle(host, Kernel);
    host.hardware.loops(LINUX, 40);
    guest.toggle(host, User);
    guest.overflows(host);
    assert_eq!(guest.asks(), looped(PROGRAM, 3, 3));
}

#[test]
fn the_kernel_is_recorded_for_who_asks_for_it_whole_addresses_and_all() {
    for (modes, user) in [(BRANCHES_KERNEL, 0), (BRANCHES_MODES, 2)] {
        let host = &mut Host::new();
        let mut guest = host.guest(1);
        guest.record(host, modes | BRANCHES_KINDS);
        guest.toggle(host, User);
        host.hardware.loops(PROGRAM, 2);
        guest.toggle(host, Kernel);
        host.hardware.loops(LINUX, 4);
        guest.overflows(host);
        assert_eq!(guest.asks(), [looped(LINUX, 4, 4), looped(PROGRAM, 2, user)].concat());
    }
}

#[test]
fn kinds_that_were_not_asked_for_take_no_room() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, BRANCHES_MODES | BRANCHES_RETURNS);
    host.hardware.takes(PROGRAM, PROGRAM + 8, RETURN, 3);
    host.hardware.loops(PROGRAM, 30);
    guest.overflows(host);
    assert_eq!(guest.asks(), [(PROGRAM, PROGRAM + 8, 0)]);
}

#[test]
fn what_the_hypervisor_has_done_is_not_shown_though_the_processor_recorded_it() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    host.hardware.loops(PROGRAM, 1);
    for (from, to) in [(XEN, PROGRAM), (PROGRAM, XEN), (XEN, XEN), (XEN, LINUX)] {
        // As if it did not filter.
        host.hardware.registers.borrow_mut().insert(SELECT, 0);
        host.hardware.takes(from, to, FAR, 3);
    }
    guest.overflows(host);
    assert_eq!(guest.asks(), looped(PROGRAM, 1, 1));
}

#[test]
fn a_misprediction_is_told() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    for place in [PROGRAM, LINUX] {
        host.hardware.takes(place, place + 8, JCC, 3);
        let latest = FROM + host.hardware.held(TOS) as u32;
        *host.hardware.registers.borrow_mut().get_mut(&latest).unwrap() |= 1 << 63;
    }
    guest.overflows(host);
    let expected = [LINUX, PROGRAM].map(|place| (place, place + 8, BRANCH_MISPREDICTED));
    assert_eq!(guest.asks(), expected);
}

#[test]
fn no_vcpu_sees_the_branches_of_another_one() {
    let host = &mut Host::new();
    let mut first = host.guest(1);
    first.switch_from(host);
    let mut second = host.guest(2);
    second.record(host, ALL);
    second.switch_from(host);

    first.switch_to(host, true);
    first.record(host, ALL);
    host.hardware.loops(PROGRAM, 20);
    first.switch_from(host);
    host.hardware.loops(PROGRAM + 0x7000, 3);
    second.switch_to(host, true);
    host.hardware.loops(PROGRAM + 0x8000, 2);
    second.overflows(host);
    assert_eq!(second.asks(), looped(PROGRAM + 0x8000, 2, 2));
    second.switch_from(host);
    first.switch_to(host, true);
    first.overflows(host);
    assert_eq!(first.asks(), [], "not even what it recorded before");
}

#[test]
fn a_vcpu_that_goes_on_in_user_mode_is_recorded_there_at_once() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, BRANCHES_USER | BRANCHES_KINDS);
    guest.toggle(host, User);
    guest.switch_from(host);
    guest.switch_to(host, true);
    host.hardware.loops(PROGRAM, 2);
    guest.overflows(host);
    assert_eq!(guest.asks(), looped(PROGRAM, 2, 2));
}

#[test]
fn an_overflow_that_a_switch_finds_has_its_branches() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    host.hardware.loops(PROGRAM, 4);
    host.hardware.counters[0].set(9);
    assert!(guest.switch_from(host));
    guest.vcpu.overflowed_at(&HvPlace::default());
    host.hardware.loops(PROGRAM + 0x9000, 9);
    guest.switch_to(host, true);
    assert_eq!(guest.asks(), looped(PROGRAM, 4, 4));
}

#[test]
fn a_counter_that_is_loaded_anew_has_no_branches_yet() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    host.hardware.loops(PROGRAM, 4);
    guest.overflows(host);
    guest.load(host);
    assert_eq!(guest.asks(), []);
    guest.overflows(host);
    assert_eq!(guest.asks().len(), 4, "a load does not forget what is recorded");
    guest.load(host);
    guest.overflows(host);
    guest.record(host, ALL);
    assert_eq!(guest.asks(), [], "a new beginning does");
    guest.load(host);
    guest.overflows(host);
    assert_eq!(guest.asks(), []);
}

#[test]
fn branches_are_given_for_the_overflow_at_which_they_were_read_and_for_no_older_one() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    let modes = EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_EN;
    guest.load_counters(host, &[counter(0, 0xc0 | modes), counter(1, 0xc4 | modes)]);
    guest.record(host, ALL);
    host.hardware.loops(PROGRAM, 2);
    guest.overflows_at(host, 0);
    host.hardware.loops(PROGRAM + 0x1000, 3);
    guest.overflows_at(host, 1);
    let expected = [looped(PROGRAM + 0x1000, 3, 3), looped(PROGRAM, 2, 2)].concat();
    assert_eq!(guest.asks_for(PhysSlot::general(1).unwrap()), expected);
    assert_eq!(guest.asks(), [], "those before its own overflow are lost");
}

#[test]
fn counters_that_overflow_at_once_each_have_the_branches_before_that() {
    let slots = [0, 1].map(|n| PhysSlot::general(n).unwrap());
    for [first, second] in [slots, [slots[1], slots[0]]] {
        let host = &mut Host::new();
        let mut guest = host.guest(1);
        let modes = EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_EN;
        guest.load_counters(host, &[counter(0, 0xc0 | modes), counter(1, 0xc4 | modes)]);
        guest.record(host, ALL);
        host.hardware.loops(PROGRAM, 3);
        host.hardware.counters[0].set(7);
        guest.overflows_at(host, 1);
        assert_eq!(guest.asks_for(first), looped(PROGRAM, 3, 3), "{first:?} is asked for first");
        assert_eq!(guest.asks_for(second), looped(PROGRAM, 3, 3), "{second:?} is asked for then");
        assert_eq!([first, second].map(|slot| guest.asks_for(slot)), [[], []], "once");
    }
}

#[test]
fn a_debug_exception_does_not_end_recording_for_good() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    host.hardware.loops(PROGRAM, 1);
    host.hardware.registers.borrow_mut().insert(DEBUGCTL, FIRMWARES);
    host.hardware.loops(PROGRAM + 0x1000, 1);
    guest.overflows(host);
    assert_eq!(guest.asks(), looped(PROGRAM, 1, 1));
    guest.load(host);
    host.hardware.loops(PROGRAM + 0x2000, 1);
    guest.overflows(host);
    assert_eq!(guest.asks()[0].0, PROGRAM + 0x2000);
}

/// What ends the right to record.
type End = fn(&mut Guests, &mut Host);

#[test]
fn nothing_is_recorded_for_who_may_not_count_or_has_no_page_or_does_not_execute() {
    let ends: [End; 6] = [
        |guest, host| _ = guest.vcpu.unregister(&mut host.cpu(), &guest.page),
        |guest, host| guest.vcpu.abandon(&mut host.cpu()),
        |guest, host| _ = guest.vcpu.revoke(&mut host.cpu(), &guest.page),
        |guest, host| assert!(!guest.switch_from(host)),
        |guest, host| {
            guest.switch_from(host);
            guest.switch_to(host, false);
        },
        |guest, host| guest.record(host, 0),
    ];
    for end in ends {
        let host = &mut Host::new();
        let mut guest = host.guest(1);
        guest.record(host, ALL);
        assert_eq!(host.hardware.held(DEBUGCTL), FIRMWARES | 1);
        end(&mut guest, host);
        assert_eq!(host.hardware.held(DEBUGCTL), FIRMWARES);
        guest.toggle(host, User);
        assert_eq!(host.hardware.held(DEBUGCTL), FIRMWARES);
    }
}

#[test]
fn a_switch_to_a_vcpu_that_records_costs_18_writes_and_an_overflow_33_reads() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    guest.switch_from(host);
    host.hardware.accesses.set(0);
    guest.switch_to(host, true);
    assert_eq!(host.hardware.accesses.get(), 18);
    host.hardware.loops(PROGRAM, 20);
    host.hardware.accesses.set(0);
    guest.overflows(host);
    // To go on recording, in case of a debug exception, is one write more.
    assert_eq!(host.hardware.accesses.get(), 33 + 1);
}

#[test]
fn a_vcpu_that_records_nothing_costs_no_access() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, 0);
    host.hardware.accesses.set(0);
    for _ in 0..3 {
        guest.toggle(host, User);
        guest.toggle(host, Kernel);
        guest.switch_from(host);
        guest.switch_to(host, true);
        guest.load(host);
    }
    guest.overflows(host);
    assert_eq!(guest.asks(), []);
    assert_eq!(host.hardware.accesses.get(), 0);
}

#[test]
fn a_change_of_mode_costs_one_write_if_one_mode_is_recorded_and_none_otherwise() {
    for (filter, writes) in [
        (ALL, 0),
        (BRANCHES_USER | BRANCHES_CONDITIONAL, 1),
        (BRANCHES_KERNEL | BRANCHES_CONDITIONAL, 1),
    ] {
        let host = &mut Host::new();
        let mut guest = host.guest(1);
        guest.record(host, filter);
        for mode in [User, Kernel, User] {
            host.hardware.accesses.set(0);
            guest.toggle(host, mode);
            assert_eq!(host.hardware.accesses.get(), writes, "{filter:#x}, {mode:?}");
        }
    }
}

#[test]
fn a_cpu_that_goes_down_records_nothing_and_keeps_what_the_firmware_has_set() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    host.cpu().go_down();
    assert_eq!(host.hardware.held(DEBUGCTL), FIRMWARES);
}

#[test]
fn a_cpu_that_comes_up_without_having_gone_down_records_for_the_next_guest() {
    let host = &mut Host::new();
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    host.hardware.registers.borrow_mut().insert(DEBUGCTL, FIRMWARES);
    let boot = host.driver.boot;
    host.cpu().come_up(&boot).unwrap();
    let mut next = host.guest(2);
    assert_eq!(host.hardware.held(DEBUGCTL), FIRMWARES, "nobody wants branches yet");
    next.record(host, ALL);
    assert_eq!(host.hardware.held(DEBUGCTL), FIRMWARES | 1);
}

#[test]
fn each_register_is_tried_before_it_is_used() {
    let intels = [DEBUGCTL, SELECT, TOS, FROM, FROM + 15, TO, TO + 15];
    let amds = [EXTENSION, SELECT_AMD, PAIRS_AMD, PAIRS_AMD + 1, PAIRS_AMD + 30, PAIRS_AMD + 31];
    let all = intels.map(|register| (nehalem(), register)).into_iter();
    for (identity, missing) in all.chain(amds.map(|register| (zen4(), register))) {
        let driver = Driver::new(&identity, &SETTINGS).unwrap();
        let hardware = Hardware { missing: Some(missing), ..Hardware::of(&identity) };
        let mut pcpu = Pcpu::new();
        let mut cpu = ThisCpu { driver: &driver, pcpu: &mut pcpu, pmu: &hardware, number: 0 };
        assert_eq!(cpu.come_up(&driver.boot), Err(Refusal::Register(missing)));
    }
}

#[test]
fn a_cpu_whose_records_are_not_known_is_refused_if_they_are_wanted() {
    let skylake = Identity { signature: 0x506e3, perf_capabilities: 5, ..nehalem() };
    assert_eq!(Driver::new(&skylake, &SETTINGS).unwrap_err(), Refusal::Branches(5));
    let zen3 = Identity { perfmon_amd: [0, 0], ..zen4() };
    assert_eq!(Driver::new(&zen3, &SETTINGS).unwrap_err(), Refusal::Branches(0));
    let settings = Settings { branches: false, ..SETTINGS };
    assert!(Driver::new(&skylake, &settings).unwrap().registers.branches.is_none());
    assert!(Driver::new(&nehalem(), &settings).unwrap().registers.branches.is_none());
}

#[test]
fn guests_with_rings_of_their_own_record_user_mode_where_exits_do_not_stop_it() {
    for identity in [nehalem(), zen4()] {
        let is_amd = identity.vendor == zen4().vendor;
        let host = &mut Host::of(&identity);
        for (rings, user, kernel) in [(Rings::Folded, true, true), (Rings::Hardware, is_amd, false)]
        {
            let guest = Guest { rings, observer: 0, clock: Clock::native() };
            let who =
                Registration { id: 0, domain: 1, guest, allowed: true, window: Window::default() };
            let vcpu = Vcpu::register(&mut host.cpu(), &VcpuPage::default(), &who, None);
            let can = |bits| vcpu.can_record(&host.driver, Filter::new(bits).unwrap());
            assert_eq!(can(BRANCHES_USER | BRANCHES_KINDS), user, "{rings:?}");
            assert_eq!(can(BRANCHES_KERNEL | BRANCHES_KINDS), kernel, "{rings:?}");
            assert_eq!(can(ALL), kernel, "{rings:?}");
            assert_eq!(can(0), user, "{rings:?}: to record nothing any more");
        }
    }
}

#[test]
fn a_guest_with_rings_of_its_own_is_recorded_in_its_user_mode_whatever_it_executes_first() {
    let host = &mut Host::of(&zen4());
    let guest = Guest { rings: Rings::Hardware, ..Guest::pv() };
    let mut guest = host.guest_of(1, guest);
    guest.record(host, BRANCHES_USER | BRANCHES_KINDS);
    host.hardware.loops(PROGRAM, 3);
    // Its kernel and Xen execute in ring 0, and nobody tells the driver of either.
    host.hardware.takes(PROGRAM + 0x70, LINUX, FAR, 0);
    host.hardware.takes(LINUX + 8, LINUX + 64, JCC, 0);
    host.hardware.xen(LINUX + 64, PROGRAM + 0x74);
    host.hardware.loops(PROGRAM + 0x1000, 2);
    guest.overflows(host);
    let expected = [looped(PROGRAM + 0x1000, 2, 2), looped(PROGRAM, 3, 3)].concat();
    assert_eq!(guest.asks(), expected);
    guest.load(host);
    assert_eq!(host.hardware.held(EXTENSION), FIRMWARES | 1 << 6);
    guest.switch_from(host);
    assert_eq!(host.hardware.held(EXTENSION), FIRMWARES);
    host.hardware.loops(PROGRAM + 0x5000, 2);
    guest.vcpu.switch_to(&mut host.cpu(), &guest.page, Kernel, true);
    assert_eq!(host.hardware.held(EXTENSION), FIRMWARES | 1 << 6);
    host.hardware.loops(PROGRAM + 0x6000, 2);
    guest.overflows(host);
    assert_eq!(guest.asks(), looped(PROGRAM + 0x6000, 2, 2));
}

#[test]
fn what_was_executed_speculatively_and_discarded_is_no_branch() {
    let host = &mut Host::of(&zen4());
    let mut guest = host.guest(1);
    guest.record(host, ALL);
    host.hardware.loops(PROGRAM, 3);
    // The second one from the end: not valid, but speculative.
    host.hardware.registers.borrow_mut().insert(PAIRS_AMD + 3, 1 << 62 | PROGRAM);
    guest.overflows(host);
    let mut expected = looped(PROGRAM, 3, 3);
    expected.remove(1);
    assert_eq!(guest.asks(), expected);
}

#[test]
fn amds_pairs_are_as_many_as_cpuid_says_and_a_sample_has_the_latest_of_them() {
    for pairs in [8, 16, 32] {
        let perfmon_amd = [3, 6 | pairs << 4];
        let host = &mut Host::of(&Identity { perfmon_amd, ..zen4() });
        host.hardware.pairs = pairs;
        let mut guest = host.guest(1);
        guest.record(host, ALL);
        host.hardware.loops(PROGRAM, 40);
        guest.overflows(host);
        let most = u64::from(pairs).min(BRANCHES_MAX as u64);
        assert_eq!(guest.asks(), looped(PROGRAM, 40, most), "{pairs}");
        guest.load(host);
        guest.record(host, ALL);
        assert_eq!(host.hardware.valid(), 0, "no pair still has a branch");
    }
}
