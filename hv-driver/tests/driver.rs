// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The driver on a PMU made of memory: what it publishes, and which registers it touches.

use std::cell::RefCell;
use std::collections::BTreeMap;

use hv_driver::hypercall::{Request, decode};
use hv_driver::msr::{
    IA32_FIXED_CTR_CTRL, IA32_PERF_GLOBAL_CTRL, IA32_PERF_GLOBAL_OVF_CTRL, IA32_PERF_GLOBAL_STATUS,
    IA32_PERFEVTSEL0, IA32_PMC0,
};
use hv_driver::vcpu::GuestMode::{self, Kernel, User};
use hv_driver::{Cpuid, Driver, Pcpu, Pmu, Rate, Vcpu};
use shared_abi::config::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR, MODE_SAMPLING};
use shared_abi::hypercall::{
    HOOK_SWITCH_FROM, HOOK_SWITCH_TO, HvLoad, HvQuery, HvRegister, HvStats, OP_DOMAIN, OP_LOAD,
    OP_QUERY, OP_REGISTER, OP_STATS, OP_STOP, OP_UNREGISTER,
};
use shared_abi::read::{Counters, ReadError, sample_vcpu};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_REGISTERED};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{Config, CounterConfig, Errno, PhysSlot, VcpuPage, WireCaps};
use zerocopy::{FromZeros, IntoBytes};

const USER: u64 = 0xc0 | EVNTSEL_USR | EVNTSEL_EN;
const BOTH: u64 = USER | EVNTSEL_OS;
const KERNEL: u64 = 0xc0 | EVNTSEL_OS | EVNTSEL_EN;

/// Counters and TSC are moved by the test; register writes are recorded.
#[derive(Default)]
struct FakePmu {
    counters: RefCell<BTreeMap<u32, u64>>,
    enabled: RefCell<u64>,
    tsc: RefCell<u64>,
    writes: RefCell<Vec<(u32, u64)>>,
}

impl FakePmu {
    /// The guest executes `n` instructions in ring 3, which every enabled general counter counts.
    fn retire(&self, n: u64) {
        for index in (0..4).filter(|index| *self.enabled.borrow() & 1 << index != 0) {
            let mut counters = self.counters.borrow_mut();
            let counter = counters.entry(index).or_default();
            *counter = (*counter + n) & ((1 << 48) - 1);
        }
        *self.tsc.borrow_mut() += 2 * n;
    }

    fn take_writes(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.writes.borrow_mut())
    }
}

impl Counters for FakePmu {
    fn rdpmc(&self, index: u32) -> u64 {
        self.counters.borrow().get(&index).copied().unwrap_or(0)
    }
    fn rdtsc(&self) -> u64 {
        *self.tsc.borrow()
    }
}

impl Pmu for FakePmu {
    fn rdmsr(&self, msr: u32) -> u64 {
        assert_eq!(msr, IA32_PERF_GLOBAL_STATUS, "the driver reads counters with RDPMC");
        0x1
    }
    fn wrmsr(&self, msr: u32, value: u64) {
        self.writes.borrow_mut().push((msr, value));
        if (IA32_PMC0..IA32_PMC0 + 4).contains(&msr) {
            // The register takes 32 bits and extends their sign to the counter's width.
            let value = value as i32 as u64 & ((1 << 48) - 1);
            self.counters.borrow_mut().insert(msr - IA32_PMC0, value);
        }
        if msr == IA32_PERF_GLOBAL_CTRL {
            *self.enabled.borrow_mut() = value;
        }
    }
}

fn driver() -> Driver {
    driver_that(false)
}

/// On a Nehalem, measuring its own cost or not.
fn driver_that(measures_cost: bool) -> Driver {
    let spelled = |text: &[u8; 4]| u32::from_le_bytes(*text);
    let cpuid = Cpuid {
        vendor: [spelled(b"Genu"), spelled(b"ineI"), spelled(b"ntel")],
        signature: 0x106a3,
        perfmon: [0x0730_0403, 0, 0, 0x603],
    };
    Driver::new(&cpuid, measures_cost, RATE).unwrap()
}

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

impl Machine {
    fn new() -> Self {
        let (driver, pmu, mut pcpu, page) =
            (driver(), FakePmu::default(), Pcpu::new(), VcpuPage::default());
        let vcpu = Vcpu::register(&driver, &mut pcpu, &pmu, &page, 3, 1, 0);
        Self { driver, pmu, pcpu, page, vcpu }
    }

    fn load(&mut self, counters: &[CounterConfig]) {
        let config = config(counters);
        self.vcpu.load(&self.driver, &mut self.pcpu, &self.pmu, &self.page, &config);
    }

