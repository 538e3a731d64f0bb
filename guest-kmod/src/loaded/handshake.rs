// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Whether the hypervisor has a driver that this module can work with, and what the PMU has.

use shared_abi::hypercall::{FEATURE_ENABLED, HvQuery};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{Errno, PmuCaps};

use crate::hal::Hypervisor;
use crate::hypercall;

/// Asks the hypervisor.
///
/// # Errors
///
/// `NOSYS` no driver, `NODEV` driver off, `PROTO` another ABI major or a malformed answer, `PERM`
/// the host has not enabled this domain.
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

/// Asks again after the domain was restored, perhaps on another host.
///
/// # Errors
///
/// As [`handshake`]; `STALE` the counters are not those of `before`.
pub fn handshake_again(kernel: &impl Hypervisor, before: &HvQuery) -> Result<(), Errno> {
    let now = handshake(kernel)?;
    if caps(&now) == caps(before) { Ok(()) } else { Err(Errno::STALE) }
}

/// The capabilities in a hypervisor's answer; `None` if they are impossible.
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
        let again = || handshake_again(&machine.kernel(0), &before);
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
