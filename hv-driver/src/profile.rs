// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples of the host itself: where its physical CPUs are each time that a counter has counted a
//! period of events.
//!
//! One general counter belongs to the host from the boot on, so that starting and stopping changes
//! nothing for guests. While nobody samples, it is stopped. Its overflow is a non-maskable
//! interrupt, so that samples also show code that has disabled interrupts. The interrupt writes to
//! its CPU's [`SampleRing`] only. The control domain takes the samples out by hypercall, under a
//! lock of the glue.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_INT};
use shared_abi::config::MODE_SAMPLING;
use shared_abi::hypercall::{
    HvPlace, HvProfile, HvSample, HvSamples, PLACE_KERNEL, PLACE_USER, PROFILE_AT_GUESTS,
    PROFILE_LEASE_MS, PROFILE_PERIOD_MIN, SAMPLE_FOR_KERNEL, SAMPLE_FOR_USER, SAMPLE_HYPERVISOR,
};
use shared_abi::limits::PERIOD_EVENTS_MAX;
use shared_abi::{Config, CounterConfig, Errno, PhysSlot};

use crate::arch;
use crate::driver::Driver;
use crate::hal::Pmu;
use crate::nmi::ExpectedInterrupts;
use crate::pcpu::ThisCpu;

/// Number of samples that a physical CPU keeps until they are taken.
const RECORDS: usize = 4096;

/// A sample in words that the interrupt and the reader share.
#[derive(Debug)]
struct Record([AtomicU64; 4]);

impl Record {
    fn set(&self, sample: &HvSample) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            sample.tsc,
            sample.ip,
            pair(sample.domain, sample.vcpu),
            pair(sample.mode, sample.cpu),
        ];
        self.0.iter().zip(words).for_each(|(word, value)| word.store(value, Relaxed));
    }

    fn get(&self) -> HvSample {
        let [tsc, ip, who, how] = &self.0;
        let [tsc, ip, who, how] = [tsc, ip, who, how].map(|word| word.load(Relaxed));
        let (domain, mode) = (who as u32, how as u32);
        HvSample { tsc, ip, domain, vcpu: (who >> 32) as u32, mode, cpu: (how >> 32) as u32 }
    }
}

/// The samples of one physical CPU. Its interrupt writes, and one reader at a time takes.
///
/// Memory that is all zeros is an empty ring.
#[derive(Debug)]
pub struct SampleRing {
    /// Unit: events.
    period: AtomicU64,
    /// `PROFILE_*` bits.
    flags: AtomicU64,
    lost: AtomicU64,
    /// Number of samples that were ever written, and that were ever taken.
    written: AtomicU64,
    taken: AtomicU64,
    records: [Record; RECORDS],
}

impl SampleRing {
    /// Returns whether samples of the hypervisor have the place of its guest.
    #[must_use]
    pub fn is_at_guests(&self) -> bool {
        self.flags.load(Relaxed) & PROFILE_AT_GUESTS != 0
    }

    /// Adds a sample, or counts it as lost if there is no room.
    fn add(&self, sample: &HvSample) {
        let written = self.written.load(Relaxed);
        // The place of a record is free as soon as the reader has counted the record as taken.
        let kept = written.wrapping_sub(self.taken.load(Acquire));
        match self.records.get(written as usize % RECORDS) {
            Some(record) if kept < RECORDS as u64 => {
                record.set(sample);
                self.written.store(written.wrapping_add(1), Release);
            }
            _ => self.lose(1),
        }
    }

    fn lose(&self, samples: u64) {
        self.lost.store(self.lost.load(Relaxed).wrapping_add(samples), Relaxed);
    }

    /// Moves the oldest samples to `out`.
    fn take(&self, out: &mut HvSamples) {
        let taken = self.taken.load(Relaxed);
        let kept = self.written.load(Acquire).wrapping_sub(taken);
        out.count = 0;
        for (to, number) in out.sample.iter_mut().zip(0..kept) {
            let index = taken.wrapping_add(number) as usize % RECORDS;
            *to = self.records.get(index).map_or(HvSample::default(), Record::get);
            out.count += 1;
        }
        out.sample.iter_mut().skip(out.count as usize).for_each(|rest| *rest = HvSample::default());
        out.lost = self.lost.load(Relaxed);
        self.taken.store(taken.wrapping_add(out.count.into()), Release);
    }
}

