// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests precise places against a processor that stores records as Intel's do.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use hv_driver::guest::Rings;
use hv_driver::vcpu::GuestMode::{self, Kernel, User};
use hv_driver::{
    Driver, Guest, Identity, Pcpu, Pmu, Probe, Rate, RecordArea, Refusal, Registration, Settings,
    ThisCpu, Vcpu, Window,
};
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::config::MODE_PRECISE;
use shared_abi::hypercall::{HvPlace, PLACE_KERNEL, PLACE_NONE, PLACE_PRECISE, PLACE_USER};
use shared_abi::read::Counters;
use shared_abi::{Config, CounterConfig, PhysSlot, VcpuPage};

/// SDM volume 4.
const PMC0: u32 = 0xc1;
const PERFEVTSEL0: u32 = 0x186;
const GLOBAL_STATUS: u32 = 0x38e;
const GLOBAL_CTRL: u32 = 0x38f;
const OVF_CTRL: u32 = 0x390;
const PEBS_ENABLE: u32 = 0x3f1;
const DS_AREA: u32 = 0x600;
/// IA32_PERF_GLOBAL_STATUS: the index of the buffer has reached its threshold.
const BUFFER: u64 = 1 << 62;

/// Words of the area, and of a record of format 3.
const INDEX: usize = 5;
const END: usize = 6;
const THRESHOLD: usize = 7;
const RESET0: usize = 8;
const FIRST_RECORD: usize = 64;
const RECORD_WORDS: usize = 25;
const RECORD_COUNTERS: usize = 18;
const RECORD_EVENT_IP: usize = 22;

/// Addresses of a program, of its PV kernel, and of Xen.
const PROGRAM: u64 = 0x40_0000;
const LINUX: u64 = 0xffff_ffff_8100_0000;
const XEN: u64 = 0xffff_82d0_4020_0000;

const MASK: u64 = (1 << 48) - 1;
const PERIOD: u64 = 10;
const INSTRUCTIONS: u64 = 0xc0 | EVNTSEL_EN;

/// One physical CPU.
struct Hardware {
    registers: RefCell<BTreeMap<u32, u64>>,
    counters: [Cell<u64>; 4],
    /// The counters whose next event stores a record.
    armed: Cell<u64>,
    /// It stays where it is when the test moves the host.
    area: Box<RecordArea>,
    missing: Option<u32>,
}

impl Hardware {
    fn held(&self, register: u32) -> u64 {
        self.registers.borrow().get(&register).copied().unwrap_or(0)
    }

    fn set(&self, register: u32, value: u64) {
        self.registers.borrow_mut().insert(register, value);
    }

    fn word(&self, word: usize) -> u64 {
        self.area.words()[word].load(Relaxed)
    }

    /// Executes the instruction at `ip` in ring 3.
    fn executes(&self, ip: u64) {
        let mut due = 0;
        for (n, counter) in self.counters.iter().enumerate() {
            let select = self.held(PERFEVTSEL0 + n as u32);
            if self.held(GLOBAL_CTRL) >> n & 1 == 0 || select & 0xff != 0xc0 {
                continue;
            }
            assert_eq!(select & (EVNTSEL_OS | 1 << 20), 0, "neither ring 0 nor an interrupt");
            counter.set((counter.get() + 1) & MASK);
            due |= self.armed.get() & 1 << n;
            if counter.get() == 0 {
                self.set(GLOBAL_STATUS, self.held(GLOBAL_STATUS) | 1 << n);
                self.armed.set(self.armed.get() | self.held(PEBS_ENABLE) & 1 << n);
            }
        }
        if due != 0 {
            self.stores(due, ip);
        }
    }

    fn stores(&self, due: u64, ip: u64) {
        self.armed.set(self.armed.get() & !due);
        assert_eq!(self.held(DS_AREA), self.word(4) - 8 * FIRST_RECORD as u64);
        let (index, next) = (self.word(INDEX), self.word(INDEX) + 8 * RECORD_WORDS as u64);
        assert!(next <= self.word(END));
        let words = self.area.words();
        let first = (index - self.held(DS_AREA)) as usize / 8;
        // The registers, of which the driver takes none.
        words[first..first + RECORD_WORDS].iter().for_each(|word| word.store(0x5a5a, Relaxed));
        words[first + RECORD_COUNTERS].store(due, Relaxed);
        words[first + RECORD_EVENT_IP].store(ip, Relaxed);
        words[INDEX].store(next, Relaxed);
        for (n, counter) in self.counters.iter().enumerate() {
            if due >> n & 1 != 0 {
                counter.set(self.word(RESET0 + n));
            }
        }
        let threshold = if next >= self.word(THRESHOLD) { BUFFER } else { 0 };
        self.set(GLOBAL_STATUS, self.held(GLOBAL_STATUS) & !due | threshold);
    }

