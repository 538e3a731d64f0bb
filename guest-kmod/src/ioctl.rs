// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Validates the arguments of user programs.

use shared_abi::config::MODE_SAMPLING;
use shared_abi::ioctl::{
    CONTROL_CLOEXEC, CONTROL_KEEP_PERIOD, CONTROL_KEEP_TSC, CONTROL_RING, CONTROL_TSC, Control,
    Create, MODULE_FEATURES,
};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::version::ABI_MAJOR;
use shared_abi::{Config, CounterConfig, Errno, PhysSlot, PmuCaps};

use crate::overflow::Overflows;

/// The highest signal number of Linux.
const SIGNAL_MAX: u32 = 64;

/// Checks the argument of `IOC_CREATE` and `IOC_OPEN`.
///
/// # Errors
///
/// `PROTO` if the ABI's major differs; `INVAL` if a reserved field is not 0; `OPNOTSUPP` if the
/// module lacks a feature.
pub fn check_create(create: &Create) -> Result<(), Errno> {
    if create.abi_major != u32::from(ABI_MAJOR) {
        Err(Errno::PROTO)
    } else if create.reserved != [0; 2] {
        Err(Errno::INVAL)
    } else if create.features & !MODULE_FEATURES != 0 {
        Err(Errno::OPNOTSUPP)
    } else {
        Ok(())
    }
}

/// Checks the argument of `IOC_CONTROL` without doing anything.
///
/// # Errors
///
/// See the table in [`shared_abi::ioctl`].
pub fn check_control(caps: &PmuCaps, control: &Control) -> Result<(), Errno> {
    Request::new(caps, control).map(drop)
}

/// Physical counters in a thread's own order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    slots: [PhysSlot; MAX_COUNTERS],
    /// Their counters' indices, which no switch has to compute.
    indices: [u32; MAX_COUNTERS],
    used: usize,
}

impl Order {
    pub(crate) const EMPTY: Self =
        Self { slots: [PhysSlot::FIRST; MAX_COUNTERS], indices: [0; MAX_COUNTERS], used: 0 };

    #[inline(always)]
    pub(crate) fn slots(&self) -> &[PhysSlot] {
        self.slots.get(..self.used).unwrap_or(&self.slots)
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Returns the `N` slots in use, and their counters' indices.
    #[inline(always)]
    pub(crate) fn used<const N: usize>(&self) -> Option<(&[PhysSlot; N], &[u32; N])> {
        self.slots.first_chunk().zip(self.indices.first_chunk())
    }

    fn push(&mut self, slot: PhysSlot) {
        if let (Some(place), Some(index)) =
            (self.slots.get_mut(self.used), self.indices.get_mut(self.used))
        {
            (*place, *index) = (slot, slot.counter_index());
            self.used += 1;
        }
    }
}

/// A valid `IOC_CONTROL`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) config: Config,
    pub(crate) order: Order,
    pub(crate) tsc: bool,
    pub(crate) keep_tsc: bool,
    pub(crate) keep_period: bool,
    pub(crate) preserve: u32,
    pub(crate) overflows: Overflows,
}

impl Request {
    pub(crate) fn new(caps: &PmuCaps, control: &Control) -> Result<Self, Errno> {
        let counters = control.counter.get(..control.counters as usize).ok_or(Errno::INVAL)?;
        const FLAGS: u32 =
            CONTROL_TSC | CONTROL_CLOEXEC | CONTROL_KEEP_TSC | CONTROL_KEEP_PERIOD | CONTROL_RING;
        if control.flags & !FLAGS != 0
            || control.preserve >> control.counters != 0
            || control.reserved != [0; 2]
        {
            return Err(Errno::INVAL);
        }
        let config = Config::new(caps, counters).map_err(|error| error.errno())?;
        if config.precise() != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        check_sampling(control, counters)?;
        let mut order = Order::EMPTY;
        for counter in counters {
            order.push(PhysSlot::new(counter.slot).ok_or(Errno::INVAL)?);
        }
        let tsc = control.flags & CONTROL_TSC != 0;
        let keep_tsc = control.flags & CONTROL_KEEP_TSC != 0;
        let keep_period = control.flags & CONTROL_KEEP_PERIOD != 0;
        let overflows = Overflows::new(control);
        let preserve = control.preserve;
        Ok(Self { config, order, tsc, keep_tsc, keep_period, preserve, overflows })
    }