impl Driver {
    /// Checks the control domain's request.
    ///
    /// # Errors
    ///
    /// `INVAL` if the period is too short or too long, or if no physical CPU is named; those of
    /// [`ConfigError`](shared_abi::ConfigError).
    pub fn accepts_profile(&self, profile: &HvProfile) -> Result<(), Errno> {
        let HvProfile { evntsel, period, cpus, flags } = *profile;
        let periods = PROFILE_PERIOD_MIN..=PERIOD_EVENTS_MAX;
        if !periods.contains(&period) || cpus == 0 || flags & !PROFILE_AT_GUESTS != 0 {
            return Err(Errno::INVAL);
        }
        // A guest could count the event with its first counter.
        let counter = CounterConfig { evntsel, period, mode: MODE_SAMPLING, ..Default::default() };
        Config::new(&self.caps, &[counter]).map(drop).map_err(|error| error.errno())
    }

    /// Begins a session of samples. The caller holds the glue's lock.
    ///
    /// # Errors
    ///
    /// `BUSY` if another session has not ended.
    pub fn begin_profile(&self, now: u64) -> Result<(), Errno> {
        if self.lease.lasts(now) {
            return Err(Errno::BUSY);
        }
        self.renew(now);
        Ok(())
    }

    /// Ends the session, and returns whether there was one. The caller holds the glue's lock.
    pub fn end_profile(&self) -> bool {
        self.lease.end()
    }

    /// Moves the oldest samples of a ring to `out`, and renews the lease. The caller holds the
    /// glue's lock.
    ///
    /// # Errors
    ///
    /// `NXIO` if nobody samples, or if the lease has ended; `NOENT` if there is no ring.
    pub fn take_samples(
        &self,
        ring: Option<&SampleRing>,
        now: u64,
        out: &mut HvSamples,
    ) -> Result<(), Errno> {
        if !self.lease.lasts(now) {
            return Err(Errno::NXIO);
        }
        let ring = ring.ok_or(Errno::NOENT)?;
        self.renew(now);
        ring.take(out);
        Ok(())
    }

    fn renew(&self, now: u64) {
        self.lease.renew(now, self.ticks(PROFILE_LEASE_MS));
    }

    /// Handles a non-maskable interrupt of the CPU whose PMU, expected interrupts of the host's
    /// counter, and ring are passed. `at` is the interrupted place; this sets its time. `left` is
    /// the current guest's place, as far as it is known, if the ring is [`at
    /// guests`](SampleRing::is_at_guests). Returns whether the host's counter has interrupted.
    ///
    /// It may be called at any moment, also while the core executes.
    pub fn sample(
        &self,
        pmu: &impl Pmu,
        expected: &ExpectedInterrupts,
        ring: Option<&SampleRing>,
        at: &mut HvSample,
        left: &HvPlace,
    ) -> bool {
        let (Some(slot), Some(ring)) = (self.profile, ring) else {
            return expected.explains(&self.caps, pmu);
        };
        let raw = pmu.counter(slot.counter_index());
        if !expected.is_armed(slot) || !self.has_overflowed(slot, raw) {
            return expected.explains(&self.caps, pmu);
        }
        at.tsc = pmu.clock();
        if !self.lets_cpu_go_on(&self.lease, at.tsc) {
            self.stop_counter(pmu, slot);
            expected.expect(0, false, at.tsc);
            self.clear_counter(pmu, slot);
            return true;
        }
        if ring.is_at_guests() {
            move_to_guest(at, left);
        }
        ring.add(at);
        let period = ring.period.load(Relaxed).max(1);
        // The counter has continued since its overflow, so the next period begins where the last
        // one has ended. It is read as late as possible, because the instructions between this read
        // and the preset are not counted.
        let raw = pmu.counter(slot.counter_index());
        self.start_counter(pmu, slot, period - raw % period);
        // Whole periods may have ended since the overflow.
        ring.lose(raw / period);
        true
    }

