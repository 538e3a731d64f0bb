// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Converts configurations between perfctr's arrays and the device's structures.
//!
//! The kernel checks event selects and counters. Only what the device's structures express
//! differently is decided here: the interrupt bit and `ireset` become a counter's mode and period.

use shared_abi::arch::EVNTSEL_INT;
use shared_abi::caps::VENDOR_AMD;
use shared_abi::config::{MODE_COUNTING, MODE_SAMPLING};
use shared_abi::ioctl::{
    self, CONTROL_KEEP_PERIOD, CONTROL_KEEP_TSC, CONTROL_TSC, Control, FEATURE_KEEP_PERIOD,
};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::{CounterConfig, Errno, PhysSlot};
use zerocopy::FromZeros;

use crate::abi::{self, CpuControl, VperfctrControl};

/// The bits of AMD's `evntsel_high` that are the event's bits 11:8.
const HIGH_EVENT: u32 = 0xf;
/// The bits of AMD's `evntsel_high` that choose host or guest; here it is always the guest.
const HIGH_GUEST_HOST: u32 = 0x300;
/// The bits of an OFFCORE_RSP register that exist (SDM volume 3, 20.3.1.1.3).
const OFFCORE_RSP_BITS: u32 = 0xf7ff;

/// Converts perfctr's configuration to the device's.
///
/// # Errors
///
/// `INVAL`.
pub(crate) fn to_device(
    vendor: u32,
    from: &CpuControl,
    preserve: u32,
    flags: u32,
) -> Result<Control, Errno> {
    let total = from.nractrs.checked_add(from.nrictrs).ok_or(Errno::INVAL)? as usize;
    let mut control = Control { counters: total as u32, ..Control::default() };
    let places = control.counter.get_mut(..total).ok_or(Errno::INVAL)?;
    for (n, place) in places.iter_mut().enumerate() {
        *place = counter(vendor, from, n)?;
    }
    if vendor != VENDOR_AMD && from.offcore_rsp.iter().any(|bits| bits & !OFFCORE_RSP_BITS != 0) {
        return Err(Errno::INVAL);
    }
    if from.tsc_on != 0 {
        // The sum of the time-stamp counter grows as long as it is on, through stops and new
        // starts.
        control.flags |= CONTROL_TSC | CONTROL_KEEP_TSC;
    }
    if flags & abi::CONTROL_CLOEXEC != 0 {
        control.flags |= ioctl::CONTROL_CLOEXEC;
    }
    control.preserve = preserve & ((1 << total) - 1);
    Ok(control)
}

fn counter(vendor: u32, from: &CpuControl, n: usize) -> Result<CounterConfig, Errno> {
    let is_sampling = n >= from.nractrs as usize;
    let slot = PhysSlot::from_counter_index(from.pmc_map[n]).ok_or(Errno::INVAL)?;
    let mut evntsel = u64::from(from.evntsel[n]);
    let high = from.evntsel_high[n];
    if vendor == VENDOR_AMD {
        if high & !(HIGH_EVENT | HIGH_GUEST_HOST) != 0 {
            return Err(Errno::INVAL);
        }
        evntsel |= u64::from(high & HIGH_EVENT) << 32;
    }
    if is_sampling != (evntsel & EVNTSEL_INT != 0) || is_sampling && from.ireset[n] >= 0 {
        return Err(Errno::INVAL);
    }
    Ok(CounterConfig {
        slot: slot.index() as u32,
        mode: if is_sampling { MODE_SAMPLING } else { MODE_COUNTING },
        evntsel: evntsel & !EVNTSEL_INT,
        period: if is_sampling { u64::from(from.ireset[n].unsigned_abs()) } else { 0 },
        ..CounterConfig::default()
    })
}

/// Does [`to_device`] for a thread's control.
///
/// # Errors
///
/// `INVAL`.
pub(crate) fn of_thread(info: &ioctl::Info, from: &VperfctrControl) -> Result<Control, Errno> {
    let mut control = to_device(info.caps.vendor, &from.cpu_control, from.preserve, from.flags)?;
    if from.cpu_control.nrictrs != 0 {
        control.signal = u32::try_from(from.si_signo).map_err(|_| Errno::INVAL)?;
        if info.features & FEATURE_KEEP_PERIOD != 0 {
            // Profilers stop and start the same control around each fork. If that began a whole new
            // period each time, programs that fork often would have no sample.
            control.flags |= CONTROL_KEEP_PERIOD;
        }
    }
    Ok(control)
}

