// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The table of the device's requests, which says what each [`ioctl`] demands of its caller.
//!
//! The module refuses every request that is not listed here. A new request needs a value in each
//! column: no column has a default.

use crate::ioctl;

/// Whether a request changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It changes nothing, so any descriptor is sufficient.
    Reads,
    /// It needs a descriptor that is open for writing; otherwise it fails with `EBADF`.
    Writes,
}

/// What a request needs of its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The descriptor may be bound or not.
    Any,
    /// The descriptor must not be bound to a thread's counters; otherwise the request fails with
    /// `EEXIST`.
    Unbound,
    /// The descriptor must be bound to a thread's counters; otherwise the request fails with
    /// `EINVAL`.
    Bound,
}

/// Who may make a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// Any thread that has the descriptor may make the request.
    Holder,
    /// The thread that is named or bound may make the request, and so may its tracer while the
    /// thread is stopped. Others get `ESRCH`.
    Operator,
    /// Only the thread whose counters these are may make the request. Others get `EPERM`, and
    /// everybody gets `ESRCH` if the counters are not linked.
    Thread,
    /// Only a caller that may observe the whole system may make the request. Others get `EPERM`,
    /// and everybody gets `EACCES` in a kernel that is locked down.
    Supervisor,
}

/// What the module does with the argument that the caller gives, after it has copied all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The caller gives none.
    None,
    /// It is judged as a [`Create`](ioctl::Create).
    Create,
    /// It is judged as a [`Control`](ioctl::Control) of a thread.
    Control,
    /// It is judged as a [`RingRequest`](crate::ring::RingRequest).
    Ring,
    /// It is judged as a [`CpuState`](ioctl::CpuState) that controls a CPU.
    CpuControl,
    /// It is judged as a [`CpuState`](ioctl::CpuState) that names a CPU.
    CpuRead,
    /// The object that the request is about judges it, since it depends on the object's state.
    ForObject,
}

/// One row of the table of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The ioctl's number, which contains its argument's size and direction.
    pub number: u32,
    /// Whether the request changes anything.
    pub access: Access,
    /// What the request needs of the descriptor.
    pub binding: Binding,
    /// Who may make the request.
    pub requester: Requester,
    /// How the argument is judged.
    pub argument: Argument,
    /// How much the module copies from the caller before it does anything, unit: bytes.
    pub bytes_in: u16,
    /// How much the module copies to the caller after it has done everything, unit: bytes.
    pub bytes_out: u16,
}

const fn row(
    number: u32,
    access: Access,
    binding: Binding,
    requester: Requester,
    argument: Argument,
) -> Request {
    let argument_bytes = (number >> 16 & 0x3fff) as u16;
    let bytes_in = if number & ioctl::WRITE << 30 != 0 { argument_bytes } else { 0 };
    let bytes_out = if number & ioctl::READ << 30 != 0 { argument_bytes } else { 0 };
    Request { number, access, binding, requester, argument, bytes_in, bytes_out }
}

/// The table of all requests.
pub const REQUESTS: [Request; 15] = {
    use Access::{Reads, Writes};
    use Argument::{Control, CpuControl, CpuRead, Create, ForObject, None, Ring};
    use Binding::{Any, Bound, Unbound};
    use Requester::{Holder, Operator, Supervisor, Thread};
    [
        row(ioctl::IOC_READ, Reads, Bound, Holder, None),
        row(ioctl::IOC_RESUME, Writes, Bound, Operator, None),
        row(ioctl::IOC_RING_TAKE, Writes, Bound, Holder, ForObject),
        row(ioctl::IOC_CONTROL, Writes, Bound, Operator, Control),
        row(ioctl::IOC_INFO, Reads, Any, Holder, None),
        row(ioctl::IOC_CREATE, Writes, Unbound, Operator, Create),
        row(ioctl::IOC_OPEN, Reads, Unbound, Operator, Create),
        row(ioctl::IOC_READ_CONTROL, Reads, Bound, Holder, None),
        row(ioctl::IOC_INTERRUPTS, Reads, Bound, Holder, None),
        row(ioctl::IOC_UNLINK, Writes, Bound, Operator, None),
        row(ioctl::IOC_RING, Writes, Bound, Thread, Ring),
        row(ioctl::IOC_CPU_CONTROL, Writes, Any, Supervisor, CpuControl),
        row(ioctl::IOC_CPU_START, Writes, Any, Supervisor, None),
        row(ioctl::IOC_CPU_STOP, Writes, Any, Supervisor, None),
        row(ioctl::IOC_CPU_READ, Reads, Any, Supervisor, CpuRead),
    ]
};

