// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counters that the hypervisor and the guest's kernel virtualise, through `/dev/perfctr`.

use std::cell::Cell;
use std::io;

use shared_abi::caps::CAPS_SAMPLING;
use shared_abi::ioctl::{
    CONTROL_CLOEXEC, CONTROL_KEEP_PERIOD, CONTROL_RING, CONTROL_TSC, Control, FEATURE_KEEP_PERIOD,
    FEATURE_RING, Info,
};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::read::ReadError;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::version::{ABI_MAJOR, THREAD_PAGE_MAGIC};
use shared_abi::{Config, CounterConfig, Errno, PmuCaps};

use crate::error::Error;
use crate::event::Event;
use crate::host::{Driver, Xen};
use crate::map::Pages;
use crate::overflow::Records;
use crate::sys::{Device, Generation};

use super::known;
use super::place::place;
use super::refusal::{Cause, Refusal};
use super::types::{Description, Notification, Provider, Taken};

/// The calling thread's counters at the device.
#[derive(Debug)]
pub(crate) struct Paravirt {
    device: Device,
    /// The process that has opened the device. A forked child must not touch its counters.
    generation: Generation,
    description: Description,
    caps: PmuCaps,
    /// The events that were started last, and the notification if one of them samples.
    counters: Vec<CounterConfig>,
    notification: Notification,
    has_ring: Cell<bool>,
    /// The module's capabilities.
    features: u32,
}

