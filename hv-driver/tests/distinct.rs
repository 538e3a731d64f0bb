// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The driver where what could be confused differs: fixed counters are narrower than general ones,
//! physical CPUs come back with other counts, and a vCPU leaves another value in each field.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use hv_driver::guest::Rings;
use hv_driver::vcpu::GuestMode::{self, Kernel, User};
use hv_driver::{
    Driver, Guest, Identity, Left, Pcpu, Pmu, Probe, Rate, Refusal, Registration, Settings,
    ThisCpu, Vcpu, Window,
};
use shared_abi::caps::CAPS_ALL_EVENTS;
use shared_abi::config::MODE_SAMPLING;
use shared_abi::hypercall::HvStats;
use shared_abi::read::{Counters, sample_vcpu};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_TSC};
use shared_abi::{Config, CounterConfig, PhysSlot, VcpuPage};

const EVNTSEL0: u32 = 0x186;
const PMC0: u32 = 0xc1;
const FIXED_CTR0: u32 = 0x309;
const FIXED_CTRL: u32 = 0x38d;
const GLOBAL_CTRL: u32 = 0x38f;
const K7_EVNTSEL0: u32 = 0xc001_0000;
const K7_PERFCTR0: u32 = 0xc001_0004;
const ENABLE: u64 = 1 << 22;
/// Both rings, instructions and branches.
const INSTRUCTIONS: u64 = 0x43_00c0;
const BRANCHES: u64 = 0x43_00c4;
const KERNEL: u64 = 0x42_00c0;
const FIXED_BOTH: u64 = 0x43_0000;

const RATE: Rate = Rate { window_tsc: 1_000_000, overflows_max: 3 };
const SETTINGS: Settings = Settings::new(RATE);

/// Four general counters of 48 bits and three fixed ones of 40.
const NEHALEM: Identity = Identity {
    vendor: [0x756e_6547, 0x4965_6e69, 0x6c65_746e],
    signature: 0x106a3,
    perfmon: [0x0730_0403, 0, 0, 3 | 40 << 5],
    ..Identity::NONE
};
/// With event selects for guests only, and no register that enables all counters.
const ZEN: Identity = Identity {
    vendor: [0x6874_7541, 0x6974_6e65, 0x444d_4163],
    signature: 0x0080_0f12,
    extended: 1 << 2,
    perfmon: [0; 4],
    ..NEHALEM
};

/// Registers made of memory, which count.
#[derive(Default)]
struct Registers {
    held: RefCell<BTreeMap<u32, u64>>,
    clock: Cell<u64>,
    reads: Cell<u64>,
    amd: bool,
    /// What the host was told since the last look: the slots that interrupt from now on, and
    /// whether an interrupt may still come.
    expected: RefCell<Vec<(u32, bool)>>,
}

impl Registers {
    fn held(&self, register: u32) -> u64 {
        self.held.borrow().get(&register).copied().unwrap_or(0)
    }

    fn counter_of(&self, slot: u32) -> u32 {
        match slot.checked_sub(16) {
            Some(fixed) => FIXED_CTR0 + fixed,
            None if self.amd => K7_PERFCTR0 + slot,
            None => PMC0 + slot,
        }
    }

    fn counts(&self, slot: u32) -> bool {
        let enabled = |bit| self.amd || self.held(GLOBAL_CTRL) >> bit & 1 != 0;
        match slot.checked_sub(16) {
            Some(fixed) => self.held(FIXED_CTRL) >> (4 * fixed) & 3 != 0 && enabled(32 + fixed),
            None => {
                let first = if self.amd { K7_EVNTSEL0 } else { EVNTSEL0 };
                self.held(first + slot) & ENABLE != 0 && enabled(slot)
            }
        }
    }

    /// Lets each counter that counts count this many events.
    fn retire(&self, events: u64) {
        for slot in (0..4).chain(16..19).filter(|&slot| self.counts(slot)) {
            let bits = if slot < 16 { 48 } else { 40 };
            let register = self.counter_of(slot);
            let now = (self.held(register) + events) & ((1 << bits) - 1);
            self.held.borrow_mut().insert(register, now);
        }
        self.clock.set(self.clock.get() + 2 * events);
    }
}