    /// Returns whether anything is to be counted.
    pub(crate) fn counts(&self) -> bool {
        self.tsc || self.config.slots() != 0
    }
}

/// Checks that a signal or ring is given exactly when a counter samples. No period is too short:
/// overflows are merged if the thread would otherwise make no progress, or if they exceed the
/// hypervisor's rate.
fn check_sampling(control: &Control, counters: &[CounterConfig]) -> Result<(), Errno> {
    let samples = counters.iter().any(|counter| counter.mode == MODE_SAMPLING);
    let ring = control.flags & CONTROL_RING != 0;
    let signals = if samples && !ring { 1..=SIGNAL_MAX } else { 0..=0 };
    if signals.contains(&control.signal) && (samples || !ring) { Ok(()) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{INSTRUCTIONS, Machine, control, counter};
    use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_USR};

    #[test]
    fn only_this_major() {
        let create = Create { abi_major: u32::from(ABI_MAJOR), ..Create::default() };
        assert_eq!(check_create(&create), Ok(()));
        assert_eq!(check_create(&Create { tid: 8, ..create }), Ok(()));
        assert_eq!(check_create(&Create { reserved: [0, 1], ..create }), Err(Errno::INVAL));
        let newer = Create { features: 1 << 31, ..create };
        assert_eq!(check_create(&newer), Err(Errno::OPNOTSUPP));
        assert_eq!(check_create(&Create { abi_major: 1, ..create }), Err(Errno::PROTO));
    }

    #[test]
    fn counters_are_read_by_the_hardwares_number_and_not_by_their_slots() {
        let fixed = PhysSlot::fixed(1).unwrap();
        let user = EVNTSEL_USR | EVNTSEL_EN;
        let control = control(&[counter(fixed.index() as u32, user), counter(2, INSTRUCTIONS)]);
        let request = Request::new(&Machine::caps(), &control).unwrap();
        let (slots, indices) = request.order.used::<2>().unwrap();
        assert_eq!(slots.map(PhysSlot::index), [fixed.index(), 2]);
        assert_eq!(indices, &[1 << 30 | 1, 2]);
    }

    #[test]
    fn a_control_is_judged_before_it_is_carried_out() {
        let caps = Machine::caps();
        let good = control(&[counter(0, INSTRUCTIONS)]);
        assert_eq!(check_control(&caps, &good), Ok(()));
        let reserved = Control { reserved: [0, 1], ..good };
        assert_eq!(check_control(&caps, &reserved), Err(Errno::INVAL));
        let ring = Control { flags: CONTROL_RING, ..good };
        assert_eq!(check_control(&caps, &ring), Err(Errno::INVAL), "nothing samples");
        let mut samples = good;
        samples.counter[0] = CounterConfig { mode: MODE_SAMPLING, period: 9, ..samples.counter[0] };
        for (flags, signal, answer) in [
            (0, 0, Err(Errno::INVAL)),
            (0, 1, Ok(())),
            (CONTROL_RING, 0, Ok(())),
            (CONTROL_RING, 1, Err(Errno::INVAL)),
        ] {
            assert_eq!(check_control(&caps, &Control { flags, signal, ..samples }), answer);
        }
        let privileged = control(&[counter(0, INSTRUCTIONS | 1 << 20)]);
        assert_eq!(check_control(&caps, &privileged), Err(Errno::PERM));
    }
}
