// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures what one read of a thread's counters costs, in instructions of user and kernel mode.
//!
//! Runs in the testbed, once under Xen and once on plain Linux; `cargo xtask bench` puts both
//! results into one table. The counts come from the counters themselves, and those that a timer's
//! interrupt has disturbed are left out, so they do not depend on how busy the machine is.
#![expect(unsafe_code, reason = "perf_event_open is a system call without a safe interface")]

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::os::fd::FromRawFd;

use anyhow::{Result, ensure};
use perf_event_open_sys::{bindings, perf_event_open};
use perfctr::raw::Device;
use perfctr::{Event, Provider, Session};
use shared_abi::ioctl::Create;
use shared_abi::version::ABI_MAJOR;

/// The number of reads in a row, by which the sum is divided.
const READS: u64 = 250;
/// The number of attempts. Some of them are not interrupted, so the least result is undisturbed.
const ATTEMPTS: u32 = 40;

fn main() -> Result<()> {
    let mut session = Session::open()?;
    let provider = session.description().provider;
    ensure!(provider != Provider::Tsc, "there are no counters here");
    // The first event counts this program in both modes. The others are there to be read.
    let others = [Event::BRANCHES.user(), Event::raw(0xc0).user(), Event::CYCLES.user()];
    session.start(&[Event::INSTRUCTIONS, others[0], others[1], others[2]])?;
    let name = match provider {
        Provider::Paravirt => "libperfctr",
        _ => "perf_event, rdpmc",
    };
    // If Linux lets no program execute RDPMC, the library asks Linux.
    if session.read::<1>()?.direct {
        report(&format!("{name}, 1 counter"), per_read(&session, || read::<1>(&session))?);
        let counts = || session.counts::<1>().map(drop);
        report(&format!("{name} without the TSC, 1 counter"), per_read(&session, counts)?);
        report(&format!("{name}, 4 counters"), per_read(&session, || read::<4>(&session))?);
    }
    if provider == Provider::Paravirt {
        let device = Device::open()?;
        device.open_existing(&Create { abi_major: ABI_MAJOR.into(), ..Create::default() })?;
        let read = || {
            device.sums().map(|sums| {
                black_box(sums);
            })
        };
        report("ioctl of /dev/perfctr, all counters", per_read(&session, read)?);
    } else {
        let mut event = &perf_event()?;
        let mut count = [0; 8];
        let read = || event.read_exact(&mut count);
        report("perf_event, read(2), 1 counter", per_read(&session, read)?);
    }
    Ok(())
}

/// Reads the counters. Counts are stored in any case, and the TSC is stored here, so that it is
/// computed.
#[inline(always)]
fn read<const N: usize>(session: &Session) -> Result<(), perfctr::Error> {
    black_box(session.read::<N>()?.tsc);
    Ok(())
}

/// Returns the instructions per call of `read`, less those of an empty loop. Each `read` gets a
/// copy of this function, so that values which another one keeps in registers do not matter.
#[inline(never)]
fn per_read<E>(session: &Session, mut read: impl FnMut() -> Result<(), E>) -> Result<f64>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let (mut with, mut without) = (u64::MAX, u64::MAX);
    for _ in 0..ATTEMPTS {
        let before = session.read::<1>()?;
        for n in 0..READS {
            black_box(n);
            read()?;
        }
        with = with.min((session.read::<1>()? - before).counts[0]);
        let before = session.read::<1>()?;
        for n in 0..READS {
            black_box(n);
        }
        without = without.min((session.read::<1>()? - before).counts[0]);
    }
    Ok((with - without) as f64 / READS as f64)
}

fn report(name: &str, instructions: f64) {
    println!("{name:<40}{instructions:>10.1}");
}

/// Opens an event that counts this thread's instructions.
fn perf_event() -> Result<File> {
    let mut attributes = bindings::perf_event_attr {
        type_: bindings::PERF_TYPE_HARDWARE,
        size: size_of::<bindings::perf_event_attr>() as u32,
        config: bindings::PERF_COUNT_HW_INSTRUCTIONS.into(),
        ..Default::default()
    };
    // SAFETY: the attributes are writable and say how large they are.
    let descriptor = unsafe { perf_event_open(&mut attributes, 0, -1, -1, 0) };
    ensure!(descriptor >= 0, std::io::Error::last_os_error());
    // SAFETY: a new descriptor, which nobody else owns.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}
