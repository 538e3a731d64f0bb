// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that counts of kernel mode equal what the emulator itself has executed.
//!
//! The kernel's instructions are those of the emulator's tally (`testbed/qemu`) minus the program's
//! own, which its machine code shows. A counter of kernel mode has to have the same number, to the
//! instruction.
//!
//! A PV guest's kernel executes outside ring 0, as the program does, and only the hypervisor
//! executes in ring 0. A PVH guest's kernel executes in a ring 0 of its own. The hypervisor, which
//! executes in ring 0 after an exit, must not be counted, and the emulator tells both apart.

use anyhow::{Context, Result, ensure};
use perfctr::rdpmc::Hardware;
use perfctr::{Error, Event, Provider, Reading, Session};
use shared_abi::read::Counters;
use shared_abi::seq::Stamp;
use shared_abi::sync::Ordering::Relaxed;

use crate::bodies::{Body, Does, step_over_invalid};
use crate::emulated::{EXITS, GUESTS_RING_0, OUTSIDE_RING_0};
use crate::expected::Stepped;
use crate::guest;
use crate::region::FreshPages;
use crate::step::{Executed, Kind};
use crate::tally::equal;
use crate::threads::{SELF, cpus, run_on};

/// The events: instructions of the kernel, and of kernel and user together.
const EVENTS: [Event; 2] = [Event::INSTRUCTIONS.kernel(), Event::INSTRUCTIONS];
/// The number of measurements of each kind, and how many must not be disturbed by a switch.
const MEASUREMENTS: u64 = 400;
const UNDISTURBED_MIN: u64 = 200;

/// Where the guest's kernel executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ring {
    /// In a ring 0 of its own, which an exit leaves: a PVH or HVM guest, or one of KVM.
    Own,
    /// Outside ring 0, where only the hypervisor executes: a PV guest.
    Outside,
}

/// What the emulator has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tallies {
    exits: u64,
    /// The guest's own instructions in ring 0.
    guests: u64,
    outside: u64,
}

impl Tallies {
    fn less(self, other: Self) -> Self {
        Self {
            exits: self.exits.wrapping_sub(other.exits),
            guests: self.guests.wrapping_sub(other.guests),
            outside: self.outside.wrapping_sub(other.outside),
        }
    }
}

/// One measurement.
struct Measured {
    counts: [u64; 2],
    /// What the emulator has executed meanwhile.
    executed: Tallies,
}

/// The program's own instructions in a measurement, without the body's.
#[derive(Clone, Copy, Debug)]
struct Own {
    /// The instructions between both reads of the tally.
    all: u64,
    /// Those of them that are not between both readings of the second counter.
    outside: u64,
}

/// Tests each kind of body. Returns each test's name, and what is wrong if anything is.
///
/// # Errors
///
/// Nothing can be measured: this is not the testbed, or it was not told to keep its tally.
pub fn judge() -> Result<Vec<(String, Result<(), String>)>> {
    step_over_invalid()?;
    let ring = if guest::is_pv()? { Ring::Outside } else { Ring::Own };
    let own = Own::find().context("a measurement cannot be stepped")?;
    let cpus = cpus()?;
    run_on(SELF, &cpus[..1])?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&EVENTS)?;
    ensure!(Hardware.counter(OUTSIDE_RING_0) > 0, "the emulator keeps no tally");
    let (mut outcomes, mut pages) = (Vec::new(), FreshPages::new()?);
    for (name, does) in [
        ("nothing", Does::Nothing),
        ("system calls", Does::SystemCall),
        ("page faults and REP instructions", Does::Strings),
        ("signals", Does::Signal),
        ("exits", Does::Exit),
    ] {
        // A PV guest executes CPUID without leaving itself, or has it emulated.
        if ring == Ring::Outside && does == Does::Exit {
            continue;
        }
        let outcome = judge_one(ring, &session, own, does, &mut pages)?;
        outcomes.push((format!("kernel-mode counts of {name} are the emulator's"), outcome));
    }
    run_on(SELF, &cpus)?;
    Ok(outcomes)
}

