// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds out whether the hypervisor has a driver that this module can work with, and the PMU's
//! capabilities.

use core::ffi::CStr;

use shared_abi::hypercall::{FEATURE_ENABLED, FEATURE_INTERRUPTS, HvQuery};
use shared_abi::limits::MAX_VCPUS;
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{Errno, PmuCaps};

use crate::hal::Hypervisor;
use crate::hypercall;

/// Asks the hypervisor.
///
/// # Errors
///
/// `NOSYS` if there is no driver; `NODEV` if it is off; `PROTO` if its ABI has another major, or if
/// its answer is malformed; `PERM` if the host does not allow this domain to count.
pub fn handshake(kernel: &impl Hypervisor) -> Result<HvQuery, Errno> {
    let mut answer = HvQuery {
        abi_major: u32::from(ABI_MAJOR),
        abi_minor: u32::from(ABI_MINOR),
        ..HvQuery::default()
    };
    hypercall::query(kernel, &mut answer)?;
    if answer.abi_major != u32::from(ABI_MAJOR) || caps(&answer).is_none() {
        return Err(Errno::PROTO);
    }
    if answer.features & FEATURE_ENABLED == 0 {
        return Err(Errno::PERM);
    }
    Ok(answer)
}

/// Returns whether the hypervisor has a driver at all.
pub fn has_driver(kernel: &impl Hypervisor) -> bool {
    handshake(kernel).err() != Some(Errno::NOSYS)
}

/// The reason for which the module is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsuitable {
    /// The error with which loading the module fails.
    pub errno: Errno,
    /// What was found, in the words that the kernel's log has after the hypervisor's name.
    pub found: &'static CStr,
}

/// Asks the hypervisor by [`handshake`] when the module is loaded, and checks that a mapping
/// has room for the pages of this many possible CPUs.
///
/// # Errors
///
/// The errors of [`handshake`]; `TOOBIG` if there are more than [`MAX_VCPUS`].
pub fn first_handshake(hypervisor: &impl Hypervisor, cpus: u32) -> Result<HvQuery, Unsuitable> {
    let answer = handshake(hypervisor)
        .map_err(|errno| Unsuitable { errno, found: meaning_of_refusal(errno) })?;
    if cpus as usize > MAX_VCPUS {
        return Err(Unsuitable { errno: Errno::TOOBIG, found: c"with too many vCPUs" });
    }
    Ok(answer)
}

fn meaning_of_refusal(errno: Errno) -> &'static CStr {
    match errno {
        Errno::NOSYS => c"without perfctr",
        Errno::NODEV => c"with perfctr off; its log says why",
        Errno::PROTO => c"whose perfctr has another ABI",
        Errno::PERM => c"that does not let this domain count",
        _ => c"that does not support this kind of domain",
    }
}

/// Asks again after the domain was restored, perhaps on another host. Returns the answer.
///
/// # Errors
///
/// Those of [`handshake`]; `STALE` if the counters are not those of `before`.
pub fn handshake_again(kernel: &impl Hypervisor, before: &HvQuery) -> Result<HvQuery, Errno> {
    let now = handshake(kernel)?;
    if caps(&now) == caps(before) { Ok(now) } else { Err(Errno::STALE) }
}

/// Returns whether the module has to subtract interrupts and exceptions from its counts, because
/// the CPUs of this hypervisor count them as instructions.
pub const fn subtracts_interrupts(answer: &HvQuery) -> bool {
    answer.features & FEATURE_INTERRUPTS != 0
}

/// Returns the capabilities in a hypervisor's answer, or `None` if they are impossible.
pub fn caps(answer: &HvQuery) -> Option<PmuCaps> {
    PmuCaps::from_wire(&answer.caps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    fn answer_of(machine: &Machine) -> Result<HvQuery, Errno> {
        handshake(&machine.kernel(0))
    }

    #[test]
    fn a_matching_hypervisor_is_accepted() {
        let machine = Machine::new();
        assert_eq!(caps(&answer_of(&machine).unwrap()), Some(Machine::caps()));
    }

    #[test]
    fn a_restored_domain_finds_the_same_counters_or_an_error() {
        let machine = Machine::new();
        let before = answer_of(&machine).unwrap();
        let again = || handshake_again(&machine.kernel(0), &before).map(drop);
        assert_eq!(again(), Ok(()));
        machine.answer.borrow_mut().abi_minor += 1;
        assert_eq!(again(), Ok(()), "a minor only adds");
        machine.answer.borrow_mut().caps.general += 1;
        assert_eq!(again(), Err(Errno::STALE));
        machine.refuse(Some(Errno::NODEV));
        assert_eq!(again(), Err(Errno::NODEV));
    }

    #[test]
    fn refusals_come_through() {
        let machine = Machine::new();
        for errno in [Errno::NOSYS, Errno::NODEV, Errno::PROTO] {
            machine.refuse(Some(errno));
            assert_eq!(answer_of(&machine).unwrap_err(), errno);
            assert_eq!(has_driver(&machine.kernel(0)), errno != Errno::NOSYS);
        }
    }

    #[test]
    fn the_module_is_loaded_where_it_can_work_and_says_why_not() {
        let machine = Machine::new();
        let asked = |cpus| first_handshake(&machine.kernel(0), cpus);
        let errno = |cpus| asked(cpus).unwrap_err().errno;
        let (most, too_many) = (MAX_VCPUS as u32, MAX_VCPUS as u32 + 1);
        assert_eq!(asked(most).unwrap().caps, machine.answer.borrow().caps);
        assert_eq!(errno(too_many), Errno::TOOBIG);
        for (refusal, found) in [
            (Errno::NOSYS, c"without perfctr"),
            (Errno::NODEV, c"with perfctr off; its log says why"),
            (Errno::PROTO, c"whose perfctr has another ABI"),
            (Errno::PERM, c"that does not let this domain count"),
            (Errno::INVAL, c"that does not support this kind of domain"),
        ] {
            machine.refuse(Some(refusal));
            assert_eq!(asked(most).unwrap_err(), Unsuitable { errno: refusal, found });
            assert_eq!(errno(too_many), refusal, "the hypervisor is asked first");
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        let machine = Machine::new();
        machine.answer.borrow_mut().features = 0;
        assert_eq!(answer_of(&machine).unwrap_err(), Errno::PERM);
        machine.answer.borrow_mut().caps.general_width = 65;
        assert_eq!(answer_of(&machine).unwrap_err(), Errno::PROTO);
        machine.answer.borrow_mut().caps.general_width = 48;
        machine.answer.borrow_mut().abi_major += 1;
        assert_eq!(answer_of(&machine).unwrap_err(), Errno::PROTO);
    }
}
