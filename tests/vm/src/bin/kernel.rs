// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts of kernel mode are what the emulator itself has executed.
//!
//! The guest's kernel executes outside ring 0, as the program does.  What the emulator executes
//! there (its tally, `testbed/qemu`) less what the program executes, known from its machine code,
//! is the kernel's; a counter of kernel mode has to say the same, to the instruction.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use perfctr::rdpmc::Hardware;
use perfctr::{Error, Event, Provider, Reading, Session};
use shared_abi::read::Counters;
use shared_abi::seq::Stamp;
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::bodies::{Body, Does, step_over_invalid};
use vm_tests::expected::Stepped;
use vm_tests::region::FreshPages;
use vm_tests::step::{Executed, Kind};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};

/// RDPMC's index of the instructions that the emulator executed outside ring 0.
const OUTSIDE_RING_0: u32 = 0x7461_6c79 + 1;
/// Of the kernel, and of kernel and user together.
const EVENTS: [Event; 2] = [Event::INSTRUCTIONS.kernel(), Event::INSTRUCTIONS];
/// Measurements of each kind, and how many must not be disturbed by a switch.
const MEASUREMENTS: u64 = 400;
const UNDISTURBED_MIN: u64 = 200;

/// One measurement.
struct Measured {
    counts: [u64; 2],
    /// By the emulator.
    executed: u64,
}

/// The program's own instructions in a measurement, beside the body's.
#[derive(Clone, Copy, Debug)]
struct Own {
    /// Between both looks at the emulator.
    all: u64,
    /// Of them, those that are not between both readings of the second counter.
    outside: u64,
}

fn main() -> Result<ExitCode> {
    step_over_invalid()?;
    let own = Own::find().context("a measurement cannot be stepped")?;
    run_on(SELF, &cpus()?[..1])?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&EVENTS)?;
    let (mut tally, mut pages) = (Tally::default(), FreshPages::new()?);
    for (name, does) in [
        ("nothing", Does::Nothing),
        ("system calls", Does::SystemCall),
        ("page faults and REP instructions", Does::Strings),
        ("signals", Does::Signal),
    ] {
        let outcome = judge(&session, own, does, &mut pages)?;
        tally.check(&format!("kernel-mode counts of {name} are the emulator's"), outcome);
    }
    Ok(tally.finish())
}

/// Measures again and again; what is wrong, if anything is.
fn judge(
    session: &Session,
    own: Own,
    does: Does,
    pages: &mut FreshPages,
) -> Result<Result<(), String>> {
    let (mut undisturbed, mut kernel) = (0, 0);
    for n in 0..MEASUREMENTS {
        let body = Body::new(does, 1 + n % 8);
        let Some(measured) = whole(session, &body, pages.take(2)?)? else { continue };
        let user = body.executed().instructions;
        let truth = [measured.executed - own.all - user, measured.executed - own.outside];
        if let Err(why) = equal(measured.counts, truth) {
            return Ok(Err(format!("{body:?}: {why}")));
        }
        (undisturbed, kernel) = (undisturbed + 1, kernel + truth[0]);
    }
    println!("{does:?}: {undisturbed} measurements, {kernel} instructions of the kernel");
    let enough = undisturbed >= UNDISTURBED_MIN && (kernel > 0 || does == Does::Nothing);
    Ok(if enough { Ok(()) } else { Err(format!("only {undisturbed} measurements")) })
}

/// A measurement; `None` if the kernel ran between a look at the emulator and the reading beside
/// it, or if anything else than this thread's kernel ran in its middle.
fn whole(session: &Session, body: &Body, memory: &mut [u8]) -> Result<Option<Measured>> {
    let moment = || -> Result<(Stamp, u64, u64)> {
        let thread = session.thread_page().context("the process was forked")?;
        let vcpu = session.vcpu_page(thread.vcpu.load(Relaxed)).context("it has no page")?;
        Ok((vcpu.seq.stamp(), vcpu.switches.load(Relaxed), thread.switches.load(Relaxed)))
    };
    let start = moment()?;
    let (before, opening) = open(session)?;
    let opened = moment()?;
    body.execute(memory);
    let closed = moment()?;
    let (closing, after) = close(session)?;
    let end = moment()?;
    let alone = (start.1, start.2) == (end.1, end.2);
    if start.0 != opened.0 || closed.0 != end.0 || !alone {
        return Ok(None);
    }
    ensure!(closing.retries == 0 && opening.retries == 0, "a read was disturbed by nobody");
    Ok(Some(Measured { counts: (closing - opening).counts, executed: after - before }))
}

/// Looks at the emulator, then reads.
#[inline(never)]
fn open(session: &Session) -> Result<(u64, Reading<2>), Error> {
    let executed = Hardware.rdpmc(OUTSIDE_RING_0);
    Ok((executed, session.read::<2>()?))
}

/// Reads, then looks at the emulator.
#[inline(never)]
fn close(session: &Session) -> Result<(Reading<2>, u64), Error> {
    let reading = session.read::<2>()?;
    Ok((reading, Hardware.rdpmc(OUTSIDE_RING_0)))
}

impl Own {
    /// Steps through a measurement of nothing.
    fn find() -> Result<Self> {
        let body = |session: &mut Session| {
            let nothing = Body::new(Does::Nothing, 1);
            whole(session, &nothing, &mut [0; 2 * 4096]).expect("copies can be read");
            Ok(())
        };
        let trace = Stepped::new()?.trace(2, body, None)?;
        let rdpmcs = trace.places(Kind::Rdpmc);
        let [first, .., last] = rdpmcs[..] else { anyhow::bail!("there are no RDPMCs") };
        ensure!(rdpmcs.len() == 6, "{} RDPMCs in a measurement", rdpmcs.len());
        let count = |from, to| -> u64 {
            let Executed { instructions, .. } = trace.between(from, to);
            instructions
        };
        // The second counter is read third, and fifth.
        let outside = count(first, rdpmcs[2]) + count(rdpmcs[4], last);
        Ok(Self { all: count(first, last), outside })
    }
}