impl Paravirt {
    /// Opens the calling thread's counters, and maps their pages.
    pub(crate) fn open() -> Result<(Self, Pages), Error> {
        let device = Device::open().map_err(|error| Error::Refused(at_device(&error)))?;
        let refused = |error| Error::Refused(Refusal::at_module(&error));
        let info = device.info().map_err(refused)?;
        let (description, caps) = describe(&info)?;
        device.create_for(0).map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::EXIST.0 => Error::AlreadyOpen,
            Some(code) if code == Errno::PROTO.0 => {
                Error::Version { found: info.abi_major, expected: ABI_MAJOR.into() }
            }
            _ => refused(error),
        })?;
        // If anything fails from here on, the counters are unlinked: here if the mapping fails, and
        // later by dropping `paravirt`.
        let pages = Pages::new(&device, info.vcpus).inspect_err(|_| drop(device.unlink()))?;
        let (counters, notification, features) =
            (Vec::new(), Notification::Signal(0), info.features);
        let (has_ring, generation) = (Cell::new(false), Generation::current());
        let paravirt = Self {
            device,
            generation,
            description,
            caps,
            counters,
            notification,
            has_ring,
            features,
        };
        match pages.thread_page() {
            Some(page) if page.magic.load(Relaxed) == THREAD_PAGE_MAGIC => Ok((paravirt, pages)),
            _ => Err(Error::Malformed("thread page")),
        }
    }

    pub(crate) fn description(&self) -> &Description {
        &self.description
    }

    /// Starts to count `events` from 0. `notification` says how the thread learns of the overflows
    /// of those that sample.
    pub(crate) fn start(
        &mut self,
        events: &[Event],
        notification: Notification,
    ) -> Result<(), Error> {
        if notification == Notification::Records && !self.has_ring.get() {
            return Err(Error::NoRings("`Session::records` gives the thread one"));
        }
        let counters = place(&self.caps, events)?;
        Config::new(&self.caps, &counters)?;
        self.set(CONTROL_CLOEXEC | CONTROL_TSC, &counters, 0, notification)?;
        (self.counters, self.notification) = (counters, notification);
        Ok(())
    }

    /// Gives the thread a ring of this many records.
    pub(crate) fn records(&self, room: usize, callers: usize) -> Result<Records, Error> {
        self.check_forked()?;
        if self.features & FEATURE_RING == 0 {
            return Err(Error::NoRings("the loaded module knows no rings: it is older"));
        }
        let records = Records::new(&self.device, self.description.vcpus, room, callers)?;
        self.has_ring.set(true);
        Ok(records)
    }

    /// Counts the same events again; their sums and periods continue.
    pub(crate) fn resume(&self) -> Result<(), Error> {
        let all = (1 << self.counters.len()) - 1;
        let keeps = self.features & FEATURE_KEEP_PERIOD != 0;
        let keep = if keeps { CONTROL_KEEP_PERIOD } else { 0 };
        self.set(CONTROL_CLOEXEC | CONTROL_TSC | keep, &self.counters, all, self.notification)
    }

    /// Stops counting; the sums can still be read.
    pub(crate) fn stop(&self) -> Result<(), Error> {
        self.set(CONTROL_CLOEXEC, &[], 0, Notification::Signal(0))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    fn set(
        &self,
        flags: u32,
        counters: &[CounterConfig],
        preserve: u32,
        notification: Notification,
    ) -> Result<(), Error> {
        self.check_forked()?;
        let (flags, signal) = match notification {
            Notification::Signal(signal) => (flags, signal),
            Notification::Records => (flags | CONTROL_RING, 0),
        };
        let control = Control { preserve, signal, ..control(flags, counters)? };
        self.device.control(&control).map_err(|error| match error.raw_os_error() {
            Some(libc::EACCES) => Error::Refused(Refusal::at_module(&error)),
            _ => Error::kernel("set the counters")(error),
        })
    }

    fn check_forked(&self) -> Result<(), Error> {
        if self.generation == Generation::current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Asks the kernel for the counts that a direct read of the pages could not give, or for the
    /// reason.
    pub(crate) fn read_otherwise(
        &self,
        error: ReadError,
        pages: &Pages,
        counts: &mut [u64],
    ) -> Result<Taken, Error> {
        let page = pages.thread_page().ok_or(Error::Forked)?;
        let available = page.counters.load(Relaxed) as usize;
        if counts.len() > available {
            return Err(Error::TooManyCounters { asked: counts.len(), available });
        }
        if error != ReadError::NotDirect {
            return Err(Error::from_read(error));
        }
        let sums = self.device.sums().map_err(Error::kernel("read the counters"))?;
        for (count, sum) in counts.iter_mut().zip(sums.counter) {
            *count = sum;
        }
        Ok(Taken { tsc: sums.tsc, retries: 0, direct: false })
    }
}

impl Drop for Paravirt {
    fn drop(&mut self) {
        // Closing the descriptor alone would leave the thread counting. An error can neither be
        // reported from here nor handled.
        if self.check_forked().is_ok() {
            drop(self.device.unlink());
        }
    }
}

/// Returns the control that counts `events`, and the TSC, from 0.
///
/// # Errors
///
/// The errors of [`Session::start`](crate::Session::start), except for the kernel's.
pub fn counting(caps: &PmuCaps, events: &[Event], flags: u32) -> Result<Control, Error> {
    if let Some(&event) = events.iter().find(|event| event.samples()) {
        return Err(Error::unavailable(event, "it samples, and there is no signal"));
    }
    placed(caps, events, flags)
}

/// Returns a control like that of [`counting`], with which overflows of the events that sample
/// raise `signal`.
///
/// # Errors
///
/// The errors of [`counting`]; [`Error::EventNotAvailable`] if this PMU's counters do not
/// interrupt, or none of the events samples.
pub fn sampling(
    caps: &PmuCaps,
    events: &[Event],
    flags: u32,
    signal: libc::c_int,
) -> Result<Control, Error> {
    let event = *events.first().ok_or(Error::Malformed("list of events"))?;
    if !events.iter().any(|event| event.samples()) {
        return Err(Error::unavailable(event, "no period is given"));
    }
    if !caps.can(CAPS_SAMPLING) {
        return Err(Error::unavailable(event, "this machine's counters do not interrupt"));
    }
    // A negative signal number becomes a number that is too high, which the kernel refuses.
    Ok(Control { signal: signal.cast_unsigned(), ..placed(caps, events, flags)? })
}

fn placed(caps: &PmuCaps, events: &[Event], flags: u32) -> Result<Control, Error> {
    known::check(events)?;
    let counters = place(caps, events)?;
    Config::new(caps, &counters)?;
    control(flags | CONTROL_TSC, &counters)
}

fn control(flags: u32, counters: &[CounterConfig]) -> Result<Control, Error> {
    let mut control = Control { flags, counters: counters.len() as u32, ..Control::default() };
    let Some(places) = control.counter.get_mut(..counters.len()) else {
        return Err(Error::TooManyCounters { asked: counters.len(), available: MAX_COUNTERS });
    };
    places.copy_from_slice(counters);
    Ok(control)
}

/// Explains why the device could not be opened. If there is no module, asks the hypervisor why.
fn at_device(error: &io::Error) -> Refusal {
    let refusal = Refusal::at_device(error);
    match refusal.cause {
        Cause::NoModule => at_hypervisor().unwrap_or(refusal),
        _ => refusal,
    }
}

/// Asks the hypervisor why the module could not be loaded; the hypervisor answers only root.
fn at_hypervisor() -> Option<Refusal> {
    let refusal = |cause, errno| Some(Refusal { provider: Provider::Paravirt, cause, errno });
    match Xen::open().ok()?.driver() {
        Ok(Driver { allows: false, .. }) => refusal(Cause::Forbidden, libc::EPERM),
        Err(error) => match error.errno()? {
            errno @ libc::ENOSYS => refusal(Cause::NoDriver, errno),
            errno @ libc::ENODEV => refusal(Cause::DriverOff, errno),
            _ => None,
        },
        _ => None,
    }
}

/// Checks the device's description of itself.
fn describe(info: &Info) -> Result<(Description, PmuCaps), Error> {
    let expected = ABI_MAJOR.into();
    if info.abi_major != expected {
        return Err(Error::Version { found: info.abi_major, expected });
    }
    let caps = PmuCaps::from_wire(&info.caps).ok_or(Error::Malformed("capabilities"))?;
    let description = Description {
        provider: Provider::Paravirt,
        caps: Some(caps),
        vcpus: info.vcpus,
        cpu_signature: info.cpu_signature,
        tsc_khz: info.tsc_khz,
    };
    Ok((description, caps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::WireCaps;

    fn info() -> Info {
        Info {
            abi_major: ABI_MAJOR.into(),
            caps: WireCaps {
                vendor: 1,
                version: 2,
                general: 4,
                fixed: 3,
                general_width: 48,
                fixed_width: 40,
                ..WireCaps::default()
            },
            vcpus: 4,
            tsc_khz: 2_000_000,
            ..Info::default()
        }
    }

    #[test]
    fn the_description_is_what_the_device_says() {
        let (description, caps) = describe(&info()).unwrap();
        assert_eq!((caps.general, caps.fixed, caps.fixed_width.bits()), (4, 3, 40));
        assert_eq!((description.vcpus, description.tsc_khz), (4, 2_000_000));
    }

    #[test]
    fn another_major_is_refused_with_both_numbers() {
        let error = describe(&Info { abi_major: 7, ..info() }).unwrap_err();
        assert_eq!(error.to_string(), format!("interface version 7 found, {ABI_MAJOR} expected"));
    }

    #[test]
    fn what_samples_has_a_period_a_signal_and_a_pmu_that_interrupts() {
        let caps = describe(&info()).unwrap().1;
        let event = Event::INSTRUCTIONS.user();
        let message = |caps, event| sampling(caps, &[event], 0, 16).unwrap_err().to_string();
        assert!(message(&caps, event).ends_with("no period is given"));
        assert!(message(&caps, event.every(5_000)).ends_with("counters do not interrupt"));
        let caps = PmuCaps { features: caps.features | CAPS_SAMPLING, ..caps };
        let control = sampling(&caps, &[event.every(5_000)], 0, 16).unwrap();
        assert_eq!((control.signal, control.counter[0].period), (16, 5_000));
        assert!(counting(&caps, &[event.every(5_000)], 0).is_err());
    }

    #[test]
    fn who_gives_a_thread_counters_learns_how_long_it_executes() {
        let caps = describe(&info()).unwrap().1;
        let caps = PmuCaps { features: caps.features | CAPS_SAMPLING, ..caps };
        let event = Event::INSTRUCTIONS.user();
        for flags in [0, CONTROL_CLOEXEC] {
            let counts = counting(&caps, &[event], flags).unwrap();
            let samples = sampling(&caps, &[event.every(5_000)], flags, 16).unwrap();
            let found = [counts.flags, samples.flags];
            assert_eq!(found, [flags | CONTROL_TSC; 2], "{flags:#x} was asked for");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let mut info = info();
        info.caps.general_width = 16;
        assert_eq!(describe(&info).unwrap_err().to_string(), "malformed capabilities");
    }
}
