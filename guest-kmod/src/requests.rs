// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides about a request of the device before the module carries out any part of it.
//!
//! [`admit`] decides by the table in [`shared_abi::requests`], which also says how much to copy
//! from the caller. [`judge`] checks the copied argument. C copies the argument, carries the
//! request out, and copies the answer back.
//!
//! Two questions are not decided here, because only a lock of the kernel can decide them: whether
//! another thread is a tracee of the caller and stays asleep (`glue/hold.c`), and which of two
//! callers who bind the same descriptor, or the same thread, is the first (`glue/thread.c`).

use shared_abi::hypercall::HvQuery;
use shared_abi::ioctl::{Control, CpuState, Create, Info, MODULE_FEATURES};
use shared_abi::requests::{Access, Argument, Binding, Request, Requester};
use shared_abi::ring::RingRequest;
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use shared_abi::{Errno, PmuCaps};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::cpu_wide::{check_cpu_control, check_cpu_read};
use crate::ioctl::check_create;
use crate::policy::{Rights, may_count, may_count_cpus};
use crate::ring::check_ring;

/// The descriptor through which a request came, and the owner of its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Whether the descriptor is open for writing.
    pub is_writable: bool,
    /// Whether the descriptor is bound to a thread's counters.
    pub is_bound: bool,
    /// Whether these are linked to a thread.
    pub is_linked: bool,
    /// Whether that thread is the caller.
    pub is_own: bool,
}

/// Returns the row of a request, if this caller may make it through this descriptor.
///
/// # Errors
///
/// `NOTTY` if there is no such request; `BADF` if the descriptor is not open for writing; `EXIST`
/// if it has counters, or `INVAL` if it has no counters; `PERM`, `SRCH` or `ACCES` if this caller
/// may not make the request.
pub fn admit(
    number: u32,
    descriptor: Descriptor,
    rights: &impl Rights,
) -> Result<&'static Request, Errno> {
    let request = Request::find(number).ok_or(Errno::NOTTY)?;
    if request.access == Access::Writes && !descriptor.is_writable {
        return Err(Errno::BADF);
    }
    match (request.binding, descriptor.is_bound) {
        (Binding::Unbound, true) => return Err(Errno::EXIST),
        (Binding::Bound, false) => return Err(Errno::INVAL),
        _ => {}
    }
    match request.requester {
        Requester::Supervisor => may_count_cpus(rights)?,
        Requester::Thread if !descriptor.is_linked => return Err(Errno::SRCH),
        Requester::Thread if !descriptor.is_own => return Err(Errno::PERM),
        Requester::Thread | Requester::Operator | Requester::Holder => {}
    }
    Ok(request)
}

/// Returns the answer to `IOC_INFO` on a machine whose hypervisor has answered `query`.
pub const fn info(query: &HvQuery, vcpus: u32, cpu_signature: u32, tsc_khz: u32) -> Info {
    Info {
        abi_major: ABI_MAJOR as u32,
        abi_minor: ABI_MINOR as u32,
        features: MODULE_FEATURES,
        reserved: 0,
        caps: query.caps,
        vcpus,
        cpu_signature,
        tsc_khz,
        reserved_tail: [0; 9],
    }
}

/// The facts of the machine by which an argument is judged.
#[derive(Clone, Copy, Debug)]
pub struct GuestFacts {
    /// The module's parameter of that name.
    pub paranoid: i32,
    /// The number of possible CPUs.
    pub cpus: u32,
    /// What the PMU can do.
    pub caps: PmuCaps,
}

/// Judges the argument of a request that was admitted, after all of it was copied.
///
/// # Errors
///
/// See the table in [`shared_abi::ioctl`]; `NOTTY` if there is no such request.
pub fn judge(
    number: u32,
    argument: &[u8],
    machine: &GuestFacts,
    rights: &impl Rights,
) -> Result<(), Errno> {
    match Request::find(number).ok_or(Errno::NOTTY)?.argument {
        Argument::None | Argument::ForObject => Ok(()),
        Argument::Create => check_create(parse::<Create>(argument)?),
        Argument::Control => may_count(machine.paranoid, rights, parse::<Control>(argument)?),
        Argument::Ring => check_ring(parse::<RingRequest>(argument)?),
        Argument::CpuControl => {
            let state = parse::<CpuState>(argument)?;
            check_cpu(machine, state)?;
            check_cpu_control(&machine.caps, state).map(drop)
        }
        Argument::CpuRead => {
            let state = parse::<CpuState>(argument)?;
            check_cpu(machine, state)?;
            check_cpu_read(state)
        }
    }
}