/// Converts the device's configuration to perfctr's.
pub(crate) fn from_device(control: &Control) -> CpuControl {
    let mut cpu = CpuControl::new_zeroed();
    cpu.tsc_on = u32::from(control.flags & CONTROL_TSC != 0);
    let used = (control.counters as usize).min(MAX_COUNTERS);
    for (n, counter) in control.counter[..used].iter().enumerate() {
        cpu.pmc_map[n] = PhysSlot::new(counter.slot).map_or(0, PhysSlot::counter_index);
        cpu.evntsel[n] = counter.evntsel as u32;
        cpu.evntsel_high[n] = (counter.evntsel >> 32) as u32;
        if counter.mode == MODE_SAMPLING {
            cpu.nrictrs += 1;
            cpu.evntsel[n] |= EVNTSEL_INT as u32;
            cpu.ireset[n] = -i32::try_from(counter.period).unwrap_or(i32::MAX);
        } else {
            cpu.nractrs += 1;
        }
    }
    cpu
}

/// Does [`from_device`] for a thread's control.
pub(crate) fn thread_from_device(control: &Control) -> VperfctrControl {
    let mut thread = VperfctrControl::new_zeroed();
    thread.cpu_control = from_device(control);
    thread.si_signo = control.signal as i32;
    if control.flags & ioctl::CONTROL_CLOEXEC != 0 {
        thread.flags = abi::CONTROL_CLOEXEC;
    }
    thread
}

#[cfg(test)]
mod tests {
    use shared_abi::caps::VENDOR_INTEL;

    use super::*;

    const INSTRUCTIONS: u32 = 0x0041_00c0;

    fn info(vendor: u32) -> ioctl::Info {
        let mut info = ioctl::Info { features: FEATURE_KEEP_PERIOD, ..ioctl::Info::default() };
        info.caps.vendor = vendor;
        info
    }

    fn one_of_each() -> VperfctrControl {
        let mut control = VperfctrControl::new_zeroed();
        let cpu = &mut control.cpu_control;
        (cpu.tsc_on, cpu.nractrs, cpu.nrictrs) = (1, 1, 1);
        (cpu.pmc_map[0], cpu.pmc_map[1]) = (1, 0);
        (cpu.evntsel[0], cpu.evntsel[1]) = (INSTRUCTIONS, INSTRUCTIONS | 0x10_0000);
        cpu.ireset[1] = -999_999;
        control.si_signo = 27;
        control.flags = abi::CONTROL_CLOEXEC;
        control
    }

    #[test]
    fn a_control_comes_back_as_it_was() {
        let control = one_of_each();
        let device = of_thread(&info(VENDOR_INTEL), &control).unwrap();
        assert_eq!((device.counters, device.signal, device.preserve), (2, 27, 0));
        assert_eq!((device.counter[1].mode, device.counter[1].period), (MODE_SAMPLING, 999_999));
        let back = thread_from_device(&device);
        assert_eq!(back.cpu_control.pmc_map, control.cpu_control.pmc_map);
        assert_eq!(back.cpu_control.evntsel, control.cpu_control.evntsel);
        assert_eq!(back.cpu_control.ireset, control.cpu_control.ireset);
        assert_eq!((back.si_signo, back.flags), (27, abi::CONTROL_CLOEXEC));
        assert_eq!((back.cpu_control.nractrs, back.cpu_control.nrictrs), (1, 1));
    }

    #[test]
    fn time_comes_back_as_it_was_asked_for() {
        for tsc_on in [0, 1] {
            let mut control = one_of_each();
            control.cpu_control.tsc_on = tsc_on;
            let device = of_thread(&info(VENDOR_INTEL), &control).unwrap();
            assert_eq!(thread_from_device(&device).cpu_control.tsc_on, tsc_on);
        }
    }

    #[test]
    fn fixed_counters_come_back_by_the_index_that_reads_them() {
        let mut control = one_of_each();
        control.cpu_control.pmc_map[..2].copy_from_slice(&[0x4000_0002, 0x4000_0000]);
        let device = of_thread(&info(VENDOR_INTEL), &control).unwrap();
        assert_ne!(device.counter[0].slot, device.counter[1].slot);
        let back = thread_from_device(&device).cpu_control.pmc_map;
        assert_eq!(back[..3], [0x4000_0002, 0x4000_0000, 0]);
    }