    /// Executes `n` instructions from `ip` on, each of one byte.
    fn runs(&self, ip: u64, n: u64) {
        (0..n).for_each(|i| self.executes(ip + i));
    }

    /// Returns whether the area has nothing of anybody.
    fn is_clean(&self) -> bool {
        let records = &self.area.words()[FIRST_RECORD..];
        self.word(INDEX) == self.word(4) && records.iter().all(|word| word.load(Relaxed) == 0)
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
        self.held(register)
    }
    fn write_register(&self, register: u32, value: u64) {
        match register {
            OVF_CTRL => return self.set(GLOBAL_STATUS, self.held(GLOBAL_STATUS) & !value),
            // This is what Linux relies on where it enters a guest.
            PEBS_ENABLE => self.armed.set(self.armed.get() & value),
            _ => (),
        }
        if let Some(counter) = self.counters.get(register.wrapping_sub(PMC0) as usize) {
            counter.set(value as i32 as u64 & MASK);
        }
        self.set(register, value);
    }
    fn load_at_switch(&self, _: u64, _: u64) {}
    fn record_area(&self) -> Option<&RecordArea> {
        Some(&self.area)
    }
}

impl Probe for Hardware {
    fn try_read_register(&self, register: u32) -> Option<u64> {
        (self.missing != Some(register)).then(|| self.held(register))
    }
    fn try_write_register(&self, register: u32, value: u64) -> bool {
        self.set(register, value);
        self.missing != Some(register)
    }
}

/// Returns a Nehalem that has PEBS, and says in which format.
fn with_format(format: u64) -> Identity {
    Identity { features: 1 << 21, perf_capabilities: format << 8, ..common::nehalem() }
}

const SETTINGS: Settings =
    Settings { precise: true, ..Settings::new(Rate { window_tsc: 1_000, overflows_max: 1_000 }) };

struct Host {
    driver: Driver,
    pcpu: Pcpu,
    hardware: Hardware,
}

impl Host {
    fn new() -> Self {
        let mut host = Self::down();
        let boot = host.driver.boot;
        host.cpu().come_up(&boot).unwrap();
        host
    }

    /// Makes a host whose CPU has not come up.
    fn down() -> Self {
        let hardware = Hardware {
            registers: RefCell::default(),
            counters: Default::default(),
            armed: Cell::default(),
            area: Box::default(),
            missing: None,
        };
        let driver = Driver::new(&with_format(3), &SETTINGS).unwrap();
        Self { driver, pcpu: Pcpu::new(), hardware }
    }

    fn cpu(&mut self) -> ThisCpu<'_, Hardware> {
        ThisCpu { driver: &self.driver, pcpu: &mut self.pcpu, pmu: &self.hardware, number: 0 }
    }

    /// Has vCPU 0 of this domain register its page, and load the first counter.
    fn guest(&mut self, domain: u64, modes: u64) -> Guests {
        let page = VcpuPage::default();
        let who = Registration {
            id: 0,
            domain,
            guest: Guest::pv(),
            allowed: true,
            window: Window::default(),
        };
        let vcpu = Vcpu::register(&mut self.cpu(), &page, &who, None);
        let mut guest = Guests { page, vcpu };
        guest.load(self, modes);
        guest
    }
}

/// A vCPU with its page.
struct Guests {
    page: VcpuPage,
    vcpu: Vcpu,
}

impl Guests {
    fn load(&mut self, host: &mut Host, modes: u64) {
        let config = config(&host.driver, 0, INSTRUCTIONS | modes);
        assert!(self.vcpu.can_place(&host.driver, &config));
        self.vcpu.load(&mut host.cpu(), &self.page, &config);
    }

    fn toggle(&mut self, host: &mut Host, mode: GuestMode) -> bool {
        self.vcpu.toggle(&mut host.cpu(), &self.page, mode)
    }