    fn toggle(&mut self, mode: GuestMode) -> bool {
        self.vcpu.toggle(&self.driver, &mut self.pcpu, &self.pmu, &self.page, mode)
    }

    fn interrupt(&mut self) -> bool {
        self.vcpu.interrupt(&self.driver, &mut self.pcpu, &self.pmu, &self.page)
    }

    fn switch_from(&mut self) {
        self.vcpu.switch_from(&self.driver, &mut self.pcpu, &self.pmu, &self.page);
    }

    fn switch_to(&mut self, cpu: u32, mode: GuestMode, allowed: bool) -> bool {
        let (driver, pcpu, pmu) = (&self.driver, &mut self.pcpu, &self.pmu);
        self.vcpu.switch_to(driver, pcpu, pmu, &self.page, cpu, mode, allowed)
    }

    /// `Phys*` of the TSC and of general counters 0 to 2, through the page alone.
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
fn no_guest_counter_counts_in_ring_0() {
    let mut m = Machine::new();
    m.load(&[counter(0, KERNEL), counter(1, BOTH), counter(17, EVNTSEL_OS | EVNTSEL_EN)]);
    let writes = m.pmu.take_writes();
    assert!(writes.contains(&(IA32_PERFEVTSEL0, USER)));
    assert!(writes.contains(&(IA32_PERFEVTSEL0 + 1, USER)));
    assert!(writes.contains(&(IA32_FIXED_CTR_CTRL, 0x20)));
}

#[test]
fn another_domains_events_are_cleared_before_anyone_can_read_them() {
    let mut m = Machine::new();
    m.load(&[counter(0, USER)]);
    m.toggle(User);
    m.pmu.retire(50);
    m.switch_from();
    m.pcpu.run_stranger();
    m.pmu.retire(999);
    m.pmu.take_writes();
    m.switch_to(0, User, true);
    let cleared: Vec<u32> = m.pmu.take_writes().iter().map(|&(msr, _)| msr).collect();
    assert_eq!(cleared, [IA32_PMC0], "only the counter that was in use");
    assert_eq!(m.pmu.rdpmc(0), 0);
    m.pmu.retire(2);
    assert_eq!(m.sample().1[0], 52);

    // A vCPU of a second domain must not see this one's, nor the other way round.
    let page = VcpuPage::default();
    m.switch_from();
    let mut other = Vcpu::register(&m.driver, &mut m.pcpu, &m.pmu, &page, 0, 2, 0);
    assert_eq!(m.pmu.rdpmc(0), 0);
    m.pmu.retire(77);
    other.switch_from(&m.driver, &mut m.pcpu, &m.pmu, &page);
    m.switch_to(0, User, true);
    assert_eq!(m.pmu.rdpmc(0), 0);
    assert_eq!(m.sample().1[0], 52);
}

#[test]
fn two_domains_with_different_events_each_get_their_own() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    m.switch_from();
    let page = VcpuPage::default();
    let mut other = Vcpu::register(&m.driver, &mut m.pcpu, &m.pmu, &page, 0, 2, 0);
    let branches = config(&[counter(0, 0xc4 | EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_EN)]);
    other.load(&m.driver, &mut m.pcpu, &m.pmu, &page, &branches);
    other.switch_from(&m.driver, &mut m.pcpu, &m.pmu, &page);
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
fn stop_keeps_sums_and_unregister_ends_the_page() {
    let mut m = Machine::new();
    m.load(&[counter(0, BOTH)]);
    m.pmu.retire(9);
    m.vcpu.stop(&m.driver, &mut m.pcpu, &m.pmu, &m.page);
    m.pmu.retire(9);
    assert_eq!(m.sample().1[0], 9);
    assert_eq!(m.page.loaded.load(Relaxed), 0);
    assert_eq!(m.page.flags.load(Relaxed) & VCPU_REGISTERED, VCPU_REGISTERED);
    m.vcpu.unregister(&m.driver, &mut m.pcpu, &m.pmu, &m.page);
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
    assert_eq!((driver_that(true).caps.general, driver_that(true).cost_rdpmc()), (3, Some(3)));
    assert_eq!((driver_that(false).caps.general, driver_that(false).cost_rdpmc()), (4, None));
}

mod overflows {
    use super::*;

