// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Boots the testbed, runs one command in the guest and returns how it ended.
//!
//! The guest's init (`testbed/init`) writes to virtio ports which the emulator stores as files in
//! the run's directory; this side follows those files. The console is kept as a log, watched for
//! crashes, and the whole machine is ended at the first of: the command's end, a crash, a timeout.

mod disc;
mod emulator;
mod hardware;
mod host;
mod initramfs;
mod monitor;
mod outcome;
mod profile;
mod runs;
mod software;
mod spec;
mod watch;

use anyhow::Result;

pub use self::initramfs::complete as initramfs;
pub use self::outcome::{Failure, Outcome, Status};
pub use self::profile::{Emulator, HostLinux, Topology};
#[cfg(test)]
pub use self::runs::Repeat;
pub use self::runs::{Boots, boots, repeated};
pub use self::spec::{BESIDE, Spec};

/// Boots the machine, runs the command and ends the machine. An error means that the run could not
/// be prepared.
///
/// If a boot stops before the guest has started its first program, it is tried once more. A fault
/// once caused that in one of a hundred boots. It is fixed (testbed/qemu), so no boot should stop.
/// Both attempts are counted, and the files of the first one are kept.
pub fn run(spec: &Spec) -> Result<Outcome> {
    let outcome = attempt(spec)?;
    let Status::Failed(Failure::NeverUp(_)) = &outcome.status else {
        return Ok(outcome);
    };
    let kept = runs::keep(&outcome)?;
    eprintln!(
        "  the guest did not come up; booting once more; what is known of the first: {}",
        kept.display()
    );
    attempt(spec)
}

fn attempt(spec: &Spec) -> Result<Outcome> {
    let dir = runs::directory()?;
    let machine = emulator::start(spec, &dir)?;
    let outcome = watch::until_end(spec, &dir, machine)?;
    emulator::clean(&dir);
    if let Some(out) = &spec.out {
        runs::unpack_out(&dir, out)?;
    }
    runs::ended(&dir)?;
    runs::count(&outcome);
    Ok(outcome)
}