impl Counters for Registers {
    fn counter(&self, index: u32) -> u64 {
        self.reads.set(self.reads.get() + 1);
        let fixed = index.checked_sub(1 << 30).map(|n| 16 + n);
        self.held(self.counter_of(fixed.unwrap_or(index)))
    }
    fn clock(&self) -> u64 {
        self.clock.get()
    }
}

impl Pmu for Registers {
    fn read_register(&self, register: u32) -> u64 {
        self.held(register)
    }
    fn write_register(&self, register: u32, value: u64) {
        let general = register.checked_sub(PMC0).is_some_and(|n| n < 4);
        // General counters take 32 bits and extend their sign.
        let value = if general { value as i32 as u64 & ((1 << 48) - 1) } else { value };
        self.held.borrow_mut().insert(register, value);
    }
    fn load_at_switch(&self, _: u64, _: u64) {}
    fn expect_interrupts(&self, slots: u32, seen: bool) {
        self.expected.borrow_mut().push((slots, seen));
    }
}

impl Probe for Registers {
    fn try_read_register(&self, register: u32) -> Option<u64> {
        Some(self.held(register))
    }
    fn try_write_register(&self, register: u32, value: u64) -> bool {
        self.held.borrow_mut().insert(register, value);
        true
    }
}

/// One physical CPU at a time, with the driver.
struct Host {
    driver: Driver,
    registers: Registers,
    pcpu: Pcpu,
    number: u32,
}

impl Host {
    fn new(boot: &Identity) -> Self {
        let amd = boot.vendor == ZEN.vendor;
        let registers = Registers { amd, ..Registers::default() };
        let driver = Driver::new(boot, &SETTINGS).unwrap();
        let mut host = Self { driver, registers, pcpu: Pcpu::new(), number: 0 };
        host.come_up();
        host
    }

    fn cpu(&mut self) -> ThisCpu<'_, Registers> {
        let Self { driver, registers, pcpu, number } = self;
        ThisCpu { driver, pcpu, pmu: registers, number: *number }
    }

    fn come_up(&mut self) {
        let boot = self.driver.boot;
        self.cpu().come_up(&boot).unwrap();
    }

    /// Has the physical CPU go down, and come back with these counts.
    fn replug(&mut self, counts: &[(u32, u64)]) {
        self.cpu().go_down();
        self.come_up();
        self.registers.held.borrow_mut().extend(counts.iter().copied());
    }

    fn vcpu_of(&mut self, domain: u64) -> Guested {
        self.registers_page(domain, Guest::pv())
    }

    fn registers_page(&mut self, domain: u64, guest: Guest) -> Guested {
        let page = VcpuPage::default();
        let who = Registration { id: 1, domain, guest, allowed: true, window: Window::default() };
        let vcpu = Vcpu::register(&mut self.cpu(), &page, &who, None);
        Guested { vcpu, page }
    }

    fn stats(&self) -> HvStats {
        let mut total = HvStats::default();
        self.pcpu.stats.add_to(&mut total);
        total
    }
}

/// A vCPU and its page.
struct Guested {
    vcpu: Vcpu,
    page: VcpuPage,
}

impl Guested {
    fn load(&mut self, host: &mut Host, counters: &[CounterConfig]) {
        let config = Config::new(&host.driver.caps, counters).unwrap();
        self.vcpu.load(&mut host.cpu(), &self.page, &config);
    }
    fn out(&mut self, host: &mut Host) -> bool {
        self.vcpu.switch_from(&mut host.cpu(), &self.page)
    }
    fn enter(&mut self, host: &mut Host, mode: GuestMode) -> bool {
        self.vcpu.switch_to(&mut host.cpu(), &self.page, mode, true)
    }
    fn interrupt(&mut self, host: &mut Host) -> bool {
        self.vcpu.interrupt(&mut host.cpu(), &self.page)
    }
    fn count(&self, host: &Host, slot: u32) -> u64 {
        let slot = PhysSlot::new(slot).unwrap();
        sample_vcpu(&self.page, &host.registers, &[slot]).unwrap().counter[0]
    }
}

fn counter(slot: u32, evntsel: u64) -> CounterConfig {
    CounterConfig { slot, evntsel, ..CounterConfig::default() }
}