    #[test]
    fn without_a_sampling_counter_a_signal_does_not_matter() {
        for si_signo in [27, -1] {
            let mut control = one_of_each();
            (control.cpu_control.nractrs, control.cpu_control.nrictrs) = (1, 0);
            control.si_signo = si_signo;
            let device = of_thread(&info(VENDOR_INTEL), &control).unwrap();
            let signal = device.signal;
            assert_eq!(signal, 0, "the module refuses {signal} without samplers, from {si_signo}");
            let flags = device.flags & CONTROL_KEEP_PERIOD;
            assert_eq!(flags, 0, "there is no period to keep");
            assert_eq!((device.counters, device.counter[0].mode), (1, MODE_COUNTING));
        }
    }

    #[test]
    fn bad_controls_are_refused() {
        let refused = |change: fn(&mut VperfctrControl)| {
            let mut control = one_of_each();
            change(&mut control);
            assert_eq!(of_thread(&info(VENDOR_INTEL), &control).unwrap_err(), Errno::INVAL);
        };
        refused(|control| control.cpu_control.nractrs = 18);
        refused(|control| control.cpu_control.nractrs = u32::MAX);
        refused(|control| control.cpu_control.pmc_map[0] = 99);
        refused(|control| control.cpu_control.evntsel[0] |= 0x10_0000);
        refused(|control| control.cpu_control.evntsel[1] &= !0x10_0000);
        refused(|control| control.cpu_control.ireset[1] = 0);
        refused(|control| control.cpu_control.offcore_rsp[0] = 0x800);
        refused(|control| control.si_signo = -1);
    }

    #[test]
    fn reserved_words_and_unused_bits_are_ignored() {
        let mut control = one_of_each();
        control.reserved = [!0; 3];
        control.cpu_control.reserved = [!0; 4];
        control.cpu_control.evntsel_high = [!0; MAX_COUNTERS];
        control.preserve = !0;
        control.flags = !0;
        let device = of_thread(&info(VENDOR_INTEL), &control).unwrap();
        assert_eq!(device.preserve, 0b11);
        let keeps = CONTROL_KEEP_TSC | CONTROL_KEEP_PERIOD;
        assert_eq!(device.flags, CONTROL_TSC | keeps | ioctl::CONTROL_CLOEXEC);
        let older = ioctl::Info { features: 0, ..info(VENDOR_INTEL) };
        let device = of_thread(&older, &control).unwrap();
        assert_eq!(device.flags & CONTROL_KEEP_PERIOD, 0);
        let device = of_thread(&info(VENDOR_INTEL), &control).unwrap();
        assert_eq!(device.counter[0].evntsel, u64::from(INSTRUCTIONS));
    }

    #[test]
    fn amd_has_event_bits_in_the_high_word() {
        let mut control = one_of_each();
        control.cpu_control.evntsel_high[0] = 0x304;
        let device = of_thread(&info(VENDOR_AMD), &control).unwrap();
        assert_eq!(device.counter[0].evntsel >> 32, 4);
        control.cpu_control.evntsel_high[..2].copy_from_slice(&[0x304, 0x103]);
        let device = of_thread(&info(VENDOR_AMD), &control).unwrap();
        let back = thread_from_device(&device).cpu_control;
        assert_eq!(back.evntsel_high[..3], [4, 3, 0]);
        assert_eq!(back.evntsel, control.cpu_control.evntsel);
        control.cpu_control.evntsel_high[0] = 0x10;
        assert_eq!(of_thread(&info(VENDOR_AMD), &control).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn amd_has_no_offcore_responses_and_what_is_there_means_nothing() {
        let mut control = one_of_each();
        control.cpu_control.offcore_rsp = [0x800, !0];
        assert!(of_thread(&info(VENDOR_AMD), &control).is_ok());
        control.cpu_control.offcore_rsp = [OFFCORE_RSP_BITS, 0x800];
        assert_eq!(of_thread(&info(VENDOR_INTEL), &control).unwrap_err(), Errno::INVAL);
        control.cpu_control.offcore_rsp = [OFFCORE_RSP_BITS, 1];
        assert!(of_thread(&info(VENDOR_INTEL), &control).is_ok());
    }
}