    /// Returns whether a counter that holds `raw` has overflowed since it was preset.
    fn has_overflowed(&self, slot: PhysSlot, raw: u64) -> bool {
        let mask = self.caps.width(slot).mask();
        raw & mask & !(mask >> 1) == 0
    }

    /// Lets the counter overflow after this many events, and interrupt.
    fn start_counter(&self, pmu: &impl Pmu, slot: PhysSlot, events: u64) {
        let preset = events.wrapping_neg() & self.caps.width(slot).mask();
        pmu.write_register(self.registers.counter(slot), preset);
        if let Some(global) = &self.registers.global {
            pmu.write_register(global.acknowledge, arch::global_bits(slot.bit()));
        }
    }

    fn stop_counter(&self, pmu: &impl Pmu, slot: PhysSlot) {
        if let Some(evntsel) = self.registers.evntsel(slot) {
            pmu.write_register(evntsel, 0);
        }
    }

    /// Clears the counter, so that guests that can read counters learn nothing from it. While an
    /// interrupt of it is expected, the 0 would look like an overflow.
    fn clear_counter(&self, pmu: &impl Pmu, slot: PhysSlot) {
        pmu.write_register(self.registers.counter(slot), 0);
    }
}

/// Replaces the place in a sample of the hypervisor by its guest's place. There is no such place
/// while the physical CPU has nothing to do.
fn move_to_guest(at: &mut HvSample, left: &HvPlace) {
    let mode = match left.mode {
        PLACE_KERNEL => SAMPLE_FOR_KERNEL,
        PLACE_USER => SAMPLE_FOR_USER,
        _ => return,
    };
    if at.mode == SAMPLE_HYPERVISOR {
        (at.mode, at.ip) = (mode, left.ip);
    }
}

