// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples of a Xen host itself: each physical CPU has a sample of what it executes whenever it has
//! counted a period of events.

use shared_abi::hypercall::{
    HvProfile, HvSample, HvSamples, OP_PROFILE_READ, OP_PROFILE_START, OP_PROFILE_STOP,
    PLACE_KERNEL, PLACE_USER, PROFILE_AT_GUESTS, PROFILE_PERIOD_MIN, SAMPLE_FOR_KERNEL,
    SAMPLE_FOR_USER, SAMPLE_HYPERVISOR, SAMPLES_MAX,
};
use shared_abi::limits::PERIOD_EVENTS_MAX;
use zerocopy::FromZeros;

use super::{Driver, Xen, on_any_general_counter};
use crate::error::Error;
use crate::event::Event;

/// The minor version of the driver's interface that has these samples.
const MINOR: u32 = 4;
/// The minor version of the driver's interface that can say where guests were left.
const MINOR_AT_GUESTS: u32 = 6;
/// The physical CPUs that may have samples: as many as any Xen has.
const CPUS_MAX: u32 = 4096;
/// The largest number of hypercalls by which one call takes samples of a CPU: enough for as many as
/// its ring holds, since samples may come faster than they are taken.
const READS_MAX: usize = 4096 / SAMPLES_MAX + 1;

/// The mode in which a physical CPU executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The hypervisor.
    #[default]
    Hypervisor,
    /// A domain's kernel.
    Kernel,
    /// A domain's user mode.
    User,
    /// The hypervisor, for a domain that entered it from its kernel: [`HostSample::ip`] is an
    /// instruction of the domain's kernel.
    ForKernel,
    /// The hypervisor, for a domain that entered it from user mode: [`HostSample::ip`] is an
    /// instruction of the domain's user mode.
    ForUser,
}

/// The instruction whose address the samples of the hypervisor have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Places {
    /// The hypervisor's own instruction.
    #[default]
    Hypervisor,
    /// The instruction at which the domain for which the hypervisor executed has entered it.
    Guest,
}

/// A sample of a physical CPU: the instruction and the virtual CPU that it was executing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostSample {
    /// The host's time-stamp counter.
    pub tsc: u64,
    /// The instruction pointer.
    pub ip: u64,
    /// Who executed.
    pub mode: Mode,
    /// The domain for which it executed, such as [`IDLE_DOMAIN`].
    pub domain: u32,
    /// The number of the virtual CPU in that domain.
    pub vcpu: u32,
    /// The physical CPU.
    pub cpu: u32,
}

/// The number of the domain that a physical CPU executes when it has nothing to do.
pub const IDLE_DOMAIN: u32 = 0x7fff;

impl HostSample {
    fn new(sample: &HvSample) -> Result<Self, Error> {
        let HvSample { tsc, ip, domain, vcpu, mode, cpu } = *sample;
        let mode = match mode {
            SAMPLE_HYPERVISOR => Mode::Hypervisor,
            PLACE_KERNEL => Mode::Kernel,
            PLACE_USER => Mode::User,
            SAMPLE_FOR_KERNEL => Mode::ForKernel,
            SAMPLE_FOR_USER => Mode::ForUser,
            _ => return Err(Error::Malformed("mode of a sample of the host")),
        };
        Ok(Self { tsc, ip, mode, domain, vcpu, cpu })
    }
}

/// A session of samples. When it is dropped, sampling ends. If the process is killed, sampling
/// ends by itself two seconds later.
#[derive(Debug)]
pub struct HostSamples {
    xen: Xen,
    /// The physical CPUs that are sampled, and how many samples each has lost.
    cpus: Vec<(u32, u64)>,
}