fn sampling(slot: u32, evntsel: u64, period: u64) -> CounterConfig {
    CounterConfig { mode: MODE_SAMPLING, period, ..counter(slot, evntsel) }
}

#[test]
fn fixed_counters_hold_nothing_of_another_domain() {
    let mut host = Host::new(&NEHALEM);
    let mut first = host.vcpu_of(1);
    let before = host.stats().residue_clears;
    first.load(&mut host, &[counter(17, FIXED_BOTH)]);
    host.registers.retire(50);
    first.out(&mut host);
    assert_eq!(host.registers.held(FIXED_CTR0 + 1), 50);
    host.vcpu_of(2);
    assert_eq!(host.registers.held(FIXED_CTR0 + 1), 0);
    assert_eq!(host.stats().residue_clears, before + 1);
}

#[test]
fn nothing_is_selected_on_a_cpu_that_is_given_back() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    vcpu.load(&mut host, &[counter(17, FIXED_BOTH), counter(2, BRANCHES)]);
    vcpu.out(&mut host);
    host.cpu().go_down();
    assert_eq!((host.registers.held(FIXED_CTRL), host.registers.held(EVNTSEL0 + 2)), (0, 0));
}

#[test]
fn what_a_cpu_holds_after_it_was_down_is_nobodys() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    vcpu.out(&mut host);
    host.replug(&[(PMC0 + 1, 77), (FIXED_CTR0, 99)]);
    vcpu.enter(&mut host, User);
    assert_eq!((host.registers.held(PMC0 + 1), host.registers.held(FIXED_CTR0)), (0, 0));
}

#[test]
fn a_vcpu_that_executes_while_its_cpu_is_taken_reads_nothing_of_what_others_counted() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    vcpu.load(&mut host, &[counter(1, BRANCHES)]);
    host.cpu().go_down();
    host.registers.held.borrow_mut().extend([(PMC0 + 1, 77), (FIXED_CTR0, 99)]);
    host.come_up();
    assert_eq!((host.registers.held(PMC0 + 1), host.registers.held(FIXED_CTR0)), (0, 0));
}

#[test]
fn a_cpu_that_was_given_back_stays_as_others_have_it() {
    let hardware = Guest { rings: Rings::Hardware, ..Guest::pv() };
    for (boot, guest) in [(&NEHALEM, Guest::pv()), (&NEHALEM, hardware), (&ZEN, hardware)] {
        let mut host = Host::new(boot);
        let mut vcpu = host.registers_page(1, guest);
        vcpu.load(&mut host, &[counter(1, BRANCHES), sampling(0, INSTRUCTIONS, 1_000)]);
        vcpu.vcpu.revoke(&mut host.cpu(), &vcpu.page);
        host.cpu().go_down();
        let (select, value) = match host.registers.amd {
            true => (K7_EVNTSEL0, K7_PERFCTR0),
            false => (EVNTSEL0, PMC0),
        };
        let theirs = [(select + 1, BRANCHES), (value + 1, 77), (FIXED_CTRL, 3), (FIXED_CTR0, 99)];
        host.registers.held.borrow_mut().extend(theirs);
        host.registers.held.borrow_mut().insert(GLOBAL_CTRL, 1 << 32 | 2);
        let before = host.registers.held.borrow().clone();
        // The same vCPU is switched twice and stopped, others come, and a stranger.
        for _ in 0..2 {
            vcpu.out(&mut host);
            vcpu.vcpu.switch_to(&mut host.cpu(), &vcpu.page, Kernel, false);
            vcpu.vcpu.stop(&mut host.cpu(), &vcpu.page);
        }
        vcpu.out(&mut host);
        let mut other = host.registers_page(2, guest);
        other.out(&mut host);
        other.enter(&mut host, Kernel);
        other.vcpu.unregister(&mut host.cpu(), &other.page);
        host.cpu().run_stranger();
        host.cpu().acknowledge();
        assert_eq!(*host.registers.held.borrow(), before, "{guest:?}");
        assert_eq!(host.cpu().read_for_guest(1), Some(0), "not what the host counts");
    }
}