impl<P: Pmu> ThisCpu<'_, P> {
    /// Begins to sample this CPU. `ring` is its ring, and `expected` has the interrupts of the
    /// host's counter that it expects. `profile` is what [`Driver::accepts_profile`] has accepted.
    ///
    /// It returns whether the CPU samples: one whose PMU is not the driver's does not.
    pub fn start_samples(
        &mut self,
        expected: &ExpectedInterrupts,
        ring: &SampleRing,
        profile: &HvProfile,
    ) -> bool {
        let (Some(slot), true) = (self.driver.profile, self.pcpu.counts()) else { return false };
        let Some(evntsel) = self.driver.registers.evntsel(slot) else { return false };
        ring.period.store(profile.period, Relaxed);
        ring.flags.store(profile.flags, Relaxed);
        self.driver.stop_counter(self.pmu, slot);
        self.driver.start_counter(self.pmu, slot, profile.period);
        expected.expect(slot.bit(), false, self.pmu.clock());
        // It counts in guests as well, also where selectors could exclude them.
        self.pmu.write_register(evntsel, profile.evntsel | EVNTSEL_INT | EVNTSEL_EN);
        true
    }

    /// Ends sampling on this CPU. An interrupt of the host's counter may still come.
    pub fn stop_samples(&mut self, expected: &ExpectedInterrupts) {
        let (Some(slot), true) = (self.driver.profile, self.pcpu.counts()) else { return };
        self.driver.stop_counter(self.pmu, slot);
        let raw = self.pmu.counter(slot.counter_index());
        let overflowed = self.driver.has_overflowed(slot, raw);
        expected.expect(0, overflowed, self.pmu.clock());
        self.driver.clear_counter(self.pmu, slot);
    }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};

    use shared_abi::caps::CAPS_GUEST_ONLY;
    use shared_abi::hypercall::{PLACE_NONE, SAMPLES_MAX};
    use shared_abi::read::Counters;
    use zerocopy::FromZeros;

    use super::*;
    use crate::arch::Identity;
    use crate::driver::GRACE_MS;
    use crate::pcpu::Pcpu;
    use crate::settings::{HostFacts, Options};

    extern crate std;
    use std::boxed::Box;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    const TICKS_PER_MS: u64 = 1_000;
    const PERIOD: u64 = 20_000;
    /// Nehalem's last general counter, its selector, and what acknowledges overflows.
    const COUNTER: u32 = 0xc4;
    const EVNTSEL: u32 = 0x189;
    const ACKNOWLEDGE: u32 = 0x390;
    const WIDTH: u64 = 1 << 48;
    /// Instructions in ring 0 and elsewhere.
    const INSTRUCTIONS: u64 = 0x43_00c0;
    const PROFILE: HvProfile =
        HvProfile { evntsel: INSTRUCTIONS, period: PERIOD, cpus: u64::MAX, flags: 0 };
    const AT: HvSample =
        HvSample { tsc: 0, ip: 0xffff_82d0, domain: 3, vcpu: 1, mode: SAMPLE_HYPERVISOR, cpu: 7 };

    #[derive(Default)]
    struct Hardware {
        registers: RefCell<BTreeMap<u32, u64>>,
        tsc: Cell<u64>,
    }

    impl Hardware {
        fn held(&self, register: u32) -> u64 {
            self.registers.borrow().get(&register).copied().unwrap_or(0)
        }
        fn executes(&self, events: u64) {
            let next = (self.held(COUNTER) + events) % WIDTH;
            self.registers.borrow_mut().insert(COUNTER, next);
        }
    }

    impl Counters for Hardware {
        fn counter(&self, index: u32) -> u64 {
            self.held(0xc1 + index)
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
            self.registers.borrow_mut().insert(register, value);
        }
        fn load_at_switch(&self, _: u64, _: u64) {}
    }

    impl crate::hal::Probe for Hardware {
        fn try_read_register(&self, register: u32) -> Option<u64> {
            Some(self.held(register))
        }
        fn try_write_register(&self, register: u32, value: u64) -> bool {
            self.write_register(register, value);
            true
        }
    }

    fn ring() -> Box<SampleRing> {
        let records = [const { Record([const { AtomicU64::new(0) }; 4]) }; RECORDS];
        let [period, flags, lost, written, taken] = [const { AtomicU64::new(0) }; 5];
        Box::new(SampleRing { period, flags, lost, written, taken, records })
    }

    fn nehalem() -> Identity {
        Identity {
            vendor: [0x756e_6547, 0x4965_6e69, 0x6c65_746e],
            signature: 0x106a3,
            perfmon: [0x0730_0403, 0, 0, 3 | 40 << 5],
            ..Identity::NONE
        }
    }

    /// A host of one CPU.
    struct Host {
        driver: Driver,
        pcpu: Pcpu,
        pmu: Hardware,
        expected: ExpectedInterrupts,
        ring: Box<SampleRing>,
    }

    impl Host {
        fn new(cpu: &Identity) -> Self {
            let facts = HostFacts {
                ticks_per_ms: TICKS_PER_MS,
                owns_all: true,
                can_profile: true,
                can_record: false,
            };
            let options = Options { profile: true, ..Options::OFF };
            let driver = Driver::new(cpu, &options.settings(&facts)).unwrap();
            let expected = ExpectedInterrupts::new();
            let pmu = Hardware::default();
            let mut host = Self { driver, pcpu: Pcpu::new(), pmu, expected, ring: ring() };
            host.cpu().come_up(cpu).unwrap();
            host
        }

        /// Makes a host that samples, and whose clock shows 1.
        fn sampling() -> Self {
            let mut host = Self::new(&nehalem());
            host.pmu.tsc.set(1);
            host.driver.begin_profile(1).unwrap();
            assert!(host.start());
            host
        }

        fn cpu(&mut self) -> ThisCpu<'_, Hardware> {
            ThisCpu { driver: &self.driver, pcpu: &mut self.pcpu, pmu: &self.pmu, number: 7 }
        }

        fn start(&mut self) -> bool {
            let Self { driver, pcpu, pmu, expected, ring } = self;
            driver.accepts_profile(&PROFILE).unwrap();
            ThisCpu { driver, pcpu, pmu, number: 7 }.start_samples(expected, ring, &PROFILE)
        }

        /// Makes samples of the hypervisor have the places of guests.
        fn go_to_guests(&mut self) {
            let profile = HvProfile { flags: PROFILE_AT_GUESTS, ..PROFILE };
            self.driver.accepts_profile(&profile).unwrap();
            let Self { driver, pcpu, pmu, expected, ring } = self;
            ThisCpu { driver, pcpu, pmu, number: 7 }.start_samples(expected, ring, &profile);
        }

        fn stop(&mut self) {
            let Self { driver, pcpu, pmu, expected, .. } = self;
            ThisCpu { driver, pcpu, pmu, number: 7 }.stop_samples(expected);
        }

        fn nmi(&self) -> bool {
            self.nmi_at(AT, &HvPlace::default())
        }

        fn nmi_at(&self, mut at: HvSample, left: &HvPlace) -> bool {
            self.driver.sample(&self.pmu, &self.expected, Some(&self.ring), &mut at, left)
        }

        fn take(&self) -> Result<HvSamples, Errno> {
            let mut out = HvSamples::new_zeroed();
            self.driver.take_samples(Some(&self.ring), self.pmu.clock(), &mut out)?;
            Ok(out)
        }

        /// Takes all there is: the instruction pointers, and how many were lost.
        fn drain(&self) -> (Vec<u64>, u64) {
            let mut places = Vec::new();
            loop {
                let out = self.take().unwrap();
                places.extend(out.sample[..out.count as usize].iter().map(|sample| sample.ip));
                if (out.count as usize) < SAMPLES_MAX {
                    return (places, out.lost);
                }
            }
        }
    }

    #[test]
    fn nothing_counts_for_the_host_until_it_samples_and_after_that() {
        let mut host = Host::new(&nehalem());
        assert_eq!(host.pmu.held(EVNTSEL), 0);
        host.driver.begin_profile(1).unwrap();
        assert!(host.start());
        // Interrupt in bit 20, enable in bit 22 (SDM volume 3, figure 20-1).
        assert_eq!(host.pmu.held(EVNTSEL), INSTRUCTIONS | 1 << 20 | 1 << 22);
        assert_eq!(host.pmu.held(COUNTER), WIDTH - PERIOD);
        // All counters but the last are the guests', and enabled with it.
        assert_eq!(host.pmu.held(0x38f), 0x7_0000_000f);
        host.stop();
        assert_eq!(host.pmu.held(EVNTSEL), 0);
    }

    #[test]
    fn guests_cannot_read_what_was_counted_until_the_end() {
        let mut host = Host::sampling();
        host.pmu.executes(7);
        host.stop();
        assert_eq!((host.pmu.held(EVNTSEL), host.pmu.held(COUNTER)), (0, 0), "the session ended");
        let host = Host::sampling();
        host.pmu.executes(PERIOD + 7);
        host.pmu.tsc.set(2 * PROFILE_LEASE_MS * TICKS_PER_MS);
        assert!(host.nmi());
        assert_eq!((host.pmu.held(EVNTSEL), host.pmu.held(COUNTER)), (0, 0), "the lease ended");
    }

    #[test]
    fn a_cpu_whose_pmu_is_not_the_drivers_is_not_sampled() {
        let mut host = Host::new(&nehalem());
        host.cpu().go_down();
        assert!(!host.start());
        assert_eq!(host.pmu.held(EVNTSEL), 0);
    }

    #[test]
    fn guests_are_sampled_also_where_they_are_told_apart() {
        let zen = Identity {
            vendor: [0x6874_7541, 0x6974_6e65, 0x444d_4163],
            signature: 0x0080_0f12,
            ..Identity::NONE
        };
        let with_guests = Identity { extended: zen.extended | 1 << 2 | 1 << 23, ..zen };
        let mut host = Host::new(&with_guests);
        let last = host.driver.registers.evntsel(host.driver.profile.unwrap()).unwrap();
        assert!(host.driver.caps.can(CAPS_GUEST_ONLY), "so that this tests something");
        assert!(host.start());
        // It is limited neither to guests nor to the host (APM volume 2, 13.2.1).
        assert_eq!(host.pmu.held(last), INSTRUCTIONS | 1 << 20 | 1 << 22);
    }

    #[test]
    fn the_hypervisors_samples_are_where_the_guest_was_left_if_that_is_wanted() {
        let left = |mode| HvPlace { mode, ip: 0x4000, ..HvPlace::default() };
        let user = HvSample { mode: PLACE_USER, ip: 0x5000, ..AT };
        let mut host = Host::sampling();
        let sampled = |host: &Host, at, left: &HvPlace| {
            host.pmu.executes(WIDTH - host.pmu.held(COUNTER));
            assert!(host.nmi_at(at, left));
            let sample = host.take().unwrap().sample[0];
            (sample.mode, sample.ip)
        };
        assert_eq!(sampled(&host, AT, &left(PLACE_USER)), (SAMPLE_HYPERVISOR, AT.ip));
        host.go_to_guests();
        for (mode, expected) in [
            (PLACE_KERNEL, (SAMPLE_FOR_KERNEL, 0x4000)),
            (PLACE_USER, (SAMPLE_FOR_USER, 0x4000)),
            (PLACE_NONE, (SAMPLE_HYPERVISOR, AT.ip)),
        ] {
            assert_eq!(sampled(&host, AT, &left(mode)), expected);
        }
        assert_eq!(sampled(&host, user, &left(PLACE_KERNEL)), (PLACE_USER, 0x5000));
        host.start();
        assert_eq!(sampled(&host, AT, &left(PLACE_USER)), (SAMPLE_HYPERVISOR, AT.ip));
    }

    #[test]
    fn each_period_gives_one_sample_however_late_the_interrupt_is() {
        let host = Host::sampling();
        let mut executed = 0;
        for late in [0, 1, 37, 5_000, PERIOD - 1] {
            let left = WIDTH - host.pmu.held(COUNTER);
            host.pmu.executes(left + late);
            executed += left + late;
            assert!(host.nmi());
            assert_eq!(host.pmu.held(COUNTER), WIDTH - (PERIOD - late), "{late} late");
            assert_eq!(host.pmu.held(ACKNOWLEDGE), 1 << 3, "only the host's own");
        }
        let (places, lost) = host.drain();
        assert_eq!((places.len() as u64, lost), (executed / PERIOD, 0));
    }

    #[test]
    fn periods_that_pass_before_the_interrupt_are_lost() {
        let host = Host::sampling();
        host.pmu.executes(3 * PERIOD + 5);
        assert!(host.nmi());
        assert_eq!(host.pmu.held(COUNTER), WIDTH - (PERIOD - 5));
        assert_eq!(host.drain(), ([AT.ip].to_vec(), 2));
    }

    #[test]
    fn a_sample_says_what_it_was_given_and_when() {
        let host = Host::sampling();
        host.pmu.executes(PERIOD);
        host.pmu.tsc.set(77);
        assert!(host.nmi());
        let out = host.take().unwrap();
        assert_eq!((out.count, out.lost), (1, 0));
        assert_eq!(out.sample[0], HvSample { tsc: 77, ..AT });
        assert_eq!(out.sample[1], HvSample::default());
        assert_eq!(host.take().unwrap().count, 0, "it is taken once");
    }

    #[test]
    fn an_interrupt_without_an_overflow_is_anothers() {
        let host = Host::sampling();
        assert!(!host.nmi());
        host.pmu.executes(PERIOD - 1);
        assert!(!host.nmi());
        host.pmu.executes(1);
        assert!(host.nmi() && !host.nmi());
    }

    #[test]
    fn one_that_comes_after_the_end_is_the_hosts_once() {
        let mut host = Host::sampling();
        host.pmu.executes(PERIOD);
        host.stop();
        assert!(host.nmi() && !host.nmi());
        let mut host = Host::sampling();
        host.stop();
        assert!(!host.nmi(), "there was no overflow");
    }

    #[test]
    fn a_full_ring_keeps_the_oldest_and_counts_the_rest() {
        let ring = ring();
        let host = Host { ring, ..Host::sampling() };
        let mut out = HvSamples::new_zeroed();
        let add = |range: core::ops::Range<u64>| {
            range.for_each(|ip| host.ring.add(&HvSample { ip, ..AT }));
        };
        let size = RECORDS as u64;
        add(0..size + 9);
        host.ring.take(&mut out);
        assert_eq!((out.count, out.lost), (SAMPLES_MAX as u32, 9));
        let taken = SAMPLES_MAX as u64;
        add(size + 9..size + 9 + taken + 1);
        let (places, lost) = host.drain();
        assert!(places.into_iter().eq((taken..size).chain(size + 9..size + 9 + taken)));
        assert_eq!(lost, 10);
    }

    #[test]
    fn what_was_taken_before_is_not_behind_what_is_taken_now() {
        let host = Host::sampling();
        let mut out = HvSamples::new_zeroed();
        for (ips, expected) in [(&[3, 4, 5][..], [3, 4, 5]), (&[6], [6, 0, 0]), (&[], [0; 3])] {
            ips.iter().for_each(|&ip| host.ring.add(&HvSample { ip, ..AT }));
            host.ring.take(&mut out);
            assert_eq!(out.count as usize, ips.len());
            let found = [0, 1, 2].map(|n| out.sample[n]);
            let sample = |ip| if ip > 0 { HvSample { ip, ..AT } } else { HvSample::default() };
            assert_eq!(found, expected.map(sample), "{ips:?} were added");
        }
    }

    #[test]
    fn there_is_one_session_at_a_time_and_it_ends() {
        let driver = Host::new(&nehalem()).driver;
        assert!(!driver.end_profile(), "there is none");
        driver.begin_profile(5).unwrap();
        assert_eq!(driver.begin_profile(6), Err(Errno::BUSY));
        assert!(driver.end_profile() && !driver.end_profile());
        driver.begin_profile(7).unwrap();
    }

    #[test]
    fn who_asks_for_nothing_for_too_long_is_sampled_for_no_more() {
        let lease = PROFILE_LEASE_MS * TICKS_PER_MS;
        let host = Host::sampling();
        for now in [lease, 2 * lease - 1] {
            host.pmu.tsc.set(now);
            assert!(host.take().is_ok(), "each call renews it");
        }
        let end = 3 * lease - 1;
        host.pmu.tsc.set(end);
        assert_eq!(host.take().unwrap_err(), Errno::NXIO);
        // The CPU stops at its next sample, a little later.
        let over = end + GRACE_MS * TICKS_PER_MS;
        for (now, selects) in [(over - 1, true), (over, false)] {
            host.pmu.tsc.set(now);
            host.pmu.executes(PERIOD);
            assert!(host.nmi());
            assert_eq!(host.pmu.held(EVNTSEL) != 0, selects, "{now}");
        }
        assert!(!host.nmi(), "the next one is another's");
        host.driver.begin_profile(over).unwrap();
    }

    #[test]
    fn only_a_cpu_that_is_sampled_has_samples() {
        let host = Host::sampling();
        let mut out = HvSamples::new_zeroed();
        assert_eq!(host.driver.take_samples(None, 1, &mut out), Err(Errno::NOENT));
        assert!(host.driver.end_profile());
        assert_eq!(host.take().unwrap_err(), Errno::NXIO);
    }

    #[test]
    fn who_asks_only_for_a_cpu_that_is_not_sampled_is_sampled_for_no_more() {
        let lease = PROFILE_LEASE_MS * TICKS_PER_MS;
        let host = Host::sampling();
        let mut out = HvSamples::new_zeroed();
        for (now, expected) in [(lease, Errno::NOENT), (lease + 1, Errno::NXIO)] {
            let taken = host.driver.take_samples(None, now, &mut out);
            assert_eq!(taken, Err(expected), "at {now}, with a lease from 1 to {}", lease + 1);
        }
    }
}
