// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what the guest's module refuses.

use std::fs::File;

use anyhow::{Context, Result};
use nix::sys::mman::ProtFlags;
use shared_abi::CounterConfig;
use shared_abi::config::MODE_SAMPLING;
use shared_abi::ioctl::{
    CONTROL_RING, Control, Create, DEVICE_PATH, IOC_CONTROL, IOC_CREATE, IOC_INFO, IOC_INTERRUPTS,
    IOC_OPEN, IOC_READ, IOC_READ_CONTROL, IOC_RING, IOC_RING_TAKE, IOC_TYPE, IOC_UNLINK, Info,
    Sums,
};
use shared_abi::limits::{MAX_COUNTERS, RING_CALLERS_MAX, RING_PAGES_MAX};
use shared_abi::requests::{Access, REQUESTS};
use shared_abi::ring::{RING_FIRST_PAGE, RingRequest};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use vm_tests::map::{MapRequest, map};
use vm_tests::raw::{Argument, Refusal, ioctl, open_device};
use vm_tests::tally::equal;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Bench;
use crate::configs::{self, VALID};

const CREATE: Create = Create {
    abi_major: ABI_MAJOR as u32,
    abi_minor: ABI_MINOR as u32,
    tid: 0,
    features: 0,
    reserved: [0; 2],
};

/// A request for a ring of 256 records.
const RING: RingRequest =
    RingRequest { pages: 2, callers: 0, watermark: 256, reserved: 0, reserved_tail: [0; 2] };

const SAMPLING: CounterConfig = CounterConfig { mode: MODE_SAMPLING, period: 10_007, ..VALID };

/// A thread id that is not that of one of our threads.
const INIT: u32 = 1;

/// Makes an ioctl with a structure that nobody reads afterwards.
fn ioctl_with<T: IntoBytes + FromBytes + Immutable>(
    device: &File,
    request: u32,
    mut argument: T,
) -> Result<(), Refusal> {
    ioctl(device, request, Argument::of(&mut argument))
}

/// Returns a [`Control`] with these counters.
fn control(counters: &[CounterConfig]) -> Control {
    let mut control = Control { counters: counters.len() as u32, ..Control::default() };
    control.counter[..counters.len()].copy_from_slice(counters);
    control
}

/// Makes requests that are refused in any state.
pub fn refuse(bench: &mut Bench) -> Result<()> {
    let bound = open_device().context("cannot open the device")?;
    // This is a second descriptor of the counters that the bench's session has given this thread.
    ioctl_with(&bound, IOC_OPEN, CREATE).context("cannot bind a descriptor to this thread")?;
    unbound(bench, &open_device()?);
    binding(bench, &bound)?;
    unknown_numbers(bench, &bound);
    read_only(bench)?;
    numbers_and_pointers(bench, &bound);
    controls(bench, &bound);
    mappings(bench, &bound);
    strangers(bench, &bound)?;
    bench.refused("ring of a thread that counts", Refusal::EBUSY, || {
        ioctl_with(&bound, IOC_RING, RING)
    });
    rings(bench)?;
    unlinked(bench)
}

fn unbound(bench: &mut Bench, device: &File) {
    let requests: [(&str, u32); 7] = [
        ("control", IOC_CONTROL),
        ("read", IOC_READ),
        ("read of the control", IOC_READ_CONTROL),
        ("unlink", IOC_UNLINK),
        ("ring", IOC_RING),
        ("taking of records", IOC_RING_TAKE),
        ("read of interrupts", IOC_INTERRUPTS),
    ];
    for (name, request) in requests {
        bench.refused(&format!("{name} of an unbound descriptor"), Refusal::EINVAL, || {
            ioctl_with(device, request, control(&[VALID]))
        });
    }
    bench.refused("mapping of an unbound descriptor", Refusal::EINVAL, || {
        map(device, &MapRequest::pages(1)).map(drop)
    });
}

