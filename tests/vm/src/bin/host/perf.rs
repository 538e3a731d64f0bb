// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Uses the host's own perf as `perf stat -a` does, and looks after the host's watchdog.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_INSTRUCTIONS, PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_FORMAT_TOTAL_TIME_RUNNING,
    perf_event_attr,
};
use vm_tests::kvm::HostPerf;
use vm_tests::perf::{Event, Whose, generic};
use vm_tests::region::Region;
use vm_tests::threads::{SELF, run_on};

/// The file that says whether the hard-lockup watchdog is to run.
const WATCHDOG: &str = "/proc/sys/kernel/nmi_watchdog";
/// The kernel's messages.
const MESSAGES: &str = "/dev/kmsg";
/// The regions that are measured. The overhead of measuring cancels in the difference between two
/// of them.
const REGIONS: [Region; 3] = [
    Region { first: 10, second: 20 },
    Region { first: 10, second: 20 },
    Region { first: 50_000, second: 1_001 },
];
/// How long all CPUs are counted.
const INTERVAL: Duration = Duration::from_millis(50);

/// Counts all CPUs, and what this thread executes.
pub fn count(cpus: &[usize]) -> Result<HostPerf> {
    let watchdog = fs::read_to_string(WATCHDOG).context(WATCHDOG)?.trim() == "1";
    Ok(match open_all(cpus) {
        Ok(events) => HostPerf { errno: 0, error: error(cpus, &events)?, watchdog },
        Err(errno) => HostPerf { errno: errno as u64, error: 0, watchdog },
    })
}

/// Opens an event for each CPU.
pub fn open_all(cpus: &[usize]) -> Result<Vec<Event>, Errno> {
    cpus.iter().map(|&cpu| Event::open(instructions(), Whose::Cpu(cpu), None)).collect()
}

/// Returns instructions in any mode. Reading them also says for how long they have been counted.
fn instructions() -> perf_event_attr {
    let mut attributes = generic(PERF_COUNT_HW_INSTRUCTIONS);
    attributes.set_exclude_kernel(0);
    attributes.read_format =
        (PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING).into();
    attributes
}

/// Returns the error of this thread's own event. Fails if a CPU's event has not counted all the
/// time, or has counted less than this thread has executed there.
fn error(cpus: &[usize], events: &[Event]) -> Result<u64> {
    let own = Event::open(generic(PERF_COUNT_HW_INSTRUCTIONS), Whose::Thread(SELF), None)?;
    let mut worst = 0;
    for (&cpu, event) in cpus.iter().zip(events) {
        run_on(SELF, &[cpu])?;
        let [before, ..] = event.read::<3>()?;
        // The first region makes all memory present.
        let [_, small, large] = REGIONS.map(|region| counted(&own, region));
        let expected = REGIONS[2].instructions() - REGIONS[1].instructions();
        worst = worst.max((large? - small?).abs_diff(expected));
        sleep(INTERVAL);
        let [after, enabled, running] = event.read::<3>()?;
        ensure!(running == enabled, "CPU {cpu}: counted for {running} of {enabled} ns");
        ensure!(after - before > REGIONS[2].instructions(), "CPU {cpu}: {}", after - before);
    }
    run_on(SELF, cpus)?;
    Ok(worst)
}

/// Returns the event's growth from one reading to the next, with the region between them.
#[inline(never)]
fn counted(event: &Event, region: Region) -> Result<u64> {
    let mut store = 0;
    let before = event.count()?;
    region.execute(&mut store);
    Ok(event.count()? - before)
}

/// Returns the driver's messages in the kernel's log.
pub fn messages() -> Result<Vec<String>> {
    let mut log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(MESSAGES)?;
    let (mut printed, mut record) = (Vec::new(), [0; 8192]);
    loop {
        match log.read(&mut record) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&record[..bytes]);
                let message = text.split_once(';').context("a message")?.1;
                let line = message.lines().next().unwrap_or_default();
                printed.extend(line.starts_with("perfctr: ").then(|| line.to_owned()));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(printed),
            // The log has dropped the message that was to be read next.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => (),
            Err(error) => return Err(error).context(MESSAGES),
        }
    }
}