fn check_cpu(machine: &GuestFacts, state: &CpuState) -> Result<(), Errno> {
    if state.cpu < machine.cpus { Ok(()) } else { Err(Errno::INVAL) }
}

fn parse<T: FromBytes + KnownLayout + Immutable>(argument: &[u8]) -> Result<&T, Errno> {
    T::ref_from_bytes(argument).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use shared_abi::WireCaps;
    use shared_abi::arch::EVNTSEL_OS;
    use shared_abi::ioctl::*;
    use shared_abi::requests::REQUESTS;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::testing::{INSTRUCTIONS, Machine, Person, control, counter};

    /// Returns every possible descriptor: counters that are linked or one's own are bound.
    fn descriptors() -> Vec<Descriptor> {
        let bit = |bits: u32, n: u32| bits >> n & 1 == 1;
        let all = (0..16).map(|bits| Descriptor {
            is_writable: bit(bits, 0),
            is_bound: bit(bits, 1),
            is_linked: bit(bits, 2),
            is_own: bit(bits, 3),
        });
        all.filter(|d| d.is_bound >= d.is_linked && d.is_linked >= d.is_own).collect()
    }

    /// A descriptor through which every request for a bound one is admitted.
    const OWN: Descriptor =
        Descriptor { is_writable: true, is_bound: true, is_linked: true, is_own: true };

    /// Returns what the interface's description says of a request, independently of the table.
    fn expected(number: u32, descriptor: Descriptor, person: &Person) -> Result<(), Errno> {
        let changes = [
            IOC_CREATE,
            IOC_CONTROL,
            IOC_UNLINK,
            IOC_RESUME,
            IOC_RING,
            IOC_RING_TAKE,
            IOC_CPU_CONTROL,
            IOC_CPU_START,
            IOC_CPU_STOP,
        ];
        let of_cpus = [IOC_CPU_CONTROL, IOC_CPU_START, IOC_CPU_STOP, IOC_CPU_READ];
        let binds = [IOC_CREATE, IOC_OPEN];
        if changes.contains(&number) && !descriptor.is_writable {
            Err(Errno::BADF)
        } else if of_cpus.contains(&number) {
            match (person.perfmon, person.locked_down) {
                (false, _) => Err(Errno::PERM),
                (true, true) => Err(Errno::ACCES),
                (true, false) => Ok(()),
            }
        } else if binds.contains(&number) {
            if descriptor.is_bound { Err(Errno::EXIST) } else { Ok(()) }
        } else if number == IOC_INFO {
            Ok(())
        } else if !descriptor.is_bound {
            Err(Errno::INVAL)
        } else if number == IOC_RING && !descriptor.is_linked {
            Err(Errno::SRCH)
        } else if number == IOC_RING && !descriptor.is_own {
            Err(Errno::PERM)
        } else {
            Ok(())
        }
    }

    #[test]
    fn every_request_is_admitted_as_the_interface_says() {
        let mut answers = vec![];
        for request in &REQUESTS {
            for descriptor in descriptors() {
                for (perfmon, locked_down) in [(false, false), (true, false), (true, true)] {
                    let person = Person { locked_down, ..Person::new(perfmon) };
                    let answer = admit(request.number, descriptor, &person).map(drop);
                    let truth = expected(request.number, descriptor, &person);
                    assert_eq!(answer, truth, "{:#x} {descriptor:?}", request.number);
                    answers.push(answer);
                }
            }
        }
        for errno in [Errno::BADF, Errno::EXIST, Errno::INVAL, Errno::SRCH, Errno::PERM] {
            assert!(answers.contains(&Err(errno)), "{errno:?} was never the answer");
        }
        assert_eq!(answers.len(), 15 * 8 * 3);
    }

    #[test]
    fn what_is_not_in_the_table_is_refused_through_any_descriptor() {
        let known: Vec<u32> = REQUESTS.iter().map(|request| request.number).collect();
        let person = Person::new(true);
        let mut refused = 0;
        for low in 0..1 << 16 {
            for high in [0, 0x0008, 0x4000, 0x4008, 0x4020, 0x8098, 0xc300, 0xffff] {
                let number = high << 16 | low;
                if !known.contains(&number) {
                    assert_eq!(admit(number, OWN, &person), Err(Errno::NOTTY), "{number:#x}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 500_000 && person.questions() == 0);
        let reader = Descriptor { is_writable: false, ..OWN };
        assert_eq!(admit(0x5401, reader, &person), Err(Errno::NOTTY), "not a request at all");
    }

    #[test]
    fn only_requests_about_cpus_ask_for_rights() {
        for request in &REQUESTS {
            let person = Person::new(false);
            for descriptor in descriptors() {
                let _ = admit(request.number, descriptor, &person);
            }
            let asks = request.requester == Requester::Supervisor;
            assert_eq!(person.questions() > 0, asks, "{:#x}", request.number);
        }
    }

    fn machine() -> GuestFacts {
        GuestFacts { paranoid: 2, cpus: 4, caps: Machine::caps() }
    }

    fn judged<T: IntoBytes + Immutable>(number: u32, argument: &T) -> Result<(), Errno> {
        judge(number, argument.as_bytes(), &machine(), &Person::new(false))
    }

    #[test]
    fn arguments_are_judged_by_their_request() {
        let create = Create { abi_major: u32::from(ABI_MAJOR), ..Create::default() };
        let kernel = control(&[counter(0, INSTRUCTIONS | EVNTSEL_OS)]);
        let ring = RingRequest { pages: 1, watermark: 1, ..RingRequest::default() };
        let user = control(&[counter(0, INSTRUCTIONS)]);
        let cpu = CpuState { cpu: 3, control: user, ..CpuState::default() };
        for number in [IOC_CREATE, IOC_OPEN] {
            assert_eq!(judged(number, &create), Ok(()));
            assert_eq!(judged(number, &Create { abi_major: 9, ..create }), Err(Errno::PROTO));
        }
        assert_eq!(judged(IOC_CONTROL, &user), Ok(()));
        assert_eq!(judged(IOC_CONTROL, &kernel), Err(Errno::ACCES));
        assert_eq!(judged(IOC_RING, &ring), Ok(()));
        assert_eq!(judged(IOC_RING, &RingRequest { pages: 3, ..ring }), Err(Errno::INVAL));
        for number in [IOC_CPU_CONTROL, IOC_CPU_READ] {
            assert_eq!(judged(number, &cpu), Ok(()));
            for cpu_number in [4, 5, 1 << 31, u32::MAX] {
                let beyond = CpuState { cpu: cpu_number, ..cpu };
                assert_eq!(judged(number, &beyond), Err(Errno::INVAL), "CPU {cpu_number}");
            }
            assert_eq!(judged(number, &CpuState { reserved: 1, ..cpu }), Err(Errno::INVAL));
        }
        assert_eq!(judged(IOC_RING_TAKE, &7_u64), Ok(()), "its ring judges that");
        assert_eq!(judged(IOC_RING_TAKE ^ 1, &7_u64), Err(Errno::NOTTY), "there is no such one");
    }

    #[test]
    fn information_is_what_was_asked_of_the_machine() {
        let caps = WireCaps::from(&Machine::caps());
        let info = info(&HvQuery { caps, ..HvQuery::default() }, 5, 0x106a3, 2_600_000);
        assert_eq!((info.abi_major, info.abi_minor), (ABI_MAJOR.into(), ABI_MINOR.into()));
        assert_eq!((info.vcpus, info.cpu_signature, info.tsc_khz), (5, 0x106a3, 2_600_000));
        assert_eq!(PmuCaps::from_wire(&info.caps), Some(Machine::caps()));
        assert_eq!((info.features, info.reserved, info.reserved_tail), (3, 0, [0; 9]));
    }

    #[test]
    fn arguments_of_another_size_are_refused() {
        let person = Person::new(true);
        for request in REQUESTS.iter().filter(|request| request.bytes_in > 8) {
            let bytes_in = usize::from(request.bytes_in);
            let bytes = vec![0_u64; bytes_in / 8 + 1];
            for length in [0, 8, bytes_in - 8, bytes_in + 8] {
                let argument = &bytes.as_bytes()[..length];
                let answer = judge(request.number, argument, &machine(), &person);
                assert_eq!(answer, Err(Errno::INVAL), "{:#x}: {length} bytes", request.number);
            }
        }
    }
}