fn binding(bench: &mut Bench, bound: &File) -> Result<()> {
    let free = open_device()?;
    for (name, request) in [("creation", IOC_CREATE), ("opening", IOC_OPEN)] {
        let major = Create { abi_major: u32::from(ABI_MAJOR) + 1, ..CREATE };
        bench.refused(&format!("{name} by another ABI major"), Refusal::EPROTO, || {
            ioctl_with(&free, request, major)
        });
        bench.refused(&format!("{name} with a reserved field"), Refusal::EINVAL, || {
            ioctl_with(&free, request, Create { reserved: [1, 0], ..CREATE })
        });
        bench.refused(&format!("{name} with a feature of the future"), Refusal::EOPNOTSUPP, || {
            ioctl_with(&free, request, Create { features: 1 << 31, ..CREATE })
        });
        bench.refused(&format!("{name} for another thread"), Refusal::ESRCH, || {
            ioctl_with(&free, request, Create { tid: INIT, ..CREATE })
        });
        bench.refused(&format!("{name} by a bound descriptor"), Refusal::EEXIST, || {
            ioctl_with(bound, request, CREATE)
        });
    }
    bench.refused("second creation for a thread", Refusal::EEXIST, || {
        ioctl_with(&free, IOC_CREATE, CREATE)
    });
    bench.refused("opening by a thread without counters", Refusal::ESRCH, || {
        elsewhere(|| ioctl_with(&free, IOC_OPEN, CREATE))
    });
    Ok(())
}

/// Tries every number of the device's type in each direction. Also tries numbers that differ from a
/// request's in one bit: of its number, its size, its direction or its type.
fn unknown_numbers(bench: &mut Bench, bound: &File) {
    let known: Vec<u32> = REQUESTS.iter().map(|request| request.number).collect();
    let near = known.iter().flat_map(|number| (0..u32::BITS).map(move |bit| number ^ 1 << bit));
    let others = (0..256).flat_map(|low| (0..4).map(move |way| way << 30 | IOC_TYPE << 8 | low));
    let unknown: Vec<u32> = near.chain(others).filter(|number| !known.contains(number)).collect();
    assert!(unknown.len() > 1_000, "most of them are no requests");
    bench.refused("every number that is not in the table", Refusal::ENOTTY, || {
        let mut answers = unknown.iter().map(|&number| ioctl_with(bound, number, [0_u8; 1 << 14]));
        let refused = Err(Refusal::ENOTTY);
        answers.find(|answer| *answer != refused).unwrap_or(refused)
    });
}

/// Makes requests that change something through a descriptor that is bound and opened for reading
/// only.
fn read_only(bench: &mut Bench) -> Result<()> {
    let reader = File::open(DEVICE_PATH)?;
    ioctl_with(&reader, IOC_OPEN, CREATE).context("cannot bind a descriptor for reading")?;
    for request in REQUESTS.iter().filter(|request| request.access == Access::Writes) {
        let name = format!("request {:#x} of a descriptor for reading", request.number & 0xff);
        bench.refused(&name, Refusal::EBADF, || ioctl_with(&reader, request.number, [0_u8; 1024]));
    }
    for request in REQUESTS.iter().filter(|request| request.access == Access::Reads) {
        let answer = ioctl_with(&reader, request.number, [0_u8; 1024]);
        let outcome = equal(answer == Err(Refusal::EBADF), false);
        bench.tally.check(&format!("request {:#x} only reads", request.number & 0xff), outcome);
    }
    Ok(())
}

fn numbers_and_pointers(bench: &mut Bench, bound: &File) {
    for (name, request) in [
        ("number beyond the last", 0x7f | IOC_TYPE << 8),
        ("number before the first", 0x3f | IOC_TYPE << 8),
        ("control of another size", IOC_CONTROL ^ 8 << 16),
        ("control in the other direction", IOC_CONTROL ^ 3 << 30),
        ("terminal's request", 0x5401),
    ] {
        bench.refused(name, Refusal::ENOTTY, || ioctl_with(bound, request, [0_u8; 1024]));
    }
    let unbound = open_device().expect("it could be opened before");
    for (name, request, device) in [
        ("information", IOC_INFO, bound),
        ("creation", IOC_CREATE, &unbound),
        ("opening", IOC_OPEN, &unbound),
        ("control", IOC_CONTROL, bound),
        ("read", IOC_READ, bound),
        ("read of the control", IOC_READ_CONTROL, bound),
        ("ring", IOC_RING, bound),
        ("taking of records", IOC_RING_TAKE, bound),
        ("read of interrupts", IOC_INTERRUPTS, bound),
    ] {
        for (place, argument) in [
            ("address 0", Argument::Null),
            ("the hypervisor's memory", Argument::Hypervisor),
            ("no canonical address", Argument::NonCanonical),
        ] {
            bench.refused(&format!("{name} at {place}"), Refusal::EFAULT, || {
                ioctl(device, request, argument)
            });
        }
    }
}