#[test]
fn what_a_cpu_has_stopped_before_it_was_down_is_stopped_again() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    vcpu.load(&mut host, &[sampling(1, KERNEL, 1_000), counter(0, INSTRUCTIONS)]);
    vcpu.out(&mut host);
    host.replug(&[]);
    vcpu.enter(&mut host, User);
    assert!(!host.registers.counts(1), "it samples the kernel, which does not execute");
    assert!(host.registers.counts(0));
    host.registers.retire(5_000);
    assert!(!vcpu.interrupt(&mut host));
}

/// Each selector has its own enable bit: what is stopped has to be remembered for each.
#[test]
fn a_selector_that_is_written_does_not_start_another_ones_counter() {
    let mut host = Host::new(&ZEN);
    let mut one = host.vcpu_of(1);
    one.load(&mut host, &[sampling(0, KERNEL, 1_000)]);
    one.out(&mut host);
    assert!(!host.registers.counts(0), "stopped with its vCPU");
    let mut two = host.vcpu_of(1);
    two.load(&mut host, &[sampling(0, KERNEL, 1_000), counter(1, BRANCHES)]);
    host.registers.retire(10);
    assert_eq!((two.count(&host, 0), two.count(&host, 1)), (10, 10));
}

#[test]
fn what_samples_a_guest_with_rings_of_its_own_counts_nobody_else() {
    let mut host = Host::new(&ZEN);
    let mut vcpu = host.registers_page(1, Guest { rings: Rings::Hardware, ..Guest::pv() });
    vcpu.load(&mut host, &[sampling(0, INSTRUCTIONS, 1_000), counter(2, KERNEL)]);
    let (guest_only, interrupt) = (1 << 40, 1 << 20);
    assert_eq!(host.registers.held(K7_EVNTSEL0), INSTRUCTIONS | guest_only | interrupt);
    assert_eq!(host.registers.held(K7_EVNTSEL0 + 2), KERNEL | guest_only);
}

#[test]
fn a_legal_rate_of_overflows_is_never_put_off() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    // Two or three in each window.
    for overflow in 1..=12 {
        vcpu.load(&mut host, &[sampling(0, INSTRUCTIONS, 200_000)]);
        host.registers.retire(200_000);
        assert!(vcpu.interrupt(&mut host), "overflow {overflow}");
    }
    assert_eq!(vcpu.page.throttled.load(Relaxed), 0);
}

#[test]
fn what_is_put_off_comes_no_earlier_than_its_period() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    for _ in 0..RATE.overflows_max {
        vcpu.load(&mut host, &[sampling(0, INSTRUCTIONS, 100)]);
        host.registers.retire(100);
        assert!(vcpu.interrupt(&mut host));
    }
    vcpu.load(&mut host, &[sampling(0, INSTRUCTIONS, 5_000_000)]);
    assert_eq!(vcpu.page.throttled.load(Relaxed), 1);
    assert_eq!(host.registers.held(PMC0), (1 << 48) - 5_000_000);
}

#[test]
fn what_sampled_before_the_last_load_is_no_overflow() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    vcpu.load(&mut host, &[sampling(0, INSTRUCTIONS, 1_000)]);
    vcpu.load(&mut host, &[counter(0, INSTRUCTIONS)]);
    host.registers.retire(2_000);
    assert!(!vcpu.out(&mut host), "nobody asks where it was");
    assert!(!vcpu.enter(&mut host, Kernel), "nobody is told");
    assert_eq!(vcpu.page.overflows.load(Relaxed), 0);
}

#[test]
fn a_page_says_that_its_time_can_be_read() {
    let mut host = Host::new(&NEHALEM);
    let vcpu = host.vcpu_of(1);
    let both = VCPU_DIRECT | VCPU_TSC;
    assert_eq!(vcpu.page.flags.load(Relaxed) & both, both);
}

#[test]
fn a_vcpu_that_gets_another_state_leaves_its_counts_to_nobody() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    vcpu.load(&mut host, &[counter(0, INSTRUCTIONS)]);
    host.registers.retire(31);
    vcpu.vcpu.abandon(&mut host.cpu());
    host.vcpu_of(1);
    assert_eq!(host.registers.held(PMC0), 0);
}

