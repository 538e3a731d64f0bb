// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Physical CPUs that come up, differ, and go down.

use std::cell::RefCell;
use std::collections::BTreeMap;

use hv_driver::{Driver, Identity, Pcpu, Pmu, Probe, Rate, Refusal, Settings, ThisCpu};
use shared_abi::read::Counters;

const NEHALEM: Identity = Identity {
    vendor: [0x756e_6547, 0x4965_6e69, 0x6c65_746e],
    signature: 0x106a3,
    perfmon: [0x0730_0403, 0x44, 0, 3 | 40 << 5],
    // A debug store.
    features: 1 << 21,
    ..Identity::NONE
};
const ZEN: Identity = Identity {
    vendor: [0x6874_7541, 0x6974_6e65, 0x444d_4163],
    signature: 0x0080_0f12,
    perfmon: [0; 4],
    features: 0,
    ..NEHALEM
};

const GLOBAL_CTRL: u32 = 0x38f;
const GLOBAL_STATUS: u32 = 0x38e;
const GLOBAL_OVF_CTRL: u32 = 0x390;
const DEBUGCTL: u32 = 0x1d9;
/// What counter 0 holds.
const READ: u64 = 1_000;
/// What the firmware has left in IA32_PERF_GLOBAL_CTRL.
const FOUND: u64 = 0xf;

/// Registers made of memory.
#[derive(Default)]
struct Memory {
    held: RefCell<BTreeMap<u32, u64>>,
    /// The one that faults.
    faults: Option<u32>,
    /// The one that takes every write and keeps none.
    forgets: Option<u32>,
    /// Bits of one that stay 0.
    stuck: Option<(u32, u64)>,
}

impl Memory {
    /// Makes the registers that the firmware leaves: a counter runs.
    fn new() -> Self {
        let memory = Self::default();
        let running = [(GLOBAL_CTRL, FOUND), (0x186, 0x41_00c0), (0xc001_0000, 0x41_00c0)];
        memory.held.borrow_mut().extend(running);
        memory
    }

    fn held(&self, msr: u32) -> u64 {
        self.held.borrow().get(&msr).copied().unwrap_or(0)
    }
}

impl Probe for Memory {
    fn try_read_register(&self, msr: u32) -> Option<u64> {
        let held = *self.held.borrow_mut().entry(msr).or_default();
        (self.faults != Some(msr)).then_some(held)
    }
    fn try_write_register(&self, msr: u32, value: u64) -> bool {
        let stuck = self.stuck.filter(|stuck| stuck.0 == msr).map_or(0, |stuck| stuck.1);
        let kept = if self.forgets == Some(msr) { 0 } else { value & !stuck };
        self.held.borrow_mut().insert(msr, kept);
        self.faults != Some(msr)
    }
}

impl Counters for Memory {
    fn counter(&self, index: u32) -> u64 {
        READ + u64::from(index)
    }
    fn clock(&self) -> u64 {
        0
    }
}

impl Pmu for Memory {
    fn read_register(&self, msr: u32) -> u64 {
        self.try_read_register(msr).expect("the driver's own accesses do not fault")
    }
    fn write_register(&self, msr: u32, value: u64) {
        assert!(
            self.try_write_register(msr, value),
            "the driver's own accesses do not fault: {msr:#x}"
        );
    }
    fn load_at_switch(&self, _: u64, _: u64) {
        unreachable!("no guest here has rings of its own");
    }
}

fn driver(boot: &Identity, measure_cost: bool) -> Driver {
    let rate = Rate { window_tsc: 1, overflows_max: 1 };
    Driver::new(boot, &Settings { measure_cost, ..Settings::new(rate) }).unwrap()
}

fn come_up(
    driver: &Driver,
    pcpu: &mut Pcpu,
    cpuid: &Identity,
    pmu: &Memory,
) -> Result<(), Refusal> {
    ThisCpu { driver, pcpu, pmu, number: 0 }.come_up(cpuid)
}

/// Bit 4n + 1 of IA32_FIXED_CTR_CTRL has fixed counter n count in user mode (SDM volume 3, 20.2.2).
#[test]
fn each_fixed_counter_can_be_switched_on() {
    const FIXED_CTR_CTRL: u32 = 0x38d;
    for user in [0x2, 0x20, 0x200] {
        let (driver, mut pcpu) = (driver(&NEHALEM, false), Pcpu::new());
        let pmu = Memory { stuck: Some((FIXED_CTR_CTRL, user)), ..Memory::new() };
        let found = come_up(&driver, &mut pcpu, &NEHALEM, &pmu);
        assert_eq!(found, Err(Refusal::Register(FIXED_CTR_CTRL)), "{user:#x}");
    }
}

