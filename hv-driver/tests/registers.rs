// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Which registers the driver writes, and with what, in the manuals' numbers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use hv_driver::guest::Guest;
use hv_driver::pcpu::ThisCpu;
use hv_driver::settings::Settings;
use hv_driver::vcpu::{GuestMode, Registration};
use hv_driver::{Driver, Identity, Pcpu, Pmu, Probe, Rate, Vcpu, Window};
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_USR};
use shared_abi::config::MODE_SAMPLING;
use shared_abi::read::Counters;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::{Config, CounterConfig, VcpuPage};

const FIXED_CTR0: u32 = 0x309;
const GLOBAL_CTRL: u32 = 0x38f;
const GLOBAL_STATUS: u32 = 0x38e;
const GLOBAL_OVF_CTRL: u32 = 0x390;
/// Every counter of a Nehalem.
const ALL: u64 = 0x7_0000_000f;

const INSTRUCTIONS: u64 = 0xc0 | EVNTSEL_USR | EVNTSEL_EN;

/// Registers that hold what the test wants, and a list of what was written.
#[derive(Default)]
struct Registers {
    status: Cell<u64>,
    counter: Cell<u64>,
    writes: RefCell<Vec<(u32, u64)>>,
    probed: RefCell<BTreeMap<u32, u64>>,
}

impl Counters for Registers {
    fn counter(&self, _: u32) -> u64 {
        self.counter.get()
    }
    fn clock(&self) -> u64 {
        0
    }
}

impl Pmu for Registers {
    fn read_register(&self, msr: u32) -> u64 {
        assert_eq!(msr, GLOBAL_STATUS);
        self.status.get()
    }
    fn write_register(&self, msr: u32, value: u64) {
        self.writes.borrow_mut().push((msr, value));
    }
    fn load_at_switch(&self, _: u64, _: u64) {
        unreachable!("no guest here has rings of its own");
    }
}

/// What is written while it is probed is not the driver's.
impl Probe for Registers {
    fn try_read_register(&self, msr: u32) -> Option<u64> {
        Some(self.probed.borrow().get(&msr).copied().unwrap_or(0))
    }
    fn try_write_register(&self, msr: u32, value: u64) -> bool {
        self.probed.borrow_mut().insert(msr, value);
        true
    }
}

/// A processor like a Nehalem whose fixed counters have 40 bits, and vCPU 3 on it.
struct Machine {
    driver: Driver,
    registers: Registers,
    pcpu: Pcpu,
    page: VcpuPage,
    vcpu: Vcpu,
}

impl Machine {
    fn new(measure_cost: bool) -> Self {
        let spelled = |text: &[u8; 4]| u32::from_le_bytes(*text);
        let cpuid = Identity {
            vendor: [spelled(b"Genu"), spelled(b"ineI"), spelled(b"ntel")],
            signature: 0x106a3,
            perfmon: [0x0730_0403, 0, 0, 3 | 40 << 5],
            ..Identity::NONE
        };
        let rate = Rate { window_tsc: 1_000, overflows_max: 100 };
        let settings = Settings { measure_cost, ..Settings::new(rate) };
        let driver = Driver::new(&cpuid, &settings).unwrap();
        let (registers, mut pcpu, page) = (Registers::default(), Pcpu::new(), VcpuPage::default());
        let cpu = &mut ThisCpu { driver: &driver, pcpu: &mut pcpu, pmu: &registers, number: 0 };
        cpu.come_up(&cpuid).unwrap();
        let registration = Registration {
            id: 3,
            domain: 1,
            guest: Guest::pv(),
            allowed: true,
            window: Window::default(),
        };
        let vcpu = Vcpu::register(cpu, &page, &registration, None);
        Self { driver, registers, pcpu, page, vcpu }
    }

    /// Returns the writes of `work`.
    fn writes<R>(
        &mut self,
        work: impl FnOnce(&mut Vcpu, &mut ThisCpu<'_, Registers>, &VcpuPage) -> R,
    ) -> Vec<(u32, u64)> {
        let Self { driver, registers, pcpu, page, vcpu } = self;
        registers.writes.borrow_mut().clear();
        work(vcpu, &mut ThisCpu { driver, pcpu, pmu: registers, number: 0 }, page);
        registers.writes.take()
    }

    fn load(&mut self, counter: CounterConfig) -> Vec<(u32, u64)> {
        let config = Config::new(&self.driver.caps, &[counter]).unwrap();
        self.writes(|vcpu, cpu, page| vcpu.load(cpu, page, &config))
    }
}

fn counter(slot: u32, evntsel: u64) -> CounterConfig {
    CounterConfig { slot, evntsel, ..CounterConfig::default() }
}

fn sampling(slot: u32, evntsel: u64) -> CounterConfig {
    CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(slot, evntsel) }
}