#[test]
fn a_cpu_that_is_not_the_drivers_is_not_measured() {
    let driver = Driver::new(&NEHALEM, &Settings { measure_cost: true, ..SETTINGS }).unwrap();
    let (registers, pcpu) = (Registers::default(), Pcpu::new());
    let mut host = Host { driver, registers, pcpu, number: 0 };
    let mut vcpu = host.vcpu_of(1);
    vcpu.out(&mut host);
    vcpu.enter(&mut host, User);
    assert_eq!(host.registers.reads.get(), 0);
}

#[test]
fn the_drivers_own_counter_is_not_the_guests_last() {
    // One general counter.
    let small = Identity { perfmon: [0x0730_0103, 0, 0, 3 | 40 << 5], ..NEHALEM };
    let measured = Driver::new(&small, &Settings { measure_cost: true, ..SETTINGS });
    assert_eq!(measured.err(), Some(Refusal::NoCounters));
    assert!(Driver::new(&small, &SETTINGS).is_ok());
}

#[test]
fn other_events_are_for_who_gets_them_from_the_administrator() {
    for all_events in [false, true] {
        let driver = Driver::new(&NEHALEM, &Settings { all_events, ..SETTINGS }).unwrap();
        assert_eq!(driver.caps.can(CAPS_ALL_EVENTS), all_events);
    }
}

/// Overflows, migrations, generations and sums of one vCPU, no two of them equal.
fn left_behind(host: &mut Host) -> Guested {
    let mut vcpu = host.vcpu_of(1);
    vcpu.load(host, &[counter(1, BRANCHES), counter(2, INSTRUCTIONS)]);
    host.registers.retire(31);
    for _ in 0..5 {
        vcpu.load(host, &[sampling(17, FIXED_BOTH, 1_000)]);
        host.registers.retire(1_000);
        vcpu.interrupt(host);
    }
    vcpu.load(host, &[sampling(17, FIXED_BOTH, 2_000_000)]);
    host.registers.retire(300);
    for number in [1, 1, 0, 0, 1] {
        vcpu.out(host);
        host.number = number;
        vcpu.enter(host, Kernel);
    }
    vcpu.out(host);
    vcpu
}

#[test]
fn a_restored_vcpu_has_all_that_it_has_left() {
    let mut host = Host::new(&NEHALEM);
    let Guested { page, .. } = left_behind(&mut host);
    let fields = |page: &VcpuPage| {
        [&page.switches, &page.migrations, &page.overflows, &page.throttled, &page.generation]
            .map(|field| field.load(Relaxed))
    };
    let (published, writes) = (fields(&page), page.seq.writes());
    assert_eq!(published, [5, 3, 3, 3, 7]);

    let mut other = Host::new(&NEHALEM);
    other.registers.held.borrow_mut().insert(FIXED_CTR0 + 1, 12_345);
    let left = Left::of(&page, &other.driver.caps).unwrap();
    let who = Registration {
        id: 1,
        domain: 9,
        guest: Guest::pv(),
        allowed: true,
        window: Window::default(),
    };
    let mut vcpu = Vcpu::register(&mut other.cpu(), &page, &who, Some(&left));
    vcpu.go_on(&mut other.cpu(), &page, &left);
    let [switches, migrations, overflows, throttled, generation] = published;
    // It is loaded anew.
    let now = fields(&page);
    assert_eq!(now[..3], [switches, migrations, overflows]);
    assert!(now[3] >= throttled);
    assert_eq!(now[4], generation + 1);
    assert!(page.seq.writes() > writes, "who was reading starts over");

    let mut vcpu = Guested { vcpu, page };
    assert_eq!([1, 2].map(|slot| vcpu.count(&other, slot)), [31; 2], "not loaded any more");
    assert_eq!(other.registers.held(FIXED_CTR0 + 1), (1 << 40) - 2_000_000 + 300);
    other.registers.retire(2_000_000 - 300 - 1);
    assert!(!vcpu.interrupt(&mut other), "one event is left of the period");
    other.registers.retire(1);
    assert!(vcpu.interrupt(&mut other));
}