    fn sampling(slot: u32, evntsel: u64, period: u64) -> CounterConfig {
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
    fn it_keeps_its_distance_across_switches_and_physical_cpus() {
        let mut m = loaded(&[sampling(0, BOTH, 1_000)]);
        m.pmu.retire(600);
        m.switch_from();
        m.pmu.retire(100_000);
        m.pcpu = Pcpu::new();
        m.pmu.counters.borrow_mut().insert(0, 0x1234);
        assert!(!m.switch_to(1, Kernel, true));
        m.pmu.retire(399);
        assert!(!m.interrupt());
        m.pmu.retire(1);
        assert!(m.interrupt());
        assert_eq!(m.sample().1[0], 1_000);
    }

    #[test]
    fn an_interrupt_that_comes_late_is_not_lost_and_not_doubled() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.pmu.retire(1_003);
        // The vCPU is switched out before the interrupt is taken; another one gets the interrupt.
        m.switch_from();
        let page = VcpuPage::default();
        let mut other = Vcpu::register(&m.driver, &mut m.pcpu, &m.pmu, &page, 1, 1, 0);
        assert!(!other.interrupt(&m.driver, &mut m.pcpu, &m.pmu, &page));
        other.switch_from(&m.driver, &mut m.pcpu, &m.pmu, &page);
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
    fn stop_lets_the_counter_count_for_others_again() {
        let mut m = loaded(&[sampling(0, USER, 1_000)]);
        m.toggle(Kernel);
        m.vcpu.stop(&m.driver, &mut m.pcpu, &m.pmu, &m.page);
        m.load(&[counter(0, BOTH)]);
        m.pmu.retire(5);
        assert_eq!(m.sample().1[0], 5);
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

    fn refused(op: u32, bytes: &[u8]) -> Errno {
        let mut copy = bytes.to_vec();
        let errno = decode(&driver(), op, &mut copy, true).unwrap_err();
        assert_eq!(copy, bytes, "a refused argument is unchanged");
        errno
    }

    #[test]
    fn the_handshake_answers_and_refuses() {
        let mut query = HvQuery { abi_major: ABI_MAJOR.into(), abi_minor: 7, ..HvQuery::default() };
        assert_eq!(decode(&driver(), OP_QUERY, query.as_mut_bytes(), true), Ok(Request::Query));
        assert_eq!((query.abi_major, query.abi_minor), (ABI_MAJOR.into(), ABI_MINOR.into()));
        assert_eq!(query.caps, WireCaps::from(&driver().caps));
        query.abi_major += 1;
        assert_eq!(refused(OP_QUERY, query.as_bytes()), Errno::PROTO);
        assert_eq!(refused(OP_QUERY, &query.as_bytes()[1..]), Errno::INVAL);
    }

    #[test]
    fn a_load_is_exactly_as_long_as_it_says() {
        let counters = [counter(0, USER), counter(16, EVNTSEL_USR | EVNTSEL_EN)];
        let mut bytes = load_bytes(&counters);
        assert_eq!(
            decode(&driver(), OP_LOAD, &mut bytes, true),
            Ok(Request::Load(config(&counters)))
        );
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
    fn a_load_is_validated() {
        let any_thread = counter(0, USER | 1 << 21);
        assert_eq!(refused(OP_LOAD, &load_bytes(&[any_thread])), Errno::PERM);
        assert_eq!(refused(OP_LOAD, &load_bytes(&[counter(9, USER)])), Errno::INVAL);
        let no_mode = CounterConfig { mode: 2, ..counter(0, USER) };
        assert_eq!(refused(OP_LOAD, &load_bytes(&[no_mode])), Errno::OPNOTSUPP);
    }

    #[test]
    fn the_others_have_fixed_arguments() {
        let register = HvRegister { gfn: 0x1234, reserved: 0 };
        assert_eq!(
            decode(&driver(), OP_REGISTER, &mut register.as_bytes().to_vec(), true),
            Ok(Request::Register { gfn: 0x1234 })
        );
        let bad = HvRegister { reserved: 1, ..register };
        assert_eq!(refused(OP_REGISTER, bad.as_bytes()), Errno::INVAL);
        assert_eq!(refused(OP_REGISTER, &[]), Errno::INVAL);
        assert_eq!(refused(OP_DOMAIN, [1u32, 2, 0, 0].as_bytes()), Errno::INVAL);
        assert_eq!(
            decode(&driver(), OP_DOMAIN, &mut [5u32, 1, 0, 0].as_bytes().to_vec(), true),
            Ok(Request::Domain { domid: 5, enabled: true })
        );
        for op in [OP_UNREGISTER, OP_STOP] {
            assert_eq!(refused(op, &[0]), Errno::INVAL);
        }
        assert_eq!(refused(OP_STATS, &[0; 8]), Errno::INVAL);
        assert_eq!(refused(7, &[]), Errno::INVAL);
        assert_eq!(refused(u32::MAX, &[]), Errno::INVAL);
    }
}