#[test]
fn a_preset_is_no_wider_than_its_counter() {
    let mut m = Machine::new(false);
    let writes = m.load(sampling(17, EVNTSEL_USR | EVNTSEL_EN));
    assert!(writes.contains(&(FIXED_CTR0 + 1, (1 << 40) - 1_000)), "{writes:x?}");
    let writes = m.load(sampling(1, INSTRUCTIONS));
    assert!(writes.contains(&(0xc2, (1 << 48) - 1_000)), "{writes:x?}");
}

#[test]
fn fixed_counters_have_their_own_width() {
    let m = Machine::new(false);
    assert_eq!(m.driver.caps.general_width.bits(), 48);
    assert_eq!(m.driver.caps.fixed_width.bits(), 40);
}

#[test]
fn every_counter_is_enabled_and_so_is_the_drivers_own() {
    for measures_cost in [false, true] {
        let m = Machine::new(measures_cost);
        assert!(m.registers.writes.borrow().contains(&(GLOBAL_CTRL, ALL)));
    }
}

#[test]
fn every_overflow_is_acknowledged() {
    let mut m = Machine::new(false);
    m.load(sampling(16, EVNTSEL_USR | EVNTSEL_EN));
    m.registers.status.set(0x5_0000_0002);
    let writes = m.writes(|vcpu, cpu, page| vcpu.interrupt(cpu, page));
    assert!(writes.contains(&(GLOBAL_OVF_CTRL, 0x5_0000_0002)), "{writes:x?}");
}

#[test]
fn what_did_not_interrupt_is_acknowledged_before_it_does() {
    let mut m = Machine::new(false);
    assert!(m.load(counter(1, INSTRUCTIONS)).iter().all(|write| write.0 != GLOBAL_OVF_CTRL));
    assert!(m.load(sampling(1, INSTRUCTIONS)).contains(&(GLOBAL_OVF_CTRL, 0x2)));
    let again = m.load(sampling(1, INSTRUCTIONS));
    assert!(again.iter().all(|write| write.0 != GLOBAL_OVF_CTRL), "{again:x?}");
}

#[test]
fn sampling_counters_stop_with_their_vcpu() {
    let mut m = Machine::new(false);
    m.load(sampling(1, INSTRUCTIONS | 1 << 17));
    m.registers.counter.set(1 << 47 | 5);
    let writes = m.writes(|vcpu, cpu, page| vcpu.switch_from(cpu, page));
    assert_eq!(writes, [(GLOBAL_CTRL, ALL & !0x2)]);
}

/// Its interrupt may come when another vCPU executes, or is not claimed any more where all are
/// non-maskable: until it is acknowledged, no overflow of that counter interrupts.
#[test]
fn an_overflow_that_a_switch_has_seen_is_acknowledged_by_it() {
    let mut m = Machine::new(false);
    for _ in 0..2 {
        m.load(sampling(1, INSTRUCTIONS | 1 << 17));
        m.registers.counter.set(5);
        m.registers.status.set(0x2);
        let writes = m.writes(|vcpu, cpu, page| vcpu.switch_from(cpu, page));
        assert_eq!(writes, [(GLOBAL_CTRL, ALL & !0x2), (GLOBAL_OVF_CTRL, 0x2)]);
        m.writes(|vcpu, cpu, page| vcpu.switch_to(cpu, page, GuestMode::User, true));
    }
}

#[test]
fn the_mode_of_a_vcpu_that_does_not_execute_changes_nothing() {
    let mut m = Machine::new(false);
    m.load(counter(1, INSTRUCTIONS));
    m.writes(|vcpu, cpu, page| vcpu.toggle(cpu, page, GuestMode::User));
    m.writes(|vcpu, cpu, page| vcpu.switch_from(cpu, page));
    for mode in [GuestMode::Kernel, GuestMode::User] {
        m.registers.counter.set(m.registers.counter.get() + 1_000);
        let writes = m.writes(|vcpu, cpu, page| assert!(!vcpu.toggle(cpu, page, mode)));
        assert_eq!(writes, []);
        assert_eq!(m.page.slots[1].mask.load(Relaxed), 0, "it does not run");
        assert_eq!(m.page.slots[1].sum.load(Relaxed), 0);
    }
}

#[test]
fn a_page_says_whose_it_is() {
    assert_eq!(Machine::new(false).page.vcpu_id.load(Relaxed), 3);
}