#[test]
fn a_cpu_like_the_boot_cpu_counts_and_is_left_as_it_was() {
    for (boot, measure_cost) in [(NEHALEM, false), (NEHALEM, true), (ZEN, false), (ZEN, true)] {
        let (driver, mut pcpu, pmu) = (driver(&boot, measure_cost), Pcpu::new(), Memory::new());
        let stepping = Identity { signature: boot.signature ^ 1, ..boot };
        assert_eq!(come_up(&driver, &mut pcpu, &stepping, &pmu), Ok(()));
        assert!(pcpu.counts());
        let own = driver.cost.and_then(|slot| driver.registers.evntsel(slot));
        assert_eq!(own.map(|msr| pmu.held(msr)), measure_cost.then_some(0x42_00c0));
        ThisCpu { driver: &driver, pcpu: &mut pcpu, pmu: &pmu, number: 0 }.go_down();
        assert!(!pcpu.counts());
        assert_eq!(pmu.held(GLOBAL_CTRL), FOUND, "as it was found");
        let kept = |msr: &u32| ![GLOBAL_CTRL, GLOBAL_OVF_CTRL].contains(msr);
        for msr in registers(&boot).into_iter().filter(kept) {
            assert_eq!(pmu.held(msr), 0, "{msr:#x}");
        }
    }
}

#[test]
fn what_counts_before_is_stopped_on_a_cpu_that_is_refused_too() {
    // Its general counters are narrower, or its fixed ones.
    for (general, fixed) in [(0x0728_0403, 3 | 40 << 5), (0x0730_0403, 3 | 32 << 5)] {
        let (driver, mut pcpu, pmu) = (driver(&NEHALEM, false), Pcpu::new(), Memory::new());
        let narrower = Identity { perfmon: [general, 0x44, 0, fixed], ..NEHALEM };
        let refusal = come_up(&driver, &mut pcpu, &narrower, &pmu);
        assert_eq!(refusal, Err(Refusal::Counters(general)));
        assert!(!pcpu.counts());
        assert_eq!((pmu.held(0x186), pmu.held(GLOBAL_CTRL)), (0, FOUND));
    }
}

#[test]
fn another_cpu_is_refused_by_name() {
    let check = |cpuid: Identity| {
        come_up(&driver(&NEHALEM, false), &mut Pcpu::new(), &cpuid, &Memory::new())
    };
    let westmere = Identity { signature: 0x206c1, ..NEHALEM };
    assert_eq!(check(westmere), Err(Refusal::Model(0x206c1)));
    let smaller_core = Identity { core_type: 0x2000_0001, ..NEHALEM };
    assert_eq!(check(smaller_core), Err(Refusal::CoreType(0x2000_0001)));
    assert_eq!(check(ZEN), Err(Refusal::Model(0x0080_0f12)));
    let fewer_fixed = Identity { perfmon: [0x0730_0403, 0x44, 0, 2 | 40 << 5], ..NEHALEM };
    assert_eq!(check(fewer_fixed), Err(Refusal::Counters(0x0730_0403)));
    // The same counters, and something else that the driver relies on.
    let without_pebs = Identity { features: 0, ..NEHALEM };
    assert_eq!(check(without_pebs), Err(Refusal::Counters(0x0730_0403)));
    assert_eq!(Refusal::Counters(1).describe(), ("the counters of CPU 0", 1));
    assert_eq!(Refusal::Model(2).describe(), ("the model of CPU 0", 2));
}

#[test]
fn a_cpu_without_a_known_pmu_is_not_touched() {
    let pmu = Memory::default();
    let none = Identity { perfmon: [0; 4], ..NEHALEM };
    let refusal = come_up(&driver(&NEHALEM, false), &mut Pcpu::new(), &none, &pmu);
    assert_eq!(refusal, Err(Refusal::Version(0)));
    assert!(pmu.held.borrow().is_empty());
}

/// Returns every register that the driver uses.
fn registers(boot: &Identity) -> Vec<u32> {
    let global = [GLOBAL_CTRL, GLOBAL_STATUS, GLOBAL_OVF_CTRL, 0x38d, 0x3f1];
    match boot.vendor {
        vendor if vendor == ZEN.vendor => (0xc001_0000..0xc001_0008).collect(),
        _ => (0x186..0x18a).chain(0xc1..0xc5).chain(0x309..0x30c).chain(global).collect(),
    }
}