fn controls(bench: &mut Bench, bound: &File) {
    let valid = control(&[VALID]);
    for (name, control) in [
        ("unknown flag", Control { flags: 1 << 31, ..valid }),
        ("signal without a sampling counter", Control { signal: 1, ..valid }),
        ("preserving a sum that is not there", Control { preserve: 2, ..valid }),
        ("one counter too many", Control { counters: MAX_COUNTERS as u32 + 1, ..valid }),
        ("most counters too many", Control { counters: u32::MAX, ..valid }),
    ] {
        bench.refused(name, Refusal::EINVAL, || ioctl_with(bound, IOC_CONTROL, control));
    }
    let caps = bench.witness.session().description().caps;
    for bad in caps.iter().flat_map(configs::all) {
        bench.refused(&format!("control with {}", bad.name), bad.errno, || {
            ioctl_with(bound, IOC_CONTROL, control(&bad.counters))
        });
    }
}

fn mappings(bench: &mut Bench, bound: &File) {
    let pages = 1 + bench.witness.session().description().vcpus as usize;
    let good = MapRequest::pages(pages);
    for (name, errno, request) in [
        ("writable mapping", Refusal::EPERM, MapRequest { writable: true, ..good }),
        ("executable mapping", Refusal::EPERM, MapRequest { executable: true, ..good }),
        ("private mapping", Refusal::EPERM, MapRequest { private: true, ..good }),
        ("mapping one page too long", Refusal::EPERM, MapRequest::pages(pages + 1)),
        ("mapping one page too short", Refusal::EPERM, MapRequest::pages(pages - 1)),
        ("mapping from the second page on", Refusal::EPERM, MapRequest { offset: 1, ..good }),
    ] {
        bench.refused(name, errno, || map(bound, &request).map(drop));
    }
    bench.refused("making a mapping writable", Refusal::EACCES, || {
        map(bound, &good)?.protect(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)
    });
}

/// Tries requests that another thread may not make with this thread's descriptor.
fn strangers(bench: &mut Bench, bound: &File) -> Result<()> {
    bench.refused("control by another thread", Refusal::ESRCH, || {
        elsewhere(|| ioctl_with(bound, IOC_CONTROL, control(&[VALID])))
    });
    bench.refused("unlink by another thread", Refusal::ESRCH, || {
        elsewhere(|| ioctl(bound, IOC_UNLINK, Argument::Null))
    });
    Ok(())
}

/// Tests rings of a thread that counts nothing yet.
fn rings(bench: &mut Bench) -> Result<()> {
    let device = open_device()?;
    let refusals = elsewhere(|| ring_refusals(&device)).context("cannot have a ring")?;
    for (name, expected, outcome) in refusals {
        bench.refused(name, expected, || outcome);
    }
    Ok(())
}