impl HostSamples {
    /// Begins to sample all physical CPUs, or only these. A CPU is sampled whenever it has counted
    /// as many events as [`Event::every`] says.
    ///
    /// [`Event::kernel`] is ring 0, in which Xen and the kernels of PVH and HVM domains execute.
    /// [`Event::user`] is the other rings, in which both the kernel and the user mode of a 64-bit
    /// PV domain execute.
    ///
    /// # Errors
    ///
    /// [`Error::NotSampled`] says why the host cannot be sampled. [`Error::EventNotAvailable`],
    /// and those of [`Xen::driver`].
    pub fn start(
        xen: Xen,
        event: Event,
        cpus: Option<&[u32]>,
        places: Places,
    ) -> Result<Self, Error> {
        let mut profile = wanted(&xen.driver()?, event, cpus, places)?;
        xen.call(OP_PROFILE_START, &mut profile).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => Error::NotSampled(NO_COUNTER),
            Some(libc::EBUSY) => Error::NotSampled(BUSY),
            Some(libc::EPERM) => Error::NotSampled(NOT_CONTROL),
            _ => Error::kernel("sample the host")(error),
        })?;
        // From here on, dropping `started` ends the session.
        let mut started = Self { xen, cpus: Vec::new() };
        for cpu in 0..CPUS_MAX {
            if cpus.is_some_and(|cpus| !cpus.contains(&cpu)) {
                continue;
            }
            // This also takes samples, since a request for the number of samples alone would be no
            // simpler.
            match started.xen.call(OP_PROFILE_READ, &mut asked(cpu)) {
                Ok(()) => started.cpus.push((cpu, 0)),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) && cpus.is_none() => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    return Err(Error::NotSampled(NO_CPU));
                }
                Err(error) => return Err(Error::kernel("take samples of the host")(error)),
            }
        }
        Ok(started)
    }

    /// Iterates over the physical CPUs that are sampled.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        self.cpus.iter().map(|&(cpu, _)| cpu)
    }

    /// Takes the samples that there are, those of each physical CPU in their order. This must be
    /// called at least once in two seconds.
    ///
    /// # Errors
    ///
    /// [`Error::NotSampled`]: sampling has ended, because samples were not taken for too long.
    /// [`Error::Malformed`].
    pub fn take(&mut self) -> Result<Vec<HostSample>, Error> {
        let mut taken = Vec::new();
        for (cpu, lost) in &mut self.cpus {
            for _ in 0..READS_MAX {
                let mut samples = asked(*cpu);
                self.xen.call(OP_PROFILE_READ, &mut samples).map_err(|error| {
                    match error.raw_os_error() {
                        Some(libc::ENXIO) => Error::NotSampled(ENDED),
                        _ => Error::kernel("take samples of the host")(error),
                    }
                })?;
                *lost = samples.lost;
                let some = parse(&samples)?;
                let all = some.len() < SAMPLES_MAX;
                taken.extend(some);
                if all {
                    break;
                }
            }
        }
        Ok(taken)
    }

    /// Returns how many samples were lost since the start, as far as [`take`](Self::take) knows. A
    /// sample is lost if its CPU's ring is full, or if more than one period has ended at once.
    pub fn lost(&self) -> u64 {
        self.cpus.iter().fold(0, |sum, (_, lost)| sum.saturating_add(*lost))
    }
}

impl Drop for HostSamples {
    fn drop(&mut self) {
        // If this fails, the session has ended by itself.
        let _ = self.xen.call(OP_PROFILE_STOP, &mut ());
    }
}

const NO_COUNTER: &str = "the driver has kept no counter for this; Xen's option \
                          `perfctr=profile`, beside those that it has, keeps one from the next \
                          boot on";
const BUSY: &str = "somebody does so already; what was killed is forgotten after two seconds";
const NOT_CONTROL: &str = "this is not the control domain";
const NO_CPU: &str = "one of the physical CPUs that were named does not exist or is not online";
const OLD: &str = "the driver is of an older release, whose interface is below 2.4";
const OLD_AT_GUESTS: &str = "the driver is of an older release, whose interface is below 2.6: it \
                             cannot say where guests were left";
const ENDED: &str = "nobody has taken samples for two seconds, so the driver has stopped";

fn asked(cpu: u32) -> HvSamples {
    HvSamples { cpu, ..HvSamples::new_zeroed() }
}

/// Returns the samples that an answer of the driver contains.
fn parse(answer: &HvSamples) -> Result<Vec<HostSample>, Error> {
    let samples = answer.sample.get(..answer.count as usize);
    let samples = samples.ok_or(Error::Malformed("number of samples of the host"))?;
    if samples.iter().any(|sample| sample.cpu != answer.cpu) {
        return Err(Error::Malformed("physical CPU of a sample of the host"));
    }
    samples.iter().map(HostSample::new).collect()
}

/// Returns the argument of the request to the driver to sample.
fn wanted(
    driver: &Driver,
    event: Event,
    cpus: Option<&[u32]>,
    places: Places,
) -> Result<HvProfile, Error> {
    if driver.abi.1 < MINOR {
        return Err(Error::NotSampled(OLD));
    }
    let flags = match places {
        Places::Hypervisor => 0,
        Places::Guest if driver.abi.1 < MINOR_AT_GUESTS => {
            return Err(Error::NotSampled(OLD_AT_GUESTS));
        }
        Places::Guest => PROFILE_AT_GUESTS,
    };
    if !(PROFILE_PERIOD_MIN..=PERIOD_EVENTS_MAX).contains(&event.period()) {
        return Err(Error::unavailable(event, "a period of the host is at least 10,000 events"));
    }
    let counter = on_any_general_counter(driver, event)?;
    Ok(HvProfile {
        evntsel: counter.evntsel,
        period: event.period(),
        cpus: mask(cpus).ok_or(Error::NotSampled(NO_CPU))?,
        flags,
    })
}

/// Returns a bit for each of these physical CPUs. CPUs from number 64 on can only be sampled
/// together with all others.
fn mask(cpus: Option<&[u32]>) -> Option<u64> {
    let Some(cpus) = cpus else { return Some(u64::MAX) };
    cpus.iter().try_fold(0, |mask, &cpu| Some(mask | 1_u64.checked_shl(cpu)?))
}