    /// Returns whether the PMU's interrupt tells of an overflow, which comes where the guest is at
    /// `ip`.
    fn interrupted_at(&mut self, host: &mut Host, mode: u32, ip: u64) -> bool {
        let tells = self.vcpu.interrupt(&mut host.cpu(), &self.page);
        if tells {
            self.vcpu.overflowed_at(&at(mode, ip));
        }
        tells
    }

    fn place(&mut self) -> (u32, u64, u64) {
        let place = self.vcpu.take_place(PhysSlot::FIRST);
        (place.mode, place.ip, place.sp)
    }
}

fn at(mode: u32, ip: u64) -> HvPlace {
    HvPlace { slot: 0, mode, ip, sp: 77, flags: 0x202 }
}

fn config(driver: &Driver, slot: u32, evntsel: u64) -> Config {
    let (mode, period) = (MODE_PRECISE, PERIOD);
    let counter = CounterConfig { slot, evntsel, mode, period, ..CounterConfig::default() };
    Config::new(&driver.caps, &[counter]).unwrap()
}

#[test]
fn a_place_is_that_of_the_event_however_late_the_interrupt_is() {
    let host = &mut Host::new();
    let mut guest = host.guest(1, EVNTSEL_USR);
    guest.toggle(host, User);
    for skid in [0, 1, 7] {
        host.hardware.runs(PROGRAM, PERIOD + 1 + skid);
        assert_ne!(host.hardware.held(GLOBAL_STATUS) & BUFFER, 0);
        let late = PROGRAM + PERIOD + 1 + skid;
        assert!(guest.interrupted_at(host, PLACE_USER, late));
        assert_eq!(host.hardware.held(GLOBAL_STATUS), 0, "the next one interrupts again");
        assert_eq!(guest.place(), (PLACE_USER | PLACE_PRECISE, PROGRAM + PERIOD, 77));
        assert_eq!(guest.place().0, PLACE_NONE, "once");
        assert!(host.hardware.is_clean());
        // The record has cost no count.
        assert_eq!(host.hardware.counters[0].get(), 1 + skid);
        guest.toggle(host, Kernel);
        guest.load(host, EVNTSEL_USR);
        guest.toggle(host, User);
    }
}

#[test]
fn a_mode_that_ends_with_the_period_needs_no_record() {
    let host = &mut Host::new();
    let mut guest = host.guest(1, EVNTSEL_USR);
    guest.toggle(host, User);
    assert_eq!(host.hardware.held(PEBS_ENABLE), 1);
    host.hardware.runs(PROGRAM, PERIOD);
    assert!(guest.toggle(host, Kernel), "the guest learns of it at once");
    guest.vcpu.overflowed_at(&at(PLACE_USER, PROGRAM + PERIOD));
    assert_eq!(host.hardware.held(PEBS_ENABLE), 0);
    assert_eq!(guest.place(), (PLACE_USER | PLACE_PRECISE, PROGRAM + PERIOD, 77));
    guest.toggle(host, User);
    host.hardware.runs(PROGRAM + PERIOD, 5);
    assert!(host.hardware.is_clean(), "the record was given up with the mode");
}

#[test]
fn a_cpu_that_was_off_stores_records_again() {
    let host = &mut Host::new();
    host.guest(1, EVNTSEL_OS);
    assert_eq!(host.hardware.held(PEBS_ENABLE), 1);
    host.hardware.registers.borrow_mut().clear();
    let boot = host.driver.boot;
    host.cpu().come_up(&boot).unwrap();
    assert_eq!(host.hardware.held(PEBS_ENABLE), 0);
    let mut guest = host.guest(2, EVNTSEL_OS);
    assert_eq!(host.hardware.held(PEBS_ENABLE), 1);
    host.hardware.runs(LINUX, PERIOD + 3);
    assert!(guest.interrupted_at(host, PLACE_KERNEL, LINUX + PERIOD + 3));
    assert_eq!(guest.place(), (PLACE_KERNEL | PLACE_PRECISE, LINUX + PERIOD, 77));
}

#[test]
fn where_the_kernel_returns_its_next_instruction_is_not_known() {
    let host = &mut Host::new();
    let mut guest = host.guest(1, EVNTSEL_OS);
    host.hardware.runs(LINUX, PERIOD);
    assert!(guest.toggle(host, User));
    guest.vcpu.overflowed_at(&at(PLACE_KERNEL, LINUX + PERIOD));
    assert_eq!(guest.place(), (PLACE_KERNEL, LINUX + PERIOD, 77));
}