#[test]
fn each_register_must_be_there() {
    for boot in [NEHALEM, ZEN] {
        for msr in registers(&boot) {
            let pmu = Memory { faults: Some(msr), ..Memory::new() };
            let mut pcpu = Pcpu::new();
            let refusal = come_up(&driver(&boot, false), &mut pcpu, &boot, &pmu);
            assert_eq!(refusal, Err(Refusal::Register(msr)));
            assert!(!pcpu.counts());
        }
    }
    let text = "registers that keep what is written to them";
    assert_eq!(Refusal::Register(0xc1).describe(), (text, 0xc1));
}

#[test]
fn each_register_must_keep_what_is_written() {
    for boot in [NEHALEM, ZEN] {
        for msr in registers(&boot) {
            let pmu = Memory { forgets: Some(msr), ..Memory::new() };
            let refusal = come_up(&driver(&boot, false), &mut Pcpu::new(), &boot, &pmu);
            // Status bits are not written, their acknowledgement is not read, and PEBS stays off.
            let kept = ![GLOBAL_STATUS, GLOBAL_OVF_CTRL, 0x3f1].contains(&msr);
            assert_eq!(refusal, if kept { Err(Refusal::Register(msr)) } else { Ok(()) });
        }
    }
}

#[test]
fn an_interrupt_stops_no_counter_while_the_driver_has_the_pmu() {
    // FREEZE_PERFMON_ON_PMI, and bits that are nothing to the driver: FREEZE_LBRS_ON_PMI and
    // FREEZE_WHILE_SMM.
    const FREEZE: u64 = 1 << 12;
    const OTHER: u64 = 1 << 11 | 1 << 14;
    for boot in [NEHALEM, ZEN] {
        let (driver, mut pcpu) = (driver(&boot, false), Pcpu::new());
        for found in [OTHER | FREEZE, OTHER] {
            let pmu = Memory::new();
            pmu.held.borrow_mut().insert(DEBUGCTL, found);
            come_up(&driver, &mut pcpu, &boot, &pmu).unwrap();
            assert_eq!(pmu.held(DEBUGCTL), OTHER);
            ThisCpu { driver: &driver, pcpu: &mut pcpu, pmu: &pmu, number: 0 }.go_down();
            assert_eq!(pmu.held(DEBUGCTL), found, "as it was found");
        }
        let stuck = Memory { stuck: Some((DEBUGCTL, OTHER)), ..Memory::new() };
        stuck.held.borrow_mut().insert(DEBUGCTL, OTHER | FREEZE);
        let refusal = come_up(&driver, &mut pcpu, &boot, &stuck);
        assert_eq!(refusal, Err(Refusal::Register(DEBUGCTL)), "what it holds is not kept");
        let without = Memory { faults: Some(DEBUGCTL), ..Memory::new() };
        come_up(&driver, &mut pcpu, &boot, &without).unwrap();
        ThisCpu { driver: &driver, pcpu: &mut pcpu, pmu: &without, number: 0 }.go_down();
    }
}

#[test]
fn counters_that_an_interrupt_has_frozen_go_on_when_the_driver_takes_the_pmu() {
    // CTR_FRZ, beside the overflow of a counter and LBR_FRZ.
    const FROZEN: u64 = 1 << 59;
    const RECORDS_FROZEN: u64 = 1 << 58;
    let version_4 = Identity { perfmon: [0x0730_0404, 0x44, 0, 3 | 40 << 5], ..NEHALEM };
    let amd_version_2 = Identity { extended: 1 << 23, perfmon_amd: [1, 6], ..ZEN };
    for (boot, status, acknowledge, all) in [
        (version_4, GLOBAL_STATUS, GLOBAL_OVF_CTRL, 0x7_0000_000f),
        (amd_version_2, 0xc000_0300, 0xc000_0302, 0x3f),
    ] {
        for (found, acknowledged) in [(FROZEN | RECORDS_FROZEN | 1, FROZEN), (1, all)] {
            let (driver, mut pcpu, pmu) = (driver(&boot, false), Pcpu::new(), Memory::new());
            pmu.held.borrow_mut().insert(status, found);
            come_up(&driver, &mut pcpu, &boot, &pmu).unwrap();
            assert_eq!(pmu.held(acknowledge), acknowledged, "the last one");
        }
    }
}