/// Measures again and again. Returns what is wrong, if anything is.
fn judge_one(
    ring: Ring,
    session: &Session,
    own: Own,
    does: Does,
    pages: &mut FreshPages,
) -> Result<Result<(), String>> {
    let (mut undisturbed, mut all) = (0, 0);
    for n in 0..MEASUREMENTS {
        let rounds = 1 + n % 8;
        let body = Body::new(does, rounds);
        let Some(measured) = measure_undisturbed(session, &body, pages.take(2)?)? else { continue };
        let user = own.all + body.executed().instructions;
        let Tallies { exits, guests, outside } = measured.executed;
        if does == Does::Exit && exits < rounds {
            return Ok(Err(format!("{body:?}: only {exits} exits")));
        }
        let kernel = match ring {
            Ring::Own => {
                if let Err(why) = equal(outside, user) {
                    return Ok(Err(format!("{body:?}: the program's own instructions: {why}")));
                }
                guests
            }
            Ring::Outside => outside - user,
        };
        let truth = [kernel, kernel + user - own.outside];
        if let Err(why) = equal(measured.counts, truth) {
            return Ok(Err(format!("{body:?}: {why}")));
        }
        (undisturbed, all) = (undisturbed + 1, all + kernel);
    }
    println!("{does:?}: {undisturbed} measurements, {all} instructions of the kernel");
    let is_kernels = !matches!(does, Does::Nothing | Does::Exit);
    let enough = undisturbed >= UNDISTURBED_MIN && (all > 0 || !is_kernels);
    Ok(if enough { Ok(()) } else { Err(format!("only {undisturbed} measurements")) })
}

/// Makes a measurement. Returns `None` if the kernel ran between a read of the tally and the
/// reading beside it, or if anything but this thread's kernel ran in the middle.
///
/// The vCPU's page shows that a PV guest's kernel has run. In a guest with rings of its own, it
/// does not show that an interrupt's handler has run. But an exit comes before the handler, so the
/// number of exits has changed.
fn measure_undisturbed(
    session: &Session,
    body: &Body,
    memory: &mut [u8],
) -> Result<Option<Measured>> {
    let moment = || -> Result<(Stamp, u64, u64)> {
        let thread = session.thread_page().context("the process was forked")?;
        let vcpu = session.vcpu_page(thread.vcpu.load(Relaxed)).context("it has no page")?;
        Ok((vcpu.seq.stamp(), vcpu.switches.load(Relaxed), thread.switches.load(Relaxed)))
    };
    let start = moment()?;
    let (before, opening, exits_opened) = open(session)?;
    let opened = moment()?;
    body.execute(memory);
    let closed = moment()?;
    let (exits_closed, closing, after) = close(session)?;
    let end = moment()?;
    let alone = (start.1, start.2) == (end.1, end.2);
    let page_unchanged = start.0 == opened.0 && closed.0 == end.0;
    let without_exits = before.exits == exits_opened && exits_closed == after.exits;
    if !(alone && page_unchanged && without_exits) {
        return Ok(None);
    }
    ensure!(closing.retries == 0 && opening.retries == 0, "a read was disturbed by nobody");
    Ok(Some(Measured { counts: (closing - opening).counts, executed: after.less(before) }))
}

/// Reads the tally, then the counters, and then the number of exits again.
#[inline(never)]
fn open(session: &Session) -> Result<(Tallies, Reading<2>, u64), Error> {
    let exits = Hardware.counter(EXITS);
    let guests = Hardware.counter(GUESTS_RING_0);
    let outside = Hardware.counter(OUTSIDE_RING_0);
    let reading = session.read::<2>()?;
    Ok((Tallies { exits, guests, outside }, reading, Hardware.counter(EXITS)))
}

/// Reads the number of exits, then the counters, and then the tally.
#[inline(never)]
fn close(session: &Session) -> Result<(u64, Reading<2>, Tallies), Error> {
    let before = Hardware.counter(EXITS);
    let reading = session.read::<2>()?;
    let outside = Hardware.counter(OUTSIDE_RING_0);
    let guests = Hardware.counter(GUESTS_RING_0);
    let exits = Hardware.counter(EXITS);
    Ok((before, reading, Tallies { exits, guests, outside }))
}

impl Own {
    /// Steps through a measurement of nothing.
    fn find() -> Result<Self> {
        let body = |session: &mut Session| {
            let nothing = Body::new(Does::Nothing, 1);
            measure_undisturbed(session, &nothing, &mut [0; 2 * 4096]).expect("copies can be read");
            Ok(())
        };
        let trace = Stepped::new()?.trace(2, body, None)?;
        let rdpmcs = trace.places(Kind::Rdpmc);
        // These are three tallies, two counters and the exits, and the same in the opposite order.
        let [_, _, first, _, opened, _, _, _, closed, last, _, _] = rdpmcs[..] else {
            anyhow::bail!("{} RDPMCs in a measurement", rdpmcs.len())
        };
        let count = |from, to| -> u64 {
            let Executed { instructions, .. } = trace.between(from, to);
            instructions
        };
        // The counter that is read last counts both modes.
        Ok(Self { all: count(first, last), outside: count(first, opened) + count(closed, last) })
    }
}