/// Has the program overflow while the processor forgets the record. The place is then the one that
/// was interrupted, and it is not exact.
fn overflows_without_a_record(host: &mut Host, guest: &mut Guests) {
    host.hardware.runs(PROGRAM, PERIOD);
    host.hardware.armed.set(0);
    host.hardware.runs(PROGRAM, 4);
    assert!(guest.interrupted_at(host, PLACE_USER, PROGRAM + 99));
    assert_eq!(guest.place(), (PLACE_USER, PROGRAM + 99, 77));
}

#[test]
fn an_overflow_that_a_load_finds_says_nothing_of_the_next_ones_place() {
    let host = &mut Host::new();
    let mut guest = host.guest(1, EVNTSEL_USR | EVNTSEL_OS);
    host.hardware.runs(LINUX, PERIOD);
    guest.load(host, EVNTSEL_USR | EVNTSEL_OS);
    guest.toggle(host, User);
    overflows_without_a_record(host, &mut guest);
}

#[test]
fn an_overflow_without_a_record_has_the_interrupted_place_which_is_not_exact() {
    let host = &mut Host::new();
    let mut guest = host.guest(1, EVNTSEL_USR);
    guest.toggle(host, User);
    overflows_without_a_record(host, &mut guest);
}

#[test]
fn a_record_from_where_the_counter_does_not_count_is_not_shown() {
    for (modes, mode, ip, shown) in [
        (EVNTSEL_USR, PLACE_USER, PROGRAM, true),
        (EVNTSEL_USR, PLACE_USER, LINUX, false),
        (EVNTSEL_USR, PLACE_USER, XEN, false),
        (EVNTSEL_USR | EVNTSEL_OS, PLACE_KERNEL, LINUX, true),
        (EVNTSEL_USR | EVNTSEL_OS, PLACE_KERNEL, XEN, false),
        (EVNTSEL_OS, PLACE_KERNEL, PROGRAM, false),
    ] {
        let host = &mut Host::new();
        let mut guest = host.guest(1, modes);
        if mode == PLACE_USER {
            guest.toggle(host, User);
        }
        host.hardware.runs(ip, PERIOD + 3);
        assert!(guest.interrupted_at(host, mode, 0x1234));
        let expected =
            if shown { (mode | PLACE_PRECISE, ip + PERIOD, 77) } else { (mode, 0x1234, 77) };
        assert_eq!(guest.place(), expected, "{modes:#x}, {ip:#x}");
        assert!(host.hardware.is_clean());
    }
}

#[test]
fn a_stack_of_the_other_mode_is_not_that_of_the_place() {
    let host = &mut Host::new();
    let mut guest = host.guest(1, EVNTSEL_USR | EVNTSEL_OS);
    guest.toggle(host, User);
    host.hardware.runs(PROGRAM, PERIOD + 1);
    guest.toggle(host, Kernel);
    host.hardware.runs(LINUX, 3);
    assert!(guest.interrupted_at(host, PLACE_KERNEL, LINUX + 3));
    assert_eq!(guest.place(), (PLACE_USER | PLACE_PRECISE, PROGRAM + PERIOD, 0));
}

#[test]
fn a_vcpu_that_is_switched_out_leaves_nothing_behind() {
    for executed in [PERIOD - 1, PERIOD, PERIOD + 1, PERIOD + 4] {
        let host = &mut Host::new();
        let mut other = host.guest(2, EVNTSEL_USR);
        other.vcpu.switch_from(&mut host.cpu(), &other.page);
        let mut guest = host.guest(1, EVNTSEL_USR);
        guest.toggle(host, User);
        host.hardware.runs(PROGRAM, executed);
        let seen = guest.vcpu.switch_from(&mut host.cpu(), &guest.page);
        assert_eq!(seen, executed >= PERIOD);
        if seen {
            guest.vcpu.overflowed_at(&at(PLACE_USER, PROGRAM + executed));
            assert_eq!(guest.place().1, PROGRAM + PERIOD, "{executed}");
        }
        assert_eq!((host.hardware.held(PEBS_ENABLE), host.hardware.armed.get()), (0, 0));
        assert!(host.hardware.is_clean());
        other.vcpu.switch_to(&mut host.cpu(), &other.page, User, true);
        host.hardware.runs(PROGRAM + 0x1000, PERIOD - 1);
        assert!(!other.interrupted_at(host, PLACE_USER, 0x55), "nothing of the other's");
        host.hardware.runs(PROGRAM + 0x2000, 2);
        assert!(other.interrupted_at(host, PLACE_USER, 0x55));
        assert_eq!(other.place().1, PROGRAM + 0x2001);
    }
}