/// The size of the largest argument, unit: bytes. The module has a buffer of this size.
pub const ARGUMENT_BYTES_MAX: usize = size_of::<ioctl::CpuState>();

const _: () = {
    let mut row = 0;
    while row < REQUESTS.len() {
        let Request { number, argument, bytes_in, bytes_out, .. } = REQUESTS[row];
        assert!((bytes_in == 0) == matches!(argument, Argument::None));
        assert!(bytes_in as usize <= ARGUMENT_BYTES_MAX);
        assert!(bytes_out as usize <= ARGUMENT_BYTES_MAX);
        assert!(bytes_in > 0 || bytes_out > 0 || number >> 30 == 0);
        row += 1;
    }
};

impl Request {
    /// Finds the row of an ioctl's number. All bits of the number must match.
    pub fn find(number: u32) -> Option<&'static Self> {
        REQUESTS.iter().find(|request| request.number == number)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    use super::*;
    use crate::ioctl::{Control, CpuState, Create, Info, Sums};
    use crate::ring::RingRequest;

    #[test]
    fn each_request_has_one_row() {
        let numbers: BTreeSet<u32> = REQUESTS.iter().map(|request| request.number).collect();
        let low: BTreeSet<u32> = numbers.iter().map(|number| number & 0xff).collect();
        assert_eq!((numbers.len(), low.len()), (REQUESTS.len(), REQUESTS.len()));
        for number in numbers {
            assert_eq!(Request::find(number).map(|request| request.number), Some(number));
        }
    }

    #[test]
    fn numbers_with_another_bit_are_no_requests() {
        let numbers: BTreeSet<u32> = REQUESTS.iter().map(|request| request.number).collect();
        for request in &REQUESTS {
            for bit in 0..u32::BITS {
                let other = request.number ^ 1 << bit;
                assert_eq!(Request::find(other).is_some(), numbers.contains(&other), "{other:#x}");
            }
        }
        assert_eq!(Request::find(ioctl::IOC_CPU_START ^ 1), None, "one bit from another row");
    }

    #[test]
    fn arguments_are_copied_in_the_size_of_their_types() {
        let control = size_of::<Control>();
        for (number, bytes_in, bytes_out) in [
            (ioctl::IOC_INFO, 0, size_of::<Info>()),
            (ioctl::IOC_CREATE, size_of::<Create>(), 0),
            (ioctl::IOC_OPEN, size_of::<Create>(), 0),
            (ioctl::IOC_CONTROL, control, 0),
            (ioctl::IOC_READ, 0, size_of::<Sums>()),
            (ioctl::IOC_READ_CONTROL, 0, control),
            (ioctl::IOC_UNLINK, 0, 0),
            (ioctl::IOC_RESUME, 0, 0),
            (ioctl::IOC_RING, size_of::<RingRequest>(), 0),
            (ioctl::IOC_RING_TAKE, 8, 0),
            (ioctl::IOC_CPU_CONTROL, size_of::<CpuState>(), 0),
            (ioctl::IOC_CPU_START, 0, 0),
            (ioctl::IOC_CPU_STOP, 0, 0),
            (ioctl::IOC_CPU_READ, size_of::<CpuState>(), size_of::<CpuState>()),
        ] {
            let request = Request::find(number).unwrap();
            let bytes = [request.bytes_in, request.bytes_out].map(usize::from);
            assert_eq!(bytes, [bytes_in, bytes_out], "{number:#x}");
        }
    }
}