#[test]
fn a_cpu_that_comes_back_has_forgotten_everything() {
    let (driver, mut pcpu, pmu) = (driver(&NEHALEM, false), Pcpu::new(), Memory::new());
    for _ in 0..2 {
        come_up(&driver, &mut pcpu, &NEHALEM, &pmu).unwrap();
        assert_eq!(pmu.held(GLOBAL_CTRL), 0x7_0000_000f);
        assert_eq!(pmu.held(0x186), 0, "the firmware's counter");
        pmu.held.replace(Memory::new().held.into_inner());
    }
    pmu.held.borrow_mut().insert(0xc1, 5);
    let pmu = Memory { faults: Some(0xc1), ..pmu };
    let refusal = come_up(&driver, &mut pcpu, &NEHALEM, &pmu);
    assert_eq!((refusal, pcpu.counts()), (Err(Refusal::Register(0xc1)), false));
}

/// A Zen with counters of its last-level cache and its data fabric, which RDPMC reads, too.
const WITH_UNCORE: Identity = Identity { extended: 1 << 23 | 1 << 24 | 1 << 28, ..ZEN };
/// What selects the first and the last of each.
const UNCORE: [u32; 4] = [0xc001_0230, 0xc001_023a, 0xc001_0240, 0xc001_0246];

fn driver_on(boot: &Identity, owns_all: bool) -> Driver {
    let rate = Rate { window_tsc: 1, overflows_max: 1 };
    Driver::new(boot, &Settings { owns_all, ..Settings::new(rate) }).unwrap()
}

/// Makes a CPU on which somebody counts what several cores do.
fn with_uncore() -> Memory {
    let pmu = Memory::new();
    pmu.held.borrow_mut().extend(UNCORE.map(|msr| (msr, 0x43_0004)));
    pmu
}

#[test]
fn counters_of_several_cores_stand_still_where_guests_read_them() {
    let (driver, mut pcpu, pmu) = (driver_on(&WITH_UNCORE, true), Pcpu::new(), with_uncore());
    assert!(!driver.guest_reads_exit);
    assert_eq!(come_up(&driver, &mut pcpu, &WITH_UNCORE, &pmu), Ok(()));
    assert_eq!(UNCORE.map(|msr| pmu.held(msr)), [0; 4]);
    for msr in UNCORE {
        let (mut pcpu, pmu) = (Pcpu::new(), Memory { faults: Some(msr), ..with_uncore() });
        let refusal = come_up(&driver, &mut pcpu, &WITH_UNCORE, &pmu);
        assert_eq!((refusal, pcpu.counts()), (Err(Refusal::Register(msr)), false));
    }
}

#[test]
fn guests_do_not_read_counters_of_several_cores_that_others_use() {
    let (driver, mut pcpu, pmu) = (driver_on(&WITH_UNCORE, false), Pcpu::new(), with_uncore());
    assert!(driver.guest_reads_exit, "from every guest");
    assert!(!driver_on(&ZEN, false).guest_reads_exit, "there are none");
    assert_eq!(come_up(&driver, &mut pcpu, &WITH_UNCORE, &pmu), Ok(()));
    assert_eq!(UNCORE.map(|msr| pmu.held(msr)), [0x43_0004; 4], "they go on");
    let cpu = ThisCpu { driver: &driver, pcpu: &mut pcpu, pmu: &pmu, number: 0 };
    for index in 0..6 {
        assert_eq!(cpu.read_for_guest(index), Some(READ + u64::from(index)));
    }
    for index in [6, 9, 10, 15, 16, 0x4000_0000, u32::MAX] {
        assert_eq!(cpu.read_for_guest(index), None, "{index:#x}");
    }
    let refused = ThisCpu { driver: &driver, pcpu: &mut Pcpu::new(), pmu: &pmu, number: 1 };
    assert_eq!((refused.read_for_guest(0), refused.read_for_guest(6)), (Some(0), None));
}

#[test]
fn metrics_are_cleared_where_guests_read_them() {
    let with_metrics = Identity { perf_capabilities: 1 << 15, ..NEHALEM };
    let (driver, mut pcpu, pmu) = (driver_on(&with_metrics, false), Pcpu::new(), Memory::new());
    pmu.held.borrow_mut().insert(0x329, 0xff00_ff00);
    assert_eq!(come_up(&driver, &mut pcpu, &with_metrics, &pmu), Ok(()));
    assert_eq!((pmu.held(0x329), driver.guest_reads_exit), (0, false));
}