#[cfg(test)]
mod tests {
    use shared_abi::caps::{CAPS_SAMPLING, VENDOR_INTEL};
    use shared_abi::{CounterWidth, PmuCaps};

    use super::*;

    const SAMPLE: HvSample =
        HvSample { tsc: 7, ip: 9, domain: 3, vcpu: 1, mode: SAMPLE_HYPERVISOR, cpu: 2 };

    fn answer(count: u32, sample: HvSample) -> HvSamples {
        HvSamples { count, sample: [sample; SAMPLES_MAX], ..asked(2) }
    }

    #[test]
    fn samples_say_who_executed_where() {
        for (mode, expected) in [
            (SAMPLE_HYPERVISOR, Mode::Hypervisor),
            (PLACE_KERNEL, Mode::Kernel),
            (PLACE_USER, Mode::User),
            (SAMPLE_FOR_KERNEL, Mode::ForKernel),
            (SAMPLE_FOR_USER, Mode::ForUser),
        ] {
            let parsed = parse(&answer(2, HvSample { mode, ..SAMPLE })).unwrap();
            let sample = HostSample { tsc: 7, ip: 9, mode: expected, domain: 3, vcpu: 1, cpu: 2 };
            assert_eq!(parsed, [sample, sample]);
        }
        assert_eq!(parse(&answer(0, HvSample::default())).unwrap(), []);
        let full = parse(&answer(SAMPLES_MAX as u32, SAMPLE)).unwrap();
        assert_eq!(full.len(), SAMPLES_MAX);
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        for (answer, what) in [
            (answer(SAMPLES_MAX as u32 + 1, SAMPLE), "number of samples of the host"),
            (answer(u32::MAX, SAMPLE), "number of samples of the host"),
            (answer(1, HvSample { cpu: 3, ..SAMPLE }), "physical CPU of a sample of the host"),
            (answer(1, HvSample { mode: 0, ..SAMPLE }), "mode of a sample of the host"),
            (answer(1, HvSample { mode: 6, ..SAMPLE }), "mode of a sample of the host"),
        ] {
            let error = parse(&answer).unwrap_err();
            assert!(matches!(error, Error::Malformed(found) if found == what), "{error}");
        }
    }

    fn driver() -> Driver {
        let width = CounterWidth::new(48).unwrap();
        let caps = PmuCaps {
            vendor: VENDOR_INTEL,
            features: CAPS_SAMPLING,
            version: 2,
            general: 3,
            fixed: 3,
            general_width: width,
            fixed_width: width,
        };
        Driver { abi: (2, MINOR_AT_GUESTS), allows: true, caps }
    }

    #[test]
    fn the_driver_is_asked_for_a_general_counters_event() {
        let event = Event::raw(0xc0).unverified().every(20_000);
        let ring_0 = HvProfile { evntsel: 0x42_00c0, period: 20_000, cpus: u64::MAX, flags: 0 };
        let wanted = |event, cpus| wanted(&driver(), event, cpus, Places::Hypervisor).unwrap();
        assert_eq!(wanted(event.kernel(), None), ring_0);
        let outside = HvProfile { evntsel: 0x41_00c0, cpus: 0b101, ..ring_0 };
        assert_eq!(wanted(event.user(), Some(&[2, 0])), outside);
        // Instructions also have a fixed counter, but the host's own counter is a general one.
        let instructions = Event::INSTRUCTIONS.unverified().every(20_000).kernel();
        assert_eq!(wanted(instructions, None), ring_0);
        let guests = super::wanted(&driver(), event.kernel(), None, Places::Guest).unwrap();
        assert_eq!(guests, HvProfile { flags: PROFILE_AT_GUESTS, ..ring_0 });
    }

    #[test]
    fn what_the_driver_would_refuse_is_refused_with_a_reason() {
        let event = Event::raw(0xc0).unverified();
        let old = Driver { abi: (2, MINOR - 1), ..driver() };
        let refused = |driver: &Driver, event: Event, cpus: Option<&[u32]>| {
            wanted(driver, event, cpus, Places::default()).unwrap_err().to_string()
        };
        let each = event.every(PROFILE_PERIOD_MIN);
        assert_eq!(refused(&old, each, None), format!("the host cannot be sampled: {OLD}"));
        let older = Driver { abi: (2, MINOR_AT_GUESTS - 1), ..driver() };
        let message = wanted(&older, each, None, Places::Guest).unwrap_err().to_string();
        assert_eq!(message, format!("the host cannot be sampled: {OLD_AT_GUESTS}"));
        assert!(wanted(&older, each, None, Places::Hypervisor).is_ok());
        assert_eq!(
            refused(&driver(), each, Some(&[64])),
            format!("the host cannot be sampled: {NO_CPU}")
        );
        for period in [0, PROFILE_PERIOD_MIN - 1, PERIOD_EVENTS_MAX + 1] {
            let message = refused(&driver(), event.every(period), None);
            assert!(message.contains("at least 10,000 events"), "{message}");
        }
    }
}