/// A request, the expected answer, and the actual answer.
type Answered = (&'static str, Refusal, Result<(), Refusal>);

/// Makes requests for rings in the thread that owns the counters.
fn ring_refusals(device: &File) -> Result<Vec<Answered>, Refusal> {
    let records = Control { flags: CONTROL_RING, ..control(&[SAMPLING]) };
    let take = |records: u64| ioctl_with(device, IOC_RING_TAKE, records);
    let ring = MapRequest { offset: RING_FIRST_PAGE as usize, ..MapRequest::pages(2) };
    let mapping = |request: MapRequest| map(device, &request).map(drop);
    ioctl_with(device, IOC_CREATE, CREATE)?;
    let mut answers: Vec<Answered> = vec![
        ("taking records without a ring", Refusal::ENXIO, take(0)),
        ("mapping of a ring that is not there", Refusal::ENXIO, mapping(ring)),
        ("records without a ring", Refusal::ENXIO, ioctl_with(device, IOC_CONTROL, records)),
        (
            "ring for another thread",
            Refusal::EPERM,
            elsewhere(|| ioctl_with(device, IOC_RING, RING)),
        ),
    ];
    for (name, request) in [
        ("ring of no pages", RingRequest { pages: 0, ..RING }),
        ("ring of three pages", RingRequest { pages: 3, ..RING }),
        ("ring that is too large", RingRequest { pages: 2 * RING_PAGES_MAX, ..RING }),
        ("ring of most pages", RingRequest { pages: 1 << 31, ..RING }),
        ("ring of too many callers", RingRequest { callers: RING_CALLERS_MAX + 1, ..RING }),
        ("ring of most callers", RingRequest { callers: u32::MAX, ..RING }),
        ("ring without a watermark", RingRequest { watermark: 0, ..RING }),
        ("ring that is never ready", RingRequest { watermark: 257, ..RING }),
        ("ring with a reserved field", RingRequest { reserved: 1, ..RING }),
        ("ring with another reserved field", RingRequest { reserved_tail: [0, 1], ..RING }),
    ] {
        answers.push((name, Refusal::EINVAL, ioctl_with(device, IOC_RING, request)));
    }
    ioctl_with(device, IOC_RING, RING)?;
    mapping(ring)?;
    take(0)?;
    let writable = map(device, &ring)?.protect(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let signal = Control { signal: 1, ..records };
    let nothing = Control { flags: CONTROL_RING, ..control(&[VALID]) };
    answers.extend([
        ("second ring", Refusal::EEXIST, ioctl_with(device, IOC_RING, RING)),
        ("taking what is not there", Refusal::EINVAL, take(1)),
        ("taking most records", Refusal::EINVAL, take(u64::MAX)),
        ("records and a signal", Refusal::EINVAL, ioctl_with(device, IOC_CONTROL, signal)),
        ("records of nothing", Refusal::EINVAL, ioctl_with(device, IOC_CONTROL, nothing)),
        ("writable ring", Refusal::EPERM, mapping(MapRequest { writable: true, ..ring })),
        ("executable ring", Refusal::EPERM, mapping(MapRequest { executable: true, ..ring })),
        ("private ring", Refusal::EPERM, mapping(MapRequest { private: true, ..ring })),
        ("ring one page too long", Refusal::EPERM, mapping(MapRequest { pages: 3, ..ring })),
        ("ring one page too short", Refusal::EPERM, mapping(MapRequest { pages: 1, ..ring })),
        ("making a ring writable", Refusal::EACCES, writable),
    ]);
    ioctl_with(device, IOC_CONTROL, records)?;
    ioctl(device, IOC_UNLINK, Argument::Null)?;
    let unlinked = ioctl_with(device, IOC_RING, RING);
    answers.push(("ring of counters that are unlinked", Refusal::ESRCH, unlinked));
    Ok(answers)
}

/// Tests what is left of a thread's counters after they were unlinked.
fn unlinked(bench: &mut Bench) -> Result<()> {
    let device = open_device()?;
    let (control_after, before, after) = elsewhere(|| -> Result<_, Refusal> {
        ioctl_with(&device, IOC_CREATE, CREATE)?;
        ioctl_with(&device, IOC_CONTROL, control(&[VALID]))?;
        ioctl(&device, IOC_UNLINK, Argument::Null)?;
        let (mut before, mut after) = (Sums::default(), Sums::default());
        ioctl(&device, IOC_READ, Argument::of(&mut before))?;
        let control_after = ioctl_with(&device, IOC_CONTROL, control(&[VALID]));
        ioctl(&device, IOC_UNLINK, Argument::Null)?;
        ioctl(&device, IOC_READ, Argument::of(&mut after))?;
        Ok((control_after, before, after))
    })
    .context("cannot count in another thread")?;
    bench
        .tally
        .check("control after unlink gives ESRCH", equal(control_after, Err(Refusal::ESRCH)));
    let counted = if before.counter[0] > 0 { Ok(()) } else { Err("no counts".to_owned()) };
    bench.tally.check("sums stay after unlink", counted.and_then(|()| equal(after, before)));
    let mut info = Info::default();
    let outcome = ioctl(&device, IOC_INFO, Argument::of(&mut info));
    bench.tally.check("information after unlink", equal(outcome, Ok(())));
    Ok(())
}

/// Runs `request` in a thread of its own.
fn elsewhere<T: Send>(request: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(request).join().expect("requests do not panic"))
}