#[test]
fn a_restored_vcpu_that_may_not_count_does_not() {
    let mut host = Host::new(&NEHALEM);
    let Guested { page, .. } = left_behind(&mut host);
    let left = Left::of(&page, &host.driver.caps).unwrap();
    let who = Registration {
        id: 1,
        domain: 9,
        guest: Guest::pv(),
        allowed: false,
        window: Window::default(),
    };
    Vcpu::register(&mut host.cpu(), &page, &who, Some(&left));
    assert_eq!(page.flags.load(Relaxed) & VCPU_DIRECT, 0);
}

/// A host whose PMU interrupts as other devices do asks which interrupts are the driver's.
#[test]
fn the_host_knows_at_each_time_which_counters_interrupt() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    let expected = |host: &Host| host.registers.expected.take();
    let (plain, sampler, other) =
        (counter(0, INSTRUCTIONS), sampling(1, BRANCHES, 1_000), sampling(3, KERNEL, 7_000));
    vcpu.load(&mut host, &[plain]);
    assert_eq!(expected(&host), [], "nothing has sampled, and nothing does");
    for _ in 0..2 {
        vcpu.load(&mut host, &[plain, sampler, other]);
        assert_eq!(expected(&host), [(0b1010, false)]);
        vcpu.out(&mut host);
        assert_eq!(expected(&host), [(0, false)], "it does not execute");
        vcpu.enter(&mut host, Kernel);
        assert_eq!(expected(&host), [(0b1010, false)], "it executes again");
        host.registers.retire(1_000);
        vcpu.interrupt(&mut host);
        assert_eq!(expected(&host), [(0b1000, false)], "one has interrupted");
        vcpu.out(&mut host);
        vcpu.enter(&mut host, Kernel);
        assert_eq!(expected(&host), [(0, false), (0b1000, false)]);
        vcpu.load(&mut host, &[plain]);
        assert_eq!(expected(&host), [(0, false)], "none does any more");
        vcpu.load(&mut host, &[plain]);
        assert_eq!(expected(&host), []);
    }
}

/// The interrupt of an overflow that the driver has seen already is still on its way.
#[test]
fn the_host_knows_of_an_interrupt_that_may_still_come() {
    let mut host = Host::new(&NEHALEM);
    let mut vcpu = host.vcpu_of(1);
    let expected = |host: &Host| host.registers.expected.take();
    let sampler = sampling(1, BRANCHES, 1_000);
    for _ in 0..2 {
        vcpu.load(&mut host, &[sampler]);
        expected(&host);
        host.registers.retire(1_000);
        vcpu.load(&mut host, &[counter(0, INSTRUCTIONS)]);
        assert_eq!(expected(&host), [(0, true)], "a load has seen it");
        vcpu.load(&mut host, &[sampler]);
        expected(&host);
        host.registers.retire(1_000);
        assert!(vcpu.out(&mut host));
        assert_eq!(expected(&host), [(0, true)], "a switch has seen it");
        vcpu.enter(&mut host, Kernel);
        // This is more overflows than a window allows.
        host.registers.clock.set(host.registers.clock.get() + RATE.window_tsc);
    }
}

/// How a vCPU ends to sample, with its name.
type End = (&'static str, fn(&mut Guested, &mut Host));

#[test]
fn the_host_knows_that_a_vcpu_interrupts_no_more() {
    let ends: [End; 4] = [
        ("stopped", |vcpu, host| vcpu.vcpu.stop(&mut host.cpu(), &vcpu.page)),
        ("forbidden", |vcpu, host| _ = vcpu.vcpu.revoke(&mut host.cpu(), &vcpu.page)),
        ("unregistered", |vcpu, host| _ = vcpu.vcpu.unregister(&mut host.cpu(), &vcpu.page)),
        ("reset", |vcpu, host| vcpu.vcpu.abandon(&mut host.cpu())),
    ];
    for (how, end) in ends {
        let mut host = Host::new(&NEHALEM);
        let mut vcpu = host.vcpu_of(1);
        vcpu.load(&mut host, &[sampling(1, BRANCHES, 1_000)]);
        host.registers.expected.take();
        end(&mut vcpu, &mut host);
        let expected = host.registers.expected.take();
        // What a vCPU has counted before it is reset is not looked at, so it may have overflowed.
        assert_eq!(expected, [(0, how == "reset")], "{how}");
    }
}