#[test]
fn records_are_written_only_while_the_counter_counts() {
    let host = &mut Host::new();
    let mut guest = host.guest(1, EVNTSEL_USR);
    assert_eq!(host.hardware.held(PEBS_ENABLE), 0);
    guest.toggle(host, User);
    assert_eq!(host.hardware.held(PEBS_ENABLE), 1);
    guest.toggle(host, Kernel);
    assert_eq!(host.hardware.held(PEBS_ENABLE), 0);
    guest.toggle(host, User);
    guest.vcpu.revoke(&mut host.cpu(), &guest.page);
    assert_eq!(host.hardware.held(PEBS_ENABLE), 0);
    let mut both = host.guest(2, EVNTSEL_USR | EVNTSEL_OS);
    assert_eq!(host.hardware.held(PEBS_ENABLE), 1);
    both.vcpu.abandon(&mut host.cpu());
    assert_eq!(host.hardware.held(PEBS_ENABLE), 0);
}

#[test]
fn the_driver_says_who_can_have_places_of_what() {
    let host = &mut Host::new();
    let guest = host.guest(1, EVNTSEL_USR);
    for (evntsel, can) in [
        (INSTRUCTIONS | EVNTSEL_USR, true),
        (0xc4 | EVNTSEL_EN | EVNTSEL_USR, true),
        (0xc5 | EVNTSEL_EN | EVNTSEL_USR, false),
        (0x3c | EVNTSEL_EN | EVNTSEL_USR, false),
        (INSTRUCTIONS | EVNTSEL_USR | 1 << 24, false),
    ] {
        let config = config(&host.driver, 1, evntsel);
        assert_eq!(guest.vcpu.can_place(&host.driver, &config), can, "{evntsel:#x}");
        assert!(guest.vcpu.can_place(&host.driver, &Config::NONE));
    }
    let wanted = config(&host.driver, 1, INSTRUCTIONS | EVNTSEL_USR);
    let counted = Settings { counts_interrupts: true, ..SETTINGS };
    for settings in [Settings { precise: false, ..SETTINGS }, counted] {
        let driver = Driver::new(&with_format(3), &settings).unwrap();
        assert!(!guest.vcpu.can_place(&driver, &wanted), "{settings:?}");
    }
    let page = VcpuPage::default();
    let pvh = Guest { rings: Rings::Hardware, ..Guest::pv() };
    let who =
        Registration { id: 0, domain: 3, guest: pvh, allowed: true, window: Window::default() };
    let vcpu = Vcpu::register(&mut host.cpu(), &page, &who, None);
    assert!(!vcpu.can_place(&host.driver, &wanted), "its page tables say where");
    assert!(vcpu.can_place(&host.driver, &Config::NONE));
}

#[test]
fn a_cpu_without_such_records_is_refused_if_the_host_wants_them() {
    let refusal = |cpu: &Identity| Driver::new(cpu, &SETTINGS).map(drop).unwrap_err();
    for format in [0, 1, 4] {
        assert_eq!(refusal(&with_format(format)), Refusal::Precise(format as u32));
    }
    assert_eq!(refusal(&Identity { features: 0, ..with_format(3) }), Refusal::Precise(3));
    let unavailable = Identity { misc_enable: 1 << 12, ..with_format(3) };
    assert_eq!(refusal(&unavailable), Refusal::Precise(3));
    for register in [PEBS_ENABLE, DS_AREA] {
        let mut host = Host::down();
        host.hardware.missing = Some(register);
        let boot = host.driver.boot;
        assert_eq!(host.cpu().come_up(&boot), Err(Refusal::Register(register)));
    }
}

#[test]
fn the_processor_knows_the_area_only_while_the_cpu_is_the_drivers() {
    let host = &mut Host::new();
    let address = host.hardware.held(DS_AREA);
    assert_eq!(address, host.hardware.word(4) - 8 * FIRST_RECORD as u64);
    assert_eq!(address % 4096, 0);
    host.cpu().go_down();
    assert_eq!((host.hardware.held(DS_AREA), host.hardware.held(PEBS_ENABLE)), (0, 0));
}
